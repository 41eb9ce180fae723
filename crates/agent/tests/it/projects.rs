//! Projects through the API: who is stopped for whom, what is refused, what a crash in the middle leaves.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;

use divvy_api::client::Client;
use divvy_api::v1::{
    After, Amount, EndReason, ErrorCode, Job, JobState, ProjectChange, Resize, Submit,
};
use divvy_testkit::{Home, ended, in_state, log, quarter, refused, until};

/// A quota in thousandths.
fn quota(thousandths: u64) -> ProjectChange {
    ProjectChange {
        quota: Some(thousandths),
        ..ProjectChange::default()
    }
}

/// A job of a whole GPU on a project's account.
fn whole(project: &str, preemptible: bool, script: &str) -> Submit {
    Submit {
        project: Some(project.to_owned()),
        preemptible,
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(&["sh", "-c", script])
    }
}

/// Runs until it is told to stop, and says when that is.
const PATIENT: &str =
    "trap 'echo stopped; exit 0' TERM; echo started; while :; do sleep 0.05; done";

/// One GPU; `a` is guaranteed nothing and `b` one GPU.
async fn two_projects(args: &[&str]) -> (Home, Client) {
    let mut all = vec!["--sim", "l4-24gb:1"];
    all.extend(args);
    let home = Home::started(&all);
    let client = home.connect();
    client.add_project("a", &quota(0)).await.unwrap();
    client.add_project("b", &quota(1000)).await.unwrap();
    (home, client)
}

async fn kinds(client: &Client, job: &Job) -> Vec<String> {
    let events = client.events(0).await.unwrap();
    let its = events
        .into_iter()
        .filter(|event| event.job.as_ref() == Some(&job.id));
    its.map(|event| event.kind).collect()
}

#[tokio::test]
async fn a_job_within_quota_takes_the_place_of_one_that_is_over_and_that_one_starts_anew_later() {
    let (_home, client) = two_projects(&[]).await;
    let over = client.submit(&whole("a", true, PATIENT)).await.unwrap();
    in_state(&client, &over.id, JobState::Running).await;
    until("its program says so", || {
        fs::read_to_string(format!("{}/log", over.directory))
            .is_ok_and(|log| log.contains("started"))
    });
    let within = client
        .submit(&whole("b", false, "sleep 1000"))
        .await
        .unwrap();
    let reason = within.reason.unwrap();
    assert_eq!(
        reason,
        format!(
            "within b's quota (1 of 1 GPUs with it): starts when #{}, over quota, is preempted for it",
            over.id
        )
    );
    in_state(&client, &within.id, JobState::Running).await;

    let waits = client.job(&over.id).await.unwrap();
    assert_eq!((waits.state, waits.runs_before), (JobState::Queued, 1));
    assert!(waits.exit_code.is_none() && waits.slices.is_empty());
    assert_eq!(
        kinds(&client, &over).await,
        ["submitted", "starting", "running", "stopping", "requeued"]
    );
    let projects = client.projects().await.unwrap();
    let sums: Vec<_> = projects
        .iter()
        .map(|one| (one.used, one.over_quota, one.waiting))
        .collect();
    assert_eq!(sums, [(0, 0, 1), (1000, 0, 0)]);

    client.cancel(&within.id).await.unwrap();
    ended(&client, &within.id).await;
    in_state(&client, &over.id, JobState::Running).await;
    until("it says so again", || {
        let log = fs::read_to_string(format!("{}/log", over.directory)).unwrap();
        log.matches("started").count() == 2
    });
    client.cancel(&over.id).await.unwrap();
    let end = ended(&client, &over.id).await;
    assert_eq!(end.end_reason, Some(EndReason::Cancelled));
    let log = log(&client, &over.id).await;
    // A shell also says how the program ended that it waited for.
    let said: Vec<&str> = log.lines().filter(|line| *line != "Terminated").collect();
    assert_eq!(said, ["started", "stopped", "started", "stopped"]);
}

