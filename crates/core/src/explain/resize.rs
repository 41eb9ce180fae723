//! The wording of refused resizes, resumes and pinned allocations, with hints.

use std::error::Error;
use std::fmt;

use crate::explain::capacity::never_fits;
use crate::explain::constraint::join;
use crate::explain::suggest::{largest_memory, largest_share};
use crate::model::gpu::Gpu;
use crate::model::request::Amount;
use crate::placement::fit::UnmetConstraint;
use crate::placement::occupancy::{FreePart, NodeUsage};
use crate::placement::pinned::{AllocationError, PinnedConstraint};
use crate::project::QuotaRule;
use crate::resize::resume::{GpuBlocked, ResumeBlocked};
use crate::resize::{NoRoom, ResizeError};
use crate::units::gpus;

impl fmt::Display for ResizeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherCount { has, asked } => write!(
                out,
                "a running job keeps its GPUs: it has {}, and {} were requested",
                count(*has),
                asked
            ),
            Self::Range => out.write_str("a running job has a fixed number of GPUs, not a range"),
            Self::Instance => out.write_str("a MIG instance keeps its size while a job holds it"),
            Self::IntoInstance => out.write_str(
                "a running job on a slice of a shared GPU cannot move to a MIG instance",
            ),
            Self::NotServed { index } => {
                write!(out, "GPU {index} is no longer available to jobs")
            }
            Self::Never {
                gpu,
                requested,
                unmet,
            } => out.write_str(&never(gpu, *requested, unmet).0),
            Self::NoRoom(no_room) => no_room.fmt(out),
        }
    }
}

impl Error for ResizeError {}

impl ResizeError {
    /// What to request instead.
    pub fn hint(&self) -> String {
        match self {
            Self::OtherCount { has: 1, .. } => {
                "use a part of it: --gpu-memory 12G or -g 0.5".to_owned()
            }
            Self::OtherCount { has, .. } => {
                format!("use a part of each of them: --gpu-memory 12G, -g 0.5 or -g {has}x0.5")
            }
            Self::Range => "write a part of a GPU (0.5) or memory (12G)".to_owned(),
            Self::Instance | Self::IntoInstance => {
                "submit it again with the size that it needs".to_owned()
            }
            Self::NotServed { .. } => "divvy gpus".to_owned(),
            Self::Never {
                gpu,
                requested,
                unmet,
            } => never(gpu, *requested, unmet).1,
            Self::NoRoom(no_room) => no_room.hint(),
        }
    }
}

/// The message and the hint for a size that the GPU can never give.
fn never(gpu: &Gpu, requested: Amount, unmet: &[UnmetConstraint]) -> (String, String) {
    let alone = NodeUsage::empty(std::slice::from_ref(gpu));
    if let [UnmetConstraint::Context { .. }] = unmet {
        let never = never_fits(&alone, &requested.into());
        return (never.message.clone(), never.hint());
    }
    let all = FreePart {
        share: 1000,
        memory: gpu.usable(),
    };
    let most = match requested {
        Amount::Memory(_) => Some(Amount::Memory(largest_memory(gpu, all))),
        _ => largest_share(gpu, all).map(Amount::Share),
    };
    let message = format!(
        "{} requested, but GPU {} is too small: {}",
        requested.describe(),
        gpu.index,
        join(unmet, "; ")
    );
    let hint = most.map_or_else(
        || "divvy gpus".to_owned(),
        |most| format!("the largest possible size is {}", most.flag()),
    );
    (message, hint)
}

