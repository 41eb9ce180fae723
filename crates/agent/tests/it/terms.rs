//! On what terms jobs run, through the API: time limits, jobs after jobs, retries, requeuing, secrets; and what a daemon that
//! is killed in between makes of them.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use divvy_api::client::Client;
use divvy_api::v1::{After, Array, EndReason, ErrorCode, Job, JobState, Runner, Submit};
use divvy_testkit::{Bounded as _, Home, ended, in_state, log, quarter, refused, until};

const SIM: [&str; 2] = ["--sim", "l4-24gb:1"];

fn shell(script: &str) -> Submit {
    quarter(&["sh", "-c", script])
}

fn after(job: &Job, ok: bool) -> Vec<After> {
    vec![After {
        job: job.id.clone(),
        ok,
    }]
}

/// Waits until a job's program has written this.
fn until_it_says(job: &Job, words: &str) {
    until("its program says so", || {
        fs::read_to_string(format!("{}/log", job.directory)).is_ok_and(|log| log.contains(words))
    });
}

#[tokio::test]
async fn a_job_is_stopped_when_its_time_is_over_also_if_no_daemon_was_there_meanwhile() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let limited = Submit {
        time_limit_s: Some(1),
        ..shell("sleep 1000")
    };
    let job = client.submit(&limited).await.unwrap();
    let end = ended(&client, &job.id).await;
    assert_eq!(end.end_reason, Some(EndReason::TimeLimit));
    assert_eq!(
        end.reason.as_deref(),
        Some("stopped by its time limit; ended by signal 15")
    );
    assert_eq!(end.exit_code, Some(143));
    let cause = Some("its time limit of 1s was reached");
    assert_eq!((end.end_detail.as_deref(), end.ended_by), (cause, None));
    let ran = end.ended_at.unwrap() - end.started_at.unwrap();
    assert!(ran.total(jiff::Unit::Second).unwrap() >= 1.0, "{ran}");

    let job = client.submit(&limited).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    home.kill();
    home.start(&SIM);
    let end = ended(&home.connect(), &job.id).await;
    assert_eq!(end.end_reason, Some(EndReason::TimeLimit));
    // Whoever is done in time is done.
    let client = home.connect();
    let in_time = Submit {
        time_limit_s: Some(3600),
        ..shell("exit 3")
    };
    let job = client.submit(&in_time).await.unwrap();
    assert_eq!(
        ended(&client, &job.id).await.end_reason,
        Some(EndReason::Failed)
    );
    for limit in [0, u64::MAX] {
        let wrong = Submit {
            time_limit_s: Some(limit),
            ..shell("true")
        };
        assert_eq!(refused(client.submit(&wrong).await).code, ErrorCode::Usage);
    }
}

