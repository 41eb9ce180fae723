//! PID namespace translation: maps pids as containers and sandboxes see them to host pids, and finds slot owners that
//! have exited, or run another program.
//!
//! A slot says the pid that its process knows. From here such a process is found by that pid, its start time and its
//! namespace, once; from then on by the pid it has here. Only namespaces that are seen from here are judged: those of a
//! job's own first processes, and others once a process was seen in them. From the machine's first namespace all are
//! seen.
//!
//! `execve` keeps pid and start time. The owner runs another program if the driver has not listed it for two looks and
//! it does not map the slots file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use divvy_ledger::ProcessIdentity;

use crate::host::clock::Instant;
use crate::host::process::evidence::{self, KnownFile, maps_other_files};
use crate::host::process::{self, Process};

/// Between two scans of all processes: a job can write any number of owners that never existed. So they take a small
/// part of a processor, also on a host with many processes.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// The known processes by namespace and pid.
#[derive(Debug, Default)]
pub struct NamespacePids {
    host_processes: HashMap<ProcessIdentity, Process>,
    exited: HashSet<ProcessIdentity>,
    /// Namespaces in which a process was seen.
    observed_namespaces: BTreeSet<u64>,
    last_search: Option<Instant>,
    /// Owners that the driver did not list at the last look.
    unlisted: HashSet<ProcessIdentity>,
}

impl NamespacePids {
    /// Those of `owners` that have ended by `now`, of the namespaces in `seen`, and of those in `met` that turn out to
    /// be seen from here.
    pub fn update_exited(
        &mut self,
        owners: impl Iterator<Item = ProcessIdentity>,
        seen: &BTreeSet<u64>,
        met: &BTreeSet<u64>,
        now: Instant,
    ) -> HashSet<ProcessIdentity> {
        let all: BTreeSet<u64> = seen.union(met).copied().collect();
        let owners: HashSet<ProcessIdentity> = owners
            .filter(|owner| all.contains(&owner.pid_namespace))
            .collect();
        self.observed_namespaces
            .retain(|namespace| all.contains(namespace));
        self.host_processes
            .retain(|owner, _| owners.contains(owner));
        self.exited.retain(|owner| owners.contains(owner));
        let is_new = |owner: &&ProcessIdentity| {
            !self.host_processes.contains_key(owner) && !self.exited.contains(owner)
        };
        let new: Vec<ProcessIdentity> = owners.iter().filter(is_new).copied().collect();
        let rested = self
            .last_search
            .is_none_or(|last| now.saturating_duration_since(last) >= SEARCH_INTERVAL);
        if !new.is_empty() && rested {
            self.last_search = Some(now);
            let here = processes_in(&all);
            let peopled = here.keys().map(|owner| owner.pid_namespace);
            self.observed_namespaces.extend(peopled);
            let sees_all = process::sees_all();
            for owner in new {
                let namespace = owner.pid_namespace;
                let is_seen = sees_all
                    || seen.contains(&namespace)
                    || self.observed_namespaces.contains(&namespace);
                match here.get(&owner) {
                    Some(process) => drop(self.host_processes.insert(owner, *process)),
                    None if is_seen => drop(self.exited.insert(owner)),
                    // It may live in a namespace without a visible process.
                    None => {}
                }
            }
        }
        for (owner, process) in &self.host_processes {
            if !process.is_alive() {
                self.exited.insert(*owner);
            }
        }
        self.host_processes
            .retain(|owner, _| !self.exited.contains(owner));
        self.exited.clone()
    }

    /// Those of the living `owners` of slots, each with its slots file, that run another program. `listed`: whether the
    /// driver lists a pid; `None` where it did not list every process.
    pub fn update_replaced<'a>(
        &mut self,
        owners: impl Iterator<Item = (ProcessIdentity, &'a KnownFile)>,
        listed: Option<&dyn Fn(u32) -> bool>,
    ) -> HashSet<ProcessIdentity> {
        let Some(listed) = listed else {
            self.unlisted.clear();
            return HashSet::new();
        };
        let here = process::own_pid_namespace();
        let mut unlisted = HashSet::new();
        let mut replaced = HashSet::new();
        for (owner, slots) in owners {
            let process = match owner.pid_namespace == here {
                true => Some(Process {
                    pid: owner.pid,
                    start_time: owner.start_time,
                }),
                false => self.host_processes.get(&owner).copied(),
            };
            let Some(process) = process.filter(|process| !listed(process.pid)) else {
                continue;
            };
            unlisted.insert(owner);
            let is_second = self.unlisted.contains(&owner);
            // The pid may have passed on before its files were read.
            if is_second && maps_other_files(process.pid, slots) && process.is_alive() {
                replaced.insert(owner);
            }
        }
        self.unlisted = unlisted;
        replaced
    }
}

