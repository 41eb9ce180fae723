//! The health of a GPU as its driver tells it: bad memory and Xid events, and which of them keep jobs away.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use divvy_api::sync::lock;
use divvy_core::GpuUuid;
use divvy_driver::Error;
use divvy_driver::nvml::Device;
pub use divvy_driver::nvml::health::RemappedRows;

use crate::host::clock::Instant;
use crate::host::error::error_chain;

/// A GPU's errors are asked for no more often: the driver may take long to read them, and they seldom change.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// The most Xid events of one observation. A faulty program can raise them without end. So the first ones are kept,
/// which name the cause; all would fill the journal.
pub const MAX_XIDS: usize = 64;

/// What the driver counts of a GPU's errors; `None` for what this GPU does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverHealth {
    /// Since the driver was loaded or the GPU was reset.
    pub uncorrected_ecc: Option<u64>,
    pub remapped: Option<RemappedRows>,
}

/// The driver reported an error of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuXid {
    pub gpu: GpuUuid,
    pub xid: u64,
}

/// The Xid events that keep jobs away from a GPU, with NVIDIA's words: the GPU needs a reset, or its memory is bad.
///
/// Source: NVIDIA, "Xid Errors", Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Its immediate
/// action stands behind each; all rows with such an action are here but 109, a context switch that took too long.
/// NVIDIA's device plugin for Kubernetes takes 109 for an error of a program (internal/rm/health.go), which any user can
/// write.
const CRITICAL: [(u64, &str); 15] = [
    (46, "GPU stopped processing"), // RESET_GPU
    // WORKFLOW_XID_48. NVIDIA's "Health Validation" (reference, Xid checks) drains and resets the GPU.
    (48, "double-bit ECC error"),
    (62, "internal micro-controller halt"), // RESET_GPU
    (64, "GPU memory remapping failure"),   // RESET_GPU
    (79, "GPU has fallen off the bus"),     // RESTART_BM
    (95, "uncontained memory error"),       // RESET_GPU
    (110, "security fault error"),          // RESET_GPU
    (119, "GSP RPC timeout"),               // RESET_GPU
    (120, "GSP error"),                     // RESET_GPU
    (136, "link training failed"),          // RESET_GPU
    (140, "unrecovered ECC error"),         // RESET_GPU
    (143, "GPU initialization error"),      // RESET_GPU
    (155, "NVLink software-defined error"), // RESET_GPU
    (156, "resource retirement event"),     // RESET_GPU
    (158, "GPU fatal timeout"),             // RESET_GPU
];

/// What a critical Xid means; `None` for one that comes from a program, or needs no reset.
pub fn critical_xid(xid: u64) -> Option<&'static str> {
    let found = CRITICAL.iter().find(|(critical, _)| *critical == xid);
    found.map(|(_, words)| *words)
}

/// Uncorrected memory errors since `before`, in words. An unknown count has not grown.
pub fn new_errors(before: &DriverHealth, now: &DriverHealth) -> Option<String> {
    let (before, now) = (before.uncorrected_ecc?, now.uncorrected_ecc?);
    // A lower count began anew.
    match now.checked_sub(before).unwrap_or(now) {
        0 => None,
        1 => Some("1 uncorrected memory error".to_owned()),
        errors => Some(format!("{errors} uncorrected memory errors")),
    }
}

/// A fault that stays until the board is replaced.
///
/// A pending remap is none: "new workloads can be launched" (NVIDIA, "GPU Memory Error Management", Error Recovery and
/// Response Flags). A failed one is: NVIDIA replaces such a board (RMA Policy Thresholds for Row-Remapping).
pub fn lasting_fault(now: &DriverHealth) -> Option<&'static str> {
    let rows = now.remapped.filter(|rows| rows.has_failed);
    rows.map(|_| "a failed remap of a memory row")
}

/// The last answer of each GPU, and when it was asked.
#[derive(Debug, Default)]
pub struct HealthReader(Mutex<BTreeMap<GpuUuid, (Instant, DriverHealth)>>);

