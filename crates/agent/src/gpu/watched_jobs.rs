//! The registry of watched jobs: their slices, and the root process of each job's process tree.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use divvy_core::JobId;

use super::slice::GrantedSlice;
use crate::host::cgroup;
use crate::host::machine::machine;
use crate::host::node_pods::pods_of;
use crate::host::process::evidence::{self, KnownFile};
use crate::host::process::mounts::MountSource;
use crate::host::process::{self, Process};

/// A job that holds something.
#[derive(Clone, Debug)]
pub struct WatchedJob {
    /// `None` for a job on MIG instances: it has no ledger, and needs none.
    pub ledger: Option<SliceLedger>,
    /// Its supervisor and its program, as far as they are known; also dead ones.
    pub roots: Vec<Process>,
    /// What is mounted for its processes and for no others, where it has no supervisor.
    pub mounts: Vec<MountSource>,
    /// Its control group, once its supervisor has said which.
    pub cgroup: Option<PathBuf>,
    /// The uids of the Kubernetes pods that a claim is reserved for.
    pub pods: Vec<String>,
    /// Control groups in which the driver limits it.
    pub walls: Vec<PathBuf>,
}

impl WatchedJob {
    /// A job on MIG instances.
    pub fn without_ledger() -> Self {
        Self {
            ledger: None,
            roots: Vec::new(),
            mounts: Vec::new(),
            cgroup: None,
            pods: Vec::new(),
            walls: Vec::new(),
        }
    }
}

/// A job's slice in the ledger.
#[derive(Clone, Debug)]
pub struct SliceLedger {
    pub slice: Arc<GrantedSlice>,
    /// Its slots file, which every process that has joined has mapped.
    pub slots: KnownFile,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct WatchedJobs {
    entries: BTreeMap<JobId, WatchedJob>,
    /// PID namespaces of containers, with the job of each.
    namespaces: BTreeMap<u64, JobId>,
    /// Oldest first.
    released: VecDeque<Arc<ReleasedJob>>,
    version: u64,
}

/// A job whose slice was released, with the control groups in which a process of it may have stayed.
#[derive(Debug)]
struct ReleasedJob {
    job: JobId,
    /// Its control group and that group's inode. A group that is made anew at the same path has another.
    cgroup: Option<(PathBuf, u64)>,
    pods: Vec<String>,
}

/// Released jobs that are remembered; the oldest one is forgotten first. A node runs 110 pods at a time (kubelet's
/// default), so these are the last nine generations of pods, which end before their claims unless a user forced it.
pub const MOST_RELEASED: usize = 1024;

impl WatchedJobs {
    pub fn register(&mut self, job: JobId, entry: WatchedJob) {
        self.entries.insert(job, entry);
        self.version += 1;
    }

    /// Adds a process that the job's tree grows from.
    pub fn add_root(&mut self, job: JobId, root: Process) {
        if let Some(entry) = self.entries.get_mut(&job)
            && !entry.roots.contains(&root)
        {
            entry.roots.push(root);
            self.version += 1;
            let here = process::own_pid_namespace();
            let own = evidence::pid_namespace(root.pid);
            if let Some(namespace) = own.filter(|namespace| *namespace != here && root.is_alive()) {
                self.namespaces.insert(namespace, job);
            }
        }
    }

    /// The control group that the job's processes are born in.
    pub fn set_cgroup(&mut self, job: JobId, group: PathBuf) {
        if let Some(entry) = self.entries.get_mut(&job)
            && entry.cgroup.as_ref() != Some(&group)
        {
            entry.cgroup = Some(group);
            self.version += 1;
        }
    }

    /// The control groups in which the driver limits the job from now on.
    pub fn set_walls(&mut self, job: JobId, walls: Vec<PathBuf>) {
        if let Some(entry) = self.entries.get_mut(&job) {
            entry.walls = walls;
        }
    }

    /// Whether the driver limits a job's memory.
    pub fn is_walled(&self, job: JobId) -> bool {
        (self.entries.get(&job)).is_some_and(|entry| !entry.walls.is_empty())
    }

    /// Whether a process of a job is in none of the groups in which the driver limits the job.
    pub fn has_escaped(&self, job: JobId, pid: u32) -> bool {
        let walls = self.entries.get(&job).map(|entry| &entry.walls);
        // The group of an ended process is unknown.
        walls.is_some_and(|walls| {
            !walls.is_empty()
                && cgroup::cgroup_of(pid)
                    .is_some_and(|group| !walls.iter().any(|wall| group.starts_with(wall)))
        })
    }

    pub fn unregister(&mut self, job: JobId) {
        self.namespaces.retain(|_, whose| *whose != job);
        if let Some(entry) = self.entries.remove(&job) {
            self.version += 1;
            let cgroup = entry.cgroup.and_then(|folder| {
                let inode = machine().cgroup_id(&folder).ok().flatten()?;
                Some((folder, inode))
            });
            self.add_released(job, cgroup, entry.pods);
        }
    }

