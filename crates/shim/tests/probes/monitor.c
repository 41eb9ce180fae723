/* A monitor: looks at processes by every function of NVML that tells of them, and answers "RESULT COUNT PID…" lines. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int result;
static void *library, *device;

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "monitor: %s is missing\n", name);
        exit(3);
    }
    return found;
}

/* Room for entries of any kind, and what must not be touched behind it. */
static unsigned char room[65 * 4200];

static void say(result answer, unsigned count, unsigned offered, size_t size, size_t pid_at, size_t used_at) {
    printf("%d %u", answer, count);
    for (unsigned i = 0; !answer && i < count; i++) {
        unsigned pid;
        memcpy(&pid, room + i * size + pid_at, sizeof pid);
        printf(" %u", pid);
        if (used_at) {
            unsigned long long used;
            memcpy(&used, room + i * size + used_at, sizeof used);
            printf(":%llu", used >> 20);
        }
    }
    for (size_t i = offered * size; i < sizeof room; i++)
        if (room[i] != 0xee) {
            printf(" overrun");
            break;
        }
    printf("\n");
}

static void list(const char *name, unsigned offered, size_t size, size_t pid_at, size_t used_at) {
    result (*ask)(void *, unsigned *, void *) = find(name);
    unsigned count = offered;
    result answer = ask(device, &count, offered ? room : NULL);
    say(answer, count, offered, size, pid_at, used_at);
}

static const void **table(void) {
    static const unsigned char id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    result (*get)(const void **, const void *) = find("nvmlInternalGetExportTable");
    const void *found = NULL;
    return get(&found, id) ? NULL : (const void **)found;
}

static const char *file_of(const void *address) {
    Dl_info info;
    if (!address || !dladdr(address, &info)) return "-";
    const char *name = strrchr(info.dli_fname, '/');
    return name ? name + 1 : info.dli_fname;
}

/* How the page of an address is protected, as in "r--p". */
static const char *protection(const void *address) {
    static char found[8];
    char line[512];
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, found) == 3 && from <= (unsigned long)address && (unsigned long)address < to) break;
    if (maps) fclose(maps);
    return found;
}

static void command(char *line) {
    char name[128] = "";
    unsigned a = 0, b = 0;
    unsigned count;
    memset(room, 0xee, sizeof room);
    if (sscanf(line, "list %127s %u %u", name, &a, &b) == 3) { /* room, size of an entry */
        list(name, a, b, 0, b >= 16 ? 8 : 0);
    } else if (sscanf(line, "sessions %127s %u %u", name, &a, &b) == 3) {
        list(name, a, b, 4, 0);
    } else if (sscanf(line, "details %u %u", &a, &b) == 2) { /* mode, room */
        struct { unsigned version, mode, count; void *entries; } details = {sizeof details | 1 << 24, a, b, b ? room : NULL};
        result (*ask)(void *, void *) = find("nvmlDeviceGetRunningProcessDetailList");
        result answer = ask(device, &details);
        say(answer, details.count, b, 32, 0, 8);
    } else if (sscanf(line, "utilization %u", &a) == 1) {
        result (*ask)(void *, void *, unsigned *, unsigned long long) = find("nvmlDeviceGetProcessUtilization");
        count = a;
        result answer = ask(device, a ? room : NULL, &count, 0);
        say(answer, count, a, 32, 0, 0);
    } else if (sscanf(line, "utilization-info %u", &a) == 1) {
        struct { unsigned version, count; unsigned long long seen; void *entries; } info = {sizeof info | 1 << 24, a, 0, a ? room : NULL};
        result (*ask)(void *, void *) = find("nvmlDeviceGetProcessesUtilizationInfo");
        result answer = ask(device, &info);
        say(answer, info.count, a, 40, 8, 0);
    } else if (sscanf(line, "stats %u", &a) == 1) {
        unsigned long long one[8] = {0}, two[10] = {a};
        result (*ask)(void *, unsigned, void *) = find("nvmlDeviceGetAccountingStats");
        result (*ask2)(void *, void *) = find("nvmlDeviceGetAccountingStats_v2");
        result answer = ask(device, a, one), answer2 = ask2(device, two);
        printf("%d %llu %d %llu\n", answer, one[1] >> 20, answer2, two[2] >> 20);
    } else if (sscanf(line, "name %u", &a) == 1) {
        char text[256] = "-";
        result (*ask)(unsigned, char *, unsigned) = find("nvmlSystemGetProcessName");
        result answer = ask(a, text, sizeof text);
        printf("%d %s\n", answer, text);
    } else if (sscanf(line, "memory %127s", name) == 1) {
        unsigned long long memory[3] = {0};
        result (*ask)(void *, void *) = find(name);
        result answer = ask(device, memory);
        printf("%d %llu %llu\n", answer, memory[0] >> 20, memory[2] >> 20);
    } else if (sscanf(line, "set %127s", name) == 1) {
        result (*ask)(long, long, long, long, long) = find(name);
        printf("%d\n", ask(0, 0, 0, 0, 0));
    } else if (!strncmp(line, "table", 5)) { /* whose it is, its page, and which slots do not lead to its own library */
        const void **found = table();
        const char *own = found ? file_of(found) : "-";
        printf("%s %s", own, found ? protection(&found[213]) : "-");
        for (unsigned i = 1; found && i < (unsigned long)found[0] / 8; i++)
            if (found[i] && strcmp(file_of(found[i]), own)) printf(" %u:%s", i, file_of(found[i]));
        printf("\n");
    } else if (sscanf(line, "rows %u %u", &a, &b) == 2) { /* slot, room */
        const void **found = table();
        result (*ask)(void *, unsigned *, void *) = (void *)found[a];
        count = b;
        result answer = ask(device, &count, room);
        printf("%s ", count && !answer ? (char *)room + 32 : "-");
        say(answer, count, b, 4128, 0, 8);
    } else if (sscanf(line, "slot %u %u", &a, &b) == 2) { /* slot, whether with a device */
        const void **found = table();
        result (*ask)(void *, void *) = (void *)found[a];
        printf("%d\n", ask(b ? device : NULL, room));
    } else {
        printf("?\n");
    }
}

int main(void) {
    char line[512];
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    result (*init)(void) = find("nvmlInit_v2");
    result (*get)(unsigned, void **) = find("nvmlDeviceGetHandleByIndex_v2");
    if (init() || get(0, &device)) return 4;
    while (fgets(line, sizeof line, stdin)) {
        command(line);
        fflush(stdout);
    }
    return 0;
}
