//! Memory that grows without an allocation of the program's: limits of contexts, and graphs.

use divvy_driver::sys::cuda::*;
use serde_json::json;

use crate::Answer;
use crate::gpu::{Failure, Gpu, cu, grew};

const MIB: usize = 1 << 20;

/// Limits, values to try, in bytes (of a stack, for each thread).
const LIMITS: [(&str, CUlimit, &[usize]); 3] = [
    ("stack", CUlimit::STACK_SIZE, &[4 << 10, 16 << 10, 64 << 10]),
    ("printf", CUlimit::PRINTF_FIFO_SIZE, &[64 * MIB]),
    ("heap", CUlimit::MALLOC_HEAP_SIZE, &[256 * MIB]),
];

pub fn context_limits() -> Answer {
    let gpu = Gpu::with_context()?;
    let kernel = gpu.kernel()?;
    gpu.launch(kernel)?;
    gpu.synchronize()?;
    let threads = gpu.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT)?
        * gpu.attribute(CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?;
    let mut rows = Vec::new();
    for (name, limit, values) in LIMITS {
        let mut default = 0;
        cu!(gpu, cuCtxGetLimit(&raw mut default, limit))?;
        for value in values {
            let before = gpu.used()?;
            let set = cu!(gpu, cuCtxSetLimit(limit, *value));
            if let Err(error) = set {
                rows.push(json!({"limit": name, "value": value, "error": error.to_string()}));
                continue;
            }
            let after = gpu.used()?;
            gpu.launch(kernel)?;
            gpu.synchronize()?;
            let launched = gpu.used()?;
            let mut real = 0;
            cu!(gpu, cuCtxGetLimit(&raw mut real, limit))?;
            rows.push(json!({
                "limit": name,
                "default": default,
                "value": value,
                "value_after": real,
                "set": grew(before, after),
                "launched": grew(before, launched),
            }));
        }
    }
    Ok(json!({"threads_at_once": threads, "limits": rows}))
}

pub fn graph_bytes() -> Answer {
    /// Twice the 32 MiB in which pools grow, so that the graph's memory shows as more than one step.
    const SIZE: usize = 64 * MIB;
    let gpu = Gpu::with_context()?;
    let before = gpu.used()?;
    let mut graph = std::ptr::null_mut();
    cu!(gpu, cuGraphCreate(&raw mut graph, 0))?;
    let mut node = std::ptr::null_mut();
    let mut parameters = CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CUmemAllocationType::PINNED,
            location: CUmemLocation {
                type_: CUmemLocationType::DEVICE,
                id: gpu.device,
            },
            ..Default::default()
        },
        bytesize: SIZE,
        ..Default::default()
    };
    cu!(
        gpu,
        cuGraphAddMemAllocNode(
            &raw mut node,
            graph,
            std::ptr::null(),
            0,
            &raw mut parameters
        )
    )?;
    let added = (gpu.used()?, reserved(&gpu)?);
    let mut exec = std::ptr::null_mut();
    cu!(gpu, cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
    let instantiated = (gpu.used()?, reserved(&gpu)?);
    cu!(gpu, cuGraphLaunch(exec, std::ptr::null_mut()))?;
    gpu.synchronize()?;
    let launched = (gpu.used()?, reserved(&gpu)?);
    gpu.release(parameters.dptr)?;
    gpu.synchronize()?;
    let freed = (gpu.used()?, reserved(&gpu)?);
    cu!(gpu, cuGraphExecDestroy(exec))?;
    cu!(gpu, cuGraphDestroy(graph))?;
    let destroyed = (gpu.used()?, reserved(&gpu)?);
    cu!(gpu, cuDeviceGraphMemTrim(gpu.device))?;
    let trimmed = (gpu.used()?, reserved(&gpu)?);
    let row = |(used, reserved)| json!({"grew": grew(before, used), "reserved": reserved});
    Ok(json!({
        "asked": SIZE,
        "node_added": row(added),
        "instantiated": row(instantiated),
        "launched": row(launched),
        "freed": row(freed),
        "destroyed": row(destroyed),
        "trimmed": row(trimmed),
    }))
}

/// What the device's graph pool reserves.
fn reserved(gpu: &Gpu) -> Result<u64, Failure> {
    let mut bytes = 0u64;
    cu!(
        gpu,
        cuDeviceGetGraphMemAttribute(
            gpu.device,
            CUgraphMem_attribute::RESERVED_MEM_CURRENT,
            (&raw mut bytes).cast()
        )
    )?;
    Ok(bytes)
}

pub fn green_contexts() -> Answer {
    let gpu = Gpu::with_context()?;
    let before = gpu.used()?;
    let mut all = CUdevResource::default();
    cu!(
        gpu,
        cuDeviceGetDevResource(gpu.device, &raw mut all, CUdevResourceType::SM)
    )?;
    // The union's first words, for this type: multiprocessors, the least that can be split off, and in steps of how many.
    let [multiprocessors, least, step, ..] = all._oversize;
    let mut half = CUdevResource::default();
    let mut groups = 1;
    cu!(
        gpu,
        cuDevSmResourceSplitByCount(
            &raw mut half,
            &raw mut groups,
            &raw const all,
            std::ptr::null_mut(),
            0,
            multiprocessors / 2
        )
    )?;
    let mut description = std::ptr::null_mut();
    cu!(
        gpu,
        cuDevResourceGenerateDesc(&raw mut description, &raw mut half, 1)
    )?;
    let mut green = std::ptr::null_mut();
    cu!(
        gpu,
        cuGreenCtxCreate(
            &raw mut green,
            description,
            gpu.device,
            CUgreenCtxCreate_flags::DEFAULT_STREAM.0
        )
    )?;
    let created = gpu.used()?;
    let mut context = std::ptr::null_mut();
    cu!(gpu, cuCtxFromGreenCtx(&raw mut context, green))?;
    cu!(gpu, cuCtxSetCurrent(context))?;
    let address = gpu.alloc(MIB);
    let allocates = address.is_ok();
    if let Ok(address) = address {
        gpu.release(address)?;
    }
    Ok(json!({
        "multiprocessors": multiprocessors,
        "least": least,
        "step": step,
        "asked": multiprocessors / 2,
        "got": half._oversize[0],
        "grew": grew(before, created),
        "allocates_when_current": allocates,
    }))
}