#[tokio::test]
async fn a_job_waits_for_others_and_is_given_up_when_one_fails_that_had_to_end_well() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let go = home.path().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; exit 1",
        go.display()
    );
    let first = client.submit(&shell(&script)).await.unwrap();
    let any = Submit {
        after: after(&first, false),
        ..shell("true")
    };
    let any = client.submit(&any).await.unwrap();
    let well = Submit {
        after: after(&first, true),
        ..shell("true")
    };
    let well = client.submit(&well).await.unwrap();
    let chained = Submit {
        after: after(&well, true),
        ..shell("true")
    };
    let chained = client.submit(&chained).await.unwrap();
    assert_eq!(well.state, JobState::Queued);
    let words = format!("runs after #{}, which has not ended", first.id);
    assert_eq!(well.reason.as_deref(), Some(words.as_str()));
    assert_eq!(client.why(&well.id).await.unwrap().summary, words);
    assert_eq!(well.after, after(&first, true));

    // There is room for all of them, and nobody starts before its time; nor after a crash.
    home.kill();
    home.start(&SIM);
    let client = home.connect();
    assert_eq!(client.job(&any.id).await.unwrap().state, JobState::Queued);
    fs::write(&go, "").unwrap();
    assert_eq!(
        ended(&client, &any.id).await.end_reason,
        Some(EndReason::Completed)
    );
    let given_up = ended(&client, &well.id).await;
    assert_eq!(given_up.end_reason, Some(EndReason::DependencyFailed));
    let words = format!("its dependency #{} did not succeed", first.id);
    assert_eq!(given_up.reason.as_deref(), Some(words.as_str()));
    let given_up = ended(&client, &chained.id).await;
    assert_eq!(given_up.end_reason, Some(EndReason::DependencyFailed));
    assert!(given_up.started_at.is_none());

    // What is over already is told at once.
    let late = Submit {
        after: after(&first, true),
        ..shell("true")
    };
    assert_eq!(
        refused(client.submit(&late).await).code,
        ErrorCode::Conflict
    );
    let late = Submit {
        after: after(&any, true),
        ..shell("true")
    };
    let late = client.submit(&late).await.unwrap();
    assert_eq!(
        ended(&client, &late.id).await.end_reason,
        Some(EndReason::Completed)
    );
    let nobody = Submit {
        after: vec![After {
            job: "77".into(),
            ok: false,
        }],
        ..shell("true")
    };
    assert_eq!(
        refused(client.submit(&nobody).await).code,
        ErrorCode::NotFound
    );
}

#[tokio::test]
async fn a_job_that_is_named_twice_is_waited_for_once_and_has_to_end_well() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let first = client.submit(&shell("sleep 1000")).await.unwrap();
    let mut twice = after(&first, true);
    twice.push(After {
        job: "last".into(),
        ok: false,
    });
    let follower = Submit {
        after: twice,
        ..shell("true")
    };
    let follower = client.submit(&follower).await.unwrap();
    assert_eq!(follower.after, after(&first, true));
    client.cancel(&first.id).await.unwrap();
    let end = ended(&client, &follower.id).await;
    assert_eq!(end.end_reason, Some(EndReason::DependencyFailed));
}

#[tokio::test]
async fn a_job_that_waits_for_another_would_have_to_wait() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let first = client.submit(&shell("sleep 1000")).await.unwrap();
    let follower = Submit {
        after: after(&first, false),
        no_wait: true,
        ..shell("true")
    };
    let error = refused(client.submit(&follower).await);
    assert_eq!(error.code, ErrorCode::WouldWait);
    assert!(error.message.contains("runs after #1"), "{error:?}");
    let dry = Submit {
        dry_run: true,
        no_wait: false,
        ..follower
    };
    let would = client.submit(&dry).await.unwrap();
    assert_eq!(would.state, JobState::Queued);
    client.cancel(&first.id).await.unwrap();
    ended(&client, &first.id).await;
}

/// A script that fails until it has run so many times; each run adds a line to `ran`.
fn third_time_lucky(ran: &Path) -> String {
    let ran = ran.display();
    format!("echo run >> {ran}; [ $(wc -l < {ran}) -ge 3 ] || exit 9")
}

