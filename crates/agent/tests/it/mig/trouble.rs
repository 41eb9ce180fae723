//! What others did, and what the driver refuses.

mod quarantine;

use divvy_api::v1::{EndReason, JobState, MigGc, MigState};
use divvy_testkit::{Bounded as _, divvy, ended, in_state};

use super::*;

fn fault(function: &str, code: u32, times: u32) -> String {
    format!("{ENABLED}[[fault]]\nfunction = '{function}'\ncode = {code}\ntimes = {times}\n")
}

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

#[tokio::test]
async fn an_unmanaged_instance_is_left_alone_and_its_place_given_to_no_job() {
    let Some((home, client)) = divided() else {
        return;
    };
    // One with a device, and one without, which no walk over devices would find.
    driver::make(&home, 0, THREE, 4, 4, true);
    driver::make(&home, 0, TWO, 0, 2, false);
    let before = driver::layout(&home, 0);
    let foreign = |all: &Vec<(String, u8, MigState)>| {
        all.iter()
            .filter(|one| one.2 == MigState::Unmanaged)
            .count()
            == 2
    };
    until("both are seen", || shown(&client), foreign).await;
    run(&client, "1g.5gb").await;
    let seven = client.submit(&on("7g.40gb", &["true"])).await.unwrap();
    let seven = client.job(&seven.id).await.unwrap();
    assert_eq!(seven.state, JobState::Queued, "{seven:#?}");
    client.mig_gc(&MigGc::default()).await.unwrap();
    until("ours is gone", || shown(&client), |all| all.len() == 2).await;
    assert_eq!(driver::layout(&home, 0), before);
    driver::destroy(&home, 0, THREE, 4);
    driver::destroy(&home, 0, TWO, 0);
    let seven = ended(&client, &seven.id).await;
    assert_eq!(seven.exit_code, Some(0));
}

#[tokio::test]
async fn an_idle_instance_that_an_administrator_destroys_is_forgotten_and_made_again() {
    let Some((home, client)) = divided() else {
        return;
    };
    run(&client, "1g.5gb").await;
    let (profile, start) = driver::places(&home, 0)[0];
    driver::destroy(&home, 0, profile, start);
    until("it is forgotten", || shown(&client), Vec::is_empty).await;
    let job = run(&client, "1g.5gb").await;
    assert_eq!(job.exit_code, Some(0));
    assert_eq!(
        story(&client).await,
        ["mig_created", "mig_lost", "mig_created"]
    );
}

#[tokio::test]
async fn a_place_that_is_refused_is_left_for_another() {
    if !is_root() {
        return;
    }
    let home = served("a100-40gb:1", &fault(CREATE, 23, 1));
    let client = home.connect();
    let job = run(&client, "1g.5gb").await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    assert_eq!(story(&client).await, ["mig_create_failed", "mig_created"]);
    let back = told(&client, "requeued").await;
    assert!(
        back[0].text.contains("another program's instance"),
        "{back:?}"
    );
}

#[tokio::test]
async fn refusals_of_an_earlier_run_do_not_count_for_the_next() {
    if !is_root() {
        return;
    }
    let refused = |call: u32, times: u32| {
        format!("[[fault]]\nfunction = '{CREATE}'\ncode = 23\ncall = {call}\ntimes = {times}\n")
    };
    // The third makes the first run's instance, and the fourth would be one refusal too many.
    let config = format!("{ENABLED}{}{}", refused(1, 2), refused(4, 1));
    let home = served("a100-40gb:1", &config);
    let client = home.connect();
    let script = "test -e once && exit 0; touch once; exec sleep 600";
    let submit = divvy_api::v1::Submit {
        cwd: home.path().to_str().unwrap().to_owned(),
        ..on("1g.5gb", &["sh", "-c", script])
    };
    let job = client.submit(&submit).await.unwrap();
    let once = home.path().join("once");
    until("it runs", || async { once.exists() }, |runs| *runs).await;
    let (profile, start) = driver::places(&home, 0)[0];
    driver::destroy(&home, 0, profile, start);
    until("it is forgotten", || shown(&client), Vec::is_empty).await;
    client.requeue(&job.id).await.unwrap();
    let job = ended(&client, &job.id).await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    assert_eq!(told(&client, "mig_create_failed").await.len(), 3);
}

