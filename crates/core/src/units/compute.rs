//! How the compute time of a shared GPU is divided.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a slice takes part in the division of its GPU's compute time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// By weight while others want the GPU; idle time goes to whoever asks.
    #[default]
    Fair,
    /// Never more than its share, even on an idle GPU.
    Strict,
    /// Not divided: the driver's own time-slicing.
    None,
}

impl ComputeMode {
    /// The word for it on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Strict => "strict",
            Self::None => "none",
        }
    }
}

impl fmt::Display for ComputeMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for ComputeMode {
    type Err = ComputeModeError;

    fn from_str(text: &str) -> Result<Self, ComputeModeError> {
        [Self::Fair, Self::Strict, Self::None]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| ComputeModeError(text.to_owned()))
    }
}

/// The word is not a compute mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a compute mode")]
pub struct ComputeModeError(String);

impl ComputeModeError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "write fair, strict or none".to_owned()
    }
}
