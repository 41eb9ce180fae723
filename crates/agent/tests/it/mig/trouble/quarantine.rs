//! Instances that are set aside: those that cannot be destroyed, and those that somebody divided.

use super::*;
use divvy_testkit::call;

/// Waits until one is.
async fn set_aside(client: &Client) {
    until(
        "it is set aside",
        || shown(client),
        |all| all.iter().any(|one| one.2 == MigState::Quarantined),
    )
    .await;
}

#[tokio::test]
async fn an_instance_that_cannot_be_destroyed_is_set_aside_and_goes_when_it_can() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "1g.5gb").await;
    let id = instance_id(&home).await;
    driver::happen(&home, &format!("hold:0/{id}/0"));
    client.mig_gc(&MigGc::default()).await.unwrap();
    set_aside(&client).await;
    // The next job gets another.
    run(&client, "1g.5gb").await;
    assert_eq!(driver::layout(&home, 0).len(), 2);
    driver::happen(&home, &format!("release:0/{id}/0"));
    client.mig_gc(&MigGc::default()).await.unwrap();
    until("both are gone", || shown(&client), Vec::is_empty).await;
    assert!(driver::layout(&home, 0).is_empty());
}

/// The driver's id of the only instance.
async fn instance_id(home: &Home) -> u32 {
    let db = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    db.query_row("SELECT gi FROM mig_instance", [], |row| row.get(0))
        .unwrap()
}

#[tokio::test]
async fn an_idle_instance_that_cannot_make_room_keeps_its_place_and_the_job_its_turn() {
    let Some((home, client)) = divided() else {
        return;
    };
    let neighbour = client
        .submit(&on("3g.20gb", &["sleep", "600"]))
        .await
        .unwrap();
    in_state(&client, &neighbour.id, JobState::Running).await;
    run(&client, "1g.5gb").await;
    let db = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    let idle = "SELECT gi FROM mig_instance WHERE job IS NULL";
    let id: u32 = db.query_row(idle, [], |row| row.get(0)).unwrap();
    driver::happen(&home, &format!("hold:0/{id}/0"));
    let job = client.submit(&on("4g.20gb", &["true"])).await.unwrap();
    set_aside(&client).await;
    until(
        "the job waits again",
        || told(&client, "requeued"),
        |all| !all.is_empty(),
    )
    .await;
    let waits = in_state(&client, &job.id, JobState::Queued).await;
    assert!(waits.slices.is_empty(), "{waits:#?}");
    driver::happen(&home, &format!("release:0/{id}/0"));
    client.mig_gc(&MigGc::default()).await.unwrap();
    let job = ended(&client, &job.id).await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    let after = client.job(&neighbour.id).await.unwrap();
    assert_eq!(after.state, JobState::Running);
    client.cancel(&neighbour.id).await.unwrap();
}

#[tokio::test]
async fn what_is_set_aside_is_so_for_the_next_daemon_and_goes_by_itself_when_it_can() {
    let Some((mut home, client)) = divided() else {
        return;
    };
    run(&client, "1g.5gb").await;
    let held = driver::places(&home, 0);
    let id = instance_id(&home).await;
    driver::happen(&home, &format!("hold:0/{id}/0"));
    client.mig_gc(&MigGc::default()).await.unwrap();
    set_aside(&client).await;

    home.kill();
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    set_aside(&client).await;
    let next = run(&client, "1g.5gb").await;
    assert_eq!(next.exit_code, Some(0), "{next:#?}");
    assert_eq!(driver::layout(&home, 0).len(), 2);
    assert_eq!(told(&client, "mig_quarantined").await.len(), 1);

    home.kill();
    driver::happen(&home, &format!("release:0/{id}/0"));
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    until("it is gone", || shown(&client), |all| all.len() == 1).await;
    assert_eq!(shown(&client).await[0].2, MigState::Idle);
    let left = driver::places(&home, 0);
    assert!(left.len() == 1 && left != held, "{left:?}");
}

