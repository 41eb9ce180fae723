use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use divvy_core::GpuUuid;
use divvy_core::reconcile::{Limiter, compare};
use divvy_ledger::{Control, GpuSpec, Slice, SliceSpec};

use super::*;
use crate::gpu::slice::GrantedSlice;
use crate::host::process::evidence::KnownFile;

const JOB: JobId = JobId(3);
const UUID: [u8; 16] = [7; 16];

/// A slice of 8 GiB that this process may join, and a process that may not be taken for it.
struct Scene {
    folder: tempfile::TempDir,
    unmanaged: Child,
    roster: WatchedJobs,
    kin: Attribution,
    marks: KnownFiles,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = SliceSpec {
            id: "3".into(),
            generation: 1,
            gpus: vec![GpuSpec {
                uuid: UUID,
                limit: Bytes::gib(8).get(),
                overhead: Bytes::mib(400).get(),
                ..GpuSpec::default()
            }],
            ..SliceSpec::default()
        };
        Control::create(&folder.path().join("3"), &spec).unwrap();
        let slots = folder.path().join("3/slots");
        let mut roster = WatchedJobs::default();
        let entry = crate::gpu::watched_jobs::WatchedJob {
            ledger: Some(crate::gpu::watched_jobs::SliceLedger {
                slice: GrantedSlice::open(&folder.path().join("3"), spec)
                    .unwrap()
                    .into(),
                slots: KnownFile::of(&slots),
            }),
            roots: Vec::new(),
            mounts: Vec::new(),
            cgroup: None,
            pods: Vec::new(),
            walls: Vec::new(),
        };
        roster.register(JOB, entry);
        let mut unmanaged = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The kernel sets a program up some time after `spawn` returns; a process that answers is complete.
        unmanaged.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let answer = unmanaged.stdout.as_mut().unwrap();
        answer.read_exact(&mut [0]).unwrap();
        Self {
            folder,
            unmanaged,
            roster,
            kin: Attribution::default(),
            marks: KnownFiles::default(),
        }
    }

    fn slots(&self) -> PathBuf {
        self.folder.path().join("3/slots")
    }

    fn join(&self) -> divvy_ledger::ProcessSlot {
        let slice = Slice::open(&self.folder.path().join("3")).unwrap();
        slice.join().unwrap()
    }

    /// Makes a process the root of the job.
    fn adopt(&mut self, pid: u32) {
        let root = Process::with_pid(pid).unwrap();
        self.roster.add_root(JOB, root);
    }

    /// A sample of a driver that lists these.
    fn sample(&mut self, listed: &[(u32, u64)]) -> NodeSample {
        let before = read_ledgers(&self.roster);
        self.sample_after(before, listed)
    }

    fn sample_after(&mut self, before: LedgersBefore, listed: &[(u32, u64)]) -> NodeSample {
        let processes = listed.iter().map(|(pid, gib)| GpuProcess {
            pid: *pid,
            used: Some(Bytes::gib(*gib)),
        });
        let observed = ObservedGpu {
            total: Bytes::gib(80),
            reserved: Bytes::gib(1),
            used: Bytes::gib(20),
            processes: processes.collect(),
            ..ObservedGpu::idle(GpuUuid::from_bytes(UUID), 0)
        };
        let observation = Observation {
            gpus: vec![observed],
            troubles: Vec::new(),
            xids: Vec::new(),
        };
        // All processes here were born before.
        let at = u64::MAX;
        build_sample(
            at,
            observation,
            before,
            &self.roster,
            &mut self.kin,
            &self.marks,
        )
    }

    fn of(&mut self, listed: &[(u32, u64)]) -> Vec<ProcessOwner> {
        let look = self.sample(listed);
        let processes = look.gpus[0].sample.processes.iter();
        processes.map(|process| process.owner).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.unmanaged.kill();
        let _ = self.unmanaged.wait();
    }
}

/// Writes another process into the place that this one has in the slice.
fn frame(slots: &Path, other: u32) {
    let me = Process::this().unwrap();
    let other = Process::with_pid(other).unwrap();
    let mut bytes = fs::read(slots).unwrap();
    // Between the two lies what the limiter of the process can do.
    let place = (0..bytes.len() - 16).step_by(8).find(|at| {
        bytes[*at..].starts_with(&me.pid.to_ne_bytes())
            && bytes[at + 8..].starts_with(&me.start_time.to_ne_bytes())
    });
    let place = place.unwrap();
    bytes[place..place + 4].copy_from_slice(&other.pid.to_ne_bytes());
    bytes[place + 8..place + 16].copy_from_slice(&other.start_time.to_ne_bytes());
    let file = fs::OpenOptions::new().write(true).open(slots).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
}

