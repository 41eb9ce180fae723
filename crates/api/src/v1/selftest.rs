//! What `divvy selftest` found: a program of a slice of its own tried to take more than the slice may have.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LimiterForm;

/// One GPU's self-test.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Selftest {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub model: String,
    pub driver_version: String,
    /// `13.0`
    pub cuda_version: String,
    /// Set when the GPU is simulated: `a100-80gb:3`.
    pub simulated: Option<String>,
    /// Of Divvy.
    pub version: String,
    pub at: Timestamp,
    /// Whether a daemon placed the slice; without one it was placed as `run --no-daemon` does.
    pub daemon: bool,
    /// The slice's limit, which every check tried to pass.
    pub memory_limit_bytes: u64,
    /// What held the limit: `interposer`, or `mig` where it was the driver, to an instance.
    pub enforcement: String,
    /// How the limiter got into the programs; absent where it did not.
    pub form: Option<LimiterForm>,
    /// Whether no check failed.
    pub passed: bool,
    pub checks: Vec<SelftestCheck>,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SelftestCheck {
    pub kind: SelftestKind,
    /// The function, the view or the lookup.
    pub name: String,
    pub result: SelftestResult,
    /// Most bytes that were held at once.
    pub got_bytes: Option<u64>,
    /// Why, where the result alone does not say.
    pub detail: String,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SelftestKind {
    /// A function that takes memory.
    Memory,
    /// All of them, found in another way.
    Lookup,
    /// Several processes at once.
    Race,
    /// What the driver says about memory.
    View,
}

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SelftestResult {
    /// Memory was refused at the limit.
    Enforced,
    /// More than the limit was given.
    NotEnforced,
    /// The view shows the slice.
    Agrees,
    /// It shows something else.
    Differs,
    /// This driver or this GPU does not offer it.
    NotAvailable,
    /// It could not be tried, or went wrong in another way.
    Failed,
}

impl SelftestResult {
    /// Whether a check that came to this is a reason to fail.
    pub fn is_failure(self) -> bool {
        match self {
            Self::Enforced | Self::Agrees | Self::NotAvailable => false,
            Self::NotEnforced | Self::Differs | Self::Failed => true,
        }
    }
}
