/* Calls the driver when it should have ended: in atexit handlers, in destructors of libraries, threads and the program, and
 * from a thread that is still at it when the process exits. Prints what each was answered.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda.h"

static result (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(uint64_t *, size_t), (*release)(uint64_t);
static result (*info)(size_t *, size_t *);
static uint64_t left[8];
static void *context;

static void use(const char *when, int slot) {
    uint64_t address = 0;
    size_t free, total;
    result taken = alloc(&address, 4 << 20), known = info(&free, &total), given = release(left[slot]);
    printf("%s %d %d %d\n", when, taken, known, given);
    fflush(stdout);
}

static void at_exit(void) { use("atexit", 0); }
static void at_thread_end(void *slot) { use("thread", *(int *)slot); }
__attribute__((destructor)) static void at_unload(void) {
    if (alloc) use("destructor", 1);
}

static void *short_lived(void *key) {
    static int slot = 2;
    set(context);
    pthread_setspecific(*(pthread_key_t *)key, &slot);
    return NULL;
}

static void *restless(void *started) {
    uint64_t address;
    set(context);
    for (;;) {
        if (!alloc(&address, 2 << 20)) release(address);
        *(volatile int *)started = 1;
    }
    return NULL;
}

int main(void) {
    static pthread_key_t key;
    static volatile int started;
    pthread_t thread;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&info = dlsym(driver, "cuMemGetInfo_v2");
    *(void **)&release = dlsym(driver, "cuMemFree_v2");
    *(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
    if (init(0) || retain(&context, 0) || set(context)) return 3;
    for (int i = 0; i < 8; i++)
        if (alloc(&left[i], 2 << 20)) return 3;
    atexit(at_exit);
    pthread_key_create(&key, at_thread_end);
    if (pthread_create(&thread, NULL, short_lived, &key) || pthread_join(thread, NULL)) return 3;
    if (pthread_create(&thread, NULL, restless, (void *)&started)) return 3;
    while (!started) usleep(100);
    return 0;
}
