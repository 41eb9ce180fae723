//! How pools of stream-ordered memory grow and shrink.

use divvy_driver::sys::cuda::*;
use serde_json::{Value, json};

use crate::Answer;
use crate::gpu::{Failure, Gpu, NotAvailable, cu, grew};

const MIB: usize = 1 << 20;
const GIB: i64 = 1 << 30;
const STREAM: CUstream = std::ptr::null_mut();

/// What one allocation from a new pool makes it reserve.
const SIZES: [usize; 9] = [
    1,
    MIB,
    2 * MIB,
    3 * MIB,
    31 * MIB,
    32 * MIB,
    33 * MIB,
    65 * MIB,
    100 * MIB,
];

struct Pool<'a> {
    gpu: &'a Gpu,
    pool: CUmemoryPool,
}

impl<'a> Pool<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self, Failure> {
        let mut pool = std::ptr::null_mut();
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::PINNED,
            location: CUmemLocation {
                type_: CUmemLocationType::DEVICE,
                id: gpu.device,
            },
            ..Default::default()
        };
        cu!(gpu, cuMemPoolCreate(&raw mut pool, &raw const properties))?;
        Ok(Self { gpu, pool })
    }

    fn take(&self, bytes: usize) -> Result<CUdeviceptr, Failure> {
        let mut address = 0;
        cu!(
            self.gpu,
            cuMemAllocFromPoolAsync(&raw mut address, bytes, self.pool, STREAM)
        )?;
        Ok(address)
    }

    fn give(&self, address: CUdeviceptr) -> Result<(), Failure> {
        cu!(self.gpu, cuMemFreeAsync(address, STREAM))
    }

    fn reserved(&self) -> Result<u64, Failure> {
        let mut bytes = 0u64;
        cu!(
            self.gpu,
            cuMemPoolGetAttribute(
                self.pool,
                CUmemPool_attribute::RESERVED_MEM_CURRENT,
                (&raw mut bytes).cast()
            )
        )?;
        Ok(bytes)
    }

    /// Keeps so many freed bytes.
    fn keep(&self, mut bytes: u64) -> Result<(), Failure> {
        cu!(
            self.gpu,
            cuMemPoolSetAttribute(
                self.pool,
                CUmemPool_attribute::RELEASE_THRESHOLD,
                (&raw mut bytes).cast()
            )
        )
    }

    fn destroy(self) -> Result<(), Failure> {
        cu!(self.gpu, cuMemPoolDestroy(self.pool))
    }
}

pub fn segments() -> Answer {
    let gpu = Gpu::with_context()?;
    let mut first = Vec::new();
    for size in SIZES {
        let before = gpu.used()?;
        let pool = Pool::new(&gpu)?;
        let address = pool.take(size)?;
        let reserved = pool.reserved()?;
        let after = gpu.used()?;
        pool.give(address)?;
        gpu.synchronize()?;
        first.push(json!({"asked": size, "reserved": reserved, "taken": grew(before, after)}));
        pool.destroy()?;
    }
    Ok(json!({ "first": first, "growth": growth(&gpu)?, "kept": kept(&gpu)? }))
}

/// Reserved bytes each time they change, while a pool is asked for 1 MiB after 1 MiB.
fn growth(gpu: &Gpu) -> Answer {
    let pool = Pool::new(gpu)?;
    let (mut held, mut steps) = (Vec::new(), Vec::<Value>::new());
    let mut last = 0;
    for count in 1..=160u32 {
        held.push(pool.take(MIB)?);
        let reserved = pool.reserved()?;
        if reserved != last {
            steps.push(json!({"allocations": count, "reserved": reserved}));
            last = reserved;
        }
    }
    for address in held {
        pool.give(address)?;
    }
    let freed = pool.reserved()?;
    gpu.synchronize()?;
    let synchronized = pool.reserved()?;
    pool.destroy()?;
    Ok(json!({"of": MIB, "steps": steps, "freed": freed, "synchronized": synchronized}))
}

/// What stays reserved with the highest threshold, and what trimming leaves.
fn kept(gpu: &Gpu) -> Answer {
    let pool = Pool::new(gpu)?;
    pool.keep(u64::MAX)?;
    let address = pool.take(100 * MIB)?;
    let taken = pool.reserved()?;
    pool.give(address)?;
    gpu.synchronize()?;
    let synchronized = pool.reserved()?;
    cu!(gpu, cuMemPoolTrimTo(pool.pool, 0))?;
    let trimmed = pool.reserved()?;
    pool.destroy()?;
    Ok(json!({"taken": taken, "synchronized": synchronized, "trimmed": trimmed}))
}

/// Fills the GPU with memory that a pool only caches, and asks for more by `cuMemAlloc`. Not where others would suffer.
pub fn reclaim() -> Answer {
    let gpu = Gpu::with_context()?;
    let others = gpu.others()?;
    if others > 0 {
        return Err(NotAvailable(format!("{others} other processes use this GPU")).into());
    }
    let pool = Pool::new(&gpu)?;
    pool.keep(u64::MAX)?;
    let free = gpu.free()?;
    let cached = usize::try_from(free - GIB)?;
    let address = pool.take(cached)?;
    pool.give(address)?;
    gpu.synchronize()?;
    let (kept, left) = (pool.reserved()?, gpu.free()?);
    let wanted = usize::try_from(2 * GIB)?;
    let asked = gpu.alloc(wanted);
    let after = pool.reserved()?;
    let given = asked.is_ok();
    if let Ok(address) = asked {
        gpu.release(address)?;
    }
    cu!(gpu, cuMemPoolTrimTo(pool.pool, 0))?;
    pool.destroy()?;
    Ok(json!({
        "free_before": free,
        "cached": kept,
        "free_then": left,
        "asked": wanted,
        "given": given,
        "cached_after": after,
    }))
}
