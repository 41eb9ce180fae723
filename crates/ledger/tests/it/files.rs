//! Files that are not what they should be: each is refused with one line that says so, and none harms its reader.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use crate::common;

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Child, Place};
use divvy_ledger::{
    Control, CreateError, Damage, Field, GpuSpec, Listed, Numbering, OpenError, Reader,
    SharingMode, Slice, SliceSpec, boot_time_ns,
};
use divvy_testkit::Bounded as _;
use proptest::prelude::*;

struct Broken {
    place: Place,
}

impl Broken {
    fn new() -> Self {
        Self {
            place: Place::with_limit(100),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.dir.path().join(name)
    }

    fn set_size(&self, name: &str, size: u64) {
        OpenOptions::new()
            .write(true)
            .open(self.path(name))
            .unwrap()
            .set_len(size)
            .unwrap();
    }

    fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new()
            .write(true)
            .open(self.path(name))
            .unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    /// What opening says, with the folder left out.
    fn message(&self) -> String {
        let error = Slice::open(self.place.dir.path()).expect_err("nobody can use this");
        let message = error
            .to_string()
            .replace(&format!("{}/", self.place.dir.path().display()), "");
        assert!(!message.contains('\n'));
        message
    }
}

#[test]
fn a_missing_file_is_called_missing() {
    for name in ["control", "slots"] {
        let broken = Broken::new();
        fs::remove_file(broken.path(name)).unwrap();
        assert_eq!(
            broken.message(),
            format!("{name} is missing: the slice has ended or was never set up")
        );
    }
    let nowhere = Slice::open(Path::new("/nonexistent/slice")).unwrap_err();
    assert!(matches!(nowhere, OpenError::Missing { .. }));
}

#[test]
fn a_file_that_is_too_short_or_too_long_is_called_so() {
    for (name, size) in [("control", 4096), ("slots", 1_441_792)] {
        for found in [0, 1, 63, 64, 100, size - 1] {
            let broken = Broken::new();
            broken.set_size(name, found);
            assert_eq!(
                broken.message(),
                format!("{name} is truncated: {found} of {size} bytes")
            );
        }
        let broken = Broken::new();
        broken.set_size(name, size + 1);
        assert_eq!(
            broken.message(),
            format!("{name} is too long: {} bytes instead of {size}", size + 1)
        );
    }
}

#[test]
fn a_file_of_another_make_or_version_is_called_so() {
    for name in ["control", "slots"] {
        let broken = Broken::new();
        broken.write(name, 0, b"\x7fELF");
        assert_eq!(broken.message(), format!("{name} is not a Divvy ledger"));

        // Even when a later version is of another size.
        let broken = Broken::new();
        broken.write(name, 8, &3u32.to_ne_bytes());
        broken.set_size(name, 9000);
        assert_eq!(
            broken.message(),
            format!(
                "{name} has layout version 3, but divvy {} needs version 2",
                env!("CARGO_PKG_VERSION")
            )
        );
    }
}

#[test]
fn the_files_of_two_slices_do_not_go_together() {
    let broken = Broken::new();
    broken.write("slots", 24, &8u64.to_ne_bytes());
    assert_eq!(
        broken.message(),
        "slots has slice generation 8, but its control file has 7"
    );
}

#[test]
fn a_control_file_that_makes_no_sense_is_called_damaged() {
    for (offset, bytes, field) in [
        (64, &[0xff][..], "id"),
        (144, &[9], "mode"),
        (148, &[0], "GPU count"),
        (148, &[17], "GPU count"),
    ] {
        let broken = Broken::new();
        broken.write("control", offset, bytes);
        assert_eq!(
            broken.message(),
            format!("control is damaged: invalid {field}")
        );
    }
}

#[test]
fn what_is_not_a_regular_file_is_not_opened() {
    for name in ["control", "slots"] {
        let broken = Broken::new();
        let elsewhere = broken.path("elsewhere");
        fs::rename(broken.path(name), &elsewhere).unwrap();
        symlink(&elsewhere, broken.path(name)).unwrap();
        assert_eq!(broken.message(), format!("{name} is not a regular file"));

        fs::remove_file(broken.path(name)).unwrap();
        fs::create_dir(broken.path(name)).unwrap();
        assert_eq!(broken.message(), format!("{name} is not a regular file"));

        // Nobody holds the other end: an opener that waited would wait for ever.
        fs::remove_dir(broken.path(name)).unwrap();
        let path = std::ffi::CString::new(broken.path(name).into_os_string().into_encoded_bytes())
            .unwrap();
        // SAFETY: a valid path.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        assert_eq!(broken.message(), format!("{name} is not a regular file"));
    }
}

#[test]
fn a_file_that_others_may_write_is_not_trusted() {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    for (name, mode) in [("control", 0o646), ("slots", 0o620)] {
        let broken = Broken::new();
        let path = broken.path(name);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        if name == "slots" && is_root {
            // Root's account may be everybody's, and a user's may not.
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        }
        assert_eq!(
            broken.message(),
            format!("{name} can be written by other users (mode {mode:04o})")
        );
    }
}

#[test]
fn a_ledger_of_roots_may_be_written_by_every_user() {
    let broken = Broken::new();
    fs::set_permissions(broken.path("slots"), Permissions::from_mode(0o666)).unwrap();
    // SAFETY: geteuid has no preconditions and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    assert_eq!(Slice::open(broken.place.dir.path()).is_ok(), is_root);
}

#[test]
fn a_file_without_permission_is_called_so() {
    let broken = Broken::new();
    fs::set_permissions(broken.place.dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(broken.path("control"), Permissions::from_mode(0o000)).unwrap();
    Child::fork(|| {
        // Modes mean nothing to root but for its capabilities. (Another uid may not exist in a user namespace.)
        let version = [0x2008_0522_u32, 0];
        let none = [0_u32; 6];
        // SAFETY: capset(2) reads its header and two sets of three words, and concerns this child alone.
        let user = unsafe {
            let dropped = libc::syscall(libc::SYS_capset, version.as_ptr(), none.as_ptr());
            assert_eq!(dropped, 0);
            libc::geteuid()
        };
        assert_eq!(
            broken.message(),
            format!("user {user} may not open control")
        );
    })
    .finish();
}

#[test]
fn a_file_cut_off_under_the_agent_is_an_error_and_not_a_signal() {
    for name in ["control", "slots"] {
        for size in [0, 100, 4095] {
            let broken = Broken::new();
            let slice = broken.place.slice();
            broken.set_size(name, size);
            assert!(matches!(slice.read(), Err(OpenError::WrongSize { .. })));
            assert!(matches!(
                slice.join(),
                Err(divvy_ledger::JoinError::Open(OpenError::WrongSize { .. }))
            ));
            if name == "slots" {
                let reaped = slice.reap(boot_time_ns(), &|_| Listed::No);
                assert!(matches!(reaped, Err(OpenError::WrongSize { .. })));
            }
        }
    }
}

#[test]
fn a_new_slice_in_the_folder_is_not_taken_for_the_old_one() {
    let place = Place::with_limit(100);
    let old = place.slice();
    fs::remove_file(place.dir.path().join("control")).unwrap();
    let spec = SliceSpec {
        generation: 8,
        ..old.spec().clone()
    };
    Control::create(place.dir.path(), &spec).unwrap();
    assert!(matches!(
        old.join(),
        Err(divvy_ledger::JoinError::Open(OpenError::Unmatched { .. }))
    ));
    assert!(matches!(old.read(), Err(OpenError::Unmatched { .. })));
    assert_eq!(place.slice().spec(), &spec);
}

#[test]
fn a_slice_is_written_and_read_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = |index: u8| GpuSpec {
        uuid: std::array::from_fn(|byte| index * 16 + byte as u8),
        limit: u64::MAX - u64::from(index),
        overhead: 1 << index,
        weight: 1000 - u16::from(index),
        cap: u16::from(index),
        unseen: 3 << index,
        parked_limit: 5 << index,
    };
    let id = "x".repeat(64);
    let spec = SliceSpec {
        id,
        generation: u64::MAX,
        mode: SharingMode::Strict,
        numbering: Numbering::Slice,
        closed: false,
        gpus: (0..16).map(gpu).collect(),
    };
    let folder = dir.path().join("a/b");
    let control = Control::create(&folder, &spec).unwrap();
    let slice = Slice::open(&folder).unwrap();
    assert_eq!(slice.spec(), &spec);
    control.set_limit(3, 77);
    control.set_overhead(3, 78);
    control.set_compute(3, 79, 80);
    control.set_unseen(3, 83);
    control.set_parked_limit(3, 84);
    control.set_limit(16, 1);
    control.heartbeat(81);
    drop(control);
    let read = slice.read().unwrap();
    let changed = GpuSpec {
        uuid: gpu(3).uuid,
        limit: 77,
        overhead: 78,
        weight: 79,
        cap: 80,
        unseen: 83,
        parked_limit: 84,
    };
    assert_eq!((read.spec().gpus[3], read.heartbeat()), (changed, 81));
    assert_eq!(read.spec().gpus[4], gpu(4));
    Control::open_writable(&folder).unwrap().set_limit(3, 82);
    assert_eq!(slice.usage(3).unwrap().limit, 82);
}

/// A slice of two GPUs, and what was decided of it.
fn decided() -> (tempfile::TempDir, Control, SliceSpec) {
    let dir = tempfile::tempdir().unwrap();
    let gpu = |index: u8| GpuSpec {
        uuid: [index + 1; 16],
        limit: 2 << 30,
        overhead: 400 << 20,
        weight: 250,
        cap: 500,
        unseen: 7 << 20,
        parked_limit: 0,
    };
    let spec = SliceSpec {
        id: "12".into(),
        generation: 3,
        mode: SharingMode::Strict,
        numbering: Numbering::Slice,
        closed: false,
        gpus: vec![gpu(0), gpu(1)],
    };
    let control = Control::create(dir.path(), &spec).unwrap();
    (dir, control, spec)
}

#[test]
fn every_word_that_a_job_writes_over_what_the_agent_decided_is_put_right_and_told() {
    const DECIDED: u64 = 2048;
    let (dir, control, spec) = decided();
    control.heartbeat(81);
    let path = dir.path().join("control");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let before = fs::read(&path).unwrap();
    assert_eq!(control.mend(&spec), None);
    for at in (0..DECIDED).step_by(8) {
        file.write_all_at(&[0xee; 8], at).unwrap();
        let found = control.mend(&spec);
        // The sequence and the heartbeat are the agent's to change at any time.
        let is_told = !(128..144).contains(&at);
        assert_eq!(found.is_some(), is_told, "byte {at}: {found:?}");
        let after = fs::read(&path).unwrap();
        let differs = (0..4096).find(|at| !(128..144).contains(at) && after[*at] != before[*at]);
        assert_eq!(differs, None, "after byte {at}");
        let sequence = u64::from_ne_bytes(after[128..136].try_into().unwrap());
        assert!(sequence.is_multiple_of(2), "no reader waits for it");
    }
    assert_eq!(Slice::open(dir.path()).unwrap().spec(), &spec);
    file.write_all_at(&(40_u64 << 30).to_ne_bytes(), 256 + 64 + 16)
        .unwrap();
    let forgery = control.mend(&spec).unwrap();
    assert_eq!((forgery.field, forgery.gpu), (Field::Limit, Some(1)));
    file.write_all_at(&[0; 8], 152).unwrap();
    assert_eq!(control.mend(&spec).unwrap().field, Field::Numbering);
    assert_eq!((forgery.found, forgery.expected), (40 << 30, 2 << 30));
}

#[test]
fn a_control_file_that_a_job_has_put_in_the_place_of_the_agents_is_known_and_replaced() {
    let (dir, control, spec) = decided();
    assert!(control.lies_in(dir.path()));
    let (own, away) = (dir.path().join("control"), dir.path().join("away"));
    fs::copy(&own, &away).unwrap();
    fs::rename(&away, &own).unwrap();
    assert!(!control.lies_in(dir.path()));
    let other = OpenOptions::new().write(true).open(&own).unwrap();
    other
        .write_all_at(&(40_u64 << 30).to_ne_bytes(), 272)
        .unwrap();
    let slice = Slice::open(dir.path()).unwrap();
    assert_eq!(slice.usage(0).unwrap().limit, 40 << 30);
    let control = Control::replace(dir.path(), &spec).unwrap();
    assert!(control.lies_in(dir.path()));
    assert_eq!(slice.usage(0).unwrap().limit, 2 << 30);
    fs::remove_file(&own).unwrap();
    assert!(!control.lies_in(dir.path()));
}

#[test]
fn an_agent_outlives_a_job_that_cuts_the_control_file_short() {
    let dir = tempfile::tempdir().unwrap();
    let spec = SliceSpec {
        id: "1".into(),
        gpus: vec![GpuSpec::default()],
        ..SliceSpec::default()
    };
    let control = Control::create(dir.path(), &spec).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(dir.path().join("control"))
        .unwrap();
    for size in [100, 0] {
        file.set_len(size).unwrap();
        assert_eq!(control.mend(&spec), None, "readers refuse it");
        control.heartbeat(1);
        control.set_limit(0, 1);
        assert_eq!(file.metadata().unwrap().len(), size, "left as it was found");
    }
}

#[test]
fn a_writer_killed_half_way_blocks_no_reader_and_is_mended_by_the_next() {
    let broken = Broken::new();
    broken.write("control", 128, &5u64.to_ne_bytes());
    assert_eq!(broken.place.slice().gpus()[0].limit, 100);
    let control = Control::open_writable(broken.place.dir.path()).unwrap();
    control.set_limit(0, 99);
    assert_eq!(broken.place.slice().gpus()[0].limit, 99);
    let mut sequence = [0; 8];
    fs::File::open(broken.path("control"))
        .unwrap()
        .read_exact_at(&mut sequence, 128)
        .unwrap();
    assert_eq!(u64::from_ne_bytes(sequence), 8);
}

#[test]
fn what_cannot_be_written_down_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = GpuSpec {
        uuid: [1; 16],
        ..GpuSpec::default()
    };
    let good = SliceSpec {
        id: "a".into(),
        generation: 1,
        gpus: vec![gpu],
        ..SliceSpec::default()
    };
    let refused = |spec: SliceSpec| {
        Control::create(dir.path(), &spec)
            .err()
            .unwrap()
            .to_string()
    };
    let is_invalid = |message: String| message.starts_with("cannot create the slice: it");
    assert!(is_invalid(refused(SliceSpec {
        id: "x".repeat(65),
        ..good.clone()
    })));
    assert!(is_invalid(refused(SliceSpec {
        id: "a\0b".into(),
        ..good.clone()
    })));
    assert!(is_invalid(refused(SliceSpec {
        gpus: vec![],
        ..good.clone()
    })));
    assert!(is_invalid(refused(SliceSpec {
        gpus: vec![gpu; 2],
        ..good.clone()
    })));
    let many = |index| GpuSpec {
        uuid: [index; 16],
        ..gpu
    };
    assert!(is_invalid(refused(SliceSpec {
        gpus: (0..17).map(many).collect(),
        ..good.clone()
    })));
    Control::create(dir.path(), &good).unwrap();
    assert!(matches!(
        Control::create(dir.path(), &good),
        Err(CreateError::Open(_))
    ));
}

