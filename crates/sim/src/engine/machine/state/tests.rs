use super::*;
use crate::config::Backend;
use crate::engine::machine::group::GroupError;
use tempfile::TempDir;

fn virtual_clock() -> Config {
    Config {
        clock: Clock::Virtual,
        ..Config::default()
    }
}

fn machine(folder: &TempDir, spec: &str) -> State {
    let path = folder.path().join("state");
    State::open(&path, Some(OsStr::new(spec)), &virtual_clock()).expect("a new machine")
}

/// Runs `act` in a process of its own, which dies at its end without any cleaning up.
fn in_dying_process(act: impl FnOnce()) {
    // SAFETY: the child only works on the shared mapping and ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            act();
            libc::_exit(0);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

#[test]
fn each_process_that_opens_the_state_file_sees_the_same_machine() {
    let folder = TempDir::new().expect("a folder");
    let one = machine(&folder, "a100-80gb:2,l4-24gb:1");
    let two = State::open(&folder.path().join("state"), None, &Config::default()).expect("open");
    assert_eq!((one.gpu_count(), two.gpu_count()), (3, 3));
    assert_eq!(one.gpus()[2].uuid(), two.gpus()[2].uuid());
    assert_eq!(two.model(2).name, "NVIDIA L4");
    assert!(two.has_virtual_clock(), "the maker decides");
    one.lock().lose(1);
    let is_lost = |gpu: usize| two.gpus()[gpu].health.is_lost();
    assert!(is_lost(1) && !is_lost(0));
}

#[test]
fn racing_makers_end_up_with_one_machine() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("state");
    let open =
        || State::open(&path, Some(OsStr::new("l4-24gb:1")), &Config::default()).expect("open");
    let slots = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| open().claim_slot().expect("a slot")))
            .collect();
        makers
            .into_iter()
            .map(|maker| maker.join().expect("no panic"))
            .collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(slots.len(), 8, "each has a slot of its own");
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("readable").count(),
        1,
        "no litter"
    );
}

#[test]
fn what_is_no_state_file_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("state");
    let refused = || {
        State::open(&path, None, &Config::default())
            .err()
            .map(|error| error.to_string())
            .expect("refused")
    };
    assert!(refused().contains("DIVVY_SIM is not set"));
    for content in [vec![], vec![7; 100], vec![0; 100_000]] {
        std::fs::write(&path, content).expect("written");
        assert!(refused().contains("is not a state file"));
    }
    std::fs::remove_file(&path).expect("there");
    drop(machine(&folder, "l4-24gb:1"));
    let file = open_existing(&path).expect("there");
    file.set_len(file.metadata().expect("there").len() - 4096)
        .expect("cut");
    assert!(refused().contains("is not a state file"));
}

#[test]
fn a_holder_of_the_lock_that_dies_leaves_correct_sums() {
    let folder = TempDir::new().expect("a folder");
    let state = machine(&folder, "l4-24gb:1");
    let slot = state.claim_slot().expect("a slot");
    assert_eq!(state.lock().take_bytes(slot, 0, 1 << 30), Ok(()));
    in_dying_process(|| {
        let locked = state.lock();
        // Half of an allocation: the slot has the bytes, the sum does not.
        locked.slots()[slot].change_used(0, 1 << 20, 0);
        std::mem::forget(locked);
    });
    drop(state.lock());
    assert_eq!(state.gpus()[0].used(), (1 << 30) + (1 << 20));
}

#[test]
fn a_dead_process_is_collected_and_its_slot_used_again() {
    let folder = TempDir::new().expect("a folder");
    let state = machine(&folder, "l4-24gb:1");
    let own = state.claim_slot().expect("a slot");
    in_dying_process(|| {
        let other =
            State::open(&folder.path().join("state"), None, &Config::default()).expect("open");
        let slot = other.claim_slot().expect("a slot");
        other.lock().take_bytes(slot, 0, 1 << 30).expect("room");
        other.lock().add_context(slot, 0).expect("allowed");
        other
            .queue(slot, 0)
            .push(0, crate::engine::time::Work::Busy(1_000));
    });
    assert_eq!(state.gpus()[0].used(), 1 << 30, "not collected yet");
    state.lock().reap();
    assert_eq!(state.gpus()[0].used(), 0);
    let other = State::open(&folder.path().join("state"), None, &Config::default()).expect("open");
    assert_eq!(
        other.claim_slot().expect("a slot"),
        own + 1,
        "the dead one's"
    );
}

