//! Jobs through the API: how they start, what they see, how they end.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::time::Duration;

use divvy_api::client::WaitFor;
use divvy_api::v1::{Amount, EndReason, ErrorCode, JobState, ProjectChange, Submit};
use divvy_testkit::{
    Home, SEED, call, ended, has_spec, in_state, is_alive, log, quarter, refused, script, until,
};

#[tokio::test]
async fn a_job_runs_with_its_slice_and_its_code_is_kept() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let said = "echo $DIVVY_JOB_ID $DIVVY_QUEUE $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $FOO; echo oops >&2; test -e $DIVVY_SLICE/control && exit 3";
    let mut submit = script("quarter_gpu", said);
    submit.env.insert("FOO".into(), "bar".into());
    let job = client.submit(&submit).await.unwrap();
    assert_eq!(
        (job.id.as_str(), job.name.as_str(), job.state),
        ("1", "sh", JobState::Starting)
    );
    assert_eq!(job.slices[0].label, "gpu0.25a");
    let uuid = job.slices[0].gpu_uuid.clone();

    let job = ended(&client, "1").await;
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Failed), Some(3))
    );
    assert_eq!(
        log(&client, "1").await,
        format!("1 quarter_gpu 0 {uuid} bar\noops\n")
    );
    assert!(job.started_at.unwrap() >= job.submitted_at && job.ended_at >= job.started_at);
    assert_eq!(home.slices(), [""; 0], "its slice is gone");
    let folder = home.path().join("jobs/1");
    assert!(!has_spec(&folder), "and so is its environment");
    assert!(
        client
            .gpus()
            .await
            .unwrap()
            .iter()
            .all(|gpu| gpu.share_allocated == 0)
    );
}

#[tokio::test]
async fn what_cannot_be_started_says_so_with_the_shells_codes() {
    let home = Home::started(&SEED);
    let client = home.connect();
    for (command, cwd, code, words) in [
        ("no-such-program", "/", 127, "not found in PATH"),
        ("/etc/passwd", "/", 126, "ermission denied"),
        ("true", "/no/such/folder", 125, "/no/such/folder"),
    ] {
        let submit = Submit {
            cwd: cwd.into(),
            ..quarter(&[command])
        };
        let id = client.submit(&submit).await.unwrap().id;
        let job = ended(&client, &id).await;
        assert_eq!(
            (job.end_reason, job.exit_code),
            (Some(EndReason::LaunchFailed), Some(code)),
            "{job:#?}"
        );
        assert!(job.reason.as_ref().unwrap().contains(words), "{job:#?}");
        assert!(log(&client, &id).await.contains(words));
    }
}

#[tokio::test]
async fn a_program_ended_by_a_signal_has_128_and_its_number() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let id = client
        .submit(&quarter(&["sh", "-c", "kill -9 $$"]))
        .await
        .unwrap()
        .id;
    let job = ended(&client, &id).await;
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Failed), Some(137))
    );
    // clearml-agent ends with Python's -9 for a task that signal 9 ended, which is 247.
    let labels = [("clearml.task".to_owned(), "7".to_owned())];
    for (labels, code, shown, reason) in [
        (&labels[..], 247, 137, "ended by signal 9"),
        (&labels, 245, 139, "ended by signal 11"),
        (&labels, 255, 255, "exited with code 255"),
        (&labels, 191, 191, "exited with code 191"),
        (&[], 247, 247, "exited with code 247"),
    ] {
        let task = Submit {
            labels: labels.iter().cloned().collect(),
            ..quarter(&["sh", "-c", &format!("exit {code}")])
        };
        let id = client.submit(&task).await.unwrap().id;
        let job = ended(&client, &id).await;
        assert_eq!(
            (job.end_reason, job.exit_code),
            (Some(EndReason::Failed), Some(shown))
        );
        assert_eq!(job.reason.as_deref(), Some(reason));
    }
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let home = Home::started(&SEED);
    let client = home.connect();
    // A daemonised child: another session, its parent gone once it has said who it is.
    let left = home.path().join("left");
    let leave = format!(
        "setsid sh -c 'echo $$; : > {0}; exec sleep 1000' & until test -e {0}; do sleep 0.05; done; exit 0",
        left.display()
    );
    let id = client
        .submit(&quarter(&["sh", "-c", &leave]))
        .await
        .unwrap()
        .id;
    let job = ended(&client, &id).await;
    assert_eq!(job.exit_code, Some(0));
    let left: u32 = log(&client, &id).await.trim().parse().unwrap();
    assert!(!is_alive(left));
}

