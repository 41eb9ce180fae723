/* Looks a hooked function up in a namespace of its own: the hook behind it would call another instance of the driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    Dl_info info;
    void *driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    void *alloc = driver ? dlsym(driver, "cuMemAlloc_v2") : NULL;
    if (!alloc) return 3;
    printf("%s\n", dladdr(alloc, &info) && strstr(info.dli_fname, "preload") ? "hook" : "own driver");
    return 0;
}
