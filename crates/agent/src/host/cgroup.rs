//! Control groups (cgroups(7), version 2): one for each job, so that all its processes can be found and killed at once.
//!
//! ```text
//! the daemon's own group, delegated to it
//!   divvy-INSTANCE-JOURNAL-JOB/   the program, born there, and all that descends from it; not the supervisor
//! ```
//! The kernel limits the number of processes by them: `pids` may be turned on in a group that has processes of its own
//! (cgroup-v2, "No Internal Process Constraint" and "Threads"). Where the kernel accounts device memory, the daemon
//! moves to a group below its unit's and turns `dmem` on, by which the driver limits a job's memory. Elsewhere a job is
//! its session and what its supervisor, a subreaper, takes in.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use divvy_core::JobId;
use serde::{Deserialize, Serialize};

use crate::host::process::{Process, proc_path};
use crate::host::task_limits::{self, TaskBound};

/// Members of the process; `0` written to it means the writer.
const PROCS: &str = "cgroup.procs";

/// Since Linux 5.14.
const KILL: &str = "cgroup.kill";

/// Controllers that a group has, controllers of the groups below, and processes that one may have.
const AVAILABLE: &str = "cgroup.controllers";
const CONTROLLERS: &str = "cgroup.subtree_control";
const PIDS: &str = "pids.max";

/// The group below the unit's that the fork server moves to, where the kernel accounts device memory.
const SUBGROUP: &str = "forkserver";

/// What follows the job in the name of its notification's group.
const NOTICE: &str = "-notice";

/// What separates the mount from its source in a line of mountinfo, for a file system of control groups.
const CGROUP2: &str = " - cgroup2 ";

/// How long what was killed may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The kernel ends processes within milliseconds; a longer pause would delay each job's end.
const LOOK: Duration = Duration::from_millis(2);

/// What holds a job's processes together, as its supervisor found it could be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupStatus {
    /// The job's group; absent where it is a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<PathBuf>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// What bounds their number. Only a supervisor says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<TaskBound>,
}

/// The group of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    folder: PathBuf,
    /// Its limit is to be taken off before it goes, by the daemon.
    stays: bool,
}

/// The control groups of an instance's jobs.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCgroups {
    /// What they are called, before the numbers of the jobs, or why there are none.
    pub prefix: Result<PathBuf, String>,
}

impl JobCgroups {
    pub fn of_instance(instance: &str) -> Self {
        Self {
            prefix: job_cgroup_prefix(instance),
        }
    }
}

/// What the groups of this instance's jobs are called, before their numbers, below the group of this process; or why
/// there can be none. `instance` ends with a part of the journal's name: a new journal begins with job 1 again, while
/// jobs of the one before may still run.
pub fn job_cgroup_prefix(instance: &str) -> Result<PathBuf, String> {
    let own = delegated_parent()?;
    let name = format!("divvy-{instance}-");
    probe_below(&own, &format!("{name}try"))?;
    // Where it cannot be turned on, the start of each job finds no `pids.max` and limits the job's user.
    let _ = fs::write(own.join(CONTROLLERS), "+pids");
    enable_device_memory(&own);
    Ok(own.join(name))
}

/// Turns on the controller of device memory (Linux 6.14) for the groups below, from the root down: where it is on, the
/// driver finds a group's limit in its `dmem.*` files. Root alone can, and no group between may have processes of its
/// own; the probe of the driver's limit says what came of it.
fn enable_device_memory(parent: &Path) {
    let Some(root) = mount_point().filter(|root| parent.starts_with(root)) else {
        return;
    };
    let mut above: Vec<&Path> = parent.ancestors().collect();
    above.reverse();
    for group in above.iter().filter(|group| group.starts_with(&root)) {
        if accounts_device_memory(group) {
            let _ = fs::write(group.join(CONTROLLERS), "+dmem");
        }
    }
}

/// Whether the kernel has the controller of device memory, for this group.
fn accounts_device_memory(group: &Path) -> bool {
    let available = fs::read_to_string(group.join(AVAILABLE)).unwrap_or_default();
    available.split_whitespace().any(|name| name == "dmem")
}

