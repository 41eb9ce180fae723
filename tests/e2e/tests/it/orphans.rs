//! What a job leaves behind: whoever has come into its slice from elsewhere is waited for, and does not keep it.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use divvy_api::v1::{EndReason, JobState};
use divvy_e2e::{GIB, Home, until};
use divvy_testkit::Bounded as _;

/// A program of the same user, no child of the job's, in the job's slice: it has a GiB of its memory until its gate opens.
fn come_in(home: &Home, job: &str, gate: &str) -> Child {
    let slice = home.path().join("slices").join(job);
    let guest = home
        .outside(&home.program("cudarc_probe"))
        .args(["hold", "--bytes", &GIB.to_string()])
        .args(["--until-file", &home.gate(gate)])
        .env("DIVVY_SLICE", slice)
        .env("LD_PRELOAD", home.program("libdivvy_preload.so"))
        .stdout(Stdio::null())
        .spawn()
        .expect("the probe starts");
    until("its memory is charged to the job", || {
        let slice = home.job(job).slices.remove(0);
        (slice.memory_used_bytes >= GIB).then_some(())
    });
    guest
}

/// A job that has a slice and a guest in it, and was cancelled: its own program is gone at once.
fn cancelled(home: &Home, gate: &str) -> (String, Child) {
    let job = home.submit(&["--gpu-memory", "4G"], &["sleep", "1000"]);
    home.running(&job);
    let guest = come_in(home, &job, gate);
    let _ = home.divvy(&["cancel", &job]).ok();
    until("its program has ended", || home.recorded(&job, "exit"));
    (job, guest)
}

fn all_is_free(home: &Home, job: &str) {
    let folder = home.path().join("slices").join(job);
    until("the slice is gone", || (!folder.exists()).then_some(()));
    let _ = home.divvy(&["run", "-g", "1", "--", "true"]).ok();
}

#[test]
fn a_process_that_stays_in_a_slice_is_ended_after_the_grace_period() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "grace=1s"]);
    let (job, mut guest) = cancelled(&home, "never");
    assert_eq!(home.ended(&job).end_reason, Some(EndReason::Cancelled));
    let end = guest.try_wait().expect("it is our child");
    let end = end.expect("a job has not ended before everybody in its slice is gone");
    assert_eq!(end.signal(), Some(9), "{end}");
    all_is_free(&home, &job);
}

#[test]
fn a_process_that_leaves_a_slice_within_the_grace_period_is_left_alone() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "grace=1h"]);
    let (job, mut guest) = cancelled(&home, "leave");
    // The daemon goes on with others, and this one keeps what it has.
    let _ = home.divvy(&["run", "-g", "0.25", "--", "true"]).ok();
    assert_eq!(home.job(&job).state, JobState::Stopping);
    home.open("leave");
    let end = guest.wait_bounded().expect("it is our child");
    assert!(end.success(), "{end}");
    assert_eq!(home.ended(&job).end_reason, Some(EndReason::Cancelled));
    all_is_free(&home, &job);
}
