/* Another library that stands in front of dlsym and cuMemAlloc_v2, as tracers do.
 *
 *   TAIL  jumps on to the next dlsym, as one should       otherwise it calls it, as most do
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static void *(*next)(void *, const char *);

static void *find_next(void) {
    if (!next) next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!next) next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return next;
}

#ifdef TAIL
__attribute__((naked)) void *dlsym(void *handle, const char *name) {
    __asm__("push %rdi\n push %rsi\n sub $8, %rsp\n call find_next_here\n add $8, %rsp\n pop %rsi\n pop %rdi\n jmp *%rax");
}
__attribute__((used, visibility("hidden"))) void *find_next_here(void) { return find_next(); }
#else
void *dlsym(void *handle, const char *name) {
    find_next();
    return next(handle, name);
}
#endif

static int calls;

/* How often the function below was called. */
int second_preload_calls(void) { return calls; }

result cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    static result (*real)(uint64_t *, size_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    calls++;
    return real ? real(address, bytes) : 500;
}
