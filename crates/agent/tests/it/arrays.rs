//! Arrays have a handle: what each verb makes of it, also when the daemon dies and when the first job is not kept any more.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::users::{ANA, LEE, as_user, system};

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::client::{Act, Client, JobSelection, WaitFor};
use divvy_api::v1::{
    After, Array, EndReason, Error, ErrorCode, Exec, Job, JobState, Resize, Submit,
};
use divvy_testkit::{Home, ended, in_state, quarter, refused, until_async};

const SIM: [&str; 2] = ["--sim", "l4-24gb:1"];

/// An array of a shell script.
fn array(name: &str, indices: &[u32], most: Option<u32>, script: &str) -> Submit {
    Submit {
        name: Some(name.into()),
        array: Some(Array {
            indices: indices.to_vec(),
            max_running: most,
        }),
        ..quarter(&["sh", "-c", script])
    }
}

/// Jobs that go on until there is this file.
fn gate(home: &Home) -> (PathBuf, String) {
    let go = home.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    (go, script)
}

fn open(go: &Path) {
    fs::write(go, "").unwrap();
}

fn after(job: &str, ok: bool) -> Vec<After> {
    vec![After {
        job: job.into(),
        ok,
    }]
}

fn references(meant: &JobSelection) -> Vec<String> {
    meant.jobs.iter().map(Job::reference).collect()
}

async fn over(client: &Client, reference: &str) -> Job {
    until_async(format!("{reference} has ended"), async || {
        let wait = client.wait_for(reference, WaitFor::Ended, Duration::from_secs(10));
        let job = wait.await.unwrap().jobs.remove(0);
        (job.state == JobState::Ended).then_some(job)
    })
    .await
}

#[tokio::test]
async fn a_reference_means_an_array_or_one_job_of_it() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let (go, script) = gate(&home);
    let sweep = array("sweep", &[3, 5, 9], Some(1), &script);
    let first = client.submit(&sweep).await.unwrap();
    assert_eq!(
        (first.id.as_str(), first.array.unwrap().count),
        ("1", Some(3))
    );
    let single = client.submit(&quarter(&["true"])).await.unwrap();
    assert_eq!(single.reference(), "4");
    for (reference, array, jobs) in [
        ("1", Some("1"), &["1_3", "1_5", "1_9"][..]),
        ("sweep", Some("1"), &["1_3", "1_5", "1_9"]),
        ("#1", Some("1"), &["1_3", "1_5", "1_9"]),
        ("1_5", None, &["1_5"]),
        ("#1_3", None, &["1_3"]),
        ("2", None, &["1_5"]),
        ("sweep[9]", None, &["1_9"]),
        ("last", None, &["4"]),
    ] {
        let meant = client.jobs_of(reference).await.unwrap();
        assert_eq!(meant.array.as_deref(), array, "{reference}");
        assert_eq!(references(&meant), jobs, "{reference}");
    }
    for (reference, words, hint) in [
        ("1_99", "array 1 has no job with the index 99", "1_3 to 1_9"),
        (
            "sweep[99]",
            "array 1 has no job with the index 99",
            "1_3 to 1_9",
        ),
        ("1_", "there is no job 1_", "12_3"),
        ("4_0", "there is no job 4_0", "12_3"),
        ("1_-3", "there is no job 1_-3", "12_3"),
        ("1_4294967296", "there is no job 1_4294967296", "12_3"),
        ("sweep[", "there is no job sweep[", "12_3"),
        ("18446744073709551615_0", "there is no job", "12_3"),
        ("99", "there is no job 99", "ps -a"),
    ] {
        let error = client.jobs_of(reference).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound, "{reference}");
        assert!(error.message.contains(words), "{reference}: {error:?}");
        assert!(error.hint.unwrap().contains(hint), "{reference}");
    }
    let exec = Exec {
        command: vec!["true".into()],
        terminal: None,
    };
    let resize = Resize {
        amount: None,
        compute: Some("none".into()),
    };
    for error in [
        client.exec("1", &exec).await.map(drop).unwrap_err(),
        client.resize("sweep", &resize).await.unwrap_err(),
        client.oom("1").await.map(drop).unwrap_err(),
        client.log("1", 0, false).await.map(drop).unwrap_err(),
        client.docker_args("1").await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.code, ErrorCode::Conflict, "{error:?}");
        assert_eq!(error.message, "1 is an array, but a single job is required");
        assert!(error.hint.unwrap().contains("1_3"));
    }
    in_state(&client, "1_3", JobState::Running).await;
    assert_eq!(client.why("1").await.unwrap().job, "2");
    // Events and GPUs name jobs by their numbers, and the first one's is the array's.
    for verb in ["events", "gpus"] {
        let told = String::from_utf8(home.run(&[verb]).stdout).unwrap();
        let words: Vec<&str> = told.split_whitespace().collect();
        assert!(words.contains(&"#1") && !told.contains("#1_3"), "{told}");
    }
    // Of two arrays with one name neither is meant.
    let again = client.submit(&sweep).await.unwrap();
    let error = client.jobs_of("sweep").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.hint.unwrap().contains(&format!("1, {}", again.id)));
    assert_eq!(client.jobs_of("last").await.unwrap().array, Some(again.id));
    // One index is a job like any other.
    let one = client
        .submit(&array("one", &[7], None, "true"))
        .await
        .unwrap();
    let meant = client.jobs_of(&one.id).await.unwrap();
    assert_eq!((meant.array, meant.jobs.len()), (None, 1));
    open(&go);
    assert_eq!(over(&client, "1").await.exit_code, Some(0));
}