#[tokio::test]
async fn jobs_wait_their_turn_and_are_told_why() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let mut ids = Vec::new();
    for queue in ["dual_gpus", "quarter_gpu", "half_gpu", "single_gpu"] {
        ids.push(
            client
                .submit(&script(queue, "sleep 1000"))
                .await
                .unwrap()
                .id,
        );
    }
    for id in &ids[..3] {
        in_state(&client, id, JobState::Running).await;
    }
    let waiting = client.job(&ids[3]).await.unwrap();
    assert_eq!((waiting.state, waiting.place), (JobState::Queued, Some(1)));
    assert!(waiting.reason.unwrap().contains("2.75 of 3 GPUs in use"));
    let why = client.why(&ids[3]).await.unwrap();
    assert!(why.summary.contains("2.75 of 3 GPUs in use"), "{why:#?}");
    assert_eq!(why.gpus.len(), 3);

    for id in [&ids[1], &ids[2]] {
        client.cancel(id).await.unwrap();
        assert_eq!(
            ended(&client, id).await.end_reason,
            Some(EndReason::Cancelled)
        );
    }
    let job = in_state(&client, &ids[3], JobState::Running).await;
    assert_eq!(job.slices[0].label, "gpu2");
}

#[tokio::test]
async fn a_job_is_cancelled_in_every_state() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let whole = |command: &[&str]| Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(command)
    };
    let running = client.submit(&whole(&["sleep", "1000"])).await.unwrap().id;
    let queued = client.submit(&whole(&["sleep", "1000"])).await.unwrap().id;

    let job = client.cancel(&queued).await.unwrap();
    assert_eq!(
        (job.state, job.end_reason, job.exit_code),
        (JobState::Ended, Some(EndReason::Cancelled), None)
    );
    assert_eq!(
        refused(client.cancel(&queued).await).code,
        ErrorCode::Conflict
    );

    // While it is starting or has just begun, whichever the moment is.
    client.cancel(&running).await.unwrap();
    client.cancel(&running).await.ok();
    assert_eq!(
        ended(&client, &running).await.end_reason,
        Some(EndReason::Cancelled)
    );

    let id = client.submit(&whole(&["sleep", "1000"])).await.unwrap().id;
    let pid = in_state(&client, &id, JobState::Running).await.pid.unwrap();
    assert!(matches!(
        client.cancel(&id).await.unwrap().state,
        JobState::Stopping | JobState::Ended
    ));
    let job = ended(&client, &id).await;
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Cancelled), Some(143))
    );
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_after_the_grace_with_its_children() {
    let home = Home::started(&["--sim", "l4-24gb:1", "--set", "grace=1s"]);
    let client = home.connect();
    let stubborn =
        "trap '' TERM; echo $$; sh -c \"trap '' TERM; echo \\$\\$; sleep 1000\"; sleep 1000";
    let id = client
        .submit(&quarter(&["sh", "-c", stubborn]))
        .await
        .unwrap()
        .id;
    let log_file = home.path().join("jobs").join(&id).join("log");
    let pids = || -> Vec<u32> {
        let text = std::fs::read_to_string(&log_file).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    until("both shells run", || pids().len() == 2);
    in_state(&client, &id, JobState::Running).await;
    client.cancel(&id).await.unwrap();
    let job = ended(&client, &id).await;
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Cancelled), Some(137))
    );
    assert!(pids().into_iter().all(|pid| !is_alive(pid)));
}

