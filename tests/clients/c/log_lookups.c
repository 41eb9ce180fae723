/* Preloaded into a program, writes down which functions of the CUDA driver it looks up by cuGetProcAddress: one line
 * "NAME VERSION FLAGS RESULT" each, into the file that GPU_LOOKUPS_LOG names. Changes no answer but the two that would get
 * past it, cuGetProcAddress itself.
 *
 * dlsym is overridden to see the first look-up. It must be a jump for every other name, because the C library resolves
 * RTLD_NEXT by its caller's address: so this is compiled with -O2, which makes the last call one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *(*dlsym_type)(void *, const char *);
typedef int (*ask_type)(const char *, void **, int, uint64_t);
typedef int (*ask_v2_type)(const char *, void **, int, uint64_t, int *);

static ask_type real_ask;
static ask_v2_type real_ask_v2;

static void *ours(const char *name, void *found);

static void note(const char *name, int version, uint64_t flags, int result, void **pfn)
{
    static int file = -1;
    if (file < 0) {
        const char *path = getenv("GPU_LOOKUPS_LOG");
        file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    }
    if (file >= 0 && name)
        dprintf(file, "%s %d %llu %s\n", name, version, (unsigned long long)flags,
                result == 0 && (!pfn || *pfn) ? "found" : "not found");
    if (result == 0 && name && pfn && *pfn && !strcmp(name, "cuGetProcAddress"))
        *pfn = ours(version < 12000 ? "cuGetProcAddress" : "cuGetProcAddress_v2", *pfn);
}

static int ask(const char *name, void **pfn, int version, uint64_t flags)
{
    int result = real_ask(name, pfn, version, flags);
    note(name, version, flags, result, pfn);
    return result;
}

static int ask_v2(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
    int result = real_ask_v2(name, pfn, version, flags, status);
    note(name, version, flags, result, pfn);
    return result;
}

static void *ours(const char *name, void *found)
{
    if (found == (void *)ask || found == (void *)ask_v2)
        return found;
    if (!strcmp(name, "cuGetProcAddress_v2")) {
        real_ask_v2 = (ask_v2_type)found;
        return (void *)ask_v2;
    }
    real_ask = (ask_type)found;
    return (void *)ask;
}

static dlsym_type real_dlsym(void)
{
    static dlsym_type real;
    if (!real)
        real = (dlsym_type)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real)
        real = (dlsym_type)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real;
}

void *dlsym(void *handle, const char *name)
{
    dlsym_type real = real_dlsym();
    if (handle != RTLD_NEXT && !strncmp(name, "cuGetProcAddress", 16)) {
        void *found = real(handle, name);
        return found ? ours(name, found) : NULL;
    }
    return real(handle, name);
}
