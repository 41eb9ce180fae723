//! A GPU's mode, changed while the daemon runs.

use divvy_api::v1::{ErrorCode, GpuChange, GpuMode, JobState};
use divvy_testkit::{ended, in_state};

use super::*;

fn change(mode: GpuMode) -> GpuChange {
    GpuChange {
        mode,
        dry_run: false,
    }
}

async fn mode(client: &Client) -> String {
    client.gpus().await.unwrap()[0].mode.clone()
}

#[tokio::test]
async fn a_hopper_is_divided_and_made_whole_again() {
    if !is_root() {
        return;
    }
    let mut home = served("h100-80gb:1", "");
    let client = home.connect();
    assert_eq!(mode(&client).await, "shared");
    let would = GpuChange {
        dry_run: true,
        ..change(GpuMode::Mig)
    };
    let would = client.change_gpu("0", &would).await.unwrap();
    assert_eq!(
        would.steps,
        ["turn MIG mode on", "make it available to jobs as mig"]
    );
    assert_eq!(driver::modes(&home), [false]);
    let done = client.change_gpu("0", &change(GpuMode::Mig)).await.unwrap();
    assert_eq!((done.from, done.remaining_steps), (GpuMode::Shared, None));
    assert_eq!(driver::modes(&home), [true]);
    until("it is divided", || mode(&client), |mode| mode == "mig").await;
    let job = run(&client, "1g.10gb").await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    // It is what it was made to be, also for the next daemon.
    home.kill();
    home.start(&["--sim", "h100-80gb:1"]);
    let client = home.connect();
    assert_eq!(mode(&client).await, "mig");
    let done = client
        .change_gpu("0", &change(GpuMode::Exclusive))
        .await
        .unwrap();
    assert_eq!(
        done.steps,
        [
            "destroy the idle 1g.10gb@6",
            "turn MIG mode off",
            "make it available to jobs as exclusive"
        ]
    );
    assert_eq!(driver::modes(&home), [false]);
    assert_eq!(mode(&client).await, "exclusive");
}

#[tokio::test]
async fn a_gpu_in_use_keeps_its_mode_and_the_refusal_names_its_users() {
    if !is_root() {
        return;
    }
    let home = served("h100-80gb:1", "");
    let client = home.connect();
    let job = client.submit(&quarter(&["sleep", "600"])).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    let would = GpuChange {
        dry_run: true,
        ..change(GpuMode::Mig)
    };
    let would = client.change_gpu("0", &would).await.unwrap();
    assert_eq!(would.blockers, ["#1 holds gpu0:0.25a"]);
    for to in [GpuMode::Mig, GpuMode::Exclusive] {
        let refused = client.change_gpu("0", &change(to)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains("#1 holds gpu0:0.25a"), "{refused}");
    }
    assert_eq!(driver::modes(&home), [false]);
    // Nobody new, until the last has gone.
    client
        .change_gpu("0", &change(GpuMode::Unmanaged))
        .await
        .unwrap();
    assert_eq!(client.job(&job.id).await.unwrap().state, JobState::Running);
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    client.change_gpu("0", &change(GpuMode::Mig)).await.unwrap();
    assert_eq!(driver::modes(&home), [true]);
}

#[tokio::test]
async fn unmanaged_instances_keep_a_gpu_in_mig_mode() {
    if !is_root() {
        return;
    }
    let home = served("h100-80gb:1", ENABLED);
    let client = home.connect();
    driver::make(&home, 0, TWO, 2, 2, true);
    let refused = client
        .change_gpu("0", &change(GpuMode::Shared))
        .await
        .unwrap_err();
    assert!(
        refused
            .message
            .contains("2g.20gb@2 was created outside Divvy"),
        "{refused}"
    );
    assert_eq!(driver::places(&home, 0), [(TWO, 2)]);
}

#[tokio::test]
async fn an_ampere_gpu_waits_for_its_reset_and_no_job_gets_it_meanwhile() {
    if !is_root() {
        return;
    }
    let home = served("a100-40gb:1", "");
    let client = home.connect();
    let would = GpuChange {
        dry_run: true,
        ..change(GpuMode::Mig)
    };
    let would = client.change_gpu("0", &would).await.unwrap();
    let done = client.change_gpu("0", &change(GpuMode::Mig)).await.unwrap();
    let left = done.remaining_steps.unwrap();
    assert!(left.contains("--gpu-reset -i 0"), "{left}");
    let [turn, give] = &done.steps[..] else {
        panic!("{:?}", done.steps);
    };
    assert_eq!(would.steps, [turn.clone(), left, give.clone()]);
    assert_eq!(mode(&client).await, "unmanaged");
    let why = client.gpus().await.unwrap()[0].problem.clone().unwrap();
    assert!(why.contains("--gpu-reset -i 0"), "{why}");
    let never = client.submit(&on("1g.5gb", &["true"])).await.unwrap_err();
    assert!(never.message.contains(&why), "{never}");
    driver::happen(&home, "reset:0");
    until("it is divided", || mode(&client), |mode| mode == "mig").await;
    assert_eq!(client.gpus().await.unwrap()[0].problem, None);
    let job = run(&client, "1g.5gb").await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
}