#[tokio::test]
async fn the_same_key_submits_once() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let keyed = |command: &[&str]| Submit {
        idempotency_key: Some("k".into()),
        ..quarter(command)
    };
    let first = client.submit(&keyed(&["true"])).await.unwrap();
    let again = client.submit(&keyed(&["true"])).await.unwrap();
    assert_eq!(first.id, again.id);
    ended(&client, &first.id).await;
    assert_eq!(
        client.submit(&keyed(&["true"])).await.unwrap().id,
        first.id,
        "also once it has ended"
    );
    assert_eq!(
        refused(client.submit(&keyed(&["false"])).await).code,
        ErrorCode::Conflict
    );
    assert_eq!(client.jobs(true).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_wrong_is_refused_and_leaves_nothing() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let quarter = || quarter(&["true"]);
    let cases = [
        (
            Submit {
                command: vec![],
                ..quarter()
            },
            ErrorCode::Usage,
        ),
        (
            Submit {
                cwd: "here".into(),
                ..quarter()
            },
            ErrorCode::Usage,
        ),
        (
            Submit {
                queue: Some("nowhere".into()),
                ..quarter()
            },
            ErrorCode::NotFound,
        ),
        (
            Submit {
                queue: Some("half_gpu".into()),
                ..quarter()
            },
            ErrorCode::Usage,
        ),
        (
            Submit {
                amount: None,
                ..quarter()
            },
            ErrorCode::Usage,
        ),
        (
            Submit {
                amount: Some(Amount::Share { thousandths: 0 }),
                ..quarter()
            },
            ErrorCode::Usage,
        ),
        (
            Submit {
                amount: Some(Amount::Whole { count: 4 }),
                ..quarter()
            },
            ErrorCode::NeverFits,
        ),
        (
            Submit {
                amount: Some(Amount::Memory { bytes: 1 << 40 }),
                ..quarter()
            },
            ErrorCode::NeverFits,
        ),
        (
            Submit {
                gpus_on: vec![7],
                ..quarter()
            },
            ErrorCode::Usage,
        ),
        (
            Submit {
                compute: Some("turbo".into()),
                ..quarter()
            },
            ErrorCode::Usage,
        ),
        (
            Submit {
                name: Some("7".into()),
                ..quarter()
            },
            ErrorCode::Usage,
        ),
    ];
    for (submit, code) in cases {
        let error = refused(client.submit(&submit).await);
        assert_eq!(error.code, code, "{error:?}");
        assert!(!error.message.is_empty());
    }
    assert_eq!(client.jobs(true).await.unwrap().len(), 0);
    assert_eq!(client.events(0).await.unwrap().len(), 0);
    assert_eq!(refused(client.job("9").await).code, ErrorCode::NotFound);
    assert_eq!(refused(client.job("last").await).code, ErrorCode::NotFound);
}

#[tokio::test]
async fn no_wait_takes_a_place_or_nothing_and_a_dry_run_takes_nothing() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let whole = Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(&["sleep", "1000"])
    };
    let would = client
        .submit(&Submit {
            dry_run: true,
            ..whole.clone()
        })
        .await
        .unwrap();
    assert_eq!(
        (would.state, would.slices.len(), would.id.as_str()),
        (JobState::Starting, 1, "")
    );
    assert_eq!(client.jobs(true).await.unwrap().len(), 0);

    let job = client
        .submit(&Submit {
            no_wait: true,
            ..whole.clone()
        })
        .await
        .unwrap();
    assert_eq!(job.state, JobState::Starting);
    let error = refused(
        client
            .submit(&Submit {
                no_wait: true,
                ..whole.clone()
            })
            .await,
    );
    assert_eq!(error.code, ErrorCode::WouldWait);
    assert!(error.message.contains("1 of 1 GPU"), "{}", error.message);
    let would = client
        .submit(&Submit {
            dry_run: true,
            ..whole
        })
        .await
        .unwrap();
    assert_eq!(would.state, JobState::Queued);
    assert!(would.reason.is_some());
    assert_eq!(client.jobs(true).await.unwrap().len(), 1);
}