#[tokio::test]
async fn a_gpu_with_a_held_device_file_is_tried_again_later() {
    let Some((home, client)) = divided() else {
        return;
    };
    driver::happen(&home, "hold:0");
    let job = client.submit(&on("1g.5gb", &["true"])).await.unwrap();
    let back = until(
        "it is put back",
        || told(&client, "requeued"),
        |all| !all.is_empty(),
    )
    .await;
    assert!(
        back[0]
            .text
            .contains("restart the programs that monitor GPUs"),
        "{back:?}"
    );
    // Whatever could be had a moment ago can be asked for: it comes back.
    let other = client.submit(&on("2g.10gb", &["true"])).await.unwrap();
    driver::happen(&home, "release:0");
    for job in [job, other] {
        let job = ended(&client, &job.id).await;
        assert_eq!(job.exit_code, Some(0), "{job:#?}");
    }
}

#[tokio::test]
async fn a_half_made_instance_is_taken_away_again() {
    if !is_root() {
        return;
    }
    let home = served(
        "a100-40gb:1",
        &fault("nvmlGpuInstanceCreateComputeInstance", 999, 1),
    );
    let client = home.connect();
    let job = run(&client, "1g.5gb").await;
    assert_eq!(job.exit_code, Some(0), "{job:#?}");
    assert_eq!(driver::layout(&home, 0).len(), 1);
}

#[tokio::test]
async fn a_job_whose_instance_is_refused_for_good_ends_and_says_why() {
    if !is_root() {
        return;
    }
    let home = served("a100-40gb:1", &fault(CREATE, 4, 0));
    let client = home.connect();
    let job = run(&client, "1g.5gb").await;
    assert_eq!(job.end_reason, Some(EndReason::LaunchFailed), "{job:#?}");
    assert!(job.reason.unwrap().contains("run as root"));
    assert!(driver::layout(&home, 0).is_empty() && shown(&client).await.is_empty());
}

#[tokio::test]
async fn a_daemon_that_may_not_see_instances_gives_the_gpu_to_no_job() {
    if !is_root() {
        return;
    }
    let mut home = machine("a100-40gb:1", ENABLED);
    // Whoever makes the machine may say which GPUs are divided; the daemon then has a driver that calls it nobody.
    assert_eq!(driver::modes(&machine_made(&home)), [true]);
    std::fs::write(home.path().join("sim.toml"), "unprivileged = true\n").unwrap();
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    let job = client.submit(&on("1g.5gb", &["true"])).await;
    let refused = job.unwrap_err();
    assert!(
        refused.message.contains("cannot read its MIG instances"),
        "{refused}"
    );
    assert!(client.gpus().await.unwrap()[0].problem.is_some());
    let why = until(
        "it is told",
        || told(&client, "mig_error"),
        |all| !all.is_empty(),
    )
    .await;
    assert!(why[0].text.contains("ermission"), "{why:?}");
}

/// Makes the simulated machine without a daemon.
fn machine_made(home: &Home) -> Home {
    let output = home.run(&[
        "run",
        "--no-daemon",
        "--sim",
        "a100-40gb:1",
        "-g",
        "0.1",
        "--",
        "true",
    ]);
    // No part of a divided GPU is to be had; the machine is there all the same.
    assert!(!output.status.success());
    let mut other = Home::empty();
    std::fs::create_dir_all(other.path().join("sim")).unwrap();
    std::os::unix::fs::symlink(
        home.path().join("sim/state"),
        other.path().join("sim/state"),
    )
    .unwrap();
    other.set("DIVVY_TEST_GPUS", "a100-40gb:1");
    other
}

