//! Jobs for tests, and waits for what becomes of them through the API.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::v1::{Amount, Error, Job, JobState, Submit};

use crate::{Daemon, Home, until_async};

/// Words of a daemon: three GPUs and four queues.
pub const SEED: [&str; 8] = [
    "--sim",
    "a100-80gb:3",
    "--dynamic-gpus",
    "--queue",
    "dual_gpus=2",
    "quarter_gpu=0.25",
    "half_gpu=0.5",
    "single_gpu=1",
];

/// A job of a quarter GPU in the default queue.
#[must_use]
pub fn quarter(command: &[&str]) -> Submit {
    Submit {
        command: command.iter().map(ToString::to_string).collect(),
        amount: Some(Amount::Share { thousandths: 250 }),
        cwd: "/".into(),
        env: BTreeMap::from([("PATH".into(), path())]),
        ..Submit::default()
    }
}

/// A job of a shell script, with the amount of its queue.
#[must_use]
pub fn script(queue: &str, script: &str) -> Submit {
    Submit {
        queue: Some(queue.to_owned()),
        amount: None,
        ..quarter(&["sh", "-c", script])
    }
}

/// Two GPUs: a job on each of two parts of the first, which runs, and one that waits for both GPUs. Their ids, in this order.
///
/// # Panics
/// When the second one does not run.
#[must_use]
#[track_caller]
pub fn two_run_and_one_waits() -> (Home, Daemon, [String; 3]) {
    let home = Home::new("a100-80gb:2");
    let daemon = home.daemon(&[]);
    let jobs = [
        home.submit(&["-g", "0.5", "--name", "train"], &["sleep", "1000"]),
        home.submit(&["-g", "0.25", "--name", "notebook"], &["sleep", "1000"]),
        home.submit(&["-g", "2", "--name", "both"], &["sleep", "1000"]),
    ];
    home.running(&jobs[1]);
    (home, daemon, jobs)
}

fn path() -> String {
    std::env::var("PATH").expect("a test has a PATH")
}

/// Waits until the job has ended.
///
/// # Panics
/// When it does not end, or the daemon does not answer.
pub async fn ended(client: &Client, job: &str) -> Job {
    until_async(format!("job {job} ends"), async || {
        let waited = client.wait(job, WaitFor::Ended, Duration::from_secs(10));
        let job = waited.await.expect("the daemon answers");
        (job.state == JobState::Ended).then_some(job)
    })
    .await
}

/// Waits until the job is in a state.
///
/// # Panics
/// When it ends before that, or the daemon does not answer.
pub async fn in_state(client: &Client, id: &str, state: JobState) -> Job {
    until_async(format!("job {id} comes to {state:?}"), async || {
        let job = client.job(id).await.expect("the daemon answers");
        if job.state == state {
            return Some(job);
        }
        assert_ne!(job.state, JobState::Ended, "{job:#?}");
        None
    })
    .await
}

/// The whole log of a job, once the job has ended.
///
/// # Panics
/// When it cannot be read.
pub async fn log(client: &Client, job: &str) -> String {
    until_async(format!("the log of job {job} ends"), async || {
        let mut stream = client.log(job, 0, true).await.expect("the daemon answers");
        let mut text = Vec::new();
        while let Some(piece) = stream.next().await.expect("the log goes on") {
            text.extend_from_slice(&piece);
        }
        Some(String::from_utf8(text).expect("the job writes text"))
    })
    .await
}

/// The error of a call.
///
/// # Panics
/// When it succeeded.
#[track_caller]
pub fn refused<T: Debug>(answer: Result<T, Error>) -> Error {
    answer.expect_err("it is refused")
}
