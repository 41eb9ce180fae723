//! Instances from job to job.

use divvy_api::v1::{JobState, MigGc, MigState, Resize, Submit};
use divvy_testkit::{Bounded as _, ended, in_state, log};

use super::*;

#[tokio::test]
async fn a_job_numbers_its_instance_and_has_no_slice() {
    let Some((home, client)) = divided() else {
        return;
    };
    let script = "echo ${CUDA_VISIBLE_DEVICES} ${NVIDIA_VISIBLE_DEVICES} ${LD_PRELOAD##*/} ${DIVVY_SLICE-none}";
    let job = client
        .submit(&on("3g.20gb", &["sh", "-c", script]))
        .await
        .unwrap();
    let job = ended(&client, &job.id).await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    let there = driver::layout(&home, 0);
    let device = there[0].device.clone().unwrap();
    assert_eq!(
        log(&client, &job.id).await.trim(),
        format!("0 {device} libdivvy_preload.so none")
    );
    let slice = &job.slices[0];
    assert_eq!(slice.enforcement, "mig");
    assert_eq!(slice.memory_limit_bytes, 19_968 << 20);
    assert_eq!(slice.mig.as_ref().unwrap().uuid, Some(device));
    assert!(home.slices().is_empty() && job.limiter.is_none());
}

#[tokio::test]
async fn an_instance_stays_for_the_next_job_of_its_size() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "1g.5gb").await;
    let kept = driver::layout(&home, 0);
    assert_eq!(kept.len(), 1);
    assert_eq!(shown(&client).await[0].2, MigState::Idle);
    run(&client, "1g.5gb").await;
    assert_eq!(driver::layout(&home, 0), kept);
    assert_eq!(story(&client).await, ["mig_created", "mig_reused"]);
}

/// Reports of instances and looks at all jobs come in one round again and again.
#[tokio::test]
async fn of_many_short_jobs_each_is_started_once() {
    let Some((home, client)) = divided() else {
        return;
    };
    let mut jobs = Vec::new();
    for _ in 0..120 {
        let command = ["sh", "-c", "echo $DIVVY_JOB_ID >> started"];
        let job = Submit {
            cwd: home.path().to_str().unwrap().to_owned(),
            ..on("1g.5gb", &command)
        };
        jobs.push(client.submit(&job).await.unwrap().id);
    }
    for job in &jobs {
        let job = ended(&client, job).await;
        assert_eq!(job.exit_code, Some(0), "{job:#?}");
    }
    let started = std::fs::read_to_string(home.path().join("started")).unwrap();
    let mut started: Vec<&str> = started.lines().collect();
    started.sort_by_key(|id| id.parse::<u64>().unwrap());
    assert_eq!(started, jobs);
    let events = client.events(0).await.unwrap();
    assert!(events.iter().all(|event| event.kind != "requeued"));
}

#[tokio::test]
async fn another_users_instance_is_made_anew() {
    if !is_root() {
        return;
    }
    let mut home = served("a100-40gb:1", ENABLED);
    run(&home.connect(), "1g.5gb").await;
    home.kill();
    was_somebodys(&home);
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    run(&client, "1g.5gb").await;
    assert_eq!(
        story(&client).await,
        ["mig_created", "mig_destroyed", "mig_created"]
    );
    let why = &told(&client, "mig_destroyed").await[0];
    assert!(why.text.contains("another user's program"), "{why:?}");
    assert_eq!(driver::layout(&home, 0).len(), 1);
}

#[tokio::test]
async fn an_instance_that_is_made_anew_is_nobodys_until_it_is_made() {
    if !is_root() {
        return;
    }
    let mut home = served("a100-40gb:1", ENABLED);
    run(&home.connect(), "7g.40gb").await;
    home.kill();
    was_somebodys(&home);
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    let lock = held_up(&home).await;
    let first = client.submit(&on("7g.40gb", &["true"])).await.unwrap();
    client.cancel(&first.id).await.unwrap();
    let first = ended(&client, &first.id).await;
    assert_eq!(first.started_at, None, "{first:#?}");
    assert_eq!(shown(&client).await[0].2, MigState::Destroying);
    assert!(client.mig_gc(&MigGc::default()).await.unwrap().is_empty());
    // There is no other place for the second.
    let second = client.submit(&on("7g.40gb", &["true"])).await.unwrap();
    let waits = client.job(&second.id).await.unwrap();
    assert_eq!(waits.state, JobState::Queued, "{waits:#?}");
    drop(lock);
    let second = ended(&client, &second.id).await;
    assert_eq!(second.exit_code, Some(0), "{second:#?}");
    assert_eq!(
        story(&client).await,
        ["mig_created", "mig_destroyed", "mig_created"]
    );
}

