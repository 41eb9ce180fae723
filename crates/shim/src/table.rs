//! The table of hooks: every hooked function, and what its hook does. A function that is not listed keeps the driver's
//! own address.
//!
//! `docs/enforcement.md` is made from this table; a test keeps the two alike.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use divvy_driver::sys;
use divvy_driver::sys::cuda::*;
use divvy_driver::sys::nvml::*;

use crate::charge::{
    arrays, binding, external, graph, host, limits, memory, sharing, stream, stream_ordered, vmm,
};
use crate::compute::{is_open, launch, synchronise};
use crate::context;
use crate::route::hook::hooks;
use crate::route::procaddress;
use crate::view::nvml::{accounting, lists, smi};
use crate::view::{denied, info, nvml};
use crate::visible_devices;

/// The answer of a hook when this driver has no such function, by library.
#[allow(non_upper_case_globals)]
mod absent {
    use super::*;
    pub const cuda: CUresult = CUresult::NOT_FOUND;
    pub const nvml: nvmlReturn_t = nvmlReturn_t::FUNCTION_NOT_FOUND;
}

hooks! { $
    /// Charges the current context's device.
    cuda cuMemAlloc(dptr: *mut CUdeviceptr_v1, bytesize: c_uint) -> CUresult => memory::alloc_v1;
    /// Charges the current context's device.
    cuda cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult => memory::alloc;
    /// Charges pitch × height on the current context's device.
    cuda cuMemAllocPitch(dptr: *mut CUdeviceptr_v1, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) -> CUresult => memory::alloc_pitch_v1;
    /// Charges pitch × height on the current context's device.
    cuda cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) -> CUresult => memory::alloc_pitch;
    /// Charges the whole size on the current context's device, wherever the pages are.
    cuda cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint) -> CUresult => memory::alloc_managed;
    /// Ends the charge of the address; passes an unknown address to the driver.
    cuda cuMemFree(dptr: CUdeviceptr_v1) -> CUresult => memory::free_v1;
    /// Ends the charge of the address; passes an unknown address to the driver.
    cuda cuMemFree_v2(dptr: CUdeviceptr) -> CUresult => memory::free;
    /// Charges the device that the location names, with or without a context; host memory is counted as pinned.
    cuda cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong) -> CUresult => vmm::create;
    /// Drops one reference; ends the charge of memory without references and mappings.
    cuda cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult => vmm::release;
    /// Counts one more reference.
    cuda cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) -> CUresult => vmm::retain;
    /// Counts one more mapping.
    cuda cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) -> CUresult => vmm::map;
    /// Drops the mappings in the range; ends the charge of memory without references and mappings.
    cuda cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult => vmm::unmap;
    /// Charges the pool's reserved size, on the stream's device; nothing while the stream is captured.
    cuda cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, stream: CUstream) -> CUresult => stream_ordered::alloc;
    /// Charges the pool's reserved size, on the stream's device; nothing while the stream is captured.
    cuda cuMemAllocAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, stream: CUstream) -> CUresult => stream_ordered::alloc_ptsz;
    /// Charges the pool's reserved size, on the pool's device; nothing while the stream is captured.
    cuda cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, stream: CUstream) -> CUresult => stream_ordered::alloc_from;
    /// Charges the pool's reserved size, on the pool's device; nothing while the stream is captured.
    cuda cuMemAllocFromPoolAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, stream: CUstream) -> CUresult => stream_ordered::alloc_from_ptsz;
    /// Has the next synchronising call set the pool's charge to the size that the driver still reserves.
    cuda cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream) -> CUresult => stream_ordered::free;
    /// Has the next synchronising call set the pool's charge to the size that the driver still reserves.
    cuda cuMemFreeAsync_ptsz(dptr: CUdeviceptr, stream: CUstream) -> CUresult => stream_ordered::free_ptsz;
    /// Records the GPU of the pool.
    cuda cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps) -> CUresult => stream_ordered::create;
    /// Ends the pool's charge: at once if all its allocations were freed, else with the last of them.
    cuda cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult => stream_ordered::destroy;
    /// Sets the pool's charge to the size that the driver still reserves.
    cuda cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult => stream_ordered::trim_to;
    /// Forgets which pool the device's allocations come from.
    cuda cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) -> CUresult => stream_ordered::set_of_device;
    /// Forgets which pool the device's allocations come from.
    cuda cuMemSetMemPool(location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool) -> CUresult => stream_ordered::set_of_location;
    /// Charges the size that the driver reports for such an array; nothing for deferred and sparse arrays.
    cuda cuArrayCreate(array: *mut CUarray, of: *const CUDA_ARRAY_DESCRIPTOR_v1) -> CUresult => arrays::create_v1;
    /// Charges the size that the driver reports for such an array; nothing for deferred and sparse arrays.
    cuda cuArrayCreate_v2(array: *mut CUarray, of: *const CUDA_ARRAY_DESCRIPTOR) -> CUresult => arrays::create;
    /// Charges the size that the driver reports for such an array; nothing for deferred and sparse arrays.
    cuda cuArray3DCreate(array: *mut CUarray, of: *const CUDA_ARRAY3D_DESCRIPTOR_v1) -> CUresult => arrays::create_3d_v1;
    /// Charges the size that the driver reports for such an array; nothing for deferred and sparse arrays.
    cuda cuArray3DCreate_v2(array: *mut CUarray, of: *const CUDA_ARRAY3D_DESCRIPTOR) -> CUresult => arrays::create_3d;
    /// Charges the size that the driver reports for such an array; nothing for deferred and sparse arrays.
    cuda cuMipmappedArrayCreate(array: *mut CUmipmappedArray, of: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> CUresult => arrays::create_mipmapped;
    /// Ends the charge of the array, and of memory that was bound to it.
    cuda cuArrayDestroy(array: CUarray) -> CUresult => arrays::destroy;
    /// Ends the charge of the array, and of memory that was bound to it.
    cuda cuMipmappedArrayDestroy(array: CUmipmappedArray) -> CUresult => arrays::destroy_mipmapped;
    /// Counts memory that is bound to arrays, like mappings.
    cuda cuMemMapArrayAsync(list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream) -> CUresult => binding::map_arrays;
    /// Counts memory that is bound to arrays, like mappings.
    cuda cuMemMapArrayAsync_ptsz(list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream) -> CUresult => binding::map_arrays;
    /// Records the object, to which the program can bind memory.
    cuda cuMulticastCreate(handle: *mut CUmemGenericAllocationHandle, of: *const CUmulticastObjectProp) -> CUresult => binding::create_multicast;
    /// Counts memory that is bound to the object, like mappings.
    cuda cuMulticastBindMem(to: CUmemGenericAllocationHandle, at: usize, handle: CUmemGenericAllocationHandle, offset: usize, size: usize, flags: c_ulonglong) -> CUresult => binding::bind_memory;
    /// Counts memory that is bound to the object, like mappings.
    cuda cuMulticastBindMem_v2(to: CUmemGenericAllocationHandle, device: CUdevice, at: usize, handle: CUmemGenericAllocationHandle, offset: usize, size: usize, flags: c_ulonglong) -> CUresult => binding::bind_memory_on;
    /// Counts memory that is bound to the object, like mappings.
    cuda cuMulticastBindAddr(to: CUmemGenericAllocationHandle, at: usize, address: CUdeviceptr, size: usize, flags: c_ulonglong) -> CUresult => binding::bind_address;
    /// Counts memory that is bound to the object, like mappings.
    cuda cuMulticastBindAddr_v2(to: CUmemGenericAllocationHandle, device: CUdevice, at: usize, address: CUdeviceptr, size: usize, flags: c_ulonglong) -> CUresult => binding::bind_address_on;
    /// Drops the binding; ends the charge of memory without references and mappings.
    cuda cuMulticastUnbind(from: CUmemGenericAllocationHandle, device: CUdevice, at: usize, size: usize) -> CUresult => binding::unbind;
    /// Moves the charge to the slice, until the slice's last process has released the memory.
    cuda cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CUresult => sharing::export_address;
    /// Charges memory of another process, unless a process of the slice shares it.
    cuda cuIpcOpenMemHandle(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> CUresult => sharing::open;
    /// Charges memory of another process, unless a process of the slice shares it.
    cuda cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> CUresult => sharing::open;
    /// Releases the memory, when the program has closed it as often as it opened it.
    cuda cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult => sharing::close;
    /// Moves the charge to the slice, until the slice's last process has released the memory.
    cuda cuMemExportToShareableHandle(shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong) -> CUresult => sharing::export_handle;
    /// Charges nothing if a process of the slice shares the memory; otherwise the mapping is charged.
    cuda cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: CUmemAllocationHandleType) -> CUresult => sharing::import_handle;
    /// Records that this process allocates no memory from the pool.
    cuda cuMemPoolImportFromShareableHandle(pool: *mut CUmemoryPool, handle: *mut c_void, kind: CUmemAllocationHandleType, flags: c_ulonglong) -> CUresult => sharing::import_pool;
    /// Moves the charge from the pool to the slice, until the slice's last process has released the memory.
    cuda cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, address: CUdeviceptr) -> CUresult => sharing::export_pooled;
    /// Charges memory of another process, unless a process of the slice shares it.
    cuda cuMemPoolImportPointer(address: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData) -> CUresult => sharing::import_pooled;
    /// Charges the size that the program states.
    cuda cuImportExternalMemory(memory: *mut CUexternalMemory, of: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC) -> CUresult => external::import;
    /// Counts one more holder of the import.
    cuda cuExternalMemoryGetMappedBuffer(address: *mut CUdeviceptr, memory: CUexternalMemory, of: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC) -> CUresult => external::map_buffer;
    /// Counts one more holder of the import.
    cuda cuExternalMemoryGetMappedMipmappedArray(array: *mut CUmipmappedArray, memory: CUexternalMemory, of: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC) -> CUresult => external::map_array;
    /// Ends the import's charge, when none of its mappings is left.
    cuda cuDestroyExternalMemory(memory: CUexternalMemory) -> CUresult => external::destroy;
    /// Counts pinned host memory beside the limit; charges it on an integrated GPU.
    cuda cuMemAllocHost(pp: *mut *mut c_void, bytesize: c_uint) -> CUresult => host::alloc_v1;
    /// Counts pinned host memory beside the limit; charges it on an integrated GPU.
    cuda cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CUresult => host::alloc;
    /// Counts pinned host memory beside the limit; charges it on an integrated GPU.
    cuda cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: c_uint) -> CUresult => host::alloc_with;
    /// Counts pinned host memory beside the limit; charges it on an integrated GPU.
    cuda cuMemHostRegister(p: *mut c_void, bytesize: usize, flags: c_uint) -> CUresult => host::register;
    /// Counts pinned host memory beside the limit; charges it on an integrated GPU.
    cuda cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint) -> CUresult => host::register;
    /// Ends the count of this host memory.
    cuda cuMemFreeHost(p: *mut c_void) -> CUresult => host::free;
    /// Ends the count of this host memory.
    cuda cuMemHostUnregister(p: *mut c_void) -> CUresult => host::free;
    /// Charges stacks, heap and printf buffer beyond the context's own.
    cuda cuCtxSetLimit(limit: CUlimit, value: usize) -> CUresult => limits::set;
    /// Determines how much the graph's memory nodes can take; refuses nodes on a GPU outside the slice.
    cuda cuGraphInstantiate(exec: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut c_char, size: usize) -> CUresult => graph::instantiate_with_log;
    /// Determines how much the graph's memory nodes can take; refuses nodes on a GPU outside the slice.
    cuda cuGraphInstantiate_v2(exec: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut c_char, size: usize) -> CUresult => graph::instantiate_with_log;
    /// Determines how much the graph's memory nodes can take; refuses nodes on a GPU outside the slice.
    cuda cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> CUresult => graph::instantiate;
    /// The same; if it uploads the graph too, charges the memory of an upload.
    cuda cuGraphInstantiateWithParams(exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) -> CUresult => graph::instantiate_with_params;
    /// The same; if it uploads the graph too, charges the memory of an upload.
    cuda cuGraphInstantiateWithParams_ptsz(exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) -> CUresult => graph::instantiate_with_params_ptsz;
    /// Charges the size that the driver reserves for the graph's memory nodes; nothing while the stream is captured.
    cuda cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::upload;
    /// Charges the size that the driver reserves for the graph's memory nodes; nothing while the stream is captured.
    cuda cuGraphUpload_ptsz(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::upload_ptsz;
    /// Charges the memory of an upload; waits for the slice's lease, like a kernel launch.
    cuda cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::launch, graph::is_open;
    /// Charges the memory of an upload; waits for the slice's lease, like a kernel launch.
    cuda cuGraphLaunch_ptsz(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::launch_ptsz, graph::is_open;
    /// Determines again how much a graph with memory nodes can take.
    cuda cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, outcome: *mut CUgraphExecUpdateResult) -> CUresult => graph::update;
    /// Determines again how much a graph with memory nodes can take.
    cuda cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, outcome: *mut CUgraphExecUpdateResultInfo) -> CUresult => graph::update_v2;
    /// Sets the charge of graph memory to the size that the driver still reserves.
    cuda cuGraphExecDestroy(exec: CUgraphExec) -> CUresult => graph::destroy;
    /// Sets the charge of graph memory to the size that the driver still reserves.
    cuda cuDeviceGraphMemTrim(device: CUdevice) -> CUresult => graph::trim;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchKernel(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) -> CUresult => launch::kernel, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchKernel_ptsz(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) -> CUresult => launch::kernel_ptsz, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) -> CUresult => launch::kernel_ex, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchKernelEx_ptsz(config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) -> CUresult => launch::kernel_ex_ptsz, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchCooperativeKernel(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void) -> CUresult => launch::cooperative, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchCooperativeKernel_ptsz(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void) -> CUresult => launch::cooperative_ptsz, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchCooperativeKernelMultiDevice(launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: c_uint, flags: c_uint) -> CUresult => launch::several_devices, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunch(f: CUfunction) -> CUresult => launch::plain, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchGrid(f: CUfunction, grid_width: c_int, grid_height: c_int) -> CUresult => launch::grid, is_open;
    /// Waits for the slice's lease where compute time is shared; never while the stream is captured.
    cuda cuLaunchGridAsync(f: CUfunction, grid_width: c_int, grid_height: c_int, h_stream: CUstream) -> CUresult => launch::grid_async, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyAsync_ptsz(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_in, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyHtoDAsync_v2_ptsz(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_in_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_out, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyDtoHAsync_v2_ptsz(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_out_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyDtoDAsync_v2_ptsz(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyPeerAsync(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_peer, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyPeerAsync_ptsz(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream) -> CUresult => launch::copy_peer_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy2DAsync_v2(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream) -> CUresult => launch::copy_2d, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy2DAsync_v2_ptsz(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream) -> CUresult => launch::copy_2d_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DAsync_v2(p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream) -> CUresult => launch::copy_3d, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DAsync_v2_ptsz(p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream) -> CUresult => launch::copy_3d_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DPeerAsync(p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream) -> CUresult => launch::copy_3d_peer, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DPeerAsync_ptsz(p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream) -> CUresult => launch::copy_3d_peer_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyBatchAsync(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, h_stream: CUstream) -> CUresult => launch::copies, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyBatchAsync_ptsz(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, h_stream: CUstream) -> CUresult => launch::copies_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, h_stream: CUstream) -> CUresult => launch::copies_v2, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyBatchAsync_v2_ptsz(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, h_stream: CUstream) -> CUresult => launch::copies_v2_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DBatchAsync(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::copies_3d, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DBatchAsync_ptsz(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::copies_3d_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DBatchAsync_v2(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::copies_3d_v2, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DBatchAsync_v2_ptsz(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::copies_3d_v2_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyWithAttributesAsync(dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, h_stream: CUstream) -> CUresult => launch::copy_with, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyWithAttributesAsync_ptsz(dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, h_stream: CUstream) -> CUresult => launch::copy_with_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DWithAttributesAsync(op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::copy_3d_with, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpy3DWithAttributesAsync_ptsz(op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::copy_3d_with_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyHtoAAsync_v2(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, h_stream: CUstream) -> CUresult => launch::array_in, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyHtoAAsync_v2_ptsz(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, h_stream: CUstream) -> CUresult => launch::array_in_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyAtoHAsync_v2(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, h_stream: CUstream) -> CUresult => launch::array_out, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemcpyAtoHAsync_v2_ptsz(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, h_stream: CUstream) -> CUresult => launch::array_out_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemPrefetchAsync_v2(dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, h_stream: CUstream) -> CUresult => launch::prefetch, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream) -> CUresult => launch::prefetch_v1, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemPrefetchAsync_ptsz(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream) -> CUresult => launch::prefetch_v1_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::prefetches, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemPrefetchBatchAsync_ptsz(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::prefetches_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemDiscardAndPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::prefetches, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemDiscardAndPrefetchBatchAsync_ptsz(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) -> CUresult => launch::prefetches_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemPrefetchAsync_v2_ptsz(dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, h_stream: CUstream) -> CUresult => launch::prefetch_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD8Async(dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream) -> CUresult => launch::fill_8, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD8Async_ptsz(dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream) -> CUresult => launch::fill_8_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD16Async(dst_device: CUdeviceptr, us: c_ushort, n: usize, h_stream: CUstream) -> CUresult => launch::fill_16, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD16Async_ptsz(dst_device: CUdeviceptr, us: c_ushort, n: usize, h_stream: CUstream) -> CUresult => launch::fill_16_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD32Async(dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream) -> CUresult => launch::fill_32, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD32Async_ptsz(dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream) -> CUresult => launch::fill_32_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD2D8Async(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize, h_stream: CUstream) -> CUresult => launch::fill_2d_8, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD2D8Async_ptsz(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize, h_stream: CUstream) -> CUresult => launch::fill_2d_8_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD2D16Async(dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize, h_stream: CUstream) -> CUresult => launch::fill_2d_16, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD2D16Async_ptsz(dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize, h_stream: CUstream) -> CUresult => launch::fill_2d_16_ptsz, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD2D32Async(dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize, h_stream: CUstream) -> CUresult => launch::fill_2d_32, is_open;
    /// Waits for the slice's lease, like a launch.
    cuda cuMemsetD2D32Async_ptsz(dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize, h_stream: CUstream) -> CUresult => launch::fill_2d_32_ptsz, is_open;
    /// Records that streams of this process may be captured.
    cuda cuStreamBeginCapture(h_stream: CUstream) -> CUresult => stream::begin_capture;
    /// Records that streams of this process may be captured.
    cuda cuStreamBeginCapture_ptsz(h_stream: CUstream) -> CUresult => stream::begin_capture;
    /// Records that streams of this process may be captured.
    cuda cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode) -> CUresult => stream::begin_capture_v2;
    /// Records that streams of this process may be captured.
    cuda cuStreamBeginCapture_v2_ptsz(h_stream: CUstream, mode: CUstreamCaptureMode) -> CUresult => stream::begin_capture_v2;
    /// Records that streams of this process may be captured.
    cuda cuStreamBeginCaptureToGraph(h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode) -> CUresult => stream::begin_capture_to_graph;
    /// Records that streams of this process may be captured.
    cuda cuStreamBeginCaptureToGraph_ptsz(h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode) -> CUresult => stream::begin_capture_to_graph;
    /// Never waits for a lease; while leases are in use, records the finished work when it returns.
    cuda cuCtxSynchronize() -> CUresult => synchronise::context;
    /// Never waits for a lease; while leases are in use, records the finished work when it returns. Afterwards, brings the charges of pools up to date.
    cuda cuCtxSynchronize_v2(ctx: CUcontext) -> CUresult => synchronise::context_v2;
    /// Never waits for a lease; while leases are in use, records the finished work when it returns. Afterwards, brings the charges of pools up to date.
    cuda cuStreamSynchronize(h_stream: CUstream) -> CUresult => synchronise::stream;
    /// Never waits for a lease; while leases are in use, records the finished work when it returns. Afterwards, brings the charges of pools up to date.
    cuda cuStreamSynchronize_ptsz(h_stream: CUstream) -> CUresult => synchronise::stream_ptsz;
    /// Never waits for a lease; while leases are in use, records the finished work when it returns. Afterwards, brings the charges of pools up to date.
    cuda cuEventSynchronize(h_event: CUevent) -> CUresult => synchronise::event;
    /// Translates the numbers in `CUDA_VISIBLE_DEVICES` into UUIDs of the job's GPUs, while the driver initialises.
    cuda cuInit(flags: c_uint) -> CUresult => visible_devices::init;
    /// Charges the cost of a context, if the call creates one.
    cuda cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult => context::primary_retain;
    /// Ends the charge of the context and of its allocations, if the context is gone.
    cuda cuDevicePrimaryCtxRelease(dev: CUdevice) -> CUresult => context::primary_end;
    /// Ends the charge of the context and of its allocations, if the context is gone.
    cuda cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult => context::primary_end;
    /// Ends the charge of the context and of its allocations, if the context is gone.
    cuda cuDevicePrimaryCtxReset(dev: CUdevice) -> CUresult => context::primary_end;
    /// Ends the charge of the context and of its allocations, if the context is gone.
    cuda cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CUresult => context::primary_end;
    /// Charges the cost of a context, if the call creates one.
    cuda cuCtxCreate(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) -> CUresult => context::create;
    /// Charges the cost of a context, if the call creates one.
    cuda cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) -> CUresult => context::create;
    /// Charges the cost of a context, if the call creates one.
    cuda cuCtxCreate_v3(pctx: *mut CUcontext, params: *mut CUexecAffinityParam, count: c_int, flags: c_uint, dev: CUdevice) -> CUresult => context::create_v3;
    /// Charges the cost of a context, if the call creates one.
    cuda cuCtxCreate_v4(pctx: *mut CUcontext, params: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice) -> CUresult => context::create_v4;
    /// Ends the charge of the context and of its allocations.
    cuda cuCtxDestroy(ctx: CUcontext) -> CUresult => context::destroy;
    /// Ends the charge of the context and of its allocations.
    cuda cuCtxDestroy_v2(ctx: CUcontext) -> CUresult => context::destroy;
    /// Charges the cost of the device's primary context, if the call creates it.
    cuda cuGreenCtxCreate(context: *mut CUgreenCtx, of: CUdevResourceDesc, dev: CUdevice, flags: c_uint) -> CUresult => context::create_green;
    /// Ends the charge of the primary context and of its allocations, if the context is gone.
    cuda cuGreenCtxDestroy(context: CUgreenCtx) -> CUresult => context::destroy_green;
    /// Counts one more use of the context.
    cuda cuCtxAttach(pctx: *mut CUcontext, flags: c_uint) -> CUresult => context::attach;
    /// Ends the charge of the context and of its allocations, with its last use.
    cuda cuCtxDetach(ctx: CUcontext) -> CUresult => context::detach;
    /// Shows the slice: total is the limit, free is the largest possible allocation.
    cuda cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> CUresult => info::mem_get_info_v1;
    /// Shows the slice: total is the limit, free is the largest possible allocation.
    cuda cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult => info::mem_get_info;
    /// Shows the limit.
    cuda cuDeviceTotalMem(bytes: *mut c_uint, dev: CUdevice) -> CUresult => info::total_mem_v1;
    /// Shows the limit.
    cuda cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> CUresult => info::total_mem;
    /// Returns the hook if the driver returns a hooked function.
    cuda cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: cuuint64_t) -> CUresult => procaddress::ask;
    /// Returns the hook if the driver returns a hooked function.
    cuda cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: cuuint64_t, status: *mut CUdriverProcAddressQueryResult) -> CUresult => procaddress::ask_v2;
    /// Shows the slice on its own GPUs.
    nvml nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t => nvml::memory::memory;
    /// Shows the slice on its own GPUs.
    nvml nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> nvmlReturn_t => nvml::memory::memory_v2;
    /// Shows the slice on its own GPUs.
    nvml nvmlDeviceGetConfComputeProtectedMemoryUsage(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t => nvml::memory::memory;
    /// Lists the slice's processes, with their charge.
    nvml nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t => lists::compute;
    /// Lists the slice's processes, with their charge.
    nvml nvmlDeviceGetComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t => lists::compute;
    /// Lists the slice's processes, with their charge.
    nvml nvmlDeviceGetComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t) -> nvmlReturn_t => lists::compute;
    /// Lists the slice's processes, with their charge.
    nvml nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, list: *mut nvmlProcessDetailList_t) -> nvmlReturn_t => lists::details;
    /// Lists the slice's processes that the driver lists, with their charge.
    nvml nvmlDeviceGetGraphicsRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t => lists::others;
    /// Lists the slice's processes that the driver lists, with their charge.
    nvml nvmlDeviceGetGraphicsRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t => lists::others;
    /// Lists the slice's processes that the driver lists, with their charge.
    nvml nvmlDeviceGetGraphicsRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t) -> nvmlReturn_t => lists::others;
    /// Lists the slice's processes that the driver lists, with their charge.
    nvml nvmlDeviceGetMPSComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t => lists::others;
    /// Lists the slice's processes that the driver lists, with their charge.
    nvml nvmlDeviceGetMPSComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t => lists::others;
    /// Lists the slice's processes that the driver lists, with their charge.
    nvml nvmlDeviceGetMPSComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t) -> nvmlReturn_t => lists::others;
    /// Shows the slice's processes.
    nvml nvmlDeviceGetProcessUtilization(device: nvmlDevice_t, samples: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, last_seen: c_ulonglong) -> nvmlReturn_t => lists::utilization;
    /// Shows the slice's processes.
    nvml nvmlDeviceGetProcessesUtilizationInfo(device: nvmlDevice_t, info: *mut nvmlProcessesUtilizationInfo_t) -> nvmlReturn_t => lists::utilization_info;
    /// Shows the slice's processes.
    nvml nvmlDeviceGetEncoderSessions(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlEncoderSessionInfo_t) -> nvmlReturn_t => lists::others;
    /// Shows the slice's processes.
    nvml nvmlDeviceGetFBCSessions(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlFBCSessionInfo_t) -> nvmlReturn_t => lists::others;
    /// Shows the slice's processes.
    nvml nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint) -> nvmlReturn_t => accounting::pids;
    /// Answers for the slice's processes, with their highest charge; other processes are not found.
    nvml nvmlDeviceGetAccountingStats(device: nvmlDevice_t, pid: c_uint, stats: *mut nvmlAccountingStats_t) -> nvmlReturn_t => accounting::stats;
    /// Answers for the slice's processes, with their highest charge; other processes are not found.
    nvml nvmlDeviceGetAccountingStats_v2(device: nvmlDevice_t, stats: *mut nvmlAccountingStats_v2_t) -> nvmlReturn_t => accounting::stats_v2;
    /// Answers for the slice's processes; other processes are not found.
    nvml nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) -> nvmlReturn_t => accounting::process_name;
    /// Returns the private table of nvidia-smi, with the slice's process lists.
    nvml nvmlInternalGetExportTable(table: *mut *const c_void, id: *const c_void) -> nvmlReturn_t => smi::export_table;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlComputeInstanceDestroy(compute_instance: nvmlComputeInstance_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceClearAccountingPids(device: nvmlDevice_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceClearEccErrorCounts(device: nvmlDevice_t, counter_type: nvmlEccCounterType_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceClearFieldValues(device: nvmlDevice_t, values_count: c_int, values: *mut nvmlFieldValue_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceCreateGpuInstance(device: nvmlDevice_t, profile_id: c_uint, gpu_instance: *mut nvmlGpuInstance_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceCreateGpuInstanceWithPlacement(device: nvmlDevice_t, profile_id: c_uint, placement: *const nvmlGpuInstancePlacement_t, gpu_instance: *mut nvmlGpuInstance_t) -> nvmlReturn_t => denied::set4;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceDiscoverGpus(pci_info: *mut nvmlPciInfo_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceFreezeNvLinkUtilizationCounter(device: nvmlDevice_t, link: c_uint, counter: c_uint, freeze: nvmlEnableState_t) -> nvmlReturn_t => denied::set4;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceLockNvlinkRemapTable_v1(device: nvmlDevice_t, remap_table_lock_info: *mut nvmlNvlinkLockRemapTable_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceModifyDrainState(pci_info: *mut nvmlPciInfo_t, new_state: nvmlEnableState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDevicePowerSmoothingActivatePresetProfile(device: nvmlDevice_t, profile: *mut nvmlPowerSmoothingProfile_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDevicePowerSmoothingSetState(device: nvmlDevice_t, state: *mut nvmlPowerSmoothingState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDevicePowerSmoothingUpdatePresetProfileParam(device: nvmlDevice_t, profile: *mut nvmlPowerSmoothingProfile_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceReadWritePRM_v1(device: nvmlDevice_t, buffer: *mut nvmlPRMTLV_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceRemoveGpu(pci_info: *mut nvmlPciInfo_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceRemoveGpu_v2(pci_info: *mut nvmlPciInfo_t, gpu_state: nvmlDetachGpuState_t, link_state: nvmlPcieLinkState_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceResetApplicationsClocks(device: nvmlDevice_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceResetGpuLockedClocks(device: nvmlDevice_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceResetMemoryLockedClocks(device: nvmlDevice_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceResetNvLinkErrorCounters(device: nvmlDevice_t, link: c_uint) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceResetNvLinkUtilizationCounter(device: nvmlDevice_t, link: c_uint, counter: c_uint) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetAPIRestriction(device: nvmlDevice_t, api_type: nvmlRestrictedAPI_t, is_restricted: nvmlEnableState_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetAccountingMode(device: nvmlDevice_t, mode: nvmlEnableState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetAdaptiveTgpMode_v1(device: nvmlDevice_t, mode: nvmlEnableState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetApplicationsClocks(device: nvmlDevice_t, mem_clock_mhz: c_uint, graphics_clock_mhz: c_uint) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetAutoBoostedClocksEnabled(device: nvmlDevice_t, enabled: nvmlEnableState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetClockOffsets(device: nvmlDevice_t, info: *mut nvmlClockOffset_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: nvmlComputeMode_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetConfComputeUnprotectedMemSize(device: nvmlDevice_t, size_kib: c_ulonglong) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetDefaultAutoBoostedClocksEnabled(device: nvmlDevice_t, enabled: nvmlEnableState_t, flags: c_uint) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetDefaultFanSpeed_v2(device: nvmlDevice_t, fan: c_uint) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetDramEncryptionMode(device: nvmlDevice_t, dram_encryption: *const nvmlDramEncryptionInfo_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetDriverModel(device: nvmlDevice_t, driver_model: nvmlDriverModel_t, flags: c_uint) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetEccMode(device: nvmlDevice_t, ecc: nvmlEnableState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetFanControlPolicy(device: nvmlDevice_t, fan: c_uint, policy: nvmlFanControlPolicy_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetFanSpeed_v2(device: nvmlDevice_t, fan: c_uint, speed: c_uint) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetGpcClkVfOffset(device: nvmlDevice_t, offset: c_int) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetGpuLockedClocks(device: nvmlDevice_t, min_gpu_clock_mhz: c_uint, max_gpu_clock_mhz: c_uint) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetGpuOperationMode(device: nvmlDevice_t, mode: nvmlGpuOperationMode_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetHostname_v1(device: nvmlDevice_t, hostname: *mut nvmlHostname_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetMemClkVfOffset(device: nvmlDevice_t, offset: c_int) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetMemoryLimits_v1(device: nvmlDevice_t, limits: *mut nvmlSetMemoryLimits_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetMemoryLockedClocks(device: nvmlDevice_t, min_mem_clock_mhz: c_uint, max_mem_clock_mhz: c_uint) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, activation_status: *mut nvmlReturn_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetNvLinkDeviceLowPowerThreshold(device: nvmlDevice_t, info: *mut nvmlNvLinkPowerThres_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetNvLinkUtilizationControl(device: nvmlDevice_t, link: c_uint, counter: c_uint, control: *mut nvmlNvLinkUtilizationControl_t, reset: c_uint) -> nvmlReturn_t => denied::set5;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetNvlinkBwMode(device: nvmlDevice_t, set_bw_mode: *mut nvmlNvlinkSetBwMode_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetNvlinkBwModeAsync_v1(device: nvmlDevice_t, set_bw_mode_async: *mut nvmlNvlinkSetBwModeAsync_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetNvlinkNvleReady_v1(device: nvmlDevice_t, set_nvle_ready: *mut nvmlNvlinkSetNvleReady_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetPersistenceMode(device: nvmlDevice_t, mode: nvmlEnableState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetPowerManagementLimit(device: nvmlDevice_t, limit: c_uint) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetPowerManagementLimit_v2(device: nvmlDevice_t, power_value: *mut nvmlPowerValue_v2_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetPowerMizerMode_v1(device: nvmlDevice_t, power_mizer_mode: *mut nvmlDevicePowerMizerModes_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetTemperatureThreshold(device: nvmlDevice_t, threshold_type: nvmlTemperatureThresholds_t, temp: *mut c_int) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetVgpuCapabilities(device: nvmlDevice_t, capability: nvmlDeviceVgpuCapability_t, state: nvmlEnableState_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetVgpuHeterogeneousMode(device: nvmlDevice_t, heterogeneous_mode: *const nvmlVgpuHeterogeneousMode_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetVgpuSchedulerState(device: nvmlDevice_t, scheduler_state: *mut nvmlVgpuSchedulerSetState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetVgpuSchedulerState_v2(device: nvmlDevice_t, scheduler_state: *mut nvmlVgpuSchedulerState_v2_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetVirtualizationMode(device: nvmlDevice_t, virtual_mode: nvmlGpuVirtualizationMode_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceSetupNvlinkNvleEncryptionKey_v1(device: nvmlDevice_t, encryption_key: *mut nvmlNvlinkSetupNvleEncryptionKey_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceVgpuForceGspUnload(device: nvmlDevice_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(device: nvmlDevice_t, requested_profiles: *mut nvmlWorkloadPowerProfileRequestedProfiles_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(device: nvmlDevice_t, requested_profiles: *mut nvmlWorkloadPowerProfileRequestedProfiles_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(device: nvmlDevice_t, update_profiles: *mut nvmlWorkloadPowerProfileUpdateProfiles_v1_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlGpmSetStreamingEnabled(device: nvmlDevice_t, state: c_uint) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlGpuInstanceCreateComputeInstance(gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, compute_instance: *mut nvmlComputeInstance_t) -> nvmlReturn_t => denied::set3;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlGpuInstanceCreateComputeInstanceWithPlacement(gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, placement: *const nvmlComputeInstancePlacement_t, compute_instance: *mut nvmlComputeInstance_t) -> nvmlReturn_t => denied::set4;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlGpuInstanceDestroy(gpu_instance: nvmlGpuInstance_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlGpuInstanceSetVgpuHeterogeneousMode(gpu_instance: nvmlGpuInstance_t, heterogeneous_mode: *const nvmlVgpuHeterogeneousMode_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlGpuInstanceSetVgpuSchedulerState(gpu_instance: nvmlGpuInstance_t, scheduler: *mut nvmlVgpuSchedulerState_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlGpuInstanceSetVgpuSchedulerState_v2(gpu_instance: nvmlGpuInstance_t, scheduler_state: *mut nvmlVgpuSchedulerState_v2_t) -> nvmlReturn_t => denied::set2;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlSetVgpuVersion(vgpu_version: *mut nvmlVgpuVersion_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlSystemSetConfComputeGpusReadyState(is_accepting_work: c_uint) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlSystemSetConfComputeKeyRotationThresholdInfo(threshold: *mut nvmlConfComputeSetKeyRotationThresholdInfo_t) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlSystemSetNvlinkBwMode(nvlink_bw_mode: c_uint) -> nvmlReturn_t => denied::set1;
    /// Refused: NVML_ERROR_NO_PERMISSION.
    nvml nvmlUnitSetLedState(unit: nvmlUnit_t, color: nvmlLedColor_t) -> nvmlReturn_t => denied::set2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    use crate::page;

    /// The table as the page shows it; neighbours that do the same share a line.
    fn as_markdown() -> String {
        let mut lines: Vec<(String, &str)> = Vec::new();
        for hook in HOOKS {
            let name = format!("`{}`", hook.real.name.to_string_lossy());
            match lines.last_mut() {
                Some((names, does)) if *does == hook.does => *names = format!("{names}, {name}"),
                _ => lines.push((name, hook.does)),
            }
        }
        let rows = lines
            .iter()
            .map(|(names, does)| format!("| {names} | {} |\n", does.trim()));
        format!(
            "| function | action of the hook |\n|---|---|\n{}",
            rows.collect::<String>()
        )
    }

    #[test]
    fn the_reference_page_lists_exactly_these_hooks() {
        page::holds("crates/shim/src/table.rs", &as_markdown());
    }

    #[test]
    fn no_function_is_hooked_twice() {
        let names: HashSet<_> = HOOKS.iter().map(|hook| hook.real.name).collect();
        assert_eq!(names.len(), HOOKS.len());
    }

    #[test]
    fn every_hooked_function_is_one_that_the_driver_exports() {
        for hook in HOOKS {
            let name = hook.real.name.to_str().unwrap();
            let exported = sys::symbols::CUDA.contains(&name) || sys::symbols::NVML.contains(&name);
            assert!(exported, "{name}");
        }
    }
}
