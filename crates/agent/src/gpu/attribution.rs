//! Attribution of GPU processes to jobs: by descent from a job's supervisor, by PID namespace, by control group, or by
//! a mapped slice.
//!
//! Descent is the kernel's information. A job's supervisor is a subreaper, so processes that its program daemonises
//! stay below it; once seen there, a process is the job's for as long as it lives. The same holds for every process in
//! the PID namespace of a job's container, also one that the container engine started in it later. It also holds for a
//! process in a job's control group or below it, also one that has killed its supervisor and left its session. Without
//! a supervisor, as with the claims of another scheduler, the slice mounted for the process decides. If the process has
//! left its container's mounts, the control group of its pod decides. A slot in a slice is the job's own statement, and
//! counts only for a process that has that slice mapped, which requires joining it.

use std::collections::{HashMap, HashSet};

use divvy_core::reconcile::Limiter;
use divvy_core::{Bytes, JobId};
use divvy_ledger::ProcessIdentity;

use super::pid_namespaces::NamespacePids;
use super::watched_jobs::WatchedJobs;
use crate::host::cgroup;
use crate::host::clock::Instant;
use crate::host::process::evidence::{self, KnownFile, KnownFiles, NamespacedPid};
use crate::host::process::{self, Process, mounts};

/// A process that the driver lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributedProcess {
    pub process: Process,
    pub namespaced_pid: NamespacedPid,
    pub ownership: Ownership,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    None,
    /// By the kernel's word.
    Descendant(JobId),
    /// Of its own will: it is in the slice, and not of the job's tree.
    Member(JobId),
    /// It is in the control group of a job that has been released, and so of no job.
    Released(JobId),
}

impl Ownership {
    pub fn job(self) -> Option<JobId> {
        match self {
            Self::None | Self::Released(_) => None,
            Self::Descendant(job) | Self::Member(job) => Some(job),
        }
    }
}

/// What has become of a pid that the driver lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidLookup {
    Found(AttributedProcess),
    /// It was here before and has ended, or its pid now belongs to a process born after the driver was asked.
    Exited,
    /// No process here has that pid, and none had it before.
    Unknown,
}

/// All processes in the driver's last lists.
#[derive(Debug)]
pub struct Attribution {
    known: HashMap<u32, KnownProcess>,
    namespace_pids: NamespacePids,
    /// A listed pid is that of the memory's holder. In a PID namespace below the machine's first one the driver may mean
    /// another process, and the one here must have the driver open.
    pub are_pids_certain: bool,
}

/// What was seen inside a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEvidence {
    pub limiter: Limiter,
    /// The driver lists another process under this pid.
    pub is_another: bool,
}

#[derive(Clone, Debug)]
struct KnownProcess {
    attributed: AttributedProcess,
    /// Version of the roster that its kinship was found by.
    version: u64,
    /// What was seen inside when it held so much.
    evidence: Option<(Option<Bytes>, ProcessEvidence)>,
}

impl Default for Attribution {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            namespace_pids: NamespacePids::default(),
            are_pids_certain: process::sees_all(),
        }
    }
}

impl Attribution {
    /// The process that has `pid`. `began`: when the driver was asked, in ticks since boot.
    pub fn lookup(&mut self, pid: u32, began: u64, roster: &WatchedJobs) -> PidLookup {
        let known = self.known.get(&pid);
        let Some(process) = Process::with_pid(pid).filter(|process| process.is_alive()) else {
            return match known {
                Some(_) => PidLookup::Exited,
                None => PidLookup::Unknown,
            };
        };
        if process.start_time >= began {
            return PidLookup::Exited;
        }
        match known.filter(|known| known.attributed.process == process) {
            Some(KnownProcess {
                attributed: person,
                version,
                ..
            }) if *version == roster.version() || person.ownership.job().is_some() => {
                PidLookup::Found(*person)
            }
            known => {
                let own = known.map_or_else(
                    || evidence::namespaced_pid(pid),
                    |known| known.attributed.namespaced_pid,
                );
                let released = || {
                    let job = released_job(process, roster)?;
                    Some(Ownership::Released(job))
                };
                let owning = self.owning_job(process, roster);
                let ownership = owning.map(Ownership::Descendant).or_else(released);
                let person = AttributedProcess {
                    process,
                    namespaced_pid: own,
                    ownership: ownership.unwrap_or(Ownership::None),
                };
                self.insert(person, roster.version());
                PidLookup::Found(person)
            }
        }
    }

    /// Records an unattributed process that has a slot in the job's slice and has that slice mapped.
    pub fn record_member(
        &mut self,
        person: AttributedProcess,
        job: JobId,
        roster: &WatchedJobs,
    ) -> AttributedProcess {
        let person = AttributedProcess {
            ownership: Ownership::Member(job),
            ..person
        };
        self.insert(person, roster.version());
        person
    }

