/* As much of the CUDA driver API and of NVML as the probes call. Types as in NVIDIA's headers, names shortened. */
#include <stddef.h>
#include <stdint.h>

typedef int result;
typedef struct { char bytes[16]; } uuid_bytes;
typedef struct { int type, id; } location;
typedef struct {
    int type, handle_types;
    location where;
    void *win32;
    unsigned char flags[8];
} allocation_prop;
typedef struct {
    int type, handle_types;
    location where;
    void *win32;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} pool_props;
typedef struct {
    pool_props pool;
    const void *access;
    size_t access_count, bytes;
    uint64_t address;
} allocation_node_params;
typedef struct { uint64_t flags; void *stream, *wrong; int outcome; } instantiate_params;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long used; } process_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_v2;

typedef struct { unsigned width, height, format, channels; } array_v1;
typedef struct { size_t width, height; unsigned format, channels; } array_v2;
typedef struct { unsigned width, height, depth, format, channels, flags; } array3d_v1;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } array3d_v2;
typedef struct { uint64_t words[8]; } ipc_handle;
typedef struct { int type; uint64_t handle[2]; unsigned long long size; unsigned flags, reserved[16]; } external_memory;
typedef struct { unsigned long long offset, size; unsigned flags, reserved[16]; } external_buffer;

