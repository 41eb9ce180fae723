//! GPU requests: the amount that a job asks for, and its text forms.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::mig::{MigProfile, MigProfileError};
use crate::model::gpu::{GRANULE, Gpu, Mode};
use crate::model::isolation::Isolation;
use crate::units::{Bytes, BytesError, Compute, Decimal, Share};

/// What a job asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Request {
    pub amount: Amount,
    #[serde(default)]
    pub compute: Compute,
    /// Only GPUs with these indices; empty means any.
    #[serde(default)]
    pub on: Vec<u32>,
    /// What is to hold its limits.
    #[serde(default)]
    pub isolation: Isolation,
    /// Memory means bytes where a MIG instance gives it, and not the name of the profile, which is rounded up.
    #[serde(default)]
    pub exact: bool,
    /// The job gives its room back to a parked one in time ([`ParkRule`](crate::model::snapshot::ParkRule)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gives_way: bool,
}

impl Request {
    /// Whether it may be placed on the GPU with this index.
    pub fn allows(&self, index: u32) -> bool {
        self.on.is_empty() || self.on.contains(&index)
    }

    /// The same wishes for another amount.
    #[must_use]
    pub fn with_amount(&self, amount: Amount) -> Self {
        Self {
            amount,
            ..self.clone()
        }
    }
}

impl From<Amount> for Request {
    fn from(amount: Amount) -> Self {
        Self {
            amount,
            compute: Compute::default(),
            on: Vec::new(),
            isolation: Isolation::default(),
            exact: false,
            gives_way: false,
        }
    }
}

/// How much GPU a job asks for. `Display` writes it as the command line reads it: `0.25`, `4GiB`, `2`, `1-4`, `8x0.5`,
/// `2g.10gb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// A part of one GPU. [`Share::FULL`] means the same as `Whole(1)`, and is read as that.
    Share(Share),
    /// Memory on one GPU, not zero; the share follows from it.
    Memory(Bytes),
    /// Whole GPUs.
    Whole(NonZeroU32),
    /// As many whole GPUs as are free, at least `min`, at most `max`; fixed once started.
    Range { min: NonZeroU32, max: NonZeroU32 },
    /// The same share on `count` different GPUs.
    Shares { count: NonZeroU32, share: Share },
    /// A MIG instance of this profile and no other.
    Mig(MigProfile),
}

impl Amount {
    /// One whole GPU.
    pub const ONE_GPU: Self = Self::Whole(NonZeroU32::MIN);

    /// The same amount in one form: `1x0.5` is 0.5, `1-1` and `1x1` are 1.
    #[must_use]
    pub fn plain(self) -> Self {
        match self {
            Self::Share(Share::FULL) => Self::ONE_GPU,
            Self::Range { min, max } if min == max => Self::Whole(min),
            Self::Shares {
                count,
                share: Share::FULL,
            } => Self::Whole(count),
            Self::Shares {
                count: NonZeroU32::MIN,
                share,
            } => Self::Share(share),
            other => other,
        }
    }

    /// Whether it is as much as another amount on each of these GPUs that gives parts: memory may be that of a share.
    pub fn is_as_much(self, other: Self, gpus: &[Gpu]) -> bool {
        match (self.plain(), other.plain()) {
            (Self::Memory(memory), Self::Share(share))
            | (Self::Share(share), Self::Memory(memory)) => {
                let mut shared = gpus
                    .iter()
                    .filter(|gpu| gpu.mode == Mode::Shared)
                    .peekable();
                let memory = memory.round_up(GRANULE);
                shared.peek().is_some() && shared.all(|gpu| gpu.memory_of(share) == memory)
            }
            (one, two) => one == two,
        }
    }

    /// Reads the value of `-g`: `0.25` (any thousandth), `2`, `1-4`, `8x0.5`.
    ///
    /// # Errors
    /// [`AmountError`], for whatever is not an amount above zero.
    pub fn from_gpu_flag(text: &str) -> Result<Self, AmountError> {
        let error = |kind| AmountError::new(kind, text);
        if let Some((count, share)) = text.split_once('x') {
            let Number::Whole(count) = number(count).map_err(error)? else {
                return Err(error(AmountErrorKind::CountOfParts));
            };
            return match number(share).map_err(error)? {
                Number::Part(share) => Ok(Self::Shares { count, share }),
                Number::Whole(NonZeroU32::MIN) => Ok(Self::Whole(count)),
                Number::Whole(_) => Err(error(AmountErrorKind::AboveOne)),
            };
        }
        Self::parse(text).map_err(error)
    }