#[tokio::test]
async fn a_program_that_fails_is_started_again_as_often_as_was_said_and_no_more() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let ran = home.path().join("ran");
    let retried = |retries| Submit {
        retries,
        ..shell(&third_time_lucky(&ran))
    };
    let job = client.submit(&retried(5)).await.unwrap();
    let end = ended(&client, &job.id).await;
    assert_eq!(
        (end.end_reason, end.runs_before),
        (Some(EndReason::Completed), 2)
    );
    assert_eq!(fs::read_to_string(&ran).unwrap(), "run\n".repeat(3));
    let events = client.events(0).await.unwrap();
    let retried_events = events.iter().filter(|event| event.kind == "retried");
    let texts: Vec<_> = retried_events.map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["exited with code 9", "exited with code 9"]);
    let pauses = end.ended_at.unwrap().duration_since(end.submitted_at);
    assert!(pauses.as_millis() >= 1000, "{pauses}");
    let runs = ["run-1", "run-2"].map(|run| Path::new(&end.directory).join(run).exists());
    assert_eq!(runs, [false, true], "the first and the last stay");

    fs::remove_file(&ran).unwrap();
    let job = client.submit(&retried(1)).await.unwrap();
    let end = ended(&client, &job.id).await;
    assert_eq!(
        (end.end_reason, end.exit_code),
        (Some(EndReason::Failed), Some(9))
    );
    assert_eq!(end.runs_before, 1);
    assert_eq!(fs::read_to_string(&ran).unwrap(), "run\n".repeat(2));

    // What cannot be started is not tried again.
    let missing = Submit {
        retries: 5,
        ..quarter(&["/no/such/program"])
    };
    let job = client.submit(&missing).await.unwrap();
    let end = ended(&client, &job.id).await;
    assert_eq!(
        (end.end_reason, end.runs_before),
        (Some(EndReason::LaunchFailed), 0)
    );
    let wrong = Submit {
        retries: u32::MAX,
        ..shell("true")
    };
    assert_eq!(refused(client.submit(&wrong).await).code, ErrorCode::Usage);
    let terminal = Submit {
        runner: Runner::Client,
        ..retried(1)
    };
    assert_eq!(
        refused(client.submit(&terminal).await).code,
        ErrorCode::Usage
    );
}

#[tokio::test]
async fn retries_are_counted_across_a_crash() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let (ran, go) = (home.path().join("ran"), home.path().join("go"));
    let script = format!(
        "echo run >> {}; while [ ! -e {} ]; do sleep 0.05; done; exit 9",
        ran.display(),
        go.display()
    );
    let submit = Submit {
        retries: 2,
        ..shell(&script)
    };
    let job = client.submit(&submit).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    home.kill();
    fs::write(&go, "").unwrap();
    until("its supervisor has written how it ended", || {
        home.recorded(&job.id, "exit").is_some()
    });
    home.start(&SIM);
    let end = ended(&home.connect(), &job.id).await;
    assert_eq!(
        (end.end_reason, end.runs_before),
        (Some(EndReason::Failed), 2)
    );
    assert_eq!(fs::read_to_string(&ran).unwrap(), "run\n".repeat(3));
}

#[tokio::test]
async fn a_requeued_job_starts_anew_with_the_log_it_had() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let job = client
        .submit(&shell("echo started; sleep 1000"))
        .await
        .unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    until_it_says(&job, "started");
    client.requeue(&job.id).await.unwrap();
    until("it runs again", || {
        fs::read_to_string(format!("{}/log", job.directory))
            .unwrap()
            .matches("started")
            .count()
            == 2
    });
    let again = in_state(&client, &job.id, JobState::Running).await;
    assert_eq!(again.runs_before, 1);
    let detail = again.end_detail.unwrap_or_default();
    assert!(detail.starts_with("requeued by "), "{detail}");

    // Its second run is adopted like any first one.
    home.kill();
    home.start(&SIM);
    let client = home.connect();
    let adopted = client.job(&job.id).await.unwrap();
    assert_eq!((adopted.state, adopted.pid), (JobState::Running, again.pid));
    client.cancel(&job.id).await.unwrap();
    let end = ended(&client, &job.id).await;
    assert_eq!(end.end_reason, Some(EndReason::Cancelled));
    assert_eq!(log(&client, &job.id).await, "started\nstarted\n");
    let by = end.ended_by.clone().unwrap();
    assert_eq!(Some(by.uid), end.uid);
    let cause = format!("cancelled by {} (uid {})", by.name, by.uid);
    assert_eq!(end.end_detail.as_deref(), Some(&*cause));
    home.kill();
    home.start(&SIM);
    let client = home.connect();
    let kept = client.job(&job.id).await.unwrap();
    assert_eq!(
        (kept.end_detail, kept.ended_by, kept.stopped_at),
        (Some(cause), Some(by), end.stopped_at)
    );
    assert_eq!(
        refused(client.requeue(&job.id).await).code,
        ErrorCode::Conflict
    );
    assert_eq!(
        refused(client.requeue("77").await).code,
        ErrorCode::NotFound
    );
    assert_eq!(home.slices(), [""; 0]);
}

