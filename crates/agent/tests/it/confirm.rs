//! Jobs that are confirmed before they start: they hold their slice and run nothing, whatever happens to the daemon meanwhile.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::v1::{
    Amount, Confirm, Confirmation, EndReason, ErrorCode, Job, JobState, ReasonCode, Runner, Submit,
};
use divvy_testkit::{Home, PATIENCE, ended, failpoints, in_state, log, quarter, until_async};

const ONE: [&str; 2] = ["--sim", "a100-80gb:1"];

fn to_confirm(command: &[&str]) -> Submit {
    Submit {
        confirm: true,
        labels: BTreeMap::from([("front.task".to_owned(), "t1".to_owned())]),
        ..quarter(command)
    }
}

/// Waits until it has its slice and is to be confirmed.
async fn granted(client: &Client, id: &str) -> Job {
    let job = client.wait(id, WaitFor::Starting, PATIENCE).await.unwrap();
    assert_eq!(job.state, JobState::Starting, "{job:#?}");
    job
}

async fn kinds(client: &Client, id: &str) -> Vec<String> {
    let events = client.events(0).await.unwrap().into_iter();
    let of_job = events.filter(|event| event.job.as_deref() == Some(id));
    of_job.map(|event| event.kind).collect()
}

#[tokio::test]
async fn it_holds_its_slice_and_runs_nothing_before_it_is_confirmed() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let id = client.submit(&to_confirm(&["true"])).await.unwrap().id;
    let job = granted(&client, &id).await;
    assert_eq!(job.confirmation, Some(Confirmation::Awaiting));
    assert_eq!((job.attempt, job.slices[0].label.as_str()), (1, "gpu0.25a"));
    assert_eq!(job.reason_code, Some(ReasonCode::Confirmation));
    let reason = job.reason.unwrap();
    assert!(reason.contains("waits for its confirmation"), "{reason}");
    let why = client.why(&id).await.unwrap();
    assert!(why.summary.contains("confirmation"), "{}", why.summary);
    assert_eq!(
        kinds(&client, &id).await,
        ["submitted", "starting", "granted"]
    );
    assert_eq!(home.slices(), Vec::<String>::new());
    assert_eq!(home.recorded(&id, "launch"), None);
    // What a container would be brought into its slice by is known already.
    let flags = client.docker_args(&id).await.unwrap().flags.join(" ");
    assert!(flags.contains(&format!("slices/{id}")), "{flags}");
    // What it holds is nobody else's.
    let whole = Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(&["true"])
    };
    let other = client.submit(&whole).await.unwrap();
    assert_eq!(other.state, JobState::Queued);

    let job = client.confirm(&id, &Confirm::default()).await.unwrap();
    assert_eq!(job.confirmation, Some(Confirmation::Confirmed));
    let job = ended(&client, &id).await;
    assert_eq!((job.exit_code, job.attempt), (Some(0), 1));
    ended(&client, &other.id).await;
    // However short: it is told of also when nobody looked while it ran.
    assert_eq!(
        kinds(&client, &id).await,
        [
            "submitted",
            "starting",
            "granted",
            "confirmed",
            "running",
            "ended"
        ]
    );
}

#[tokio::test]
async fn what_is_confirmed_is_what_runs() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let submit = Submit {
        env: BTreeMap::from([("A".into(), "a".into()), ("B".into(), "b".into())]),
        ..to_confirm(&["/bin/sh", "-c", "echo as submitted"])
    };
    let id = client.submit(&submit).await.unwrap().id;
    let label = granted(&client, &id).await.slices[0].label.clone();
    let confirm = Confirm {
        attempt: Some(1),
        command: Some(
            ["/bin/sh", "-c", "echo $A $B $SLOT"]
                .map(str::to_owned)
                .to_vec(),
        ),
        env: BTreeMap::from([("B".into(), "c".into()), ("SLOT".into(), label)]),
        labels: BTreeMap::from([("front.slot".into(), "s".into())]),
        ..Confirm::default()
    };
    let job = client.confirm(&id, &confirm).await.unwrap();
    assert_eq!(job.command, confirm.command.clone().unwrap());
    assert_eq!(log(&client, &id).await, "a c gpu0.25a\n");
    let job = ended(&client, &id).await;
    let labels = BTreeMap::from([
        ("front.slot".to_owned(), "s".to_owned()),
        ("front.task".to_owned(), "t1".to_owned()),
    ]);
    assert_eq!(job.labels, labels);
}

#[tokio::test]
async fn the_same_confirmation_again_changes_nothing_and_another_is_refused() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let sleeps = |seconds: &str| Confirm {
        command: Some(vec!["sleep".into(), seconds.into()]),
        ..Confirm::default()
    };
    let id = client.submit(&to_confirm(&["true"])).await.unwrap().id;
    granted(&client, &id).await;
    client.confirm(&id, &sleeps("1000")).await.unwrap();
    let job = in_state(&client, &id, JobState::Running).await;
    let again = client.confirm(&id, &sleeps("1000")).await.unwrap();
    assert_eq!((again.state, again.pid), (JobState::Running, job.pid));
    let other = client.confirm(&id, &sleeps("1001")).await.unwrap_err();
    assert_eq!(other.code, ErrorCode::Conflict);
}

