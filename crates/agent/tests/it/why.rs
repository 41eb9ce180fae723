//! What a job waits for, through the API: in one word, by when those before it are gone, and when they usually are.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Array, EndReason, Job, JobState, ReasonCode, Submit, Why, WhyHolder};
use divvy_testkit::{Home, ended, in_state, quarter};
use jiff::{SignedDuration, Timestamp};

/// One GPU, and a second to go for whoever is stopped.
const ONE: [&str; 4] = ["--sim", "l4-24gb:1", "--set", "grace=1s"];

const HOUR: SignedDuration = SignedDuration::from_hours(1);

fn whole(name: &str, command: &[&str]) -> Submit {
    Submit {
        name: Some(name.to_owned()),
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(command)
    }
}

fn holds(name: &str) -> Submit {
    whole(name, &["sleep", "1000"])
}

async fn runs(client: &Client, submit: &Submit) -> Job {
    let job = client.submit(submit).await.unwrap();
    in_state(client, &job.id, JobState::Running).await
}

/// Why a job waits, and the one that holds the only GPU.
async fn asked(client: &Client, job: &Job) -> (Why, WhyHolder) {
    let why = client.why(&job.id).await.unwrap();
    let [gpu] = &why.gpus[..] else {
        panic!("one GPU: {why:#?}")
    };
    let [holder] = &gpu.held_by[..] else {
        panic!("one holder: {why:#?}")
    };
    let text = format!("#{} {} {}", holder.job, holder.queue, holder.size);
    assert_eq!(gpu.holders, [text]);
    let holder = holder.clone();
    (why, holder)
}

/// In how long that is, for something that was asked a moment ago.
fn in_about(at: Option<Timestamp>, wait: SignedDuration) -> bool {
    let late = SignedDuration::from_mins(10);
    let left = at.unwrap().duration_since(Timestamp::now());
    (wait - late..=wait + late).contains(&left)
}

async fn cancel(client: &Client, job: &Job) {
    client.cancel(&job.id).await.unwrap();
    ended(client, &job.id).await;
}

#[tokio::test]
async fn why_names_each_holder_of_a_gpu_with_the_end_that_its_time_limit_sets() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let limited = Submit {
        time_limit_s: Some(7200),
        ..holds("limited")
    };
    let first = runs(&client, &limited).await;
    let waits = client.submit(&holds("waits")).await.unwrap();
    let (why, holder) = asked(&client, &waits).await;
    assert_eq!((&holder.job, holder.size.as_str()), (&first.id, "1"));
    assert_eq!(
        (holder.share, holder.memory_bytes),
        (1000, first.slices[0].memory_limit_bytes)
    );
    assert!(in_about(holder.ends_by, 2 * HOUR), "{holder:?}");
    // It starts when that one is gone, and both are told by the same clock.
    assert_eq!(why.latest_start, holder.ends_by);
    assert!(in_about(why.expected_start, 2 * HOUR), "{why:?}");
    assert!(why.expected_start < why.latest_start);
    assert_eq!(why.reason_code, Some(ReasonCode::Insufficient));
    // Nobody has run before.
    let nothing = (None, None, None);
    assert_eq!(
        (holder.usual_run, holder.usually_ends, why.usual_start),
        nothing
    );

    // Who runs has no such questions.
    let why = client.why(&first.id).await.unwrap();
    assert_eq!(why.gpus.len(), 0);
    assert_eq!((why.reason_code, why.latest_start), (None, None));

    // Who may be started again has no end that is certain.
    cancel(&client, &waits).await;
    cancel(&client, &first).await;
    let again = Submit {
        retries: 1,
        ..limited
    };
    let first = runs(&client, &again).await;
    let waits = client.submit(&holds("waits")).await.unwrap();
    let (why, holder) = asked(&client, &waits).await;
    assert_eq!((holder.ends_by, why.latest_start), (None, None));
    cancel(&client, &waits).await;
    cancel(&client, &first).await;
}

