/* A driver of long ago, and one of the future: it has these functions and no others. Memory is whatever it is asked for. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static char context;

result cuInit(unsigned flags) { return flags ? 1 : 0; }
result cuDeviceGetCount(int *count) { return *count = 1, 0; }
result cuDriverGetVersion(int *version) { return *version = 8000, 0; }
result cuDevicePrimaryCtxRetain(void **made, int device) { return *made = &context, 0; }
result cuCtxSetCurrent(void *made) { return 0; }
result cuMemAlloc_v2(uint64_t *address, size_t bytes) { return *address = (uint64_t)malloc(1), 0; }
result cuMemFree_v2(uint64_t address) { return free((void *)address), 0; }
result cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = 1ull << 30, 0; }
result cuDeviceTotalMem_v2(size_t *total, int device) { return *total = 1ull << 30, 0; }
#ifdef CONTEXTS /* it can at least say which device is current */
result cuCtxGetDevice(int *device) { return *device = 0, 0; }
result cuDeviceGetUuid(uuid_bytes *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)strtol((char[]){UUID[2 * i], UUID[2 * i + 1], 0}, NULL, 16);
    return 0;
}
#endif
#ifdef STREAMS /* pools without their attributes, graphs without their nodes */
result cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream) { return cuMemAlloc_v2(address, bytes); }
result cuMemFreeAsync(uint64_t address, void *stream) { return cuMemFree_v2(address); }
result cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { return *exec = graph, 0; }
result cuGraphLaunch(void *exec, void *stream) { return 0; }
result cuGraphExecDestroy(void *exec) { return 0; }
#endif
