//! The history over the API: subjects, steps, rights, and daemons that are killed in between.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::path::Path;

use divvy_api::client::Client;
use divvy_api::v1::{ErrorCode, Gpu, History, JobState, Submit};
use divvy_testkit::{Home, call, ended, in_state, quarter, refused, until_async};
use jiff::{SignedDuration, Timestamp};

const SIM: [&str; 2] = ["--sim", "l4-24gb:2"];

async fn history(client: &Client, of: &str, step: u32) -> History {
    let since = Timestamp::now() - SignedDuration::from_secs(300);
    client.history(of, since, step).await.unwrap()
}

/// Values of a figure that are known, oldest first.
fn known(history: &History, figure: &str) -> Vec<f64> {
    let figures = history.figures.iter().filter(|one| one.name == figure);
    figures
        .flat_map(|one| &one.values)
        .flatten()
        .copied()
        .collect()
}

/// The history of a subject, once a figure has this value.
async fn with(client: &Client, of: &str, figure: &str, value: f64) -> History {
    until_async(format!("{of} has a {figure} of {value}"), async || {
        let history = history(client, of, 1).await;
        known(&history, figure).contains(&value).then_some(history)
    })
    .await
}

#[tokio::test]
async fn what_was_held_is_there_by_subject_and_survives_a_kill() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let submit = Submit {
        project: Some("vi/sion ä".into()),
        ..quarter(&["sleep", "60"])
    };
    let job = client.submit(&submit).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    let of_job = format!("job:{}", job.id);
    let first = with(&client, &of_job, "share", 250.0).await;
    assert_eq!((first.of.as_str(), first.step_s), (of_job.as_str(), 1));
    let slice = &client.job(&job.id).await.unwrap().slices[0];
    assert_eq!(
        known(&first, "memory_limit_bytes")[0],
        slice.memory_limit_bytes as f64
    );
    let user = format!("user:{}", job.user);
    for of in ["node", "queue:default", &user, "project:vi/sion ä"] {
        with(&client, of, "running", 1.0).await;
    }
    let gpu = format!("gpu:{}", slice.gpu_index);
    with(&client, &gpu, "share", 250.0).await;
    // By name and by UUID too.
    with(&client, &format!("job:{}", job.name), "share", 250.0).await;
    with(&client, &format!("gpu:{}", slice.gpu_uuid), "share", 250.0).await;

    let before = history(&client, &of_job, 1).await;
    let from = |history: &History| {
        let shares = history.figures.iter().find(|one| one.name == "share");
        let first = shares.unwrap().values.iter().position(Option::is_some);
        history.from + SignedDuration::from_secs(i64::try_from(first.unwrap()).unwrap())
    };
    // A stop writes everything, and a kill leaves what was written.
    assert_eq!(home.stop(), 0);
    for _ in 0..2 {
        home.start(&SIM);
        let after = history(&home.connect(), &of_job, 1).await;
        assert_eq!(from(&after), from(&before));
        home.kill();
    }
    home.start(&SIM);
    let client = home.connect();
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    with(&client, "node", "running", 0.0).await;
    let past = known(&history(&client, &of_job, 1).await, "share");
    assert!(
        past.iter().all(|share| *share == 250.0) && !past.is_empty(),
        "{past:?}"
    );
}

#[tokio::test]
async fn what_is_no_subject_or_step_is_refused() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let since = Timestamp::now() - SignedDuration::from_secs(60);
    for (of, step, code) in [
        ("gpus", 1, ErrorCode::Usage),
        ("node:", 1, ErrorCode::Usage),
        ("user:", 1, ErrorCode::Usage),
        ("slice:1", 1, ErrorCode::Usage),
        ("node", 2, ErrorCode::Usage),
        ("gpu:7", 1, ErrorCode::NotFound),
        ("job:99", 1, ErrorCode::NotFound),
        ("slice:99/gpu0.5a", 1, ErrorCode::NotFound),
    ] {
        assert_eq!(
            refused(client.history(of, since, step).await).code,
            code,
            "{of}"
        );
    }
    let future = Timestamp::now() + SignedDuration::from_secs(60);
    assert_eq!(
        refused(client.history("node", future, 1).await).code,
        ErrorCode::Usage
    );
    let minutes = client
        .history("node", Timestamp::UNIX_EPOCH, 60)
        .await
        .unwrap();
    assert_eq!(minutes.from.as_second() % 60, 0);
    // As many as the ring has, though none is known yet.
    assert_eq!(minutes.step_s, 60);
    assert!(
        minutes
            .figures
            .iter()
            .all(|figure| figure.values.len() == 7 * 1440)
    );
    let nothing = history(&client, "project:nothing", 1).await;
    assert!(nothing.figures.is_empty());
}

/// Calls of NVML that the daemon has made, by its simulated driver.
fn calls(log: &Path) -> usize {
    fs::read_to_string(log)
        .unwrap_or_default()
        .matches("nvml")
        .count()
}

#[tokio::test]
async fn readers_wake_no_gpu_that_is_powered_down_and_a_job_does() {
    let mut home = Home::empty();
    let (root, log) = (home.path().join("root"), home.path().join("calls"));
    fs::create_dir(&root).unwrap();
    let mut command = home.divvy_command(&["daemon", "--sim", "l4-24gb:2"]);
    home.start_by(
        command
            .env("DIVVY_SIM_ROOT", &root)
            .env("DIVVY_SIM_LOG", &log),
    );
    let client = home.connect();
    let set = |state: &str| {
        for bus in ["0000:07:00.0", "0000:15:00.0"] {
            let power = root.join("sys/bus/pci/devices").join(bus).join("power");
            fs::create_dir_all(&power).unwrap();
            fs::write(power.join("runtime_status"), state).unwrap();
        }
    };
    let awake = client.gpus().await.unwrap();
    assert!(
        awake
            .iter()
            .all(|gpu| !gpu.asleep && gpu.power_watts.is_some()),
        "{awake:#?}"
    );
    set("suspended\n");
    let gpus = until_async("both GPUs are asleep", async || {
        let gpus = client.gpus().await.unwrap();
        gpus.iter().all(|gpu| gpu.asleep).then_some(gpus)
    })
    .await;
    let figures = |gpu: &Gpu| {
        (
            gpu.index,
            gpu.memory_used_bytes,
            gpu.temperature_celsius,
            gpu.power_watts,
        )
    };
    assert!(
        gpus.iter().map(figures).eq(awake.iter().map(figures)),
        "the last known ones"
    );
    let before = calls(&log);
    assert!(before > 0);
    for _ in 0..20 {
        assert_eq!(client.gpus().await.unwrap().len(), 2);
        let (_, metrics) = call(&home.socket(), "GET", "/metrics", "");
        assert!(metrics.contains("divvy_gpu_power_watts"), "{metrics}");
        client
            .history("gpu:0", Timestamp::UNIX_EPOCH, 60)
            .await
            .unwrap();
    }
    assert_eq!(calls(&log), before, "no call of NVML");
    let job = client.submit(&quarter(&["sleep", "60"])).await.unwrap();
    assert!(
        calls(&log) > before,
        "what others hold decides where it runs"
    );
    in_state(&client, &job.id, JobState::Running).await;
    assert!(client.gpus().await.unwrap().iter().all(|gpu| !gpu.asleep));
}
