//! `kill -9` of a daemon and of supervisors at every step between the journal and the world, in all that a job can go through.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::fs;

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Error, Job, JobState, Resize, Submit};
use divvy_ledger::Slice;
use divvy_testkit::failpoints::CRASH_AT;
use divvy_testkit::{Home, ended, has_spec, in_state, script, until, until_async};

use crate::oom::use_and_be_refused;

const SIM: [&str; 4] = ["--sim", "a100-80gb:2", "--set", "grace=1s"];

/// The daemon's points, and the how manieth time that it comes to them: at first, and in the middle of it all.
const OF_THE_DAEMON: &[&str] = &[
    "journal.begin:2",
    "journal.begin:12",
    "journal.commit:2",
    "journal.commit:5",
    "journal.commit:12",
    "journal.committed:2",
    "journal.committed:5",
    "journal.committed:12",
    "start.slice",
    "start.slice:3",
    "start.prepared",
    "start.locked",
    "start.spawned",
    "start.spawned:3",
    "round.answered:2",
    "round.answered:9",
    "stop.told",
    "stop.told:2",
    "resize.told",
    "pause.held",
    "end.decided",
    "end.freed",
    "end.freed:2",
    "end.forgotten",
    "record.new",
    "record.written",
    "record.there",
    "record.there:2",
];

const OF_A_SUPERVISOR: &[&str] = &[
    "supervise.locked",
    "supervise.launched",
    "supervise.spawned",
    "supervise.started",
    "supervise.ended",
    "supervise.recorded",
];

/// A job that says that it runs, once for each time.
fn job(home: &Home, key: &str, then: &str) -> Submit {
    let ran = home.path().join("ran");
    Submit {
        idempotency_key: Some(key.to_owned()),
        amount: Some(Amount::Share { thousandths: 250 }),
        ..script(
            "default",
            &format!("echo {key} >> {}; {then}", ran.display()),
        )
    }
}

/// Waits until a job's program runs or has run; an error when the daemon is gone. One whose supervisor dies before it has written down that
/// it runs is never said to.
async fn runs(home: &Home, client: &Client, key: &str, id: &str) -> Result<(), Error> {
    until_async(format!("the {key} job runs"), async || {
        let job = match client.job(id).await {
            Ok(job) => job,
            Err(error) => return Some(Err(error)),
        };
        let ran = fs::read_to_string(home.path().join("ran")).unwrap_or_default();
        let is_said = matches!(job.state, JobState::Running | JobState::Ended);
        let is_silent = home.get(CRASH_AT) == "supervise.spawned";
        (is_said || (is_silent && ran.lines().any(|line| line == key))).then_some(Ok(()))
    })
    .await
}

/// What must survive.
#[derive(Default)]
struct Acknowledged {
    /// The numbers of the jobs.
    jobs: BTreeMap<&'static str, String>,
    /// A process of the first job has used [`PEAK`], and was refused more.
    is_refused: bool,
}

/// The most GPU memory that the first job has used.
const PEAK: u64 = 6 << 30;