/// Moves this process from its unit's group to one of its own below, where the kernel accounts device memory: a group
/// with processes cannot give that controller to the groups of jobs (cgroup-v2, "No Internal Process Constraint").
/// `DelegateSubgroup=` of systemd 254 does the same, and older ones warn of it.
pub fn leave_unit_group() {
    let Some(own) = own().filter(|own| is_delegated(own) && accounts_device_memory(own)) else {
        return;
    };
    let below = own.join(SUBGROUP);
    let _ = fs::create_dir(&below);
    // Where it stays in the unit's group, the probe of the driver's limit says that the controller is off.
    let _ = fs::write(below.join(PROCS), "0");
}

/// `divvy-0badcafe-` of `divvy-0badcafe-12345678-`.
fn of_every_journal(prefix: &str) -> String {
    let words: Vec<&str> = prefix.split_inclusive('-').take(2).collect();
    words.concat()
}

/// The groups of this instance's jobs, of earlier journals too, and of earlier versions, whose names had no journal.
pub fn job_groups(prefix: &Path) -> Vec<(JobId, Cgroup)> {
    let of_job = |(rest, group): (String, Cgroup)| {
        let job: u32 = rest.rsplit('-').next()?.parse().ok()?;
        Some((JobId(job.into()), group))
    };
    groups_here(prefix).into_iter().filter_map(of_job).collect()
}

/// Removes groups of notifications that ended unseen; one that is in use stays.
pub fn remove_notices(prefix: &Path) {
    for (rest, group) in groups_here(prefix) {
        if rest.ends_with(NOTICE) {
            group.remove_if_empty();
        }
    }
}

/// All groups of this instance, each with what follows the instance in its name.
fn groups_here(prefix: &Path) -> Vec<(String, Cgroup)> {
    let (Some(own), Some(name)) = (prefix.parent(), prefix.file_name()) else {
        return Vec::new();
    };
    let all = of_every_journal(&name.to_string_lossy());
    let found = fs::read_dir(own).into_iter().flatten().flatten();
    let of_instance = |entry: fs::DirEntry| {
        let rest = entry.file_name().to_str()?.strip_prefix(&all)?.to_owned();
        Some((rest, Cgroup::at(entry.path())))
    };
    found.filter_map(of_instance).collect()
}

/// The group of this process, unless it is systemd's alone; or why there can be no groups below it.
///
/// # Errors
/// In words.
pub fn delegated_parent() -> Result<PathBuf, String> {
    let mut own = own().ok_or("this machine has no cgroup v2")?;
    // This process has moved below its unit's group: see `leave_unit_group`.
    if own.file_name().is_some_and(|name| name == SUBGROUP) {
        own.pop();
    }
    match Path::new("/run/systemd/system").is_dir() && !is_delegated(&own) {
        true => Err(format!(
            "systemd manages {}: only a unit with Delegate=yes may create groups below it",
            own.display()
        )),
        false => Ok(own),
    }
}

/// Makes a group of this name below another and removes it again: whether jobs of this process can have groups there.
///
/// # Errors
/// Why not, in words.
pub fn probe_below(own: &Path, name: &str) -> Result<(), String> {
    let tried = own.join(name);
    match fs::create_dir(&tried) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(format!(
                "cannot create a group in {}: {error}",
                own.display()
            ));
        }
        _ => {}
    }
    let can_kill = tried.join(KILL).exists();
    let _ = fs::remove_dir(&tried);
    match can_kill {
        true => Ok(()),
        false => Err(format!("this kernel has no {KILL}, which Linux 5.14 added")),
    }
}

/// Why the groups below this one count no processes; `None` where they can.
pub fn pids_unavailable_reason(own: &Path) -> Option<String> {
    let available = fs::read_to_string(own.join(AVAILABLE)).unwrap_or_default();
    let is_there = available.split_whitespace().any(|name| name == "pids");
    (!is_there).then(|| format!("{} has no pids controller", own.display()))
}

/// The group that a process is in, as a folder.
pub fn cgroup_of(pid: u32) -> Option<PathBuf> {
    find(&groups_of(pid)?, cgroup2_mounts()?)
}

/// The lines of `/proc/self/mountinfo` about control groups, read once: an observation asks for the group of each
/// process that holds memory of a GPU, and a host of containers has thousands of mounts. `None` while there are no such
/// lines.
fn cgroup2_mounts() -> Option<&'static str> {
    static MOUNTS: OnceLock<String> = OnceLock::new();
    if let Some(known) = MOUNTS.get() {
        return Some(known);
    }
    let all = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let lines = all.split_inclusive('\n');
    let of_groups: String = lines.filter(|line| line.contains(CGROUP2)).collect();
    (!of_groups.is_empty()).then(|| MOUNTS.get_or_init(|| of_groups).as_str())
}