#[tokio::test]
async fn names_refer_to_one_living_job_or_the_newest_that_ended() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let named = |command: &[&str]| Submit {
        name: Some("train".into()),
        ..quarter(command)
    };
    let first = client.submit(&named(&["true"])).await.unwrap().id;
    ended(&client, &first).await;
    assert_eq!(client.job("train").await.unwrap().id, first);
    let second = client.submit(&named(&["sleep", "1000"])).await.unwrap().id;
    assert_eq!(
        client.job("train").await.unwrap().id,
        second,
        "the one that lives"
    );
    let third = client.submit(&named(&["sleep", "1000"])).await.unwrap().id;
    assert_eq!(refused(client.job("train").await).code, ErrorCode::Conflict);
    assert_eq!(client.job("last").await.unwrap().id, third);
    assert_eq!(client.job("#2").await.unwrap().id, second);
}

#[tokio::test]
async fn events_are_told_in_order_from_any_point_and_as_they_happen() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let id = client.submit(&quarter(&["true"])).await.unwrap().id;
    ended(&client, &id).await;
    let kinds = |events: &[divvy_api::v1::Event]| {
        events
            .iter()
            .map(|event| event.kind.clone())
            .collect::<Vec<_>>()
    };
    let past = client.events(0).await.unwrap();
    assert_eq!(
        past.iter().map(|event| event.seq).collect::<Vec<_>>(),
        (1..=past.len() as u64).collect::<Vec<_>>()
    );
    assert_eq!(kinds(&past).first().map(String::as_str), Some("submitted"));
    assert_eq!(kinds(&past).last().map(String::as_str), Some("ended"));
    assert_eq!(kinds(&client.events(1).await.unwrap()), kinds(&past[1..]));

    let mut stream = client.follow_events(past.len() as u64 - 1).await.unwrap();
    assert_eq!(
        stream.next().await.unwrap().unwrap().kind,
        "ended",
        "the past comes first"
    );
    let id = client.submit(&quarter(&["true"])).await.unwrap().id;
    let mut seen = Vec::new();
    while seen.last().map(String::as_str) != Some("ended") {
        let event = stream.next().await.unwrap().unwrap();
        assert_eq!(event.job.as_deref(), Some(id.as_str()));
        seen.push(event.kind);
    }
    assert_eq!(seen.first().map(String::as_str), Some("submitted"));
}

#[tokio::test]
async fn an_event_stream_that_cannot_read_the_journal_for_a_while_leaves_no_event_out() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let id = client.submit(&quarter(&["true"])).await.unwrap().id;
    ended(&client, &id).await;
    let past = client.events(0).await.unwrap();
    let (journal, aside) = (home.path().join("state.db"), home.path().join("aside.db"));
    std::fs::rename(&journal, &aside).unwrap();
    let mut stream = client.follow_events(0).await.unwrap();
    let id = client.submit(&quarter(&["true"])).await.unwrap().id;
    ended(&client, &id).await;
    std::fs::rename(&aside, &journal).unwrap();
    let all = client.events(0).await.unwrap();
    assert!(all.len() > past.len(), "{all:?}");
    for event in all {
        let next = stream.next().await.unwrap().map(|event| event.seq);
        assert_eq!(next, Some(event.seq));
    }
}

