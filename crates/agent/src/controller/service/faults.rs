//! Faults: GPUs on which no context can be made, or of which the driver reports an error that a job cannot cause.
//!
//! A job's word is not enough, because its processes write the ledger that counts contexts, and a program may fail by
//! itself. So the daemon asks a probe process ([`Prober`](crate::gpu::probe::Prober)):
//!
//! ```text
//! in service ── FAILURES jobs in a row ──► suspect (no job starts, probe) ── probe succeeds ──► in service
//!                                               │ probe fails                                      ▲
//! driver's error ───────────────────────────────┴──► out of service ── probe each RETRY succeeds ──┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_core::{GpuUuid, JobId, Mode};
use divvy_driver::sys::cuda::CUresult;
use divvy_ledger::ContextCounts;

use super::{bring_back, take_out};
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::slice_usage::SliceUsage;
use crate::controller::state::{GpuState, Jobs};
use crate::gpu::health::{self, DriverHealth, GpuXid};
use crate::gpu::probe::GpuProbed;
use crate::gpu::sample::NodeSample;
use crate::host::clock::{Instant, now};
use crate::journal::StoreError;
use crate::model::out_of_service::OutOfService;

/// Jobs in a row that fail to make a context before a GPU is tested. One may have failed by itself; each further one is
/// a job lost to a sick GPU. So one would test a GPU for a program's own fault.
const FAILURES: usize = 2;

/// How long after a failed probe the next one starts. A cured GPU is back within this and a probe's seconds.
const RETRY: Duration = Duration::from_secs(20);

/// How long the failures of a user's jobs count for nothing on a GPU that a probe has found to work, so that broken
/// programs cost other users one probe in this time.
const REFUTED: Duration = Duration::from_secs(600);

/// Results of a first context that a program, its limit or its container does not cause (cuda.h, `CUresult`). Others,
/// as invalid values, missing memory or a library of another version, say nothing about the GPU.
const FAULTS: &[CUresult] = &[
    CUresult::DEVICE_UNAVAILABLE,
    CUresult::MAP_FAILED,
    CUresult::ECC_UNCORRECTABLE,
    CUresult::NVLINK_UNCORRECTABLE,
    CUresult::OPERATING_SYSTEM,
    CUresult::LAUNCH_FAILED,
    CUresult::SYSTEM_NOT_READY,
    CUresult::UNKNOWN,
];

/// What the daemon watches of a GPU.
#[derive(Default)]
pub struct GpuWatch {
    /// Jobs that failed to make a context since one was made there, with their users. At most [`FAILURES`].
    failing: Vec<(JobId, u32)>,
    /// The code of the last failure.
    code: u32,
    /// Users whose jobs' failures a probe has refuted, and until when.
    refuted: BTreeMap<u32, Instant>,
    probe: Probe,
    /// What the driver last counted of its errors.
    health: Option<DriverHealth>,
    /// A fault that the driver reports for good, and that no probe disproves.
    lasting: Option<String>,
}

#[derive(Default)]
enum Probe {
    #[default]
    None,
    /// Its outcome decides whether the GPU goes out of service at all.
    Suspect,
    Running,
    At(Instant),
}

impl GpuWatch {
    /// Takes in what became of a job's contexts since the last look. Whether the GPU is to be tested.
    fn note(&mut self, job: JobId, user: u32, before: ContextCounts, seen: ContextCounts) -> bool {
        if seen.made > before.made {
            self.failing.clear();
            return false;
        }
        let is_fault = FAULTS.contains(&CUresult(seen.last_code));
        if seen.failed <= before.failed || !is_fault {
            return false;
        }
        self.refuted.retain(|_, until| *until > Instant::now());
        if self.refuted.contains_key(&user) {
            return false;
        }
        self.failing.retain(|(other, _)| *other != job);
        self.failing.push((job, user));
        self.code = seen.last_code;
        self.failing.len() >= FAILURES
    }

