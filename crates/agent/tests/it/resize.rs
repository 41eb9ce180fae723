//! Resizing jobs: more at once, less once it is not used, and nothing promised twice however the daemon dies.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Error, ErrorCode, Job, JobState, Resize, Submit};
use divvy_ledger::{ProcessSlot, SharingMode, Slice};
use divvy_testkit::{Home, in_state, let_pass, quarter, refused, until, until_async};

const GIB: u64 = 1 << 30;
/// One GPU whose usable memory is no round number.
const ONE: [&str; 2] = ["--sim", "a100-80gb:1"];

fn memory(gib: u64) -> Amount {
    Amount::Memory { bytes: gib * GIB }
}

fn asking(amount: Amount) -> Submit {
    Submit {
        amount: Some(amount),
        ..quarter(&["sleep", "1000"])
    }
}

async fn resize(client: &Client, job: &str, amount: Amount) -> Result<Job, Error> {
    let resize = Resize {
        amount: Some(amount),
        compute: None,
    };
    client.resize(job, &resize).await
}

async fn redivide(client: &Client, job: &str, compute: &str) -> Result<Job, Error> {
    let resize = Resize {
        amount: None,
        compute: Some(compute.to_owned()),
    };
    client.resize(job, &resize).await
}

/// A running job of so much memory.
async fn running(client: &Client, gib: u64) -> String {
    let id = client.submit(&asking(memory(gib))).await.unwrap().id;
    in_state(client, &id, JobState::Running).await;
    id
}

fn slice(home: &Home, id: &str) -> Slice {
    Slice::open(&home.path().join("slices").join(id)).unwrap()
}

/// What a process of the job may have now, by the job's own account.
fn limit(home: &Home, id: &str) -> u64 {
    slice(home, id).usage(0).unwrap().limit
}

/// This process as one of the job's, with so much memory.
fn member(home: &Home, id: &str, gib: u64) -> ProcessSlot {
    let slot = slice(home, id).join().unwrap();
    slot.reserve(0, gib * GIB).unwrap().commit();
    slot
}

/// Held and to be held, in GiB.
fn held(job: &Job) -> (u64, Option<u64>) {
    let slice = &job.slices[0];
    let target = slice.memory_target_bytes.map(|target| target / GIB);
    (slice.memory_limit_bytes / GIB, target)
}

async fn events(client: &Client, kind: &str) -> Vec<String> {
    let all = client.events(0).await.unwrap();
    let kind = all.into_iter().filter(|event| event.kind == kind);
    kind.map(|event| event.text).collect()
}

#[tokio::test]
async fn more_is_there_at_once_and_the_program_sees_it() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let id = running(&client, 10).await;
    let slot = member(&home, &id, 10);
    assert!(slot.reserve(0, GIB).is_err());
    let job = resize(&client, &id, memory(20)).await.unwrap();
    assert_eq!((held(&job), job.request), ((20, None), memory(20)));
    slot.reserve(0, 10 * GIB).unwrap().commit();
    assert!(slot.reserve(0, 1).is_err());
    slot.release(0, 20 * GIB);
    let gpu = &client.gpus().await.unwrap()[0];
    assert_eq!(gpu.memory_allocated_bytes, 20 * GIB);
    assert_eq!(job.slices[0].label, gpu.slices[0].label);
    let told = events(&client, "resized").await;
    assert_eq!(told.len(), 1);
    assert!(told[0].ends_with(": 10.0 GiB -> 20.0 GiB"), "{told:?}");
    // Once more changes nothing and tells nothing.
    resize(&client, &id, memory(20)).await.unwrap();
    assert_eq!(events(&client, "resized").await.len(), 1);
}

#[tokio::test]
async fn a_resize_measures_the_peak_of_a_job_anew_also_where_its_limit_stays() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let id = running(&client, 40).await;
    let peaks = async || {
        let job = client.job(&id).await.unwrap();
        let slice = &job.slices[0];
        let recent = slice.memory_recent_peak_bytes.unwrap() / GIB;
        (slice.memory_peak_bytes / GIB, recent)
    };
    let slot = member(&home, &id, 30);
    slot.release(0, 25 * GIB);
    assert_eq!(peaks().await, (30, 30));
    // What the job still holds belongs to its peak from now on.
    for (size, recent) in [(20, 5), (20, 7), (25, 5)] {
        resize(&client, &id, memory(size)).await.unwrap();
        if recent > 5 {
            slot.reserve(0, 2 * GIB).unwrap().commit();
            slot.release(0, 2 * GIB);
        }
        assert_eq!(peaks().await, (30, recent), "at {size} GiB");
    }
}