#[tokio::test]
async fn a_followed_log_ends_with_the_job_and_an_offset_skips() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let gate = home.path().join("gate");
    let waiting = format!(
        "echo first; until test -e {}; do sleep 0.05; done; printf second",
        gate.display()
    );
    let id = client
        .submit(&quarter(&["sh", "-c", &waiting]))
        .await
        .unwrap()
        .id;
    let mut stream = client.log(&id, 0, true).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "first\n");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "second");
    assert_eq!(stream.next().await.unwrap(), None);
    assert_eq!(ended(&client, &id).await.exit_code, Some(0));
    let mut rest = client.log(&id, 6, false).await.unwrap();
    assert_eq!(rest.next().await.unwrap().unwrap(), "second");
}

#[tokio::test]
async fn a_daemon_that_stops_breaks_off_the_log_that_is_followed_of_a_job_that_goes_on() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let silent = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let talks = quarter(&["sh", "-c", "echo first; exec sleep 1000"]);
    let talks = client.submit(&talks).await.unwrap();
    let mut nothing = client.log(&silent.id, 0, true).await.unwrap();
    let mut stream = client.log(&talks.id, 0, true).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "first\n");
    assert_eq!(home.stop(), 0);
    for stream in [&mut nothing, &mut stream] {
        let broken = stream.next().await;
        assert_eq!(broken.unwrap_err().code, ErrorCode::NoDaemon);
    }
}

#[tokio::test]
async fn a_long_poll_answers_at_once_at_the_milestone_and_in_time_without_it() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let id = client
        .submit(&quarter(&["sleep", "1000"]))
        .await
        .unwrap()
        .id;
    let job = client
        .wait(&id, WaitFor::Starting, Duration::from_secs(30))
        .await
        .unwrap();
    assert_ne!(job.state, JobState::Queued);
    let job = client
        .wait(&id, WaitFor::Ended, Duration::from_secs(0))
        .await
        .unwrap();
    assert_ne!(job.state, JobState::Ended);
}

#[tokio::test]
async fn a_job_on_behalf_of_a_user_is_shown_under_that_user_and_found_by_its_task() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    client
        .add_project(
            "lab",
            &ProjectChange {
                quota: Some(1000),
                members: Some(vec!["somebody".into()]),
                ..ProjectChange::default()
            },
        )
        .await
        .unwrap();
    let submit = Submit {
        user: Some("Bob Example".into()),
        // Whose front end it is may submit for whom it likes.
        project: Some("lab".into()),
        labels: [("note".to_owned(), "as said".to_owned())].into(),
        idempotency_key: Some("clearml:4f2:1".into()),
        ..script("quarter_gpu", "sleep 1000")
    };
    let job = client.submit(&submit).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    home.kill();
    home.start(&SEED);
    let client = home.connect();
    let found = client.job("clearml:4f2").await.unwrap();
    assert_eq!((&found.id, found.user.as_str()), (&job.id, "Bob Example"));
    assert_eq!(found.uid, Some(rustix::process::geteuid().as_raw()));
    assert_eq!(found.labels["note"], "as said");
    let why = client.why("clearml:4f2").await.unwrap();
    assert_eq!(why.note.as_deref(), Some("as said"));
    let now = jiff::Timestamp::now();
    let day = jiff::SignedDuration::from_hours(24);
    let used = client
        .usage("user", now - day, now + day, None)
        .await
        .unwrap();
    assert_eq!(used[0].user.as_deref(), Some("Bob Example"));
    let (_, metrics) = call(&home.socket(), "GET", "/metrics", "");
    assert!(metrics.contains("user=\"Bob Example\""), "{metrics}");

    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    assert_eq!(client.job("clearml:4f2").await.unwrap().id, job.id);
    for nothing in ["clearml:4f", "clearml", "clearml:4f2:2"] {
        let error = refused(client.job(nothing).await);
        assert_eq!(error.code, ErrorCode::NotFound, "{nothing}");
    }
    let mut wrong = submit.clone();
    (wrong.user, wrong.idempotency_key) = (Some("a\nb".into()), None);
    assert_eq!(refused(client.submit(&wrong).await).code, ErrorCode::Usage);
}