#[tokio::test]
async fn a_job_that_waits_cannot_be_requeued_and_a_cancel_is_the_last_word() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let hold = home.path().join("hold");
    fs::write(&hold, "").unwrap();
    let script = format!(
        "trap 'while [ -e {} ]; do sleep 0.05; done; exit 0' TERM; echo started; while :; do sleep 0.05; done",
        hold.display()
    );
    let whole = |script: &str| Submit {
        amount: Some(divvy_api::v1::Amount::Whole { count: 1 }),
        ..shell(script)
    };
    let job = client.submit(&whole(&script)).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    until_it_says(&job, "started");
    let waits = client.submit(&whole("true")).await.unwrap();
    assert_eq!(
        refused(client.requeue(&waits.id).await).code,
        ErrorCode::Conflict
    );
    client.requeue(&job.id).await.unwrap();
    client.cancel(&job.id).await.unwrap();
    assert_eq!(
        refused(client.requeue(&job.id).await).code,
        ErrorCode::Conflict
    );
    fs::remove_file(&hold).unwrap();
    assert_eq!(
        ended(&client, &job.id).await.end_reason,
        Some(EndReason::Cancelled)
    );
    assert_eq!(
        ended(&client, &waits.id).await.end_reason,
        Some(EndReason::Completed)
    );
}

/// Every file below a folder that holds this; some are of hundreds of megabytes.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut grep = std::process::Command::new("grep");
    let found = grep.env("LC_ALL", "C").args(["-rlF", text]).arg(folder);
    let found = found.output_bounded().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let mut found: Vec<String> = found.lines().map(str::to_owned).collect();
    found.sort();
    found
}

#[tokio::test]
async fn a_secret_reaches_the_program_and_nothing_that_is_read() {
    const SECRET: &str = "hunter2-of-the-test";
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let go = home.path().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; [ \"$TOKEN\" = {} ] && echo it is there",
        go.display(),
        SECRET.replace("-of", "-\"of\"")
    );
    let submit = Submit {
        secrets: BTreeMap::from([("TOKEN".to_owned(), SECRET.to_owned())]),
        ..shell(&script)
    };
    let job = client.submit(&submit).await.unwrap();
    assert_eq!(job.secrets, ["TOKEN"]);
    in_state(&client, &job.id, JobState::Running).await;
    // Its own file, and the spec of a job that has not ended; neither the journal nor a log.
    let path = |file: &str| home.path().join(file).display().to_string();
    let both = [
        path(&format!("jobs/{}/record", job.id)),
        path(&format!("secrets/{}.json", job.id)),
    ];
    assert_eq!(files_with(home.path(), SECRET), both);
    for json in [
        serde_json::to_string(&client.job(&job.id).await.unwrap()).unwrap(),
        serde_json::to_string(&client.events(0).await.unwrap()).unwrap(),
    ] {
        assert!(!json.contains(SECRET), "{json}");
    }
    home.kill();
    home.start(&SIM);
    let client = home.connect();
    fs::write(&go, "").unwrap();
    assert_eq!(
        ended(&client, &job.id).await.end_reason,
        Some(EndReason::Completed)
    );
    assert_eq!(log(&client, &job.id).await, "it is there\n");
    assert_eq!(files_with(home.path(), SECRET), [""; 0]);

    let wrong = Submit {
        secrets: BTreeMap::from([("A=B".to_owned(), SECRET.to_owned())]),
        ..shell("true")
    };
    let error = refused(client.submit(&wrong).await);
    assert_eq!(error.code, ErrorCode::Usage);
    assert!(!format!("{error:?}").contains(SECRET));
}