#[tokio::test]
async fn an_idle_instance_that_an_administrator_divides_is_reported_and_left_alone() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "2g.10gb").await;
    let (profile, start) = driver::places(&home, 0)[0];
    // The daemon may look while it is empty, and would take that away.
    let lock = held_up(&home).await;
    driver::divide(&home, 0, profile, start, 2);
    drop(lock);
    set_aside(&client).await;
    let why = told(&client, "mig_quarantined").await;
    assert!(why[0].text.contains("divided"), "{why:?}");

    // What will be left as it is, is not said to go.
    for dry_run in [true, false] {
        let gc = MigGc {
            dry_run,
            ..MigGc::default()
        };
        let goes = client.mig_gc(&gc).await.unwrap();
        assert!(goes.is_empty(), "{goes:?}");
    }
    set_aside(&client).await;
    assert_eq!(driver::parts(&home, 0, profile, start), [1, 1]);
    assert_eq!(told(&client, "mig_quarantined").await.len(), 1);
    let next = run(&client, "2g.10gb").await;
    assert_eq!(next.exit_code, Some(0), "{next:#?}");
    assert_eq!(driver::layout(&home, 0).len(), 2);

    // What was made in it is gone. The daemon sees that at its next look, and would try again by itself after 30 s.
    driver::divide(&home, 0, profile, start, 0);
    let all = async || {
        client.mig_gc(&MigGc::default()).await.unwrap();
        shown(&client).await
    };
    until("both are gone", all, Vec::is_empty).await;
    assert!(driver::layout(&home, 0).is_empty());
}

/// The daemon has decided to destroy it, or to give it to a job, and not yet looked at it again. The first of two parts has the UUID
/// that the whole had.
#[tokio::test]
async fn an_instance_that_an_administrator_divides_during_an_order_is_left_alone() {
    if !is_root() {
        return;
    }
    for (parts, is_wanted) in [(2, false), (1, false), (2, true), (1, true)] {
        let home = served("a100-40gb:1", ENABLED);
        let client = home.connect();
        run(&client, "2g.10gb").await;
        let (profile, start) = driver::places(&home, 0)[0];
        let lock = held_up(&home).await;
        let mut next = None;
        if is_wanted {
            next = Some(client.submit(&on("2g.10gb", &["true"])).await.unwrap());
        } else {
            client.mig_gc(&MigGc::default()).await.unwrap();
        }
        driver::divide(&home, 0, profile, start, parts);
        drop(lock);
        set_aside(&client).await;
        let why = told(&client, "mig_quarantined").await;
        assert!(why[0].text.contains("divided"), "{why:?}");
        if let Some(next) = next {
            let next = ended(&client, &next.id).await;
            assert_eq!(next.exit_code, Some(0), "{next:#?}");
            let other = next.slices[0].mig.as_ref().unwrap().start;
            assert_ne!(u32::from(other), start);
        }
        let parts = vec![1; parts as usize];
        assert_eq!(driver::parts(&home, 0, profile, start), parts);
    }
}

#[tokio::test]
async fn an_instance_that_is_emptied_while_it_is_looked_at_for_a_job_is_made_anew() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "2g.10gb").await;
    let (profile, start) = driver::places(&home, 0)[0];
    let lock = held_up(&home).await;
    let job = client.submit(&on("2g.10gb", &["true"])).await.unwrap();
    driver::divide(&home, 0, profile, start, 0);
    drop(lock);
    let job = ended(&client, &job.id).await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    assert_eq!(
        story(&client).await,
        ["mig_created", "mig_destroyed", "mig_created"]
    );
    assert_eq!(driver::parts(&home, 0, profile, start), [2]);
}

#[tokio::test]
async fn what_was_done_to_instances_is_counted() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "1g.5gb").await;
    run(&client, "1g.5gb").await;
    let id = instance_id(&home).await;
    driver::happen(&home, &format!("hold:0/{id}/0"));
    client.mig_gc(&MigGc::default()).await.unwrap();
    set_aside(&client).await;
    driver::happen(&home, &format!("release:0/{id}/0"));
    client.mig_gc(&MigGc::default()).await.unwrap();
    until("it is gone", || shown(&client), Vec::is_empty).await;
    let page = metrics(&home);
    for (change, times) in [
        ("created", 1),
        ("reused", 1),
        ("quarantined", 1),
        ("destroyed", 1),
        ("reclaimed", 0),
    ] {
        let line = format!("divvy_mig_changes_total{{change=\"{change}\"}} {times}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
}

fn metrics(home: &Home) -> String {
    let socket = home.socket();
    call(&socket, "GET", "/metrics", "").1
}
