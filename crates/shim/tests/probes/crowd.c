/* Many threads that use everything at once: crowd THREADS ROUNDS. Each frees what it took; "0" and the number of refusals are
 * printed when no call failed but for want of memory. Every fourth thread has no context.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define DECLARE(name, base, version, flags, type, parameters) static type (*name) parameters;
CUDA(DECLARE)
NVML(DECLARE)
#define FIND(name, base, version, flags, type, parameters) \
    if (!(*(void **)&name = dlsym(driver, #name))) return fprintf(stderr, "crowd: %s is missing\n", #name), 3;

#define MIB (1ull << 20)

static void *context, *primary_pool;
static int rounds;
static _Atomic unsigned long failed, refused;

/* Nothing but want of memory may make a call fail. */
static int good(result answer, const char *what) {
    if (answer == 2) refused++;
    else if (answer && failed++ < 5) fprintf(stderr, "crowd: %s answered %d\n", what, answer);
    return !answer;
}
#define TRY(call) good(call, #call)

static void linear(unsigned *seed) {
    uint64_t address;
    size_t pitch, bytes = 1 + rand_r(seed) % (4 * MIB);
    switch (rand_r(seed) % 3) {
    case 0: if (!TRY(cuMemAlloc_v2(&address, bytes))) return; break;
    case 1: if (!TRY(cuMemAllocManaged(&address, bytes, 1))) return; break;
    default: if (!TRY(cuMemAllocPitch_v2(&address, &pitch, 1 + bytes % 4096, 1 + bytes / 4096, 4))) return;
    }
    TRY(cuMemFree_v2(address));
}

static void by_handle(unsigned *seed) {
    allocation_prop prop = {.type = 1, .where = {1, 0}};
    size_t bytes = (1 + rand_r(seed) % 4) * 2 * MIB;
    uint64_t handle, address, again;
    if (!TRY(cuMemCreate(&handle, bytes, &prop, 0))) return;
    if (TRY(cuMemAddressReserve(&address, bytes, 0, 0, 0)) && TRY(cuMemMap(address, bytes, 0, handle, 0))) {
        if (rand_r(seed) % 2 && TRY(cuMemRetainAllocationHandle(&again, (void *)address))) TRY(cuMemRelease(again));
        if (rand_r(seed) % 2) {
            TRY(cuMemRelease(handle));
            TRY(cuMemUnmap(address, bytes));
            return;
        }
        TRY(cuMemUnmap(address, bytes));
    }
    TRY(cuMemRelease(handle));
}

static void pooled(unsigned *seed) {
    pool_props props = {.type = 1, .where = {1, 0}};
    uint64_t address;
    size_t bytes = 1 + rand_r(seed) % (4 * MIB);
    void *pool;
    switch (rand_r(seed) % 3) {
    case 0:
        if (TRY(cuMemAllocAsync(&address, bytes, NULL))) TRY(cuMemFreeAsync(address, NULL));
        break;
    case 1:
        if (TRY(cuMemAllocFromPoolAsync_ptsz(&address, bytes, primary_pool, NULL))) TRY(cuMemFreeAsync_ptsz(address, NULL));
        break;
    default:
        if (!TRY(cuMemPoolCreate(&pool, &props))) return;
        if (TRY(cuMemAllocFromPoolAsync(&address, bytes, pool, NULL))) TRY(cuMemFreeAsync(address, NULL));
        TRY(cuMemPoolTrimTo(pool, 0));
        TRY(cuMemPoolDestroy(pool));
    }
}

static void graphed(unsigned *seed) {
    void *graph, *exec, *node;
    allocation_node_params params = {.pool = {.type = 1, .where = {1, 0}}, .bytes = 1 + rand_r(seed) % (4 * MIB)};
    if (!TRY(cuGraphCreate(&graph, 0))) return;
    if (TRY(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params)) &&
        TRY(cuGraphAddMemFreeNode(&node, graph, &node, 1, params.address)) &&
        TRY(cuGraphInstantiateWithFlags(&exec, graph, 0))) {
        for (int i = rand_r(seed) % 3; i >= 0; i--) TRY(cuGraphLaunch(exec, NULL));
        if (rand_r(seed) % 4 == 0) TRY(cuDeviceGraphMemTrim(0));
        TRY(cuGraphExecDestroy(exec));
    }
    TRY(cuGraphDestroy(graph));
}

static void arrayed(unsigned *seed) {
    array_v2 flat = {1 + rand_r(seed) % 2048, 1 + rand_r(seed) % 512, 0x20, 1};
    void *array;
    if (TRY(cuArrayCreate_v2(&array, &flat))) TRY(cuArrayDestroy(array));
}

static void looked(unsigned *seed) {
    size_t free, total;
    void *found = NULL, *device = NULL;
    int status;
    memory_v1 memory;
    static const char *const names[] = {"cuMemAlloc", "cuGraphLaunch", "cuLaunchKernel", "cuGetProcAddress"};
    TRY(cuMemGetInfo_v2(&free, &total));
    TRY(cuDeviceTotalMem_v2(&total, 0));
    TRY(cuGetProcAddress_v2(names[rand_r(seed) % 4], &found, 13000, rand_r(seed) % 2 * 2, &status));
    if (!found || !dlsym(RTLD_DEFAULT, "malloc")) failed++;
    TRY(nvmlDeviceGetHandleByIndex_v2(0, &device));
    TRY(nvmlDeviceGetMemoryInfo(device, &memory));
}

static void *work(void *number) {
    unsigned seed = (unsigned)(size_t)number;
    int bare = (size_t)number % 4 == 3;
    void (*const any[])(unsigned *) = {linear, pooled, graphed, looked, by_handle, arrayed};
    if (!bare) TRY(cuCtxSetCurrent(context));
    for (int round = 0; round < rounds; round++) {
        if (bare) by_handle(&seed); /* needs no context */
        else any[rand_r(&seed) % 6](&seed);
    }
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[256];
    int many = count > 1 ? atoi(arguments[1]) : 64;
    rounds = count > 2 ? atoi(arguments[2]) : 50;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return fprintf(stderr, "crowd: %s\n", dlerror()), 3;
    CUDA(FIND)
    driver = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
    NVML(FIND)
    if (!TRY(cuInit(0)) || !TRY(nvmlInit_v2()) || !TRY(cuDevicePrimaryCtxRetain(&context, 0)) || !TRY(cuCtxSetCurrent(context)) ||
        !TRY(cuDeviceGetDefaultMemPool(&primary_pool, 0)))
        return 3;
    for (size_t i = 0; i < (size_t)many && i < 256; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i)) return 3;
    for (int i = 0; i < many && i < 256; i++) pthread_join(threads[i], NULL);
    TRY(cuStreamSynchronize(NULL));
    TRY(cuMemPoolTrimTo(primary_pool, 0));
    TRY(cuDeviceGraphMemTrim(0));
    printf("%lu %lu\n", failed, refused);
    fflush(stdout);
    getchar(); /* until the test has looked */
    return 0;
}
