//! GPU inventory: index, size, mode and MIG state of each GPU, as observed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::mig::MigInventory;
use crate::model::enforcement::Enforcement;
use crate::units::{Bytes, GpuUuid, JobId, Share};

/// One GPU, as observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub uuid: GpuUuid,
    /// NVML's index; for people, and the order of placement. The UUID is the key.
    pub index: u32,
    pub model: String,
    pub mode: Mode,
    /// It is unmanaged only because it does not respond.
    #[serde(default)]
    pub away: bool,
    /// Set while the GPU is unmanaged only because it is out of service: time, user and reason, as words for a wait reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_service: Option<String>,
    /// NVML's total.
    pub total: Bytes,
    /// What the driver keeps for itself of the total (NVML memory info v2).
    pub reserved: Bytes,
    /// Memory in use that belongs to no slice. It is not free.
    #[serde(rename = "foreign")]
    pub unmanaged: Bytes,
    /// The part of it that the driver lists for no process.
    #[serde(default)]
    pub unlisted: Bytes,
    /// The job that may hold that part, behind descriptors of its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted_holder: Option<JobId>,
    /// What one CUDA context takes of a slice before its first allocation, as measured on this model; zero where it was
    /// not.
    #[serde(default)]
    pub context: Bytes,
    /// In MIG mode, its profiles and the instances that no job holds.
    #[serde(default)]
    pub mig: Option<MigInventory>,
    /// What holds the limits of slices of it, while it is shared.
    #[serde(default, skip_serializing_if = "Enforcement::is_limiter")]
    pub enforcement: Enforcement,
    /// What other daemons of this machine hold of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<HeldElsewhere>,
}

/// What one other daemon holds of a GPU, as its entry in the machine's registry says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldElsewhere {
    /// The holder, for messages: `ana's daemon`.
    pub holder: String,
    /// Thousandths of the GPU, at most 1000.
    pub share: u64,
    pub memory: Bytes,
    /// What its jobs use of that memory, by its own observation. This daemon sees the same bytes as unmanaged.
    #[serde(default)]
    pub used: Bytes,
}

/// Memory is promised in steps of the driver's large page, 2 MiB. A smaller step would charge less than the driver
/// maps.
pub const GRANULE: Bytes = Bytes::mib(2);

impl Gpu {
    /// The memory for slices: total less reserved.
    pub fn usable(&self) -> Bytes {
        self.total.saturating_sub(self.reserved)
    }

    /// Memory that comes with a share: that part of the usable memory, rounded down to 2 MiB.
    pub fn memory_of(&self, share: Share) -> Bytes {
        let part = u128::from(self.usable().get()) * u128::from(share.thousandths()) / 1000;
        Bytes::new(u64::try_from(part).expect("a part of a u64")).round_down(GRANULE)
    }

    /// Share that comes with an amount of memory: its part of the usable memory, rounded up to a thousandth. `None`
    /// when it is more than the GPU has, or nothing.
    pub fn share_of(&self, memory: Bytes) -> Option<Share> {
        let usable = u128::from(self.usable().get());
        let thousandths = (u128::from(memory.get()) * 1000)
            .checked_add(usable)?
            .checked_sub(1)?
            .checked_div(usable)?;
        u16::try_from(thousandths)
            .ok()
            .and_then(Share::from_thousandths)
    }

    /// Memory of processes that belong to no slice of any daemon. What another daemon's jobs use is part of what that
    /// daemon holds, so it counts once.
    pub fn unmanaged_outside(&self) -> Bytes {
        let used = self.elsewhere.iter().map(|held| held.used.min(held.memory));
        self.unmanaged.saturating_sub(used.sum())
    }

    /// The part of it that the driver lists for no process.
    pub fn unlisted_outside(&self) -> Bytes {
        self.unlisted.min(self.unmanaged_outside())
    }

