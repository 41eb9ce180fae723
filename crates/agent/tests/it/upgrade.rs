//! An upgrade in place: other files under the same names, while jobs of the former ones run. No job notices it.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use divvy_api::v1::{EndReason, JobState};
use divvy_testkit::{Home, Programs, divvy, ended, in_state, until};

/// What a package installs, and the client of the tests.
const FILES: [&str; 6] = [
    "divvy",
    "libdivvy_preload.so",
    "libdivvy_cuda.so",
    "libdivvy_nvml.so",
    "libdivvy_sim.so",
    "cudarc_probe",
];

/// The folder of the programs under test.
fn built() -> PathBuf {
    divvy().parent().unwrap().to_owned()
}

/// Replaces the installed files as a package manager does: new files, renamed over the old names.
fn install(from: &Path, to: &Path) {
    for name in FILES {
        let new = to.join(format!("{name}.new"));
        fs::copy(from.join(name), &new).unwrap();
        fs::rename(&new, to.join(name)).unwrap();
    }
}

/// The inodes of the limiter's library that a process has mapped.
fn limiter(pid: u32) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut inodes: Vec<u64> = maps
        .lines()
        .filter(|line| line.contains("libcuda.so.1") || line.contains("libdivvy_preload.so"))
        .filter_map(|line| line.split_whitespace().nth(4)?.parse().ok())
        .collect();
    inodes.sort_unstable();
    inodes.dedup();
    inodes
}

/// Whether the daemon is asked to end, or killed.
#[derive(Clone, Copy)]
enum Stop {
    Asked,
    Killed,
}

/// Jobs of the programs in `old` end under those in `new`, each with its own exit code, and new jobs start.
async fn upgrade(old: &Path, new: &Path, stop: Stop) {
    let installed = tempfile::tempdir().unwrap();
    install(old, installed.path());
    let programs = Programs::at(installed.path().to_owned());
    let mut home = Home::with(programs, Some("a100-80gb:1"));
    home.start(&[]);
    let gate = home.gate("go");
    let wait = |code: u8| format!("while [ ! -e {gate} ]; do sleep 0.05; done; exit {code}");
    let submit = |home: &Home, flags: &[&str], script: &str| {
        home.submit(&[&["-g", "0.125"], flags].concat(), &["sh", "-c", script])
    };
    let short: Vec<String> = [5, 6].map(|code| submit(&home, &[], &wait(code))).into();
    let suspended = submit(&home, &[], &wait(7));
    let limited = submit(&home, &["--time", "1h"], &wait(8));
    let holder = home.submit_holder(&["-g", "0.25"], 256 << 20, "go");
    // Behind a job that waits for a whole GPU, the new job would wait as well.
    let queued = home.submit(&["-g", "1", "--after", &short[0]], &["sh", "-c", "exit 9"]);
    let client = home.connect();
    for id in short.iter().chain([&suspended, &limited, &holder]) {
        in_state(&client, id, JobState::Running).await;
    }
    let pid = home.pid(&holder, "started");
    until("the holder holds its memory", || !limiter(pid).is_empty());
    client.suspend(&suspended).await.unwrap();
    let mapped = limiter(pid);
    let before: Vec<Option<u32>> = pids(&home, &short).await;

    install(new, installed.path());
    match stop {
        Stop::Asked => assert_eq!(home.stop(), 0),
        Stop::Killed => home.kill(),
    }
    home.start(&[]);
    let client = home.connect();
    assert_eq!(pids(&home, &short).await, before, "no job was touched");
    assert_eq!(limiter(pid), mapped, "the old limiter stays mapped");
    let inodes = |name: &str| fs::metadata(installed.path().join(name)).unwrap().ino();
    assert!(!mapped.contains(&inodes("libdivvy_preload.so")));
    assert!(!mapped.contains(&inodes("libdivvy_cuda.so")));
    assert_eq!(client.job(&queued).await.unwrap().state, JobState::Queued);

    let fresh = home.submit_holder(&["-g", "0.25"], 64 << 20, "go");
    in_state(&client, &fresh, JobState::Running).await;
    let new_pid = home.pid(&fresh, "started");
    until("the new job has a limiter", || !limiter(new_pid).is_empty());
    // Jobs load copies, and equal content is one copy.
    let library = |folder: &Path| fs::read(folder.join("libdivvy_preload.so")).unwrap();
    let is_other = limiter(new_pid).iter().all(|inode| !mapped.contains(inode));
    assert_eq!(is_other, library(old) != library(new));
    client.resume(&suspended).await.unwrap();
    home.open("go");
    let codes = [
        (&short[0], 5),
        (&short[1], 6),
        (&suspended, 7),
        (&limited, 8),
        (&holder, 0),
        (&fresh, 0),
        (&queued, 9),
    ];
    for (id, code) in codes {
        let job = ended(&client, id).await;
        assert_eq!(job.exit_code, Some(code), "job {id}: {:?}", job.reason);
        let reason = if code == 0 {
            EndReason::Completed
        } else {
            EndReason::Failed
        };
        assert_eq!(job.end_reason, Some(reason));
        assert_eq!(job.runs_before, 0, "job {id} ran once");
    }
    assert_eq!(home.slices(), Vec::<String>::new());
}

