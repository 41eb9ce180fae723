//! Isolation levels: how strongly a slice is separated from its neighbours, as a job requests it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What is to hold a slice's limits. A GPU that a job has to itself satisfies every wish.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Whatever the GPU offers: parts of shared GPUs first, MIG instances then.
    #[default]
    Any,
    /// The limiter, in the job's own processes: parts of shared GPUs only.
    Cooperative,
    /// At least the driver: a part of a GPU on which the driver holds the limits, or a MIG instance.
    Driver,
    /// The GPU itself: MIG instances only.
    Hardware,
}

impl Isolation {
    pub const ALL: [Self; 4] = [Self::Any, Self::Cooperative, Self::Driver, Self::Hardware];

    /// The word for it on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Cooperative => "cooperative",
            Self::Driver => "driver",
            Self::Hardware => "hardware",
        }
    }

    /// Whether a MIG instance is wanted, or will do.
    pub fn takes_instances(self) -> bool {
        !matches!(self, Self::Cooperative)
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Isolation {
    type Err = IsolationError;

    fn from_str(text: &str) -> Result<Self, IsolationError> {
        Self::ALL
            .into_iter()
            .find(|isolation| isolation.name() == text)
            .ok_or_else(|| IsolationError(text.to_owned()))
    }
}

/// The word is no kind of isolation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown isolation `{0}`")]
pub struct IsolationError(String);

impl IsolationError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "write cooperative (the limiter), driver (its own limit, or MIG) or hardware (MIG); leave it out for any"
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_is_written() {
        for isolation in Isolation::ALL {
            assert_eq!(isolation.to_string().parse(), Ok(isolation));
        }
        let error = "soft".parse::<Isolation>().unwrap_err();
        assert_eq!(error.to_string(), "unknown isolation `soft`");
    }
}
