use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use divvy_core::Bytes;
use divvy_ledger::{Control, GpuSpec, SliceSpec};
use rustix::process::Signal;

use super::*;
use crate::gpu::slice::GrantedSlice;
use crate::gpu::watched_jobs::{MOST_RELEASED, SliceLedger, WatchedJob};
use crate::host::cgroup::{self, Cgroup};
use crate::host::process::evidence::KnownFile;

const NOW: u64 = u64::MAX;

/// A tree of processes that a shell script makes; killed when dropped.
struct Tree {
    shell: Child,
    pids: Vec<u32>,
    /// Closed when dropped, which ends what has outlived the shell.
    _stdin: Option<std::process::ChildStdin>,
}

impl Tree {
    /// The script says the pids of `count` processes, one a line.
    fn of(script: &str, count: usize) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let pids = lines
            .take(count)
            .map(|line| line.unwrap().trim().parse().unwrap())
            .collect();
        let stdin = shell.stdin.take();
        Self {
            shell,
            pids,
            _stdin: stdin,
        }
    }

    fn process(&self, place: usize) -> Process {
        Process::with_pid(self.pids[place]).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// A child that says its pid and lives as long as the test holds the other end of its stdin.
const CHILD: &str = "exec 3<&0; sh -c 'echo $$; read x' <&3 & ";

fn entry(folder: &tempfile::TempDir, name: &str, roots: Vec<Process>) -> WatchedJob {
    let folder = folder.path().join(name);
    let spec = SliceSpec {
        id: name.into(),
        generation: 1,
        gpus: vec![GpuSpec {
            uuid: [1; 16],
            limit: Bytes::gib(1).get(),
            ..GpuSpec::default()
        }],
        ..SliceSpec::default()
    };
    Control::create(&folder, &spec).unwrap();
    WatchedJob {
        ledger: Some(SliceLedger {
            slice: GrantedSlice::open(&folder, spec).unwrap().into(),
            slots: KnownFile::of(&folder.join("slots")),
        }),
        roots,
        mounts: Vec::new(),
        cgroup: None,
        pods: Vec::new(),
        walls: Vec::new(),
    }
}

fn kinship(met: PidLookup) -> Ownership {
    match met {
        PidLookup::Found(person) => person.ownership,
        met => panic!("{met:?}"),
    }
}

#[test]
fn a_child_of_a_root_is_the_jobs_and_stays_so_when_the_root_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = Tree::of(&format!("{CHILD} echo $$; wait"), 2);
    let shell = Process::with_pid(tree.shell.id()).unwrap();
    let child = tree.pids.iter().find(|pid| **pid != shell.pid).copied();
    let child = child.unwrap();
    let mut roster = WatchedJobs::default();
    roster.register(JobId(3), entry(&folder, "3", vec![shell]));
    let mut kin = Attribution::default();
    let ours = Ownership::Descendant(JobId(3));
    assert_eq!(kinship(kin.lookup(child, NOW, &roster)), ours);
    assert_eq!(kinship(kin.lookup(shell.pid, NOW, &roster)), ours);
    tree.shell.kill().unwrap();
    tree.shell.wait().unwrap();
    assert_eq!(kin.lookup(shell.pid, NOW, &roster), PidLookup::Exited);
    assert_eq!(kinship(kin.lookup(child, NOW, &roster)), ours);
    Process::with_pid(child)
        .unwrap()
        .signal(Signal::KILL)
        .unwrap();
}

#[test]
fn an_unmanaged_process_is_attributed_once_its_root_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::of("echo $$; read x", 1);
    let mut roster = WatchedJobs::default();
    roster.register(JobId(3), entry(&folder, "3", Vec::new()));
    let mut kin = Attribution::default();
    let me = std::process::id();
    assert_eq!(kinship(kin.lookup(me, NOW, &roster)), Ownership::None);
    assert_eq!(
        kinship(kin.lookup(tree.pids[0], NOW, &roster)),
        Ownership::None
    );
    roster.add_root(JobId(3), tree.process(0));
    assert_eq!(
        kinship(kin.lookup(tree.pids[0], NOW, &roster)),
        Ownership::Descendant(JobId(3))
    );
    assert_eq!(kinship(kin.lookup(me, NOW, &roster)), Ownership::None);
}

