//! Doctor: findings about the machine, the installation, and the enforcement of limits.

use serde::{Deserialize, Serialize};

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Finding {
    /// Stable name of the check: `driver.library`, `gpu.0.enforcement`.
    pub check: String,
    pub status: FindingStatus,
    /// The fact that the check found.
    pub found: String,
    /// Consequence for jobs. Empty if there is none.
    pub means: String,
    /// Remedy. Empty if nothing needs to be done.
    pub fix: String,
}

/// Status of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingStatus {
    Ok,
    /// Divvy works, with a limitation.
    Warn,
    /// Jobs cannot run, or Divvy could not enforce their limits.
    Fail,
}