#[test]
fn leftovers_of_a_slice_that_was_never_finished_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("slots"), "half").unwrap();
    fs::write(dir.path().join("control.new"), "half").unwrap();
    let gpus = vec![GpuSpec::default()];
    Control::create(
        dir.path(),
        &SliceSpec {
            generation: 1,
            gpus,
            ..SliceSpec::default()
        },
    )
    .unwrap();
    Slice::open(dir.path()).unwrap().join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a job writes into its slots, the agent reads and reaps it.
    #[test]
    fn hostile_slots_are_read_and_reaped_without_harm(
        patches in prop::collection::vec((64usize..1_183_744, prop::collection::vec(any::<u8>(), 1..64)), 1..40),
    ) {
        let broken = Broken::new();
        let slice = broken.place.slice();
        let _slot = slice.join().unwrap();
        for (offset, bytes) in patches {
            let end = bytes.len().min(1_183_744 - offset);
            broken.write("slots", offset as u64, &bytes[..end]);
        }
        let read = slice.read().unwrap();
        let usage = read.usage(0);
        prop_assert!(usage.free <= usage.limit);
        prop_assert!(read.processes().len() <= 1024);
        slice.reap(boot_time_ns(), &|_| Listed::No).unwrap();
        slice.reap(boot_time_ns(), &|_| Listed::Unknown).unwrap();
        let _ = slice.join();
    }

    /// Random files are refused, or read.
    #[test]
    fn random_files_never_make_a_reader_panic(
        control in prop::collection::vec(any::<u8>(), 0..4096),
        slots in prop::collection::vec(any::<u8>(), 0..4096),
        keep in 0usize..300,
    ) {
        let broken = Broken::new();
        broken.write("control", keep as u64, &control[..control.len().min(4096 - keep)]);
        broken.write("slots", keep as u64, &slots);
        if let Ok(slice) = Slice::open(broken.place.dir.path()) {
            let read = slice.read().unwrap();
            for gpu in 0..17 {
                prop_assert!(read.usage(gpu).free <= read.usage(gpu).limit);
            }
            read.processes();
        }
    }
}