#[tokio::test]
async fn an_array_has_ended_when_all_jobs_have_and_its_code_is_the_lowest_index_that_failed() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let (go, script) = gate(&home);
    let script = format!("{script}; exit $DIVVY_ARRAY_INDEX");
    client
        .submit(&array("mixed", &[0, 7, 5], None, &script))
        .await
        .unwrap();
    let well = array("well", &[0, 1], Some(1), "true");
    let well = client.submit(&well).await.unwrap();
    assert_eq!(over(&client, &well.id).await.reference(), "4_0");
    let now = client.wait_for("1", WaitFor::Ended, Duration::ZERO);
    let now = now.await.unwrap();
    assert_eq!((now.array.as_deref(), now.jobs.len()), (Some("1"), 1));
    assert_ne!(now.jobs[0].state, JobState::Ended);
    open(&go);
    let decides = over(&client, "mixed").await;
    assert_eq!(
        (decides.reference().as_str(), decides.exit_code),
        ("1_5", Some(5))
    );
    let jobs = client.jobs_of("1").await.unwrap().jobs;
    assert!(jobs.iter().all(|job| job.state == JobState::Ended));
    assert_eq!(over(&client, "1_0").await.exit_code, Some(0));
}

#[tokio::test]
async fn a_job_after_an_array_starts_once_all_of_it_has_ended_whenever_the_daemon_dies() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let script = format!(
        "while [ ! -e {}/$DIVVY_ARRAY_INDEX ]; do sleep 0.05; done; [ $DIVVY_ARRAY_INDEX != 2 ]",
        home.path().display()
    );
    let go = |index: u32| open(&home.path().join(index.to_string()));
    let first = client
        .submit(&array("a", &[0, 1, 2, 3], Some(2), &script))
        .await
        .unwrap();
    let with = |submit: Submit, after: Vec<After>| Submit { after, ..submit };
    let any = with(quarter(&["true"]), after("a", false));
    let any = client.submit(&any).await.unwrap();
    let reason = any.reason.as_deref();
    assert_eq!(reason, Some("runs after array #1, which has not ended"));
    assert_eq!(any.after, after("1", false));
    let well = with(quarter(&["true"]), after("1", true));
    let well = client.submit(&well).await.unwrap();
    let of_first = with(quarter(&["true"]), after("1_0", true));
    let of_first = client.submit(&of_first).await.unwrap();
    assert_eq!(of_first.after, after("1_0", true));
    let many = with(array("b", &[0, 1], None, "true"), after(&first.id, false));
    let many = client.submit(&many).await.unwrap();
    go(0);
    // What runs after index 0 alone does not wait for the others.
    assert_eq!(ended(&client, &of_first.id).await.exit_code, Some(0));
    for index in [1, 3] {
        home.kill();
        home.start(&SIM);
        let client = home.connect();
        for waits in [&any.id, &well.id, &format!("{}_1", many.id)] {
            assert_eq!(client.job(waits).await.unwrap().state, JobState::Queued);
        }
        open(&home.path().join(index.to_string()));
        ended(&client, &format!("1_{index}")).await;
    }
    home.kill();
    open(&home.path().join("2"));
    home.start(&SIM);
    let client = home.connect();
    assert_eq!(over(&client, "b").await.exit_code, Some(0));
    let any = ended(&client, &any.id).await;
    let last = client.jobs_of("1").await.unwrap().jobs;
    let last = last.iter().map(|job| job.ended_at.unwrap()).max();
    assert!(any.started_at >= last, "{any:?} {last:?}");
    let well = ended(&client, &well.id).await;
    assert_eq!(well.end_reason, Some(EndReason::DependencyFailed));
    let reason = "its dependency array #1 did not succeed (#3)";
    assert_eq!(well.reason.as_deref(), Some(reason));
    let late = Submit {
        after: after("1", true),
        ..quarter(&["true"])
    };
    let error = refused(client.submit(&late).await);
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("array 1 did not succeed"));
}

