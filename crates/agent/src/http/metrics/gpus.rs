//! Metrics of GPUs and of their MIG instances.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::v1::Gpu;

use super::daemon_stats::lasted;
use super::{Family, Page, family, ratio, to_json_word};

/// A metric of a GPU, and how it is read.
type OfGpu = (&'static str, &'static str, fn(&Gpu) -> Option<String>);

const OF_GPUS: &[OfGpu] = &[
    (
        "divvy_gpu_memory_total_bytes",
        "Memory of the GPU, in bytes.",
        |gpu| Some(gpu.memory_total_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_reserved_bytes",
        "GPU memory that the driver reserves for itself, in bytes.",
        |gpu| {
            let reserved = gpu
                .memory_total_bytes
                .saturating_sub(gpu.memory_usable_bytes);
            Some(reserved.to_string())
        },
    ),
    (
        "divvy_gpu_memory_used_bytes",
        "GPU memory in use according to the driver, in bytes.",
        |gpu| Some(gpu.memory_used_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_allocated_bytes",
        "GPU memory allocated to slices, in bytes.",
        |gpu| Some(gpu.memory_allocated_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_unmanaged_bytes",
        "GPU memory in use outside any slice or beyond a slice's limit, in bytes.",
        |gpu| Some(gpu.memory_unmanaged_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_unlisted_bytes",
        "GPU memory in use that the driver lists for no process and no slice explains, in bytes.",
        |gpu| Some(gpu.memory_unlisted_bytes.to_string()),
    ),
    (
        "divvy_gpu_share_allocated_ratio",
        "Part of the GPU's compute time that is allocated to slices, from 0 to 1.",
        |gpu| Some(ratio(u64::from(gpu.share_allocated), 3)),
    ),
    (
        "divvy_gpu_sm_utilization_ratio",
        "Part of the time in which a kernel ran according to the driver, from 0 to 1.",
        |gpu| Some(ratio(u64::from(gpu.utilization_percent?), 2)),
    ),
    (
        "divvy_gpu_temperature_celsius",
        "Temperature of the GPU, in degrees Celsius.",
        |gpu| Some(gpu.temperature_celsius?.to_string()),
    ),
    (
        "divvy_gpu_bypass_processes",
        "Processes of jobs that hold memory of this GPU bypassing the limiter.",
        |gpu| Some(gpu.bypass_pids.len().to_string()),
    ),
];

/// Of a GPU, as dcgm-exporter spells them.
fn labels(page: &Page, gpu: &Gpu) -> Vec<(&'static str, String)> {
    let bus = page.gpu_facts.buses.get(&gpu.index).cloned();
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
    let mut info = family(
        "divvy_gpu_info",
        "gauge",
        "A GPU that the daemon serves; always 1.",
    );
    let mut health = family(
        "divvy_gpu_health",
        "gauge",
        "1 if the GPU responds and has no known fault, else 0.",
    );
    let mut watts = family(
        "divvy_gpu_power_watts",
        "gauge",
        "Power draw of the board, in watts.",
    );
    let mut joules = family(
        "divvy_gpu_energy_joules_total",
        "counter",
        "Energy that the board has drawn since the driver was loaded, in joules.",
    );
    let mut counted = family(
        "divvy_gpu_energy_counted_joules_total",
        "counter",
        "Energy of the GPU since Divvy first read it: of jobs and idle together, in joules.",
    );
    let mut idle = family(
        "divvy_gpu_energy_idle_joules_total",
        "counter",
        "The part of the counted energy that no job was charged, in joules.",
    );
    for gpu in &page.gpus {
        if let Some(sums) = page.gpu_time.gpus.get(&gpu.uuid) {
            counted.sample(labels(page, gpu), ratio(sums.counted, 3));
            idle.sample(labels(page, gpu), ratio(sums.idle, 3));
        }
        let mut labelled = labels(page, gpu);
        labelled.push(("mode", gpu.mode.clone()));
        info.sample(labelled, 1);
        health.sample(
            labels(page, gpu),
            u8::from(!page.gpu_facts.faulty.contains(&gpu.index)),
        );
        let power = page
            .gpu_facts
            .power
            .get(&gpu.index)
            .copied()
            .unwrap_or_default();
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
    [info, health, watts, joules, counted, idle]
        .into_iter()
        .chain(OF_GPUS.iter().map(read))
        .collect()
}

pub(super) fn about_instances(page: &Page) -> Vec<Family> {
    let mut instances = family(
        "divvy_mig_instances",
        "gauge",
        "MIG instances of a GPU, by profile and state.",
    );
    let mut info = family(
        "divvy_mig_instance_info",
        "gauge",
        "A MIG instance that Divvy created, and the job that holds it; always 1.",
    );
    for gpu in &page.gpus {
        let mut counts = BTreeMap::<(String, String), u64>::new();
        for instance in gpu.mig.iter().flat_map(|mig| &mig.instances) {
            let key = (instance.profile.clone(), to_json_word(instance.state));
            *counts.entry(key).or_default() += 1;
            let made = instance.uuid.as_ref();
            if let Some((uuid, id)) =
                made.and_then(|uuid| Some((uuid, page.gpu_facts.instances.get(uuid)?)))
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
        "Changes to MIG instances, by kind of change.",
    );
    let mut seconds = family(
        "divvy_mig_change_seconds_total",
        "counter",
        "Total duration of changes to MIG instances, in seconds.",
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
        changes.sample(labels(), done.count);
        let took = u64::try_from(done.total.as_millis()).unwrap_or(u64::MAX);
        seconds.sample(labels(), ratio(took, 3));
    }
    let mut results = family(
        "divvy_mig_reconfigurations_total",
        "counter",
        "Attempts to create or destroy a MIG instance, by result.",
    );
    let mut took = family(
        "divvy_mig_reconfiguration_duration_seconds",
        "summary",
        "Seconds that it took to create or destroy a MIG instance.",
    );
    let changed = [counts.created, counts.destroyed, counts.reclaimed];
    let done: u64 = changed.iter().map(|done| done.count).sum();
    for (result, count) in [
        ("done", done),
        (
            "refused",
            page.daemon_stats.counted.event_count("mig_create_failed"),
        ),
        ("quarantined", counts.quarantined.count),
    ] {
        results.sample(vec![("result", result.to_owned())], count);
    }
    let all: Duration = changed.iter().map(|done| done.total).sum();
    took.suffixed("_sum", Vec::new(), lasted(all));
    took.suffixed("_count", Vec::new(), done);
    vec![changes, seconds, results, took]
}