/// Everything that a job can go through; cut short by the first call that a daemon does not answer.
async fn everything(
    home: &Home,
    client: &Client,
    acknowledged: &mut Acknowledged,
) -> Result<(), Error> {
    let gate = home.path().join("gate");
    let gated = format!(
        "until test -e {}; do sleep 0.05; done; exit 3",
        gate.display()
    );
    let first = client.submit(&job(home, "first", &gated)).await?.id;
    acknowledged.jobs.insert("first", first.clone());
    runs(home, client, "first", &first).await?;
    acknowledged.is_refused = use_slice(home, &first);
    let resize = |thousandths| Resize {
        amount: Some(Amount::Share { thousandths }),
        compute: None,
    };
    // It may be at its end already, where its supervisor was killed: then it is refused, which is an answer.
    let _ = gone(client.resize(&first, &resize(500)).await)?;
    let _ = gone(client.suspend(&first).await)?;
    let _ = gone(client.resume(&first).await)?;
    let second = client
        .submit(&job(home, "second", "exec sleep 1000"))
        .await?
        .id;
    acknowledged.jobs.insert("second", second.clone());
    runs(home, client, "second", &second).await?;
    let _ = gone(client.requeue(&second).await)?;
    let _ = gone(client.cancel(&second).await)?;
    let third = client
        .submit(&job(home, "third", "exec sleep 1000"))
        .await?
        .id;
    acknowledged.jobs.insert("third", third.clone());
    let _ = gone(client.cancel(&third).await)?;
    fs::write(&gate, "").unwrap();
    until_async("every job has ended", async || {
        match client.jobs(false).await {
            Ok(jobs) => jobs.is_empty().then_some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    })
    .await
}

/// An answer that is no is an answer.
fn gone(answer: Result<Job, Error>) -> Result<Option<Job>, Error> {
    match answer {
        Err(error) if error.code == divvy_api::v1::ErrorCode::NoDaemon => Err(error),
        answer => Ok(answer.ok()),
    }
}

/// With nobody being killed any more everything that was acknowledged comes to its end, and nothing is left.
async fn all_is_well(home: &Home, acknowledged: &Acknowledged, point: &str) {
    let client = home.connect();
    fs::write(home.path().join("gate"), "").unwrap();
    for job in client.jobs(false).await.unwrap() {
        if acknowledged.jobs.get("first") == Some(&job.id) {
            // Killed between the two, it is suspended still.
            drop(client.resume(&job.id).await)
        } else {
            drop(client.cancel(&job.id).await)
        }
    }
    for job in client.jobs(false).await.unwrap() {
        ended(&client, &job.id).await;
    }
    let all = client.jobs(true).await.unwrap();
    let ran = fs::read_to_string(home.path().join("ran")).unwrap_or_default();
    for (key, id) in &acknowledged.jobs {
        let job = all.iter().find(|job| job.id == *id);
        let job = job.unwrap_or_else(|| panic!("{point}: {key} is lost"));
        assert_eq!(job.state, JobState::Ended, "{point}: {job:#?}");
        let times = ran.lines().filter(|line| line == key).count();
        // The second may be told to start anew.
        assert!(
            times <= if *key == "second" { 2 } else { 1 },
            "{point}: {key} ran {times} times"
        );
        if job.exit_code == Some(3) {
            assert_eq!((*key, times), ("first", 1), "{point}");
        }
        if *key == "first" && acknowledged.is_refused {
            has_peak_and_report(&client, id, point).await;
        }
    }
    until("no slice is left", || home.slices().is_empty());
    let gpus = client.gpus().await.unwrap();
    assert!(
        gpus.iter().all(|gpu| gpu.share_allocated == 0),
        "{point}: {gpus:#?}"
    );
    for folder in fs::read_dir(home.path().join("jobs")).unwrap().flatten() {
        assert!(!has_spec(&folder.path()), "{point}: {folder:?}");
    }
}

/// Has a process of a job use its slice and be refused more; false where the slice is gone.
fn use_slice(home: &Home, id: &str) -> bool {
    // Gone already where its supervisor was killed.
    let slice = Slice::open(&home.path().join("slices").join(id));
    let slot = slice.ok().and_then(|slice| slice.join().ok());
    if let Some(slot) = &slot {
        use_and_be_refused(slot, PEAK, 20 << 30);
    }
    slot.is_some()
}

async fn has_peak_and_report(client: &Client, id: &str, point: &str) {
    let job = client.job(id).await.unwrap();
    let slice = &job.slices[0];
    let kept = (slice.memory_peak_bytes, slice.denials);
    assert_eq!(kept, (PEAK, 1), "{point}: peak and refusals");
    let report = client.oom(id).await.unwrap();
    assert_eq!(report.records.len(), 1, "{point}: the out-of-memory report");
}

#[tokio::test]
async fn a_daemon_that_dies_while_a_job_ends_keeps_its_peak_and_report() {
    for point in ["end.decided", "end.freed", "end.forgotten"] {
        let mut home = Home::empty();
        let mut id = String::new();
        home.crash_at(point, &SIM, async |home| {
            let client = home.connect();
            let submit = job(home, "first", "exec sleep 1000");
            id = client.submit(&submit).await.unwrap().id;
            in_state(&client, &id, JobState::Running).await;
            assert!(use_slice(home, &id));
            let _ = client.cancel(&id).await;
        })
        .await;
        let client = home.connect();
        ended(&client, &id).await;
        has_peak_and_report(&client, &id, point).await;
        until("no slice is left", || home.slices().is_empty());
    }
}

/// One point of each kind: before and after a commit, between journal and start, after an answer, while a job stops and when it is freed.
#[tokio::test]
async fn a_daemon_that_dies_loses_nothing_and_starts_nothing_twice() {
    let points = [
        "journal.commit:5",
        "journal.committed:2",
        "start.spawned",
        "round.answered:9",
        "stop.told",
        "end.freed",
    ];
    loses_nothing(&points).await;
}

#[tokio::test]
async fn a_supervisor_that_dies_leaves_jobs_that_end_once() {
    leaves_jobs_that_end_once(&["supervise.launched", "supervise.spawned"]).await;
}

mod exhaustive {
    #[tokio::test]
    async fn a_daemon_that_dies_at_any_step_loses_nothing_and_starts_nothing_twice() {
        super::loses_nothing(super::OF_THE_DAEMON).await;
    }

    #[tokio::test]
    async fn supervisors_that_die_at_any_step_leave_jobs_that_end_once() {
        super::leaves_jobs_that_end_once(super::OF_A_SUPERVISOR).await;
    }
}

async fn loses_nothing(points: &[&str]) {
    for point in points {
        let mut home = Home::empty();
        let mut acknowledged = Acknowledged::default();
        home.crash_at(point, &SIM, async |home| {
            let _ = everything(home, &home.connect(), &mut acknowledged).await;
        })
        .await;
        all_is_well(&home, &acknowledged, point).await;
        // The slice of a job goes after its end is in the journal.
        assert!(!home.daemon_log().contains("cannot adopt"), "{point}");
    }
}

async fn leaves_jobs_that_end_once(points: &[&str]) {
    for point in points {
        let mut home = Home::empty();
        home.set(CRASH_AT, *point);
        home.start(&SIM);
        let mut acknowledged = Acknowledged::default();
        let client = home.connect();
        everything(&home, &client, &mut acknowledged)
            .await
            .unwrap_or_else(|error| panic!("{point}: {error:?}"));
        all_is_well(&home, &acknowledged, point).await;
    }
}