#[tokio::test]
async fn an_array_is_cancelled_requeued_suspended_and_resumed_as_one() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let (_, script) = gate(&home);
    let script = format!("[ $DIVVY_ARRAY_INDEX = 0 ] && exit 0; {script}");
    client
        .submit(&array("a", &[0, 1, 2, 3], Some(1), &script))
        .await
        .unwrap();
    in_state(&client, "1_1", JobState::Running).await;
    let act = async |act| client.act("a", act).await;
    let suspended = act(Act::Suspend).await.unwrap();
    assert_eq!(references(&suspended), ["1_1"]);
    assert!(suspended.jobs[0].suspended);
    let resumed = act(Act::Resume).await.unwrap();
    assert!(!resumed.jobs[0].suspended && resumed.jobs.len() == 1);
    let requeued = act(Act::Requeue).await.unwrap();
    assert_eq!(references(&requeued), ["1_1"]);
    until_async("it runs again", async || {
        let job = client.job("1_1").await.unwrap();
        (job.runs_before == 1 && job.state == JobState::Running).then_some(())
    })
    .await;
    let released = act(Act::Release).await.unwrap();
    assert_eq!(references(&released), ["1_1"]);
    let cancelled = act(Act::Cancel).await.unwrap();
    assert_eq!(cancelled.array.as_deref(), Some("1"));
    assert_eq!(references(&cancelled), ["1_1", "1_2", "1_3"]);
    assert_eq!(
        over(&client, "1").await.end_reason,
        Some(EndReason::Cancelled)
    );
    let error = act(Act::Cancel).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    assert_eq!(error.message, "all jobs of array 1 have ended already");
    let jobs = client.jobs_of("1").await.unwrap().jobs;
    assert!(
        jobs.iter()
            .all(|job| job.started_at.is_some() == (job.reference().as_str() <= "1_1"))
    );
    // What cannot be done to any of them is refused.
    let next = client
        .submit(&array("w", &[0, 1], None, "true"))
        .await
        .unwrap();
    over(&client, &next.id).await;
    let error: Error = client.act("w", Act::Resume).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
}

#[tokio::test]
async fn an_array_is_known_when_its_first_job_is_not_kept_any_more() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let script = "[ $DIVVY_ARRAY_INDEX != 2 ]";
    client
        .submit(&array("a", &[0, 1, 2], None, script))
        .await
        .unwrap();
    over(&client, "1").await;
    home.kill();
    let journal = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    let forget = "DELETE FROM holding WHERE job = 1; DELETE FROM job WHERE id = 1";
    journal.execute_batch(forget).unwrap();
    drop(journal);
    home.start(&SIM);
    let client = home.connect();
    for reference in ["1", "a"] {
        let meant = client.jobs_of(reference).await.unwrap();
        assert_eq!(meant.array.as_deref(), Some("1"));
        assert_eq!(references(&meant), ["1_1", "1_2"]);
        assert_eq!(meant.jobs[0].array.as_ref().unwrap().count, Some(3));
    }
    assert_eq!(over(&client, "1").await.exit_code, Some(1));
    assert_eq!(client.why("1").await.unwrap().job, "2");
    let error = client.jobs_of("1_0").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NotFound);
    let late = |ok| Submit {
        after: after("1", ok),
        ..quarter(&["true"])
    };
    let job = client.submit(&late(false)).await.unwrap();
    assert_eq!(ended(&client, &job.id).await.exit_code, Some(0));
    // How all of it ended is not known.
    assert_eq!(
        refused(client.submit(&late(true)).await).code,
        ErrorCode::Conflict
    );
}

#[test]
fn of_anothers_array_is_seen_what_is_seen_of_their_jobs() {
    let Some(home) = system(&[]) else { return };
    let sweep = Submit {
        cwd: "/tmp".into(),
        ..array("sweep", &[0, 1], Some(1), "sleep 1000")
    };
    as_user(&home, ANA, async |client| {
        assert_eq!(client.submit(&sweep).await.unwrap().id, "1");
        assert_eq!(
            client.jobs_of("last").await.unwrap().array.as_deref(),
            Some("1")
        );
    });
    as_user(&home, LEE, async |client| {
        for reference in ["1", "sweep", "1_1"] {
            let seen = client.jobs_of(reference).await.unwrap();
            assert!(
                seen.jobs
                    .iter()
                    .all(|job| job.redacted && job.command.is_empty())
            );
            for act in [
                Act::Cancel,
                Act::Requeue,
                Act::Suspend,
                Act::Release,
                Act::Resume,
            ] {
                let error = client.act(reference, act).await.unwrap_err();
                assert_eq!(error.code, ErrorCode::NotAllowed, "{reference} {act:?}");
            }
            let error = client.log(reference, 0, false).await.map(drop).unwrap_err();
            assert_eq!(error.code, ErrorCode::NotAllowed, "{reference}");
        }
        let error = client.jobs_of("1_9").await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound);
        // One's own is meant first.
        let own = client.submit(&sweep).await.unwrap().id;
        let meant = client.jobs_of("sweep").await.unwrap();
        assert_eq!(meant.array, Some(own.clone()));
        let after_own = Submit {
            after: after("sweep", false),
            cwd: "/tmp".into(),
            ..quarter(&["true"])
        };
        let job = client.submit(&after_own).await.unwrap();
        assert_eq!(job.after[0].job, own);
        assert_eq!(
            client.act("sweep", Act::Cancel).await.unwrap().jobs.len(),
            2
        );
        ended(&client, &job.id).await;
    });
    as_user(&home, ANA, async |client| {
        assert_eq!(client.act("1", Act::Cancel).await.unwrap().jobs.len(), 2);
        over(&client, "1").await;
    });
}
