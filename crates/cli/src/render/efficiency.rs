//! The use of an ended job in one line, as Slurm's `seff` prints it: peak memory, compute time, and the next size.

use std::cmp::Ordering;

use divvy_api::v1::{Advice, Amount, Job, JobState, Joules, Usage};

use super::advice::flag;
use crate::text;

/// `12.0 of 40.0 GiB at its peak, 31 % of its compute time, 12.34 Wh; next time: --gpu-memory 13.25GiB`, as far as it is
/// known. Of a job that has not ended, or used no memory, only the energy.
///
/// `advice`: of earlier runs of the program; it names a size only from runs that were not refused memory. `usage`: the
/// GPU time of this job.
pub fn efficiency(job: &Job, advice: &[Advice], usage: Option<&Usage>) -> String {
    let energy = usage.filter(|usage| usage.energy_joules > Joules::default());
    let energy = energy.map(super::usage::energy);
    if job.state != JobState::Ended || job.slices.is_empty() {
        return energy.unwrap_or_default();
    }
    let sum = |of: fn(&divvy_api::v1::Slice) -> u64| {
        let figures = job.slices.iter().map(of);
        figures.fold(0, u64::saturating_add)
    };
    let (peak, limit) = (
        sum(|slice| slice.memory_peak_bytes),
        sum(|slice| slice.memory_limit_bytes),
    );
    if peak == 0 {
        // No process allocated GPU memory within the limit, so nothing else follows.
        return energy.unwrap_or_default();
    }
    let memory = text::memories(&[peak, limit]).replacen('/', " of ", 1);
    let compute = usage.and_then(compute_percent);
    let compute = compute.map(|percent| format!(", {percent} % of its compute time"));
    let energy = energy.map(|energy| format!(", {energy}"));
    let is_refused = job.slices.iter().any(|slice| slice.denials > 0);
    let next = match (next_size(job, advice, is_refused), is_refused) {
        (Some(flag), _) => format!("; next time: {flag}"),
        (None, true) => "; its limit refused memory, so its whole need is unknown".to_owned(),
        (None, false) => String::new(),
    };
    let (compute, energy) = (compute.unwrap_or_default(), energy.unwrap_or_default());
    format!("{memory} at its peak{compute}{energy}{next}")
}

/// The used part of the compute time that the job had, without what it used beyond its share. `None` unless at least half
/// of the time was measured: less would say little about the job.
fn compute_percent(usage: &Usage) -> Option<u64> {
    let measured = usage.allocated_gpu_ms.saturating_sub(usage.unknown_gpu_ms);
    let used = usage.used_gpu_ms.saturating_sub(usage.loaned_gpu_ms);
    let is_known = measured > 0 && measured.saturating_mul(2) >= usage.allocated_gpu_ms;
    is_known.then(|| (used.saturating_mul(100) / measured.max(1)).min(100))
}