    /// Reads the value of `--gpu-memory`: `4G`.
    ///
    /// # Errors
    /// What [`Bytes`] refuses, and zero.
    pub fn from_memory_flag(text: &str) -> Result<Self, AmountError> {
        match text.parse() {
            Ok(Bytes::ZERO) => Err(AmountError::new(AmountErrorKind::ZeroMemory, text)),
            Ok(memory) => Ok(Self::Memory(memory)),
            Err(error) => Err(AmountError::new(AmountErrorKind::Memory(error), text)),
        }
    }

    /// Reads the value of `--mig-profile`: `2g.10gb`.
    ///
    /// # Errors
    /// What is not the name of a profile. `can_ever_fit` checks whether a GPU has it.
    pub fn from_mig_flag(text: &str) -> Result<Self, AmountError> {
        text.parse()
            .map(Self::Mig)
            .map_err(|error| AmountError::new(AmountErrorKind::Profile(error), text))
    }

    /// Reads the type of a GPU as Slurm names it, where that is a MIG profile: `a100_3g.20gb`, `1g.10gb`. Sites write
    /// `a100-1g.5gb`, `mig-3g.71gb` and `a100.1g.5gb` too.
    pub fn from_slurm_type(text: &str) -> Option<Self> {
        let ends = text
            .match_indices(['_', '-', '.'])
            .map(|(at, _)| &text[at + 1..]);
        let mut profiles = std::iter::once(text).chain(ends);
        profiles.find_map(|profile| Self::from_mig_flag(profile).ok())
    }

    /// Reads the value of a queue, the part after its last `=`: whole GPUs, a range of them, a multiple of 0.125, or
    /// the name of a MIG profile. The error shows `token`, the whole text.
    pub(crate) fn from_queue_value(value: &str, token: &str) -> Result<Self, AmountError> {
        if let Ok(profile) = value.parse() {
            return Ok(Self::Mig(profile));
        }
        match Self::parse(value) {
            Ok(Self::Share(share)) if share.thousandths() % 125 != 0 => {
                Err(AmountError::new(AmountErrorKind::NotAnEighth(share), token))
            }
            amount => amount.map_err(|kind| AmountError::new(kind, token)),
        }
    }

    fn parse(text: &str) -> Result<Self, AmountErrorKind> {
        let Some((min, max)) = text.split_once('-').filter(|(min, _)| !min.is_empty()) else {
            return Ok(match number(text)? {
                Number::Whole(count) => Self::Whole(count),
                Number::Part(share) => Self::Share(share),
            });
        };
        match (number(min)?, number(max)?) {
            (Number::Whole(min), Number::Whole(max)) if min == max => Ok(Self::Whole(min)),
            (Number::Whole(min), Number::Whole(max)) if min < max => Ok(Self::Range { min, max }),
            (Number::Whole(_), Number::Whole(_)) => Err(AmountErrorKind::RangeBackwards),
            _ => Err(AmountErrorKind::RangeOfParts),
        }
    }

    /// The flag that asks for it: `-g 0.25`, `--gpu-memory 4GiB`, `--mig-profile 2g.10gb`.
    pub fn flag(&self) -> String {
        match self {
            Self::Memory(_) => format!("--gpu-memory {self}"),
            Self::Mig(_) => format!("--mig-profile {self}"),
            _ => format!("-g {self}"),
        }
    }

    /// The amount in a sentence after "needs": `1 whole GPU`, `0.25 of a GPU`, `4 GiB on one GPU`.
    pub fn describe(&self) -> impl fmt::Display {
        let s = |count: NonZeroU32| if count == NonZeroU32::MIN { "" } else { "s" };
        fmt::from_fn(move |out| match self {
            Self::Share(Share::FULL) => write!(out, "{}", Self::ONE_GPU.describe()),
            Self::Share(share) => write!(out, "{share} of a GPU"),
            Self::Memory(memory) => write!(out, "{} on one GPU", memory.spaced()),
            Self::Whole(count) => write!(out, "{count} whole GPU{}", s(*count)),
            Self::Range { min, max } => write!(out, "{min} to {max} whole GPUs"),
            Self::Shares { count, share } => {
                write!(out, "{share} of each of {count} GPU{}", s(*count))
            }
            Self::Mig(profile) => write!(out, "a MIG instance {profile}"),
        })
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => share.fmt(out),
            Self::Memory(memory) => memory.fmt(out),
            Self::Whole(count) => count.fmt(out),
            Self::Range { min, max } => write!(out, "{min}-{max}"),
            Self::Shares { count, share } => write!(out, "{count}x{share}"),
            Self::Mig(profile) => profile.fmt(out),
        }
    }
}