/// Uses a slot until it is found to stand on nothing.
fn until_damaged(slot: &divvy_ledger::ProcessSlot) -> Damage {
    loop {
        if let Err(damage) = slot.check() {
            return damage.clone();
        }
    }
}

#[test]
fn a_file_cut_short_under_its_users_grants_nothing_more() {
    for name in ["slots", "control"] {
        let broken = Broken::new();
        let slot = broken.place.slice().join().unwrap();
        slot.reserve(0, 60).unwrap().commit();
        slot.check().unwrap();
        broken.set_size(name, 100);
        let path = broken.path(name);
        assert_eq!(until_damaged(&slot), Damage::Truncated { path });
        // Nothing here may touch what is not there any more.
        assert_eq!(slot.reserve(0, 1).unwrap_err().limit, 0, "{name}");
        slot.release(0, 60);
        slot.alarm();
        assert_eq!(slot.usage(0).limit, 0, "{name}");
        assert!(slot.check().is_err(), "{name}: it does not heal");
    }
}

#[test]
fn a_slice_that_was_released_under_its_users_grants_nothing_more() {
    let broken = Broken::new();
    let slot = broken.place.slice().join().unwrap();
    let control = Control::open_writable(broken.place.dir.path()).unwrap();
    control.close();
    fs::remove_dir_all(broken.place.dir.path()).unwrap();
    let path = broken.path("slots");
    assert_eq!(until_damaged(&slot), Damage::Removed { path });
    assert_eq!(slot.reserve(0, 1).unwrap_err().limit, 0);
}