    /// `jobs #3 and #4 could not make a context: CUDA_ERROR_ECC_UNCORRECTABLE (214)`.
    fn describe(&self) -> String {
        let jobs = self.failing.iter().map(|(job, _)| format!("#{job}"));
        let jobs = jobs.collect::<Vec<_>>().join(" and ");
        let code = CUresult(self.code);
        format!("jobs {jobs} could not make a context: {code:?}")
    }
}

/// Looks at the contexts of all slices in a sample.
pub(in crate::controller) fn watch_contexts(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) {
    for (id, reading) in &sample.ledgers {
        if let Ok(pages) = &reading.snapshots {
            watch_job(jobs, gpus, fx, io, *id, |gpu| pages.contexts(gpu));
        }
    }
}

/// Looks at the contexts of one job's slice, by position of its GPUs.
pub(in crate::controller) fn watch_job(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    contexts: impl Fn(usize) -> ContextCounts,
) {
    let Some(active) = jobs.active.get_mut(&id) else {
        return;
    };
    let user = active.job.spec.credentials.uid;
    let grants = active.job.allocations.iter().map(|one| &one.grant.gpu);
    let grants: Vec<GpuUuid> = grants.cloned().collect();
    let Some(placed) = active.placed_mut() else {
        return;
    };
    // A job may end before the first sample of its slice.
    placed
        .slice_usage
        .resize(grants.len(), SliceUsage::default());
    for (at, (gpu, usage)) in grants.iter().zip(&mut placed.slice_usage).enumerate() {
        let seen = contexts(at);
        let before = std::mem::replace(&mut usage.contexts, seen);
        let is_in_service = |gpus: &mut GpuState| {
            let device = gpus.device_mut(gpu);
            device.is_some_and(|device| device.out.is_none())
        };
        if seen != before && is_in_service(gpus) {
            let watch = gpus.watch.entry(gpu.clone()).or_default();
            if watch.note(id, user, before, seen) {
                suspect(gpus, fx, io, gpu);
            }
        }
    }
}

/// Places nothing on a GPU until a probe has tested it. Nothing is journaled: the GPU may be sound.
fn suspect(gpus: &mut GpuState, fx: &mut Effects, io: &Io, gpu: &GpuUuid) {
    let Some(watch) = gpus.watch.get_mut(gpu) else {
        return;
    };
    watch.probe = Probe::Suspect;
    let why = format!("{}; the daemon tests it", watch.describe());
    if let Some(device) = gpus.device_mut(gpu) {
        tracing::warn!("GPU {} ({gpu}): {why}", device.gpu.index);
        device.out = Some(OutOfService::fault(why, now()));
        device.apply_mode();
        fx.replan = true;
    }
    io.prober.start(gpu.clone());
}

/// Takes GPUs out of service of which the driver reports a fault.
///
/// # Errors
/// When the journal fails.
pub(in crate::controller) fn watch_driver(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    for seen in &sample.gpus {
        let (gpu, counted) = (&seen.observed.uuid, &seen.observed.health);
        let watch = gpus.watch.entry(gpu.clone()).or_default();
        // What was counted before the first look is no news.
        let before = watch.health.replace(counted.clone());
        let before = before.unwrap_or_else(|| counted.clone());
        if let Some(fault) = health::new_errors(&before, counted) {
            fault_found(gpus, fx, io, gpu, &fault, false)?;
        }
        if let Some(fault) = health::lasting_fault(counted) {
            fault_found(gpus, fx, io, gpu, fault, true)?;
        }
    }
    for GpuXid { gpu, xid } in &sample.xids {
        match health::critical_xid(*xid) {
            Some(words) => fault_found(gpus, fx, io, gpu, &format!("{words} (Xid {xid})"), false)?,
            None => {
                tracing::info!(%gpu, xid, "the driver reports an Xid that is no fault of the GPU")
            }
        }
    }
    Ok(())
}

