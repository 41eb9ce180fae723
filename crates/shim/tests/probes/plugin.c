/* Opens the limiter by itself, as a library among others, uses it, closes it, forks, and opens it again: plugin LIBRARY. */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

static void use(const char *path) {
    void *library = dlopen(path, RTLD_NOW), *context;
    if (!library) {
        printf("%s\n", dlerror());
        return;
    }
    result (*retain)(void **, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
    result (*alloc)(uint64_t *, size_t) = dlsym(library, "cuMemAlloc_v2");
    result (*release)(uint64_t) = dlsym(library, "cuMemFree_v2");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    uint64_t address;
    ((result(*)(unsigned))dlsym(driver, "cuInit"))(0);
    retain(&context, 0);
    ((result(*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context);
    result small = alloc(&address, 512), large;
    if (!small) release(address);
    large = alloc(&address, 1ull << 40);
    printf("%d %d\n", small, large);
    fflush(stdout);
    dlclose(library);
    dlclose(driver);
}

int main(int count, char **arguments) {
    int status = -1;
    use(arguments[1]);
    pid_t child = fork(); /* what it asked to be told of forks must still be there */
    if (!child) _exit(0);
    waitpid(child, &status, 0);
    printf("child %d\n", status);
    use(arguments[1]);
    return count != 2;
}
