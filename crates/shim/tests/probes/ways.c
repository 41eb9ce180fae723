/* Finds the driver's functions in the way that argument 1 names, and says how many bytes it could allocate by them.
 *
 *   linked   (compiled with LINKED)          handle, default, next, address   dlsym, or cuGetProcAddress_v2
 *   version  dlvsym                          unversioned                      dlopen("libcuda.so")
 *   path     dlopen of the file FILE         namespace                        dlmopen
 *   deep     a library opened with RTLD_DEEPBIND that is linked to the driver     deep-lookup   one that looks up by hand
 *   threads  dlsym in 64 threads at once
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define STEP (64ull << 20)
#define MOST (8ull << 30)

struct driver {
    result (*init)(unsigned);
    result (*retain)(void **, int);
    result (*set)(void *);
    result (*alloc)(uint64_t *, size_t);
};

static uint64_t fill(struct driver *driver) {
    uint64_t address, got = 0;
    void *context;
    if (!driver->init || !driver->retain || !driver->set || !driver->alloc) exit(3);
    if (driver->init(0) || driver->retain(&context, 0) || driver->set(context)) exit(4);
    while (got < MOST && !driver->alloc(&address, STEP)) got += STEP;
    return got;
}

#ifdef LINKED
result cuInit(unsigned);
result cuDevicePrimaryCtxRetain(void **, int);
result cuCtxSetCurrent(void *);
result cuMemAlloc_v2(uint64_t *, size_t);

int main(void) {
    struct driver driver = {cuInit, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemAlloc_v2};
    printf("%llu\n", (unsigned long long)fill(&driver));
    return 0;
}
#else
static struct driver by_name(void *handle) {
    struct driver driver;
    *(void **)&driver.init = dlsym(handle, "cuInit");
    *(void **)&driver.retain = dlsym(handle, "cuDevicePrimaryCtxRetain");
    *(void **)&driver.set = dlsym(handle, "cuCtxSetCurrent");
    *(void **)&driver.alloc = dlsym(handle, "cuMemAlloc_v2");
    return driver;
}

static struct driver by_address(void *handle) {
    result (*ask)(const char *, void **, int, uint64_t, int *) = dlsym(handle, "cuGetProcAddress_v2");
    struct driver driver = by_name(handle);
    void *found = NULL;
    /* What it gives for itself must be as good as what dlsym gave. */
    if (!ask || ask("cuGetProcAddress", &found, 12000, 0, NULL) || !found) exit(3);
    *(void **)&ask = found;
    if (ask("cuDevicePrimaryCtxRetain", (void **)&driver.retain, 7000, 0, NULL)) exit(3);
    if (ask("cuMemAlloc", (void **)&driver.alloc, 3020, 0, NULL)) exit(3);
    return driver;
}

static struct driver by_version(void *handle) {
    struct driver driver = by_name(handle);
    *(void **)&driver.retain = dlvsym(handle, "cuDevicePrimaryCtxRetain", "LIBCUDA");
    *(void **)&driver.alloc = dlvsym(handle, "cuMemAlloc_v2", "LIBCUDA");
    return driver;
}

static void *gate;
static pthread_barrier_t start;
static void *look(void *found) {
    pthread_barrier_wait(&start);
    *(struct driver *)found = by_name(gate);
    return NULL;
}

/* The answer of one thread of many; all must have the same. */
static struct driver in_threads(void *handle) {
    enum { MANY = 64 };
    static struct driver found[MANY];
    pthread_t ids[MANY];
    gate = handle;
    pthread_barrier_init(&start, NULL, MANY);
    for (int i = 0; i < MANY; i++)
        if (pthread_create(&ids[i], NULL, look, &found[i])) exit(5);
    for (int i = 0; i < MANY; i++) pthread_join(ids[i], NULL);
    for (int i = 1; i < MANY; i++)
        if (memcmp(&found[i], &found[0], sizeof found[0])) exit(6);
    return found[MANY - 1];
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "";
    const char *file = !strcmp(way, "path") && count > 2 ? words[2] : !strcmp(way, "unversioned") ? "libcuda.so" : "libcuda.so.1";
    int flags = RTLD_NOW | (!strcmp(way, "default") || !strcmp(way, "next") || !strncmp(way, "deep", 4) ? RTLD_GLOBAL : 0);
    void *handle = !strcmp(way, "namespace") ? dlmopen(LM_ID_NEWLM, file, RTLD_NOW) : dlopen(file, flags);
    struct driver driver;
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    if (!strcmp(way, "default")) driver = by_name(RTLD_DEFAULT);
    else if (!strcmp(way, "next")) driver = by_name(RTLD_NEXT);
    else if (!strcmp(way, "address")) driver = by_address(handle);
    else if (!strcmp(way, "version")) driver = by_version(handle);
    else if (!strcmp(way, "threads")) driver = in_threads(handle);
    else driver = by_name(handle);
    if (!strncmp(way, "deep", 4)) {
        void *library = count > 2 ? dlopen(words[2], RTLD_NOW | RTLD_DEEPBIND) : NULL;
        void *(*find)(const char *) = library ? dlsym(library, !strcmp(way, "deep") ? "deep_linked" : "deep_look_up") : NULL;
        if (!find) return 3;
        *(void **)&driver.retain = find("cuDevicePrimaryCtxRetain");
        *(void **)&driver.alloc = find("cuMemAlloc_v2");
    }
    printf("%llu\n", (unsigned long long)fill(&driver));
    return 0;
}
#endif
