//! Between the wire's types and the core's, at this one place.

use std::num::NonZeroU32;

use divvy_core::reconcile::Way;
use divvy_core::{Amount as CoreAmount, Bytes, Share, job::Outcome};

use super::{Amount, BypassWay, EndReason, Error, ErrorCode};

impl From<CoreAmount> for Amount {
    fn from(amount: CoreAmount) -> Self {
        match amount {
            CoreAmount::Share(share) => Self::Share {
                thousandths: share.thousandths(),
            },
            CoreAmount::Memory(memory) => Self::Memory {
                bytes: memory.get(),
            },
            CoreAmount::Whole(count) => Self::Whole { count: count.get() },
            CoreAmount::Range { min, max } => Self::Range {
                min: min.get(),
                max: max.get(),
            },
            CoreAmount::Shares { count, share } => Self::Shares {
                count: count.get(),
                thousandths: share.thousandths(),
            },
        }
    }
}

/// An amount that came over the wire need not be one.
impl TryFrom<Amount> for CoreAmount {
    type Error = Error;

    fn try_from(amount: Amount) -> Result<Self, Error> {
        let wrong = |what: String| Error::new(ErrorCode::Usage, what);
        let share = |thousandths| {
            Share::from_thousandths(thousandths).ok_or_else(|| {
                wrong(format!(
                    "a share is 1 to 1000 thousandths of a GPU, not {thousandths}"
                ))
            })
        };
        let count = |count| {
            NonZeroU32::new(count).ok_or_else(|| wrong("an amount of 0 GPUs is no amount".into()))
        };
        match amount {
            // All of one GPU is a whole GPU, which nobody shares.
            Amount::Share { thousandths: 1000 } => Ok(Self::ONE_GPU),
            Amount::Share { thousandths } => Ok(Self::Share(share(thousandths)?)),
            Amount::Memory { bytes: 0 } => Err(wrong("0 bytes of memory is no amount".into())),
            Amount::Memory { bytes } => Ok(Self::Memory(Bytes::new(bytes))),
            Amount::Whole { count: number } => Ok(Self::Whole(count(number)?)),
            Amount::Range { min, max } if min > max => {
                Err(wrong(format!("the range {min}-{max} is empty")))
            }
            Amount::Range { min, max } => Ok(Self::Range {
                min: count(min)?,
                max: count(max)?,
            }),
            Amount::Shares {
                count: number,
                thousandths: 1000,
            } => Ok(Self::Whole(count(number)?)),
            Amount::Shares {
                count: number,
                thousandths,
            } => Ok(Self::Shares {
                count: count(number)?,
                share: share(thousandths)?,
            }),
        }
    }
}

impl From<&Outcome> for EndReason {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Exited(0) => Self::Completed,
            Outcome::Exited(_) | Outcome::Signaled(_) => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::LaunchFailed(_) => Self::LaunchFailed,
            Outcome::SupervisorLost => Self::SupervisorLost,
            Outcome::Bypass => Self::Bypass,
        }
    }
}

impl From<Way> for BypassWay {
    fn from(way: Way) -> Self {
        match way {
            Way::Unlimited => Self::Unlimited,
            Way::OtherGpu => Self::OtherGpu,
            Way::Understated => Self::Understated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_amount_survives_the_wire() {
        for text in ["0.25", "1", "2", "1-4", "8x0.5"] {
            let amount = CoreAmount::from_gpu_flag(text).unwrap();
            assert_eq!(
                CoreAmount::try_from(Amount::from(amount)).unwrap(),
                amount,
                "{text}"
            );
        }
        let memory = CoreAmount::Memory(Bytes::gib(4));
        assert_eq!(CoreAmount::try_from(Amount::from(memory)).unwrap(), memory);
    }

    #[test]
    fn what_is_no_amount_is_refused_at_the_door() {
        let none = [
            Amount::Share { thousandths: 0 },
            Amount::Share { thousandths: 1001 },
            Amount::Memory { bytes: 0 },
            Amount::Whole { count: 0 },
            Amount::Range { min: 0, max: 2 },
            Amount::Range { min: 3, max: 2 },
            Amount::Shares {
                count: 0,
                thousandths: 500,
            },
        ];
        for amount in none {
            assert_eq!(
                CoreAmount::try_from(amount.clone()).unwrap_err().code,
                ErrorCode::Usage,
                "{amount:?}"
            );
        }
        assert_eq!(
            CoreAmount::try_from(Amount::Share { thousandths: 1000 }).unwrap(),
            CoreAmount::ONE_GPU
        );
    }
}
