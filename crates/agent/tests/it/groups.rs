//! A job's control group: what holds a job together that lets go of its own children.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::Path;

use divvy_api::v1::{JobState, TaskBoundKind};
use divvy_testkit::{Home, ended, in_state, is_alive, quarter, signal, until};

/// Leaves a process behind that is in another session and whose parent is gone, and names it in a file.
const DAEMONISE: &str =
    "setsid sh -c 'sleep 1000 & echo $! > PID.new; mv PID.new PID' & wait; exec sleep 1000";

/// Starts such a job; its number, its group, and the process that it left behind.
async fn daemonised(home: &Home) -> Option<(String, String, u32)> {
    let client = home.connect();
    let file = home.path().join("pid");
    let script = DAEMONISE.replace("PID", file.to_str().unwrap());
    let id = client
        .submit(&quarter(&["sh", "-c", &script]))
        .await
        .unwrap()
        .id;
    let job = in_state(&client, &id, JobState::Running).await;
    let mut left = None;
    until("it has let go of a child", || {
        left = std::fs::read_to_string(&file).ok();
        left.is_some()
    });
    let left = left.unwrap().trim().parse().unwrap();
    let group = job.group.expect("it is said what holds its processes");
    assert_eq!(group.path.is_some(), group.reason.is_none());
    let Some(path) = group.path else {
        eprintln!("SKIPPED: no control groups here: {}", group.reason.unwrap());
        client.cancel(&id).await.unwrap();
        ended(&client, &id).await;
        return None;
    };
    Some((id, path, left))
}

#[tokio::test]
async fn what_a_job_daemonised_ends_with_it_and_so_does_its_group() {
    let home = Home::started(&["--sim", "a100-80gb:1", "--set", "grace=1s"]);
    let Some((id, group, left)) = daemonised(&home).await else {
        return;
    };
    let members = std::fs::read_to_string(Path::new(&group).join("cgroup.procs")).unwrap();
    assert!(
        members.lines().any(|pid| pid == left.to_string()),
        "{members}"
    );
    let supervisor = home.pid(&id, "launch").to_string();
    assert!(
        !members.lines().any(|pid| pid == supervisor),
        "its supervisor is outside"
    );
    let client = home.connect();
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
    assert!(!is_alive(left));
    until("the group is gone", || !Path::new(&group).exists());
}

#[tokio::test]
async fn a_jobs_group_is_bounded_where_the_kernel_counts_its_processes() {
    let home = Home::started(&["--sim", "a100-80gb:1", "--set", "grace=1s"]);
    let Some((id, group, _)) = daemonised(&home).await else {
        return;
    };
    let client = home.connect();
    let said = client.job(&id).await.unwrap().group.unwrap();
    let bound = said.bound.expect("it is said what bounds their number");
    match std::fs::read_to_string(Path::new(&group).join("pids.max")) {
        Err(_) => {
            let is_root = rustix::process::getuid().is_root();
            let by = if is_root {
                TaskBoundKind::Nothing
            } else {
                TaskBoundKind::User
            };
            assert_eq!((bound.by, bound.max.is_none()), (by, is_root), "{bound:?}");
            assert!(bound.reason.unwrap().contains("pids controller"));
        }
        Ok(most) => {
            let read = |name: &str| -> u64 {
                let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
                text.unwrap().trim().parse().unwrap()
            };
            // 15 %, as systemd bounds a service.
            let expected = read("threads-max").min(read("pid_max")) * 15 / 100;
            assert_eq!(most.trim(), expected.to_string());
            assert_eq!(
                (bound.by, bound.max),
                (TaskBoundKind::Group, Some(expected))
            );
        }
    }
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
}

#[tokio::test]
async fn what_was_daemonised_is_found_when_the_supervisor_and_the_program_are_gone() {
    let home = Home::started(&["--sim", "a100-80gb:1", "--set", "grace=1s"]);
    let Some((id, group, left)) = daemonised(&home).await else {
        return;
    };
    signal(home.pid(&id, "launch"), "KILL");
    signal(home.pid(&id, "started"), "KILL");
    let client = home.connect();
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
    assert!(
        !is_alive(left),
        "nothing of the job lives when it is said to have ended"
    );
    until("the group is gone", || !Path::new(&group).exists());
}