#[test]
fn memory_beyond_the_gpu_is_refused_whichever_process_holds_the_rest() {
    let folder = TempDir::new().expect("a folder");
    let one = machine(&folder, "l4-24gb:1");
    let two = State::open(&folder.path().join("state"), None, &Config::default()).expect("open");
    let (first, second) = (
        one.claim_slot().expect("a slot"),
        two.claim_slot().expect("a slot"),
    );
    let usable = one.model(0).memory_usable();
    assert_eq!(one.lock().take_bytes(first, 0, usable - 512), Ok(()));
    assert!(two.lock().take_bytes(second, 0, 513).is_err());
    assert!(two.lock().take_bytes(second, 0, u64::MAX).is_err());
    assert_eq!(two.lock().take_bytes(second, 0, 512), Ok(()));
    one.lock().return_bytes(first, 0, usable - 512);
    assert_eq!(
        (one.gpus()[0].used(), two.lock().free(0)),
        (512, usable - 512)
    );
}

/// In memory: thousands of folders take seconds on a disk.
fn folder_in_memory() -> TempDir {
    let found = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
    found.expect("a folder")
}

/// A machine that limits the groups below a folder, which any folder can stand for here.
fn limiting(folder: &TempDir, backend: Backend) -> State {
    let config = Config {
        memory_limits: Some(MemoryLimitsConfig {
            backend,
            root: folder.path().join("groups"),
        }),
        ..virtual_clock()
    };
    let path = folder.path().join("state");
    State::open(&path, Some(OsStr::new("l4-24gb:1")), &config).expect("a new machine")
}

#[test]
fn a_full_table_of_groups_is_an_error_until_one_of_them_is_gone() {
    let folder = folder_in_memory();
    let state = limiting(&folder, Backend::Misc);
    let group = |number: usize| folder.path().join(format!("groups/{number}"));
    let limit = |number: usize| {
        std::fs::create_dir_all(group(number)).expect("a folder");
        let locked = state.lock();
        let found = locked.group_at(&group(number))?;
        locked.set_limit(found, 0, 0, 1 << 20);
        Ok(())
    };
    // The root has a row too.
    for number in 1..GROUPS {
        assert_eq!(limit(number), Ok(()), "{number}");
    }
    assert_eq!(limit(GROUPS), Err(GroupError::TableFull));
    assert_eq!(limit(7), Ok(()), "it has its row");
    std::fs::remove_dir(group(7)).expect("empty");
    assert_eq!(limit(GROUPS), Ok(()));
    assert_eq!(limit(7), Err(GroupError::TableFull));
    let cleared = state.lock().group_at(&group(9)).expect("known");
    state.lock().set_limit(cleared, 0, 0, u64::MAX);
    assert_eq!(limit(7), Ok(()), "a group without a limit needs no row");
}

#[test]
fn a_forgotten_groups_soft_limit_stays_on_those_above() {
    let folder = folder_in_memory();
    let state = limiting(&folder, Backend::Dmem);
    let path = |name: String| folder.path().join("groups/parent").join(name);
    let (parent, gone) = (path(String::new()), path("gone".to_owned()));
    std::fs::create_dir_all(&gone).expect("folders");
    let found = state.lock().group_at(&gone).expect("room");
    state.lock().set_limit(found, 0, 4096, 8192);
    std::fs::remove_dir(&gone).expect("empty");
    let soft = || {
        let locked = state.lock();
        let parent = locked.group_at(&parent).expect("known");
        locked.group_figures(parent, 0).soft
    };
    assert_eq!(soft(), 4096, "its row is there");
    for number in 0..GROUPS {
        std::fs::create_dir(path(number.to_string())).expect("a folder");
        let _ = state.lock().group_at(&path(number.to_string()));
    }
    assert_eq!(soft(), 4096, "its row is another group's");
}

#[test]
fn a_deleted_group_that_holds_memory_keeps_its_row() {
    let folder = folder_in_memory();
    let state = limiting(&folder, Backend::Misc);
    let group = |name: &str| {
        let group = folder.path().join("groups").join(name);
        std::fs::create_dir_all(&group).expect("folders");
        group
    };
    let slot = state.claim_slot().expect("a slot");
    let job = group("job");
    let charged = state.lock().charge_bytes(slot, 0, 4096, Some(&job));
    let charged = charged.expect("room");
    std::fs::remove_dir(&job).expect("empty");
    let limit = |number: usize| {
        let locked = state.lock();
        let found = locked.group_at(&group(&number.to_string()))?;
        locked.set_limit(found, 0, 0, 1 << 20);
        Ok(())
    };
    // The root and the job have rows too.
    for number in 2..GROUPS {
        assert_eq!(limit(number), Ok(()), "{number}");
    }
    assert_eq!(limit(GROUPS), Err(GroupError::TableFull));
    assert_eq!(state.lock().group_figures(charged, 0).used, 4096);
    state.lock().return_charged(slot, 0, 4096, charged);
    assert_eq!(state.lock().group_figures(charged, 0).used, 0);
    assert_eq!(limit(GROUPS), Ok(()));
}
