//! GPU memory that a job's process held past the limiter, as the agent found it from outside.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Bypass {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub pid: u32,
    /// The program's name, as the kernel has it (at most 15 bytes).
    pub program: String,
    pub kind: BypassWay,
    /// The same in words, with what was found of the limiter.
    pub cause: String,
    /// Most that it held by the driver's account; absent where the driver does not say.
    pub memory_driver_bytes: Option<u64>,
    /// What its slice's account said of it then.
    pub memory_charged_bytes: u64,
    /// When the agent first saw it so. Both times come from one clock that nobody sets.
    pub first_seen_at: Timestamp,
    /// When it was seen so again, and was told.
    pub detected_at: Timestamp,
    /// When it was seen no more.
    pub ended_at: Option<Timestamp>,
    pub action: BypassAction,
}

/// How memory is held past the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BypassWay {
    /// The process has no slot in its slice: the limiter is not loaded, or is switched off.
    Unlimited,
    /// It uses a GPU that its job does not hold.
    OtherGpu,
    /// Its slot says much less than the driver.
    Understated,
    /// Its slice holds more than it was granted, whatever the limit says that lies in the slice.
    Overdrawn,
}

/// What was done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BypassAction {
    /// It was told, and its memory is counted against the slice.
    Warned,
    /// The slice's further allocations are refused while it lasts.
    Denied,
    /// The process was killed, and its job with it.
    Killed,
}
