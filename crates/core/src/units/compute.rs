//! Compute modes: how the compute time of a shared GPU is divided.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Share, ShareError};

/// How a slice takes part in the division of its GPU's compute time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// By weight while several tenants want the GPU; idle time goes to any tenant that asks.
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
            .ok_or_else(|| ComputeModeError::NotAMode(text.to_owned()))
    }
}

/// How a slice takes part, and with which share where it is not that of its memory: `fair`, `strict=0.25`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Compute {
    pub mode: ComputeMode,
    /// Never with [`ComputeMode::None`].
    pub share: Option<Share>,
}

impl From<ComputeMode> for Compute {
    fn from(mode: ComputeMode) -> Self {
        Self { mode, share: None }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mode.fmt(out)?;
        match self.share {
            Some(share) => write!(out, "={share}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Compute {
    type Err = ComputeModeError;

    fn from_str(text: &str) -> Result<Self, ComputeModeError> {
        let (mode, share) = match text.split_once('=') {
            Some((mode, share)) => (mode, Some(share)),
            None => (text, None),
        };
        let mode: ComputeMode = mode
            .parse()
            .map_err(|_| ComputeModeError::NotAMode(text.to_owned()))?;
        if mode == ComputeMode::None && share.is_some() {
            return Err(ComputeModeError::NoneOfAShare(text.to_owned()));
        }
        let share = share
            .map(str::parse)
            .transpose()
            .map_err(|error| ComputeModeError::Share(text.to_owned(), error))?;
        Ok(Self { mode, share })
    }
}

impl TryFrom<String> for Compute {
    type Error = ComputeModeError;

    fn try_from(text: String) -> Result<Self, ComputeModeError> {
        text.parse()
    }
}

impl From<Compute> for String {
    fn from(compute: Compute) -> Self {
        compute.to_string()
    }
}

/// Why a text says nothing about compute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComputeModeError {
    #[error("unknown compute mode `{0}`")]
    NotAMode(String),
    #[error("`{0}`: {1}")]
    Share(String, #[source] ShareError),
    #[error("`{0}`: the mode `none` takes no share")]
    NoneOfAShare(String),
}

impl ComputeModeError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::NotAMode(_) => {
                "write fair, strict or none; fair=0.5 or strict=0.25 for a share of its own"
                    .to_owned()
            }
            Self::Share(_, error) => error.hint(),
            Self::NoneOfAShare(_) => "write none, or fair=0.5".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_their_shares_are_read_as_they_are_written() {
        for text in [
            "fair",
            "strict",
            "none",
            "fair=0.5",
            "strict=0.125",
            "strict=1",
        ] {
            let compute: Compute = text.parse().unwrap();
            assert_eq!(compute.to_string(), text);
        }
        let strict: Compute = "strict=0.25".parse().unwrap();
        assert_eq!(strict.mode, ComputeMode::Strict);
        assert_eq!(strict.share.map(Share::thousandths), Some(250));
    }

    #[test]
    fn what_means_nothing_is_refused_with_the_reason() {
        for (text, message) in [
            ("", "unknown compute mode ``"),
            ("Fair", "unknown compute mode `Fair`"),
            ("some=0.5", "unknown compute mode `some=0.5`"),
            ("none=0.5", "`none=0.5`: the mode `none` takes no share"),
            ("fair=", "`fair=`: ``: not a share of a GPU"),
            ("strict=1.5", "`strict=1.5`: share `1.5`: more than one GPU"),
            (
                "strict=0.0005",
                "`strict=0.0005`: share `0.0005`: more precise than a thousandth of a GPU",
            ),
        ] {
            let error = text.parse::<Compute>().unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(!error.hint().is_empty());
        }
    }
}
