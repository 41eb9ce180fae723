//! Names of the policies that the studies of packing compare.

use std::fmt;
use std::str::FromStr;

/// A policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyName {
    /// Least left: CPU of 128 cores, and GPUs of 8.
    BestFit,
    /// Fragmentation gradient descent (USENIX ATC 2023).
    Fgd,
    /// Learned values of free GPUs, and prices of scarce shapes.
    Learned,
    /// All waiting requests are known: patterns that fill GPUs exactly, then ratios.
    QueueVisible,
}

impl PolicyName {
    pub const ALL: [Self; 4] = [Self::BestFit, Self::Fgd, Self::Learned, Self::QueueVisible];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::BestFit => "best-fit",
            Self::Fgd => "fgd",
            Self::Learned => "learned",
            Self::QueueVisible => "queue",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The policy has no such name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {0:?}: use best-fit, fgd, learned or queue")]
pub struct PolicyNameError(pub String);

impl FromStr for PolicyName {
    type Err = PolicyNameError;

    fn from_str(text: &str) -> Result<Self, PolicyNameError> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == text);
        named.ok_or_else(|| PolicyNameError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_read_as_it_is_written_and_the_error_lists_them() {
        let error = "fdg".parse::<PolicyName>().unwrap_err().to_string();
        for policy in PolicyName::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert!(error.contains(policy.name()), "{error}");
        }
    }
}