async fn pids(home: &Home, jobs: &[String]) -> Vec<Option<u32>> {
    let client = home.connect();
    let mut pids = Vec::new();
    for id in jobs {
        pids.push(client.job(id).await.unwrap().pid);
    }
    pids
}

#[tokio::test]
async fn replaced_files_and_a_killed_daemon_touch_no_job() {
    upgrade(&built(), &built(), Stop::Killed).await;
}

/// A copy of the journal that these programs write is restored into a home that has none, and served.
async fn move_journal(from: Programs) {
    let sim = ["--sim", "a100-80gb:1"];
    let mut home = Home::with(from, Some(sim[1]));
    home.start(&[]);
    let client = home.connect();
    let done = home.submit(&["-g", "0.25"], &["sh", "-c", "exit 3"]);
    ended(&client, &done).await;
    let waits = home.submit(&["-g", "0.25", "--hold"], &["sh", "-c", "exit 4"]);
    assert_eq!(home.stop(), 0);
    let copy = ["admin", "journal", "copy", "-o", "json"];
    let copy = home.divvy(&copy).ok();
    let copy = copy.items()[0]["path"].as_str().unwrap().to_owned();

    let mut other = Home::empty();
    let restore = ["admin", "journal", "restore", &copy, "-o", "json"];
    let restored = other.divvy(&restore).ok();
    assert_eq!(restored.items()[0]["jobs_ended"], 1);
    other.start(&sim);
    let client = other.connect();
    assert_eq!(client.job(&done).await.unwrap().exit_code, Some(3));
    let _ = other.divvy(&["release", &waits]).ok();
    assert_eq!(ended(&client, &waits).await.exit_code, Some(4));
}

#[tokio::test]
async fn a_copy_of_the_journal_is_restored_into_an_empty_home() {
    move_journal(Programs::of_this_test()).await;
}

mod exhaustive {
    use super::*;

    /// Names a folder with the programs of an earlier version: those of `FILES`.
    const OLD: &str = "DIVVY_TEST_OLD";

    fn old() -> Option<PathBuf> {
        let old = std::env::var_os(OLD).map(PathBuf::from);
        if old.is_none() {
            eprintln!("SKIPPED: {OLD} names no folder with the programs of an earlier version");
        }
        old
    }

    #[tokio::test]
    async fn jobs_of_an_earlier_version_end_under_this_one() {
        let Some(old) = old() else { return };
        for stop in [Stop::Asked, Stop::Killed] {
            upgrade(&old, &built(), stop).await;
        }
    }

    #[tokio::test]
    async fn a_copy_of_an_earlier_version_is_restored_into_an_empty_home() {
        let Some(old) = old() else { return };
        move_journal(Programs::at(old)).await;
    }

    #[tokio::test]
    async fn an_earlier_version_serves_the_journal_of_this_one_or_its_copy_from_before() {
        let Some(old) = old() else { return };
        let installed = tempfile::tempdir().unwrap();
        install(&old, installed.path());
        let programs = Programs::at(installed.path().to_owned());
        let mut home = Home::with(programs, Some("a100-80gb:1"));
        home.start(&[]);
        let client = home.connect();
        let done = home.submit(&["-g", "0.25"], &["sh", "-c", "exit 3"]);
        ended(&client, &done).await;
        let runs = home.submit_holder(&["-g", "0.25"], 64 << 20, "go");
        in_state(&client, &runs, JobState::Running).await;
        assert_eq!(home.stop(), 0);
        install(&built(), installed.path());
        home.start(&[]);
        in_state(&home.connect(), &runs, JobState::Running).await;
        assert_eq!(home.stop(), 0);

        install(&old, installed.path());
        // A journal that was migrated has a copy of the earlier schema.
        let copies = fs::read_dir(home.path().join("copies"))
            .into_iter()
            .flatten()
            .flatten();
        let before = copies
            .map(|copy| copy.path())
            .find(|path| path.to_string_lossy().contains("-v"));
        if let Some(copy) = before {
            let restore = ["admin", "journal", "restore", copy.to_str().unwrap()];
            let _ = home.divvy(&restore).ok();
        }
        home.start(&[]);
        let client = home.connect();
        assert_eq!(client.job(&done).await.unwrap().exit_code, Some(3));
        in_state(&client, &runs, JobState::Running).await;
        home.open("go");
        assert_eq!(ended(&client, &runs).await.exit_code, Some(0));
    }
}
