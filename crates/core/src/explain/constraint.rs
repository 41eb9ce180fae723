//! The wording of unmet constraints: why one GPU cannot serve a request, with figures.

use std::fmt;

use crate::mig::{Blocker, BlockerOwner, Obstacle};
use crate::model::isolation::Isolation;
use crate::placement::fit::{Fraction, UnmetConstraint};
use crate::units::{Bytes, JobId, gpus};

impl fmt::Display for UnmetConstraint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAskedFor => out.write_str("not among the requested GPUs"),
            Self::Unmanaged => out.write_str("unmanaged"),
            Self::Unresponsive => out.write_str("it does not respond"),
            Self::OutOfService(why) => out.write_str(why),
            Self::Exclusive => out.write_str("exclusive: whole GPUs only"),
            Self::InMigMode { largest: None } => {
                out.write_str("in MIG mode: not available as a whole")
            }
            Self::InMigMode {
                largest: Some(profile),
            } => write!(
                out,
                "in MIG mode: not available as a whole; its largest profile is {profile}"
            ),
            Self::NotInMigMode => out.write_str("not in MIG mode"),
            Self::Isolation(Isolation::Cooperative) => {
                out.write_str("in MIG mode, but cooperative isolation is requested")
            }
            Self::Isolation(Isolation::Driver) => out.write_str(
                "neither in MIG mode nor limited by the driver, but driver isolation is requested",
            ),
            Self::Isolation(wish) => {
                write!(out, "not in MIG mode, but {wish} isolation is requested")
            }
            Self::NoProfile { largest: None, .. } => {
                out.write_str("in MIG mode, and its profiles are unknown")
            }
            Self::NoProfile {
                wanted: Fraction::Profile(wanted),
                ..
            } => write!(out, "it has no MIG profile {wanted}"),
            Self::NoProfile {
                largest: Some((profile, memory)),
                ..
            } => write!(
                out,
                "its largest MIG profile, {profile}, has {}",
                memory.human()
            ),
            Self::Slots(obstacle) => obstacle.fmt(out),
            Self::SliceBeforeMig(job) => {
                write!(
                    out,
                    "#{job} still holds a slice from before the change to MIG mode"
                )
            }
            Self::Size {
                needs: Bytes::ZERO, ..
            } => out.write_str("this share is less than 2 MiB of its memory"),
            Self::Size { needs, usable } => {
                let [needs, usable] = needs.human_beside(*usable);
                write!(out, "{usable} in total, {needs} needed")
            }
            Self::Context { needs, context } => {
                let [context, needs] = context.human_beside(*needs);
                write!(
                    out,
                    "a CUDA context alone takes {context}, {needs} requested"
                )
            }
            Self::Held(job) => write!(out, "whole GPU held by #{job}"),
            Self::Reserved(job) => write!(out, "room is reserved for #{job}, which is resuming"),
            Self::Promised(job) => write!(
                out,
                "its room is kept for #{job}, which is parked: only jobs that can be parked or end in time get it"
            ),
            Self::InUse { used } => write!(out, "{} in use, a whole GPU needed", gpus(*used)),
            Self::Share { free, needs } => write!(out, "{} free, {needs} needed", gpus(*free)),
            Self::Memory { free, needs } => {
                let [free, needs] = free.human_beside(*needs);
                write!(out, "{free} free, {needs} needed")
            }
            Self::Latency { taken, needs, most } => write!(
                out,
                "jobs with a latency goal have {} of its compute time, {needs} needed, at most {most} for all of them",
                gpus(*taken)
            ),
            Self::Elsewhere {
                share,
                memory,
                holder,
                others,
            } => write!(
                out,
                "{} ({}) held by {holder}{}",
                gpus(*share),
                memory.human(),
                more_holders(*others)
            ),
            Self::UnmanagedMemory {
                unmanaged,
                unlisted,
                holder,
                tolerated,
            } => {
                let [unmanaged, tolerated] = unmanaged.human_beside(*tolerated);
                match *unlisted {
                    Bytes::ZERO => write!(out, "processes outside Divvy hold {unmanaged}")?,
                    listed_for_none => write!(
                        out,
                        "{unmanaged} are in use outside Divvy, {} of them by no listed process{}",
                        listed_for_none.human(),
                        may_hold(*holder)
                    )?,
                }
                write!(out, ", {tolerated} allowed")
            }
        }
    }
}