impl HealthReader {
    /// The GPU's errors: asked `now`, or within [`INTERVAL`] before. A failed question leaves the last answer.
    pub fn read(&self, device: &Device<'_>, gpu: &GpuUuid, now: Instant) -> DriverHealth {
        let last = lock(&self.0).get(gpu).cloned();
        let mut health = match last {
            Some((at, health)) if now.saturating_duration_since(at) < INTERVAL => return health,
            Some((_, health)) => health,
            None => DriverHealth::default(),
        };
        if let Err(error) = health.ask(device) {
            let error = error_chain(&error);
            tracing::debug!(%gpu, error, "the driver does not tell a GPU's errors");
        }
        lock(&self.0).insert(gpu.clone(), (now, health.clone()));
        health
    }
}

impl DriverHealth {
    fn ask(&mut self, device: &Device<'_>) -> Result<(), Error> {
        self.uncorrected_ecc = device.uncorrected_ecc_errors()?;
        self.remapped = device.remapped_rows()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_xid_of_a_gpu_that_needs_a_reset_is_critical_and_no_other() {
        for (xid, words) in [
            (46, "GPU stopped processing"),
            (48, "double-bit ECC error"),
            (62, "internal micro-controller halt"),
            (64, "GPU memory remapping failure"),
            (79, "GPU has fallen off the bus"),
            (95, "uncontained memory error"),
            (110, "security fault error"),
            (119, "GSP RPC timeout"),
            (120, "GSP error"),
            (136, "link training failed"),
            (140, "unrecovered ECC error"),
            (143, "GPU initialization error"),
            (155, "NVLink software-defined error"),
            (156, "resource retirement event"),
            (158, "GPU fatal timeout"),
        ] {
            assert_eq!(critical_xid(xid), Some(words), "{xid}");
        }
        let critical = (0..1000).filter(|xid| critical_xid(*xid).is_some());
        assert_eq!(critical.count(), 15);
        for (xid, action) in [
            (13, "RESTART_APP: graphics engine exception"),
            (31, "RESTART_APP: GPU memory page fault"),
            (32, "RESTART_APP: corrupted push buffer stream"),
            (43, "IGNORE: a program's work was stopped"),
            (45, "IGNORE: cleanup after another Xid"),
            (63, "IGNORE: a row is to be remapped"),
            (68, "RESTART_APP: NVDEC0 exception"),
            (69, "RESTART_APP: graphics engine class error"),
            (74, "WORKFLOW_NVLINK_ERR: a link, perhaps of its peer"),
            (92, "IGNORE: high rate of corrected errors"),
            (94, "RESTART_APP: contained memory error"),
            (109, "an error of a program for the device plugin"),
            (154, "informational, of another Xid"),
            (999, "unknown to NVML"),
        ] {
            assert_eq!(critical_xid(xid), None, "{xid}: {action}");
        }
    }

    #[test]
    fn memory_errors_of_a_gpu_are_a_fault_once_they_grow() {
        let ecc = |count| DriverHealth {
            uncorrected_ecc: count,
            remapped: None,
        };
        let said = |before, now| new_errors(&ecc(before), &ecc(now));
        assert_eq!(said(Some(3), Some(3)), None);
        let one = Some("1 uncorrected memory error".to_owned());
        assert_eq!(said(Some(3), Some(4)), one);
        let two = Some("2 uncorrected memory errors".to_owned());
        assert_eq!(said(Some(0), Some(2)), two);
        assert_eq!(said(Some(7), Some(2)), two, "counted anew since a reset");
        assert_eq!(said(None, Some(2)), None, "they may be old");
        assert_eq!(said(Some(2), None), None);
    }

    #[test]
    fn a_failed_remap_of_a_memory_row_is_a_lasting_fault_and_a_pending_one_is_none() {
        let rows = |is_pending, has_failed| DriverHealth {
            uncorrected_ecc: Some(0),
            remapped: Some(RemappedRows {
                uncorrectable: 1,
                is_pending,
                has_failed,
            }),
        };
        assert_eq!(lasting_fault(&rows(true, false)), None);
        let words = Some("a failed remap of a memory row");
        assert_eq!(lasting_fault(&rows(true, true)), words);
    }
}