#[test]
fn a_process_that_unmounts_what_the_claim_of_an_unknown_pod_has_mounted_is_unmanaged() {
    let folder = tempfile::tempdir().unwrap();
    let [own, point] = ["own", "point"].map(|name| folder.path().join(name));
    std::fs::create_dir(&own).unwrap();
    std::fs::create_dir(&point).unwrap();
    let mut roster = WatchedJobs::default();
    let mut claim = entry(&folder, "3", Vec::new());
    claim.mounts.extend(mounts::MountSource::of(&own));
    roster.register(JobId(3), claim);
    let (own, point) = (own.display(), point.display());
    let script = format!(
        "mount --bind {own} {point} && echo mounted; read x; umount {point}; echo gone; read x"
    );
    let mut child = Command::new("unshare")
        .args(["-rm", "sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // A `Kin` that has met the process before remembers the answer.
    let meet = || kinship(Attribution::default().lookup(child.id(), NOW, &roster));
    let said = lines.next().and_then(Result::ok);
    if said.as_deref() == Some("mounted") {
        assert_eq!(meet(), Ownership::Descendant(JobId(3)));
        stdin.write_all(b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "gone");
        assert_eq!(meet(), Ownership::None);
    } else {
        eprintln!("SKIPPED: unshare cannot mount here: {said:?}");
    }
    drop(stdin);
    child.wait().unwrap();
}

/// A control group of this name, in the first hierarchy of the machine that takes one.
fn group(name: &str) -> Option<std::path::PathBuf> {
    let own = cgroup::own();
    let older =
        ["freezer", "pids", "systemd"].map(|one| std::path::Path::new("/sys/fs/cgroup").join(one));
    let mut parents = own.into_iter().chain(older);
    parents.find_map(|parent| {
        let group = parent.join(name);
        std::fs::create_dir(&group).ok()?;
        group.join("cgroup.procs").exists().then_some(group)
    })
}

/// The control group of a pod, and two processes, the first of them in it.
fn in_pod(uid: &str) -> Option<(std::path::PathBuf, Tree)> {
    let group = group(&format!("pod{uid}"))?;
    let tree = Tree::of(&CHILD.repeat(2), 2);
    std::fs::write(group.join("cgroup.procs"), tree.pids[0].to_string()).unwrap();
    Some((group, tree))
}

#[test]
fn a_process_without_its_claims_mounts_is_known_by_the_group_of_its_pod() {
    let uid = format!("0f9a3c1e-5d0b-4a53-9a2e-{:012x}", std::process::id());
    let Some((group, tree)) = in_pod(&uid) else {
        eprintln!("SKIPPED: no control groups here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut roster = WatchedJobs::default();
    let mut claim = entry(&folder, "3", Vec::new());
    claim.mounts.extend(mounts::MountSource::of(folder.path()));
    roster.register(JobId(3), claim.clone());
    let mut kin = Attribution::default();
    let hidden = tree.pids[0];
    assert_eq!(kinship(kin.lookup(hidden, NOW, &roster)), Ownership::None);
    claim.pods = vec![uid];
    roster.register(JobId(3), claim);
    let ours = Ownership::Descendant(JobId(3));
    assert_eq!(kinship(kin.lookup(hidden, NOW, &roster)), ours);
    let other = tree.pids[1];
    assert_eq!(kinship(kin.lookup(other, NOW, &roster)), Ownership::None);
    drop(tree);
    Cgroup::at(group).remove();
}

#[test]
fn a_process_in_the_control_group_of_a_released_claim_is_known_and_is_no_jobs() {
    let uid = format!("1f9a3c1e-5d0b-4a53-9a2e-{:012x}", std::process::id());
    let Some((group, tree)) = in_pod(&uid) else {
        eprintln!("SKIPPED: no control groups here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut roster = WatchedJobs::default();
    let mut kin = Attribution::default();
    let left = tree.pids[0];
    assert_eq!(kinship(kin.lookup(left, NOW, &roster)), Ownership::None);
    let mut claim = entry(&folder, "3", Vec::new());
    claim.pods = vec![uid.clone()];
    roster.register(JobId(3), claim.clone());
    roster.unregister(JobId(3));
    let released = Ownership::Released(JobId(3));
    assert_eq!(kinship(kin.lookup(left, NOW, &roster)), released);
    assert_eq!(released.job(), None);
    assert_eq!(
        kinship(kin.lookup(tree.pids[1], NOW, &roster)),
        Ownership::None
    );
    // The pod has another claim: the process is that claim's.
    roster.register(JobId(4), claim);
    let ours = Ownership::Descendant(JobId(4));
    assert_eq!(kinship(kin.lookup(left, NOW, &roster)), ours);
    roster.unregister(JobId(4));
    assert!(roster.is_released(JobId(4)));
    // A restarted daemon reads the released claims from its journal.
    let (mut roster, mut kin) = (WatchedJobs::default(), Attribution::default());
    roster.add_released(JobId(3), None, vec![uid]);
    assert_eq!(kinship(kin.lookup(left, NOW, &roster)), released);
    drop(tree);
    Cgroup::at(group).remove();
}

#[test]
fn a_released_control_group_is_known_until_it_is_removed_and_their_number_has_a_bound() {
    let Some(group) = group(&format!("released-{}", std::process::id())) else {
        eprintln!("SKIPPED: no control groups here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut roster = WatchedJobs::default();
    let mut job = entry(&folder, "3", Vec::new());
    job.cgroup = Some(group.clone());
    roster.register(JobId(3), job);
    roster.unregister(JobId(3));
    let below = group.join("below");
    assert_eq!(roster.released_job(Some(&below), ""), Some(JobId(3)));
    Cgroup::at(&group).remove();
    assert_eq!(roster.released_job(Some(&below), ""), None);
    std::fs::create_dir(&group).unwrap();
    assert_eq!(
        roster.released_job(Some(&below), ""),
        None,
        "it is another group"
    );
    Cgroup::at(&group).remove();
    for id in 0..2 * MOST_RELEASED as u64 {
        roster.add_released(JobId(id), None, vec!["pod".to_owned()]);
    }
    assert!(!roster.is_released(JobId(MOST_RELEASED as u64 - 1)));
    assert!(roster.is_released(JobId(MOST_RELEASED as u64)));
}

#[test]
fn a_job_that_a_job_started_has_its_own_processes() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::of(
        "exec 3<&0; echo $$; sh -c 'echo $$; sh -c \"echo \\$\\$; read x\" <&3' <&3",
        3,
    );
    let mut roster = WatchedJobs::default();
    roster.register(JobId(3), entry(&folder, "3", vec![tree.process(0)]));
    roster.register(JobId(4), entry(&folder, "4", vec![tree.process(1)]));
    let mut kin = Attribution::default();
    assert_eq!(
        kinship(kin.lookup(tree.pids[2], NOW, &roster)),
        Ownership::Descendant(JobId(4))
    );
}

#[test]
fn a_pid_is_not_its_last_owners_and_not_one_that_came_after_the_question() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::of("echo $$; read x", 1);
    let process = tree.process(0);
    let before = Process {
        start_time: process.start_time - 1,
        ..process
    };
    let mut roster = WatchedJobs::default();
    roster.register(JobId(3), entry(&folder, "3", vec![before]));
    let mut kin = Attribution::default();
    assert_eq!(
        kinship(kin.lookup(process.pid, NOW, &roster)),
        Ownership::None,
        "another process had that pid"
    );
    let asked = process.start_time;
    assert_eq!(kin.lookup(process.pid, asked, &roster), PidLookup::Exited);
    assert_eq!(kin.lookup(u32::MAX, NOW, &roster), PidLookup::Unknown);
}

#[test]
fn processes_in_a_jobs_control_group_or_below_it_are_the_jobs_and_no_others() {
    let stem = match cgroup::job_cgroup_prefix(&format!("kin{}", std::process::id())) {
        Ok(stem) => stem,
        Err(why) => {
            eprintln!("SKIPPED: no control groups here: {why}");
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    // A group that begins with the name of the job's is another's.
    let [group, longer] = [3, 33].map(|job| Cgroup::of(&stem, JobId(job)));
    let below = group.join("below");
    for made in [&group, &below, &longer] {
        std::fs::create_dir(made).unwrap();
    }
    let tree = Tree::of(&CHILD.repeat(4), 4);
    let enter = |place: usize, group: &std::path::Path| {
        let pid = tree.pids[place].to_string();
        std::fs::write(group.join("cgroup.procs"), pid).unwrap();
    };
    enter(0, &group);
    enter(1, &below);
    enter(2, &longer);
    let mut roster = WatchedJobs::default();
    roster.register(JobId(3), entry(&folder, "3", Vec::new()));
    let mut kin = Attribution::default();
    let mut found = |roster: &WatchedJobs| {
        let pids = tree.pids.iter();
        pids.map(|pid| kinship(kin.lookup(*pid, NOW, roster)))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        found(&roster),
        [Ownership::None; 4],
        "its group is not known"
    );
    roster.set_cgroup(JobId(3), group.clone());
    let ours = Ownership::Descendant(JobId(3));
    let expected = [ours, ours, Ownership::None, Ownership::None];
    assert_eq!(found(&roster), expected);
    let was = Process {
        start_time: tree.process(0).start_time - 1,
        ..tree.process(0)
    };
    assert_eq!(kin.owning_job(was, &roster), None, "another had that pid");
    drop(tree);
    for made in [&below, &group, &longer] {
        Cgroup::at(made).remove();
    }
}

#[test]
fn of_nested_groups_the_innermost_says_whose_a_process_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut roster = WatchedJobs::default();
    for (job, group) in [(3, "/g/divvy-3"), (4, "/g/divvy-3/own/divvy-4")] {
        roster.register(JobId(job), entry(&folder, &job.to_string(), Vec::new()));
        roster.set_cgroup(JobId(job), group.into());
    }
    let of = |group: &str| roster.job_of_cgroup(std::path::Path::new(group));
    assert_eq!(of("/g/divvy-3"), Some(JobId(3)));
    assert_eq!(of("/g/divvy-3/own"), Some(JobId(3)));
    assert_eq!(of("/g/divvy-3/own/divvy-4/x"), Some(JobId(4)));
    assert_eq!(of("/g/divvy-33"), None);
    assert_eq!(of("/g"), None);
}