#[test]
fn a_process_that_has_joined_is_the_jobs_with_what_it_was_charged() {
    let (mut scene, me) = (Scene::new(), std::process::id());
    let slot = scene.join();
    slot.force(0, Bytes::gib(2).get());
    let account = Some(LedgerEntry {
        charged: Bytes::gib(2),
        steady: true,
    });
    let expected = ProcessOwner::Job {
        job: JOB,
        account,
        limiter: Limiter::Loaded,
        has_escaped: false,
    };
    assert_eq!(scene.of(&[(me, 2)]), [expected]);
    let look = scene.sample(&[(me, 2)]);
    assert_eq!(look.processes[&me].ownership, Ownership::Member(JOB));
    let slice = &look.gpus[0].sample.slices[0];
    assert_eq!(
        (slice.granted, slice.charged),
        (Bytes::gib(8), Bytes::gib(2))
    );
    assert_eq!(look.gpus[0].sample.context, Bytes::mib(400));
}

#[test]
fn an_account_that_grew_while_the_driver_was_asked_is_not_steady_though_it_looks_the_same() {
    let (mut scene, me) = (Scene::new(), std::process::id());
    let slot = scene.join();
    slot.force(0, Bytes::gib(2).get());
    let before = read_ledgers(&scene.roster);
    slot.release(0, Bytes::gib(2).get());
    slot.force(0, Bytes::gib(2).get());
    let look = scene.sample_after(before, &[(me, 4)]);
    let ProcessOwner::Job {
        account: Some(account),
        ..
    } = look.gpus[0].sample.processes[0].owner
    else {
        panic!("{look:?}");
    };
    assert!(!account.steady);
    assert_eq!(compare(&look.gpus[0].sample).suspects, []);
}

#[test]
fn a_ledger_is_read_a_second_time_only_with_present_or_past_members() {
    let (mut scene, me) = (Scene::new(), std::process::id());
    let charged = |look: &NodeSample| look.gpus[0].sample.slices[0].charged;
    let deserted = read_ledgers(&scene.roster);
    let slot = scene.join();
    slot.force(0, Bytes::gib(2).get());
    let look = scene.sample_after(deserted, &[]);
    assert_eq!(charged(&look), Bytes::ZERO, "read before it was charged");
    let inhabited = read_ledgers(&scene.roster);
    slot.force(0, Bytes::gib(2).get());
    let look = scene.sample_after(inhabited, &[]);
    assert_eq!(charged(&look), Bytes::gib(4), "read after that");
    let mut scene = Scene::new();
    let deserted = read_ledgers(&scene.roster);
    let slot = scene.join();
    slot.force(0, Bytes::gib(2).get());
    let look = scene.sample_after(deserted, &[(me, 2)]);
    let ProcessOwner::Job {
        account: Some(account),
        ..
    } = look.gpus[0].sample.processes[0].owner
    else {
        panic!("{look:?}");
    };
    let charged = account.charged;
    assert_eq!((charged, account.steady), (Bytes::gib(2), false));
}

#[test]
fn a_slot_that_names_an_unmanaged_process_adds_it_to_no_job() {
    let mut scene = Scene::new();
    let slot = scene.join();
    slot.force(0, Bytes::gib(2).get());
    let unmanaged = scene.unmanaged.id();
    frame(&scene.slots(), unmanaged);
    assert_eq!(scene.of(&[(unmanaged, 2)]), [ProcessOwner::Unmanaged]);
}

#[test]
fn a_process_of_the_tree_without_a_slot_is_the_jobs_unless_its_pid_may_be_anothers() {
    let mut scene = Scene::new();
    let unmanaged = scene.unmanaged.id();
    scene.adopt(unmanaged);
    let expected = ProcessOwner::Job {
        job: JOB,
        account: None,
        limiter: Limiter::NotLoaded,
        has_escaped: false,
    };
    scene.kin.are_pids_certain = true;
    assert_eq!(scene.of(&[(unmanaged, 2)]), [expected]);
    let uncertain = || {
        let mut kin = Attribution::default();
        kin.are_pids_certain = false;
        kin
    };
    scene.kin = uncertain();
    assert_eq!(
        scene.of(&[(unmanaged, 2)]),
        [ProcessOwner::Unmanaged],
        "it does not have the driver, so the driver lists another process's memory under its pid"
    );
    // What `cat` has mapped stands for the driver's state.
    let program = fs::read_link(format!("/proc/{unmanaged}/exe")).unwrap();
    scene.marks.driver = Some(KnownFile::of(&program));
    scene.kin = uncertain();
    assert_eq!(scene.of(&[(unmanaged, 2)]), [expected]);
}

