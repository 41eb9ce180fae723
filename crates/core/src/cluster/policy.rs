//! Policies: which node a request goes to.

use std::fmt;
use std::str::FromStr;

use super::node::{Choice, Cluster, Shape};

/// A way to choose a node, and GPUs of it.
///
/// A policy may keep scores of nodes from call to call, so each value serves one cluster: build a new one for another.
pub trait NodePolicy {
    /// The node and GPUs for this shape; `None` where it fits nowhere. Equal scores go to the node with the lowest
    /// index. A policy never refuses what fits, and changes nothing in the cluster: the caller takes the choice.
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice>;

    /// A request has arrived, and was placed or refused: for policies that learn from arrivals. The cluster is as the
    /// request has left it.
    fn arrived(&mut self, _cluster: &Cluster, _shape: &Shape) {}
}

/// A policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyName {
    /// Least left: CPU of 128 cores, and GPUs of 8.
    BestFit,
    /// Fragmentation gradient descent (USENIX ATC 2023).
    Fgd,
    /// The stock Kubernetes scheduler's default scoring, and the first device that fits.
    StockLeast,
    /// The stock scheduler with `MostAllocated`, and the first device that fits.
    StockMost,
    /// Learned values of free GPUs, and prices of scarce shapes.
    Learned,
    /// All waiting requests are known: patterns that fill GPUs exactly, then ratios.
    QueueVisible,
}

impl PolicyName {
    pub const ALL: [Self; 6] = [
        Self::BestFit,
        Self::Fgd,
        Self::StockLeast,
        Self::StockMost,
        Self::Learned,
        Self::QueueVisible,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::BestFit => "best-fit",
            Self::Fgd => "fgd",
            Self::StockLeast => "stock-least",
            Self::StockMost => "stock-most",
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
#[error("unknown policy {0:?}: use best-fit, fgd, stock-least, stock-most, learned or queue")]
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
