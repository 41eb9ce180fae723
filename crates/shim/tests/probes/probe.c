/* A program that does with the driver what it is told, line by line: a command on stdin, its answer on stdout.
 *
 * How it finds the driver's functions is decided when it is compiled:
 *   LINKED   by linking to libcuda.so.1          HANDLE  by dlsym on dlopen's handle (the default)
 *   DEFAULT  by dlsym(RTLD_DEFAULT)              NEXT    by dlsym(RTLD_NEXT)         GPA  by cuGetProcAddress_v2
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

#ifdef LINKED
#define DECLARE(name, base, version, flags, type, parameters) extern type name parameters;
CUDA(DECLARE)
NVML(DECLARE)
static void find(void) {}
#else
#define DECLARE(name, base, version, flags, type, parameters) static type (*name) parameters;
CUDA(DECLARE)
NVML(DECLARE)
static void *must(void *address, const char *name) {
    if (!address) {
        fprintf(stderr, "probe: %s is missing\n", name);
        exit(3);
    }
    return address;
}
#ifdef GPA
static void *by_address(result (*gpa)(const char *, void **, int, uint64_t, int *), void *driver, const char *name,
                        const char *base, int version, int flags) {
    void *found = NULL;
    int status = -1;
    if (!*base) return dlsym(driver, name);
    if (gpa(base, &found, version, flags, &status) != 0 || status != 0) return NULL;
    return found;
}
#define FIND(name, base, version, flags, type, parameters) \
    *(void **)&name = must(by_address(gpa, driver, #name, base, version, flags), #name);
#elif defined DEFAULT || defined NEXT
#ifdef DEFAULT
#define WHERE RTLD_DEFAULT
#else
#define WHERE RTLD_NEXT
#endif
#define FIND(name, base, version, flags, type, parameters) *(void **)&name = must(dlsym(where, #name), #name);
#else
#define FIND(name, base, version, flags, type, parameters) *(void **)&name = must(dlsym(driver, #name), #name);
#endif
static void find(void) {
    void *driver = must(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), "libcuda.so.1");
#ifdef GPA
    result (*gpa)(const char *, void **, int, uint64_t, int *) = must(dlsym(driver, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
    /* What one asks for by itself must be as good. */
    *(void **)&gpa = must(by_address(gpa, driver, "", "cuGetProcAddress", 13000, 0), "cuGetProcAddress");
#endif
    (void)driver;
#ifdef WHERE
    void *where = WHERE;
#endif
    CUDA(FIND)
    driver = must(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL), "libnvidia-ml.so.1");
    (void)driver;
#ifdef WHERE
    /* Behind a wrapper of CUDA the simulated driver has NVML's functions as well, and comes before NVML's wrapper. */
    if (getenv("PROBE_FORM")) where = driver;
#endif
    NVML(FIND)
}
#endif

enum kind { LINEAR, V1, PITCH, MANAGED, VMM, ASYNC, PTSZ, POOL, POOLPTSZ, ARRAY, ARRAYV1, ARRAY3D, ARRAY3DV1, MIPMAPPED, KINDS };
static const char *kinds[KINDS] = {"linear", "v1", "pitch", "managed", "vmm", "async", "ptsz", "pool", "poolptsz",
                                   "array", "arrayv1", "array3d", "array3dv1", "mipmapped"};
static result make_array(enum kind kind, size_t bytes, uint64_t *handle);
struct block { enum kind kind; uint64_t address; };
static struct block blocks[1 << 16];
static int held;
static int device;
static void *pool, *created;

#define UNTOUCHED 0x5afe5afe5afe5afeull

