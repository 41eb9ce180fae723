//! Compute modes: how the compute time of a shared GPU is divided.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{LatencyGoal, LatencyGoalError, Share, ShareError};

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

/// How a slice takes part, with which share where it is not that of its memory, and in which time its requests should be
/// answered: `fair`, `strict=0.25`, `fair=0.25,latency=20ms`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Compute {
    pub mode: ComputeMode,
    /// Never with [`ComputeMode::None`].
    pub share: Option<Share>,
    /// Only with [`ComputeMode::Fair`].
    pub latency: Option<LatencyGoal>,
}

impl From<ComputeMode> for Compute {
    fn from(mode: ComputeMode) -> Self {
        Self {
            mode,
            share: None,
            latency: None,
        }
    }
}

impl Compute {
    /// The same with this latency goal, if it has none.
    ///
    /// # Errors
    /// The mode is not `fair`.
    pub fn or_latency(self, goal: Option<LatencyGoal>) -> Result<Self, ComputeModeError> {
        match self.latency.or(goal) {
            Some(goal) if self.mode != ComputeMode::Fair => {
                Err(ComputeModeError::LatencyNeedsFair(goal, self.mode))
            }
            latency => Ok(Self { latency, ..self }),
        }
    }
}

/// What is before a latency goal in the text.
const LATENCY: &str = ",latency=";

impl fmt::Display for Compute {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mode.fmt(out)?;
        if let Some(share) = self.share {
            write!(out, "={share}")?;
        }
        match self.latency {
            Some(goal) => write!(out, "{LATENCY}{goal}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Compute {
    type Err = ComputeModeError;

    fn from_str(text: &str) -> Result<Self, ComputeModeError> {
        if let Some((terms, goal)) = text.split_once(LATENCY) {
            let goal = goal
                .parse()
                .map_err(|error| ComputeModeError::Latency(text.to_owned(), error))?;
            let terms: Self = terms.parse()?;
            return terms.or_latency(Some(goal));
        }
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
        Ok(Self {
            share,
            ..mode.into()
        })
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
    #[error("`{0}`: {1}")]
    Latency(String, #[source] LatencyGoalError),
    #[error("latency goal {0}: the compute mode is `{1}`, and only `fair` takes a goal")]
    LatencyNeedsFair(LatencyGoal, ComputeMode),
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
            Self::Latency(_, error) => error.hint(),
            Self::LatencyNeedsFair(..) => "--compute fair, or no latency goal".to_owned(),
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
            "fair,latency=20ms",
            "fair=0.25,latency=1500us",
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
                "strict=0.5,latency=20ms",
                "latency goal 20ms: the compute mode is `strict`, and only `fair` takes a goal",
            ),
            (
                "none,latency=20ms",
                "latency goal 20ms: the compute mode is `none`, and only `fair` takes a goal",
            ),
            (
                "fair,latency=20",
                "`fair,latency=20`: `20`: not a latency goal",
            ),
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
