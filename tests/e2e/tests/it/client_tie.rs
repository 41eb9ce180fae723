//! A job ends with the client of `divvy run`, however the client ends: SIGKILL is what a service manager sends last.

use std::process::{Child, Stdio};

use divvy_api::v1::{EndReason, Job, JobState};
use divvy_e2e::{Home, until};
use divvy_testkit::{Bounded as _, can_be_users};
use serde_json::Value;

/// A client of `divvy run` without a terminal, as a service manager starts it.
fn client(home: &Home, flags: &[&str]) -> Child {
    let words = [&["run"], flags, &["--", "sleep", "600"]].concat();
    let mut command = home.divvy_command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().expect("divvy starts")
}

/// The job of a client in this state.
fn job_of(home: &Home, client: &Child, state: &str) -> String {
    let pid = Value::from(client.id());
    until("the client's job is there", || {
        let jobs = home.items(&["ps"]);
        let mut jobs = jobs.iter();
        let job = jobs.find(|job| job["client_pid"] == pid && job["state"] == state)?;
        Some(job["id"].as_str().expect("a number").to_owned())
    })
}

fn kill(client: &mut Child) {
    client.kill().expect("it is our child");
    let _ = client.wait_bounded();
}

fn is_cancelled(job: &Job, client: &Child) {
    assert_eq!(job.end_reason, Some(EndReason::Cancelled), "{job:?}");
    let why = format!("its client (process {}) has ended", client.id());
    assert_eq!(job.end_detail.as_deref(), Some(why.as_str()));
}

/// The daemon of one user, and the system's: they start the program in different ways.
fn daemons() -> Vec<&'static [&'static str]> {
    let can = can_be_users("a job of the system's daemon is not tied to its client here");
    let all: [&[&str]; 2] = [&[], &["--system"]];
    all.into_iter().take(if can { 2 } else { 1 }).collect()
}

#[test]
fn a_service_manager_that_kills_its_client_again_and_again_leaves_no_job() {
    for daemon in daemons() {
        let home = Home::new("a100-80gb:1");
        let _daemon = home.daemon(daemon);
        let mut ended = Vec::new();
        for _ in 0..3 {
            // Without --no-wait: the one before may still end.
            let mut client = client(&home, &["-g", "1"]);
            let job = job_of(&home, &client, "running");
            kill(&mut client);
            ended.push((job, client));
        }
        for (job, client) in ended {
            is_cancelled(&home.ended(&job), &client);
        }
        let left = || home.items(&["ps"]).is_empty().then_some(());
        until("no job is left", left);
    }
}

#[test]
fn a_client_that_ends_without_a_daemon_takes_its_running_and_its_waiting_job_along() {
    for words in daemons() {
        let home = Home::new("a100-80gb:1");
        let daemon = home.daemon(words);
        let mut first = client(&home, &["-g", "1"]);
        let running = job_of(&home, &first, "running");
        let mut second = client(&home, &["-g", "1"]);
        let waiting = job_of(&home, &second, "queued");
        let mut kept = client(&home, &["-g", "1", "--outlive-client"]);
        // A client that finds no daemon at its start starts one.
        until("all jobs are there", || {
            (home.items(&["ps"]).len() == 3).then_some(())
        });
        daemon.crash();
        kill(&mut first);
        kill(&mut second);
        let _daemon = home.daemon(words);
        is_cancelled(&home.ended(&running), &first);
        is_cancelled(&home.ended(&waiting), &second);
        if words.is_empty() {
            // Without its client, no process starts a program on the client's terminal.
            kill(&mut kept);
            continue;
        }
        let jobs = until("the third job runs", || {
            let jobs = home.items(&["ps"]);
            (jobs.len() == 1 && jobs[0]["state"] == "running").then_some(jobs)
        });
        kill(&mut kept);
        let id = jobs[0]["id"].as_str().expect("a number");
        assert!(jobs[0]["client_pid"].is_null(), "{jobs:?}");
        let _ = home.divvy(&["cancel", id]).ok();
        let job = home.ended(id);
        assert_eq!((job.state, job.client_pid), (JobState::Ended, None));
        let why = job.end_detail.unwrap_or_default();
        assert!(why.starts_with("cancelled by "), "{why}");
    }
}

#[test]
fn a_client_whose_program_ends_by_itself_leaves_its_exit_code() {
    for daemon in daemons() {
        let home = Home::new("a100-80gb:1");
        let _daemon = home.daemon(daemon);
        for _ in 0..3 {
            let run = ["run", "-g", "0.5", "--", "sh", "-c", "exit 5"];
            let _ = home.divvy(&run).exits(5);
        }
        let jobs = home.items(&["ps", "-a"]);
        let ends = jobs.iter().map(|job| job["end_reason"].as_str());
        assert!(ends.clone().all(|end| end == Some("failed")), "{jobs:?}");
        assert_eq!(ends.count(), 3);
    }
}
