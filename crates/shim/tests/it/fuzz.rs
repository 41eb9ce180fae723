//! The hooks' arguments at random, on any toolchain: the body that `fuzz/` drives by coverage, here by a seed.

#[path = "../../../../fuzz/bodies/hooks.rs"]
mod hooks;
#[allow(dead_code, reason = "shared with the other body")]
#[path = "../../../../fuzz/bodies/input.rs"]
mod input;

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};

use divvy_testkit::Bounded as _;

use crate::support::{Form, ROOM, Rig};
use divvy_testkit::Rng;

/// Says to this same program that it is to be the one that is limited, and where it writes down what it is about to do.
const NOTE: &str = "FUZZ_NOTE";
const SEEDS: u64 = 400;
const LONGEST: u64 = 600;

/// A function as any program finds it: the hook, if it is hooked.
fn find(name: &str) -> Option<*const c_void> {
    let name = CString::new(name).ok()?;
    let library = match name.as_bytes() {
        [b'n', ..] => c"libnvidia-ml.so.1",
        _ => c"libcuda.so.1",
    };
    // SAFETY: NUL-terminated names; the library stays open.
    let found = unsafe {
        let driver = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        libc::dlsym(driver, name.as_ptr())
    };
    (!found.is_null()).then_some(found.cast_const())
}

fn seeded(seed: u64) -> Vec<u8> {
    let mut random = Rng::new(seed);
    let length = random.below(LONGEST);
    (0..length).map(|_| random.below(256) as u8).collect()
}

fn be_limited(note: &Path) {
    hooks::start(&find);
    for seed in 0..SEEDS {
        std::fs::write(note, seed.to_string()).expect("the note is ours");
        hooks::run(&find, &seeded(seed));
    }
}

#[test]
fn arguments_that_make_no_sense_harm_no_process() {
    if let Some(note) = std::env::var_os(NOTE) {
        return be_limited(&PathBuf::from(note));
    }
    let rig = Rig::new(1, ROOM);
    let mut watcher = rig.outside();
    assert_eq!(watcher.ask("watch 0"), [0]);
    let note = rig.path("note");
    let myself = std::env::current_exe().expect("a test knows its own path");
    let output = rig
        .held(&myself, Form::Preload)
        .args([
            "--exact",
            "fuzz::arguments_that_make_no_sense_harm_no_process",
            "--nocapture",
        ])
        .env(NOTE, &note)
        .output_bounded()
        .expect("it runs");
    let seed = std::fs::read_to_string(&note).expect("the note is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "seed {seed}: {:?}: {said}",
        output.status
    );
    assert_eq!(said, "", "the limiter said something");
    assert_eq!(seed, (SEEDS - 1).to_string());
    let snapshot = rig.slice().read().expect("a sound slice");
    assert_eq!(
        snapshot.alarms(),
        0,
        "the limiter found an error of its own"
    );
    assert!(
        rig.peak(&mut watcher) <= rig.limit,
        "more was taken than there is"
    );
    assert!(rig.usage().peak <= rig.limit);
    rig.settle_the_dead();
    assert_eq!((rig.charged(), rig.truth()), (0, 0));
}
