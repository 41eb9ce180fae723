//! Conversion between the types of the API and those of the core.

use std::num::NonZeroU32;

use divvy_core::mig::MigProfile;
use divvy_core::project::QuotaRule;
use divvy_core::reconcile::BypassKind;
use divvy_core::{
    Amount as CoreAmount, Bytes, Isolation as CoreIsolation, Mode, Reason, Share, job::Outcome,
};

use super::{Amount, BypassWay, EndReason, Error, ErrorCode, GpuMode, Isolation, ReasonCode};

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
            CoreAmount::Mig(profile) => Self::Mig {
                profile: profile.to_string(),
            },
        }
    }
}

/// Validates an amount from the wire.
impl TryFrom<Amount> for CoreAmount {
    type Error = Error;

    fn try_from(amount: Amount) -> Result<Self, Error> {
        let wrong = |what: String| Error::new(ErrorCode::Usage, what);
        let share = |thousandths| {
            Share::from_thousandths(thousandths).ok_or_else(|| {
                wrong(format!(
                    "share {thousandths}: not within 1 to 1000 thousandths of a GPU"
                ))
            })
        };
        let count = |count| {
            NonZeroU32::new(count)
                .ok_or_else(|| wrong("count 0: at least 1 GPU is required".into()))
        };
        match amount {
            // All of one GPU is a whole GPU, which no other job shares.
            Amount::Share { thousandths: 1000 } => Ok(Self::ONE_GPU),
            Amount::Share { thousandths } => Ok(Self::Share(share(thousandths)?)),
            Amount::Memory { bytes: 0 } => {
                Err(wrong("bytes 0: at least 1 byte is required".into()))
            }
            Amount::Memory { bytes } => Ok(Self::Memory(Bytes::new(bytes))),
            Amount::Whole { count: number } => Ok(Self::Whole(count(number)?)),
            Amount::Range { min, max } if min > max => Err(wrong(format!(
                "range {min}-{max}: the minimum exceeds the maximum"
            ))),
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
            Amount::Mig { profile } => match profile.parse::<MigProfile>() {
                Ok(profile) => Ok(Self::Mig(profile)),
                Err(error) => Err(wrong(error.to_string()).hint(error.hint())),
            },
        }
    }
}

impl From<CoreIsolation> for Isolation {
    fn from(isolation: CoreIsolation) -> Self {
        match isolation {
            CoreIsolation::Any => Self::Any,
            CoreIsolation::Cooperative => Self::Cooperative,
            CoreIsolation::Driver => Self::Driver,
            CoreIsolation::Hardware => Self::Hardware,
        }
    }
}

impl From<Isolation> for CoreIsolation {
    fn from(isolation: Isolation) -> Self {
        match isolation {
            Isolation::Any => Self::Any,
            Isolation::Cooperative => Self::Cooperative,
            Isolation::Driver => Self::Driver,
            Isolation::Hardware => Self::Hardware,
        }
    }
}

impl From<Mode> for GpuMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Mig => Self::Mig,
            Mode::Exclusive => Self::Exclusive,
            Mode::Unmanaged => Self::Unmanaged,
        }
    }
}

impl From<GpuMode> for Mode {
    fn from(mode: GpuMode) -> Self {
        match mode {
            GpuMode::Shared => Self::Shared,
            GpuMode::Mig => Self::Mig,
            GpuMode::Exclusive => Self::Exclusive,
            GpuMode::Unmanaged => Self::Unmanaged,
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
            Outcome::TimeLimit => Self::TimeLimit,
            Outcome::Idle => Self::IdleTimeout,
            Outcome::DependencyFailed(_) => Self::DependencyFailed,
            Outcome::GpuLost => Self::GpuLost,
            Outcome::Released => Self::Released,
        }
    }
}

impl From<&Reason> for ReasonCode {
    fn from(reason: &Reason) -> Self {
        match reason {
            Reason::Short(_) => Self::Insufficient,
            Reason::Behind(_) => Self::Behind,
            Reason::WouldDelay(_) => Self::Reserved,
            Reason::Never(never) if never.waits_for_service => Self::OutOfService,
            Reason::Never(_) => Self::Unsatisfiable,
            Reason::Quota(exceeded) => match exceeded.rule {
                QuotaRule::Limit(_) | QuotaRule::Quota(_) => Self::Quota,
                QuotaRule::UserLimit(_) => Self::UserLimit,
            },
            Reason::BehindQuota(ahead) => match ahead.exceeded.rule {
                QuotaRule::Limit(_) | QuotaRule::Quota(_) => Self::BehindQuota,
                QuotaRule::UserLimit(_) => Self::BehindUserLimit,
            },
            Reason::Preempting(_) => Self::Preempting,
        }
    }
}

impl From<BypassKind> for BypassWay {
    fn from(way: BypassKind) -> Self {
        match way {
            BypassKind::Unlimited => Self::Unlimited,
            BypassKind::OtherGpu => Self::OtherGpu,
            BypassKind::Understated => Self::Understated,
            BypassKind::Overdrawn => Self::Overdrawn,
            BypassKind::Escaped => Self::Escaped,
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
        let instance = CoreAmount::from_mig_flag("1g.5gb+me").unwrap();
        for amount in [memory, instance] {
            assert_eq!(CoreAmount::try_from(Amount::from(amount)).unwrap(), amount);
        }
    }

    #[test]
    fn every_isolation_and_every_mode_survives_the_wire_under_its_own_word() {
        for isolation in CoreIsolation::ALL {
            let wire = Isolation::from(isolation);
            assert_eq!(CoreIsolation::from(wire), isolation);
            assert_eq!(serde_json::to_value(wire).unwrap(), isolation.name());
        }
        for mode in [Mode::Shared, Mode::Mig, Mode::Exclusive, Mode::Unmanaged] {
            let wire = GpuMode::from(mode);
            assert_eq!(Mode::from(wire), mode);
            assert_eq!(serde_json::to_value(wire).unwrap(), mode.name());
        }
    }

    #[test]
    fn every_code_of_a_wait_is_the_word_for_it() {
        for code in ReasonCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
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
            Amount::Mig {
                profile: "1g".into(),
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
