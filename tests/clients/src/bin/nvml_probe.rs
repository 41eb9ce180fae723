//! An NVML program over `nvml-wrapper`: what each GPU has, uses and runs.

use std::io::{self, BufRead};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use divvy_clients::say::say;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use serde_json::{Value, json};

#[derive(Parser)]
#[command(about = "An NVML program over nvml-wrapper")]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Every GPU with its memory and its processes, once
    Show,
    /// The same for each line on stdin, with the most that was used on each GPU since the line before
    Watch,
}

fn main() -> Result<()> {
    let nvml = Nvml::init()?;
    match Cli::parse().command {
        Verb::Show => say(&json!({ "gpus": gpus(&nvml)? }))?,
        Verb::Watch => watch(&nvml)?,
    }
    Ok(())
}

fn gpus(nvml: &Nvml) -> Result<Vec<Value>> {
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        let processes: Vec<Value> = device
            .running_compute_processes()?
            .into_iter()
            .map(|process| {
                let used = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                };
                json!({"pid": process.pid, "used_bytes": used})
            })
            .collect();
        gpus.push(json!({
            "index": index,
            "uuid": device.uuid()?,
            "name": device.name()?,
            "total_bytes": memory.total,
            "reserved_bytes": memory.reserved,
            "used_bytes": memory.used,
            "free_bytes": memory.free,
            "processes": processes,
            "power_milliwatts": device.power_usage().ok(),
            "energy_millijoules": device.total_energy_consumption().ok(),
        }));
    }
    Ok(gpus)
}

fn watch(nvml: &Nvml) -> Result<()> {
    let devices = (0..nvml.device_count()?)
        .map(|index| nvml.device_by_index(index))
        .collect::<Result<Vec<_>, _>>()?;
    let peaks = Mutex::new(vec![0_u64; devices.len()]);
    let stop = AtomicBool::new(false);
    let sample = || -> Result<()> {
        for (place, device) in devices.iter().enumerate() {
            let used = device.memory_info()?.used;
            let mut peaks = peaks
                .lock()
                .expect("no thread panics while it holds the peaks");
            peaks[place] = peaks[place].max(used);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let sampler = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                sample()?;
                thread::yield_now();
            }
            Ok(())
        });
        let answered = answer(nvml, &peaks);
        stop.store(true, Ordering::Relaxed);
        sampler
            .join()
            .expect("the sampler returns its errors")
            .context("sample NVML")?;
        answered
    })
}

fn answer(nvml: &Nvml, peaks: &Mutex<Vec<u64>>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        line?;
        let gpus = gpus(nvml)?;
        let peaks = std::mem::replace(
            &mut *peaks
                .lock()
                .expect("no thread panics while it holds the peaks"),
            gpus.iter()
                .map(|gpu| gpu["used_bytes"].as_u64().unwrap_or(0))
                .collect(),
        );
        say(&json!({"gpus": gpus, "peak_used_bytes": peaks}))?;
    }
    Ok(())
}
