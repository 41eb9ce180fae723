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

/// A program that tries to take more than the job's limit.
fn greedy(home: &Home) -> String {
    format!(
        "{} hold --bytes {} --seconds 0",
        home.program("cudarc_probe"),
        79 * GIB
    )
}

#[test]
fn a_limiter_that_the_loader_cannot_name_is_loaded_from_its_copy() {
    let home = Home::new("a100-80gb:1");
    let folder = installation(&home, "with a blank and $LIB");
    let home = home.variable("DIVVY_LIB_DIR", text(&folder));
    let _ = home
        .divvy(&["run", "--no-daemon", "-g", "0.5", "true"])
        .ok();
    let _daemon = home.daemon(&[]);
    let job = home.ended(&home.submit(&["-g", "0.5"], &["sh", "-c", &greedy(&home)]));
    assert!(job.slices[0].denials > 0, "{job:?}");
}

#[test]
fn a_limiter_without_a_path_that_the_loader_can_name_serves_no_job() {
    let home = Home::new("a100-80gb:1");
    let folder = installation(&home, "with a blank");
    let home = home.variable("DIVVY_LIB_DIR", text(&folder));
    fs::create_dir_all(home.path()).unwrap();
    fs::write(home.path().join("limiters"), "no folder").unwrap();
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
        let cause = "there is no copy of it, since cannot write in";
        assert!(said.stderr.contains(cause), "{}", said.stderr);
    }
}

#[test]
fn a_job_keeps_its_limiter_while_the_installation_is_replaced_and_removed() {
    let home = Home::new("a100-80gb:1");
    let folder = installation(&home, "libraries");
    let installed = folder.join("libdivvy_preload.so");
    let home = home.variable("DIVVY_LIB_DIR", text(&folder));
    let home = home.variable("DIVVY_FORM", "preload");
    let copies = |expected: &[&str]| {
        let copies = fs::read_dir(home.path().join("limiters"))
            .unwrap()
            .flatten();
        let mut copies: Vec<_> = copies.map(|copy| copy.file_name()).collect();
        copies.sort_unstable();
        assert_eq!(copies, expected);
    };
    let daemon = home.daemon(&[]);
    let script = |gate: &str| {
        let gate = home.gate(gate);
        let greedy = greedy(&home);
        format!(
            "until test -e {gate}; do sleep 0.05; done; /bin/true || exit 9; {greedy} || exit 4"
        )
    };
    let submit = |gate| home.submit(&["-g", "0.25"], &["sh", "-c", &script(gate)]);
    let [while_written, after_removal, after_upgrade] =
        ["written", "removed", "upgraded"].map(submit);
    for job in [&while_written, &after_removal, &after_upgrade] {
        home.running(job);
    }
    let held = |job: &str, gate: &str| {
        home.open(gate);
        let job = home.ended(job);
        assert_eq!(job.exit_code, Some(4), "{gate}: {job:?}");
        assert!(job.slices[0].denials > 0, "{gate}: {job:?}");
    };
    // As an installer that writes into the final name: a process that maps this file dies of SIGBUS.
    let whole = fs::read(&installed).unwrap();
    fs::write(&installed, &whole[..4096]).unwrap();
    held(&while_written, "written");
    fs::remove_file(&installed).unwrap();
    held(&after_removal, "removed");
    assert_eq!(
        home.ended(&home.submit(&["-g", "0.25"], &["true"]))
            .exit_code,
        Some(0)
    );
    // Another version.
    fs::write(&installed, [&whole[..], b"later"].concat()).unwrap();
    assert_eq!(daemon.stop(), 0);
    let daemon = home.daemon(&[]);
    let later = home.submit_holder(&["-g", "0.25"], GIB, "later");
    home.running(&later);
    copies(&["1", "2"]);
    held(&after_upgrade, "upgraded");
    assert_eq!(daemon.stop(), 0);
    let _daemon = home.daemon(&[]);
    copies(&["2"]);
    home.end(&later, "later");
    let events = home.divvy(&["events", "-o", "json"]).ok().stdout;
    assert!(!events.contains("bypass"), "{events}");
}

#[test]
fn no_program_starts_once_the_limiter_is_gone() {
    let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", "preload");
    let _daemon = home.daemon(&[]);
    let _ = home.divvy(&["run", "-g", "0.5", "--", "true"]).ok();
    fs::remove_file(home.path().join("limiters/1/libdivvy_preload.so")).unwrap();
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
    let _daemon = home.daemon(&["--set", "limits.max-jobs=3"]);
    let job = home.submit_holder(&["-g", "0.5"], 1, "go");
    let refused = |flags: &[&str]| {
        let words = [&["submit", "-g", "0.5"], flags, &["--", "true"]].concat();
        let said = home.divvy(&words).exits(4);
        assert!(said.stderr.contains("limits.max-jobs"), "{}", said.stderr);
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
