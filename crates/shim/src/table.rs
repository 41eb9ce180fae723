//! Every function that is hooked, and what hooking it does. A function that is not listed keeps the driver's own address.
//!
//! `docs/enforcement.md` is made from this table; a test keeps the two alike.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use divvy_driver::sys;
use divvy_driver::sys::cuda::*;
use divvy_driver::sys::nvml::*;

use crate::charge::{graph, memory, stream_ordered, vmm};
use crate::context;
use crate::route::hook::hooks;
use crate::route::procaddress;
use crate::view::{info, nvml};

/// What a hook answers when this driver has no such function, by library.
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
    /// Gives back what the address was charged; an unknown address just goes to the driver.
    cuda cuMemFree(dptr: CUdeviceptr_v1) -> CUresult => memory::free_v1;
    /// Gives back what the address was charged; an unknown address just goes to the driver.
    cuda cuMemFree_v2(dptr: CUdeviceptr) -> CUresult => memory::free;
    /// Charges the device that the location names, with or without a context; host memory is not charged.
    cuda cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong) -> CUresult => vmm::create;
    /// Drops one reference; gives back what has neither references nor mappings.
    cuda cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult => vmm::release;
    /// Counts one more reference.
    cuda cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) -> CUresult => vmm::retain;
    /// Counts one more mapping.
    cuda cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) -> CUresult => vmm::map;
    /// Drops the mappings in the range; gives back what has neither references nor mappings.
    cuda cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult => vmm::unmap;
    /// Charges what the pool reserves, on the stream's device; nothing while the stream is captured.
    cuda cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, stream: CUstream) -> CUresult => stream_ordered::alloc;
    /// Charges what the pool reserves, on the stream's device; nothing while the stream is captured.
    cuda cuMemAllocAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, stream: CUstream) -> CUresult => stream_ordered::alloc_ptsz;
    /// Charges what the pool reserves, on the pool's device; nothing while the stream is captured.
    cuda cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, stream: CUstream) -> CUresult => stream_ordered::alloc_from;
    /// Charges what the pool reserves, on the pool's device; nothing while the stream is captured.
    cuda cuMemAllocFromPoolAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, stream: CUstream) -> CUresult => stream_ordered::alloc_from_ptsz;
    /// Settles the pool's charge with what the driver still reserves.
    cuda cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream) -> CUresult => memory::free_async;
    /// Settles the pool's charge with what the driver still reserves.
    cuda cuMemFreeAsync_ptsz(dptr: CUdeviceptr, stream: CUstream) -> CUresult => memory::free_async;
    /// Remembers where the pool's memory is.
    cuda cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps) -> CUresult => stream_ordered::create;
    /// Gives back the pool's charge, with its last allocation if there are any.
    cuda cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult => stream_ordered::destroy;
    /// Settles the pool's charge with what the driver still reserves.
    cuda cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult => stream_ordered::trim_to;
    /// Finds out what the graph's memory nodes can take; refuses those on a GPU that is not in the slice.
    cuda cuGraphInstantiate(exec: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut c_char, size: usize) -> CUresult => graph::instantiate_with_log;
    /// Finds out what the graph's memory nodes can take; refuses those on a GPU that is not in the slice.
    cuda cuGraphInstantiate_v2(exec: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut c_char, size: usize) -> CUresult => graph::instantiate_with_log;
    /// Finds out what the graph's memory nodes can take; refuses those on a GPU that is not in the slice.
    cuda cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> CUresult => graph::instantiate;
    /// Likewise; where it uploads the graph as well, charges as an upload does.
    cuda cuGraphInstantiateWithParams(exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) -> CUresult => graph::instantiate_with_params;
    /// Likewise; where it uploads the graph as well, charges as an upload does.
    cuda cuGraphInstantiateWithParams_ptsz(exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) -> CUresult => graph::instantiate_with_params_ptsz;
    /// Charges what the driver reserves for the graph's memory nodes; nothing for graphs without, or while the stream is captured.
    cuda cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::upload;
    /// Charges what the driver reserves for the graph's memory nodes; nothing for graphs without, or while the stream is captured.
    cuda cuGraphUpload_ptsz(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::upload_ptsz;
    /// Charges what the driver reserves for the graph's memory nodes; nothing for graphs without, or while the stream is captured.
    cuda cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::launch;
    /// Charges what the driver reserves for the graph's memory nodes; nothing for graphs without, or while the stream is captured.
    cuda cuGraphLaunch_ptsz(exec: CUgraphExec, stream: CUstream) -> CUresult => graph::launch_ptsz;
    /// Finds out again what a graph with memory nodes can take.
    cuda cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, outcome: *mut CUgraphExecUpdateResult) -> CUresult => graph::update;
    /// Finds out again what a graph with memory nodes can take.
    cuda cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, outcome: *mut CUgraphExecUpdateResultInfo) -> CUresult => graph::update_v2;
    /// Settles the charge of graph memory with what the driver still reserves.
    cuda cuGraphExecDestroy(exec: CUgraphExec) -> CUresult => graph::destroy;
    /// Settles the charge of graph memory with what the driver still reserves.
    cuda cuDeviceGraphMemTrim(device: CUdevice) -> CUresult => graph::trim;
    /// Charges what a context costs, if this makes one.
    cuda cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult => context::primary_retain;
    /// Gives back the context's cost and what was allocated in it, if it is gone.
    cuda cuDevicePrimaryCtxRelease(dev: CUdevice) -> CUresult => context::primary_end;
    /// Gives back the context's cost and what was allocated in it, if it is gone.
    cuda cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult => context::primary_end;
    /// Gives back the context's cost and what was allocated in it, if it is gone.
    cuda cuDevicePrimaryCtxReset(dev: CUdevice) -> CUresult => context::primary_end;
    /// Gives back the context's cost and what was allocated in it, if it is gone.
    cuda cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CUresult => context::primary_end;
    /// Charges what a context costs, if this makes one.
    cuda cuCtxCreate(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) -> CUresult => context::create;
    /// Charges what a context costs, if this makes one.
    cuda cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) -> CUresult => context::create;
    /// Charges what a context costs, if this makes one.
    cuda cuCtxCreate_v3(pctx: *mut CUcontext, params: *mut CUexecAffinityParam, count: c_int, flags: c_uint, dev: CUdevice) -> CUresult => context::create_v3;
    /// Charges what a context costs, if this makes one.
    cuda cuCtxCreate_v4(pctx: *mut CUcontext, params: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice) -> CUresult => context::create_v4;
    /// Gives back the context's cost and what was allocated in it.
    cuda cuCtxDestroy(ctx: CUcontext) -> CUresult => context::destroy;
    /// Gives back the context's cost and what was allocated in it.
    cuda cuCtxDestroy_v2(ctx: CUcontext) -> CUresult => context::destroy;
    /// Shows the slice: total is the limit, free what an allocation would be granted.
    cuda cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> CUresult => info::mem_get_info_v1;
    /// Shows the slice: total is the limit, free what an allocation would be granted.
    cuda cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult => info::mem_get_info;
    /// Shows the limit.
    cuda cuDeviceTotalMem(bytes: *mut c_uint, dev: CUdevice) -> CUresult => info::total_mem_v1;
    /// Shows the limit.
    cuda cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> CUresult => info::total_mem;
    /// Answers with the hook where the driver's answer is a hooked function.
    cuda cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: cuuint64_t) -> CUresult => procaddress::ask;
    /// Answers with the hook where the driver's answer is a hooked function.
    cuda cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: cuuint64_t, status: *mut CUdriverProcAddressQueryResult) -> CUresult => procaddress::ask_v2;
    /// Shows the slice on its own GPUs.
    nvml nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t => nvml::memory;
    /// Shows the slice on its own GPUs.
    nvml nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> nvmlReturn_t => nvml::memory_v2;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetGraphicsRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetGraphicsRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetGraphicsRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetMPSComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetMPSComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t => nvml::processes;
    /// Lists the slice's processes, with what they were charged.
    nvml nvmlDeviceGetMPSComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t) -> nvmlReturn_t => nvml::processes;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::path::Path;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/enforcement.md");
    const BEGIN: &str = "<!-- made from crates/shim/src/table.rs: begin -->\n";
    const END: &str = "<!-- made from crates/shim/src/table.rs: end -->\n";

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
            "| function | what the hook does |\n|---|---|\n{}",
            rows.collect::<String>()
        )
    }

    /// With `DIVVY_RECORD=1` the page is rewritten instead of compared.
    #[test]
    fn the_reference_page_lists_exactly_these_hooks() {
        let page = std::fs::read_to_string(Path::new(PAGE)).unwrap();
        let (before, rest) = page
            .split_once(BEGIN)
            .expect("the page has the first marker");
        let (listed, after) = rest.split_once(END).expect("the page has the last marker");
        let table = as_markdown();
        if std::env::var_os("DIVVY_RECORD").is_some() {
            std::fs::write(PAGE, [before, BEGIN, &table, END, after].concat()).unwrap();
        } else {
            assert_eq!(
                listed, table,
                "run this test with DIVVY_RECORD=1 to rewrite docs/enforcement.md"
            );
        }
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
