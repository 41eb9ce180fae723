//! Actions on the jobs that filters select: one call, decided in one round, and never on another user's jobs.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use divvy_api::client::{Act, Client};
use divvy_api::v1::{ErrorCode, Job, JobQuery, JobState, JobsChange, JobsChanged};
use divvy_testkit::{Home, call, ended, in_state, quarter};

use crate::users::{ANA, LEE, as_user, system};

fn named(name: &str) -> JobQuery {
    JobQuery {
        name: Some(name.into()),
        ..JobQuery::default()
    }
}

fn of_user(uid: u32) -> JobQuery {
    JobQuery {
        user: Some(uid.to_string()),
        ..JobQuery::default()
    }
}

async fn change(client: &Client, filters: &JobQuery, act: Act) -> JobsChanged {
    client.change_jobs(filters, &act.into()).await.unwrap()
}

fn ids(jobs: &[Job]) -> Vec<&str> {
    jobs.iter().map(|job| job.id.as_str()).collect()
}

#[tokio::test]
async fn an_action_changes_the_jobs_in_the_states_that_it_can_change() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let submit = quarter(&["sleep", "1000"]);
    let running = client.submit(&submit).await.unwrap().id;
    in_state(&client, &running, JobState::Running).await;
    let whole = divvy_api::v1::Submit {
        amount: Some(divvy_api::v1::Amount::Whole { count: 1 }),
        ..submit
    };
    let queued = client.submit(&whole).await.unwrap().id;
    let all = JobQuery::default();
    // The jobs of each action, of which each leaves the next its jobs.
    for (act, expected) in [
        (Act::Release, &[&running][..]),
        (Act::Suspend, &[]),
        (Act::Resume, &[&running]),
        (Act::Resume, &[]),
        (Act::Suspend, &[&running]),
        (Act::Resume, &[&running]),
        (Act::Unhold, &[]),
        (Act::Hold, &[&queued]),
        (Act::Hold, &[]),
        (Act::Unhold, &[&queued]),
        (Act::Requeue, &[&running]),
        (Act::Cancel, &[&running, &queued]),
    ] {
        let dry_run = JobsChange {
            dry_run: true,
            ..act.into()
        };
        let shown = client.change_jobs(&all, &dry_run).await.unwrap();
        assert_eq!(ids(&shown.jobs), expected, "{act:?}, dry run");
        let changed = change(&client, &all, act).await;
        assert_eq!(ids(&changed.jobs), expected, "{act:?}");
        assert!(changed.refused.is_empty(), "{act:?}: {:?}", changed.refused);
        if act == Act::Requeue {
            in_state(&client, &running, JobState::Running).await;
        }
    }
    for id in [&running, &queued] {
        ended(&client, id).await;
    }
    let nothing = change(&client, &all, Act::Cancel).await;
    assert!(nothing.jobs.is_empty() && nothing.refused.is_empty());
}

#[tokio::test]
async fn a_selected_job_that_refuses_is_reported_and_the_others_are_changed() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let submit = quarter(&["sleep", "1000"]);
    let running = client.submit(&submit).await.unwrap().id;
    in_state(&client, &running, JobState::Running).await;
    let held = divvy_api::v1::Submit {
        hold: true,
        ..submit
    };
    let held = client.submit(&held).await.unwrap().id;
    // With a state each job that matches is meant, as if it were named.
    let both = JobQuery {
        state: Some("queued,running".into()),
        ..JobQuery::default()
    };
    let changed = change(&client, &both, Act::Suspend).await;
    assert_eq!(ids(&changed.jobs), [running.as_str()]);
    let [refused] = &changed.refused[..] else {
        panic!("{changed:?}")
    };
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains(&held), "{}", refused.message);

    // A user has agreed to one of two jobs.
    let only = JobsChange {
        only: Some(vec![held.clone()]),
        ..Act::Cancel.into()
    };
    let changed = client.change_jobs(&both, &only).await.unwrap();
    assert_eq!(ids(&changed.jobs), [held.as_str()]);
    let none = JobsChange {
        only: Some(Vec::new()),
        ..Act::Cancel.into()
    };
    let changed = client.change_jobs(&both, &none).await.unwrap();
    assert!(changed.jobs.is_empty() && changed.refused.is_empty());
    assert!(client.job(&running).await.unwrap().suspended);
}

#[test]
fn a_wrong_action_is_refused_with_its_value() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let socket = home.socket();
    for (query, body, named) in [
        ("", r#"{"action":"explode"}"#, "explode"),
        ("", "{}", "action"),
        (
            "",
            r#"{"action":"cancel","release_memory":true}"#,
            "release_memory",
        ),
        ("", r#"{"action":"cancel","only":["12_3"]}"#, "12_3"),
        ("", r#"{"action":"cancel","only":["last"]}"#, "last"),
        ("?limit=3", r#"{"action":"cancel"}"#, "limit"),
        ("?all=true", r#"{"action":"cancel"}"#, "all"),
        ("?state=asleep", r#"{"action":"cancel"}"#, "asleep"),
        ("?gpu=9", r#"{"action":"cancel"}"#, "gpu=9"),
    ] {
        let (status, said) = call(&socket, "PATCH", &format!("/v1/jobs{query}"), body);
        assert_eq!(status, 400, "{query} {body}: {said}");
        assert!(said.contains(named), "{query} {body}: {said}");
    }
}

#[test]
fn an_action_by_filter_changes_no_other_users_job() {
    let Some(home) = system(&[]) else { return };
    let job = as_user(&home, ANA, async |client| {
        let job = client
            .submit(&quarter(&["sleep", "1000"]))
            .await
            .unwrap()
            .id;
        in_state(&client, &job, JobState::Running).await;
        job
    });
    as_user(&home, LEE, async |client| {
        let own = change(&client, &named("*"), Act::Cancel).await;
        assert!(own.jobs.is_empty() && own.refused.is_empty(), "{own:?}");
        for act in [Act::Cancel, Act::Requeue, Act::Suspend, Act::Release] {
            let changed = change(&client, &of_user(ANA), act).await;
            assert!(changed.jobs.is_empty(), "{act:?}: {changed:?}");
            let [refused] = &changed.refused[..] else {
                panic!("{act:?}: {changed:?}")
            };
            assert_eq!(refused.code, ErrorCode::NotAllowed, "{act:?}");
            assert!(refused.message.starts_with(&format!("job {job}: ")));
        }
        let dry_run = JobsChange {
            dry_run: true,
            ..Act::Cancel.into()
        };
        let shown = client.change_jobs(&of_user(ANA), &dry_run).await.unwrap();
        assert!(shown.jobs[0].redacted && shown.jobs[0].command.is_empty());
    });
    as_user(&home, ANA, async |client| {
        let kept = client.job(&job).await.unwrap();
        assert_eq!(
            (kept.state, kept.suspended, kept.attempt),
            (JobState::Running, false, 1)
        );
        let own = change(&client, &JobQuery::default(), Act::Cancel).await;
        assert_eq!(ids(&own.jobs), [job.as_str()]);
    });
}
