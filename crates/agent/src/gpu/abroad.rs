//! Processes that call themselves by the pids of another namespace, as those in containers do: which of them have ended?
//!
//! A slot says the pid that its process knows. From here such a process is found by that pid, its start time and its namespace, once;
//! from then on by the pid it has here. Only namespaces that are seen from here are judged: those of a job's own first processes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use divvy_ledger::Owner;

use crate::process::{self, Process, inside};

/// Between two searches through all processes: a job can write any number of owners who never were.
const REST: Duration = Duration::from_secs(1);

/// Who is who.
#[derive(Debug, Default)]
pub struct Abroad {
    known: HashMap<Owner, Process>,
    gone: HashSet<Owner>,
    searched: Option<Instant>,
}

impl Abroad {
    /// Those of `owners` that have ended, of the namespaces in `seen`.
    pub fn gone(
        &mut self,
        owners: impl Iterator<Item = Owner>,
        seen: &BTreeSet<u64>,
    ) -> HashSet<Owner> {
        let owners: HashSet<Owner> = owners
            .filter(|owner| seen.contains(&owner.pid_namespace))
            .collect();
        self.known.retain(|owner, _| owners.contains(owner));
        self.gone.retain(|owner| owners.contains(owner));
        let is_new = |owner: &&Owner| !self.known.contains_key(owner) && !self.gone.contains(owner);
        let new: Vec<Owner> = owners.iter().filter(is_new).copied().collect();
        let rested = self.searched.is_none_or(|last| last.elapsed() >= REST);
        if !new.is_empty() && rested {
            self.searched = Some(Instant::now());
            let here = everybody(seen);
            for owner in new {
                match here.get(&owner) {
                    Some(process) => drop(self.known.insert(owner, *process)),
                    None => drop(self.gone.insert(owner)),
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
        let all = || [owner, never, elsewhere].into_iter();
        assert_eq!(abroad.gone(all(), &seen), HashSet::from([never]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(abroad.gone(all(), &seen), HashSet::from([never, owner]));
        assert_eq!(abroad.gone(std::iter::empty(), &seen), HashSet::new());
        // It was searched a moment ago: whoever is new waits for the next search.
        assert_eq!(abroad.gone(all(), &seen), HashSet::new());
    }
}