#[tokio::test]
async fn less_is_given_up_at_once_where_it_is_not_used() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let id = running(&client, 40).await;
    let slot = member(&home, &id, 5);
    let job = resize(&client, &id, memory(10)).await.unwrap();
    assert_eq!((held(&job), limit(&home, &id)), ((10, None), 10 * GIB));
    assert!(slot.reserve(0, 6 * GIB).is_err());
    slot.release(0, 5 * GIB);
    assert_eq!(events(&client, "shrunk").await.len(), 1);
}

#[tokio::test]
async fn less_than_is_used_is_given_up_when_it_is_not_used_any_more() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    let id = running(&client, 60).await;
    let slot = member(&home, &id, 30);
    let job = resize(&client, &id, memory(10)).await.unwrap();
    assert_eq!(held(&job), (60, Some(10)));
    assert_eq!(job.slices[0].share_target, Some(127));
    // Nothing more is allocated from now on, and nobody else gets what is in use.
    assert_eq!(slot.reserve(0, 1).unwrap_err().limit, 10 * GIB);
    let waiting = client.submit(&asking(memory(40))).await.unwrap();
    assert_eq!(waiting.state, JobState::Queued);
    let why = client.why(&waiting.id).await.unwrap();
    assert!(why.gpus[0].unmet.join(" ").contains("free"), "{why:?}");

    // The goal outlives the daemon, and the limit with it.
    home.kill();
    home.start(&ONE);
    let client = home.connect();
    assert_eq!(held(&client.job(&id).await.unwrap()), (60, Some(10)));
    assert_eq!(limit(&home, &id), 10 * GIB);

    slot.release(0, 19 * GIB);
    assert!(slot.reserve(0, 1).is_err(), "11 of 10 GiB are in use");
    slot.release(0, GIB);
    let started = in_state(&client, &waiting.id, JobState::Running).await;
    assert_eq!(held(&started), (40, None));
    assert_eq!(held(&client.job(&id).await.unwrap()), (10, None));
    let told = events(&client, "shrunk").await;
    assert!(told[0].contains("released 50.0 GiB"), "{told:?}");
    slot.release(0, 10 * GIB);
}

#[tokio::test]
async fn a_goal_can_be_taken_back() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let id = running(&client, 40).await;
    let slot = member(&home, &id, 30);
    resize(&client, &id, memory(10)).await.unwrap();
    let job = resize(&client, &id, memory(40)).await.unwrap();
    assert_eq!((held(&job), limit(&home, &id)), ((40, None), 40 * GIB));
    slot.reserve(0, 10 * GIB).unwrap().commit();
    slot.release(0, 40 * GIB);
}