/// All processes in these namespaces, by their pid there.
fn processes_in(namespaces: &BTreeSet<u64>) -> HashMap<ProcessIdentity, Process> {
    let mut found = HashMap::new();
    for process in process::processes() {
        let evidence::NamespacedPid { pid, namespace } = evidence::namespaced_pid(process.pid);
        if let Some(namespace) = namespace.filter(|namespace| namespaces.contains(namespace)) {
            let owner = ProcessIdentity {
                pid,
                start_time: process.start_time,
                pid_namespace: namespace,
            };
            found.insert(owner, process);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn ended_and_unknown_processes_are_reported() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::with_pid(child.id()).unwrap();
        let own = evidence::namespaced_pid(child.id());
        let namespace = own.namespace.unwrap();
        let owner = ProcessIdentity {
            pid: own.pid,
            start_time: process.start_time,
            pid_namespace: namespace,
        };
        let never = ProcessIdentity {
            start_time: owner.start_time + 1,
            ..owner
        };
        let elsewhere = ProcessIdentity {
            pid_namespace: namespace + 1,
            ..owner
        };
        let (mut pids, seen) = (NamespacePids::default(), BTreeSet::from([namespace]));
        let all = [owner, never, elsewhere];
        let (none, now) = (BTreeSet::new(), Instant::now());
        let mut gone = |owners: &[ProcessIdentity]| {
            pids.update_exited(owners.iter().copied(), &seen, &none, now)
        };
        assert_eq!(gone(&all), HashSet::from([never]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(gone(&all), HashSet::from([never, owner]));
        assert_eq!(gone(&[]), HashSet::new());
        // It was searched a moment ago: a new process waits for the next search.
        assert_eq!(gone(&all), HashSet::new());
    }

    #[test]
    fn a_process_runs_another_program_once_the_driver_has_not_listed_it_for_two_looks() {
        let folder = tempfile::tempdir().unwrap();
        let [unmapped, mapped] = [
            folder.path().join("slots"),
            std::env::current_exe().unwrap(),
        ];
        std::fs::write(&unmapped, "").unwrap();
        let [unmapped, mapped] = [unmapped, mapped].map(|path| KnownFile::of(&path));
        let owner = ProcessIdentity::current();
        let mut pids = NamespacePids::default();
        let mut replaced = |slots: &KnownFile, listed: Option<bool>| {
            let answer = |_: u32| listed == Some(true);
            let listed = listed.map(|_| &answer as &dyn Fn(u32) -> bool);
            let owners = [(owner, slots)].into_iter();
            pids.update_replaced(owners, listed).contains(&owner)
        };
        // Each look: whether the driver lists it, and whether it is found then.
        for (listed, found) in [
            (Some(false), false),
            (Some(false), true),
            (Some(true), false),
            (Some(false), false),
            (None, false),
            (Some(false), false),
            (Some(false), true),
        ] {
            assert_eq!(replaced(&unmapped, listed), found);
        }
        assert!(!replaced(&mapped, Some(false)));
    }

    #[test]
    fn only_the_initial_namespace_reports_for_a_namespace_without_processes() {
        let here = process::own_pid_namespace();
        let of = |pid_namespace| ProcessIdentity {
            pid: 1,
            start_time: u64::MAX,
            pid_namespace,
        };
        // This test runs in the first one, and no process in the other.
        let (peopled, empty) = (of(here), of(u64::from(u32::MAX) + 7));
        let met = BTreeSet::from([here, empty.pid_namespace]);
        let owners = [peopled, empty].into_iter();
        let gone =
            NamespacePids::default().update_exited(owners, &BTreeSet::new(), &met, Instant::now());
        assert!(gone.contains(&peopled));
        assert_eq!(gone.contains(&empty), process::sees_all());
    }
}
