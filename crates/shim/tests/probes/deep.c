/* A library that calls the driver, to be opened with RTLD_DEEPBIND. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "cuda.h"
result cuMemAlloc_v2(uint64_t *, size_t);
result cuMemFree_v2(uint64_t);
result cuDevicePrimaryCtxRetain(void **, int);

/* Retains a primary context past every preload, as the CUDA runtime does by its own way. */
result deep_retain(void **context, int device) { return cuDevicePrimaryCtxRetain(context, device); }

/* Bytes of `step` that could be had before the driver refused. */
uint64_t deep_fill(uint64_t step, uint64_t most) {
    uint64_t addresses[4096], got = 0;
    int count = 0;
    while (got < most && count < 4096 && !cuMemAlloc_v2(&addresses[count], step)) {
        got += step;
        count++;
    }
    while (count) cuMemFree_v2(addresses[--count]);
    return got;
}

/* What its own references to the driver's functions are bound to. */
void *deep_linked(const char *name) {
    return !strcmp(name, "cuMemAlloc_v2")              ? (void *)cuMemAlloc_v2
           : !strcmp(name, "cuDevicePrimaryCtxRetain") ? (void *)cuDevicePrimaryCtxRetain
                                                       : NULL;
}

/* What a lookup by hand from here leads to. */
void *deep_look_up(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
}