#[tokio::test]
async fn a_job_that_waits_asks_for_something_else_and_keeps_its_place() {
    let home = Home::started(&ONE);
    let client = home.connect();
    running(&client, 60).await;
    let first = client.submit(&asking(memory(40))).await.unwrap();
    let second = client.submit(&asking(memory(30))).await.unwrap();
    assert_eq!((first.place, second.place), (Some(1), Some(2)));
    let job = resize(&client, &first.id, memory(50)).await.unwrap();
    assert_eq!((job.place, job.request), (Some(1), memory(50)));
    let job = resize(&client, &first.id, memory(10)).await.unwrap();
    assert_ne!(job.state, JobState::Queued);
    assert_eq!(
        held(&in_state(&client, &first.id, JobState::Running).await),
        (10, None)
    );
    assert_eq!(client.job(&second.id).await.unwrap().place, Some(1));
    let never = refused(resize(&client, &second.id, memory(90)).await);
    assert_eq!(never.code, ErrorCode::NeverFits);
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_the_reason_and_what_can() {
    let home = Home::started(&[
        "--sim",
        "a100-80gb:2",
        "--dynamic-gpus",
        "--queue",
        "half=0.5",
        "dual=2",
    ]);
    let client = home.connect();
    let submit = |queue: &str| divvy_testkit::script(queue, "sleep 1000");
    let first = client.submit(&submit("half")).await.unwrap().id;
    let other = client.submit(&submit("half")).await.unwrap().id;
    let pair = client.submit(&submit("dual")).await.unwrap().id;
    for id in [&first, &other] {
        in_state(&client, id, JobState::Running).await;
    }
    let refusal = |id: String, amount| {
        let client = home.connect();
        async move { refused(resize(&client, &id, amount).await) }
    };
    let error = refusal(first.clone(), memory(60)).await;
    assert_eq!(error.code, ErrorCode::WouldWait, "{error}");
    assert_eq!(error.hint.unwrap(), format!("the rest is held by #{other}"));
    let error = refusal(first.clone(), memory(100)).await;
    assert_eq!(error.code, ErrorCode::NeverFits, "{error}");
    let error = refusal(first.clone(), Amount::Whole { count: 2 }).await;
    assert_eq!(error.code, ErrorCode::Usage, "{error}");
    let error = refusal(first.clone(), Amount::Memory { bytes: 0 }).await;
    assert_eq!(error.code, ErrorCode::Usage, "{error}");
    let error = refusal("99".to_owned(), memory(1)).await;
    assert_eq!(error.code, ErrorCode::NotFound, "{error}");
    // A queue that gives each of its jobs the same gives this one the same.
    let error = refusal(pair.clone(), Amount::Whole { count: 1 }).await;
    assert_eq!(error.code, ErrorCode::Usage, "{error}");
    client.cancel(&pair).await.unwrap();
    let error = refusal(pair, memory(1)).await;
    assert_eq!(error.code, ErrorCode::Conflict, "{error}");
    assert!(error.message.contains("has ended already"), "{error}");
    for id in [&first, &other] {
        assert_eq!(client.job(id).await.unwrap().slices[0].share, 500);
    }
    assert!(events(&client, "resized").await.is_empty());
}

#[tokio::test]
async fn every_gpu_of_a_job_is_resized() {
    let home = Home::started(&["--sim", "a100-80gb:2"]);
    let client = home.connect();
    let pair = Amount::Shares {
        count: 2,
        thousandths: 250,
    };
    let id = client.submit(&asking(pair)).await.unwrap().id;
    in_state(&client, &id, JobState::Running).await;
    let job = resize(&client, &id, Amount::Share { thousandths: 500 })
        .await
        .unwrap();
    let shares: Vec<u16> = job.slices.iter().map(|slice| slice.share).collect();
    assert_eq!(shares, [500, 500]);
    let double = Amount::Shares {
        count: 2,
        thousandths: 500,
    };
    assert_eq!(job.request, double);
    for gpu in 0..2 {
        let usage = slice(&home, &id).usage(gpu).unwrap();
        assert_eq!(usage.limit, job.slices[gpu].memory_limit_bytes);
    }
    // One of them is used, and holds up only itself.
    let slot = slice(&home, &id).join().unwrap();
    slot.reserve(1, 10 * GIB).unwrap().commit();
    let job = resize(&client, &id, memory(4)).await.unwrap();
    let held: Vec<_> = job
        .slices
        .iter()
        .map(|slice| (slice.share, slice.memory_target_bytes))
        .collect();
    assert_eq!(held, [(51, None), (500, Some(4 * GIB))]);
    slot.release(1, 10 * GIB);
}

#[tokio::test]
async fn compute_time_is_divided_anew_also_for_the_next_daemon() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    let submit = Submit {
        idempotency_key: Some("once".to_owned()),
        ..asking(memory(20))
    };
    let id = client.submit(&submit).await.unwrap().id;
    in_state(&client, &id, JobState::Running).await;
    let waiting = client.submit(&asking(memory(70))).await.unwrap().id;
    let says = |compute: &str| (compute.to_owned(), (20, None));
    let job = redivide(&client, &id, "fair=0.75").await.unwrap();
    assert_eq!((job.compute.clone(), held(&job)), says("fair=0.75"));
    // Its share of compute is what the keeper goes by, and what its processes see.
    until("the keeper knows", || {
        weight(&home, &id) == (750, 0, SharingMode::Fair)
    });
    let told = events(&client, "resized").await;
    assert_eq!(told, ["compute: fair -> fair=0.75"]);
    redivide(&client, &id, "fair=0.75").await.unwrap();
    assert_eq!(events(&client, "resized").await.len(), 1, "nothing changed");
    let job = redivide(&client, &waiting, "none").await.unwrap();
    assert_eq!((job.compute.as_str(), job.place), ("none", Some(1)));

    let both = Resize {
        amount: Some(memory(10)),
        compute: Some("strict=0.125".to_owned()),
    };
    let job = client.resize(&id, &both).await.unwrap();
    assert_eq!(
        (job.compute.as_str(), held(&job)),
        ("strict=0.125", (10, None))
    );
    // Where there is no room, nothing of it is done.
    let both = Resize {
        amount: Some(memory(90)),
        compute: Some("fair".to_owned()),
    };
    let error = refused(client.resize(&id, &both).await);
    assert_eq!(error.code, ErrorCode::NeverFits, "{error}");
    for compute in ["some", "none=0.5", "fair=2"] {
        let error = refused(redivide(&client, &id, compute).await);
        assert_eq!(error.code, ErrorCode::Usage, "{error}");
    }
    let nothing = Resize {
        amount: None,
        compute: None,
    };
    let error = refused(client.resize(&id, &nothing).await);
    assert_eq!(error.code, ErrorCode::Usage, "{error}");

    home.kill();
    home.start(&ONE);
    let client = home.connect();
    let job = client.job(&id).await.unwrap();
    assert_eq!(
        (job.compute.as_str(), held(&job)),
        ("strict=0.125", (10, None))
    );
    assert_eq!(weight(&home, &id), (125, 125, SharingMode::Strict));
    // The keeper is a thread of its own, and hears of it when it comes to it.
    let kept = until_async("the job takes turns", async || {
        client.job(&id).await.unwrap().compute_time
    })
    .await;
    assert_eq!(kept.share_asked, 125);
    // The key still stands for what was submitted.
    assert_eq!(client.submit(&submit).await.unwrap().id, id);
    client.cancel(&id).await.unwrap();
    let started = in_state(&client, &waiting, JobState::Running).await;
    assert_eq!(started.compute, "none");
}

