//! Whose a process is that the driver lists: which job it descends from, or whose slice it has joined.
//!
//! Descent is the kernel's word. A job's supervisor is a subreaper, so whatever its program daemonises stays below it; once seen
//! there, a process is the job's for as long as it lives, wherever it goes. So is whoever is in the PID namespace of a job's container,
//! also one that the container engine started in it later, and a process in a job's control group or below it, also one that has killed
//! its supervisor and left its session. Where no supervisor is, as with the claims of another scheduler, it is what is
//! mounted for the process. A slot in a slice is the job's word and counts only
//! for a process that has that slice mapped, which nobody has who did not join it.

use std::collections::{BTreeSet, HashMap, HashSet};

use divvy_core::{Bytes, JobId};
use divvy_ledger::Owner;

use super::abroad::Abroad;
use super::roster::Roster;
use crate::clock::Instant;
use crate::process::inside::{self, Inside, Marks, Own};
use crate::process::{self, Process, mounts};
use crate::supervise::cgroup;

/// A process that the driver lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Person {
    pub process: Process,
    pub own: Own,
    pub kinship: Kinship,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    None,
    /// By the kernel's word.
    Descends(JobId),
    /// Of its own will: it is in the slice, and not of the job's tree.
    Joined(JobId),
}

impl Kinship {
    pub fn job(self) -> Option<JobId> {
        match self {
            Self::None => None,
            Self::Descends(job) | Self::Joined(job) => Some(job),
        }
    }
}

/// What has become of a pid that the driver lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    Here(Person),
    /// It was here before and has ended, or its pid is somebody's who was not born when the driver was asked.
    Departed,
    /// Nobody here has that pid, and nobody had it before.
    Unheard,
}

/// Everybody that the driver listed last.
#[derive(Debug, Default)]
pub struct Kin {
    known: HashMap<u32, Known>,
    abroad: Abroad,
}

#[derive(Clone, Debug)]
struct Known {
    person: Person,
    /// Version of the roster that its kinship was found by.
    version: u64,
    /// What was seen inside when it held so much.
    inside: Option<(Option<Bytes>, Inside)>,
}

impl Kin {
    /// Who has `pid`. `began`: when the driver was asked, in ticks since boot.
    pub fn meet(&mut self, pid: u32, began: u64, roster: &Roster) -> Met {
        let known = self.known.get(&pid);
        let Some(process) = Process::with_pid(pid).filter(|process| process.is_alive()) else {
            return match known {
                Some(_) => Met::Departed,
                None => Met::Unheard,
            };
        };
        if process.start_time >= began {
            return Met::Departed;
        }
        match known.filter(|known| known.person.process == process) {
            Some(Known {
                person, version, ..
            }) if *version == roster.version() || person.kinship != Kinship::None => {
                Met::Here(*person)
            }
            known => {
                let own = known.map_or_else(|| inside::own(pid), |known| known.person.own);
                let descent = self.descent(process, roster);
                let person = Person {
                    process,
                    own,
                    kinship: descent.map_or(Kinship::None, Kinship::Descends),
                };
                self.keep(person, roster.version());
                Met::Here(person)
            }
        }
    }

    /// A process that is nobody's has a slot in the job's slice, and has that slice mapped.
    pub fn joined(&mut self, person: Person, job: JobId, roster: &Roster) -> Person {
        let person = Person {
            kinship: Kinship::Joined(job),
            ..person
        };
        self.keep(person, roster.version());
        person
    }

    /// What is to be seen inside; looked at again only when it holds more or less than then.
    pub fn inside(&mut self, pid: u32, used: Option<Bytes>, marks: &Marks) -> Inside {
        let Some(known) = self.known.get_mut(&pid) else {
            return inside::look(pid, marks);
        };
        match known.inside {
            Some((then, inside)) if then == used => inside,
            _ => {
                let inside = inside::look(pid, marks);
                known.inside = Some((used, inside));
                inside
            }
        }
    }

    /// Those of `owners` that were of a container and have ended. `met`: namespaces that may be a container's, of which no process
    /// is known by itself.
    pub fn gone_abroad(
        &mut self,
        owners: impl Iterator<Item = Owner>,
        met: &BTreeSet<u64>,
        roster: &Roster,
    ) -> HashSet<Owner> {
        self.abroad
            .gone(owners, &roster.namespaces(), met, Instant::now())
    }

    /// Forgets everybody whom the driver does not list any more.
    pub fn retain(&mut self, listed: impl Fn(u32) -> bool) {
        self.known.retain(|pid, _| listed(*pid));
    }

    fn keep(&mut self, person: Person, version: u64) {
        let known = Known {
            person,
            version,
            inside: None,
        };
        self.known.insert(person.process.pid, known);
    }

    /// The nearest job above a process: of one that was started by a program of another job, its own.
    pub fn descent(&self, process: Process, roster: &Roster) -> Option<JobId> {
        let line = process::ancestry(process);
        let by_blood = line.iter().find_map(|member| {
            let before = self
                .known
                .get(&member.process.pid)
                .filter(|known| known.person.process == member.process);
            let before = before.and_then(|known| match known.person.kinship {
                Kinship::Descends(job) => Some(job),
                Kinship::None | Kinship::Joined(_) => None,
            });
            roster
                .job_of(member.process)
                .or(before)
                .or_else(|| roster.led(member.session))
        });
        let by_group = || {
            let group = roster.has_groups().then(|| cgroup::of(process.pid))??;
            // If it has ended meanwhile, another process may have its pid.
            let is_it = Process::with_pid(process.pid) == Some(process);
            roster.of_group(&group).filter(|_| is_it)
        };
        let by_mount = || {
            let places = roster.has_mounted().then(|| mounts::above(process));
            roster.mounted(&places?)
        };
        by_blood.or_else(by_group).or_else(by_mount).or_else(|| {
            let namespace = inside::namespace(process.pid)?;
            // A process that has ended meanwhile has left its pid to anybody.
            line.first().and_then(|_| roster.of_namespace(namespace))
        })
    }
}

#[cfg(test)]
mod tests;
