//! What users do by accident or on purpose that must neither end the daemon nor let a program out of its slice.

use std::fs;
use std::path::Path;

use divvy_api::v1::{EndReason, JobState};
use divvy_e2e::{GIB, Home, client_script, python, until};
use divvy_testkit::Bounded as _;
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// A folder with copies of the two libraries, as another installation has them.
fn installation(home: &Home, name: &str) -> std::path::PathBuf {
    let folder = home.scratch().join(name);
    fs::create_dir(&folder).expect("a folder can be made in a new one");
    for library in ["libdivvy_preload.so", "libdivvy_sim.so"] {
        fs::copy(home.program(library), folder.join(library)).expect("the library was built");
    }
    folder
}

fn text(path: &Path) -> &str {
    path.to_str()
        .expect("a temporary folder has a readable name")
}

#[test]
fn an_installation_that_the_loader_cannot_name_serves_nobody() {
    let home = Home::new("a100-80gb:1");
    let folder = installation(&home, "with a blank");
    let home = home.variable("DIVVY_LIB_DIR", text(&folder));
    for flags in [
        &["daemon"][..],
        &["run", "--no-daemon", "-g", "0.5", "true"],
    ] {
        let said = home.divvy(flags).exits(1);
        assert!(
            said.stderr.contains("LD_PRELOAD") && said.stderr.contains("DIVVY_LIB_DIR"),
            "{}",
            said.stderr
        );
    }
}

#[test]
fn no_program_starts_once_the_limiter_is_gone() {
    let home = Home::new("a100-80gb:1");
    let folder = installation(&home, "libraries");
    let home = home.variable("DIVVY_LIB_DIR", text(&folder));
    let home = home.variable("DIVVY_FORM", "preload");
    let _daemon = home.daemon(&[]);
    let _ = home.divvy(&["run", "-g", "0.5", "--", "true"]).ok();
    fs::remove_file(folder.join("libdivvy_preload.so")).unwrap();
    let said = home
        .divvy(&["run", "-g", "0.5", "--", "echo", "free"])
        .exits(125);
    assert_eq!(said.stdout, "");
    assert!(
        said.stderr.contains("libdivvy_preload.so"),
        "{}",
        said.stderr
    );
    let job = home.ended(&home.submit(&["-g", "0.5"], &["true"]));
    assert_eq!(job.end_reason, Some(EndReason::LaunchFailed), "{job:?}");
}

#[test]
fn a_daemon_outlives_a_job_that_cuts_its_own_account_short() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    for file in ["control", "slots"] {
        let job = home.submit_holder(&["-g", "0.25"], GIB, file);
        let _ = home.first_words(&job);
        let path = home.path().join("slices").join(&job).join(file);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        fs::write(&path, "").unwrap();
        home.open(file);
        let _ = home.ended(&job);
    }
    let _ = home.divvy(&["run", "-g", "1", "--", "true"]).ok();
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn figures_of_any_size_end_no_daemon() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let probe = home.program("cudarc_probe");
    let huge = (u64::MAX - (GIB - 1)).to_string();
    let job = home.submit(
        &["-g", "0.25"],
        &[&probe, "hold", "--bytes", &huge, "--seconds", "0"],
    );
    let ended = home.ended(&job);
    assert!(ended.slices[0].denials > 0, "{ended:?}");
    for verb in ["describe", "cancel", "wait", "why", "logs"] {
        let _ = home.divvy(&[verb, &u64::MAX.to_string()]).exits(3);
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn an_exit_code_that_the_disk_does_not_take_is_recorded_once_it_does() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let script = format!(
        "until test -e {}; do sleep 0.05; done; exit 5",
        home.gate("go")
    );
    let job = home.submit(&["-g", "0.5"], &["sh", "-c", &script]);
    home.running(&job);
    // A folder where the record is fails the write as a full disk does.
    let record = home.path().join("jobs").join(&job).join("record");
    let aside = record.with_extension("aside");
    fs::create_dir(&aside).unwrap();
    let exchange = || renameat_with(CWD, &record, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
    exchange();
    home.open("go");
    until("the supervisor says that it cannot write", || {
        home.log(&job).contains("cannot write").then_some(())
    });
    assert_ne!(home.job(&job).state, JobState::Ended);
    exchange();
    assert_eq!(home.ended(&job).exit_code, Some(5));
}

#[test]
fn a_stderr_that_takes_nothing_changes_no_exit_code() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let divvy = home.program("divvy");
    for solo in ["", "--no-daemon"] {
        let home = match solo {
            "" => &home,
            _ => &Home::new("a100-80gb:1"),
        };
        let script = format!("{divvy} run {solo} -g 0.5 -- /no/such/program 2>/dev/full");
        let status = home
            .command("sh")
            .args(["-c", &script])
            .wait_bounded()
            .expect("a shell starts");
        assert_eq!(status.code(), Some(127), "{script}");
    }
}

#[test]
fn jobs_of_a_lost_journal_lend_their_records_to_none() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let old = home.submit(&["-g", "0.5"], &["sh", "-c", "exit 3"]);
    let _ = home.ended(&old);
    assert_eq!(daemon.stop(), 0);
    for file in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = fs::remove_file(home.path().join(file));
    }
    let _daemon = home.daemon(&[]);
    let new = home.submit(&["-g", "0.5"], &["sh", "-c", "exit 4"]);
    assert_ne!(new, old);
    assert_eq!(home.ended(&new).exit_code, Some(4));
    let _ = home
        .divvy(&["run", "-g", "0.5", "--", "sh", "-c", "exit 6"])
        .exits(6);
}

#[test]
fn a_program_that_closes_every_descriptor_keeps_its_own_and_its_limit() {
    let home = Home::new("a100-80gb:1");
    let python = python();
    let words = [
        "run",
        "--no-daemon",
        "--gpu-memory",
        "4G",
        "--",
        text(&python),
        &client_script("daemonise.py"),
    ];
    let said = home.divvy(&words).ok().json();
    assert_eq!(said["files_lost"], 0, "{said}");
    let got = said["got_bytes"].as_u64().expect("a number");
    assert!((3 * GIB..=4 * GIB).contains(&got), "{said}");
}

#[test]
fn one_user_has_so_many_jobs_and_an_array_counts_whole() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&["--max-jobs", "3"]);
    let job = home.submit_holder(&["-g", "0.5"], 1, "go");
    let refused = |flags: &[&str]| {
        let words = [&["submit", "-g", "0.5"], flags, &["--", "true"]].concat();
        let said = home.divvy(&words).exits(4);
        assert!(said.stderr.contains("--max-jobs"), "{}", said.stderr);
        said.stderr
    };
    let why = refused(&["--array", "0-2"]);
    assert!(
        why.contains("1 jobs that have not ended, and this submission would make it 4"),
        "{why}"
    );
    for _ in 0..2 {
        let _ = home.submit(&["-g", "1"], &["true"]);
    }
    let _ = refused(&[]);
    home.open("go");
    home.ended(&job);
    // What has ended counts no more.
    let _ = home.submit(&["-g", "0.5"], &["true"]);
}