#[tokio::test]
async fn higher_priorities_come_first_in_their_queue() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let go = home.path().join("go");
    let ran = home.path().join("ran");
    let whole = |priority, script: &str| Submit {
        amount: Some(divvy_api::v1::Amount::Whole { count: 1 }),
        priority,
        ..shell(script)
    };
    let hold = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let first = client.submit(&whole(-10, &hold)).await.unwrap();
    in_state(&client, &first.id, JobState::Running).await;
    let mut last = first;
    for priority in [0, 7, -3, 7] {
        let script = format!("echo {priority} >> {}", ran.display());
        last = client.submit(&whole(priority, &script)).await.unwrap();
    }
    assert_eq!(last.place, Some(2));
    let wrong = refused(client.submit(&whole(1001, "true")).await);
    assert_eq!(wrong.code, ErrorCode::Usage);
    fs::write(&go, "").unwrap();
    until("all have run", || {
        fs::read_to_string(&ran).is_ok_and(|ran| ran.lines().count() == 4)
    });
    assert_eq!(fs::read_to_string(&ran).unwrap(), "7\n7\n0\n-3\n");
}

/// A job that the journal has is the same one after a crash.
#[tokio::test]
async fn terms_survive_the_daemon() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let first = client.submit(&shell("sleep 1000")).await.unwrap();
    let full = Submit {
        priority: 12,
        preemptible: true,
        time_limit_s: Some(60),
        after: after(&first, true),
        retries: 3,
        idempotency_key: Some("the same".into()),
        ..shell("true")
    };
    let before = client.submit(&full).await.unwrap();
    home.kill();
    home.start(&SIM);
    let client: Client = home.connect();
    let again = client.submit(&full).await.unwrap();
    let told = |job: &Job| {
        (
            job.id.clone(),
            job.priority,
            job.preemptible,
            job.time_limit_s,
            job.after.clone(),
            job.retries,
        )
    };
    assert_eq!(told(&again), told(&before), "the key submits once");
    let other = Submit {
        priority: 13,
        ..full
    };
    assert_eq!(
        refused(client.submit(&other).await).code,
        ErrorCode::Conflict
    );
    client.cancel(&first.id).await.unwrap();
    assert_eq!(
        ended(&client, &again.id).await.end_reason,
        Some(EndReason::DependencyFailed)
    );
}

/// Whether all threads of a process are stopped.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default();
    state.trim_start().starts_with('T')
}

#[tokio::test]
async fn a_suspended_job_stands_still_with_its_slice_until_it_is_let_go_on_or_stopped() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let job = client
        .submit(&shell(
            "trap 'exit 5' TERM; echo started; while :; do sleep 0.05; done",
        ))
        .await
        .unwrap();
    let pid = in_state(&client, &job.id, JobState::Running)
        .await
        .pid
        .unwrap();
    until_it_says(&job, "started");
    let held = client.suspend(&job.id).await.unwrap();
    assert!(held.suspended && held.state == JobState::Running);
    assert_eq!(held.slices.len(), 1, "its memory stays its own");
    until("it stands still", || is_stopped(pid));

    // A daemon that comes later keeps it so, whatever woke it meanwhile.
    home.kill();
    divvy_testkit::signal(pid, "CONT");
    home.start(&SIM);
    let client = home.connect();
    assert!(client.job(&job.id).await.unwrap().suspended);
    until("it stands still again", || is_stopped(pid));
    assert!(!client.resume(&job.id).await.unwrap().suspended);
    until("it goes on", || !is_stopped(pid));

    // Whoever is stopped hears it, also when it is suspended.
    client.suspend(&job.id).await.unwrap();
    until("it stands still once more", || is_stopped(pid));
    client.cancel(&job.id).await.unwrap();
    let end = ended(&client, &job.id).await;
    assert_eq!(
        (end.end_reason, end.exit_code),
        (Some(EndReason::Cancelled), Some(5))
    );
    for verb in [client.suspend(&job.id).await, client.resume(&job.id).await] {
        assert_eq!(refused(verb).code, ErrorCode::Conflict);
    }
    let kinds: Vec<String> = client
        .events(0)
        .await
        .unwrap()
        .into_iter()
        .map(|event| event.kind)
        .collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "suspended").count(), 2);
    assert_eq!(kinds.iter().filter(|kind| *kind == "resumed").count(), 1);
}

