/* A driver that gives inner functions, exported under no name, to those who ask cuGetProcAddress; and one that is newer than
 * the limiter knows. Its only GPU has the UUID that INNER_UUID gives in hexadecimal digits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static result inner_alloc(uint64_t *address, size_t bytes) { return bytes ? (*address = 4096, 0) : 1; }
static result inner_launch(void) { return 0; }

result cuInit(unsigned flags) { return flags ? 1 : 0; }
result cuCtxGetDevice(int *device) { return *device = 0; }
result cuCtxGetCurrent(void **context) { return *context = (void *)1, 0; }
result cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *digits = getenv("INNER_UUID");
    unsigned byte;
    for (int i = 0; i < 16; i++) {
        if (!digits || sscanf(digits + 2 * i, "%2x", &byte) != 1) return 101;
        uuid[i] = byte;
    }
    return device ? 101 : 0;
}
result cuDriverGetVersion(int *version) { return *version = 13000, 0; }
result cuMemAlloc_v2(uint64_t *address, size_t bytes) { return inner_alloc(address, bytes); }
result cuMemAlloc_v3(uint64_t *address, size_t bytes, int more) { return inner_alloc(address, bytes); }
result cuGetProcAddress(const char *, void **, int, uint64_t);
result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    *found = !strcmp(name, "cuMemAlloc")     ? version >= 14000 ? (void *)cuMemAlloc_v3 : (void *)inner_alloc
             : !strcmp(name, "cuLaunchKernel") ? (void *)inner_launch
                                               : NULL;
    if (status) *status = *found ? 0 : 1;
    return 0;
}
result cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