/// The driver reports a fault, again and again if it is lasting.
fn fault_found(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    gpu: &GpuUuid,
    fault: &str,
    is_lasting: bool,
) -> Result<(), StoreError> {
    let GpuState { devices, watch, .. } = gpus;
    let mut devices = devices.iter();
    let device = devices.find(|device| device.gpu.uuid == *gpu && device.is_managed);
    let Some(device) = device else {
        return Ok(());
    };
    let watch = watch.entry(gpu.clone()).or_default();
    if is_lasting {
        let told = [&watch.lasting, &device.accepted_fault];
        if told.iter().any(|told| told.as_deref() == Some(fault)) {
            return Ok(());
        }
        watch.lasting = Some(fault.to_owned());
    }
    tracing::warn!(
        "GPU {} ({gpu}): the driver reports {fault}",
        device.gpu.index
    );
    // An administrator's word stands, and a GPU that a probe tests needs no other.
    if device.out.is_some() {
        return Ok(());
    }
    watch.probe = Probe::At(Instant::now() + RETRY);
    let reason = format!("the driver reports {fault}");
    take_out(gpus, fx, io, gpu, OutOfService::fault(reason, now()))
}

/// Starts the probes that are due.
pub(in crate::controller) fn start_probes(gpus: &mut GpuState, io: &Io) {
    let GpuState { devices, watch, .. } = gpus;
    for device in devices.iter() {
        // A GPU in MIG mode gives no context of its own, and one that does not respond gives none.
        let can_be_probed = !device.gpu.away && device.mode.assigned != Mode::Mig;
        if !device.has_fault() || !can_be_probed {
            continue;
        }
        let watch = watch.entry(device.gpu.uuid.clone()).or_default();
        let is_due = match watch.probe {
            // An earlier daemon found the fault.
            Probe::None => true,
            Probe::At(at) => at <= Instant::now(),
            Probe::Suspect | Probe::Running => false,
        };
        if is_due && watch.lasting.is_none() {
            watch.probe = Probe::Running;
            io.prober.start(device.gpu.uuid.clone());
        }
    }
}

/// Applies the outcome of a probe.
///
/// # Errors
/// When the journal fails.
pub(in crate::controller) fn probed(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    probed: GpuProbed,
) -> Result<(), StoreError> {
    let GpuProbed { gpu, outcome } = probed;
    let has_fault = gpus.device_mut(&gpu).is_some_and(|one| one.has_fault());
    let Some(watch) = gpus.watch.get_mut(&gpu) else {
        return Ok(());
    };
    let was = std::mem::take(&mut watch.probe);
    // Else an administrator has decided meanwhile.
    if !has_fault {
        return Ok(());
    }
    let failing = watch.describe();
    match (was, outcome) {
        (Probe::Suspect, Ok(())) => {
            let until = Instant::now() + REFUTED;
            let users = std::mem::take(&mut watch.failing).into_iter();
            watch.refuted.extend(users.map(|(_, user)| (user, until)));
            if let Some(device) = gpus.device_mut(&gpu) {
                let index = device.gpu.index;
                tracing::info!("GPU {index} ({gpu}): {failing}, but the daemon's probe could");
                device.out = None;
                device.apply_mode();
                fx.replan = true;
            }
            Ok(())
        }
        (Probe::Suspect, Err(why)) => {
            watch.probe = Probe::At(Instant::now() + RETRY);
            let reason = format!("{failing}, and the daemon's probe failed too: {why}");
            take_out(gpus, fx, io, &gpu, OutOfService::fault(reason, now()))
        }
        (_, Ok(())) => bring_back(gpus, fx, io, &gpu, "as the daemon's probe made a context"),
        (_, Err(_)) => {
            watch.probe = Probe::At(Instant::now() + RETRY);
            Ok(())
        }
    }
}

