//! GPU health: what the daemon counts of a GPU, to find faults.

use std::collections::BTreeMap;

use divvy_core::JobId;
use divvy_driver::sys::cuda::CUresult;
use divvy_ledger::ContextCounts;

use crate::gpu::health::DriverHealth;
use crate::host::clock::Instant;

/// Jobs in a row that fail to make a context before a GPU is tested. One may have failed by itself; each further one is
/// a job lost to a sick GPU. One alone would test a GPU for a program's own fault.
const FAILURES: usize = 2;

/// Results of a first context that a program, its limit or its container does not cause (cuda.h, `CUresult`). Others,
/// as invalid values, missing memory or a library of another version, say nothing about the GPU.
pub(in crate::controller) const FAULTS: &[CUresult] = &[
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
    pub(in crate::controller) failing: Vec<(JobId, u32)>,
    /// The code of the last failure.
    pub(in crate::controller) code: u32,
    /// Users whose jobs' failures a probe has refuted, and until when.
    pub(in crate::controller) refuted: BTreeMap<u32, Instant>,
    pub(in crate::controller) probe: Probe,
    /// What the driver last counted of its errors.
    pub(in crate::controller) health: Option<DriverHealth>,
    /// A fault that the driver reports for good, and that no probe disproves.
    pub(in crate::controller) lasting: Option<String>,
}

#[derive(Default)]
pub(in crate::controller) enum Probe {
    #[default]
    None,
    /// Its outcome decides whether the GPU goes out of service at all.
    Suspect,
    Running,
    At(Instant),
}

impl GpuWatch {
    /// Takes in what became of a job's contexts since the last look. Whether the GPU is to be tested.
    pub(in crate::controller) fn note(
        &mut self,
        job: JobId,
        user: u32,
        before: ContextCounts,
        seen: ContextCounts,
    ) -> bool {
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
    pub(in crate::controller) fn describe(&self) -> String {
        let jobs = self.failing.iter().map(|(job, _)| format!("#{job}"));
        let jobs = jobs.collect::<Vec<_>>().join(" and ");
        let code = CUresult(self.code);
        format!("jobs {jobs} could not make a context: {code:?}")
    }
}
