/* The few driver functions that divvy-driver calls, over four GPUs that each misbehave in one way:
 *   0  is well; lists 200 processes, some of them twice, and the caller once it has a context
 *   1  is lost: it has a handle, and every call about it fails
 *   2  has not even a handle
 *   3  does not list the caller, knows neither version 2 of memory information nor utilisation nor MPS, has no ECC and
 *      reports no Xid
 * Declared here by hand: NVIDIA's headers are not needed to build it. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LOST = 15, VERSION_MISMATCH = 25 };
enum { GPUS = 4, LISTED = 200, CONTEXT = 432 << 20 };
struct gpu { int index; };
struct memory_v1 { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char bus_id[32]; };
struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
struct rates { unsigned gpu, memory; };
struct event { struct gpu *gpu; unsigned long long type, data; unsigned gi, ci; };

static struct gpu gpus[GPUS] = {{0}, {1}, {2}, {3}};
static int contexts[GPUS];
static int inits;

static int answers(struct gpu *gpu) { return gpu->index == 1 ? LOST : OK; }

int nvmlInit_v2(void) { inits++; return OK; }
int nvmlShutdown(void) { return --inits < 0 ? 1 : OK; }

const char *nvmlErrorString(int code)
{
    return code == LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "570.86.15"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle)
{
    if (index == 2) return LOST;
    *handle = &gpus[index];
    return OK;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned length)
{
    snprintf(text, length, "GPU-0000000%d-0000-0000-0000-000000000000", gpu->index);
    return answers(gpu);
}

int nvmlDeviceGetName(struct gpu *gpu, char *text, unsigned length)
{
    snprintf(text, length, "NVIDIA Fake %d", gpu->index);
    return answers(gpu);
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci)
{
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:0%d:00.0", gpu->index);
    return answers(gpu);
}

int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory_v1 *memory)
{
    unsigned long long used = 1000 + (contexts[gpu->index] ? CONTEXT : 0);
    *memory = (struct memory_v1){1ull << 36, (1ull << 36) - used, used};
    return answers(gpu);
}

int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *memory)
{
    if (memory->version != 0x2000028) return VERSION_MISMATCH;
    if (gpu->index == 3) return NOT_SUPPORTED;
    *memory = (struct memory_v2){memory->version, 85899345920, 629145600, 85000000000, 270200320};
    return answers(gpu);
}

int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct rates *rates)
{
    if (gpu->index == 3) return NOT_SUPPORTED;
    *rates = (struct rates){42, 17};
    return answers(gpu);
}

int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, unsigned type, unsigned counter, unsigned long long *count)
{
    if (gpu->index == 3) return NOT_SUPPORTED;
    *count = type == 1 && counter == 0 ? 7 : 99;
    return answers(gpu);
}

int nvmlDeviceGetRemappedRows(struct gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    if (gpu->index == 3) return NOT_SUPPORTED;
    *corrected = 5, *uncorrected = 2, *pending = 1, *failed = 0;
    return answers(gpu);
}

/* There is one event set. Each GPU that it watches has had one event, which NVML does not know. */
static struct gpu *watched[GPUS];
static unsigned sets, registered, told;

int nvmlEventSetCreate(unsigned **set)
{
    if (sets > 0) return NOT_SUPPORTED;
    sets = 1;
    *set = &sets;
    registered = told = 0;
    return OK;
}

int nvmlEventSetFree(unsigned *set) { return --*set == 0 ? OK : 1; }

int nvmlDeviceGetSupportedEventTypes(struct gpu *gpu, unsigned long long *types)
{
    *types = gpu->index == 3 ? 0x10 : 0x18;
    return answers(gpu);
}

int nvmlDeviceRegisterEvents(struct gpu *gpu, unsigned long long types, unsigned *set)
{
    if (types != 8 || set != &sets || gpu->index == 3) return NOT_SUPPORTED;
    watched[registered++] = gpu;
    return OK;
}

int nvmlEventSetWait_v2(unsigned *set, struct event *event, unsigned timeout)
{
    if (set != &sets || timeout != 0 || registered == 0) return NOT_SUPPORTED;
    if (told == registered) return TIMEOUT;
    *event = (struct event){watched[told++], 8, 999, ~0u, ~0u};
    return OK;
}

static int list(unsigned *count, struct process *out, const struct process *in, unsigned have)
{
    unsigned room = *count;
    *count = have;
    if (room < have) return INSUFFICIENT_SIZE;
    memcpy(out, in, have * sizeof *in);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *out)
{
    struct process in[LISTED + 1];
    unsigned have = 0;
    if (answers(gpu) != OK) return answers(gpu);
    if (gpu->index == 0)
        for (; have < LISTED; have++) in[have] = (struct process){3000000000u + have, 1 << 20, ~0u, ~0u};
    if (gpu->index == 0 && contexts[0]) in[have++] = (struct process){getpid(), CONTEXT, ~0u, ~0u};
    return list(count, out, in, have);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *out)
{
    struct process in[] = {{3000000000u, 1 << 20, ~0u, ~0u}, {9, ~0ull, ~0u, ~0u}};
    return list(count, out, in, gpu->index == 0 ? 2 : 0);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *out)
{
    return gpu->index == 3 ? NOT_SUPPORTED : list(count, out, NULL, 0);
}

int cuInit(unsigned flags) { return flags == 0 ? OK : 1; }
int cuDeviceGetCount(int *count) { *count = GPUS; return OK; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }

int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, 0, 16);
    uuid[3] = GPUS - 1 - device; /* CUDA's order is not NVML's. */
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &contexts[GPUS - 1 - device];
    return contexts[GPUS - 1 - device]++ == 0 ? OK : 2;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return contexts[GPUS - 1 - device]-- == 1 ? OK : 201; }
