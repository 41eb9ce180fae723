//! What is in the way of an instance that somebody is to have: leaked handles, a look that fails, who destroys it before it is used.

use divvy_api::v1::{Confirm, JobState, MigGc, MigState, Submit};
use divvy_testkit::{ended, in_state};

use super::*;

/// The driver's ids of the instances that begin at these memory slices.
fn ids(home: &Home, starts: &[u32]) -> Vec<u32> {
    let db = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    let id = |start: &u32| {
        let query = "SELECT gi FROM mig_instance WHERE start = ?1";
        db.query_row(query, [start], |row| row.get::<_, u32>(0))
            .unwrap()
    };
    starts.iter().map(id).collect()
}

/// Somebody leaks a handle of the device of each instance, or lets go of it.
fn leak(home: &Home, verb: &str, ids: &[u32]) {
    for id in ids {
        driver::happen(home, &format!("{verb}:0/{id}/0"));
    }
}

/// Jobs beside each other leave so many idle 1g.5gb.
async fn leave(client: &Client, count: usize) {
    let mut jobs = Vec::new();
    for _ in 0..count {
        let job = on("1g.5gb", &["sleep", "600"]);
        jobs.push(client.submit(&job).await.unwrap().id);
    }
    for job in &jobs {
        in_state(client, job, JobState::Running).await;
    }
    for job in &jobs {
        client.cancel(job).await.unwrap();
        ended(client, job).await;
    }
}

#[tokio::test]
async fn a_job_waits_while_a_process_keeps_idle_instances_from_making_room_for_it() {
    let Some((home, client)) = divided() else {
        return;
    };
    leave(&client, 7).await;
    // One in each place where a 2g.10gb may lie.
    let stuck = ids(&home, &[0, 2, 4]);
    leak(&home, "hold", &stuck);
    let job = client.submit(&on("2g.10gb", &["true"])).await.unwrap();
    until(
        "it was tried everywhere",
        || told(&client, "requeued"),
        |all| all.len() == stuck.len(),
    )
    .await;
    let waits = client.job(&job.id).await.unwrap();
    assert_eq!(waits.state, JobState::Queued, "{waits:#?}");
    leak(&home, "release", &stuck);
    client.mig_gc(&MigGc::default()).await.unwrap();
    let job = ended(&client, &job.id).await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
}

#[tokio::test]
async fn instances_of_another_user_that_cannot_be_destroyed_cost_a_job_nothing_but_time() {
    if !is_root() {
        return;
    }
    let mut home = served("a100-40gb:1", ENABLED);
    leave(&home.connect(), 3).await;
    let starts: Vec<u32> = driver::places(&home, 0).iter().map(|one| one.1).collect();
    leak(&home, "hold", &ids(&home, &starts));
    home.kill();
    was_somebodys(&home);
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    let job = run(&client, "1g.5gb").await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    assert_eq!(told(&client, "mig_quarantined").await.len(), starts.len());
    let start = u32::from(job.slices[0].mig.as_ref().unwrap().start);
    assert!(!starts.contains(&start), "{start} of {starts:?}");
}

#[tokio::test]
async fn an_instance_that_cannot_be_looked_at_stays_as_it_is_and_is_taken_later() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "7g.40gb").await;
    // Nobody can take the GPU's lock.
    let gpu = client.gpus().await.unwrap().remove(0).uuid;
    let lock = home.path().join("mig").join(format!("{gpu}.lock"));
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let job = client.submit(&on("7g.40gb", &["true"])).await.unwrap();
    let back = until(
        "it is put back",
        || told(&client, "requeued"),
        |all| !all.is_empty(),
    )
    .await;
    assert!(back[0].text.contains("cannot inspect"), "{back:?}");
    assert_eq!(shown(&client).await[0].2, MigState::Idle);
    std::fs::remove_dir(&lock).unwrap();
    let job = ended(&client, &job.id).await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    assert_eq!(story(&client).await, ["mig_created", "mig_reused"]);
}

#[tokio::test]
async fn an_unconfirmed_job_gets_another_instance_for_one_that_an_administrator_destroys() {
    if !is_root() {
        return;
    }
    for whole in [true, false] {
        let home = served("a100-40gb:1", ENABLED);
        let client = home.connect();
        let granted = async |times: usize| {
            let granted = || told(&client, "granted");
            until("it is granted", granted, |all| all.len() == times).await;
        };
        let submit = Submit {
            confirm: true,
            ..on("1g.5gb", &["true"])
        };
        let job = client.submit(&submit).await.unwrap();
        granted(1).await;
        let (profile, start) = driver::places(&home, 0)[0];
        if whole {
            driver::destroy(&home, 0, profile, start)
        } else {
            // Its device alone.
            driver::divide(&home, 0, profile, start, 0)
        }
        granted(2).await;
        client.confirm(&job.id, &Confirm::default()).await.unwrap();
        let job = ended(&client, &job.id).await;
        assert_eq!(job.exit_code, Some(0), "{job:#?}");
        let went = if whole { "mig_lost" } else { "mig_destroyed" };
        assert_eq!(story(&client).await, ["mig_created", went, "mig_created"]);
    }
}

#[tokio::test]
async fn what_was_looked_at_for_a_job_that_was_cancelled_meanwhile_is_not_told_as_reused() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "7g.40gb").await;
    let lock = held_up(&home).await;
    let first = client.submit(&on("7g.40gb", &["true"])).await.unwrap();
    client.cancel(&first.id).await.unwrap();
    ended(&client, &first.id).await;
    drop(lock);
    run(&client, "7g.40gb").await;
    assert_eq!(story(&client).await, ["mig_created", "mig_reused"]);
}

#[tokio::test]
async fn an_instance_that_an_administrator_destroyed_is_not_reported_as_destroyed_by_the_daemon() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "1g.5gb").await;
    let lock = held_up(&home).await;
    let job = client.submit(&on("1g.5gb", &["true"])).await.unwrap();
    let (profile, start) = driver::places(&home, 0)[0];
    driver::destroy(&home, 0, profile, start);
    drop(lock);
    let job = ended(&client, &job.id).await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    assert_eq!(
        story(&client).await,
        ["mig_created", "mig_lost", "mig_created"]
    );
}
