//! What keeps an instance off a GPU in MIG mode: which memory slices it needs, and what lies there.

use std::fmt;

use crate::mig::{MigProfile, UnallocatedState};
use crate::units::JobId;

/// Why an instance of a profile finds no place on a GPU now. `Display` goes on after the GPU: `3g.20gb needs memory slices
/// 0-3 or 4-7; #11 1g.5gb lies at 1, #12 1g.5gb at 5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub profile: MigProfile,
    /// Memory slices that it covers, and where it may begin.
    pub slices: u8,
    pub starts: Vec<u8>,
    /// What lies where it could, by place; empty where only the kinds of what is there forbid it.
    pub blockers: Vec<Blocker>,
    /// The same instances and this one would fit together, if they lay otherwise.
    pub is_fragmentation: bool,
}

/// An instance in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    pub who: BlockerOwner,
    /// `1g.5gb`.
    pub profile: String,
    pub start: u8,
    pub slices: u8,
}

/// Whose an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockerOwner {
    Job(JobId),
    /// Nobody's, and not to be taken.
    Unallocated(UnallocatedState),
}

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

    fn blocker(who: BlockerOwner, profile: &str, start: u8, slices: u8) -> Blocker {
        Blocker {
            who,
            profile: profile.to_owned(),
            start,
            slices,
        }
    }

    #[test]
    fn it_names_the_slices_and_who_lies_there() {
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
