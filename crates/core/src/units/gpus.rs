//! Amounts of GPUs, in thousandths: sums of shares, quotas, limits.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Decimal, Share, gpus};

/// An amount of GPUs, in thousandths of one: `2.75` parses to 2750; `0.0005` is an error, not 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Gpus(u64);

impl Gpus {
    pub const ZERO: Self = Self(0);

    pub const fn from_thousandths(thousandths: u64) -> Self {
        Self(thousandths)
    }

    /// So many whole ones.
    pub fn whole(count: u64) -> Self {
        Self(count.saturating_mul(1000))
    }

    pub const fn thousandths(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Share> for Gpus {
    fn from(share: Share) -> Self {
        Self(u64::from(share.thousandths()))
    }
}

impl Sum for Gpus {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::saturating_add)
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        gpus(self.0).fmt(out)
    }
}

impl FromStr for Gpus {
    type Err = GpusError;

    fn from_str(text: &str) -> Result<Self, GpusError> {
        let number = Decimal::parse(text).ok_or_else(|| GpusError::NotANumber(text.to_owned()))?;
        number
            .times(1000)
            .map(Self)
            .ok_or_else(|| GpusError::TooFine(text.to_owned()))
    }
}

/// Why a text is not an amount of GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpusError {
    #[error("`{0}`: not a number of GPUs")]
    NotANumber(String),
    #[error("`{0}`: more precise than a thousandth of a GPU")]
    TooFine(String),
}

impl GpusError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "write a number of GPUs, fractions included, in steps of 0.001: 3, 2.5, 0.125".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_and_read_as_they_are_written() {
        for (text, thousandths) in [("0", 0), ("2.75", 2750), ("0.001", 1), ("16", 16_000)] {
            let amount: Gpus = text.parse().unwrap();
            assert_eq!(
                (amount, amount.to_string().as_str()),
                (Gpus(thousandths), text)
            );
        }
        for text in ["", "-1", "two", "1e3", "0.0005", "99999999999999999999"] {
            let error = text.parse::<Gpus>().unwrap_err();
            assert!(!error.hint().is_empty(), "{text}");
        }
    }
}