#[tokio::test]
async fn what_earlier_runs_took_is_an_estimate_and_no_promise() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    for (name, times) in [("train", 3), ("rare", 2)] {
        for _ in 0..times {
            let job = client.submit(&whole(name, &["true"])).await.unwrap();
            let end = ended(&client, &job.id).await;
            assert_eq!(end.end_reason, Some(EndReason::Completed));
        }
    }
    let failed = client.submit(&whole("rare", &["false"])).await.unwrap();
    ended(&client, &failed.id).await;
    home.kill();
    // They took an hour.
    let journal = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    let longer = "UPDATE job SET started_at = started_at - 3600000000";
    assert_eq!(journal.execute(longer, []).unwrap(), 6);
    drop(journal);
    home.start(&ONE);
    let client = home.connect();

    let first = runs(&client, &holds("train")).await;
    let waits = client.submit(&holds("waits")).await.unwrap();
    let (why, holder) = asked(&client, &waits).await;
    let usual = holder.usual_run.unwrap();
    assert_eq!(usual.runs, 3);
    let hour = HOUR.as_secs().unsigned_abs();
    assert!((hour..hour + 60).contains(&usual.median_s), "{usual:?}");
    assert!(in_about(holder.usually_ends, HOUR), "{holder:?}");
    assert_eq!(why.usual_start, holder.usually_ends);
    let promised = (holder.ends_by, why.expected_start, why.latest_start);
    assert_eq!(promised, (None, None, None));
    let shown = client.job(&waits.id).await.unwrap();
    assert_eq!((shown.expected_start, shown.latest_start), (None, None));

    // A past that cannot be read keeps nobody from the rest.
    let (path, moved) = (home.path().join("state.db"), home.path().join("moved.db"));
    std::fs::rename(&path, &moved).unwrap();
    let (unread, holder) = asked(&client, &waits).await;
    std::fs::rename(&moved, &path).unwrap();
    assert_eq!((holder.usual_run, unread.usual_start), (None, None));
    assert_eq!(unread.summary, why.summary);

    // One that stands still does not take what is usual.
    client.suspend(&first.id).await.unwrap();
    let (why, holder) = asked(&client, &waits).await;
    assert_eq!((holder.usual_run, holder.usually_ends), (None, None));
    assert_eq!(why.usual_start, None);
    client.resume(&first.id).await.unwrap();

    // By its limit it is gone before that.
    cancel(&client, &waits).await;
    cancel(&client, &first).await;
    let limited = Submit {
        time_limit_s: Some(600),
        ..holds("train")
    };
    let first = runs(&client, &limited).await;
    let waits = client.submit(&holds("waits")).await.unwrap();
    let (why, holder) = asked(&client, &waits).await;
    assert!(holder.usual_run.is_some());
    assert_eq!(why.usual_start, why.expected_start);
    cancel(&client, &waits).await;
    cancel(&client, &first).await;

    // Two that ended well and one that failed are too few.
    let first = runs(&client, &holds("rare")).await;
    let waits = client.submit(&holds("waits")).await.unwrap();
    let (why, holder) = asked(&client, &waits).await;
    assert_eq!((holder.usual_run, why.usual_start), (None, None));
    cancel(&client, &waits).await;
    cancel(&client, &first).await;
}

#[tokio::test]
async fn jobs_before_it_are_thought_to_take_what_is_usual_as_well() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    for _ in 0..3 {
        let job = client.submit(&whole("train", &["true"])).await.unwrap();
        ended(&client, &job.id).await;
    }
    home.kill();
    let journal = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    let longer = "UPDATE job SET started_at = started_at - 3600000000";
    assert_eq!(journal.execute(longer, []).unwrap(), 3);
    drop(journal);
    home.start(&ONE);
    let client = home.connect();
    let first = runs(&client, &holds("train")).await;
    let second = client.submit(&holds("train")).await.unwrap();
    let third = client.submit(&holds("other")).await.unwrap();
    let fourth = client.submit(&holds("train")).await.unwrap();
    let (why, _) = asked(&client, &second).await;
    assert!(in_about(why.usual_start, HOUR), "{why:?}");
    let (why, _) = asked(&client, &third).await;
    assert!(in_about(why.usual_start, 2 * HOUR), "{why:?}");
    // Of the one before it nobody knows.
    let (why, _) = asked(&client, &fourth).await;
    assert_eq!(why.usual_start, None);
    for job in [&fourth, &third, &second, &first] {
        cancel(&client, job).await;
    }
}

#[tokio::test]
async fn a_job_says_in_one_word_what_it_waits_for() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let first = runs(&client, &holds("first")).await;
    let short = client.submit(&holds("short")).await.unwrap();
    let behind = client.submit(&holds("behind")).await.unwrap();
    let follows = Submit {
        after: vec![divvy_api::v1::After {
            job: first.id.clone(),
            ok: false,
        }],
        ..holds("follows")
    };
    let after = client.submit(&follows).await.unwrap();
    let array = Submit {
        array: Some(Array {
            indices: vec![0, 1],
            max_running: Some(1),
        }),
        ..holds("array")
    };
    let array = client.submit(&array).await.unwrap();
    let next = (array.id.parse::<u64>().unwrap() + 1).to_string();
    let failed = quarter(&["/no/such/program"]);
    let all = client.jobs(true).await.unwrap();
    for (id, code) in [
        (&first.id, None),
        (&short.id, Some(ReasonCode::Insufficient)),
        (&behind.id, Some(ReasonCode::Behind)),
        (&after.id, Some(ReasonCode::Dependency)),
        (&array.id, Some(ReasonCode::Behind)),
        (&next, Some(ReasonCode::ArrayLimit)),
    ] {
        let listed = all.iter().find(|job| job.id == *id).unwrap();
        assert_eq!(listed.reason_code, code, "{listed:#?}");
        assert_eq!(listed.reason_code.is_some(), listed.reason.is_some());
        assert_eq!(client.job(id).await.unwrap().reason_code, code);
        assert_eq!(client.why(id).await.unwrap().reason_code, code);
    }
    let dry = Submit {
        dry_run: true,
        ..follows
    };
    let would = client.submit(&dry).await.unwrap();
    assert_eq!(would.reason_code, Some(ReasonCode::Dependency));
    for job in [&array.id, &after.id, &behind.id, &short.id] {
        client.cancel(job).await.unwrap();
    }
    cancel(&client, &first).await;

    // What went wrong is no wait.
    let failed = client.submit(&failed).await.unwrap();
    let failed = ended(&client, &failed.id).await;
    assert!(failed.reason.is_some());
    assert_eq!(failed.reason_code, None);
}
