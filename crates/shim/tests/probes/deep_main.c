/* Opens deep.so with RTLD_DEEPBIND or without (argument 2) and says how much it could allocate. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda.h"

int main(int count, char **words) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *context;
    result (*init)(unsigned) = dlsym(driver, "cuInit");
    result (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    result (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    if (count < 3 || init(0) || retain(&context, 0) || set(context)) return 3;
    void *library = dlopen(words[1], RTLD_NOW | (atoi(words[2]) ? RTLD_DEEPBIND : 0));
    uint64_t (*fill)(uint64_t, uint64_t) = library ? dlsym(library, "deep_fill") : NULL;
    if (!fill) return 4;
    printf("%llu\n", (unsigned long long)fill(64ull << 20, 8ull << 30));
    return 0;
}