/// An administrator returns a GPU to service. Where a fault kept it out, the lasting one does not count any more; where an
/// administrator had drained it, the fault takes it out at the next sample.
///
/// # Errors
/// When the journal fails.
pub(super) fn accept(gpus: &mut GpuState, io: &Io, gpu: &GpuUuid) -> Result<(), StoreError> {
    let watch = gpus.watch.get_mut(gpu);
    let fault = watch.and_then(|watch| watch.lasting.take());
    let Some(device) = gpus.device_mut(gpu) else {
        return Ok(());
    };
    if let Some(fault) = fault.filter(|_| device.has_fault()) {
        io.store.accept_fault(gpu, &fault)?;
        device.accepted_fault = Some(fault);
    }
    Ok(())
}

/// Forgets what was seen of a GPU that returns to service, but for what probes have refuted.
pub(super) fn forget(gpus: &mut GpuState, gpu: &GpuUuid) {
    if let Some(watch) = gpus.watch.get_mut(gpu) {
        watch.failing.clear();
        watch.probe = Probe::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SICK: u32 = CUresult::ECC_UNCORRECTABLE.0;

    fn counts(made: u64, failed: u64, last_code: u32) -> ContextCounts {
        ContextCounts {
            made,
            failed,
            last_code,
        }
    }

    /// Whether a GPU is tested after these jobs of users have ended with these contexts.
    fn is_tested(watch: &mut GpuWatch, ends: &[(u64, u32, ContextCounts)]) -> bool {
        let before = ContextCounts::default();
        let note = |(job, user, seen): &(u64, u32, ContextCounts)| {
            watch.note(JobId(*job), *user, before, *seen)
        };
        ends.iter()
            .map(note)
            .fold(false, |any, tested| any | tested)
    }

    #[test]
    fn a_gpu_is_tested_after_failures_of_two_jobs_in_a_row() {
        let failed = |job| (job, 1000, counts(0, 1, SICK));
        let tests = |ends: &[_]| is_tested(&mut GpuWatch::default(), ends);
        assert!(tests(&[failed(1), failed(2)]));
        assert!(!tests(&[failed(1), failed(1)]), "a job that is tried again");
        let works = (2, 1000, counts(1, 0, 0));
        assert!(!tests(&[failed(1), works, failed(3)]));
        // Of one job's processes one had a context.
        let half = (2, 1000, counts(1, 1, SICK));
        assert!(!tests(&[failed(1), half, failed(3)]));
        for code in FAULTS {
            let failed = |job| (job, 1000, counts(0, 1, code.0));
            assert!(tests(&[failed(1), failed(2)]), "{code:?}");
        }
        let of_programs = [
            CUresult::SUCCESS,
            CUresult::INVALID_VALUE,
            CUresult::OUT_OF_MEMORY,
            CUresult::NOT_INITIALIZED,
            CUresult::INVALID_DEVICE,
            CUresult::ILLEGAL_ADDRESS,
            CUresult::SYSTEM_DRIVER_MISMATCH,
        ];
        for code in of_programs {
            let failed = |job| (job, 1000, counts(0, 1, code.0));
            assert!(!tests(&[failed(1), failed(2), failed(3)]), "{code:?}");
        }
    }

    #[test]
    fn failures_that_a_probe_refuted_count_for_other_users_alone() {
        let mut watch = GpuWatch::default();
        let failed = |job, user| (job, user, counts(0, 1, SICK));
        assert!(is_tested(&mut watch, &[failed(1, 7), failed(2, 7)]));
        watch.failing.clear();
        watch.refuted.insert(7, Instant::now() + REFUTED);
        assert!(!is_tested(&mut watch, &[failed(3, 7), failed(4, 7)]));
        assert!(!is_tested(&mut watch, &[failed(5, 8)]));
        assert!(is_tested(&mut watch, &[failed(6, 8)]));
        watch.refuted.insert(7, Instant::now());
        watch.failing.clear();
        assert!(is_tested(&mut watch, &[failed(7, 7), failed(8, 7)]));
    }
}