#[test]
fn processes_outside_jobs_and_unknown_pids_are_unmanaged() {
    let mut scene = Scene::new();
    let unmanaged = scene.unmanaged.id();
    assert_eq!(
        scene.of(&[(unmanaged, 1), (u32::MAX, 1)]),
        [ProcessOwner::Unmanaged, ProcessOwner::Unmanaged]
    );
    let look = scene.sample(&[(unmanaged, 1)]);
    assert_eq!(look.gpus[0].unmanaged, [unmanaged]);
    scene.unmanaged.kill().unwrap();
    scene.unmanaged.wait().unwrap();
    assert_eq!(
        scene.of(&[(unmanaged, 1)]),
        [ProcessOwner::Exited],
        "the driver may list it for a moment longer"
    );
}

#[test]
fn an_account_that_cannot_be_read_says_nothing_for_its_processes() {
    let (mut scene, me) = (Scene::new(), std::process::id());
    scene.adopt(me);
    fs::write(scene.slots(), "").unwrap();
    let account = Some(LedgerEntry {
        charged: Bytes::ZERO,
        steady: true,
    });
    let of = scene.of(&[(me, 9)]);
    assert!(
        matches!(of[0], ProcessOwner::Job { account: found, .. } if found == account),
        "{of:?}"
    );
    let look = scene.sample(&[(me, 9)]);
    assert!(look.ledgers[&JOB].snapshots.is_err());
    let suspects = compare(&look.gpus[0].sample).suspects;
    assert!(suspects[0].harmful, "{suspects:?}");
}

#[test]
fn what_a_job_writes_over_its_slices_control_file_changes_nothing_of_what_is_looked_at() {
    let (mut scene, me) = (Scene::new(), std::process::id());
    scene.adopt(me);
    let slot = scene.join();
    slot.force(0, Bytes::gib(30).get());
    let control = scene.folder.path().join("3/control");
    let file = fs::OpenOptions::new().write(true).open(control).unwrap();
    // The limit, the cost of a context, and which GPU it is.
    for (at, word) in [(272, 40_u64 << 30), (280, 40 << 30), (256, 1)] {
        file.write_all_at(&word.to_ne_bytes(), at).unwrap();
    }
    let look = scene.sample(&[(me, 30)]);
    let sight = &look.gpus[0].sample;
    assert_eq!(sight.slices[0].granted, Bytes::gib(8));
    assert_eq!(sight.context, Bytes::mib(400));
    let ways: Vec<_> = compare(sight).suspects.iter().map(|one| one.kind).collect();
    assert_eq!(ways, [divvy_core::reconcile::BypassKind::Overdrawn]);
}

#[test]
fn slots_of_any_bytes_change_nothing_of_what_is_given_out_and_acquit_no_process() {
    for byte in [0x00, 0x02, 0x03, 0x7f, 0xff] {
        let (mut scene, me) = (Scene::new(), std::process::id());
        scene.adopt(me);
        let program = std::env::current_exe().unwrap();
        scene.marks.driver = Some(KnownFile::of(&program));
        let slot = scene.join();
        slot.force(0, Bytes::gib(30).get());
        let file = fs::OpenOptions::new().write(true).open(scene.slots());
        let size = fs::metadata(scene.slots()).unwrap().len();
        // All but the header, by which the file is told from others.
        let bytes = vec![byte; usize::try_from(size).unwrap() - 64];
        file.unwrap().write_all_at(&bytes, 64).unwrap();
        let look = scene.sample(&[(me, 30)]);
        let balance = compare(&look.gpus[0].sample);
        assert_eq!(balance.unmanaged, Bytes::gib(22), "byte {byte:#x}");
        assert_eq!(balance.slices[0].driver, Some(Bytes::gib(30)));
        let harmful: Vec<_> = balance.suspects.iter().map(|one| one.harmful).collect();
        assert_eq!(harmful, [true], "byte {byte:#x}");
        // What the slot's owner does at its end must find its own words again.
        std::mem::forget(slot);
    }
}