impl fmt::Display for NoRoom {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacks = |unmet: &UnmetConstraint| match unmet {
            UnmetConstraint::Memory { free, needs } => {
                let [free, needs] = [free, needs].map(|size| size.saturating_sub(self.held.memory));
                let [free, needs] = free.human_beside(needs);
                format!("{needs} more needed, {free} free")
            }
            UnmetConstraint::Share { free, needs } => {
                let held = u64::from(self.held.share.thousandths());
                format!(
                    "{} more of the GPU needed, {} free",
                    gpus(u64::from(needs.thousandths()).saturating_sub(held)),
                    gpus(free.saturating_sub(held))
                )
            }
            other => other.to_string(),
        };
        let verb = match self.unmet[..] {
            [
                UnmetConstraint::Memory { .. } | UnmetConstraint::Share { .. },
                ..,
            ] => "requested:",
            _ => "is not possible now:",
        };
        let lacks: Vec<String> = self.unmet.iter().map(lacks).collect();
        let (requested, index) = (self.requested.describe(), self.gpu.index);
        write!(out, "{requested} (GPU {index}) {verb} {}", lacks.join("; "))
    }
}

impl NoRoom {
    fn hint(&self) -> String {
        let most = match self.requested {
            Amount::Memory(_) => Some(largest_memory(&self.gpu, self.free))
                .filter(|most| *most > self.held.memory)
                .map(Amount::Memory),
            _ => largest_share(&self.gpu, self.free)
                .filter(|most| *most > self.held.share)
                .map(Amount::Share),
        };
        let holders: Vec<String> = self.holders.iter().map(|job| format!("#{job}")).collect();
        match (most, holders.is_empty()) {
            (Some(most), _) => format!("the largest size with room now is {}", most.flag()),
            (None, false) => format!("the rest is held by {}", holders.join(", ")),
            (None, true) => "divvy gpus".to_owned(),
        }
    }
}

fn count(gpus: u32) -> String {
    match gpus {
        1 => "1 GPU".to_owned(),
        _ => format!("{gpus} GPUs"),
    }
}

/// Continues after `waits for`: `room on GPU 0: 0.25 free, 0.5 needed (there: #7)`.
impl fmt::Display for ResumeBlocked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(exceeded) => {
                let whose = match exceeded.rule {
                    QuotaRule::Limit(_) | QuotaRule::Quota(_) => "project",
                    QuotaRule::UserLimit(_) => "user",
                };
                write!(out, "its {whose}: {exceeded}")
            }
            Self::Room(full) => {
                let words: Vec<String> = full.iter().map(GpuBlocked::to_string).collect();
                out.write_str(&words.join("; "))
            }
        }
    }
}

impl fmt::Display for GpuBlocked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.is_unavailable {
            "it is no longer available to jobs".to_owned()
        } else {
            join(&self.unmet, ", ")
        };
        write!(out, "room on GPU {}: {why}", self.index)?;
        let by: Vec<String> = self.holders.iter().map(|job| format!("#{job}")).collect();
        match by[..] {
            [] => Ok(()),
            _ => write!(out, " (there: {})", by.join(", ")),
        }
    }
}

impl fmt::Display for AllocationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => out.write_str("the claim requests no device"),
            Self::Mixed => out.write_str(
                "the claim mixes MIG instances with parts of shared GPUs: one claim uses either",
            ),
            Self::NoGpu(gpu) => write!(out, "there is no GPU {gpu} here"),
            Self::Conflict(index) => write!(
                out,
                "the requested devices do not fit together on GPU {index}"
            ),
            Self::Never { index, constraint } | Self::Unavailable { index, constraint } => {
                write!(out, "GPU {index}: {constraint}")
            }
        }
    }
}

impl Error for AllocationError {}

impl fmt::Display for PinnedConstraint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmet(unmet) => out.write_str(&join(unmet, "; ")),
            Self::OnlyMigInstances => {
                out.write_str("it is in MIG mode, which allows only MIG instances")
            }
            Self::ProfilesUnknown => {
                out.write_str("it is in MIG mode, and its profiles are unknown")
            }
            Self::NoProfile(profile) => write!(out, "it has no MIG profile {profile}"),
            Self::Start {
                profile,
                start,
                starts,
            } => {
                let starts: Vec<String> = starts.iter().map(u8::to_string).collect();
                write!(
                    out,
                    "{profile} cannot start at memory slice {start}, only at {}",
                    starts.join(", ")
                )
            }
        }
    }
}