/// A number of GPUs: whole ones, or a part of one.
enum Number {
    Whole(NonZeroU32),
    Part(Share),
}

fn number(text: &str) -> Result<Number, AmountErrorKind> {
    if text
        .strip_prefix('-')
        .is_some_and(|rest| Decimal::parse(rest).is_some())
    {
        return Err(AmountErrorKind::NotPositive);
    }
    let number = Decimal::parse(text).ok_or(AmountErrorKind::NotANumber)?;
    if number.is_zero() {
        return Err(AmountErrorKind::NotPositive);
    }
    if let Some(count) = number.times(1) {
        let count = u32::try_from(count).ok().and_then(NonZeroU32::new);
        return count.map(Number::Whole).ok_or(AmountErrorKind::NotANumber);
    }
    if number.is_broken_above_one() {
        return Err(AmountErrorKind::AboveOne);
    }
    let share = number
        .times(1000)
        .and_then(|thousandths| Share::from_thousandths(u16::try_from(thousandths).ok()?));
    share.map(Number::Part).ok_or(AmountErrorKind::TooFine)
}

/// Why a text is not an amount of GPU, with the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: \"{text}\"")]
pub struct AmountError {
    pub kind: AmountErrorKind,
    /// As the user wrote it: the value of a flag, or a whole `NAME=VALUE`.
    pub text: String,
}

/// What is wrong with an amount. The wording of the second and third is the stock ClearML agent's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountErrorKind {
    #[error("not a number of GPUs")]
    NotANumber,
    #[error("Parsing min/max number of gpus <= 0 is not allowed")]
    NotPositive,
    #[error("Parsing min/max number of gpus, fractional gpu cannot be > 1")]
    AboveOne,
    #[error("more precise than a thousandth of a GPU")]
    TooFine,
    #[error("a queue's fraction must be a multiple of 0.125")]
    NotAnEighth(Share),
    #[error("a range MIN-MAX counts whole GPUs")]
    RangeOfParts,
    #[error("the range MIN-MAX is empty")]
    RangeBackwards,
    #[error("COUNTxSHARE counts whole GPUs")]
    CountOfParts,
    #[error("0 bytes of memory")]
    ZeroMemory,
    #[error(transparent)]
    Memory(BytesError),
    #[error(transparent)]
    Profile(MigProfileError),
}

impl AmountError {
    fn new(kind: AmountErrorKind, text: &str) -> Self {
        Self {
            kind,
            text: text.to_owned(),
        }
    }