/// A process that starts in a container after the release opens the files by their mount, and allocates within the
/// interval of its looks at them.
#[test]
fn a_closed_slice_grants_nothing_to_processes_that_have_joined_or_join_later() {
    let broken = Broken::new();
    let slice = broken.place.slice();
    let before = slice.join().unwrap();
    before.reserve(0, 60).unwrap().commit();
    let control = Control::open_writable(broken.place.dir.path()).unwrap();
    control.close();
    let reader = Reader::open(broken.place.dir.path()).unwrap();
    assert!(reader.read().unwrap().spec().closed);
    assert_eq!(before.reserve(0, 1).unwrap_err().limit, 0);
    assert!(slice.has_reservations(&reader.read().unwrap()).unwrap());
    let mounted = ["control", "slots"].map(|name| fs::File::open(broken.path(name)).unwrap());
    fs::remove_dir_all(broken.place.dir.path()).unwrap();
    let folder = divvy_ledger::kept::folder(std::process::id(), "");
    let folder = folder.join(broken.place.dir.path().file_name().unwrap());
    let later = Slice::open(&folder).unwrap().join().unwrap();
    assert_eq!(later.reserve(0, 1).unwrap_err().limit, 0);
    assert_eq!(later.charge_overhead(0).unwrap_err().limit, 0);
    drop(mounted);
    // What was charged before is given back as ever.
    before.release(0, 60);
    let left = reader.read().unwrap();
    assert_eq!(left.usage(0).charged, 0);
    assert!(!slice.has_reservations(&left).unwrap());
}