#[tokio::test]
async fn a_machine_that_was_started_again_has_no_instances_and_its_journal_follows() {
    if !is_root() {
        return;
    }
    let mut home = served("a100-40gb:1", ENABLED);
    run(&home.connect(), "1g.5gb").await;
    run(&home.connect(), "2g.10gb").await;
    home.kill();
    driver::happen(&home, "reboot");
    assert!(driver::layout(&home, 0).is_empty());
    home.start(&["--sim", "a100-40gb:1"]);
    let client = home.connect();
    assert!(shown(&client).await.is_empty());
    let job = run(&client, "1g.5gb").await;
    assert_eq!(job.exit_code, Some(0));
}

#[tokio::test]
async fn a_job_in_anothers_instance_is_told_of() {
    let Some((home, client)) = divided() else {
        return;
    };
    let victim = client
        .submit(&on("1g.5gb", &["sleep", "600"]))
        .await
        .unwrap();
    let victim = in_state(&client, &victim.id, JobState::Running).await;
    let device = victim.slices[0].mig.clone().unwrap().uuid.unwrap();
    let probe = divvy().with_file_name("cudarc_probe");
    let script = format!(
        "unset LD_PRELOAD; CUDA_VISIBLE_DEVICES={device} exec {} hold --bytes 64M --until-file {}",
        probe.display(),
        home.path().join("enough").display()
    );
    let astray = client
        .submit(&on("1g.5gb", &["sh", "-c", &script]))
        .await
        .unwrap();
    let told = until(
        "it is told",
        || told(&client, "mig_wrong_instance"),
        |all| !all.is_empty(),
    )
    .await;
    assert_eq!(told[0].job.as_deref(), Some(astray.id.as_str()));
    assert!(
        told[0]
            .text
            .contains(&format!("which job {} holds", victim.id)),
        "{told:?}"
    );
    std::fs::write(home.path().join("enough"), "").unwrap();
    assert_eq!(ended(&client, &astray.id).await.exit_code, Some(0));
    client.cancel(&victim.id).await.unwrap();
}

#[tokio::test]
async fn a_stranger_in_a_jobs_instance_is_told_of() {
    let Some((home, client)) = divided() else {
        return;
    };
    let job = client
        .submit(&on("1g.5gb", &["sleep", "600"]))
        .await
        .unwrap();
    let job = in_state(&client, &job.id, JobState::Running).await;
    let device = job.slices[0].mig.clone().unwrap().uuid.unwrap();
    let probe = divvy().with_file_name("cudarc_probe");
    let mut stranger = std::process::Command::new(&probe)
        .args(["hold", "--bytes", "64M", "--until-file"])
        .arg(home.path().join("enough"))
        .env("CUDA_VISIBLE_DEVICES", &device)
        .env("LD_LIBRARY_PATH", home.path().join("sim/lib"))
        .env("DIVVY_SIM", "a100-40gb:1")
        .env("DIVVY_SIM_STATE", home.path().join("sim/state"))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let told = until(
        "it is told",
        || told(&client, "mig_foreign_process"),
        |all| !all.is_empty(),
    )
    .await;
    assert_eq!(told[0].job.as_deref(), Some(job.id.as_str()));
    assert!(
        told[0].text.contains(&format!("pid {}", stranger.id())),
        "{told:?}"
    );
    // It may be there before it has taken anything.
    until(
        "what it has is seen",
        || async { client.job(&job.id).await.unwrap() },
        |job| job.slices[0].memory_used_bytes >= 64 << 20,
    )
    .await;
    // Who is in an instance keeps it from the next job.
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    let next = run(&client, "1g.5gb").await;
    assert_eq!(next.exit_code, Some(0), "{next:#?}");
    assert_ne!(
        next.slices[0].mig.as_ref().unwrap().start,
        job.slices[0].mig.as_ref().unwrap().start
    );
    std::fs::write(home.path().join("enough"), "").unwrap();
    assert!(stranger.wait_bounded().unwrap().success());
}
