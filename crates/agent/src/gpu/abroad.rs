//! Processes that call themselves by the pids of another namespace, as those in containers do: which of them have ended?
//!
//! A slot says the pid that its process knows. From here such a process is found by that pid, its start time and its namespace, once;
//! from then on by the pid it has here. Only namespaces that are seen from here are judged: those of a job's own first processes, and
//! others once a process was seen in them. From the machine's first namespace all are seen.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use divvy_ledger::Owner;

use crate::clock::Instant;
use crate::process::{self, Process, inside};

/// Between two searches through all processes: a job can write any number of owners who never were.
const REST: Duration = Duration::from_secs(1);

/// Who is who.
#[derive(Debug, Default)]
pub struct Abroad {
    known: HashMap<Owner, Process>,
    gone: HashSet<Owner>,
    /// Namespaces in which somebody was seen.
    peopled: BTreeSet<u64>,
    searched: Option<Instant>,
}

/// The inode of the machine's first PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST: u64 = 0xEFFF_FFFC;

impl Abroad {
    /// Those of `owners` that have ended by `now`, of the namespaces in `seen`, and of those in `met` that turn out to be seen from
    /// here.
    pub fn gone(
        &mut self,
        owners: impl Iterator<Item = Owner>,
        seen: &BTreeSet<u64>,
        met: &BTreeSet<u64>,
        now: Instant,
    ) -> HashSet<Owner> {
        let all: BTreeSet<u64> = seen.union(met).copied().collect();
        let owners: HashSet<Owner> = owners
            .filter(|owner| all.contains(&owner.pid_namespace))
            .collect();
        self.peopled.retain(|namespace| all.contains(namespace));
        self.known.retain(|owner, _| owners.contains(owner));
        self.gone.retain(|owner| owners.contains(owner));
        let is_new = |owner: &&Owner| !self.known.contains_key(owner) && !self.gone.contains(owner);
        let new: Vec<Owner> = owners.iter().filter(is_new).copied().collect();
        let rested = self
            .searched
            .is_none_or(|last| now.saturating_duration_since(last) >= REST);
        if !new.is_empty() && rested {
            self.searched = Some(now);
            let here = everybody(&all);
            let peopled = here.keys().map(|owner| owner.pid_namespace);
            self.peopled.extend(peopled);
            let sees_all = process::here() == FIRST;
            for owner in new {
                let namespace = owner.pid_namespace;
                let is_seen =
                    sees_all || seen.contains(&namespace) || self.peopled.contains(&namespace);
                match here.get(&owner) {
                    Some(process) => drop(self.known.insert(owner, *process)),
                    None if is_seen => drop(self.gone.insert(owner)),
                    // It may live where nobody is seen from here.
                    None => {}
                }
            }
        }
        for (owner, process) in &self.known {
            if !process.is_alive() {
                self.gone.insert(*owner);
            }
        }
        self.known.retain(|owner, _| !self.gone.contains(owner));
        self.gone.clone()
    }
}

/// Everybody in these namespaces, by what they call themselves.
fn everybody(namespaces: &BTreeSet<u64>) -> HashMap<Owner, Process> {
    let mut found = HashMap::new();
    for process in process::everybody() {
        let inside::Own { pid, namespace } = inside::own(process.pid);
        if let Some(namespace) = namespace.filter(|namespace| namespaces.contains(namespace)) {
            let owner = Owner {
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
    fn who_has_ended_is_told_and_who_was_never_there_too() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::with_pid(child.id()).unwrap();
        let own = inside::own(child.id());
        let namespace = own.namespace.unwrap();
        let owner = Owner {
            pid: own.pid,
            start_time: process.start_time,
            pid_namespace: namespace,
        };
        let never = Owner {
            start_time: owner.start_time + 1,
            ..owner
        };
        let elsewhere = Owner {
            pid_namespace: namespace + 1,
            ..owner
        };
        let (mut abroad, seen) = (Abroad::default(), BTreeSet::from([namespace]));
        let all = [owner, never, elsewhere];
        let (none, now) = (BTreeSet::new(), Instant::now());
        let mut gone = |owners: &[Owner]| abroad.gone(owners.iter().copied(), &seen, &none, now);
        assert_eq!(gone(&all), HashSet::from([never]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(gone(&all), HashSet::from([never, owner]));
        assert_eq!(gone(&[]), HashSet::new());
        // It was searched a moment ago: whoever is new waits for the next search.
        assert_eq!(gone(&all), HashSet::new());
    }

    #[test]
    fn of_a_namespace_that_nobody_was_seen_in_only_the_machines_first_one_can_tell() {
        let here = process::here();
        let of = |pid_namespace| Owner {
            pid: 1,
            start_time: u64::MAX,
            pid_namespace,
        };
        // This test lives in the one, and nobody in the other.
        let (peopled, empty) = (of(here), of(u64::from(u32::MAX) + 7));
        let met = BTreeSet::from([here, empty.pid_namespace]);
        let owners = [peopled, empty].into_iter();
        let gone = Abroad::default().gone(owners, &BTreeSet::new(), &met, Instant::now());
        assert!(gone.contains(&peopled));
        assert_eq!(gone.contains(&empty), here == FIRST);
    }
}
