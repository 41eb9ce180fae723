//! Processes outside any slice, by user and program.
//!
//! The user and the program of a process are read once in a while and not with every sample. The observer's thread
//! does it, so that no caller waits for `/proc` or for the user database.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use divvy_api::sync::lock;
use divvy_api::v1;
use divvy_core::Bytes;

use super::ObservedGpu;
use super::sample::{NodeSample, listed_processes};
use crate::host::clock::Instant;
use crate::host::process::{self, Process};
use crate::host::user_names::UserNames;

/// Most processes of a GPU that are described. More than a screen has room for; without a bound, a fork bomb would fill
/// each answer.
const MOST: usize = 32;

/// How long a program's name stands: a process may become another program. So a wrong name stands for ten seconds at
/// most; a shorter time would read `/proc` at each sample.
const KEPT: Duration = Duration::from_secs(10);

/// How long the first question for a user's name may take.
const NAME_TIMEOUT: Duration = Duration::from_millis(50);

/// A process that belongs to no slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideProcess {
    pub pid: u32,
    pub user: Option<String>,
    pub program: Option<String>,
    pub used: Option<Bytes>,
}

/// What was read of the processes in the last sample.
#[derive(Default)]
pub struct OutsideProcesses {
    known: Mutex<HashMap<Process, Known>>,
    users: UserNames,
}

#[derive(Clone, Debug)]
struct Known {
    uid: Option<u32>,
    program: Option<String>,
    at: Instant,
}

impl OutsideProcess {
    pub fn to_api(&self) -> v1::GpuProcess {
        v1::GpuProcess {
            pid: self.pid,
            user: self.user.clone(),
            program: self.program.clone(),
            memory_bytes: self.used.map(Bytes::get),
        }
    }
}

impl OutsideProcesses {
    /// Describes the processes of a sample that belong to no slice.
    pub fn describe(&self, sample: &mut NodeSample) {
        let people = &sample.processes;
        let identity = |pid: u32| people.get(&pid).map(|person| person.process);
        for gpu in &mut sample.gpus {
            gpu.outside = self.on_gpu(&gpu.observed, &gpu.unmanaged, identity);
        }
        let gpus = sample.gpus.iter();
        let listed = gpus.flat_map(|gpu| gpu.unmanaged.iter().filter_map(|pid| identity(*pid)));
        let listed: Vec<Process> = listed.collect();
        lock(&self.known).retain(|process, _| listed.contains(process));
    }

    /// These processes of a GPU, the largest first. `identity`: the process that has a pid here.
    pub fn on_gpu(
        &self,
        gpu: &ObservedGpu,
        pids: &[u32],
        identity: impl Fn(u32) -> Option<Process>,
    ) -> Vec<OutsideProcess> {
        let mut used: BTreeMap<u32, Option<Bytes>> = BTreeMap::new();
        for process in listed_processes(gpu).filter(|process| pids.contains(&process.pid)) {
            let known = used.entry(process.pid).or_default();
            *known = process.used.max(*known);
        }
        let mut found: Vec<(u32, Option<Bytes>)> = used.into_iter().collect();
        found.sort_by_key(|(pid, used)| (Reverse(*used), *pid));
        let found = found.into_iter().take(MOST);
        let described = found.map(|(pid, used)| {
            let known = identity(pid).map(|process| self.look_up(process));
            let (uid, program) = known.map_or((None, None), |known| (known.uid, known.program));
            OutsideProcess {
                pid,
                user: uid.map(|uid| self.users.name(uid, NAME_TIMEOUT)),
                program,
                used,
            }
        });
        described.collect()
    }

    fn look_up(&self, process: Process) -> Known {
        let known = lock(&self.known).get(&process).cloned();
        if let Some(known) = known.filter(|known| known.at.elapsed() < KEPT) {
            return known;
        }
        let known = Known {
            uid: process::user_of(process.pid),
            program: process::program_of(process.pid),
            at: Instant::now(),
        };
        lock(&self.known).insert(process, known.clone());
        known
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::GpuUuid;

    use super::*;
    use crate::gpu::GpuProcess;

    fn gpu(processes: Vec<GpuProcess>) -> ObservedGpu {
        ObservedGpu {
            processes,
            ..ObservedGpu::idle(GpuUuid::from_bytes([1; 16]), 0)
        }
    }

    fn process(pid: u32, used: Option<u64>) -> GpuProcess {
        GpuProcess {
            pid,
            used: used.map(Bytes::mib),
        }
    }

    #[test]
    fn a_process_has_its_user_its_program_and_its_memory() {
        let this = std::process::id();
        let all = OutsideProcesses::default();
        let gone = 4_000_000;
        let gpu = gpu(vec![
            process(gone, None),
            process(this, Some(1434)),
            process(1, Some(9000)),
        ]);
        let found = all.on_gpu(&gpu, &[this, gone], Process::with_pid);
        let uid = rustix::process::getuid().as_raw();
        let user = all.users.name(uid, Duration::from_secs(10));
        let program = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(
            found,
            [
                OutsideProcess {
                    pid: this,
                    user: Some(user),
                    program: Some(program.trim_end().to_owned()),
                    used: Some(Bytes::mib(1434)),
                },
                // Of a process in another namespace nothing is known here.
                OutsideProcess {
                    pid: gone,
                    user: None,
                    program: None,
                    used: None,
                },
            ]
        );
    }

    #[test]
    fn of_many_processes_the_largest_are_described() {
        let of = |pid: u32| process(pid, Some(u64::from(pid % 100)));
        let pids: Vec<u32> = (4_000_000..4_000_100).collect();
        let gpu = gpu(pids.iter().copied().map(of).collect());
        let found = OutsideProcesses::default().on_gpu(&gpu, &pids, |_| None);
        assert_eq!(found.len(), MOST);
        assert_eq!(found[0].used, Some(Bytes::mib(99)));
        assert!(found.is_sorted_by_key(|process| Reverse(process.used)));
    }
}
