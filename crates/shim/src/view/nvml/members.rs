//! The members of the slice: its processes, by their pids in the PID namespace of the calling process.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use divvy_ledger::{ProcessIdentity, ProcessState, ProcessUsage};

use crate::account::ProcessAccount;

/// One process of the slice, over all of its slots: it has several where it has loaded the driver in several namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Whether it lives; a dead one's memory may still be on its way back.
    pub lives: bool,
    /// Bytes now and at most, by position of the GPU in the slice.
    used: Vec<(u64, u64)>,
}

impl Member {
    /// Its charge on a GPU.
    pub fn used(&self, gpu: usize) -> u64 {
        self.used.get(gpu).map_or(0, |(now, _)| *now)
    }

    /// The most it was ever charged there.
    pub fn peak(&self, gpu: usize) -> u64 {
        self.used.get(gpu).map_or(0, |(_, peak)| *peak)
    }

    fn add(&mut self, usage: &ProcessUsage) {
        self.lives |= usage.state == ProcessState::Live;
        self.used.resize(usage.gpus.len(), (0, 0));
        for (sum, gpu) in self.used.iter_mut().zip(&usage.gpus) {
            let now = gpu.charged.saturating_add(gpu.overhead);
            sum.0 = sum.0.saturating_add(now);
            sum.1 = sum.1.saturating_add(gpu.peak.max(now));
        }
    }
}

/// By pid in the namespace of this process, which is the one that NVML's numbers are taken to be of.
pub struct Members(BTreeMap<u32, Member>);

impl Members {
    pub fn of(account: &ProcessAccount) -> Self {
        let mut members: BTreeMap<u32, Member> = BTreeMap::new();
        let mut elsewhere = None;
        let here = ProcessIdentity::current().pid_namespace;
        account.note_ended();
        let processes = account.slice().read().map(|now| now.processes());
        for process in processes.unwrap_or_default() {
            let owner = process.owner;
            let pid = if owner.pid_namespace == here {
                Some(owner.pid)
            } else {
                let inner = elsewhere.get_or_insert_with(|| inner_namespaces(here));
                inner.get(&(owner.pid_namespace, owner.pid)).copied()
            };
            if let Some(pid) = pid {
                members.entry(pid).or_default().add(&process);
            }
        }
        Members(members)
    }

    pub fn get(&self, pid: u32) -> Option<&Member> {
        self.0.get(&pid)
    }

    /// Members that hold memory of a GPU now, in order of their pids.
    pub fn on(&self, gpu: usize) -> impl Iterator<Item = (u32, &Member)> {
        self.0
            .iter()
            .filter(move |(_, member)| member.lives && member.used(gpu) > 0)
            .map(|(pid, member)| (*pid, member))
    }
}

/// Processes in PID namespaces inside this one: their namespace and number there, to their number here.
fn inner_namespaces(here: u64) -> BTreeMap<(u64, u32), u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = processes.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let namespace = fs::metadata(entry.path().join("ns/pid")).ok()?.ino();
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        (namespace != here).then_some(((namespace, innermost(&status)?), pid))
    });
    found.collect()
}

/// The last number of the line `NSpid`: the process's own.
fn innermost(status: &str) -> Option<u32> {
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_ledger::{GPUS, ProcessGpu};

    fn slot(state: ProcessState, charged: u64, peak: u64) -> ProcessUsage {
        let mut gpus = [ProcessGpu::default(); GPUS];
        gpus[1] = ProcessGpu {
            charged,
            overhead: 5,
            peak,
            ..ProcessGpu::default()
        };
        ProcessUsage {
            wakes: true,
            slot: 0,
            owner: ProcessIdentity::default(),
            state,
            gpus,
        }
    }

    #[test]
    fn a_process_with_several_slots_is_one_member() {
        let mut member = Member::default();
        member.add(&slot(ProcessState::Dead, 10, 30));
        assert!(!member.lives);
        member.add(&slot(ProcessState::Live, 20, 0));
        assert!(member.lives);
        assert_eq!((member.used(1), member.peak(1)), (15 + 25, 30 + 25));
        assert_eq!((member.used(0), member.used(GPUS)), (0, 0));
    }

    #[test]
    fn the_own_number_of_a_process_is_the_last() {
        assert_eq!(
            innermost("Name:\tx\nNSpid:\t4711\t17\t1\nNSpgid:\t9\n"),
            Some(1)
        );
        assert_eq!(innermost("NSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost("Pid:\t4711\n"), None);
    }
}