    /// What to write instead.
    pub fn hint(&self) -> String {
        match &self.kind {
            AmountErrorKind::NotANumber | AmountErrorKind::NotPositive => {
                "write a part of one GPU (0.25), whole GPUs (2) or a range of them (1-4)".to_owned()
            }
            AmountErrorKind::AboveOne => {
                "write whole GPUs (2) or a part of one (0.25); `-g 2x0.5` is the same part of two"
                    .to_owned()
            }
            AmountErrorKind::TooFine => "shares go in steps of 0.001".to_owned(),
            AmountErrorKind::NotAnEighth(share) => {
                let below = share.thousandths() / 125 * 125;
                let nearest = [below, below + 125]
                    .into_iter()
                    .filter_map(Share::from_thousandths);
                format!(
                    "write {}",
                    nearest
                        .map(|share| share.to_string())
                        .collect::<Vec<_>>()
                        .join(" or ")
                )
            }
            AmountErrorKind::RangeOfParts => {
                "write whole numbers, as in 1-4, or one fraction, as in 0.5".to_owned()
            }
            AmountErrorKind::RangeBackwards => {
                "write the smaller number first, as in 1-4".to_owned()
            }
            AmountErrorKind::CountOfParts => {
                "write how many GPUs, then the share of each, as in 8x0.5".to_owned()
            }
            AmountErrorKind::ZeroMemory => {
                "write a number and a binary unit: 512M, 4G, 1.5G".to_owned()
            }
            AmountErrorKind::Memory(error) => error.hint(),
            AmountErrorKind::Profile(error) => error.hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_written_alike() {
        let whole = |count| Amount::Whole(NonZeroU32::new(count).unwrap());
        let share = |thousandths| Share::from_thousandths(thousandths).unwrap();
        for (text, amount, written) in [
            ("0.25", Amount::Share(share(250)), "-g 0.25"),
            (".001", Amount::Share(share(1)), "-g 0.001"),
            ("1.000", Amount::ONE_GPU, "-g 1"),
            ("2", whole(2), "-g 2"),
            ("3-3", whole(3), "-g 3"),
            ("8x1", whole(8), "-g 8"),
            (
                "8x0.5",
                Amount::Shares {
                    count: NonZeroU32::new(8).unwrap(),
                    share: share(500),
                },
                "-g 8x0.5",
            ),
        ] {
            assert_eq!(Amount::from_gpu_flag(text), Ok(amount), "{text}");
            assert_eq!(amount.flag(), written);
        }
        let memory = Amount::from_memory_flag("4G").unwrap();
        assert_eq!(
            (memory, memory.flag().as_str()),
            (Amount::Memory(Bytes::gib(4)), "--gpu-memory 4GiB")
        );
        let instance = Amount::from_mig_flag("1g.5gb+me").unwrap();
        assert_eq!(instance.flag(), "--mig-profile 1g.5gb+me");
        assert_eq!(
            Amount::from_queue_value("1g.5gb+me", "small=1g.5gb+me"),
            Ok(instance)
        );
        let error = Amount::from_mig_flag("MIG 2g.10gb").unwrap_err();
        assert_eq!(error.hint(), "write 2g.10gb");
    }

    #[test]
    fn an_amount_is_the_same_however_it_is_written() {
        let gpus = [Gpu::sample(0, Bytes::gib(80))];
        let flag = |text| Amount::from_gpu_flag(text).unwrap();
        let memory = |text| Amount::from_memory_flag(text).unwrap();
        for (one, two) in [
            (flag("0.5"), flag("0.500")),
            (flag("0.5"), flag("1x0.5")),
            (flag("1"), flag("1-1")),
            (flag("2"), flag("2x1")),
            (flag("0.5"), memory("40G")),
            (flag("0.5"), memory("40959M")),
        ] {
            assert!(one.is_as_much(two, &gpus), "{one} {two}");
            assert!(two.is_as_much(one, &gpus), "{two} {one}");
        }
        for (one, two) in [
            (flag("0.5"), flag("2x0.5")),
            (flag("1"), flag("1-2")),
            (flag("0.5"), memory("40958M")),
            (memory("40G"), memory("41G")),
        ] {
            assert!(!one.is_as_much(two, &gpus), "{one} {two}");
        }
        // Memory is that of a share on some GPUs alone.
        let other = [gpus[0].clone(), Gpu::sample(1, Bytes::gib(40))];
        assert!(!flag("0.5").is_as_much(memory("40G"), &other));
        assert!(!flag("0.5").is_as_much(memory("40G"), &[]));
    }

    #[test]
    fn what_is_not_an_amount_is_refused_in_one_line_with_a_hint() {
        for (text, message) in [
            ("half", "not a number of GPUs: \"half\""),
            ("", "not a number of GPUs: \"\""),
            ("99999999999", "not a number of GPUs: \"99999999999\""),
            (
                "0",
                "Parsing min/max number of gpus <= 0 is not allowed: \"0\"",
            ),
            (
                "1.25",
                "Parsing min/max number of gpus, fractional gpu cannot be > 1: \"1.25\"",
            ),
            (
                "0.0005",
                "more precise than a thousandth of a GPU: \"0.0005\"",
            ),
            ("0.5x2", "COUNTxSHARE counts whole GPUs: \"0.5x2\""),
            (
                "2x3",
                "Parsing min/max number of gpus, fractional gpu cannot be > 1: \"2x3\"",
            ),
            ("4-2", "the range MIN-MAX is empty: \"4-2\""),
            ("0.5-1", "a range MIN-MAX counts whole GPUs: \"0.5-1\""),
        ] {
            let error = Amount::from_gpu_flag(text).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(!error.hint().is_empty() && !error.hint().contains('\n'));
        }
        let error = Amount::from_memory_flag("0G").unwrap_err();
        assert_eq!(error.to_string(), "0 bytes of memory: \"0G\"");
    }
}