/// Which job may hold memory that the driver lists for no process.
pub(super) fn may_hold(job: Option<JobId>) -> String {
    job.map_or_else(String::new, |job| format!(" (#{job} may hold it)"))
}

/// `` and 2 more``, after the first of several daemons.
pub(super) fn more_holders(others: usize) -> String {
    match others {
        0 => String::new(),
        _ => format!(" and {others} more"),
    }
}

/// Joins constraints into one line.
pub(super) fn join(unmet: &[UnmetConstraint], separator: &str) -> String {
    let unmet: Vec<String> = unmet.iter().map(UnmetConstraint::to_string).collect();
    unmet.join(separator)
}

/// Continues after the GPU: `3g.20gb needs memory slices 0-3 or 4-7; #11 1g.5gb is at 1, #12 1g.5gb at 5`.
impl fmt::Display for Obstacle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            profile, starts, ..
        } = self;
        if self.blockers.is_empty() {
            return write!(
                out,
                "no further {profile} fits beside the present instances"
            );
        }
        let ranges: Vec<String> = starts
            .iter()
            .map(|start| run(*start, self.slices))
            .collect();
        let slices = if self.slices == 1 { "slice" } else { "slices" };
        write!(out, "{profile} needs memory {slices} {}", or(&ranges))?;
        for (nth, blocker) in self.blockers.iter().enumerate() {
            let (before, verb) = if nth == 0 { (";", " is") } else { (",", "") };
            let place = run(blocker.start, blocker.slices);
            write!(out, "{before} {blocker}{verb} at {place}")?;
        }
        if self.is_fragmentation {
            out.write_str("; another layout of the instances would have room")?;
        }
        Ok(())
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = &self.profile;
        match self.who {
            BlockerOwner::Job(job) => write!(out, "#{job} {profile}"),
            BlockerOwner::Unallocated(standing) => write!(out, "{standing} {profile}"),
        }
    }
}

/// `5`, `4-7`.
fn run(start: u8, slices: u8) -> String {
    match slices {
        0 | 1 => start.to_string(),
        _ => format!("{start}-{}", start + (slices - 1)),
    }
}

/// `0-3`, `0-3 or 4-7`, `0, 1 or 2`.
fn or(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::UnallocatedState;
    use crate::units::JobId;

    fn blocker(who: BlockerOwner, profile: &str, start: u8, slices: u8) -> Blocker {
        Blocker {
            who,
            profile: profile.to_owned(),
            start,
            slices,
        }
    }

    #[test]
    fn a_constraint_names_the_memory_slices_and_the_jobs_there() {
        let obstacle = Obstacle {
            profile: "3g.20gb".parse().unwrap(),
            slices: 4,
            starts: vec![0, 4],
            blockers: vec![
                blocker(BlockerOwner::Job(JobId(11)), "1g.5gb", 1, 1),
                blocker(
                    BlockerOwner::Unallocated(UnallocatedState::Foreign),
                    "2g.10gb",
                    4,
                    2,
                ),
            ],
            is_fragmentation: true,
        };
        assert_eq!(
            obstacle.to_string(),
            "3g.20gb needs memory slices 0-3 or 4-7; #11 1g.5gb is at 1, foreign 2g.10gb at 4-5; another layout of the instances would have room"
        );
    }

    #[test]
    fn one_slice_is_one_and_three_starts_are_listed() {
        let obstacle = Obstacle {
            profile: "1g.6gb".parse().unwrap(),
            slices: 1,
            starts: vec![0, 1, 2],
            blockers: vec![blocker(BlockerOwner::Job(JobId(1)), "4g.24gb", 0, 4)],
            is_fragmentation: false,
        };
        assert_eq!(
            obstacle.to_string(),
            "1g.6gb needs memory slice 0, 1 or 2; #1 4g.24gb is at 0-3"
        );
    }

    #[test]
    fn where_nothing_lies_in_the_way_the_kinds_forbid_it() {
        let obstacle = Obstacle {
            profile: "1g.5gb+me".parse().unwrap(),
            slices: 1,
            starts: vec![0],
            blockers: Vec::new(),
            is_fragmentation: false,
        };
        assert_eq!(
            obstacle.to_string(),
            "no further 1g.5gb+me fits beside the present instances"
        );
    }
}
