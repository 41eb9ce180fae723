//! What calls cost, in nanoseconds.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Instant;

use divvy_driver::sys::cuda::*;
use serde_json::{Value, json};

use crate::Answer;
use crate::gpu::{Failure, Gpu, NotAvailable, cu};

const MIB: usize = 1 << 20;
const STREAM: CUstream = std::ptr::null_mut();

/// Median and 99th percentile of `times` goes, and the mean.
fn timed(times: usize, mut go: impl FnMut() -> Result<(), Failure>) -> Result<Value, Failure> {
    for _ in 0..times / 10 {
        go()?;
    }
    let mut each = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        go()?;
        each.push(u64::try_from(start.elapsed().as_nanos())?);
    }
    each.sort_unstable();
    let mean = each.iter().sum::<u64>() / times as u64;
    Ok(json!({
        "p50_ns": each[times / 2],
        "p99_ns": each[times * 99 / 100],
        "mean_ns": mean,
        "times": times,
    }))
}

pub fn calls() -> Answer {
    calls_of(&Gpu::with_context()?)
}

/// Where a job that has the wrapper finds the driver itself.
const BEHIND: &str = "/run/divvy-job/libcuda_real.so.1";
/// Enough for quartiles; each takes a second or two on a GPU.
const ROUNDS: usize = 9;

/// The limiter and the driver behind it by turns, in one process: another process has another layout of memory, and
/// its calls may cost another time for that alone.
pub fn turns() -> Answer {
    let limited = Gpu::with_context()?;
    if !Path::new(BEHIND).exists() {
        return Err(NotAvailable(format!("not in a slice with the wrapper: no {BEHIND}")).into());
    }
    let bare = Gpu::behind(&limited, Path::new(BEHIND))?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        rounds.push(if round % 2 == 0 {
            let without = calls_of(&bare)?;
            (without, calls_of(&limited)?)
        } else {
            let with = calls_of(&limited)?;
            (calls_of(&bare)?, with)
        });
    }
    let names = rounds[0].0.as_object().into_iter().flatten();
    let rows = names.map(|(name, _)| {
        let medians = rounds.iter().map(|(without, with)| {
            let median = |side: &Value| side[name]["p50_ns"].as_i64().unwrap_or_default();
            (median(without), median(with))
        });
        let (without, with): (Vec<i64>, Vec<i64>) = medians.unzip();
        let added = with
            .iter()
            .zip(&without)
            .map(|(with, without)| with - without);
        let row = json!({
            "without_ns": quartiles(without.clone()),
            "with_ns": quartiles(with.clone()),
            "added_ns": quartiles(added.collect()),
        });
        (name.clone(), row)
    });
    let rows: serde_json::Map<String, Value> = rows.collect();
    Ok(
        json!({"rounds": ROUNDS, "of": "the rounds' medians: quartile, median, quartile", "calls": rows}),
    )
}

fn quartiles(mut figures: Vec<i64>) -> [i64; 3] {
    figures.sort_unstable();
    let last = figures.len().saturating_sub(1);
    [1, 2, 3].map(|quarter| figures[last * quarter / 4])
}

