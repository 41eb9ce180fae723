//! The registry of watched jobs: their slices, and the root process of each job's process tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use divvy_core::JobId;

use super::slice::GrantedSlice;
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
    version: u64,
}

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

    pub fn unregister(&mut self, job: JobId) {
        self.version += u64::from(self.entries.remove(&job).is_some());
        self.namespaces.retain(|_, whose| *whose != job);
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
        let is_its = |entry: &WatchedJob| entry.pods.iter().any(|uid| is_in_pod(groups, uid));
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

/// Whether a process with these control groups, the text of `/proc/PID/cgroup`, is in the pod with this uid. Kubelet
/// names a pod's group `podUID` (cgroupfs) or `kubepods-burstable-podUID.slice` with `_` for `-` (systemd), and no
/// process of a pod can leave it (`GetPodCgroupNameSuffix` in pkg/kubelet/cm/pod_container_manager_linux.go).
fn is_in_pod(groups: &str, uid: &str) -> bool {
    let names = [
        format!("pod{uid}"),
        format!("pod{}.slice", uid.replace('-', "_")),
    ];
    let ends = |part: &str| part == names[0] || part.ends_with(&names[1]);
    groups.lines().flat_map(|line| line.split('/')).any(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f9a3c1e-5d0b-4a53-9a2e-2f1f6f0d7c11";

    #[test]
    fn the_pod_of_a_process_is_known_by_either_driver_of_control_groups() {
        let burst = "kubepods-burstable-pod0f9a3c1e_5d0b_4a53_9a2e_2f1f6f0d7c11.slice";
        for groups in [
            format!("0::/kubepods/burstable/pod{UID}/4f1d"),
            format!("12:memory:/node/kubepods/pod{UID}/4f1d\n1:name=systemd:/"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/{burst}/cri-containerd-4f1d.scope"
            ),
        ] {
            assert!(is_in_pod(&groups, UID), "{groups}");
            assert!(!is_in_pod(&groups, "0f9a3c1e-5d0b-4a53-9a2e-2f1f6f0d7c12"));
        }
        for groups in [
            "0::/",
            "",
            "0::/system.slice/kubelet.service",
            "0::/user/xpod0",
        ] {
            assert!(!is_in_pod(groups, UID), "{groups}");
        }
    }
}