/// The daemon closes the slice, and then looks for reserved bytes.
#[test]
fn a_reservation_that_races_with_the_close_is_refused_or_seen_by_the_daemon() {
    for _ in 0..300 {
        let broken = Broken::new();
        let slice = broken.place.slice();
        let control = Control::open_writable(broken.place.dir.path()).unwrap();
        let slot = slice.join().unwrap();
        let start = std::sync::Barrier::new(2);
        let (is_granted, is_seen) = std::thread::scope(|scope| {
            let reserving = scope.spawn(|| {
                start.wait();
                slot.reserve(0, 60).map(divvy_ledger::Hold::commit).is_ok()
            });
            start.wait();
            control.close();
            let seen = slice.has_reservations(&slice.read().unwrap()).unwrap();
            (reserving.join().unwrap(), seen)
        });
        assert!(!is_granted || is_seen);
        assert!(slot.reserve(0, 1).is_err());
    }
}

/// As at a logout, which removes names alone.
#[test]
fn a_slice_without_names_grants_as_before() {
    let broken = Broken::new();
    let slot = broken.place.slice().join().unwrap();
    let before = slot.usage(0);
    fs::remove_dir_all(broken.place.dir.path()).unwrap();
    // Several looks at the files are due.
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(20) {
        slot.check().unwrap();
    }
    slot.reserve(0, 1).unwrap().commit();
    assert_eq!(slot.usage(0).charged, before.charged + 1);
}

