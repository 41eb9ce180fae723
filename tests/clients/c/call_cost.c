/* What a driver call costs, with or without an interposer: opens libcuda.so.1 as a program would and times calls on
 * commands from stdin, one a line, so that two of these can be measured in turns:
 *
 *   pair N      N times allocate 2 MiB and free it       info N      N times cuMemGetInfo
 *   launch N    N times launch an empty kernel           device N    N times cuCtxGetDevice, which nobody hooks
 *   small N     N times allocate 512 B and free it       lookup N    N times dlsym of cuMemAlloc_v2 on libcuda's handle
 *   plain N     N times dlsym of a function of libc      ask N       N times cuGetProcAddress of cuMemAlloc
 *   async N     N times allocate 2 MiB in stream order and free it
 *   create N    N times make physical memory of 2 MiB and release it
 *   spread N    N timed allocate+free pairs, one by one
 *   pool N      keeps N bytes of the device's memory pool
 *   siblings N  starts N programs beside this one, each with a context, which end with it
 *
 * Each answers one line: nanoseconds a call, for `spread` "p50 p99 p99.9" nanoseconds a pair, and for the last two
 * nothing but a line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "call_cost: no %s\n", name);
        exit(1);
    }
    return found;
}

static void check(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "call_cost: %s answered %d\n", what, result);
        exit(1);
    }
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n";

enum { BLOCK = 2 << 20, DRAIN = 256 };

/* CUmemAllocationProp of cuda.h: pinned memory on device 0. */
struct properties {
    int type, handles, location, device;
    void *security;
    unsigned char flags[8];
};