    /// Thousandths and memory that other daemons hold, together at most the GPU.
    pub fn held_elsewhere(&self) -> (u64, Bytes) {
        let share = self.elsewhere.iter().map(|held| held.share);
        let memory = self.elsewhere.iter().map(|held| held.memory);
        let memory = memory.fold(Bytes::ZERO, Bytes::saturating_add);
        (
            share.fold(0, u64::saturating_add).min(1000),
            memory.min(self.usable()),
        )
    }

    /// Foreign memory that a whole job tolerates: a tenth of the usable memory, for a display server or a forgotten
    /// shell.
    pub fn unmanaged_tolerated(&self) -> Bytes {
        Bytes::new(self.usable().get() / 10)
    }
}

/// How a GPU may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Slices of any size.
    Shared,
    /// MIG instances, made and removed as jobs need them.
    Mig,
    /// Whole jobs only.
    Exclusive,
    /// Listed, and never allocated.
    Unmanaged,
}

impl Mode {
    /// The word for it in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Mig => "mig",
            Self::Exclusive => "exclusive",
            Self::Unmanaged => "unmanaged",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        [Self::Shared, Self::Mig, Self::Exclusive, Self::Unmanaged]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| ModeError(text.to_owned()))
    }
}

/// The word is not a GPU mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown GPU mode `{0}`")]
pub struct ModeError(String);

impl ModeError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "write shared, mig, exclusive or unmanaged".to_owned()
    }
}

#[cfg(test)]
impl Gpu {
    /// A shared GPU without other memory use, for tests.
    pub(crate) fn sample(index: u8, total: Bytes) -> Self {
        Self {
            uuid: GpuUuid::from_bytes([index; 16]),
            index: index.into(),
            model: "A100 80GB".to_owned(),
            mode: Mode::Shared,
            away: false,
            out_of_service: None,
            total,
            reserved: Bytes::ZERO,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            unlisted_holder: None,
            context: Bytes::ZERO,
            mig: None,
            enforcement: Enforcement::Limiter,
            elsewhere: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 80999 MiB usable, and some bytes.
    fn gpu() -> Gpu {
        Gpu {
            reserved: Bytes::mib(560),
            ..Gpu::sample(0, Bytes::new((81_559 << 20) + 123))
        }
    }

    fn share(thousandths: u16) -> Share {
        Share::from_thousandths(thousandths).unwrap()
    }

    #[test]
    fn a_share_gets_its_part_of_the_usable_memory_rounded_down_to_two_mebibytes() {
        assert_eq!(gpu().memory_of(share(500)), Bytes::mib(40_498));
        assert_eq!(gpu().memory_of(share(1)), Bytes::mib(80));
        assert_eq!(gpu().memory_of(Share::FULL), Bytes::mib(80_998));
    }

    #[test]
    fn memory_takes_its_part_of_the_share_rounded_up_to_a_thousandth() {
        assert_eq!(gpu().share_of(Bytes::new(1)), Some(share(1)));
        assert_eq!(gpu().share_of(Bytes::gib(40)), Some(share(506)));
        assert_eq!(gpu().share_of(gpu().usable()), Some(Share::FULL));
        assert_eq!(gpu().share_of(Bytes::new(gpu().usable().get() + 1)), None);
        assert_eq!(gpu().share_of(Bytes::new(u64::MAX)), None);
        assert_eq!(gpu().share_of(Bytes::ZERO), None);
    }

    #[test]
    fn equal_shares_that_fill_a_gpu_fit_its_memory() {
        for parts in [2, 3, 4, 7, 8] {
            let each = gpu().memory_of(share(1000 / parts));
            assert!(each.get() * u64::from(parts) <= gpu().usable().get());
        }
    }

    #[test]
    fn a_gpu_without_memory_gives_none() {
        let none = Gpu {
            reserved: gpu().total,
            ..gpu()
        };
        assert_eq!(
            (none.memory_of(Share::FULL), none.share_of(Bytes::new(1))),
            (Bytes::ZERO, None)
        );
    }
}