static result take(enum kind kind, size_t bytes, uint64_t *address) {
    allocation_prop prop = {.type = 1, .where = {1, device}};
    unsigned small = (unsigned)UNTOUCHED;
    size_t pitch = UNTOUCHED;
    result answer = 1;
    switch (kind) {
    case LINEAR: return cuMemAlloc_v2(address, bytes);
    case V1:
        answer = cuMemAlloc(&small, bytes);
        if (small != (unsigned)UNTOUCHED) *address = small;
        return answer;
    case PITCH: /* rows of 1 MiB are a multiple of every pitch */
        answer = bytes >= 1 << 20 ? cuMemAllocPitch_v2(address, &pitch, 1 << 20, (bytes + (1 << 20) - 1) >> 20, 4)
                                  : cuMemAllocPitch_v2(address, &pitch, bytes, 1, 4);
        if (answer && pitch != UNTOUCHED) *address = pitch;
        return answer;
    case MANAGED: return cuMemAllocManaged(address, bytes, 1);
    case VMM: return cuMemCreate(address, bytes, &prop, 0);
    case ASYNC: return cuMemAllocAsync(address, bytes, NULL);
    case PTSZ: return cuMemAllocAsync_ptsz(address, bytes, NULL);
    case POOL: return cuMemAllocFromPoolAsync(address, bytes, pool, NULL);
    case POOLPTSZ: return cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, NULL);
    default: return make_array(kind, bytes, address);
    }
}

static result give(struct block block) {
    switch (block.kind) {
    case VMM: return cuMemRelease(block.address);
    case ARRAY: case ARRAYV1: case ARRAY3D: case ARRAY3DV1: return cuArrayDestroy((void *)block.address);
    case MIPMAPPED: return cuMipmappedArrayDestroy((void *)block.address);
    case V1: return cuMemFree((unsigned)block.address);
    case ASYNC: case POOL: return cuMemFreeAsync(block.address, NULL);
    case PTSZ: case POOLPTSZ: return cuMemFreeAsync_ptsz(block.address, NULL);
    default: return cuMemFree_v2(block.address);
    }
}

static int remember(enum kind kind, uint64_t address) {
    if (held == sizeof blocks / sizeof *blocks) return -1;
    blocks[held++] = (struct block){kind, address};
    return 0;
}

static enum kind kind_of(const char *name) {
    for (int kind = 0; kind < KINDS; kind++)
        if (!strcmp(kinds[kind], name)) return kind;
    fprintf(stderr, "probe: no kind %s\n", name);
    exit(3);
}

static result give_all(void) {
    result worst = 0;
    while (held) {
        result answer = give(blocks[--held]);
        if (answer) worst = answer;
    }
    return worst;
}

/* What all racers were granted together, in a file that they share: added after the grant, taken off before the free, so
 * it is never more than what they hold. */
static _Atomic uint64_t *granted;

static void open_sum(void) {
    const char *path = getenv("PROBE_SUM");
    int file = path ? open(path, O_RDWR) : -1;
    if (granted || file < 0) return;
    granted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}

/* Takes blocks of random sizes until it is refused, gives all back, and so on. Answers how often it was refused, how often
 * a call failed otherwise, and how often all together had more than `budget`. */
static void race(enum kind kind, int rounds, unsigned seed, size_t most, uint64_t budget) {
    const size_t unit = 2 << 20;
    unsigned long refused = 0, other = 0, over = 0;
    open_sum();
    for (int round = 0; round < rounds; round++) {
        uint64_t mine = 0;
        for (;;) {
            uint64_t address = UNTOUCHED;
            size_t bytes = (1 + rand_r(&seed) % (most / unit)) * unit;
            result answer = take(kind, bytes, &address);
            if (!answer && !remember(kind, address)) {
                mine += bytes;
                if ((*granted += bytes) > budget) over++;
                continue;
            }
            if (answer == 2 && address == UNTOUCHED) refused++;
            else other++;
            break;
        }
        *granted -= mine;
        if (give_all()) other++;
    }
    printf("%lu %lu %lu\n", refused, other, over);
}

struct worker { enum kind kind; size_t bytes; int rounds; void *context; unsigned long bad; };

static void *work(void *arg) {
    struct worker *worker = arg;
    cuCtxSetCurrent(worker->context);
    for (int round = 0; round < worker->rounds; round++) {
        struct block block = {worker->kind, UNTOUCHED};
        if (take(worker->kind, worker->bytes, &block.address) || give(block)) worker->bad++;
    }
    return NULL;
}