/// Types of the file systems of control groups, from `linux/magic.h`.
const FILE_SYSTEMS: [i64; 2] = [0x6367_7270, 0x0027_e0eb];

/// The inode of the control group with this folder; `None` where there is none at present.
///
/// # Errors
/// Those of the kernel, and `EINVAL` for a folder that is no control group, or the root of all.
pub fn id(folder: &Path) -> io::Result<Option<u64>> {
    use std::os::unix::fs::MetadataExt as _;
    #[allow(
        clippy::unnecessary_cast,
        reason = "the field's type differs between architectures"
    )]
    let is_group = |path: &Path| {
        let stat = rustix::fs::statfs(path)?;
        Ok::<_, io::Error>(FILE_SYSTEMS.contains(&(stat.f_type as i64)))
    };
    let not_a_group = || io::Error::new(io::ErrorKind::InvalidInput, "not a control group");
    let parent = folder.parent().ok_or_else(not_a_group)?;
    let is_absent = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    };
    let mut above = parent;
    let is_below_group = loop {
        match is_group(above) {
            Err(error) if is_absent(&error) => above = above.parent().ok_or_else(not_a_group)?,
            other => break other?,
        }
    };
    if !is_below_group {
        return Err(not_a_group());
    }
    match fs::symlink_metadata(folder) {
        Ok(meta) if meta.is_dir() => Ok(Some(meta.ino())),
        Ok(_) => Err(not_a_group()),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The groups that a process is in, of every hierarchy: the text of `/proc/PID/cgroup`.
pub fn groups_of(pid: u32) -> Option<String> {
    fs::read_to_string(proc_path(pid, "cgroup")).ok()
}

/// The control group of this process, or of its fork server at the first call: neither ever moves.
fn own_cached() -> Option<PathBuf> {
    static OWN_CGROUP: OnceLock<Option<PathBuf>> = OnceLock::new();
    OWN_CGROUP.get_or_init(own).clone()
}

/// Finds out once for all copies of this process which group it is in: what the kernel says of all mounts is long.
pub fn cache_own() {
    let _ = own_cached();
}

/// The group that this process is in, as a folder.
pub fn own() -> Option<PathBuf> {
    seen(Path::new("/proc/self/cgroup"))
}

/// The folder of the whole hierarchy.
pub fn mount_point() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    find("0::/", &mounts)
}

fn seen(groups: &Path) -> Option<PathBuf> {
    let groups = fs::read_to_string(groups).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    find(&groups, &mounts)
}

/// By what proc(5) says of `/proc/PID/cgroup` and `/proc/PID/mountinfo`.
fn find(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (place, _) = line.split_once(CGROUP2)?;
        let mut fields = place.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let below = Path::new(group).strip_prefix(root).ok()?;
        // The root's own group is `/`, which leaves nothing to append.
        Some(Path::new(at).join(below).components().collect())
    })
}

/// Whether systemd gave the group away (systemd.resource-control(5), `Delegate=`): it says so in an extended attribute.
fn is_delegated(own: &Path) -> bool {
    let mut value = [0; 8];
    own.ancestors().any(|group| {
        ["trusted.delegate", "user.delegate"].iter().any(|name| {
            rustix::fs::getxattr(group, *name, &mut value[..])
                .is_ok_and(|length| value.get(..length) == Some(b"1"))
        })
    })
}

