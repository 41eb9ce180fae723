/* An NVML that lists what it is told to: the processes in FAKE_PIDS on the GPU whose UUID is FAKE_UUID, everywhere.
 *
 * FAKE_TABLE changes nvidia-smi's table:   short    ends before the process lists     foreign   leads to another library
 *                                          shifted  has rows of another size
 * SETTERS is a header with `S(name)` for every function that sets something: all of them succeed.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
#define S(name) result name(void) { return 0; }
#include SETTERS
#undef S

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define DEVICE ((void *)0x1000)
#define GIB (1ull << 30)

static unsigned pids[64], pid_count;

result nvmlInit_v2(void) {
    const char *list = getenv("FAKE_PIDS");
    char *end;
    for (pid_count = 0; list && *list; list = *end ? end + 1 : end) pids[pid_count++] = strtoul(list, &end, 10);
    return SUCCESS;
}
result nvmlShutdown(void) { return SUCCESS; }
result nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return index ? NOT_FOUND : (*device = DEVICE, SUCCESS); }
result nvmlDeviceGetUUID(void *device, char *text, unsigned room) {
    if (device != DEVICE) return INVALID_ARGUMENT;
    snprintf(text, room, "%s", getenv("FAKE_UUID"));
    return SUCCESS;
}
result nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 80 * GIB, memory[1] = 79 * GIB, memory[2] = GIB;
    return device == DEVICE ? SUCCESS : INVALID_ARGUMENT;
}
result nvmlDeviceGetConfComputeProtectedMemoryUsage(void *device, unsigned long long *memory) {
    return nvmlDeviceGetMemoryInfo(device, memory);
}

/* A list as all of them are: entries are made in place, the pid where it belongs. */
static result list(unsigned *count, void *entries, size_t size, size_t pid_at, size_t used_at) {
    unsigned room = count ? *count : 0;
    if (!count || (room && !entries)) return INVALID_ARGUMENT;
    *count = pid_count;
    if (pid_count > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < pid_count; i++) {
        char *entry = (char *)entries + i * size;
        memset(entry, 0, size);
        memcpy(entry + pid_at, &pids[i], sizeof pids[i]);
        if (used_at) *(unsigned long long *)(entry + used_at) = GIB;
    }
    return SUCCESS;
}
#define LIST(name, size, pid_at, used_at) \
    result name(void *device, unsigned *count, void *entries) { \
        return device == DEVICE ? list(count, entries, size, pid_at, used_at) : INVALID_ARGUMENT; \
    }
LIST(nvmlDeviceGetComputeRunningProcesses, 16, 0, 8)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 24, 0, 8)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 24, 0, 8)
LIST(nvmlDeviceGetGraphicsRunningProcesses, 16, 0, 8)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 24, 0, 8)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 24, 0, 8)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 16, 0, 8)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 24, 0, 8)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 24, 0, 8)
LIST(nvmlDeviceGetEncoderSessions, 32, 4, 0)
LIST(nvmlDeviceGetFBCSessions, 48, 4, 0)
LIST(nvmlDeviceGetAccountingPids, 4, 0, 0)

struct details { unsigned version, mode, count; void *entries; };
result nvmlDeviceGetRunningProcessDetailList(void *device, struct details *details) {
    return device == DEVICE ? list(&details->count, details->entries, 32, 0, 8) : INVALID_ARGUMENT;
}
result nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned *count, unsigned long long seen) {
    (void)seen;
    return device == DEVICE ? list(count, samples, 32, 0, 0) : INVALID_ARGUMENT;
}
struct utilization { unsigned version, count; unsigned long long seen; void *entries; };
result nvmlDeviceGetProcessesUtilizationInfo(void *device, struct utilization *info) {
    return device == DEVICE ? list(&info->count, info->entries, 40, 8, 0) : INVALID_ARGUMENT;
}
result nvmlDeviceGetAccountingStats(void *device, unsigned pid, unsigned long long *stats) {
    (void)pid;
    memset(stats, 0, 56);
    stats[1] = 7 * GIB;
    return device == DEVICE ? SUCCESS : INVALID_ARGUMENT;
}
result nvmlDeviceGetAccountingStats_v2(void *device, unsigned long long *stats) {
    stats[2] = 7 * GIB;
    return device == DEVICE ? SUCCESS : INVALID_ARGUMENT;
}
result nvmlSystemGetProcessName(unsigned pid, char *name, unsigned room) {
    snprintf(name, room, "/bin/%u", pid);
    return SUCCESS;
}

/* nvidia-smi's table. */
static result rows(void *device, unsigned *count, void *entries) {
    const char *table = getenv("FAKE_TABLE");
    size_t size = table && !strcmp(table, "shifted") ? 4000 : 4128;
    result answer = device == DEVICE ? list(count, entries, size, 0, 8) : INVALID_ARGUMENT;
    for (unsigned i = 0; !answer && i < *count; i++) strcpy((char *)entries + i * size + 32, "/bin/program");
    return answer;
}
static result reset(void *device, void *more) { return device == DEVICE && more ? SUCCESS : INVALID_ARGUMENT; }
static result nothing(void) { return SUCCESS; }
#define WORDS 245
static const void *const whole[WORDS] = {(void *)sizeof whole, nothing, [20] = reset, [81] = nothing, [213] = rows, rows, rows, [244] = nothing};
static const void *const brief[200] = {(void *)sizeof brief, nothing, [20] = reset};
static const void *foreign[WORDS];

result nvmlInternalGetExportTable(const void **table, const void *id) {
    const char *kind = getenv("FAKE_TABLE");
    if (*(const unsigned char *)id != 0xc4) return NOT_FOUND;
    memcpy(foreign, whole, sizeof whole);
    foreign[214] = (void *)puts;
    *table = !kind || !strcmp(kind, "shifted") ? (void *)whole : !strcmp(kind, "short") ? (void *)brief : (void *)foreign;
    return SUCCESS;
}