/* X(symbol, name and version and flags to ask cuGetProcAddress with, result, parameters) */
#define CUDA(X) \
    X(cuInit, "cuInit", 2000, 0, result, (unsigned)) \
    X(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, 0, result, (uuid_bytes *, int)) \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 13000, 0, result, (size_t *, int)) \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 13000, 0, result, (void **, int)) \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 13000, 0, result, (int)) \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 13000, 0, result, (int)) \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, 0, result, (void **, unsigned, int)) \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, 0, result, (void **, void *, unsigned, int)) \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 13000, 0, result, (void *)) \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 13000, 0, result, (void *)) \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, 0, result, (int *)) \
    X(cuMemAlloc, "", 0, 0, result, (unsigned *, unsigned)) \
    X(cuMemFree, "", 0, 0, result, (unsigned)) \
    X(cuMemAlloc_v2, "cuMemAlloc", 13000, 0, result, (uint64_t *, size_t)) \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 13000, 0, result, (uint64_t *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocManaged, "cuMemAllocManaged", 13000, 0, result, (uint64_t *, size_t, unsigned)) \
    X(cuMemFree_v2, "cuMemFree", 13000, 0, result, (uint64_t)) \
    X(cuMemAddressReserve, "cuMemAddressReserve", 13000, 0, result, (uint64_t *, size_t, size_t, uint64_t, uint64_t)) \
    X(cuMemCreate, "cuMemCreate", 13000, 0, result, (uint64_t *, size_t, const allocation_prop *, uint64_t)) \
    X(cuMemRelease, "cuMemRelease", 13000, 0, result, (uint64_t)) \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 13000, 0, result, (uint64_t *, void *)) \
    X(cuMemMap, "cuMemMap", 13000, 0, result, (uint64_t, size_t, size_t, uint64_t, uint64_t)) \
    X(cuMemUnmap, "cuMemUnmap", 13000, 0, result, (uint64_t, size_t)) \
    X(cuMemAllocAsync, "cuMemAllocAsync", 13000, 0, result, (uint64_t *, size_t, void *)) \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 13000, 2, result, (uint64_t *, size_t, void *)) \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 13000, 0, result, (uint64_t *, size_t, void *, void *)) \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 13000, 2, result, (uint64_t *, size_t, void *, void *)) \
    X(cuMemFreeAsync, "cuMemFreeAsync", 13000, 0, result, (uint64_t, void *)) \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 13000, 2, result, (uint64_t, void *)) \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 13000, 0, result, (void **, int)) \
    X(cuMemPoolCreate, "cuMemPoolCreate", 13000, 0, result, (void **, const pool_props *)) \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 13000, 0, result, (void *)) \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 13000, 0, result, (void *, size_t)) \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 13000, 0, result, (void *, int, void *)) \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 13000, 0, result, (void *, int, void *)) \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0, result, (void *)) \
    X(cuStreamCreate, "cuStreamCreate", 2000, 0, result, (void **, unsigned)) \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, 0, result, (void **, const void *)) \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, 0, result, (void **, void *, const char *)) \
    X(cuLaunchKernel, "cuLaunchKernel", 13000, 0, result, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 13000, 0, result, (void *, int)) \
    X(cuStreamEndCapture, "cuStreamEndCapture", 13000, 0, result, (void *, void **)) \
    X(cuGraphCreate, "cuGraphCreate", 13000, 0, result, (void **, unsigned)) \
    X(cuGraphDestroy, "cuGraphDestroy", 13000, 0, result, (void *)) \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 13000, 0, result, (void **, void *, void **, size_t, allocation_node_params *)) \
    X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 13000, 0, result, (void **, void *, void **, size_t, uint64_t)) \
    X(cuGraphInstantiate, "cuGraphInstantiate", 10000, 0, result, (void **, void *, void **, char *, size_t)) \
    X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0, result, (void **, void *, void **, char *, size_t)) \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 13000, 0, result, (void **, void *, unsigned long long)) \
    X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 13000, 0, result, (void **, void *, instantiate_params *)) \
    X(cuGraphUpload, "cuGraphUpload", 13000, 0, result, (void *, void *)) \
    X(cuGraphLaunch, "cuGraphLaunch", 13000, 0, result, (void *, void *)) \
    X(cuGraphLaunch_ptsz, "cuGraphLaunch", 13000, 2, result, (void *, void *)) \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 13000, 0, result, (void *)) \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 13000, 0, result, (int)) \
    X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", 13000, 0, result, (int, int, void *)) \
    X(cuArrayCreate, "cuArrayCreate", 2000, 0, result, (void **, const array_v1 *)) \
    X(cuArrayCreate_v2, "cuArrayCreate", 13000, 0, result, (void **, const array_v2 *)) \
    X(cuArray3DCreate, "cuArray3DCreate", 2000, 0, result, (void **, const array3d_v1 *)) \
    X(cuArray3DCreate_v2, "cuArray3DCreate", 13000, 0, result, (void **, const array3d_v2 *)) \
    X(cuArrayDestroy, "cuArrayDestroy", 13000, 0, result, (void *)) \
    X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 13000, 0, result, (void **, const array3d_v2 *, unsigned)) \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 13000, 0, result, (void *)) \
    X(cuCtxSetLimit, "cuCtxSetLimit", 13000, 0, result, (int, size_t)) \
    X(cuMemHostAlloc, "cuMemHostAlloc", 13000, 0, result, (void **, size_t, unsigned)) \
    X(cuMemFreeHost, "cuMemFreeHost", 13000, 0, result, (void *)) \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 13000, 0, result, (ipc_handle *, uint64_t)) \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 13000, 0, result, (uint64_t *, ipc_handle, unsigned)) \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 13000, 0, result, (uint64_t)) \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 13000, 0, result, (void *, uint64_t, int, uint64_t)) \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 13000, 0, result, (uint64_t *, void *, int)) \
    X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 13000, 0, result, (void *, void *, int, uint64_t)) \
    X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 13000, 0, result, (void **, void *, int, uint64_t)) \
    X(cuMemPoolExportPointer, "cuMemPoolExportPointer", 13000, 0, result, (ipc_handle *, uint64_t)) \
    X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 13000, 0, result, (uint64_t *, void *, ipc_handle *)) \
    X(cuImportExternalMemory, "cuImportExternalMemory", 13000, 0, result, (void **, const external_memory *)) \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 13000, 0, result, (uint64_t *, void *, const external_buffer *)) \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 13000, 0, result, (void *)) \
    X(cuMulticastCreate, "cuMulticastCreate", 13000, 0, result, (uint64_t *, const void *)) \
    X(cuMulticastAddDevice, "cuMulticastAddDevice", 13000, 0, result, (uint64_t, int)) \
    X(cuMulticastBindMem, "cuMulticastBindMem", 13000, 0, result, (uint64_t, size_t, uint64_t, size_t, size_t, uint64_t)) \
    X(cuMulticastUnbind, "cuMulticastUnbind", 13000, 0, result, (uint64_t, int, size_t, size_t)) \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 13000, 0, result, (size_t *, size_t *)) \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, 0, result, (const char *, void **, int, uint64_t)) \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 13000, 0, result, (const char *, void **, int, uint64_t, int *))

#define NVML(X) \
    X(nvmlInit_v2, "", 0, 0, result, (void)) \
    X(nvmlDeviceGetHandleByIndex_v2, "", 0, 0, result, (unsigned, void **)) \
    X(nvmlDeviceGetMemoryInfo, "", 0, 0, result, (void *, memory_v1 *)) \
    X(nvmlDeviceGetMemoryInfo_v2, "", 0, 0, result, (void *, memory_v2 *)) \
    X(nvmlDeviceGetComputeRunningProcesses, "", 0, 0, result, (void *, unsigned *, process_v1 *)) \
    X(nvmlDeviceGetComputeRunningProcesses_v2, "", 0, 0, result, (void *, unsigned *, process_v2 *)) \
    X(nvmlDeviceGetComputeRunningProcesses_v3, "", 0, 0, result, (void *, unsigned *, process_v2 *)) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3, "", 0, 0, result, (void *, unsigned *, process_v2 *))
