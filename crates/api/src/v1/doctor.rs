//! What `divvy doctor` found: the machine, the installation, and what limits will hold here.

use serde::{Deserialize, Serialize};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Finding {
    /// A stable name: `driver.library`, `gpu.0.enforcement`.
    pub check: String,
    pub status: FindingStatus,
    /// What is so.
    pub found: String,
    /// What it means for jobs; empty where all is well.
    pub means: String,
    /// What to do about it; empty where nothing needs to be done.
    pub fix: String,
}

/// How well it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingStatus {
    Ok,
    /// Divvy works, and something is worse than it could be.
    Warn,
    /// Jobs cannot run, or would not be held to their limits.
    Fail,
}