#[tokio::test]
async fn what_waits_for_a_reset_can_be_taken_back() {
    if !is_root() {
        return;
    }
    let home = served("a100-40gb:1", "");
    let client = home.connect();
    client.change_gpu("0", &change(GpuMode::Mig)).await.unwrap();
    let back = change(GpuMode::Exclusive);
    let done = client.change_gpu("0", &back).await.unwrap();
    assert_eq!(
        done.steps,
        [
            "keep MIG mode off after the next reset",
            "make it available to jobs as exclusive"
        ]
    );
    assert_eq!(done.remaining_steps, None);
    assert_eq!(mode(&client).await, "exclusive");
    driver::happen(&home, "reset:0");
    assert_eq!(driver::modes(&home), [false]);
    client.change_gpu("0", &change(GpuMode::Mig)).await.unwrap();
    driver::happen(&home, "reset:0");
    until("it is divided", || mode(&client), |mode| mode == "mig").await;
    // The other way, and nobody gets it while it waits.
    let done = client.change_gpu("0", &back).await.unwrap();
    assert!(done.remaining_steps.unwrap().contains("--gpu-reset -i 0"));
    assert_eq!(mode(&client).await, "unmanaged");
    let done = client.change_gpu("0", &change(GpuMode::Mig)).await.unwrap();
    assert_eq!(done.remaining_steps, None);
    assert_eq!(mode(&client).await, "mig");
    driver::happen(&home, "reset:0");
    assert_eq!(driver::modes(&home), [true]);
    assert_eq!(run(&client, "1g.5gb").await.exit_code, Some(0));
}

#[tokio::test]
async fn a_gpu_that_an_invisible_process_holds_keeps_its_mode() {
    if !is_root() {
        return;
    }
    let home = served("h100-80gb:1", "");
    let client = home.connect();
    driver::happen(&home, "hold:0");
    let refused = client
        .change_gpu("0", &change(GpuMode::Mig))
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert_eq!(driver::modes(&home), [false]);
    assert_eq!(mode(&client).await, "shared");
}

#[tokio::test]
async fn a_change_that_cannot_be_brought_to_its_end_is_given_up_and_comes_true_at_no_later_start() {
    if !is_root() {
        return;
    }
    let gpus = "h100-80gb:1";
    for is_seen in [false, true] {
        let mut home = machine(gpus, ENABLED);
        home.die_at("mig.mode.intent", &["--sim", gpus], async |home| {
            let to = change(GpuMode::Shared);
            let _ = home.connect().change_gpu("0", &to).await;
        })
        .await;
        if is_seen {
            driver::make(&home, 0, TWO, 2, 2, true)
        } else {
            driver::happen(&home, "hold:0")
        }
        home.start(&["--sim", gpus]);
        let client = home.connect();
        let is_told = |all: &Vec<Event>| all.iter().any(|one| one.text.contains("turned off"));
        until("it is told", || told(&client, "gpu_mode"), is_told).await;
        until("it is divided", || mode(&client), |mode| mode == "mig").await;
        if is_seen {
            driver::destroy(&home, 0, TWO, 2)
        } else {
            driver::happen(&home, "release:0")
        }
        home.kill();
        home.start(&["--sim", gpus]);
        assert_eq!(mode(&home.connect()).await, "mig", "seen: {is_seen}");
        assert_eq!(driver::modes(&home), [true], "seen: {is_seen}");
    }
}

#[tokio::test]
async fn a_gpu_that_knows_no_mig_says_so() {
    let home = served("l4-24gb:1", "");
    let refused = home
        .client()
        .change_gpu("0", &change(GpuMode::Mig))
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Usage);
    assert!(
        refused.message.contains("does not support MIG"),
        "{refused}"
    );
    let unknown = home
        .client()
        .change_gpu("7", &change(GpuMode::Shared))
        .await
        .unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotFound);
}
