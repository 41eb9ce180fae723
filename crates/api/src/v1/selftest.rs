//! Self-test: a program in a slice tries to exceed the slice's limits.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LimiterForm;

/// Self-test of one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Selftest {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub model: String,
    pub driver_version: String,
    /// `13.0`
    pub cuda_version: String,
    /// Model and number of simulated GPUs: `a100-80gb:3`. Absent for a real GPU.
    pub simulated: Option<String>,
    /// Version of Divvy.
    pub version: String,
    pub at: Timestamp,
    /// Whether a daemon placed the slice. Without one, it was placed as by `run --no-daemon`.
    pub daemon: bool,
    /// Memory limit of the slice in bytes, which every check tried to exceed.
    pub memory_limit_bytes: u64,
    /// Enforcement of the limit: `interposer`, or `mig` if the driver held it for an instance.
    pub enforcement: String,
    /// Form of the limiter in the programs. Absent if the limiter was not loaded.
    pub form: Option<LimiterForm>,
    /// Whether no check failed.
    pub passed: bool,
    pub checks: Vec<SelftestCheck>,
}

/// Result of `divvy selftest --park` on one GPU: memory with a pattern was parked and woken, and was what it had been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ParkTest {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub model: String,
    pub driver_version: String,
    /// As in [`Selftest`].
    pub simulated: Option<String>,
    pub at: Timestamp,
    /// Bytes of the pattern.
    pub memory_bytes: u64,
    /// Seconds of the copy to host memory, and of the copy back.
    pub park_s: f64,
    pub wake_s: f64,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SelftestCheck {
    pub kind: SelftestKind,
    /// Name of the function, view or lookup.
    pub name: String,
    pub result: SelftestResult,
    /// Largest number of bytes held at the same time.
    pub got_bytes: Option<u64>,
    /// Explanation, if the result alone is not clear.
    pub detail: String,
}

/// Subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SelftestKind {
    /// A function that allocates memory.
    Memory,
    /// All such functions, found through another lookup.
    Lookup,
    /// Several processes at the same time.
    Race,
    /// The driver's answers about memory.
    View,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SelftestResult {
    /// The limiter refused memory at the limit.
    Enforced,
    /// The program got more memory than the limit.
    NotEnforced,
    /// The view shows the slice.
    Agrees,
    /// The view shows something else.
    Differs,
    /// This driver or GPU does not offer the function.
    NotAvailable,
    /// The check could not run, or failed in another way.
    Failed,
}

impl SelftestResult {
    /// Whether this result fails the self-test.
    pub fn is_failure(self) -> bool {
        match self {
            Self::Enforced | Self::Agrees | Self::NotAvailable => false,
            Self::NotEnforced | Self::Differs | Self::Failed => true,
        }
    }
}