    /// Remembers the control groups of a job that has been released.
    pub fn add_released(&mut self, job: JobId, cgroup: Option<(PathBuf, u64)>, pods: Vec<String>) {
        if cgroup.is_none() && pods.is_empty() {
            return;
        }
        if self.released.len() >= MOST_RELEASED {
            self.released.pop_front();
        }
        let released = Arc::new(ReleasedJob { job, cgroup, pods });
        self.released.push_back(released);
        self.version += 1;
    }

    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Whether a job was released, and not placed again since.
    pub fn is_released(&self, job: JobId) -> bool {
        !self.has(job) && self.released.iter().any(|one| one.job == job)
    }

    /// The last released job with this control group or one above it, or of the pod with these groups.
    pub fn released_job(&self, group: Option<&Path>, groups: &str) -> Option<JobId> {
        let pods: Vec<String> = pods_of(groups).collect();
        let is_same = |folder: &Path, inode: u64| {
            group.is_some_and(|group| group.starts_with(folder))
                && machine()
                    .cgroup_id(folder)
                    .is_ok_and(|now| now == Some(inode))
        };
        let is_its = |one: &&Arc<ReleasedJob>| {
            let by_group = one.cgroup.as_ref();
            by_group.is_some_and(|(folder, inode)| is_same(folder, *inode))
                || one.pods.iter().any(|uid| pods.contains(uid))
        };
        self.released.iter().rev().find(is_its).map(|one| one.job)
    }

    pub fn has(&self, job: JobId) -> bool {
        self.entries.contains_key(&job)
    }

    /// Those with a ledger.
    pub fn ledgers(&self) -> impl Iterator<Item = (JobId, &SliceLedger)> {
        self.iter()
            .filter_map(|(job, entry)| Some((job, entry.ledger.as_ref()?)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (JobId, &WatchedJob)> {
        self.entries.iter().map(|(job, entry)| (*job, entry))
    }

    /// Changes with every change of the registry: an unattributed process may belong to a job then.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// PID namespaces that are a job's own.
    pub fn namespaces(&self) -> BTreeSet<u64> {
        self.namespaces.keys().copied().collect()
    }

    /// The job of the container with this PID namespace.
    pub fn job_of_namespace(&self, namespace: u64) -> Option<JobId> {
        self.namespaces.get(&namespace).copied()
    }

    /// Whether any job is known by what is mounted for its processes.
    pub fn has_mounted(&self) -> bool {
        self.entries.values().any(|entry| !entry.mounts.is_empty())
    }

    /// Whether any job is known by its control group.
    pub fn has_groups(&self) -> bool {
        self.entries.values().any(|entry| entry.cgroup.is_some())
    }

    /// The job with this control group, or with one above it.
    pub fn job_of_cgroup(&self, group: &Path) -> Option<JobId> {
        let above = |entry: &WatchedJob| {
            let own = entry.cgroup.as_ref().filter(|own| group.starts_with(own))?;
            Some(own.components().count())
        };
        let within = self
            .iter()
            .filter_map(|(job, entry)| Some((above(entry)?, job)));
        within.max_by_key(|(deep, _)| *deep).map(|(_, job)| job)
    }

    /// Whether any job is a claim of known pods.
    pub fn has_pods(&self) -> bool {
        self.entries.values().any(|entry| !entry.pods.is_empty())
    }

    /// The claim of the pod with these control groups; the oldest one if the pod has several.
    pub fn job_of_pod(&self, groups: &str) -> Option<JobId> {
        let pods: Vec<String> = pods_of(groups).collect();
        let is_its = |entry: &WatchedJob| entry.pods.iter().any(|uid| pods.contains(uid));
        let mut entries = self.iter();
        entries.find(|(_, entry)| is_its(entry)).map(|(job, _)| job)
    }

    /// The job that one of these places is mounted for.
    pub fn job_of_mount(&self, places: &[MountSource]) -> Option<JobId> {
        let is_its = |entry: &WatchedJob| entry.mounts.iter().any(|own| places.contains(own));
        let mut entries = self.iter();
        entries.find(|(_, entry)| is_its(entry)).map(|(job, _)| job)
    }

    /// The job that a process is a root of.
    pub fn job_of(&self, root: Process) -> Option<JobId> {
        let mut entries = self.iter();
        entries
            .find(|(_, entry)| entry.roots.contains(&root))
            .map(|(job, _)| job)
    }

    /// The job with a supervisor that led this session. The kernel keeps a session's number while it has members.
    pub fn job_of_session(&self, session: u32) -> Option<JobId> {
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
