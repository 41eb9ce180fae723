/* Opens and closes the driver over and over, as programs with plugins do. */
#include <dlfcn.h>
#include <stdio.h>

#include "cuda.h"

int main(void) {
    int good = 0;
    for (int round = 0; round < 5; round++) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
        uint64_t address;
        result (*init)(unsigned) = dlsym(driver, "cuInit");
        result (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
        result (*release)(int) = dlsym(driver, "cuDevicePrimaryCtxRelease_v2");
        result (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
        result (*alloc)(uint64_t *, size_t) = dlsym(driver, "cuMemAlloc_v2");
        if (!init(0) && !retain(&context, 0) && !set(context) && !alloc(&address, 512) && !release(0)) good++;
        dlclose(driver);
    }
    printf("%d\n", good);
    return 0;
}