#[tokio::test]
async fn idle_instances_go_when_their_place_is_needed_and_neighbours_run_on() {
    let Some((home, client)) = divided() else {
        return;
    };
    let neighbour = client
        .submit(&on("3g.20gb", &["sleep", "600"]))
        .await
        .unwrap();
    let neighbour = in_state(&client, &neighbour.id, JobState::Running).await;
    run(&client, "1g.5gb").await;
    run(&client, "2g.10gb").await;
    assert_eq!(driver::layout(&home, 0).len(), 3);
    let job = run(&client, "4g.20gb").await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    let mut places = driver::places(&home, 0);
    places.sort_unstable();
    assert_eq!(places, [(FOUR, 0), (THREE, 4)]);
    let after = client.job(&neighbour.id).await.unwrap();
    assert_eq!((after.state, after.pid), (JobState::Running, neighbour.pid));
    let story = story(&client).await;
    let count = |kind: &str| story.iter().filter(|one| *one == kind).count();
    assert_eq!((count("mig_evicted"), count("mig_destroyed")), (2, 2));
    client.cancel(&neighbour.id).await.unwrap();
}

#[tokio::test]
async fn a_share_and_an_instance_live_on_one_node() {
    if !is_root() {
        return;
    }
    let home = served("a100-40gb:2", ENABLED);
    let client = home.connect();
    let part = client.submit(&quarter(&["sleep", "600"])).await.unwrap();
    let part = in_state(&client, &part.id, JobState::Running).await;
    let instance = client
        .submit(&on("1g.5gb", &["sleep", "600"]))
        .await
        .unwrap();
    let instance = in_state(&client, &instance.id, JobState::Running).await;
    // Turns are for slices: an instance has its units to itself.
    let turns = Resize {
        compute: Some("strict=0.2".to_owned()),
        amount: None,
    };
    let refused = client.resize(&instance.id, &turns).await.unwrap_err();
    assert!(
        refused.message.contains("no compute mode applies"),
        "{refused}"
    );
    client.resize(&part.id, &turns).await.unwrap();
    let refused = client.park(&instance.id).await.unwrap_err();
    assert!(refused.message.contains("MIG instances"), "{refused}");
    let held = |job: &Job| (job.slices[0].gpu_index, job.slices[0].enforcement.clone());
    assert_eq!(held(&part), (1, "interposer".to_owned()));
    assert_eq!(held(&instance), (0, "mig".to_owned()));
    for job in [part, instance] {
        client.cancel(&job.id).await.unwrap();
        ended(&client, &job.id).await;
    }
    assert_eq!(shown(&client).await[0].2, MigState::Idle);
}

#[tokio::test]
async fn a_job_cancelled_while_its_instance_is_made_ends_at_once_and_the_instance_is_kept() {
    let Some((home, client)) = divided() else {
        return;
    };
    let lock = held_up(&home).await;
    let job = client
        .submit(&on("1g.5gb", &["touch", "/nowhere/at/all"]))
        .await
        .unwrap();
    assert_eq!(client.job(&job.id).await.unwrap().state, JobState::Starting);
    client.cancel(&job.id).await.unwrap();
    let job = ended(&client, &job.id).await;
    assert_eq!(job.started_at, None, "{job:#?}");
    assert!(story(&client).await.is_empty());
    drop(lock);
    let idle = |all: &Vec<(String, u8, MigState)>| all.iter().any(|one| one.2 == MigState::Idle);
    until("the instance is idle", || shown(&client), idle).await;
    assert_eq!(driver::layout(&home, 0).len(), 1);
}

