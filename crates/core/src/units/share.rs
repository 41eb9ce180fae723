//! Shares: parts of one GPU, in thousandths.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Decimal;

/// Part of one GPU, in thousandths: 1 to 1000. `0.25` parses to 250; `0.0005` is an error, not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Share(NonZeroU16);

impl Share {
    /// All of one GPU.
    pub const FULL: Self = Self(NonZeroU16::new(1000).expect("1000 is not zero"));

    /// From thousandths of one GPU; `None` outside 1 to 1000.
    pub fn from_thousandths(thousandths: u16) -> Option<Self> {
        NonZeroU16::new(thousandths)
            .map(Self)
            .filter(|share| *share <= Self::FULL)
    }

    /// Thousandths of one GPU, 1 to 1000.
    pub fn thousandths(self) -> u16 {
        self.0.get()
    }
}

/// Writes an amount of GPUs given in thousandths, as short as it goes: 2750 is `2.75`, 3000 is `3`.
pub fn gpus(thousandths: u64) -> impl fmt::Display {
    fmt::from_fn(move |out| {
        let (whole, part) = (thousandths / 1000, thousandths % 1000);
        match part {
            0 => write!(out, "{whole}"),
            part => write!(
                out,
                "{whole}.{}",
                format!("{part:03}").trim_end_matches('0')
            ),
        }
    })
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        gpus(u64::from(self.thousandths())).fmt(out)
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let owned = || text.to_owned();
        let number = Decimal::parse(text).ok_or_else(|| ShareError::NotANumber(owned()))?;
        if number.is_zero() {
            return Err(ShareError::Zero(owned()));
        }
        let thousandths = match number.times(1000) {
            Some(thousandths) => thousandths,
            None if number.is_broken_above_one() => return Err(ShareError::AboveOne(owned())),
            None => return Err(ShareError::TooFine(owned())),
        };
        u16::try_from(thousandths)
            .ok()
            .and_then(Self::from_thousandths)
            .ok_or_else(|| ShareError::AboveOne(owned()))
    }
}

impl TryFrom<u16> for Share {
    type Error = ShareError;

    fn try_from(thousandths: u16) -> Result<Self, ShareError> {
        Self::from_thousandths(thousandths).ok_or(ShareError::Thousandths(thousandths))
    }
}

impl From<Share> for u16 {
    fn from(share: Share) -> Self {
        share.thousandths()
    }
}

/// Why a text or number is not a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    #[error("`{0}`: not a share of a GPU")]
    NotANumber(String),
    #[error("share `{0}`: must be greater than 0")]
    Zero(String),
    #[error("share `{0}`: more than one GPU")]
    AboveOne(String),
    #[error("share `{0}`: more precise than a thousandth of a GPU")]
    TooFine(String),
    #[error("share of {0} thousandths: not within 1 to 1000")]
    Thousandths(u16),
}

impl ShareError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "a share is a decimal from 0.001 to 1, in steps of 0.001, such as 0.25".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_thousandths_and_nothing_is_rounded() {
        let read = |text: &str| {
            text.parse::<Share>()
                .map(Share::thousandths)
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            [read("0.25"), read("1"), read("1.000"), read(".001")],
            [Ok(250), Ok(1000), Ok(1000), Ok(1)]
        );
        for (text, message) in [
            (
                "0.0005",
                "share `0.0005`: more precise than a thousandth of a GPU",
            ),
            ("0", "share `0`: must be greater than 0"),
            ("1.001", "share `1.001`: more than one GPU"),
            ("1.25", "share `1.25`: more than one GPU"),
            ("2", "share `2`: more than one GPU"),
            ("0.5.", "`0.5.`: not a share of a GPU"),
            ("25%", "`25%`: not a share of a GPU"),
        ] {
            assert_eq!(read(text), Err(message.to_owned()));
        }
    }

    #[test]
    fn amounts_of_gpus_are_written_short() {
        let text = |thousandths| gpus(thousandths).to_string();
        assert_eq!(
            [text(0), text(5), text(250), text(1000), text(2750)],
            ["0", "0.005", "0.25", "1", "2.75"]
        );
    }
}