#[tokio::test]
async fn a_job_that_is_suspended_and_let_go_on_at_once_stands_as_is_said_of_it() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let job = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    let pid = home.pid(&job.id, "started");
    // Both often come to the daemon together, in either order.
    for _ in 0..50 {
        let both = tokio::join!(client.suspend(&job.id), client.resume(&job.id));
        both.0.unwrap();
        both.1.unwrap();
        let suspended = client.job(&job.id).await.unwrap().suspended;
        until("it does what is said of it", || {
            is_stopped(pid) == suspended
        });
    }
    client.resume(&job.id).await.unwrap();
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
}

#[tokio::test]
async fn a_key_stands_for_what_was_written_whatever_has_happened_since() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let go = home.path().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; exit 1",
        go.display()
    );
    client.submit(&shell(&script)).await.unwrap();
    let last = After {
        job: "last".into(),
        ok: true,
    };
    let keyed = Submit {
        after: vec![last],
        idempotency_key: Some("job".into()),
        ..shell("true")
    };
    let job = client.submit(&keyed).await.unwrap();
    let again = client.submit(&keyed).await.unwrap();
    assert_eq!(again.id, job.id, "it is the last itself by now");
    fs::write(&go, "").unwrap();
    let end = ended(&client, &job.id).await;
    assert_eq!(end.end_reason, Some(EndReason::DependencyFailed));
    assert_eq!(client.submit(&keyed).await.unwrap().id, job.id);

    let array = |indices: &[u32]| Submit {
        array: Some(Array {
            indices: indices.to_vec(),
            max_running: None,
        }),
        idempotency_key: Some("array".into()),
        ..shell("true")
    };
    let first = client.submit(&array(&[0, 1, 2, 3])).await.unwrap();
    let again = client.submit(&array(&[0, 1, 2, 3])).await.unwrap();
    assert_eq!(again.id, first.id);
    let fewer = refused(client.submit(&array(&[0, 1])).await);
    assert_eq!(fewer.code, ErrorCode::Conflict);
    assert_eq!(client.jobs(true).await.unwrap().len(), 6);
}

#[tokio::test]
async fn an_array_whose_secrets_cannot_all_be_kept_is_refused_as_a_whole() {
    const SECRET: &str = "hunter3-of-the-test";
    let home = Home::started(&SIM);
    let client = home.connect();
    // In the place of the third one's file.
    let in_the_way = home.path().join("secrets/3.json");
    fs::create_dir_all(&in_the_way).unwrap();
    let submit = Submit {
        array: Some(Array {
            indices: vec![0, 1, 2, 3],
            max_running: None,
        }),
        secrets: BTreeMap::from([("TOKEN".to_owned(), SECRET.to_owned())]),
        idempotency_key: Some("once".into()),
        ..shell("[ -n \"$TOKEN\" ]")
    };
    let error = refused(client.submit(&submit).await);
    assert_eq!(error.code, ErrorCode::Internal);
    assert!(client.jobs(true).await.unwrap().is_empty());
    let events = client.events(0).await.unwrap();
    assert!(events.iter().all(|event| event.job.is_none()), "{events:?}");
    assert_eq!(files_with(home.path(), SECRET), [""; 0]);

    fs::remove_dir(&in_the_way).unwrap();
    client.submit(&submit).await.unwrap();
    let jobs = client.jobs(true).await.unwrap();
    assert_eq!(jobs.len(), 4);
    for job in jobs {
        let end = ended(&client, &job.id).await;
        assert_eq!(end.end_reason, Some(EndReason::Completed));
    }
    assert_eq!(files_with(home.path(), SECRET), [""; 0]);
}

