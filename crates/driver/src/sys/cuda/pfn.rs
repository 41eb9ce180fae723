//! Signatures of the CUDA driver API functions that the shim hooks, the simulator implements or we call.
//!
//! A row may name several symbols: `_ptds` and `_ptsz` are the per-thread default stream forms of the first, with the same
//! signature. Symbols without a row are known by name alone ([`crate::sys::symbols`]).

use super::*;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

functions! {
=> CUresult {
    // initialisation, versions, lookup
    cuInit: (flags: c_uint);
    cuDriverGetVersion: (driver_version: *mut c_int);
    cuGetErrorString: (error: CUresult, p_str: *mut *const c_char);
    cuGetErrorName: (error: CUresult, p_str: *mut *const c_char);
    cuGetProcAddress: (symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t);
    cuGetProcAddress_v2: (
        symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t,
        symbol_status: *mut CUdriverProcAddressQueryResult
    );
    cuGetExportTable: (pp_export_table: *mut *const c_void, p_export_table_id: *const CUuuid);

    // devices
    cuDeviceGet: (device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetCount: (count: *mut c_int);
    cuDeviceGetName: (name: *mut c_char, len: c_int, dev: CUdevice);
    cuDeviceGetUuid: (uuid: *mut CUuuid, dev: CUdevice);
    cuDeviceGetUuid_v2: (uuid: *mut CUuuid, dev: CUdevice);
    cuDeviceTotalMem: (bytes: *mut c_uint, dev: CUdevice);
    cuDeviceTotalMem_v2: (bytes: *mut usize, dev: CUdevice);
    cuDeviceGetAttribute: (pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice);
    cuDeviceComputeCapability: (major: *mut c_int, minor: *mut c_int, dev: CUdevice);
    cuDeviceGetPCIBusId: (pci_bus_id: *mut c_char, len: c_int, dev: CUdevice);
    cuDeviceGetByPCIBusId: (dev: *mut CUdevice, pci_bus_id: *const c_char);
    cuDeviceCanAccessPeer: (can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice);
    cuDeviceGetDefaultMemPool: (pool_out: *mut CUmemoryPool, dev: CUdevice);
    cuDeviceGetMemPool: (pool: *mut CUmemoryPool, dev: CUdevice);
    cuDeviceSetMemPool: (dev: CUdevice, pool: CUmemoryPool);

    // primary contexts
    cuDevicePrimaryCtxRetain: (pctx: *mut CUcontext, dev: CUdevice);
    cuDevicePrimaryCtxRelease: (dev: CUdevice);
    cuDevicePrimaryCtxRelease_v2: (dev: CUdevice);
    cuDevicePrimaryCtxReset: (dev: CUdevice);
    cuDevicePrimaryCtxReset_v2: (dev: CUdevice);
    cuDevicePrimaryCtxSetFlags: (dev: CUdevice, flags: c_uint);
    cuDevicePrimaryCtxSetFlags_v2: (dev: CUdevice, flags: c_uint);
    cuDevicePrimaryCtxGetState: (dev: CUdevice, flags: *mut c_uint, active: *mut c_int);

    // contexts
    cuCtxCreate: (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
    cuCtxCreate_v2: (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
    cuCtxCreate_v3: (
        pctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: c_int, flags: c_uint,
        dev: CUdevice
    );
    cuCtxCreate_v4: (pctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice);
    cuCtxDestroy: (ctx: CUcontext);
    cuCtxDestroy_v2: (ctx: CUcontext);
    cuCtxPushCurrent: (ctx: CUcontext);
    cuCtxPushCurrent_v2: (ctx: CUcontext);
    cuCtxPopCurrent: (pctx: *mut CUcontext);
    cuCtxPopCurrent_v2: (pctx: *mut CUcontext);
    cuCtxSetCurrent: (ctx: CUcontext);
    cuCtxGetCurrent: (pctx: *mut CUcontext);
    cuCtxGetDevice: (device: *mut CUdevice);
    cuCtxGetDevice_v2: (device: *mut CUdevice, ctx: CUcontext);
    cuCtxGetFlags: (flags: *mut c_uint);
    cuCtxSetFlags: (flags: c_uint);
    cuCtxGetId: (ctx: CUcontext, ctx_id: *mut c_ulonglong);
    cuCtxSynchronize: ();
    cuCtxSynchronize_v2: (ctx: CUcontext);
    cuCtxSetLimit: (limit: CUlimit, value: usize);
    cuCtxGetLimit: (pvalue: *mut usize, limit: CUlimit);
    cuCtxGetCacheConfig: (pconfig: *mut CUfunc_cache);
    cuCtxSetCacheConfig: (config: CUfunc_cache);
    cuCtxGetSharedMemConfig: (p_config: *mut CUsharedconfig);
    cuCtxSetSharedMemConfig: (config: CUsharedconfig);
    cuCtxGetApiVersion: (ctx: CUcontext, version: *mut c_uint);
    cuCtxGetStreamPriorityRange: (least_priority: *mut c_int, greatest_priority: *mut c_int);
    cuCtxEnablePeerAccess: (peer_context: CUcontext, flags: c_uint);
    cuCtxDisablePeerAccess: (peer_context: CUcontext);

    // memory
    cuMemGetInfo: (free: *mut c_uint, total: *mut c_uint);
    cuMemGetInfo_v2: (free: *mut usize, total: *mut usize);
    cuMemAlloc: (dptr: *mut CUdeviceptr_v1, bytesize: c_uint);
    cuMemAlloc_v2: (dptr: *mut CUdeviceptr, bytesize: usize);
    cuMemAllocPitch: (
        dptr: *mut CUdeviceptr_v1, p_pitch: *mut c_uint, width_in_bytes: c_uint, height: c_uint,
        element_size_bytes: c_uint
    );
    cuMemAllocPitch_v2: (
        dptr: *mut CUdeviceptr, p_pitch: *mut usize, width_in_bytes: usize, height: usize,
        element_size_bytes: c_uint
    );
    cuMemAllocManaged: (dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
    cuMemFree: (dptr: CUdeviceptr_v1);
    cuMemFree_v2: (dptr: CUdeviceptr);
    cuMemGetAddressRange_v2: (pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr);
    cuMemAllocHost_v2: (pp: *mut *mut c_void, bytesize: usize);
    cuMemFreeHost: (p: *mut c_void);
    cuMemHostAlloc: (pp: *mut *mut c_void, bytesize: usize, flags: c_uint);
    cuMemHostGetDevicePointer_v2: (pdptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint);
    cuMemHostGetFlags: (p_flags: *mut c_uint, p: *mut c_void);
    cuMemHostRegister_v2: (p: *mut c_void, bytesize: usize, flags: c_uint);
    cuMemHostUnregister: (p: *mut c_void);
    cuMemAdvise_v2: (dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation);
    cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz: (
        dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, h_stream: CUstream
    );
    cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz: (
        dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream
    );
    cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync,
    cuMemDiscardAndPrefetchBatchAsync_ptsz: (
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation,
        prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream
    );
    cuPointerGetAttribute: (data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr);
    cuPointerGetAttributes: (
        num_attributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr
    );
    cuPointerSetAttribute: (value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr);
    cuIpcGetMemHandle: (p_handle: *mut CUipcMemHandle, dptr: CUdeviceptr);
    cuIpcOpenMemHandle: (pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    cuIpcOpenMemHandle_v2: (pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    cuIpcCloseMemHandle: (dptr: CUdeviceptr);

    // copies
    cuMemcpy, cuMemcpy_ptds: (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize);
    cuMemcpyAsync, cuMemcpyAsync_ptsz: (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream);
    cuMemcpyPeer, cuMemcpyPeer_ptds: (
        dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext,
        byte_count: usize
    );
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz: (
        dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext,
        byte_count: usize, h_stream: CUstream
    );
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds: (dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds: (dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds: (dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize);
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz: (
        dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream
    );
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz: (
        dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream
    );
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz: (
        dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream
    );
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds: (p_copy: *const CUDA_MEMCPY2D);
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz: (p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream);
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds: (p_copy: *const CUDA_MEMCPY3D);
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz: (p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream);
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds: (p_copy: *const CUDA_MEMCPY3D_PEER);
    cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz: (p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream);
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz: (
        dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize,
        h_stream: CUstream
    );
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz: (
        dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, h_stream: CUstream
    );
    cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz: (
        num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong,
        h_stream: CUstream
    );
    cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz: (
        num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream
    );
    cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz: (
        dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, h_stream: CUstream
    );
    cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz: (
        op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream
    );
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds: (
        dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize
    );
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds: (
        dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize
    );
    cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds: (
        dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize
    );
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds: (
        dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize
    );
    cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds: (
        dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize, byte_count: usize
    );
    cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz: (
        dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, h_stream: CUstream
    );
    cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz: (
        dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, h_stream: CUstream
    );

    // memory sets
    cuMemsetD8_v2, cuMemsetD8_v2_ptds: (dst_device: CUdeviceptr, uc: c_uchar, n: usize);
    cuMemsetD16_v2, cuMemsetD16_v2_ptds: (dst_device: CUdeviceptr, us: c_ushort, n: usize);
    cuMemsetD32_v2, cuMemsetD32_v2_ptds: (dst_device: CUdeviceptr, ui: c_uint, n: usize);
    cuMemsetD8Async, cuMemsetD8Async_ptsz: (dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream);
    cuMemsetD16Async, cuMemsetD16Async_ptsz: (dst_device: CUdeviceptr, us: c_ushort, n: usize, h_stream: CUstream);
    cuMemsetD32Async, cuMemsetD32Async_ptsz: (dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream);
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds: (
        dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize
    );
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds: (
        dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize
    );
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds: (
        dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize
    );
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz: (
        dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize, h_stream: CUstream
    );
    cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz: (
        dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize, h_stream: CUstream
    );
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz: (
        dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize, h_stream: CUstream
    );

    // stream-ordered memory and pools
    cuMemAllocAsync, cuMemAllocAsync_ptsz: (dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream);
    cuMemFreeAsync, cuMemFreeAsync_ptsz: (dptr: CUdeviceptr, h_stream: CUstream);
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz: (
        dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream
    );
    cuMemPoolCreate: (pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps);
    cuMemPoolDestroy: (pool: CUmemoryPool);
    cuMemPoolTrimTo: (pool: CUmemoryPool, min_bytes_to_keep: usize);
    cuMemPoolSetAttribute: (pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolGetAttribute: (pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolSetAccess: (pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
    cuMemPoolGetAccess: (flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation);
    cuMemGetDefaultMemPool: (pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, type_: CUmemAllocationType);
    cuMemGetMemPool: (pool: *mut CUmemoryPool, location: *mut CUmemLocation, type_: CUmemAllocationType);
    cuMemSetMemPool: (location: *mut CUmemLocation, type_: CUmemAllocationType, pool: CUmemoryPool);

    // virtual memory
    cuMemAddressReserve: (
        ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong
    );
    cuMemAddressFree: (ptr: CUdeviceptr, size: usize);
    cuMemCreate: (
        handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp,
        flags: c_ulonglong
    );
    cuMemRelease: (handle: CUmemGenericAllocationHandle);
    cuMemMap: (
        ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong
    );
    cuMemUnmap: (ptr: CUdeviceptr, size: usize);
    cuMemSetAccess: (ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize);
    cuMemGetAccess: (flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr);
    cuMemExportToShareableHandle: (
        shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle,
        handle_type: CUmemAllocationHandleType, flags: c_ulonglong
    );
    cuMemImportFromShareableHandle: (
        handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void,
        sh_handle_type: CUmemAllocationHandleType
    );
    cuMemGetAllocationGranularity: (
        granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags
    );
    cuMemGetAllocationPropertiesFromHandle: (prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
    cuMemRetainAllocationHandle: (handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void);

    // modules
    cuModuleLoad: (module: *mut CUmodule, fname: *const c_char);
    cuModuleLoadData: (module: *mut CUmodule, image: *const c_void);
    cuModuleLoadDataEx: (
        module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option,
        option_values: *mut *mut c_void
    );
    cuModuleLoadFatBinary: (module: *mut CUmodule, fat_cubin: *const c_void);
    cuModuleUnload: (hmod: CUmodule);
    cuModuleGetLoadingMode: (mode: *mut CUmoduleLoadingMode);
    cuModuleGetFunction: (hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char);
    cuModuleGetFunctionCount: (count: *mut c_uint, mod_: CUmodule);
    cuModuleEnumerateFunctions: (functions: *mut CUfunction, num_functions: c_uint, mod_: CUmodule);
    cuModuleGetGlobal_v2: (dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char);

    // linking
    cuLinkCreate_v2: (
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
        state_out: *mut CUlinkState
    );
    cuLinkAddData_v2: (
        state: CUlinkState, type_: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void
    );
    cuLinkAddFile_v2: (
        state: CUlinkState, type_: CUjitInputType, path: *const c_char, num_options: c_uint,
        options: *mut CUjit_option, option_values: *mut *mut c_void
    );
    cuLinkComplete: (state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize);
    cuLinkDestroy: (state: CUlinkState);

    // libraries and kernels
    cuLibraryLoadData: (
        library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option,
        jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption,
        library_option_values: *mut *mut c_void, num_library_options: c_uint
    );
    cuLibraryLoadFromFile: (
        library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option,
        jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption,
        library_option_values: *mut *mut c_void, num_library_options: c_uint
    );
    cuLibraryUnload: (library: CUlibrary);
    cuLibraryGetKernel: (p_kernel: *mut CUkernel, library: CUlibrary, name: *const c_char);
    cuLibraryGetKernelCount: (count: *mut c_uint, lib: CUlibrary);
    cuLibraryEnumerateKernels: (kernels: *mut CUkernel, num_kernels: c_uint, lib: CUlibrary);
    cuLibraryGetModule: (p_mod: *mut CUmodule, library: CUlibrary);
    cuLibraryGetGlobal: (dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
    cuLibraryGetManaged: (dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
    cuLibraryGetUnifiedFunction: (fptr: *mut *mut c_void, library: CUlibrary, symbol: *const c_char);
    cuKernelGetFunction: (p_func: *mut CUfunction, kernel: CUkernel);
    cuKernelGetLibrary: (p_lib: *mut CUlibrary, kernel: CUkernel);
    cuKernelGetName: (name: *mut *const c_char, hfunc: CUkernel);
    cuKernelGetParamInfo: (kernel: CUkernel, param_index: usize, param_offset: *mut usize, param_size: *mut usize);
    cuKernelGetParamCount: (kernel: CUkernel, param_count: *mut usize);
    cuKernelGetAttribute: (pi: *mut c_int, attrib: CUfunction_attribute, kernel: CUkernel, dev: CUdevice);
    cuKernelSetAttribute: (attrib: CUfunction_attribute, val: c_int, kernel: CUkernel, dev: CUdevice);
    cuKernelSetCacheConfig: (kernel: CUkernel, config: CUfunc_cache, dev: CUdevice);

    // functions
    cuFuncGetAttribute: (pi: *mut c_int, attrib: CUfunction_attribute, hfunc: CUfunction);
    cuFuncSetAttribute: (hfunc: CUfunction, attrib: CUfunction_attribute, value: c_int);
    cuFuncSetCacheConfig: (hfunc: CUfunction, config: CUfunc_cache);
    cuFuncSetSharedMemConfig: (hfunc: CUfunction, config: CUsharedconfig);
    cuFuncGetModule: (hmod: *mut CUmodule, hfunc: CUfunction);
    cuFuncGetName: (name: *mut *const c_char, hfunc: CUfunction);
    cuFuncGetParamInfo: (func: CUfunction, param_index: usize, param_offset: *mut usize, param_size: *mut usize);
    cuFuncGetParamCount: (func: CUfunction, param_count: *mut usize);
    cuFuncIsLoaded: (state: *mut CUfunctionLoadingState, function: CUfunction);
    cuFuncLoad: (function: CUfunction);

    // occupancy
    cuOccupancyMaxActiveBlocksPerMultiprocessor: (
        num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_smem_size: usize
    );
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: (
        num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_smem_size: usize, flags: c_uint
    );
    cuOccupancyMaxPotentialBlockSize: (
        min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction,
        block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int
    );
    cuOccupancyMaxPotentialBlockSizeWithFlags: (
        min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction,
        block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize,
        block_size_limit: c_int, flags: c_uint
    );
    cuOccupancyAvailableDynamicSMemPerBlock: (
        dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: c_int, block_size: c_int
    );
    cuOccupancyMaxPotentialClusterSize: (cluster_size: *mut c_int, func: CUfunction, config: *const CUlaunchConfig);
    cuOccupancyMaxActiveClusters: (num_clusters: *mut c_int, func: CUfunction, config: *const CUlaunchConfig);

    // launches
    cuLaunchKernel, cuLaunchKernel_ptsz: (
        f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
        block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream,
        kernel_params: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz: (
        config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz: (
        f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
        block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream,
        kernel_params: *mut *mut c_void
    );
    cuLaunchCooperativeKernelMultiDevice: (
        launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: c_uint, flags: c_uint
    );
    cuFuncSetBlockShape: (hfunc: CUfunction, x: c_int, y: c_int, z: c_int);
    cuFuncSetSharedSize: (hfunc: CUfunction, bytes: c_uint);
    cuParamSetSize: (hfunc: CUfunction, numbytes: c_uint);
    cuParamSeti: (hfunc: CUfunction, offset: c_int, value: c_uint);
    cuParamSetf: (hfunc: CUfunction, offset: c_int, value: f32);
    cuParamSetv: (hfunc: CUfunction, offset: c_int, ptr: *mut c_void, numbytes: c_uint);
    cuLaunch: (f: CUfunction);
    cuLaunchGrid: (f: CUfunction, grid_width: c_int, grid_height: c_int);
    cuLaunchGridAsync: (f: CUfunction, grid_width: c_int, grid_height: c_int, h_stream: CUstream);
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz: (h_stream: CUstream, fn_: CUhostFn, user_data: *mut c_void);
    cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz: (
        h_stream: CUstream, fn_: CUhostFn, user_data: *mut c_void, sync_mode: c_uint
    );

    // streams
    cuStreamCreate: (ph_stream: *mut CUstream, flags: c_uint);
    cuStreamCreateWithPriority: (ph_stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy: (h_stream: CUstream);
    cuStreamDestroy_v2: (h_stream: CUstream);
    cuStreamSynchronize, cuStreamSynchronize_ptsz: (h_stream: CUstream);
    cuStreamQuery, cuStreamQuery_ptsz: (h_stream: CUstream);
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz: (h_stream: CUstream, h_event: CUevent, flags: c_uint);
    cuStreamAddCallback, cuStreamAddCallback_ptsz: (
        h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint
    );
    cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz: (
        h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint
    );
    cuStreamGetPriority, cuStreamGetPriority_ptsz: (h_stream: CUstream, priority: *mut c_int);
    cuStreamGetFlags, cuStreamGetFlags_ptsz: (h_stream: CUstream, flags: *mut c_uint);
    cuStreamGetId, cuStreamGetId_ptsz: (h_stream: CUstream, stream_id: *mut c_ulonglong);
    cuStreamGetCtx, cuStreamGetCtx_ptsz: (h_stream: CUstream, pctx: *mut CUcontext);
    cuStreamGetDevice, cuStreamGetDevice_ptsz: (h_stream: CUstream, device: *mut CUdevice);
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz: (h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus);
    cuThreadExchangeStreamCaptureMode: (mode: *mut CUstreamCaptureMode);

    // events
    cuEventCreate: (ph_event: *mut CUevent, flags: c_uint);
    cuEventDestroy: (h_event: CUevent);
    cuEventDestroy_v2: (h_event: CUevent);
    cuEventRecord, cuEventRecord_ptsz: (h_event: CUevent, h_stream: CUstream);
    cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz: (h_event: CUevent, h_stream: CUstream, flags: c_uint);
    cuEventQuery: (h_event: CUevent);
    cuEventSynchronize: (h_event: CUevent);
    cuEventElapsedTime: (p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent);
    cuEventElapsedTime_v2: (p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent);

    // stream capture
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz: (h_stream: CUstream);
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz: (h_stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz: (
        h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode
    );
    cuStreamEndCapture, cuStreamEndCapture_ptsz: (h_stream: CUstream, ph_graph: *mut CUgraph);
    cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz: (
        h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t
    );
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz: (
        h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t,
        graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize
    );
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz: (
        h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t,
        graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode,
        edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize
    );
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz: (
        h_stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: c_uint
    );
    cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz: (
        h_stream: CUstream, dependencies: *mut CUgraphNode, dependency_data: *const CUgraphEdgeData,
        num_dependencies: usize, flags: c_uint
    );

    // graphs
    cuGraphCreate: (ph_graph: *mut CUgraph, flags: c_uint);
    cuGraphDestroy: (h_graph: CUgraph);
    cuGraphClone: (ph_graph_clone: *mut CUgraph, original_graph: CUgraph);
    cuGraphGetId: (h_graph: CUgraph, graph_id: *mut c_uint);
    cuGraphGetNodes: (h_graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
    cuGraphGetRootNodes: (h_graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize);
    cuGraphGetEdges: (h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize);
    cuGraphGetEdges_v2: (
        h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
        num_edges: *mut usize
    );
    cuGraphAddDependencies, cuGraphRemoveDependencies: (
        h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize
    );
    cuGraphAddDependencies_v2, cuGraphRemoveDependencies_v2: (
        h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData,
        num_dependencies: usize
    );
    cuGraphNodeGetDependencies: (h_node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize);
    cuGraphNodeGetDependencies_v2: (
        h_node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
        num_dependencies: *mut usize
    );
    cuGraphNodeGetDependentNodes: (
        h_node: CUgraphNode, dependent_nodes: *mut CUgraphNode, num_dependent_nodes: *mut usize
    );
    cuGraphNodeGetDependentNodes_v2: (
        h_node: CUgraphNode, dependent_nodes: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
        num_dependent_nodes: *mut usize
    );
    cuGraphNodeGetType: (h_node: CUgraphNode, type_: *mut CUgraphNodeType);
    cuGraphNodeGetContainingGraph: (h_node: CUgraphNode, ph_graph: *mut CUgraph);
    cuGraphNodeGetLocalId: (h_node: CUgraphNode, node_id: *mut c_uint);
    cuGraphNodeGetToolsId: (h_node: CUgraphNode, tools_node_id: *mut c_ulonglong);
    cuGraphNodeFindInClone: (ph_node: *mut CUgraphNode, h_original_node: CUgraphNode, h_cloned_graph: CUgraph);
    cuGraphDestroyNode: (h_node: CUgraphNode);
    cuGraphDebugDotPrint: (h_graph: CUgraph, path: *const c_char, flags: c_uint);
    cuGraphConditionalHandleCreate: (
        p_handle_out: *mut CUgraphConditionalHandle, h_graph: CUgraph, ctx: CUcontext, default_launch_value: c_uint,
        flags: c_uint
    );

    // graph nodes
    cuGraphAddNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *mut CUgraphNodeParams
    );
    cuGraphAddNode_v2, cuGraphAddNode_v3: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, node_params: *mut CUgraphNodeParams
    );
    cuGraphNodeSetParams, cuGraphNodeSetParams_v2, cuGraphNodeGetParams: (
        h_node: CUgraphNode, node_params: *mut CUgraphNodeParams
    );
    cuGraphAddKernelNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_KERNEL_NODE_PARAMS_v1
    );
    cuGraphAddKernelNode_v2: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_KERNEL_NODE_PARAMS
    );
    cuGraphKernelNodeGetParams: (h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v1);
    cuGraphKernelNodeGetParams_v2: (h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS);
    cuGraphKernelNodeSetParams: (h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1);
    cuGraphKernelNodeSetParams_v2: (h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS);
    cuGraphKernelNodeCopyAttributes: (dst: CUgraphNode, src: CUgraphNode);
    cuGraphKernelNodeGetAttribute: (
        h_node: CUgraphNode, attr: CUkernelNodeAttrID, value_out: *mut CUkernelNodeAttrValue
    );
    cuGraphKernelNodeSetAttribute: (h_node: CUgraphNode, attr: CUkernelNodeAttrID, value: *const CUkernelNodeAttrValue);
    cuGraphAddMemcpyNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext
    );
    cuGraphMemcpyNodeGetParams: (h_node: CUgraphNode, node_params: *mut CUDA_MEMCPY3D);
    cuGraphMemcpyNodeSetParams: (h_node: CUgraphNode, node_params: *const CUDA_MEMCPY3D);
    cuGraphAddMemsetNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext
    );
    cuGraphMemsetNodeGetParams: (h_node: CUgraphNode, node_params: *mut CUDA_MEMSET_NODE_PARAMS);
    cuGraphMemsetNodeSetParams: (h_node: CUgraphNode, node_params: *const CUDA_MEMSET_NODE_PARAMS);
    cuGraphAddHostNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_HOST_NODE_PARAMS
    );
    cuGraphHostNodeGetParams: (h_node: CUgraphNode, node_params: *mut CUDA_HOST_NODE_PARAMS);
    cuGraphHostNodeSetParams: (h_node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS);
    cuGraphAddChildGraphNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        child_graph: CUgraph
    );
    cuGraphChildGraphNodeGetGraph: (h_node: CUgraphNode, ph_graph: *mut CUgraph);
    cuGraphAddEmptyNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize
    );
    cuGraphAddEventRecordNode, cuGraphAddEventWaitNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        event: CUevent
    );
    cuGraphEventRecordNodeGetEvent, cuGraphEventWaitNodeGetEvent: (h_node: CUgraphNode, event_out: *mut CUevent);
    cuGraphEventRecordNodeSetEvent, cuGraphEventWaitNodeSetEvent: (h_node: CUgraphNode, event: CUevent);
    cuGraphAddMemAllocNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS
    );
    cuGraphMemAllocNodeGetParams: (h_node: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
    cuGraphAddMemFreeNode: (
        ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        dptr: CUdeviceptr
    );
    cuGraphMemFreeNodeGetParams: (h_node: CUgraphNode, dptr_out: *mut CUdeviceptr);

    // executable graphs
    cuGraphInstantiate, cuGraphInstantiate_v2: (
        ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode, log_buffer: *mut c_char,
        buffer_size: usize
    );
    cuGraphInstantiateWithFlags: (ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: c_ulonglong);
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz: (
        ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS
    );
    cuGraphExecGetFlags: (h_graph_exec: CUgraphExec, flags: *mut cuuint64_t);
    cuGraphExecGetId: (h_graph_exec: CUgraphExec, graph_id: *mut c_uint);
    cuGraphExecDestroy: (h_graph_exec: CUgraphExec);
    cuGraphUpload, cuGraphUpload_ptsz, cuGraphLaunch, cuGraphLaunch_ptsz: (
        h_graph_exec: CUgraphExec, h_stream: CUstream
    );
    cuGraphExecUpdate: (
        h_graph_exec: CUgraphExec, h_graph: CUgraph, h_error_node_out: *mut CUgraphNode,
        update_result_out: *mut CUgraphExecUpdateResult
    );
    cuGraphExecUpdate_v2: (h_graph_exec: CUgraphExec, h_graph: CUgraph, result_info: *mut CUgraphExecUpdateResultInfo);
    cuGraphExecNodeSetParams: (h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *mut CUgraphNodeParams);
    cuGraphExecKernelNodeSetParams: (
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1
    );
    cuGraphExecKernelNodeSetParams_v2: (
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS
    );
    cuGraphExecMemcpyNodeSetParams: (
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext
    );
    cuGraphExecMemsetNodeSetParams: (
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext
    );
    cuGraphExecHostNodeSetParams: (
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS
    );
    cuGraphExecChildGraphNodeSetParams: (h_graph_exec: CUgraphExec, h_node: CUgraphNode, child_graph: CUgraph);
    cuGraphExecEventRecordNodeSetEvent, cuGraphExecEventWaitNodeSetEvent: (
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, event: CUevent
    );
    cuGraphNodeSetEnabled: (h_graph_exec: CUgraphExec, h_node: CUgraphNode, is_enabled: c_uint);
    cuGraphNodeGetEnabled: (h_graph_exec: CUgraphExec, h_node: CUgraphNode, is_enabled: *mut c_uint);

    // graph memory
    cuDeviceGraphMemTrim: (device: CUdevice);
    cuDeviceGetGraphMemAttribute, cuDeviceSetGraphMemAttribute: (
        device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void
    );

    // user objects
    cuUserObjectCreate: (
        object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint, flags: c_uint
    );
    cuUserObjectRetain, cuUserObjectRelease: (object: CUuserObject, count: c_uint);
    cuGraphRetainUserObject: (graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
    cuGraphReleaseUserObject: (graph: CUgraph, object: CUuserObject, count: c_uint);

    // arrays and mipmapped arrays
    cuArrayCreate: (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR_v1);
    cuArrayCreate_v2: (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR);
    cuArrayGetDescriptor: (p_array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR_v1, h_array: CUarray);
    cuArrayGetDescriptor_v2: (p_array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR, h_array: CUarray);
    cuArray3DCreate: (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR_v1);
    cuArray3DCreate_v2: (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR);
    cuArray3DGetDescriptor: (p_array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, h_array: CUarray);
    cuArray3DGetDescriptor_v2: (p_array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, h_array: CUarray);
    cuArrayDestroy: (h_array: CUarray);
    cuArrayGetMemoryRequirements: (
        memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice
    );
    cuArrayGetSparseProperties: (sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray);
    cuArrayGetPlane: (p_plane_array: *mut CUarray, h_array: CUarray, plane_idx: c_uint);
    cuMipmappedArrayCreate: (
        p_handle: *mut CUmipmappedArray, p_mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR,
        num_mipmap_levels: c_uint
    );
    cuMipmappedArrayGetLevel: (p_level_array: *mut CUarray, h_mipmapped_array: CUmipmappedArray, level: c_uint);
    cuMipmappedArrayDestroy: (h_mipmapped_array: CUmipmappedArray);
    cuMipmappedArrayGetMemoryRequirements: (
        memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray, device: CUdevice
    );
    cuMipmappedArrayGetSparseProperties: (
        sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, mipmap: CUmipmappedArray
    );
    cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz: (
        map_info_list: *mut CUarrayMapInfo, count: c_uint, h_stream: CUstream
    );

    // texture and surface objects
    cuTexObjectCreate: (
        p_tex_object: *mut CUtexObject, p_res_desc: *const CUDA_RESOURCE_DESC,
        p_tex_desc: *const CUDA_TEXTURE_DESC, p_res_view_desc: *const CUDA_RESOURCE_VIEW_DESC
    );
    cuTexObjectDestroy: (tex_object: CUtexObject);
    cuTexObjectGetResourceDesc: (p_res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject);
    cuTexObjectGetTextureDesc: (p_tex_desc: *mut CUDA_TEXTURE_DESC, tex_object: CUtexObject);
    cuTexObjectGetResourceViewDesc: (p_res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject);
    cuSurfObjectCreate: (p_surf_object: *mut CUsurfObject, p_res_desc: *const CUDA_RESOURCE_DESC);
    cuSurfObjectDestroy: (surf_object: CUsurfObject);
    cuSurfObjectGetResourceDesc: (p_res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject);
    cuDeviceGetTexture1DLinearMaxWidth: (
        max_width_in_elements: *mut usize, format: CUarray_format, num_channels: c_uint, dev: CUdevice
    );

    // host memory and limits
    cuMemAllocHost: (pp: *mut *mut c_void, bytesize: c_uint);
    cuMemHostGetDevicePointer: (pdptr: *mut CUdeviceptr_v1, p: *mut c_void, flags: c_uint);
    cuMemHostRegister: (p: *mut c_void, bytesize: usize, flags: c_uint);
    cuMemGetAddressRange: (pbase: *mut CUdeviceptr_v1, psize: *mut c_uint, dptr: CUdeviceptr_v1);
    cuCtxResetPersistingL2Cache: ();
    cuCtxGetExecAffinity: (p_exec_affinity: *mut CUexecAffinityParam, type_: CUexecAffinityType);
    cuCtxAttach: (pctx: *mut CUcontext, flags: c_uint);
    cuCtxDetach: (ctx: CUcontext);
    cuDeviceGetP2PAttribute: (
        value: *mut c_int, attrib: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice
    );

    // sharing between processes
    cuIpcGetEventHandle: (p_handle: *mut CUipcEventHandle, event: CUevent);
    cuIpcOpenEventHandle: (ph_event: *mut CUevent, handle: CUipcEventHandle);
    cuMemPoolExportToShareableHandle: (
        handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType, flags: c_ulonglong
    );
    cuMemPoolImportFromShareableHandle: (
        pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType,
        flags: c_ulonglong
    );
    cuMemPoolExportPointer: (share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr);
    cuMemPoolImportPointer: (ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut CUmemPoolPtrExportData);
    cuMemGetHandleForAddressRange: (
        handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: CUmemRangeHandleType,
        flags: c_ulonglong
    );

    // external memory and semaphores
    cuImportExternalMemory: (
        ext_mem_out: *mut CUexternalMemory, mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    );
    cuExternalMemoryGetMappedBuffer: (
        dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory,
        buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    );
    cuExternalMemoryGetMappedMipmappedArray: (
        mipmap: *mut CUmipmappedArray, ext_mem: CUexternalMemory,
        mipmap_desc: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC
    );
    cuDestroyExternalMemory: (ext_mem: CUexternalMemory);
    cuImportExternalSemaphore: (
        ext_sem_out: *mut CUexternalSemaphore, sem_handle_desc: *const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC
    );
    cuDestroyExternalSemaphore: (ext_sem: CUexternalSemaphore);
    cuSignalExternalSemaphoresAsync, cuSignalExternalSemaphoresAsync_ptsz: (
        ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
        num_ext_sems: c_uint, stream: CUstream
    );
    cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync_ptsz: (
        ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS,
        num_ext_sems: c_uint, stream: CUstream
    );

    // graphics
    cuGraphicsUnregisterResource: (resource: CUgraphicsResource);
    cuGraphicsSubResourceGetMappedArray: (
        p_array: *mut CUarray, resource: CUgraphicsResource, array_index: c_uint, mip_level: c_uint
    );
    cuGraphicsResourceGetMappedMipmappedArray: (
        p_mipmapped_array: *mut CUmipmappedArray, resource: CUgraphicsResource
    );
    cuGraphicsResourceGetMappedPointer: (
        p_dev_ptr: *mut CUdeviceptr_v1, p_size: *mut c_uint, resource: CUgraphicsResource
    );
    cuGraphicsResourceGetMappedPointer_v2: (
        p_dev_ptr: *mut CUdeviceptr, p_size: *mut usize, resource: CUgraphicsResource
    );
    cuGraphicsResourceSetMapFlags: (resource: CUgraphicsResource, flags: c_uint);
    cuGraphicsResourceSetMapFlags_v2: (resource: CUgraphicsResource, flags: c_uint);
    cuGraphicsMapResources, cuGraphicsMapResources_ptsz: (
        count: c_uint, resources: *mut CUgraphicsResource, h_stream: CUstream
    );
    cuGraphicsUnmapResources, cuGraphicsUnmapResources_ptsz: (
        count: c_uint, resources: *mut CUgraphicsResource, h_stream: CUstream
    );

    // multicast
    cuMulticastCreate: (mc_handle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp);
    cuMulticastAddDevice: (mc_handle: CUmemGenericAllocationHandle, dev: CUdevice);
    cuMulticastBindMem: (
        mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, mem_handle: CUmemGenericAllocationHandle,
        mem_offset: usize, size: usize, flags: c_ulonglong
    );
    cuMulticastBindMem_v2: (
        mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
        mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: c_ulonglong
    );
    cuMulticastBindAddr: (
        mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, memptr: CUdeviceptr, size: usize,
        flags: c_ulonglong
    );
    cuMulticastBindAddr_v2: (
        mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, memptr: CUdeviceptr,
        size: usize, flags: c_ulonglong
    );
    cuMulticastUnbind: (mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, size: usize);
    cuMulticastGetGranularity: (
        granularity: *mut usize, prop: *const CUmulticastObjectProp, option: CUmulticastGranularity_flags
    );

    // parts of a device
    cuGreenCtxCreate: (ph_ctx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint);
    cuGreenCtxDestroy: (h_ctx: CUgreenCtx);
    cuGreenCtxGetDevResource: (h_ctx: CUgreenCtx, resource: *mut CUdevResource, type_: CUdevResourceType);
    cuGreenCtxRecordEvent: (h_ctx: CUgreenCtx, h_event: CUevent);
    cuGreenCtxWaitEvent: (h_ctx: CUgreenCtx, h_event: CUevent);
    cuGreenCtxStreamCreate: (ph_stream: *mut CUstream, green_ctx: CUgreenCtx, flags: c_uint, priority: c_int);
    cuGreenCtxGetId: (green_ctx: CUgreenCtx, green_ctx_id: *mut c_ulonglong);
    cuCtxFromGreenCtx: (p_context: *mut CUcontext, h_ctx: CUgreenCtx);
    cuStreamGetGreenCtx: (h_stream: CUstream, ph_ctx: *mut CUgreenCtx);
    cuDeviceGetDevResource: (device: CUdevice, resource: *mut CUdevResource, type_: CUdevResourceType);
    cuCtxGetDevResource: (h_ctx: CUcontext, resource: *mut CUdevResource, type_: CUdevResourceType);
    cuStreamGetDevResource: (h_stream: CUstream, resource: *mut CUdevResource, type_: CUdevResourceType);
    cuDevSmResourceSplitByCount: (
        result: *mut CUdevResource, nb_groups: *mut c_uint, input: *const CUdevResource,
        remainder: *mut CUdevResource, flags: c_uint, min_count: c_uint
    );
    cuDevSmResourceSplit: (
        result: *mut CUdevResource, nb_groups: c_uint, input: *const CUdevResource,
        remainder: *mut CUdevResource, flags: c_uint, group_params: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS
    );
    cuDevResourceGenerateDesc: (ph_desc: *mut CUdevResourceDesc, resources: *mut CUdevResource, nb_resources: c_uint);

    // checkpoints
    cuCheckpointProcessGetRestoreThreadId: (pid: c_int, tid: *mut c_int);
    cuCheckpointProcessGetState: (pid: c_int, state: *mut CUprocessState);
    cuCheckpointProcessLock: (pid: c_int, args: *mut CUcheckpointLockArgs);
    cuCheckpointProcessCheckpoint: (pid: c_int, args: *mut CUcheckpointCheckpointArgs);
    cuCheckpointProcessRestore: (pid: c_int, args: *mut CUcheckpointRestoreArgs);
    cuCheckpointProcessUnlock: (pid: c_int, args: *mut CUcheckpointUnlockArgs);
    cuCheckpointOperationComplete: (handle: CUcheckpointOperationHandle);
}
}
