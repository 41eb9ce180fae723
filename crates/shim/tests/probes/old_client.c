/* Uses what there is of a driver: old_client. Prints, for each call, its answer, or "-" where the driver has no such function. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "cuda.h"

static void *driver;

static void say(const char *name, int answer) {
    if (dlsym(driver, name)) printf("%s %d\n", name, answer);
    else printf("%s -\n", name);
}
#define CALL(name, parameters, ...) \
    say(#name, dlsym(driver, #name) ? ((result(*) parameters)dlsym(driver, #name))(__VA_ARGS__) : 0)

int main(void) {
    uint64_t address = 0;
    size_t free, total;
    void *context, *exec;
    allocation_prop prop = {.type = 1, .where = {1, 0}};
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &address, 64 << 20);
    CALL(cuMemFree_v2, (uint64_t), address);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &address, 1ull << 40);
    CALL(cuMemCreate, (uint64_t *, size_t, const allocation_prop *, uint64_t), &address, 2 << 20, &prop, 0);
    CALL(cuMemAllocAsync, (uint64_t *, size_t, void *), &address, 64 << 20, NULL);
    CALL(cuMemFreeAsync, (uint64_t, void *), address, NULL);
    CALL(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long), &exec, &exec, 0);
    CALL(cuGraphLaunch, (void *, void *), exec, NULL);
    CALL(cuGraphExecDestroy, (void *), exec);
    CALL(cuDeviceGraphMemTrim, (int), 0);
    CALL(cuMemGetInfo_v2, (size_t *, size_t *), &free, &total);
    CALL(cuDeviceTotalMem_v2, (size_t *, int), &total, 0);
    return 0;
}