#[tokio::test]
async fn what_cannot_be_confirmed_is_refused_and_says_why() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let confirm = Confirm::default();
    let refused = async |id: &str, confirm: &Confirm, code: ErrorCode, words: &str| {
        let error = client.confirm(id, confirm).await.unwrap_err();
        assert_eq!(error.code, code, "{error:?}");
        assert!(
            error.message.contains(words) && error.hint.is_some(),
            "{error:?}"
        );
    };
    refused("7", &confirm, ErrorCode::NotFound, "no job 7").await;
    let plain = client
        .submit(&quarter(&["sleep", "1000"]))
        .await
        .unwrap()
        .id;
    refused(
        &plain,
        &confirm,
        ErrorCode::Conflict,
        "needs no confirmation",
    )
    .await;
    let id = client.submit(&to_confirm(&["true"])).await.unwrap().id;
    let whole = Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..to_confirm(&["true"])
    };
    let waits = client.submit(&whole).await.unwrap();
    assert_eq!(waits.confirmation, Some(Confirmation::NotPlaced));
    refused(&waits.id, &confirm, ErrorCode::Conflict, "no slice yet").await;
    granted(&client, &id).await;
    let wrong = [
        (
            Confirm {
                attempt: Some(2),
                ..Confirm::default()
            },
            ErrorCode::Conflict,
            "attempt 2",
        ),
        (
            Confirm {
                command: Some(Vec::new()),
                ..Confirm::default()
            },
            ErrorCode::Usage,
            "empty",
        ),
        (
            Confirm {
                env: BTreeMap::from([("A=".into(), "b".into())]),
                ..Confirm::default()
            },
            ErrorCode::Usage,
            "environment variable",
        ),
        (
            Confirm {
                labels: BTreeMap::from([("a b".into(), "c".into())]),
                ..Confirm::default()
            },
            ErrorCode::Usage,
            "name of a label",
        ),
    ];
    for (confirm, code, words) in &wrong {
        let error = client.confirm(&id, confirm).await.unwrap_err();
        assert_eq!(error.code, *code, "{error:?}");
        assert!(error.message.contains(words), "{error:?}");
    }
    let job = client.job(&id).await.unwrap();
    assert_eq!(
        job.confirmation,
        Some(Confirmation::Awaiting),
        "a refusal changes nothing"
    );
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
    refused(&id, &confirm, ErrorCode::Conflict, "ended already").await;
}

#[tokio::test]
async fn a_submit_that_cannot_be_confirmed_or_labelled_is_refused() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let labelled = |count: usize, value: &str| Submit {
        labels: (0..count)
            .map(|n| (format!("l{n}"), value.to_owned()))
            .collect(),
        ..quarter(&["true"])
    };
    let wrong = [
        Submit {
            confirm_within_s: Some(0),
            ..to_confirm(&["true"])
        },
        Submit {
            confirm_within_s: Some(86_401),
            ..to_confirm(&["true"])
        },
        Submit {
            confirm_within_s: Some(5),
            ..quarter(&["true"])
        },
        Submit {
            runner: Runner::Client,
            ..to_confirm(&["true"])
        },
        labelled(33, "x"),
        labelled(1, &"x".repeat(257)),
        labelled(1, "a\nb"),
        Submit {
            labels: BTreeMap::from([(String::new(), "x".into())]),
            ..quarter(&["true"])
        },
    ];
    for (number, submit) in wrong.iter().enumerate() {
        let error = client.submit(submit).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Usage, "{number}: {error:?}");
    }
    let most = client
        .submit(&labelled(32, &"x".repeat(256)))
        .await
        .unwrap();
    assert_eq!(most.labels.len(), 32);
}

#[tokio::test]
async fn one_that_is_cancelled_gives_its_slice_back_and_never_runs() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let mark = home.path().join("ran");
    let id = client
        .submit(&to_confirm(&["touch", mark.to_str().unwrap()]))
        .await
        .unwrap()
        .id;
    granted(&client, &id).await;
    client.cancel(&id).await.unwrap();
    let job = ended(&client, &id).await;
    assert_eq!(job.end_reason, Some(EndReason::Cancelled));
    assert_eq!(job.exit_code, None);
    let whole = Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(&["true"])
    };
    let other = client.submit(&whole).await.unwrap();
    assert_eq!(ended(&client, &other.id).await.exit_code, Some(0));
    assert!(!mark.exists());
}