/* Many threads at once; answers how many calls failed. */
static void threads(enum kind kind, int count, int rounds, size_t bytes) {
    static struct worker workers[256];
    pthread_t ids[256];
    void *context = NULL;
    unsigned long bad = 0;
    cuDevicePrimaryCtxRetain(&context, device);
    for (int i = 0; i < count; i++) {
        workers[i] = (struct worker){kind, bytes, rounds, context, 0};
        pthread_create(&ids[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(ids[i], NULL);
        bad += workers[i].bad;
    }
    cuDevicePrimaryCtxRelease_v2(device);
    printf("%lu\n", bad);
}

static void *handle_of(int index) {
    void *handle = NULL;
    nvmlInit_v2();
    nvmlDeviceGetHandleByIndex_v2(index, &handle);
    return handle;
}

/* The most that was in use, seen as often as possible until the next line comes, and how often it was seen. */
static void watch(int index) {
    struct pollfd input = {0, POLLIN, 0};
    void *handle = handle_of(index);
    memory_v1 memory;
    unsigned long long most = 0, samples = 0;
    printf("0\n");
    fflush(stdout);
    do {
        if (nvmlDeviceGetMemoryInfo(handle, &memory)) continue;
        if (memory.used > most) most = memory.used;
        samples++;
    } while (!poll(&input, 1, 0));
    char line[16];
    if (!fgets(line, sizeof line, stdin)) exit(0);
    printf("%llu %llu\n", most, samples);
}

#include "graphs.h"
#include "sharing.h"

static void command(char *line) {
    char word[32] = "", name[32] = "", path[256] = "";
    unsigned long long a = 0, b = 0, c = 0, d = 0;
    int words = sscanf(line, "%31s", word);
    if (words < 1) {
        printf("?\n");
    } else if (graph_command(line) || sharing_command(line)) {
    } else if (!strcmp(word, "init")) {
        printf("%d\n", cuInit(0));
    } else if (sscanf(line, "uuid %llu", &a) == 1) {
        uuid_bytes uuid;
        result answer = cuDeviceGetUuid_v2(&uuid, a);
        printf("%d", answer);
        for (int i = 0; i < 16; i++) printf(" %d", uuid.bytes[i] & 255);
        printf("\n");
    } else if (sscanf(line, "context %llu", &a) == 1) {
        void *context = NULL;
        device = a;
        result answer = cuDevicePrimaryCtxRetain(&context, device);
        printf("%d\n", answer ? answer : cuCtxSetCurrent(context));
    } else if (sscanf(line, "hidden %255s %llu", path, &a) == 2) { /* library: a context made behind the hooks */
        void *context = NULL, *library = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
        result (*retain)(void **, int) = library ? dlsym(library, "deep_retain") : NULL;
        result answer = retain ? retain(&context, a) : -1;
        device = a;
        printf("%d\n", answer ? answer : cuCtxSetCurrent(context));
    } else if (!strcmp(word, "leave")) { /* no context is current */
        printf("%d\n", cuCtxSetCurrent(NULL));
    } else if (sscanf(line, "release %llu", &a) == 1) {
        printf("%d\n", cuDevicePrimaryCtxRelease_v2(a));
    } else if (sscanf(line, "reset %llu", &a) == 1) {
        printf("%d\n", cuDevicePrimaryCtxReset_v2(a));
    } else if (sscanf(line, "create4 %llu", &a) == 1) {
        device = a;
        printf("%d\n", cuCtxCreate_v4(&created, NULL, 0, device));
    } else if (sscanf(line, "create %llu", &a) == 1) {
        device = a;
        printf("%d\n", cuCtxCreate_v2(&created, 0, device));
    } else if (!strcmp(word, "destroy")) {
        printf("%d\n", cuCtxDestroy_v2(created));
    } else if (sscanf(line, "take %31s %llu", name, &a) == 2) {
        uint64_t address = UNTOUCHED;
        enum kind kind = kind_of(name);
        result answer = take(kind, a, &address);
        if (!answer) remember(kind, address);
        printf("%d %d\n", answer, address == UNTOUCHED);
    } else if (sscanf(line, "fill %31s %llu", name, &a) == 2) {
        enum kind kind = kind_of(name);
        unsigned long count = 0;
        for (;; count++) {
            uint64_t address = UNTOUCHED;
            result answer = take(kind, a, &address);
            if (answer || remember(kind, address)) {
                printf("%lu %d\n", count, answer);
                break;
            }
        }
    } else if (!strcmp(word, "give")) {
        printf("%d\n", held ? give(blocks[--held]) : -1);
    } else if (!strcmp(word, "giveall")) {
        printf("%d\n", give_all());
    } else if (!strcmp(word, "forget")) {
        held = 0;
        printf("0\n");
    } else if (!strcmp(word, "sync")) {
        printf("%d\n", cuStreamSynchronize(NULL));
    } else if (sscanf(line, "freeaddress %llu", &a) == 1) {
        printf("%d\n", cuMemFree_v2(a));
    } else if (!strcmp(word, "nulls")) {
        allocation_prop prop = {.type = 1, .where = {1, device}};
        uint64_t address;
        printf("%d %d %d %d %d %d %d %d\n", cuMemAlloc_v2(NULL, 1 << 20), cuMemAllocManaged(NULL, 1 << 20, 1),
               cuMemAllocPitch_v2(&address, NULL, 512, 512, 4), cuMemCreate(NULL, 2 << 20, &prop, 0),
               cuMemCreate(&address, 2 << 20, NULL, 0), cuMemAllocAsync(NULL, 1 << 20, NULL), cuMemGetInfo_v2(NULL, NULL),
               cuDeviceTotalMem_v2(NULL, 0));
    } else if (sscanf(line, "pitch %llu %llu", &a, &b) == 2) {
        uint64_t address = UNTOUCHED;
        size_t pitch = UNTOUCHED;
        result answer = cuMemAllocPitch_v2(&address, &pitch, a, b, 4);
        if (!answer) remember(PITCH, address);
        printf("%d %d %zu\n", answer, address == UNTOUCHED && pitch == UNTOUCHED, answer ? 0 : pitch);
    } else if (!strcmp(word, "info")) {
        size_t free = 0, total = 0;
        result answer = cuMemGetInfo_v2(&free, &total);
        printf("%d %zu %zu\n", answer, free, total);
    } else if (sscanf(line, "total %llu", &a) == 1) {
        size_t total = 0;
        result answer = cuDeviceTotalMem_v2(&total, a);
        printf("%d %zu\n", answer, total);
    } else if (sscanf(line, "nvml %llu", &a) == 1) {
        memory_v1 one = {0};
        memory_v2 two = {.version = 0x2000028};
        void *handle = handle_of(a);
        result answer = nvmlDeviceGetMemoryInfo(handle, &one);
        result answer2 = nvmlDeviceGetMemoryInfo_v2(handle, &two);
        printf("%d %llu %llu %llu %d %llu %llu %llu %llu\n", answer, one.total, one.free, one.used, answer2, two.total,
               two.free, two.used, two.reserved);
    } else if (sscanf(line, "processes %llu %llu %llu", &a, &b, &c) == 3) { /* device, version, room */
        void *handle = handle_of(a);
        unsigned count = c;
        process_v1 old[64];
        process_v2 new[64];
        memset(old, 0xee, sizeof old);
        memset(new, 0xee, sizeof new);
        result answer = b == 1   ? nvmlDeviceGetComputeRunningProcesses(handle, &count, c ? old : NULL)
                        : b == 2 ? nvmlDeviceGetComputeRunningProcesses_v2(handle, &count, c ? new : NULL)
                        : b == 3 ? nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, c ? new : NULL)
                                 : nvmlDeviceGetGraphicsRunningProcesses_v3(handle, &count, c ? new : NULL);
        printf("%d %u", answer, count);
        for (unsigned i = 0; !answer && i < count; i++)
            printf(" %u %llu", b == 1 ? old[i].pid : new[i].pid, b == 1 ? old[i].used : new[i].used);
        /* nothing behind the room that was offered may be written */
        printf(" %d\n", c < 64 ? (b == 1 ? old[c].pid : new[c].pid) == 0xeeeeeeee : 1);
    } else if (!strcmp(word, "processes-null")) {
        void *handle = handle_of(0);
        unsigned count = 4;
        process_v2 entry;
        printf("%d %d\n", nvmlDeviceGetComputeRunningProcesses_v3(handle, NULL, &entry),
               nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, NULL));
    } else if (sscanf(line, "pool %llu %llu", &a, &b) == 2) { /* device, 1: default, 0: new, 2: new on the host, 3: managed, nowhere */
        pool_props props = {.type = b == 3 ? 2 : 1, .where = {b == 2 ? 2 : b == 3 ? 0 : 1, b == 3 ? 0 : a}};
        printf("%d\n", b == 1 ? cuDeviceGetDefaultMemPool(&pool, a) : cuMemPoolCreate(&pool, &props));
    } else if (sscanf(line, "threshold %llu", &a) == 1) {
        uint64_t bytes = a;
        printf("%d\n", cuMemPoolSetAttribute(pool, 4, &bytes));
    } else if (!strcmp(word, "reserved")) {
        uint64_t bytes = 0;
        result answer = cuMemPoolGetAttribute(pool, 5, &bytes);
        printf("%d %llu\n", answer, (unsigned long long)bytes);
    } else if (!strcmp(word, "trim")) {
        printf("%d\n", cuMemPoolTrimTo(pool, 0));
    } else if (!strcmp(word, "endpool")) {
        printf("%d\n", cuMemPoolDestroy(pool));
    } else if (sscanf(line, "vmm %31s %llu", name, &a) == 2) { /* keep: on the last block that is a handle */
        static uint64_t range, handle;
        static size_t size;
        result answer = -1;
        if (!strcmp(name, "map")) {
            handle = blocks[held - 1].address;
            size = a;
            answer = cuMemAddressReserve(&range, size, 0, 0, 0);
            if (!answer) answer = cuMemMap(range, size, 0, handle, 0);
        } else if (!strcmp(name, "retain")) {
            uint64_t again = 0;
            answer = cuMemRetainAllocationHandle(&again, (void *)range);
            if (!answer) remember(VMM, again);
        } else if (!strcmp(name, "unmap")) {
            answer = cuMemUnmap(range, size);
        } else if (!strcmp(name, "host")) {
            allocation_prop prop = {.type = 1, .where = {2, 0}};
            uint64_t address = 0;
            answer = cuMemCreate(&address, a, &prop, 0);
            if (!answer) remember(VMM, address);
        } else if (!strcmp(name, "on")) {
            allocation_prop prop = {.type = 1, .where = {1, a}};
            uint64_t address = 0;
            answer = cuMemCreate(&address, 2 << 20, &prop, 0);
            if (!answer) remember(VMM, address);
        }
        printf("%d\n", answer);
    } else if (sscanf(line, "race %31s %llu %llu %llu %llu", name, &a, &b, &c, &d) == 5) {
        race(kind_of(name), a, b, c, d);
    } else if (sscanf(line, "threads %31s %llu %llu %llu", name, &a, &b, &c) == 4) {
        threads(kind_of(name), a, b, c);
    } else if (sscanf(line, "watch %llu", &a) == 1) {
        watch(a);
    } else if (!strcmp(word, "fork")) { /* what the rest of the line says, parted by semicolons, is done in a child */
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            for (char *next = strtok(line + 5, ";"); next; next = strtok(NULL, ";")) {
                command(next);
                fflush(stdout);
            }
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        if (status) printf("died %d\n", status);
    } else if (sscanf(line, "closefrom %llu", &a) == 1) {
        closefrom(a);
        printf("0\n");
    } else if (!strcmp(word, "vfork")) {
        pid_t child = vfork();
        if (!child) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        printf("%d\n", status);
    } else if (sscanf(line, "spawn %31s", name) == 1) { /* a child that outlives its parent's death, without exec */
        int gate[2];
        char byte;
        if (pipe(gate)) exit(3);
        pid_t child = fork();
        if (!child) {
            if (write(gate[1], "x", 1) == 1)
                for (;;) pause();
            _exit(1);
        }
        /* only now has all of fork been done in the child */
        printf("%d\n", read(gate[0], &byte, 1) == 1 ? child : -1);
    } else {
        printf("?\n");
    }
}

int main(void) {
    char line[512];
    find();
    while (fgets(line, sizeof line, stdin)) {
        command(line);
        fflush(stdout);
    }
    return 0;
}
