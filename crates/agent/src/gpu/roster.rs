//! The slices that are looked at, and the processes that each job's tree grows from.

use std::collections::BTreeMap;

use divvy_core::JobId;
use divvy_ledger::Slice;

use crate::process::Process;
use crate::process::inside::Mark;

/// One job's slice.
#[derive(Clone, Debug)]
pub struct Entry {
    pub slice: Slice,
    /// Its slots file, which every process that has joined has mapped.
    pub slots: Mark,
    /// Its supervisor and its program, as far as they are known; also dead ones.
    pub roots: Vec<Process>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    entries: BTreeMap<JobId, Entry>,
    version: u64,
}

impl Roster {
    pub fn enlist(&mut self, job: JobId, entry: Entry) {
        self.entries.insert(job, entry);
        self.version += 1;
    }

    /// Adds a process that the job's tree grows from.
    pub fn root(&mut self, job: JobId, root: Process) {
        if let Some(entry) = self.entries.get_mut(&job)
            && !entry.roots.contains(&root)
        {
            entry.roots.push(root);
            self.version += 1;
        }
    }

    pub fn strike(&mut self, job: JobId) {
        self.version += u64::from(self.entries.remove(&job).is_some());
    }

    pub fn iter(&self) -> impl Iterator<Item = (JobId, &Entry)> {
        self.entries.iter().map(|(job, entry)| (*job, entry))
    }

    /// Changes whenever it does: what was nobody's may be somebody's then.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The job that a process is a root of.
    pub fn job_of(&self, root: Process) -> Option<JobId> {
        let mut entries = self.iter();
        entries
            .find(|(_, entry)| entry.roots.contains(&root))
            .map(|(job, _)| job)
    }

    /// The job whose supervisor led this session. The kernel keeps a session's number while it has members.
    pub fn led(&self, session: u32) -> Option<JobId> {
        let leads = |root: &Process| {
            let now = Process::with_pid(session);
            root.pid == session && now.is_none_or(|now| now == *root)
        };
        let mut entries = self.iter();
        entries
            .find(|(_, entry)| entry.roots.iter().any(leads))
            .map(|(job, _)| job)
    }
}