/// Weight and cap of compute, and how it is divided, by the job's own account.
fn weight(home: &Home, id: &str) -> (u16, u16, SharingMode) {
    let slice = slice(home, id);
    let gpu = &slice.gpus()[0];
    (gpu.weight, gpu.cap, slice.spec().mode)
}

/// A number below `limit` that looks random, from a seed that a failure prints.
fn random(seed: &mut u64, limit: u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % limit
}

#[tokio::test]
async fn a_daemon_killed_at_any_moment_of_a_resize_promises_nothing_twice() {
    let mut home = Home::started(&ONE);
    let mut seed = u64::from(std::process::id());
    println!("seed {seed}");
    let client = home.connect();
    let jobs = [running(&client, 20).await, running(&client, 20).await];
    let slots = [member(&home, &jobs[0], 8), member(&home, &jobs[1], 8)];
    for round in 0..25 {
        let client = home.connect();
        let (ids, mut dice) = (jobs.clone(), seed ^ round);
        let asker = tokio::spawn(async move {
            loop {
                let id = &ids[random(&mut dice, 2) as usize];
                let amount = memory(2 + random(&mut dice, 60));
                match resize(&client, id, amount).await {
                    Ok(_) => {}
                    Err(error) if error.code == ErrorCode::WouldWait => {}
                    Err(error) if error.code == ErrorCode::NoDaemon => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let_pass(Duration::from_micros(random(&mut seed, 30_000)));
        home.kill();
        asker.await.unwrap();
        home.start(&ONE);
        let client = home.connect();
        let gpu = &client.gpus().await.unwrap()[0];
        assert!(
            gpu.memory_allocated_bytes <= gpu.memory_usable_bytes,
            "round {round}"
        );
        assert!(gpu.share_allocated <= 1000, "round {round}");
        for (id, slot) in jobs.iter().zip(&slots) {
            let job = client.job(id).await.unwrap();
            let held = &job.slices[0];
            let may = held.memory_target_bytes.unwrap_or(held.memory_limit_bytes);
            // What it may have is what the journal says; what it has used all along it still holds.
            assert_eq!(limit(&home, id), may, "round {round}: {held:?}");
            assert!(
                held.memory_limit_bytes >= 8 * GIB,
                "round {round}: {held:?}"
            );
            assert_eq!(slot.usage(0).charged, 8 * GIB, "round {round}");
            assert_eq!(job.request, memory(may / GIB), "round {round}");
        }
    }
    slots.iter().for_each(|slot| slot.release(0, 8 * GIB));
    // Every goal is reached now.
    let client = home.connect();
    for id in &jobs {
        until_async(format!("job {id} has reached its goal"), async || {
            let held = &client.job(id).await.unwrap().slices[0];
            held.memory_target_bytes.is_none().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_job_that_is_put_back_asks_for_what_it_was_resized_to() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    running(&client, 60).await;
    let id = client.submit(&asking(memory(40))).await.unwrap().id;
    resize(&client, &id, memory(30)).await.unwrap();
    home.kill();
    home.start(&ONE);
    let client = home.connect();
    let job = client.job(&id).await.unwrap();
    assert_eq!((job.state, job.request), (JobState::Queued, memory(30)));
    client.cancel("1").await.unwrap();
    assert_eq!(
        held(&in_state(&client, &id, JobState::Running).await),
        (30, None)
    );
    until("its slice has its limit", || limit(&home, &id) == 30 * GIB);
}