/// The flag of a smaller size, or of a larger one for a job that was refused memory.
fn next_size(job: &Job, advice: &[Advice], is_refused: bool) -> Option<String> {
    let is_mig = matches!(job.request, Amount::Mig { .. });
    let count = u32::try_from(job.slices.len()).ok()?;
    let advice = advice.iter().find(|one| one.gpus == count && !is_mig)?;
    let limit = job.slices.iter().map(|slice| slice.memory_limit_bytes);
    let is_better = match advice.memory_bytes?.cmp(&limit.max()?) {
        Ordering::Less => !is_refused,
        Ordering::Equal => false,
        Ordering::Greater => is_refused,
    };
    (is_better && advice.amount.is_some()).then(|| flag(advice))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn job(state: &str, peak: u64, denials: u64) -> Job {
        let slice = json!({
            "label": "gpu0.5a", "gpu_uuid": "GPU-0", "gpu_index": 0, "memory_limit_bytes": 40 * GIB, "share": 500,
            "memory_used_bytes": 0, "memory_peak_bytes": peak * GIB, "denials": denials, "last_denied_bytes": null,
            "processes": 0, "enforcement": "interposer", "device_uuid": null,
        });
        let job = json!({
            "id": "12", "name": "train.py", "user": "ana", "project": null, "queue": "q", "state": state,
            "end_reason": null, "exit_code": null, "request": {"kind": "share", "thousandths": 500}, "compute": "fair",
            "slices": [slice], "reason": null, "place": null, "command": ["x"], "cwd": "/", "runner": "supervisor",
            "pid": null, "submitted_at": "2026-01-02T03:04:05Z", "started_at": null, "ended_at": null,
            "directory": "/d", "slice_directory": null,
        });
        serde_json::from_value(job).unwrap()
    }

    fn advice(gpus: u32, memory: Option<u64>) -> Advice {
        let amount = memory.map(|gib| json!({ "kind": "memory", "bytes": gib * GIB }));
        let advice = json!({
            "name": "train.py", "program": "train.py", "gpus": gpus, "runs": 1, "denied_runs": 0,
            "memory_limit_bytes": 40 * GIB, "memory_peak_median_bytes": 12 * GIB, "memory_peak_bytes": 12 * GIB,
            "memory_at_least_bytes": 12 * GIB, "memory_bytes": memory.map(|gib| gib * GIB),
            "amount": amount.unwrap_or(Value::Null), "command": ["x"],
        });
        serde_json::from_value(advice).unwrap()
    }

    fn usage(allocated: u64, used: u64, loaned: u64, unknown: u64) -> Usage {
        let usage = json!({
            "user": null, "project": null, "queue": null, "gpu_index": null, "gpu_uuid": null, "job": "12",
            "name": "train.py", "jobs": 1, "allocated_gpu_ms": allocated, "used_gpu_ms": used,
            "loaned_gpu_ms": loaned, "idle_gpu_ms": 0, "unknown_gpu_ms": unknown, "suspended_gpu_ms": 0,
            "memory_mib_s": 0,
        });
        serde_json::from_value(usage).unwrap()
    }

    fn drew(millijoules: u64) -> Usage {
        Usage {
            energy_joules: Joules::from_millijoules(millijoules),
            ..usage(0, 0, 0, 0)
        }
    }

    #[test]
    fn an_ended_job_is_told_its_use_and_a_size_only_where_both_are_known() {
        let ended = |peak, denials| job("ended", peak, denials);
        let unknown = "its limit refused memory, so its whole need is unknown";
        for (job, advice, usage, words) in [
            (ended(12, 0), vec![], None, "12.0 of 40.0 GiB at its peak".to_owned()),
            (
                ended(12, 0),
                vec![advice(2, Some(3)), advice(1, Some(14))],
                Some(usage(1000, 400, 90, 0)),
                "12.0 of 40.0 GiB at its peak, 31 % of its compute time; next time: --gpu-memory 14GiB".to_owned(),
            ),
            // Most of the time was not measured, and the size would not change.
            (
                ended(36, 0),
                vec![advice(1, Some(40))],
                Some(usage(1000, 400, 0, 600)),
                "36.0 of 40.0 GiB at its peak".to_owned(),
            ),
            // The peak of a smaller run does not bound a run that the limiter refused memory.
            (
                ended(39, 1),
                vec![advice(1, Some(14))],
                None,
                format!("39.0 of 40.0 GiB at its peak; {unknown}"),
            ),
            (ended(39, 1), vec![advice(1, None)], None, format!("39.0 of 40.0 GiB at its peak; {unknown}")),
            (
                ended(39, 1),
                vec![advice(1, Some(64))],
                None,
                "39.0 of 40.0 GiB at its peak; next time: --gpu-memory 64GiB".to_owned(),
            ),
            (ended(0, 0), vec![advice(1, Some(14))], None, String::new()),
            (ended(0, 0), vec![], Some(drew(3_600_000)), "1.00 Wh".to_owned()),
            (job("running", 12, 0), vec![], Some(drew(36_000)), "0.01 Wh".to_owned()),
            (
                ended(36, 0),
                vec![],
                Some(drew(2_000 * 3_600_000)),
                "36.0 of 40.0 GiB at its peak, 2.00 kWh".to_owned(),
            ),
            (job("running", 12, 0), vec![advice(1, Some(14))], None, String::new()),
        ] {
            assert_eq!(efficiency(&job, &advice, usage.as_ref()), words);
        }
    }
}