    /// The evidence found inside; read again only when it holds more or less than then.
    pub fn evidence(
        &mut self,
        pid: u32,
        used: Option<Bytes>,
        marks: &KnownFiles,
    ) -> ProcessEvidence {
        let known = self.known.get_mut(&pid);
        let before = known.as_ref().and_then(|known| known.evidence);
        if let Some((_, inside)) = before.filter(|(then, _)| *then == used) {
            return inside;
        }
        let has_driver = || evidence::has_driver(pid, marks);
        let inside = ProcessEvidence {
            limiter: evidence::find_limiter(pid, marks),
            is_another: !self.are_pids_certain && has_driver() == Some(false),
        };
        if let Some(known) = known {
            known.evidence = Some((used, inside));
        }
        inside
    }

    /// Those of `owners`, each with its slots file, that are of another PID namespace and have ended, or that run
    /// another program. `listed`: whether the driver lists a pid; `None` where it did not list every process.
    pub fn ended_owners(
        &mut self,
        owners: &[(ProcessIdentity, &KnownFile)],
        listed: Option<&dyn Fn(u32) -> bool>,
        roster: &WatchedJobs,
    ) -> HashSet<ProcessIdentity> {
        let here = process::own_pid_namespace();
        let identities = || owners.iter().map(|(owner, _)| *owner);
        let namespaces = identities().map(|owner| owner.pid_namespace);
        let met = namespaces.filter(|namespace| *namespace != here).collect();
        let pids = &mut self.namespace_pids;
        let mut ended =
            pids.update_exited(identities(), &roster.namespaces(), &met, Instant::now());
        ended.extend(pids.update_replaced(owners.iter().copied(), listed));
        ended
    }

    /// Forgets all processes that the driver does not list any more.
    pub fn retain(&mut self, listed: impl Fn(u32) -> bool) {
        self.known.retain(|pid, _| listed(*pid));
    }

    fn insert(&mut self, person: AttributedProcess, version: u64) {
        let known = KnownProcess {
            attributed: person,
            version,
            evidence: None,
        };
        self.known.insert(person.process.pid, known);
    }

    /// The nearest job above a process: of one that was started by a program of another job, its own.
    pub fn owning_job(&self, process: Process, roster: &WatchedJobs) -> Option<JobId> {
        let line = process::ancestry(process);
        let by_blood = line.iter().find_map(|member| {
            let before = self
                .known
                .get(&member.process.pid)
                .filter(|known| known.attributed.process == member.process);
            let before = before.and_then(|known| match known.attributed.ownership {
                Ownership::Descendant(job) => Some(job),
                Ownership::None | Ownership::Member(_) | Ownership::Released(_) => None,
            });
            roster
                .job_of(member.process)
                .or(before)
                .or_else(|| roster.job_of_session(member.session))
        });
        let by_group = || {
            let group = roster
                .has_groups()
                .then(|| cgroup::cgroup_of(process.pid))??;
            // If it has ended meanwhile, another process may have its pid.
            let is_it = Process::with_pid(process.pid) == Some(process);
            roster.job_of_cgroup(&group).filter(|_| is_it)
        };
        let by_mount = || {
            let places = roster.has_mounted().then(|| mounts::mount_sources(process));
            roster.job_of_mount(&places?)
        };
        // A process that has left its container's mounts behind, with a user namespace or the right to mount.
        let by_pod = || {
            let groups = roster
                .has_pods()
                .then(|| cgroup::groups_of(process.pid))??;
            let is_it = Process::with_pid(process.pid) == Some(process);
            roster.job_of_pod(&groups).filter(|_| is_it)
        };
        let known = by_blood.or_else(by_group).or_else(by_mount).or_else(by_pod);
        known.or_else(|| {
            let namespace = evidence::pid_namespace(process.pid)?;
            // An ended process has left its pid to any other.
            line.first()
                .and_then(|_| roster.job_of_namespace(namespace))
        })
    }
}

/// The released job in whose control group a process is.
fn released_job(process: Process, roster: &WatchedJobs) -> Option<JobId> {
    if !roster.has_released() {
        return None;
    }
    let (group, groups) = (
        cgroup::cgroup_of(process.pid),
        cgroup::groups_of(process.pid),
    );
    // If it has ended meanwhile, another process may have its pid.
    let is_it = Process::with_pid(process.pid) == Some(process);
    let found = roster.released_job(group.as_deref(), groups.as_deref().unwrap_or_default());
    found.filter(|_| is_it)
}

#[cfg(test)]
mod tests;