#[tokio::test]
async fn a_start_estimate_is_given_where_every_job_has_a_time_limit() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let whole = |time_limit_s| Submit {
        amount: Some(divvy_api::v1::Amount::Whole { count: 1 }),
        time_limit_s,
        ..shell("sleep 1000")
    };
    let first = client.submit(&whole(Some(600))).await.unwrap();
    in_state(&client, &first.id, JobState::Running).await;
    let dry = Submit {
        dry_run: true,
        ..whole(None)
    };
    let would = client.submit(&dry).await.unwrap();
    let wait = would
        .expected_start
        .unwrap()
        .duration_since(jiff::Timestamp::now());
    assert!((500..=600).contains(&wait.as_secs()), "{wait}");
    let second = client.submit(&whole(None)).await.unwrap();
    assert!(
        client
            .job(&second.id)
            .await
            .unwrap()
            .expected_start
            .is_some()
    );
    // Nobody knows how long the second runs.
    assert_eq!(client.submit(&dry).await.unwrap().expected_start, None);
    for id in [&second.id, &first.id] {
        client.cancel(id).await.unwrap();
        ended(&client, id).await;
    }
}

#[tokio::test]
async fn an_array_is_a_job_for_each_index_and_no_more_of_them_at_once_than_was_said() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let (ran, go) = (home.path().join("ran"), home.path().join("go"));
    let script = format!(
        "echo $DIVVY_ARRAY_INDEX >> {}; while [ ! -e {} ]; do sleep 0.05; done",
        ran.display(),
        go.display()
    );
    let array = |indices: &[u32], most| {
        Some(divvy_api::v1::Array {
            indices: indices.to_vec(),
            max_running: most,
        })
    };
    let submit = Submit {
        name: Some("sweep".into()),
        array: array(&[3, 5, 9, 10], Some(2)),
        idempotency_key: Some("once".into()),
        ..shell(&script)
    };
    let first = client.submit(&submit).await.unwrap();
    assert_eq!(first.name, "sweep[3]");
    let jobs = client.jobs(false).await.unwrap();
    assert_eq!(jobs.len(), 4);
    let tasks: Vec<_> = jobs.iter().map(|job| job.array.clone().unwrap()).collect();
    assert!(tasks.iter().all(|task| task.array == first.id));
    assert_eq!(
        tasks.iter().map(|task| task.index).collect::<Vec<_>>(),
        [3, 5, 9, 10]
    );
    until("two run", || {
        fs::read_to_string(&ran).is_ok_and(|ran| ran.lines().count() == 2)
    });
    let third = client.job(&jobs[2].id).await.unwrap();
    assert_eq!(third.state, JobState::Queued);
    assert_eq!(
        third.reason.as_deref(),
        Some("its array runs at most 2 jobs at once")
    );

    // The same after a crash, and the key still stands for the whole array.
    home.kill();
    home.start(&SIM);
    let client = home.connect();
    assert_eq!(client.submit(&submit).await.unwrap().id, first.id);
    assert_eq!(
        client.job(&jobs[2].id).await.unwrap().state,
        JobState::Queued
    );
    fs::write(&go, "").unwrap();
    for job in &jobs {
        assert_eq!(
            ended(&client, &job.id).await.end_reason,
            Some(EndReason::Completed)
        );
    }
    let ran = fs::read_to_string(&ran).unwrap();
    let mut ran: Vec<&str> = ran.lines().collect();
    ran.sort_unstable();
    assert_eq!(ran, ["10", "3", "5", "9"]);

    for wrong in [array(&[], None), array(&[1, 1], None), array(&[1], Some(0))] {
        let submit = Submit {
            array: wrong,
            ..shell("true")
        };
        assert_eq!(refused(client.submit(&submit).await).code, ErrorCode::Usage);
    }
}
