//! A GPU fraction as pods write it.

use std::fmt;

use crate::base::quantity::Quantity;

/// A part of one GPU, between nothing and all of it, in millionths: a sixteenth is no whole number of thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction(u32);

/// A whole GPU. Six digits of a label such as `0.333333`, so that three of them fit one GPU.
const WHOLE: u32 = 1_000_000;

/// Which parts may be asked for by label or limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steps {
    /// A sixteenth, and eighths: what ClearML's injector takes.
    #[default]
    Eighths,
    /// Any part, rounded down to the millionth.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FractionError {
    #[error("`{0}` is not a GPU fraction; write a number such as 0.5")]
    NotANumber(String),
    #[error("`{0}` is not a GPU fraction; write a number above 0")]
    NotPositive(String),
    #[error("`{0}` is less than a millionth of a GPU, the smallest fraction; write 0.01 or more")]
    TooSmall(String),
    #[error(
        "`{0}` is above 1 and not a whole number; write a fraction below 1, or a whole number of GPUs"
    )]
    MoreThanOne(String),
    #[error(
        "`{0}` is not a positive number smaller than 1.0; for a whole GPU request nvidia.com/gpu"
    )]
    NotBelowOne(String),
    #[error(
        "`{0}` is not one of 0.0625, 0.125, 0.250, 0.375, 0.500, 0.625, 0.750, 0.875, or a whole number"
    )]
    NotAStep(String),
}

/// A count of whole GPUs, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    Whole(u32),
    Part(Fraction),
}

impl Fraction {
    /// In millionths of a GPU.
    pub fn millionths(self) -> u32 {
        self.0
    }

    /// `None` unless it is a part.
    pub fn from_millionths(millionths: u32) -> Option<Self> {
        (0 < millionths && millionths < WHOLE).then_some(Self(millionths))
    }

    /// Whether it may be asked for by label on every cluster: a sixteenth, or eighths.
    pub fn is_a_step(self) -> bool {
        self.0.is_multiple_of(125_000) || self.0 == 62_500
    }

    /// Of so many percent; `None` unless it is a part.
    pub fn percent(percent: u64) -> Option<Self> {
        let millionths = u32::try_from(percent.checked_mul(10_000)?).ok()?;
        Self::from_millionths(millionths)
    }

    /// So much of this many bytes, in MiB, rounded down to a multiple of two, and never nothing: parts of GPUs are given out in
    /// steps of 2 MiB, and what is no whole step would be rounded up to one, so that eight eighths were more than a GPU.
    pub fn mib_of(self, bytes: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.0) / u128::from(WHOLE);
        let steps = u64::try_from(part >> 21).unwrap_or(u64::MAX >> 1);
        steps.max(1) * 2
    }

    /// Of Run:ai's and KAI's annotation, which takes any part.
    ///
    /// # Errors
    /// Not a number, less than a millionth, or not between nothing and one.
    pub fn between_none_and_one(text: &str) -> Result<Self, FractionError> {
        match Portion::read(text, Steps::Any) {
            Ok(Portion::Part(part)) => Ok(part),
            Err(error @ (FractionError::NotANumber(_) | FractionError::TooSmall(_))) => Err(error),
            _ => Err(FractionError::NotBelowOne(text.to_owned())),
        }
    }
}

impl Portion {
    /// Of a label's or a limit's value.
    ///
    /// # Errors
    /// Not a number, nothing, less than a millionth, more than one and not whole, or none of the steps.
    pub fn read(text: &str, steps: Steps) -> Result<Self, FractionError> {
        let owned = || text.to_owned();
        let quantity: Quantity = (text.parse()).map_err(|_| FractionError::NotANumber(owned()))?;
        if quantity <= Quantity::ZERO {
            return Err(FractionError::NotPositive(owned()));
        }
        if let Some(count) = quantity.count() {
            return Ok(Self::Whole(u32::try_from(count).unwrap_or(u32::MAX)));
        }
        if quantity.rounded_down() >= 1 {
            return Err(FractionError::MoreThanOne(owned()));
        }
        let part = match steps {
            Steps::Any => Some(quantity.millionths_rounded_down()),
            Steps::Eighths => quantity.millionths(),
        };
        let part = part.and_then(|part| u32::try_from(part).ok()).map(Fraction);
        match (steps, part) {
            (Steps::Any, Some(Fraction(0)) | None) => Err(FractionError::TooSmall(owned())),
            (Steps::Any, Some(part)) => Ok(Self::Part(part)),
            (Steps::Eighths, part) => part
                .filter(|part| part.is_a_step())
                .map(Self::Part)
                .ok_or_else(|| FractionError::NotAStep(owned())),
        }
    }
}

impl fmt::Display for Fraction {
    /// At least three decimals, as ClearML writes them: `0.500`, `0.0625`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:06}", self.0);
        let decimals = digits.trim_end_matches('0');
        write!(out, "0.{decimals:0<3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteenth_and_eighths_are_parts_and_anything_else_is_named() {
        for (text, shown) in [
            ("0.0625", "0.0625"),
            ("0.5", "0.500"),
            ("0.250", "0.250"),
            ("875m", "0.875"),
        ] {
            match Portion::read(text, Steps::Eighths) {
                Ok(Portion::Part(part)) => assert_eq!(part.to_string(), shown),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(
            Portion::read("1.000", Steps::Eighths),
            Ok(Portion::Whole(1))
        );
        for text in ["0.3", "0", "-1", "abc", "1.25"] {
            let error = Portion::read(text, Steps::Eighths).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(Portion::read("0.3", Steps::Any).is_ok());
    }

    #[test]
    fn a_part_of_the_memory_is_rounded_down_to_what_is_given_out() {
        let part = Fraction::between_none_and_one("0.25").unwrap();
        assert_eq!(part.mib_of(80 << 30), 20 << 10);
        assert_eq!(part.mib_of(81_558 << 20), 20_388, "of 20389.5 MiB");
        assert_eq!(part.mib_of((1 << 20) + 1), 2, "never nothing");
    }
}
