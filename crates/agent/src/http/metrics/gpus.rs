//! Metrics of GPUs and of the MIG instances on them.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::v1::Gpu;

use super::books::lasted;
use super::{Family, Page, family, ratio, word};

/// A metric of a GPU, and how it is read.
type OfGpu = (&'static str, &'static str, fn(&Gpu) -> Option<String>);

const OF_GPUS: &[OfGpu] = &[
    (
        "divvy_gpu_memory_total_bytes",
        "Memory of the GPU.",
        |gpu| Some(gpu.memory_total_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_reserved_bytes",
        "What the driver keeps for itself.",
        |gpu| {
            let reserved = gpu
                .memory_total_bytes
                .saturating_sub(gpu.memory_usable_bytes);
            Some(reserved.to_string())
        },
    ),
    (
        "divvy_gpu_memory_used_bytes",
        "In use, by the driver's account.",
        |gpu| Some(gpu.memory_used_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_allocated_bytes",
        "Promised to slices.",
        |gpu| Some(gpu.memory_allocated_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_unmanaged_bytes",
        "Held by no slice, or by a slice beyond its limit.",
        |gpu| Some(gpu.memory_unmanaged_bytes.to_string()),
    ),
    (
        "divvy_gpu_share_allocated_ratio",
        "Part of the GPU that is promised to slices.",
        |gpu| Some(ratio(u64::from(gpu.share_allocated), 3)),
    ),
    (
        "divvy_gpu_sm_utilization_ratio",
        "Part of the time in which a kernel was running, by the driver's account.",
        |gpu| Some(ratio(u64::from(gpu.utilization_percent?), 2)),
    ),
    ("divvy_gpu_temperature_celsius", "Of the die.", |gpu| {
        Some(gpu.temperature_celsius?.to_string())
    }),
    (
        "divvy_gpu_bypass_processes",
        "Processes of jobs that hold memory here past the limiter now.",
        |gpu| Some(gpu.bypass_pids.len().to_string()),
    ),
];

/// Of a GPU, as dcgm-exporter spells them.
fn labels(page: &Page, gpu: &Gpu) -> Vec<(&'static str, String)> {
    let bus = page.buses.get(&gpu.index).cloned();
    vec![
        ("gpu", gpu.index.to_string()),
        ("UUID", gpu.uuid.clone()),
        ("device", format!("nvidia{}", gpu.index)),
        ("modelName", gpu.model.clone()),
        ("pci_bus_id", bus.unwrap_or_default()),
        ("hostname", page.node.hostname.clone()),
    ]
}

pub(super) fn about_gpus(page: &Page) -> Vec<Family> {
    let mut info = family("divvy_gpu_info", "gauge", "A GPU that the daemon serves.");
    let mut health = family("divvy_gpu_health", "gauge", "Whether the GPU answers.");
    let mut watts = family("divvy_gpu_power_watts", "gauge", "What the board draws.");
    let mut joules = family(
        "divvy_gpu_energy_joules_total",
        "counter",
        "What it has drawn since the driver was loaded.",
    );
    for gpu in &page.gpus {
        let mut labelled = labels(page, gpu);
        labelled.push(("mode", gpu.mode.clone()));
        info.sample(labelled, 1);
        health.sample(labels(page, gpu), u8::from(!page.lost.contains(&gpu.index)));
        let power = page.power.get(&gpu.index).copied().unwrap_or_default();
        if let Some(milliwatts) = power.milliwatts {
            watts.sample(labels(page, gpu), ratio(milliwatts.into(), 3));
        }
        if let Some(millijoules) = power.millijoules {
            joules.sample(labels(page, gpu), ratio(millijoules, 3));
        }
    }
    let read = |(name, help, read): &OfGpu| {
        let mut family = family(name, "gauge", help);
        for gpu in &page.gpus {
            if let Some(value) = read(gpu) {
                family.sample(labels(page, gpu), value);
            }
        }
        family
    };
    [info, health, watts, joules]
        .into_iter()
        .chain(OF_GPUS.iter().map(read))
        .collect()
}

pub(super) fn about_instances(page: &Page) -> Vec<Family> {
    let mut instances = family(
        "divvy_mig_instances",
        "gauge",
        "MIG instances of a GPU, by profile and by what they are there for.",
    );
    let mut info = family(
        "divvy_mig_instance_info",
        "gauge",
        "A MIG instance that Divvy has made, and the job that holds it.",
    );
    for gpu in &page.gpus {
        let mut counts = BTreeMap::<(String, String), u64>::new();
        for instance in gpu.mig.iter().flat_map(|mig| &mig.instances) {
            let key = (instance.profile.clone(), word(instance.state));
            *counts.entry(key).or_default() += 1;
            let made = instance.uuid.as_ref();
            if let Some((uuid, id)) = made.and_then(|uuid| Some((uuid, page.instances.get(uuid)?)))
            {
                let mut labelled = labels(page, gpu);
                labelled.extend([
                    ("GPU_I_PROFILE", instance.profile.clone()),
                    ("GPU_I_ID", id.to_string()),
                    ("start", instance.start.to_string()),
                    ("mig_uuid", uuid.clone()),
                    ("job", instance.job.clone().unwrap_or_default()),
                ]);
                info.sample(labelled, 1);
            }
        }
        for ((profile, state), count) in counts {
            let labels = vec![
                ("gpu", gpu.index.to_string()),
                ("UUID", gpu.uuid.clone()),
                ("profile", profile),
                ("state", state),
            ];
            instances.sample(labels, count);
        }
    }
    let mut families = vec![instances, info];
    // A daemon without such GPUs says nothing of them.
    if page.gpus.iter().any(|gpu| gpu.mig.is_some()) {
        families.extend(about_changes(page));
    }
    families
}

/// What was done to instances, and how long that took.
fn about_changes(page: &Page) -> Vec<Family> {
    let mut changes = family(
        "divvy_mig_changes_total",
        "counter",
        "What was done to MIG instances.",
    );
    let mut seconds = family(
        "divvy_mig_change_seconds_total",
        "counter",
        "Time that it took altogether.",
    );
    let counts = page.migs;
    for (change, done) in [
        ("created", counts.created),
        ("reused", counts.reused),
        ("destroyed", counts.destroyed),
        ("reclaimed", counts.reclaimed),
        ("quarantined", counts.quarantined),
    ] {
        let labels = || vec![("change", change.to_owned())];
        changes.sample(labels(), done.times);
        let took = u64::try_from(done.took.as_millis()).unwrap_or(u64::MAX);
        seconds.sample(labels(), ratio(took, 3));
    }
    let mut results = family(
        "divvy_mig_reconfigurations_total",
        "counter",
        "Instances that were made or destroyed, and attempts at it, by what came of them.",
    );
    let mut took = family(
        "divvy_mig_reconfiguration_duration_seconds",
        "summary",
        "How long it took to make or destroy one.",
    );
    let changed = [counts.created, counts.destroyed, counts.reclaimed];
    let done: u64 = changed.iter().map(|done| done.times).sum();
    for (result, count) in [
        ("done", done),
        (
            "refused",
            page.books.counted.times_told("mig_create_failed"),
        ),
        ("quarantined", counts.quarantined.times),
    ] {
        results.sample(vec![("result", result.to_owned())], count);
    }
    let all: Duration = changed.iter().map(|done| done.took).sum();
    took.suffixed("_sum", Vec::new(), lasted(all));
    took.suffixed("_count", Vec::new(), done);
    vec![changes, seconds, results, took]
}
