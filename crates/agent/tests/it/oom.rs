//! What refused memory, kept with the job: while it runs, after it, and for those who ask what to ask for.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use divvy_api::client::{Client, Runs};
use divvy_api::v1::{Amount, ErrorCode, JobState, OomCause, OomKind, Submit};
use divvy_ledger::{
    AllocationGroup, AllocationKind, DenialCause, DenialReport, ProcessSlot, Slice,
};
use divvy_testkit::{Home, ended, in_state, quarter, refused};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const ONE: [&str; 2] = ["--sim", "a100-80gb:1"];

/// A running job of 8 GiB that does nothing, and this process as one of its own.
async fn member(home: &Home, client: &Client, command: &[&str]) -> (String, ProcessSlot) {
    let submit = Submit {
        amount: Some(Amount::Memory { bytes: 8 * GIB }),
        ..quarter(command)
    };
    let id = client.submit(&submit).await.unwrap().id;
    in_state(client, &id, JobState::Running).await;
    let slice = Slice::open(&home.path().join("slices").join(&id)).unwrap();
    (id, slice.join().unwrap())
}

/// Takes some, is refused more, and gives it back.
pub fn use_and_be_refused(slot: &ProcessSlot, used: u64, asked: u64) {
    slot.reserve(0, used).unwrap().commit();
    if asked > 0 {
        assert!(slot.reserve(0, asked).is_err());
        slot.count_denial(0, asked);
        slot.record(&DenialReport {
            api: b"cuMemAlloc_v2",
            gpu: Some(0),
            requested: asked,
            cause: DenialCause::SliceFull,
            gpu_free: 60 * GIB,
            gpu_total: 80 * GIB,
            largest: &[AllocationGroup {
                bytes: used / 2,
                count: 2,
                kind: AllocationKind::Pool,
            }],
            allocations: 2,
            skipped: 4,
        });
    }
    slot.release(0, used);
}

#[tokio::test]
async fn a_refusal_is_told_while_the_job_runs_and_after_it_by_the_next_daemon_too() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    let (id, slot) = member(&home, &client, &["sleep", "1000"]).await;
    assert!(client.oom(&id).await.unwrap().records.is_empty());
    use_and_be_refused(&slot, 6 * GIB, 3 * GIB);
    let oom = client.oom(&id).await.unwrap();
    assert_eq!(
        (oom.denials, oom.records.len(), oom.state),
        (1, 1, JobState::Running)
    );
    let record = &oom.records[0];
    let gpu = &client.gpus().await.unwrap()[0];
    assert_eq!(
        (record.pid, record.gpu_uuid.as_ref()),
        (std::process::id(), Some(&gpu.uuid))
    );
    assert_eq!(
        (record.api.as_str(), record.cause),
        ("cuMemAlloc_v2", OomCause::SliceFull)
    );
    assert_eq!(
        (
            record.asked_bytes,
            record.limit_bytes,
            record.used_bytes,
            record.own_bytes
        ),
        (3 * GIB, 8 * GIB, 6 * GIB, 6 * GIB)
    );
    assert_eq!(record.sufficient_limit_bytes, Some(9 * GIB));
    assert_eq!(oom.suggested, Some(Amount::Memory { bytes: 18 * GIB }));
    assert_eq!((record.gpu_free_bytes, record.skipped), (Some(60 * GIB), 4));
    assert_eq!(
        (record.largest[0].kind, record.largest[0].count),
        (OomKind::Pool, 2)
    );
    let job = client.job(&id).await.unwrap();
    assert!(record.at >= job.started_at.unwrap());

    drop(slot);
    client.cancel(&id).await.unwrap();
    let job = ended(&client, &id).await;
    assert_eq!(
        (job.slices[0].memory_peak_bytes, job.slices[0].denials),
        (6 * GIB, 1)
    );
    home.kill();
    home.start(&ONE);
    let after = home.connect().oom(&id).await.unwrap();
    assert_eq!((after.state, after.denials), (JobState::Ended, 1));
    // When it was is worked out from the time that has passed since, each time anew.
    let same = |mut records: Vec<divvy_api::v1::OomRecord>| {
        records
            .iter_mut()
            .for_each(|record| record.at = job.submitted_at);
        records
    };
    assert_eq!(same(after.records), same(oom.records));
    let nobody = refused(home.connect().oom("99").await);
    assert_eq!(nobody.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn advice_is_from_what_earlier_runs_of_the_same_program_used() {
    let home = Home::started(&ONE);
    let client = home.connect();
    assert!(client.advice(&Runs::All).await.unwrap().is_empty());
    for (seconds, used, asked) in [("1000", 2, 0), ("2000", 7, 3), ("3000", 4, 0)] {
        let (id, slot) = member(&home, &client, &["sleep", seconds]).await;
        use_and_be_refused(&slot, used * GIB, asked * GIB);
        drop(slot);
        client.cancel(&id).await.unwrap();
        ended(&client, &id).await;
    }
    let (_, _running) = member(&home, &client, &["sleep", "1000"]).await;
    let all = client.advice(&Runs::All).await.unwrap();
    assert_eq!(all.len(), 1);
    let advice = &all[0];
    assert_eq!(
        (advice.program.as_str(), advice.runs, advice.denied_runs),
        ("sleep", 3, 1)
    );
    let peaks = (advice.memory_peak_median_bytes, advice.memory_peak_bytes);
    assert_eq!(peaks, (4 * GIB, 7 * GIB));
    assert_eq!(advice.memory_at_least_bytes, 10 * GIB);
    // No run without a refusal needed so much.
    assert_eq!((advice.memory_bytes, &advice.amount), (None, &None));
    assert_eq!(advice.memory_limit_bytes, 8 * GIB);
    assert_eq!(advice.command, ["sleep", "3000"]);
    for runs in [
        Runs::Like("1".into()),
        Runs::Named("sl*".into()),
        Runs::Of("sleep".into()),
    ] {
        assert_eq!(client.advice(&runs).await.unwrap(), all, "{runs:?}");
    }
    assert!(
        client
            .advice(&Runs::Of("python a.py".into()))
            .await
            .unwrap()
            .is_empty()
    );
    let nobody = refused(client.advice(&Runs::Like("99".into())).await);
    assert_eq!(nobody.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn what_a_job_writes_about_itself_stops_no_daemon() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let (id, slot) = member(&home, &client, &["sleep", "1000"]).await;
    for requested in [0, MIB, u64::MAX] {
        slot.record(&DenialReport {
            api: &[0xff; 100],
            gpu: Some(15),
            requested,
            cause: DenialCause::GpuFull,
            gpu_free: u64::MAX,
            gpu_total: u64::MAX,
            skipped: u64::MAX,
            allocations: u64::MAX,
            largest: &[AllocationGroup {
                bytes: u64::MAX,
                count: u32::MAX,
                kind: AllocationKind::Other,
            }; 12],
        });
    }
    let oom = client.oom(&id).await.unwrap();
    assert_eq!((oom.records.len(), oom.denials), (3, 0));
    assert_eq!(
        (oom.records[0].api.len(), &oom.records[0].gpu_index),
        (40, &None)
    );
    drop(slot);
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
    assert_eq!(client.oom(&id).await.unwrap().records.len(), 3);
}