/* A program beside this one: it has the write end of no pipe, so that its reading end ends with this one. */
static void start_sibling(void)
{
    int pipes[2], ready[2];
    char byte;
    check(pipe(pipes) | pipe(ready), "pipe");
    if (fork() == 0) {
        dup2(pipes[0], 0);
        dup2(ready[1], 1);
        for (int each = 3; each < 1024; each++)
            close(each);
        execl("/proc/self/exe", "call_cost", (char *)NULL);
        _exit(1);
    }
    close(pipes[0]);
    close(ready[1]);
    check(read(ready[0], &byte, 1) != 1, "a sibling's start");
    close(ready[0]);
}

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "call_cost: %s\n", dlerror());
        return 1;
    }
    int (*init)(unsigned) = function(library, "cuInit");
    int (*retain)(void **, int) = function(library, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = function(library, "cuCtxSetCurrent");
    int (*synchronize)(void) = function(library, "cuCtxSynchronize");
    int (*get_device)(int *) = function(library, "cuCtxGetDevice");
    int (*allocate)(uint64_t *, size_t) = function(library, "cuMemAlloc_v2");
    int (*release)(uint64_t) = function(library, "cuMemFree_v2");
    int (*info)(size_t *, size_t *) = function(library, "cuMemGetInfo_v2");
    int (*ask)(const char *, void **, int, uint64_t, int *) = function(library, "cuGetProcAddress_v2");
    int (*load)(void **, const void *) = function(library, "cuModuleLoadData");
    int (*entry)(void **, void *, const char *) = function(library, "cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        function(library, "cuLaunchKernel");

    int (*allocate_async)(uint64_t *, size_t, void *) = function(library, "cuMemAllocAsync");
    int (*release_async)(uint64_t, void *) = function(library, "cuMemFreeAsync");
    int (*create)(uint64_t *, size_t, const struct properties *, uint64_t) = function(library, "cuMemCreate");
    int (*release_handle)(uint64_t) = function(library, "cuMemRelease");
    int (*make_stream)(void **, unsigned) = function(library, "cuStreamCreate");

    void *context, *module, *kernel, *stream;
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");
    check(load(&module, ptx), "cuModuleLoadData");
    check(entry(&kernel, module, "nothing"), "cuModuleGetFunction");
    check(make_stream(&stream, 0), "cuStreamCreate");
    printf("ready\n");
    fflush(stdout);

    char what[16];
    unsigned long times;
    while (scanf("%15s %lu", what, &times) == 2) {
        uint64_t spent = 0;
        if (!strcmp(what, "pair") || !strcmp(what, "small")) {
            size_t size = what[0] == 'p' ? BLOCK : 512;
            uint64_t from = now(), address;
            for (unsigned long i = 0; i < times; i++) {
                check(allocate(&address, size), "cuMemAlloc");
                check(release(address), "cuMemFree");
            }
            spent = now() - from;
        } else if (!strcmp(what, "lookup") || !strcmp(what, "plain")) {
            void *where = what[0] == 'l' ? library : RTLD_DEFAULT;
            const char *name = what[0] == 'l' ? "cuMemAlloc_v2" : "strlen";
            /* Before a function's first call its look-up costs more, and nobody looks it up often before. */
            uint64_t address;
            check(allocate(&address, BLOCK), "cuMemAlloc");
            check(release(address), "cuMemFree");
            uint64_t from = now();
            for (unsigned long i = 0; i < times; i++)
                check(dlsym(where, name) == NULL, "dlsym");
            spent = now() - from;
        } else if (!strcmp(what, "ask")) {
            void *found;
            int status;
            uint64_t from = now();
            for (unsigned long i = 0; i < times; i++)
                check(ask("cuMemAlloc", &found, 12000, 0, &status), "cuGetProcAddress");
            spent = now() - from;
        } else if (!strcmp(what, "async")) {
            uint64_t from = now(), address;
            for (unsigned long i = 0; i < times; i++) {
                check(allocate_async(&address, BLOCK, stream), "cuMemAllocAsync");
                check(release_async(address, stream), "cuMemFreeAsync");
            }
            spent = now() - from;
        } else if (!strcmp(what, "create")) {
            struct properties pinned = {.type = 1, .location = 1};
            uint64_t from = now(), handle;
            for (unsigned long i = 0; i < times; i++) {
                check(create(&handle, BLOCK, &pinned, 0), "cuMemCreate");
                check(release_handle(handle), "cuMemRelease");
            }
            spent = now() - from;
        } else if (!strcmp(what, "pool")) {
            uint64_t address;
            check(allocate_async(&address, times, stream), "cuMemAllocAsync");
        } else if (!strcmp(what, "siblings")) {
            for (unsigned long i = 0; i < times; i++)
                start_sibling();
        } else if (!strcmp(what, "info")) {
            size_t free_bytes, total;
            uint64_t from = now();
            for (unsigned long i = 0; i < times; i++)
                check(info(&free_bytes, &total), "cuMemGetInfo");
            spent = now() - from;
        } else if (!strcmp(what, "device")) {
            int device;
            uint64_t from = now();
            for (unsigned long i = 0; i < times; i++)
                check(get_device(&device), "cuCtxGetDevice");
            spent = now() - from;
        } else if (!strcmp(what, "launch")) {
            /* The queue is emptied between batches and outside the clock: a full queue would be timed otherwise. */
            for (unsigned long done = 0; done < times; done += DRAIN) {
                uint64_t from = now();
                for (unsigned long i = 0; i < DRAIN; i++)
                    check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
                spent += now() - from;
                check(synchronize(), "cuCtxSynchronize");
            }
            times = (times + DRAIN - 1) / DRAIN * DRAIN;
        } else if (!strcmp(what, "spread")) {
            uint64_t *each = malloc(times * sizeof *each), address;
            for (unsigned long i = 0; i < times; i++) {
                uint64_t from = now();
                check(allocate(&address, BLOCK), "cuMemAlloc");
                check(release(address), "cuMemFree");
                each[i] = now() - from;
            }
            qsort(each, times, sizeof *each, ascending);
            printf("%llu %llu %llu\n", (unsigned long long)each[times / 2], (unsigned long long)each[times * 99 / 100],
                   (unsigned long long)each[times * 999 / 1000]);
            fflush(stdout);
            free(each);
            continue;
        } else {
            fprintf(stderr, "call_cost: no such command: %s\n", what);
            return 1;
        }
        printf("%.2f\n", (double)spent / (double)times);
        fflush(stdout);
    }
    return 0;
}