#[test]
fn a_slice_whose_name_means_nothing_here_any_more_is_not_damaged() {
    let broken = Broken::new();
    let slot = broken.place.slice().join().unwrap();
    // As for a process that changed its root.
    fs::rename(broken.path("control"), broken.path("moved")).unwrap();
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(20) {
        slot.check().unwrap();
    }
    slot.reserve(0, 1).unwrap().commit();
}

/// A file system of 64 KiB holds the control file and not the slots. Both get their room when they are made, so that a full
/// one kills nobody later.
#[test]
fn a_slice_for_which_there_is_no_room_is_not_made() {
    const FULL: &str = "LEDGER_FULL";
    let name = "a_slice_for_which_there_is_no_room_is_not_made";
    if let Some(folder) = std::env::var_os(FULL) {
        let spec = SliceSpec {
            gpus: vec![GpuSpec::default()],
            ..SliceSpec::default()
        };
        let error = Control::create(Path::new(&folder), &spec).err().unwrap();
        let said = error.to_string();
        assert!(
            said.contains("slots") && said.contains("No space left"),
            "{said}"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mounted = |then: &str| {
        let script = format!("mount -t tmpfs -o size=64k none \"${FULL}\" && {then}");
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script]);
        command.env(FULL, folder.path()).output_bounded()
    };
    if !mounted("true").is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no mount namespace may be made here");
        return;
    }
    let myself = std::env::current_exe().unwrap();
    let output = mounted(&format!("exec {} --exact files::{name}", myself.display())).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}
