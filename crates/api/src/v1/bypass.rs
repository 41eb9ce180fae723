//! Bypasses: GPU memory that a job's process holds without the limiter's knowledge.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A bypass by one process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Bypass {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub pid: u32,
    /// Name of the program as the kernel reports it (at most 15 bytes).
    pub program: String,
    pub kind: BypassWay,
    /// The cause in words, with what the daemon found about the limiter.
    pub cause: String,
    /// Largest memory of the process according to the driver, in bytes. Absent if the driver does not report it.
    pub memory_driver_bytes: Option<u64>,
    /// Memory of the process according to the slice's ledger at that time, in bytes.
    pub memory_charged_bytes: u64,
    /// First observation of the bypass. Both times come from the same monotonic clock.
    pub first_seen_at: Timestamp,
    /// Second observation, at which the daemon reported the bypass.
    pub detected_at: Timestamp,
    /// Time from which the daemon no longer observed the bypass.
    pub ended_at: Option<Timestamp>,
    pub action: BypassAction,
}

/// Kind of a bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BypassWay {
    /// The process has no slot in its slice's ledger: the limiter is not loaded, or is switched off.
    Unlimited,
    /// The process uses a GPU that its job does not hold.
    OtherGpu,
    /// The ledger reports much less than the driver for the process.
    Understated,
    /// The slice holds more than it was granted, whatever limit its control file contains.
    Overdrawn,
    /// It has left the control group in which the driver limits its job.
    Escaped,
}

/// Action of the daemon on a bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BypassAction {
    /// The daemon reported the bypass, and counts its memory against the slice.
    Warned,
    /// The limiter refuses further allocations of the slice while the bypass lasts.
    Denied,
    /// The daemon killed the process, and its job with it. Of a claim, it killed the process alone.
    Killed,
}