impl Cgroup {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            folder: path.into(),
            stays: false,
        }
    }

    /// The same, which this process empties and leaves to the daemon.
    #[must_use]
    pub fn staying(self, stays: bool) -> Self {
        Self { stays, ..self }
    }

    /// The one of this job, by what `stem` answered.
    pub fn of(stem: &Path, job: JobId) -> PathBuf {
        let mut name = stem.as_os_str().to_owned();
        name.push(job.to_string());
        name.into()
    }

    /// The one of the notification of this job.
    pub fn of_notice(stem: &Path, job: JobId) -> PathBuf {
        let mut name = Self::of(stem, job).into_os_string();
        name.push(NOTICE);
        name.into()
    }

    /// Makes the group, unless the daemon has, and opens the way into it and back. Done before anything is mounted:
    /// what a path leads to afterwards is another matter.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub fn create(&self) -> io::Result<CgroupEntry> {
        let before = own_cached().ok_or(io::ErrorKind::Unsupported)?;
        // A new group would not have the limit.
        if !self.stays {
            self.make()?;
        }
        let tasks = self.set_max_tasks(task_limits::max_tasks_per_job());
        let open = || {
            Ok(CgroupEntry {
                group: self.clone(),
                max_tasks: tasks,
                folder: File::open(&self.folder)?,
                enter_procs: to_write(&self.folder.join(PROCS))?,
                leave_procs: to_write(&before.join(PROCS))?,
            })
        };
        open().inspect_err(|_| self.remove_if_empty())
    }

    /// A job that forks without end must not keep others from their start. Answers how many processes the kernel lets
    /// it have; `None` where it does not count them.
    fn set_max_tasks(&self, most: Option<u64>) -> Option<u64> {
        let mut file = to_write(&self.folder.join(PIDS)).ok()?;
        let most = most?;
        file.write_all(most.to_string().as_bytes()).ok()?;
        Some(most)
    }

    /// Makes the group, if it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make(&self) -> io::Result<()> {
        match fs::create_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Removes it if nothing is in it.
    pub fn remove_if_empty(&self) {
        if self.stays {
            return;
        }
        let _ = fs::remove_dir(&self.folder);
    }

    /// Kills all of it, also what forks meanwhile.
    pub fn kill(&self) -> io::Result<()> {
        to_write(&self.folder.join(KILL))?.write_all(b"1")
    }

    /// Its processes that live.
    pub fn members(&self) -> Vec<Process> {
        let list = fs::read_to_string(self.folder.join(PROCS)).unwrap_or_default();
        let pids = list.lines().filter_map(|line| line.parse().ok());
        pids.filter_map(Process::with_pid)
            .filter(|process| process.is_alive())
            .collect()
    }

    /// Removes it, with whatever is still in it, or only what is in it.
    pub fn remove(&self) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        let is_gone = || match self.stays {
            true => self.members().is_empty(),
            false => fs::remove_dir(&self.folder)
                .map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true),
        };
        while !is_gone() {
            if Instant::now() > deadline {
                return;
            }
            let _ = self.kill();
            std::thread::sleep(LOOK);
        }
    }
}

/// A file of the kernel's, which is there or not: neither made nor cut short.
fn to_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// The way into a group, and back.
#[derive(Debug)]
pub struct CgroupEntry {
    group: Cgroup,
    max_tasks: Option<u64>,
    folder: File,
    enter_procs: File,
    leave_procs: File,
}

impl CgroupEntry {
    /// The group's folder, for a child created in it.
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// What bounds the number of processes in the group; or why nothing does.
    ///
    /// # Errors
    /// In words.
    pub fn task_bound(&self) -> Result<TaskBound, String> {
        let own = self.group.folder.parent().unwrap_or(&self.group.folder);
        let refused = || format!("the pids controller cannot be enabled in {}", own.display());
        self.max_tasks
            .map(|most| TaskBound::Group { most })
            .ok_or_else(|| pids_unavailable_reason(own).unwrap_or_else(refused))
    }

    /// Does this inside of the group, so that what it starts is born there. Going in waits for every processor of the
    /// machine.
    ///
    /// # Errors
    /// When this process cannot get in, and then nothing was done; or not out again.
    pub fn spawn_inside<T>(&mut self, work: impl FnOnce() -> T) -> io::Result<T> {
        if let Err(error) = self.enter_procs.write_all(b"0") {
            self.group.remove_if_empty();
            return Err(error);
        }
        let done = work();
        // A process that may enter a group may return to the parent group that it came from.
        self.leave_procs.write_all(b"0")?;
        Ok(done)
    }