#[tokio::test]
async fn an_unconfirmed_job_releases_its_slice_until_a_client_asks_for_it() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let whole = Submit {
        amount: Some(Amount::Whole { count: 1 }),
        confirm_within_s: Some(1),
        ..to_confirm(&["true"])
    };
    let id = client.submit(&whole).await.unwrap().id;
    // Asking for a job to look at it is not waiting for it.
    let job = in_state(&client, &id, JobState::Queued).await;
    let reason = job.reason.unwrap();
    assert!(reason.contains("not confirmed within 1 s"), "{reason}");
    assert_eq!(job.confirmation, Some(Confirmation::NotPlaced));
    let why = client.why(&id).await.unwrap();
    assert!(why.summary.contains("not confirmed"), "{}", why.summary);
    // It stands in nobody's way.
    let other = client.submit(&quarter(&["true"])).await.unwrap();
    assert_eq!(ended(&client, &other.id).await.exit_code, Some(0));
    assert_eq!(client.job(&id).await.unwrap().state, JobState::Queued);

    // Whoever waits for its end is somebody, and does all the while.
    let end = tokio::spawn({
        let (client, id) = (home.connect(), id.clone());
        async move { client.wait(&id, WaitFor::Ended, PATIENCE).await }
    });
    let job = in_state(&client, &id, JobState::Starting).await;
    assert_eq!(
        (job.attempt, job.confirmation),
        (2, Some(Confirmation::Awaiting))
    );
    // For longer than an unconfirmed grant is kept.
    let other = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let other = client.wait(&other.id, WaitFor::Ended, Duration::from_secs(2));
    assert_ne!(other.await.unwrap().state, JobState::Ended);
    let waits = client.job(&id).await.unwrap();
    assert_eq!((waits.state, waits.attempt), (JobState::Starting, 2));
    client
        .confirm(
            &id,
            &Confirm {
                attempt: Some(2),
                ..Confirm::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(end.await.unwrap().unwrap().exit_code, Some(0));
}

#[tokio::test]
async fn one_that_starts_anew_is_confirmed_anew() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let id = client
        .submit(&to_confirm(&["sleep", "1000"]))
        .await
        .unwrap()
        .id;
    granted(&client, &id).await;
    client.confirm(&id, &Confirm::default()).await.unwrap();
    in_state(&client, &id, JobState::Running).await;
    client.requeue(&id).await.unwrap();
    until_attempt(&client, &id, 2).await;
    let job = granted(&client, &id).await;
    assert_eq!(job.confirmation, Some(Confirmation::Awaiting));
    let late = Confirm {
        attempt: Some(1),
        ..Confirm::default()
    };
    assert_eq!(
        client.confirm(&id, &late).await.unwrap_err().code,
        ErrorCode::Conflict
    );
    client.confirm(&id, &Confirm::default()).await.unwrap();
    in_state(&client, &id, JobState::Running).await;
}

async fn until_attempt(client: &Client, id: &str, attempt: u32) {
    until_async(format!("attempt {attempt} of job {id}"), async || {
        (client.job(id).await.unwrap().attempt >= attempt).then_some(())
    })
    .await;
}

/// The daemon dies by SIGKILL at every step between the grant and the supervisor, and another goes on.
#[tokio::test]
async fn killed_at_any_point_it_runs_once_and_never_unconfirmed() {
    for point in failpoints::CONFIRM {
        let mut home = Home::empty();
        let ran = home.path().join("ran");
        let script = format!("echo run >> {}", ran.display());
        let submit = Submit {
            idempotency_key: Some("front:t1:n".into()),
            ..to_confirm(&["/bin/sh", "-c", &script])
        };
        let confirm = Confirm {
            env: BTreeMap::from([("SLOT".into(), "s".into())]),
            ..Confirm::default()
        };
        let mut answer = None;
        home.crash_at(point, &ONE, async |home| {
            let client = home.connect();
            if let Ok(job) = client.submit(&submit).await {
                answer = client.confirm(&job.id, &confirm).await.ok();
            }
        })
        .await;
        let client = home.connect();
        // The front end sends again what it knows no answer to.
        let id = client.submit(&submit).await.unwrap().id;
        let job = client.job(&id).await.unwrap();
        if job.confirmation == Some(Confirmation::Awaiting) {
            assert!(answer.is_none(), "{point}: what was acknowledged is lost");
            assert!(!ran.exists(), "{point}: it ran unconfirmed");
            assert_eq!(
                (job.attempt, job.slices[0].label.as_str()),
                (1, "gpu0.25a"),
                "{point}"
            );
            client.confirm(&id, &confirm).await.unwrap();
        }
        let job = ended(&client, &id).await;
        assert_eq!(
            (job.exit_code, job.attempt),
            (Some(0), 1),
            "{point}: {job:#?}"
        );
        assert_eq!(fs::read_to_string(&ran).unwrap(), "run\n", "{point}");
        assert_eq!(client.jobs(true).await.unwrap().len(), 1, "{point}");
    }
}