#[tokio::test]
async fn a_daemon_that_is_killed_while_a_job_gives_way_loses_and_doubles_nothing() {
    let (mut home, client) = two_projects(&[]).await;
    let hold = home.path().join("hold");
    fs::write(&hold, "").unwrap();
    let script = format!(
        "trap 'while [ -e {0} ]; do sleep 0.05; done; exit 0' TERM; echo started; while :; do sleep 0.05; done",
        hold.display()
    );
    let over = client.submit(&whole("a", true, &script)).await.unwrap();
    in_state(&client, &over.id, JobState::Running).await;
    until("its program says so", || {
        fs::read_to_string(format!("{}/log", over.directory))
            .is_ok_and(|log| log.contains("started"))
    });
    let within = client
        .submit(&whole("b", false, "sleep 1000"))
        .await
        .unwrap();
    in_state(&client, &over.id, JobState::Stopping).await;
    home.kill();
    home.start(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let stopping = client.job(&over.id).await.unwrap();
    assert_eq!(
        (stopping.state, stopping.slices.len()),
        (JobState::Stopping, 1)
    );
    fs::remove_file(&hold).unwrap();
    in_state(&client, &within.id, JobState::Running).await;
    let waits = client.job(&over.id).await.unwrap();
    assert_eq!((waits.state, waits.runs_before), (JobState::Queued, 1));

    // And once more while it waits: it has not forgotten that it ran.
    home.kill();
    home.start(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let waits = client.job(&over.id).await.unwrap();
    assert_eq!((waits.state, waits.runs_before), (JobState::Queued, 1));
    assert!(waits.preemptible && waits.project.as_deref() == Some("a"));
    client.cancel(&within.id).await.unwrap();
    in_state(&client, &over.id, JobState::Running).await;
    until("it says so again", || {
        let log = fs::read_to_string(format!("{}/log", over.directory)).unwrap();
        log.matches("started").count() == 2
    });
    client.cancel(&over.id).await.unwrap();
    ended(&client, &over.id).await;
}

#[tokio::test]
async fn what_ended_by_itself_before_it_was_told_has_ended() {
    let (mut home, client) = two_projects(&[]).await;
    let go = home.path().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; exit 7",
        go.display()
    );
    let over = client.submit(&whole("a", true, &script)).await.unwrap();
    in_state(&client, &over.id, JobState::Running).await;
    home.kill();
    fs::write(&go, "").unwrap();
    until("its supervisor has written how it ended", || {
        home.recorded(&over.id, "exit").is_some()
    });
    home.start(&["--sim", "l4-24gb:1"]);
    let end = ended(&home.connect(), &over.id).await;
    assert_eq!(
        (end.end_reason, end.exit_code),
        (Some(EndReason::Failed), Some(7))
    );
}

#[tokio::test]
async fn no_job_is_preempted_before_its_minimum_runtime_and_without_preemption_no_job_ever() {
    let (_home, client) = two_projects(&[]).await;
    let patient = ProjectChange {
        min_runtime_s: Some(3600),
        ..ProjectChange::default()
    };
    client.set_project("a", &patient).await.unwrap();
    let over = client.submit(&whole("a", true, PATIENT)).await.unwrap();
    in_state(&client, &over.id, JobState::Running).await;
    let within = client.submit(&whole("b", false, "true")).await.unwrap();
    let reason = within.reason.unwrap();
    assert!(reason.contains("after the minimum runtime"), "{reason}");
    assert_eq!(client.job(&over.id).await.unwrap().state, JobState::Running);
    // It is looked at again when the rule changes.
    let at_once = ProjectChange {
        min_runtime_s: Some(0),
        ..ProjectChange::default()
    };
    client.set_project("a", &at_once).await.unwrap();
    assert_eq!(
        ended(&client, &within.id).await.end_reason,
        Some(EndReason::Completed)
    );

    let (_home, client) = two_projects(&["--set", "preemption=off"]).await;
    let over = client.submit(&whole("a", false, PATIENT)).await.unwrap();
    in_state(&client, &over.id, JobState::Running).await;
    let within = client.submit(&whole("b", false, "true")).await.unwrap();
    assert_eq!(
        within.reason.unwrap(),
        "needs 1 whole GPU; 1 of 1 GPU in use"
    );
}

#[tokio::test]
async fn what_a_project_may_not_have_is_refused_with_the_arithmetic() {
    let (_home, client) = two_projects(&[]).await;
    let code = |answer: Result<Job, _>| {
        let error = refused(answer);
        (error.code, error.message)
    };
    let (kind, message) = code(client.submit(&whole("c", true, "true")).await);
    assert_eq!(
        (kind, message.as_str()),
        (ErrorCode::NotFound, "there is no project c")
    );
    let (kind, message) = code(client.submit(&whole("a", false, "true")).await);
    assert_eq!(kind, ErrorCode::NeverFits);
    assert_eq!(
        message,
        "a's quota is 0 GPUs, and the job requests 1, and only preemptible jobs may exceed it"
    );
    let half = ProjectChange {
        limit: Some(Some(500)),
        quota: Some(500),
        ..ProjectChange::default()
    };
    client.set_project("b", &half).await.unwrap();
    let (kind, message) = code(client.submit(&whole("b", true, "true")).await);
    assert_eq!(kind, ErrorCode::NeverFits);
    assert_eq!(message, "b's limit is 0.5 GPUs, and the job requests 1");
    let others = ProjectChange {
        members: Some(vec!["nobody-here".into(), "@no-such-group".into()]),
        ..ProjectChange::default()
    };
    client.set_project("b", &others).await.unwrap();
    let small = Submit {
        amount: Some(Amount::Share { thousandths: 250 }),
        ..whole("b", false, "true")
    };
    let (kind, message) = code(client.submit(&small).await);
    assert_eq!(kind, ErrorCode::NotAllowed);
    assert!(
        message.ends_with("is not a member of the project b"),
        "{message}"
    );
    let everybody = ProjectChange {
        members: Some(Vec::new()),
        ..ProjectChange::default()
    };
    client.set_project("b", &everybody).await.unwrap();
    let job = client.submit(&small).await.unwrap();
    assert_eq!(
        ended(&client, &job.id).await.end_reason,
        Some(EndReason::Completed)
    );

    // Whoever runs on a terminal cannot be started anew.
    let terminal = Submit {
        runner: divvy_api::v1::Runner::Client,
        ..whole("b", true, "true")
    };
    assert_eq!(code(client.submit(&terminal).await).0, ErrorCode::Usage);
}

#[tokio::test]
async fn projects_are_made_changed_and_removed_and_survive_the_daemon() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    // A word without meaning, as long as there are no projects.
    let label = client
        .submit(&whole("vision", false, "true"))
        .await
        .unwrap();
    ended(&client, &label.id).await;
    assert!(client.projects().await.unwrap().is_empty());

    let change = ProjectChange {
        quota: Some(500),
        weight: Some(Some(2)),
        limit: Some(Some(750)),
        limit_memory_bytes: Some(Some(8 << 30)),
        priority: Some(3),
        min_runtime_s: Some(60),
        members: Some(vec!["ana".into()]),
        ..ProjectChange::default()
    };
    let made = client.add_project("vision", &change).await.unwrap();
    assert_eq!(
        (made.quota, made.weight, made.limit),
        (500, Some(2), Some(750))
    );
    assert_eq!(
        refused(client.add_project("vision", &change).await).code,
        ErrorCode::Conflict
    );
    assert_eq!(
        refused(client.set_project("nlp", &change).await).code,
        ErrorCode::NotFound
    );
    assert_eq!(
        refused(client.add_project(" nlp", &change).await).code,
        ErrorCode::Usage
    );
    let wrong = [
        ProjectChange {
            limit: Some(Some(400)),
            ..ProjectChange::default()
        },
        ProjectChange {
            quota: Some(u64::MAX),
            limit: Some(None),
            ..ProjectChange::default()
        },
        ProjectChange {
            min_runtime_s: Some(u64::MAX),
            ..ProjectChange::default()
        },
        ProjectChange {
            members: Some(vec!["@".into()]),
            ..ProjectChange::default()
        },
        ProjectChange {
            members: Some(vec!["two words".into()]),
            ..ProjectChange::default()
        },
    ];
    for change in wrong {
        let error = refused(client.set_project("vision", &change).await);
        assert_eq!(error.code, ErrorCode::Usage, "{change:?}: {error:?}");
    }
    let unlimited = ProjectChange {
        limit: Some(None),
        weight: Some(None),
        members: Some(Vec::new()),
        ..ProjectChange::default()
    };
    let changed = client.set_project("vision", &unlimited).await.unwrap();
    assert_eq!(
        (changed.limit, changed.weight, changed.priority),
        (None, None, 3)
    );

    home.kill();
    home.start(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    assert_eq!(client.projects().await.unwrap(), [changed]);
    let small = Submit {
        amount: Some(Amount::Share { thousandths: 250 }),
        ..whole("vision", false, PATIENT)
    };
    let job = client.submit(&small).await.unwrap();
    let error = refused(client.remove_project("vision").await);
    assert_eq!(
        (error.code, error.message.as_str()),
        (ErrorCode::Conflict, "1 job belongs to the project vision")
    );
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    client.remove_project("vision").await.unwrap();
    assert_eq!(
        refused(client.remove_project("vision").await).code,
        ErrorCode::NotFound
    );
    assert!(client.projects().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_project_stays_as_long_as_a_job_belongs_to_it_that_runs_after_another() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    client.add_project("a", &quota(1000)).await.unwrap();
    let first = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let later = Submit {
        after: vec![After {
            job: first.id.clone(),
            ok: false,
        }],
        ..whole("a", false, "true")
    };
    let later = client.submit(&later).await.unwrap();
    assert_eq!(client.projects().await.unwrap()[0].waiting, 1);
    let error = refused(client.remove_project("a").await);
    assert_eq!(
        (error.code, error.message.as_str()),
        (ErrorCode::Conflict, "1 job belongs to the project a")
    );
    for job in [&later, &first] {
        client.cancel(&job.id).await.unwrap();
        ended(&client, &job.id).await;
    }
    client.remove_project("a").await.unwrap();
}

#[tokio::test]
async fn a_range_without_end_gets_what_its_project_may_have_and_is_answered() {
    let home = Home::started(&["--sim", "l4-24gb:2"]);
    let client = home.connect();
    client.add_project("a", &quota(1000)).await.unwrap();
    let endless = Submit {
        amount: Some(Amount::Range {
            min: 1,
            max: u32::MAX,
        }),
        ..whole("a", false, "sleep 1000")
    };
    let job = client.submit(&endless).await.unwrap();
    let job = in_state(&client, &job.id, JobState::Running).await;
    assert_eq!(job.slices.len(), 1);
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
}

#[tokio::test]
async fn no_job_is_resized_beyond_the_limit_of_its_project() {
    let (_home, client) = two_projects(&[]).await;
    let half = ProjectChange {
        quota: Some(500),
        limit: Some(Some(500)),
        ..ProjectChange::default()
    };
    client.set_project("b", &half).await.unwrap();
    let part = |thousandths| Amount::Share { thousandths };
    let small = Submit {
        amount: Some(part(250)),
        ..whole("b", false, "sleep 1000")
    };
    let (job, other) = (
        client.submit(&small).await.unwrap(),
        client.submit(&small).await.unwrap(),
    );
    for job in [&job, &other] {
        in_state(&client, &job.id, JobState::Running).await;
    }
    let resize = async |job: &Job, amount| {
        let resize = Resize {
            amount: Some(amount),
            compute: None,
        };
        client.resize(&job.id, &resize).await
    };
    let error = refused(resize(&job, part(500)).await);
    assert_eq!(
        (error.code, error.message.as_str()),
        (
            ErrorCode::WouldWait,
            "b's limit is 0.5 GPUs; 0.25 in use, 0.5 more needed"
        )
    );
    let waits = client.submit(&small).await.unwrap();
    let error = refused(resize(&waits, part(750)).await);
    assert_eq!(
        (error.code, error.message.as_str()),
        (
            ErrorCode::NeverFits,
            "b's limit is 0.5 GPUs, and the job requests 0.75"
        )
    );
    for job in [&waits, &other] {
        client.cancel(&job.id).await.unwrap();
        ended(&client, &job.id).await;
    }
    assert_eq!(resize(&job, part(500)).await.unwrap().slices[0].share, 500);
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
}