#[tokio::test]
async fn what_a_restarted_daemon_finds_is_what_it_left() {
    let Some((mut home, client)) = divided() else {
        return;
    };
    let job = client
        .submit(&on("2g.10gb", &["sleep", "600"]))
        .await
        .unwrap();
    let job = in_state(&client, &job.id, JobState::Running).await;
    run(&client, "1g.5gb").await;
    let (before, there) = (shown(&client).await, driver::layout(&home, 0));
    home.kill();
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    assert_eq!(shown(&client).await, before);
    assert_eq!(driver::layout(&home, 0), there);
    let after = client.job(&job.id).await.unwrap();
    assert_eq!((after.state, after.pid), (JobState::Running, job.pid));
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    run(&client, "2g.10gb").await;
    assert_eq!(driver::layout(&home, 0), there);
}

#[tokio::test]
async fn after_a_lost_journal_a_job_has_its_instance_and_an_idle_one_is_unmanaged() {
    let Some((mut home, client)) = divided() else {
        return;
    };
    let submit = on("2g.10gb", &["sleep", "600"]);
    let job = client.submit(&submit).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    run(&client, "1g.5gb").await;
    let there = driver::layout(&home, 0);
    home.kill();
    for file in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = std::fs::remove_file(home.path().join(file));
    }
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    let state = |all: &[(String, u8, MigState)], profile: &str| {
        let one = all.iter().find(|one| one.0 == profile);
        one.map(|one| one.2)
    };
    let is_seen = |all: &Vec<(String, u8, MigState)>| state(all, "1g.5gb").is_some();
    let all = until("both instances are seen", || shown(&client), is_seen).await;
    assert_eq!(state(&all, "1g.5gb"), Some(MigState::Unmanaged), "{all:?}");
    assert_eq!(state(&all, "2g.10gb"), Some(MigState::InUse), "{all:?}");
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    run(&client, "2g.10gb").await;
    assert_eq!(driver::layout(&home, 0), there, "its instance was reused");
}

#[test]
fn without_a_daemon_no_job_gets_an_instance_or_a_part_of_a_divided_gpu() {
    let home = machine("a100-40gb:1", ENABLED);
    for amount in [["--mig-profile", "1g.5gb"], ["-g", "0.25"]] {
        let run = ["run", "--no-daemon", "--sim", "a100-40gb:1"];
        let refused = home.run(&[&run[..], &amount, &["--", "true"]].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(5), "{said}");
        assert!(said.contains("no GPU here is managed"), "{said}");
    }
}

#[tokio::test]
async fn idle_instances_are_given_back_when_asked() {
    let Some((home, client)) = divided() else {
        return;
    };
    let job = client
        .submit(&on("2g.10gb", &["sleep", "600"]))
        .await
        .unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    run(&client, "1g.5gb").await;
    let gc = divvy_api::v1::MigGc::default();
    let dry = divvy_api::v1::MigGc {
        dry_run: true,
        ..gc.clone()
    };
    assert_eq!(client.mig_gc(&dry).await.unwrap().len(), 1);
    assert_eq!(driver::layout(&home, 0).len(), 2);
    let gone = client.mig_gc(&gc).await.unwrap();
    assert_eq!(gone[0].profile, "1g.5gb");
    until("it is gone", || shown(&client), |all| all.len() == 1).await;
    assert_eq!(driver::places(&home, 0)[0].0, TWO);
    client.cancel(&job.id).await.unwrap();
}

#[tokio::test]
async fn a_client_run_job_waits_for_its_instance() {
    if !is_root() {
        return;
    }
    let home = served("a100-40gb:1", ENABLED);
    let mut program = home.divvy_command(&["run", "--mig-profile", "1g.5gb", "--", "sh", "-c"]);
    let output = program
        .arg("echo $NVIDIA_VISIBLE_DEVICES")
        .output_bounded()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("MIG-"), "{said}");
}

#[tokio::test]
async fn a_dry_run_makes_nothing() {
    if !is_root() {
        return;
    }
    let home = served("a100-40gb:1", ENABLED);
    let dry = Submit {
        dry_run: true,
        ..on("1g.5gb", &["true"])
    };
    let job = home.connect().submit(&dry).await.unwrap();
    assert_eq!(job.state, JobState::Starting);
    assert!(driver::layout(&home, 0).is_empty());
}
