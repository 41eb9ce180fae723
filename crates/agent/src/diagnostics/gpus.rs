//! `gpus` without a daemon: the GPUs and their processes as the driver shows them.

use divvy_api::v1;
use divvy_core::{Bytes, Mode};

use crate::gpu::outside::{OutsideProcess, OutsideProcesses};
use crate::gpu::sample::listed_processes;
use crate::gpu::{Observation, ObservedGpu, Power};
use crate::host::process::Process;

/// Every GPU that responds, and those that do not, by index. Nothing manages them: their mode is `unmanaged`, and all of
/// their processes belong to no slice.
pub fn unmanaged(
    observation: &Observation,
    power: &std::collections::BTreeMap<u32, Power>,
) -> Vec<v1::Gpu> {
    let all = OutsideProcesses::default();
    let mut gpus: Vec<v1::Gpu> = (observation.gpus.iter())
        .map(|gpu| {
            let milliwatts = power.get(&gpu.index).and_then(|power| power.milliwatts);
            on_gpu(gpu, milliwatts, &all)
        })
        .collect();
    let lost = observation.troubles.iter().map(|trouble| v1::Gpu {
        problem: Some(trouble.message.clone()),
        uuid: (trouble.uuid.as_ref()).map_or_else(String::new, ToString::to_string),
        index: trouble.index,
        ..blank()
    });
    gpus.extend(lost);
    gpus.sort_by_key(|gpu| gpu.index);
    gpus
}

fn on_gpu(gpu: &ObservedGpu, milliwatts: Option<u32>, all: &OutsideProcesses) -> v1::Gpu {
    let mut pids: Vec<u32> = listed_processes(gpu).map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let processes = all.on_gpu(gpu, &pids, Process::with_pid);
    v1::Gpu {
        uuid: gpu.uuid.to_string(),
        index: gpu.index,
        model: gpu.model.clone(),
        memory_total_bytes: gpu.total.get(),
        memory_usable_bytes: gpu.total.saturating_sub(gpu.reserved).get(),
        memory_used_bytes: gpu.used.get(),
        memory_unmanaged_bytes: (processes.iter().filter_map(|process| process.used))
            .sum::<Bytes>()
            .get(),
        memory_unlisted_bytes: 0,
        memory_unlisted_holder: None,
        utilization_percent: gpu.utilization_percent,
        temperature_celsius: gpu.temperature_celsius,
        power_watts: milliwatts.map(|milliwatts| milliwatts.div_ceil(1000)),
        process_memory_known: gpu.processes.iter().all(|process| process.used.is_some()),
        processes: processes.iter().map(OutsideProcess::to_api).collect(),
        unmanaged_pids: pids,
        ..blank()
    }
}

fn blank() -> v1::Gpu {
    v1::Gpu {
        uuid: String::new(),
        index: 0,
        model: String::new(),
        mode: Mode::Unmanaged.name().to_owned(),
        memory_total_bytes: 0,
        memory_usable_bytes: 0,
        memory_allocated_bytes: 0,
        memory_used_bytes: 0,
        memory_unmanaged_bytes: 0,
        memory_unlisted_bytes: 0,
        memory_unlisted_holder: None,
        share_allocated: 0,
        utilization_percent: None,
        temperature_celsius: None,
        context_overhead_bytes: 0,
        slices: Vec::new(),
        unmanaged_pids: Vec::new(),
        enforcement: String::new(),
        enforcement_reason: None,
        process_memory_known: true,
        memory_mismatch_bytes: None,
        memory_mismatch_max_bytes: 0,
        bypass_pids: Vec::new(),
        mig: None,
        problem: None,
        lost: None,
        out_of_service: None,
        held_elsewhere: Vec::new(),
        power_watts: None,
        asleep: false,
        processes: Vec::new(),
        available: None,
    }
}
