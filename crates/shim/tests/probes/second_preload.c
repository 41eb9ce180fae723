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
    if (!next) next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17"); /* the oldest of arm64 */
    return next;
}

#ifdef TAIL
/* As a text of its own: GCC has no naked functions for arm64. */
#ifdef __x86_64__
__asm__(".text\n .globl dlsym\n .type dlsym, @function\n dlsym:\n"
        "push %rdi\n push %rsi\n sub $8, %rsp\n call find_next_here\n add $8, %rsp\n pop %rsi\n pop %rdi\n jmp *%rax");
#else
__asm__(".text\n .globl dlsym\n .type dlsym, %function\n dlsym:\n"
        "stp x29, x30, [sp, #-32]!\n stp x0, x1, [sp, #16]\n bl find_next_here\n mov x16, x0\n"
        "ldp x0, x1, [sp, #16]\n ldp x29, x30, [sp], #32\n br x16");
#endif
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
