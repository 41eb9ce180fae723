//! What jobs had of the GPUs, what is done about those that do nothing with it, and what is forgotten; also by daemons that are
//! killed in between.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::path::Path;

use divvy_api::client::Client;
use divvy_api::v1::{After, EndReason, ErrorCode, Idle, IdleAction, Job, JobState, Submit, Usage};
use divvy_testkit::{Home, ended, in_state, quarter, refused, until, until_async};
use jiff::{SignedDuration, Timestamp};

const SIM: [&str; 2] = ["--sim", "l4-24gb:1"];

async fn usage(client: &Client, by: &str) -> Vec<Usage> {
    let (since, until) = (Timestamp::UNIX_EPOCH, Timestamp::now());
    jobs_of(client.usage(by, since, until, None).await.unwrap())
}

/// The rows without those of idle energy.
fn jobs_of(mut rows: Vec<Usage>) -> Vec<Usage> {
    rows.retain(|row| !row.idle);
    rows
}

fn ms(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_millis()).unwrap()
}

fn gated(go: &Path) -> Vec<String> {
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    ["sh", "-c", &script].map(str::to_owned).to_vec()
}

#[tokio::test]
async fn what_a_job_held_is_counted_to_its_end_also_while_no_daemon_was_there() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let go = home.path().join("go");
    let submit = Submit {
        command: gated(&go),
        project: Some("vision".into()),
        ..quarter(&["true"])
    };
    let job = client.submit(&submit).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    let pid = home.pid(&job.id, "launch");
    let [held] = &usage(&client, "job").await[..] else {
        panic!("one row")
    };
    assert_eq!(held.job.as_deref(), Some(job.id.as_str()));
    home.kill();
    fs::write(&go, "").unwrap();
    until("its supervisor is done", || !divvy_testkit::is_alive(pid));
    let down = Timestamp::now();
    home.start(&SIM);
    let client = home.connect();
    let job = ended(&client, &job.id).await;
    assert!(job.ended_at.unwrap() <= down);

    let rows = usage(&client, "user,project,queue,gpu,job").await;
    let [row] = &rows[..] else {
        panic!("{rows:#?}")
    };
    assert_eq!(
        (
            row.project.as_deref(),
            row.queue.as_deref(),
            row.gpu_index,
            row.jobs
        ),
        (Some("vision"), Some("default"), Some(0), 1)
    );
    // From when it was placed, which was between these two.
    let most = ms(job.submitted_at, job.ended_at.unwrap());
    let least = ms(job.started_at.unwrap(), job.ended_at.unwrap());
    let counted = row.allocated_gpu_ms * 4;
    assert!(
        (least..=most + 4).contains(&(counted + 4)),
        "{least} {counted} {most}"
    );
    assert!(row.allocated_gpu_ms >= held.allocated_gpu_ms);
    assert_eq!(
        row.allocated_gpu_ms,
        row.used_gpu_ms - row.loaned_gpu_ms + row.idle_gpu_ms + row.unknown_gpu_ms
    );
    // A daemon that sees it ended a second time counts it once.
    home.kill();
    home.start(&SIM);
    let again = usage(&home.connect(), "user,project,queue,gpu,job").await;
    // The machine had more time since.
    let until_before = again.into_iter().zip(&rows).map(|(row, before)| Usage {
        capacity_gpu_ms: before.capacity_gpu_ms,
        // And the energy of the job's last second is divided within ten.
        energy_joules: before.energy_joules,
        ..row
    });
    assert_eq!(until_before.collect::<Vec<_>>(), rows);
    let client = home.connect();
    let before = client.usage("", Timestamp::UNIX_EPOCH, job.submitted_at, None);
    assert_eq!(jobs_of(before.await.unwrap()), []);
    for (by, since, until) in [
        ("users", 0, 1),
        ("day,month", 0, 1),
        ("user", 1, 1),
        ("user", 2, 1),
    ] {
        let time = |second| Timestamp::from_second(second).unwrap();
        let error = refused(client.usage(by, time(since), time(until), None).await);
        assert_eq!(error.code, ErrorCode::Usage);
    }

    // A day of twelve hours ago begins at most 24 hours before; it counts from the call's `since` on.
    let (since, until) = (down - SignedDuration::from_hours(12), Timestamp::now());
    let day = |time: Timestamp, zone: &str| time.in_tz(zone).unwrap().date().to_string();
    for zone in ["Pacific/Apia", "Europe/Berlin", "UTC"] {
        let days = jobs_of(client.usage("day", since, until, Some(zone)).await.unwrap());
        let found: Vec<_> = days.iter().map(|row| row.day.clone().unwrap()).collect();
        let mut expected = vec![day(since, zone), day(until, zone)];
        expected.dedup();
        assert_eq!(found, expected, "{zone}");
        let sum = |of: fn(&Usage) -> u64| days.iter().map(of).sum::<u64>();
        assert_eq!(sum(|day| day.allocated_gpu_ms), row.allocated_gpu_ms);
        // One GPU, and twelve hours until now.
        let capacity = ms(since, until);
        assert!(
            sum(|day| day.capacity_gpu_ms).abs_diff(capacity) <= 1,
            "{days:?}"
        );
    }
    let error = refused(
        client
            .usage("day", since, until, Some("Europe/Atlantis"))
            .await,
    );
    assert_eq!(error.code, ErrorCode::Usage);
    assert!(
        error.message.contains("Europe/Atlantis"),
        "{}",
        error.message
    );
    let error = refused(
        client
            .usage("day", Timestamp::UNIX_EPOCH, until, None)
            .await,
    );
    assert!(
        error.message.contains("more than 402 days"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn what_is_held_after_a_resize_counts_by_the_new_amount_and_a_suspended_job_is_told_apart() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let job = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    in_state(&client, &job.id, JobState::Running).await;
    let half = divvy_api::v1::Resize {
        amount: Some(divvy_api::v1::Amount::Share { thousandths: 500 }),
        compute: None,
    };
    client.resize(&job.id, &half).await.unwrap();
    client.suspend(&job.id).await.unwrap();
    let since = Timestamp::now();
    until("it was suspended for a while", || {
        Timestamp::now().duration_since(since).as_millis() > 300
    });
    client.resume(&job.id).await.unwrap();
    client.cancel(&job.id).await.unwrap();
    let job = ended(&client, &job.id).await;
    let [row] = &usage(&client, "").await[..] else {
        panic!("one row")
    };
    assert_eq!((row.jobs, &row.user), (1, &None));
    let whole = ms(job.submitted_at, job.ended_at.unwrap());
    assert!(row.allocated_gpu_ms <= whole / 2 + 1);
    assert!(row.allocated_gpu_ms >= row.suspended_gpu_ms, "{row:#?}");
    assert!(row.suspended_gpu_ms > 0, "{row:#?}");
}

fn idle(after_s: u64, action: IdleAction) -> Submit {
    Submit {
        idle: Some(Idle { after_s, action }),
        ..quarter(&["sleep", "1000"])
    }
}

async fn kinds(client: &Client, job: &Job) -> Vec<String> {
    let events = client.events(0).await.unwrap().into_iter();
    let own = events.filter(|event| event.job.as_ref() == Some(&job.id));
    own.map(|event| event.kind).collect()
}

async fn until_told(client: &Client, job: &Job, kind: &str, times: usize) {
    until_async(
        format!("{times} events {kind} of job {}", job.id),
        async || {
            let told = kinds(client, job).await;
            (told.iter().filter(|told| *told == kind).count() >= times).then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn a_job_that_does_nothing_is_told_of_suspended_or_cancelled_as_its_rule_says() {
    let home = Home::started(&SIM);
    let client = home.connect();
    let told = client.submit(&idle(1, IdleAction::Notify)).await.unwrap();
    assert_eq!(told.idle.map(|idle| idle.after_s), Some(1));
    let suspended = client.submit(&idle(1, IdleAction::Suspend)).await.unwrap();
    let cancelled = client.submit(&idle(1, IdleAction::Cancel)).await.unwrap();
    let free = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    assert_eq!(free.idle, None);
    let end = ended(&client, &cancelled.id).await;
    assert_eq!(end.end_reason, Some(EndReason::IdleTimeout));
    let reason = end.reason.unwrap();
    assert!(reason.starts_with("stopped by its idle rule"), "{reason}");

    until_told(&client, &suspended, "suspended", 1).await;
    let shown = client.job(&suspended.id).await.unwrap();
    assert!(shown.suspended && shown.idle_s.is_none());
    // Somebody lets it go on, and its time begins anew.
    client.resume(&suspended.id).await.unwrap();
    until_told(&client, &suspended, "suspended", 2).await;
    let story = kinds(&client, &suspended).await;
    assert_eq!(
        story[story.len() - 5..],
        ["idle", "suspended", "resumed", "idle", "suspended"]
    );
    // Told once for each time that it does nothing.
    let story = kinds(&client, &told).await;
    assert_eq!(
        story.iter().filter(|kind| *kind == "idle").count(),
        1,
        "{story:?}"
    );
    assert!(client.job(&told.id).await.unwrap().idle_s.unwrap() >= 1);
    assert!(!kinds(&client, &free).await.contains(&"idle".to_owned()));
}

#[tokio::test]
async fn a_daemons_rule_holds_for_jobs_that_say_nothing_and_never_for_those_that_wait() {
    let home = Home::started(
        &[
            &SIM[..],
            &["--set", "idle={ after = \"1s\", action = \"cancel\" }"],
        ]
        .concat(),
    );
    let client = home.connect();
    let whole = Submit {
        amount: Some(divvy_api::v1::Amount::Whole { count: 1 }),
        ..idle(0, IdleAction::Notify)
    };
    let exempt = client.submit(&whole).await.unwrap();
    in_state(&client, &exempt.id, JobState::Running).await;
    let waits = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let rule = waits.idle.unwrap();
    assert_eq!((rule.after_s, rule.action), (1, IdleAction::Cancel));
    assert_eq!(exempt.idle, None);
    // Longer than its time, while another has the GPU.
    until("a while has passed", || {
        Timestamp::now()
            .duration_since(waits.submitted_at)
            .as_millis()
            > 1500
    });
    assert_eq!(client.job(&waits.id).await.unwrap().state, JobState::Queued);
    client.cancel(&exempt.id).await.unwrap();
    let end = ended(&client, &waits.id).await;
    assert_eq!(end.end_reason, Some(EndReason::IdleTimeout));
    assert!(ms(end.started_at.unwrap(), end.ended_at.unwrap()) >= 1000);
}

#[tokio::test]
async fn jobs_beyond_the_retention_go_and_jobs_that_another_job_needs_stay() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let go = home.path().join("go");
    let run = async |submit: &Submit| {
        let job = client.submit(submit).await.unwrap();
        ended(&client, &job.id).await
    };
    let old = run(&quarter(&["true"])).await;
    let needed = run(&quarter(&["true"])).await;
    let keyed = Submit {
        idempotency_key: Some("k".into()),
        ..quarter(&["true"])
    };
    let kept = run(&keyed).await;
    // With retention.max-jobs = 1 five jobs are kept within a day after their end.
    let mut newest = Vec::new();
    for _ in 0..5 {
        newest.push(run(&quarter(&["true"])).await);
    }
    let blocker = Submit {
        command: gated(&go),
        ..quarter(&["true"])
    };
    let blocker = client.submit(&blocker).await.unwrap();
    let follows = Submit {
        after: [&needed.id, &blocker.id]
            .map(|job| After {
                job: job.clone(),
                ok: true,
            })
            .to_vec(),
        ..quarter(&["true"])
    };
    let follows = client.submit(&follows).await.unwrap();
    let cursor = client.events(0).await.unwrap()[0].seq;

    home.kill();
    home.start(&[&SIM[..], &["--set", "retention.max-jobs=1"]].concat());
    let client = home.connect();
    let folder = |job: &Job| Path::new(&job.directory).exists();
    until("what is too much has gone", || !folder(&old));
    // The row goes right after the folder.
    until_async("the row has gone", async || {
        client.job(&old.id).await.err().map(drop)
    })
    .await;
    let all = client.jobs(true).await.unwrap();
    let ids: Vec<&str> = all.iter().map(|job| job.id.as_str()).collect();
    let left: Vec<&Job> = [&needed, &kept]
        .into_iter()
        .chain(&newest)
        .chain([&blocker, &follows])
        .collect();
    let left_ids: Vec<&str> = left.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, left_ids);
    assert!(left[..left.len() - 1].iter().all(|job| folder(job)));
    assert_eq!(
        client.submit(&keyed).await.unwrap().id,
        kept.id,
        "the key counts"
    );
    fs::write(&go, "").unwrap();
    let end = ended(&client, &follows.id).await;
    assert_eq!(end.end_reason, Some(EndReason::Completed));
    assert_eq!(
        usage(&client, "job").await.len(),
        10,
        "what was used is kept for longer"
    );

    home.kill();
    until("everything is older than a second", || {
        Timestamp::now()
            .duration_since(end.ended_at.unwrap())
            .as_millis()
            > 1000
    });
    home.start(&[&SIM[..], &["--set", "retention.jobs-for=1s"]].concat());
    let client = home.connect();
    until_async("old events have gone", async || {
        let events = client.events(0).await.unwrap();
        let is_there = events.first().is_some_and(|event| event.seq <= cursor + 1);
        (!is_there).then_some(())
    })
    .await;
    let error = refused(client.events(cursor).await);
    assert_eq!(error.code, ErrorCode::Gone, "{error:?}");
    assert!(error.details["oldest"].as_u64().unwrap() > cursor);
    let newest = client.submit(&quarter(&["true"])).await.unwrap();
    let number: u64 = newest.id.parse().unwrap();
    assert_eq!(
        number,
        follows.id.parse::<u64>().unwrap() + 1,
        "no number is given twice"
    );
}