fn calls_of(gpu: &Gpu) -> Answer {
    let kernel = gpu.kernel()?;
    let pair = |bytes: usize| {
        timed(1000, || {
            let address = gpu.alloc(bytes)?;
            gpu.release(address)
        })
    };
    let stream_pair = timed(1000, || {
        let mut address = 0;
        cu!(gpu, cuMemAllocAsync(&raw mut address, 2 * MIB, STREAM))?;
        cu!(gpu, cuMemFreeAsync(address, STREAM))
    })?;
    gpu.synchronize()?;
    let held = gpu.alloc(2 * MIB)?;
    let mut pool = std::ptr::null_mut();
    cu!(gpu, cuDeviceGetDefaultMemPool(&raw mut pool, gpu.device))?;
    let (get_attribute, get_device, get_context, get_pointer, launch) = (
        cu!(gpu, cuMemPoolGetAttribute),
        cu!(gpu, cuCtxGetDevice),
        cu!(gpu, cuCtxGetCurrent),
        cu!(gpu, cuPointerGetAttribute),
        cu!(gpu, cuLaunchKernel),
    );
    let mut bytes = 0u64;
    let (mut device, mut context) = (0, std::ptr::null_mut());
    let check = crate::gpu::check;
    let clock = timed(10_000, || Ok(()))?;
    let pool_attribute = timed(10_000, || {
        let attribute = CUmemPool_attribute::RESERVED_MEM_CURRENT;
        // SAFETY: a pool of ours; writes one number.
        check("", unsafe {
            get_attribute(pool, attribute, (&raw mut bytes).cast())
        })
    })?;
    let ctx_device = timed(10_000, || {
        // SAFETY: writes one ordinal.
        check("", unsafe { get_device(&raw mut device) })
    })?;
    let ctx_current = timed(10_000, || {
        // SAFETY: writes one handle.
        check("", unsafe { get_context(&raw mut context) })
    })?;
    let pointer = timed(10_000, || {
        let attribute = CUpointer_attribute::CONTEXT;
        // SAFETY: an address of ours; writes one handle.
        check("", unsafe {
            get_pointer((&raw mut context).cast(), attribute, held)
        })
    })?;
    let none = std::ptr::null_mut();
    let mut launched = 0;
    let launches = timed(4096, || {
        launched += 1;
        if launched % 256 == 0 {
            gpu.synchronize()?;
        }
        // SAFETY: a kernel of ours without parameters.
        check("cuLaunchKernel", unsafe {
            launch(kernel, 1, 1, 1, 1, 1, 1, 0, STREAM, none, none.cast())
        })
    })?;
    gpu.synchronize()?;
    gpu.release(held)?;
    Ok(json!({
        "clock": clock,
        "cuMemAlloc+cuMemFree 512 B": pair(512)?,
        "cuMemAlloc+cuMemFree 2 MiB": pair(2 * MIB)?,
        "cuMemAlloc+cuMemFree 64 MiB": pair(64 * MIB)?,
        "cuMemAllocAsync+cuMemFreeAsync 2 MiB": stream_pair,
        "cuMemGetInfo": timed(10_000, || gpu.free().map(drop))?,
        "cuMemPoolGetAttribute": pool_attribute,
        "cuCtxGetDevice": ctx_device,
        "cuCtxGetCurrent": ctx_current,
        "cuPointerGetAttribute": pointer,
        "cuLaunchKernel": launches,
    }))
}

pub fn events() -> Answer {
    let gpu = Gpu::with_context()?;
    let kernel = gpu.kernel()?;
    let (mut first, mut second) = (std::ptr::null_mut(), std::ptr::null_mut());
    cu!(gpu, cuEventCreate(&raw mut first, 0))?;
    cu!(gpu, cuEventCreate(&raw mut second, 0))?;
    let record = timed(2000, || {
        cu!(gpu, cuEventRecord(first, STREAM))?;
        cu!(gpu, cuEventRecord(second, STREAM))
    })?;
    gpu.launch(kernel)?;
    gpu.synchronize()?;
    let query = timed(10_000, || cu!(gpu, cuEventQuery(second)))?;
    let mut ms = 0f32;
    let elapsed = timed(10_000, || {
        cu!(gpu, cuEventElapsedTime(&raw mut ms, first, second))
    })?;
    let around = timed(2000, || {
        cu!(gpu, cuEventRecord(first, STREAM))?;
        gpu.launch(kernel)?;
        cu!(gpu, cuEventRecord(second, STREAM))?;
        cu!(gpu, cuEventSynchronize(second))
    })?;
    Ok(json!({
        "record a pair": record,
        "query": query,
        "elapsed time": elapsed,
        "record, launch, record, wait": around,
        "futex round trip": futex()?,
    }))
}

/// Two threads that wake each other by turns.
fn futex() -> Result<Value, Failure> {
    /// Enough turns that single late wakes disappear in the mean, and less than a second of time.
    const TIMES: u32 = 5000;
    let word = AtomicU32::new(0);
    let turn = |mine: u32, times: u32| {
        for _ in 0..times {
            while word.load(SeqCst) % 2 != mine {
                wait(&word, word.load(SeqCst), mine);
            }
            word.fetch_add(1, SeqCst);
            wake(&word);
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| turn(1, TIMES));
        turn(0, TIMES);
    });
    let each = start.elapsed().as_nanos() / u128::from(TIMES);
    Ok(json!({"mean_ns": u64::try_from(each)?, "times": TIMES}))
}

fn wait(word: &AtomicU32, seen: u32, mine: u32) {
    if seen % 2 != mine {
        // SAFETY: a word of ours, no time limit.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                seen,
                std::ptr::null::<libc::timespec>(),
            );
        }
    }
}

fn wake(word: &AtomicU32) {
    // SAFETY: a word of ours; wakes one thread at most.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        );
    }
}