    /// Nothing is to be started.
    pub fn give_up(self) {
        self.group.remove_if_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_below_the_root_of_control_groups_is_one() {
        let folder = tempfile::tempdir().unwrap();
        for outside in [
            folder.path(),
            &folder.path().join("gone/gone"),
            Path::new("/"),
        ] {
            let error = id(outside).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{outside:?}");
        }
        let Some(own) = own().filter(|own| id(own).is_ok()) else {
            eprintln!("skipped: this process is in no control group of its own");
            return;
        };
        assert!(id(&own).unwrap().is_some());
        assert_eq!(id(&own.join("divvy-no-such-group/deeper")).unwrap(), None);
        assert!(id(&own.join("cgroup.procs")).is_err());
    }

    #[test]
    fn a_group_whose_processes_the_kernel_counts_is_bounded_and_another_is_let_be() {
        let folder = tempfile::tempdir().unwrap();
        let group = Cgroup::at(folder.path());
        let file = folder.path().join(PIDS);
        assert_eq!(group.set_max_tasks(Some(150)), None);
        assert!(!file.exists(), "the controller is not on");
        fs::write(&file, "max").unwrap();
        assert_eq!(group.set_max_tasks(None), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), "max");
        assert_eq!(group.set_max_tasks(Some(150)), Some(150));
        assert_eq!(fs::read_to_string(&file).unwrap(), "150");
    }

    #[test]
    fn a_group_without_the_controller_says_so() {
        let folder = tempfile::tempdir().unwrap();
        for (available, counts) in [("cpu hugetlb", false), ("cpu pids", true)] {
            fs::write(folder.path().join(AVAILABLE), available).unwrap();
            assert_eq!(
                pids_unavailable_reason(folder.path()).is_none(),
                counts,
                "{available}"
            );
        }
    }

    #[test]
    fn the_own_group_is_found_under_whatever_is_mounted() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw - tmpfs none rw\n\
                      31 30 0:27 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n\
                      32 30 0:28 / /sys/fs/cgroup/unified rw shared:2 - cgroup2 none rw\n";
        let groups = "4:memory:/m\n0::/system.slice/divvy.service\n";
        let own = Path::new("/sys/fs/cgroup/unified/system.slice/divvy.service");
        assert_eq!(find(groups, mounts).as_deref(), Some(own));
        // In a container its own group is mounted alone.
        let inner = "9 8 0:28 /a/b /sys/fs/cgroup ro - cgroup2 cgroup ro\n";
        assert_eq!(
            find("0::/a/b/c", inner).as_deref(),
            Some(Path::new("/sys/fs/cgroup/c"))
        );
        assert_eq!(find("0::/x", inner), None);
        assert_eq!(find("4:memory:/m\n", mounts), None);
    }

    #[test]
    fn a_group_below_a_folder_of_no_control_group_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let refused = probe_below(folder.path(), "divvy-x-try").unwrap_err();
        assert!(refused.contains("cgroup.kill"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let missing = folder.path().join("missing");
        let refused = probe_below(&missing, "divvy-x-try").unwrap_err();
        assert!(refused.contains("cannot create a group"), "{refused}");
    }

    #[test]
    fn groups_of_jobs_of_every_journal_are_found_and_those_of_others_are_not() {
        let own = tempfile::tempdir().unwrap();
        for name in [
            "divvy-0badcafe-7",
            "divvy-0badcafe-12345678-8",
            "divvy-0badcafe-9abcdef0-9",
            "divvy-0badcafe-9abcdef0-9-notice",
            "divvy-0badcaff-10",
            "init.scope",
        ] {
            fs::create_dir(own.path().join(name)).unwrap();
        }
        let prefix = own.path().join("divvy-0badcafe-12345678-");
        let mut found = job_groups(&prefix);
        found.sort_by_key(|(job, _)| *job);
        let jobs: Vec<JobId> = found.iter().map(|(job, _)| *job).collect();
        assert_eq!(jobs, [7, 8, 9].map(JobId));
        assert_eq!(found[1].1, Cgroup::at(Cgroup::of(&prefix, JobId(8))));
    }

    #[test]
    fn a_jobs_group_lies_beside_those_of_others() {
        let group = Cgroup::of(Path::new("/g/divvy-0a-"), JobId(7));
        assert_eq!(group, Path::new("/g/divvy-0a-7"));
    }

    #[test]
    fn what_is_no_kernels_file_is_neither_made_nor_cut_short() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("library");
        assert!(to_write(&file).is_err());
        assert!(!file.exists());
        fs::write(&file, "whole").unwrap();
        to_write(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "whole");
    }

    #[test]
    fn where_no_group_can_be_made_nothing_is_started() {
        let group = Cgroup::at("/no/such/place/7");
        assert!(group.create().is_err());
        assert!(group.members().is_empty());
        group.remove();
    }
}
