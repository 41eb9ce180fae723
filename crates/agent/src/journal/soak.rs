//! The soak test of planner and journal in virtual time: jobs come, run, end and expire, and neither the file nor the
//! process grows. `DIVVY_SOAK_JOBS=1000000` says how many.

use std::collections::BTreeMap;
use std::process::Command;

use divvy_core::job::{Event, Process, ProgramExit};
use divvy_core::{
    AllocatedJob, Gpu, GpuUuid, Mode, PendingJob, Queue, QueueName, QueueSpec, Share, Snapshot,
    plan,
};
use divvy_testkit::Rng;
use jiff::{SignedDuration, Timestamp};

use super::past::{cuts, jobs_beyond, usages_beyond};
use super::tests::new;
use super::*;
use crate::model::job::Job;
use crate::model::retention::{EventLimits, RetentionLimits};

const GPUS: u8 = 8;
const WAITING: usize = 100;
/// So many ended jobs are kept, and ten events of each.
const KEPT: u32 = 200;
/// Few enough for every run of the tests.
const JOBS: u64 = 1_000;

fn gpu(index: u8) -> Gpu {
    Gpu {
        uuid: GpuUuid::from_bytes([index; 16]),
        index: index.into(),
        model: "A100-SXM4-80GB".to_owned(),
        mode: Mode::Shared,
        away: false,
        out_of_service: None,
        total: divvy_core::Bytes::gib(80),
        reserved: divvy_core::Bytes::ZERO,
        enforcement: divvy_core::Enforcement::Limiter,
        elsewhere: Vec::new(),
        unmanaged: divvy_core::Bytes::ZERO,
        unlisted: divvy_core::Bytes::ZERO,
        unlisted_holder: None,
        context: divvy_core::Bytes::ZERO,
        mig: None,
    }
}

/// Resident memory in kilobytes (proc(5), `VmRSS`).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let figure = line.unwrap().split_whitespace().next().unwrap();
    figure.parse().unwrap()
}

/// Set in the process that is measured.
const MEASURED: &str = "DIVVY_TEST_MEASURED";

/// In a process of its own, as other tests take memory, too.
#[test]
fn any_number_of_jobs_leaves_the_journal_and_the_memory_as_large_as_a_few() {
    if std::env::var_os(MEASURED).is_some() {
        return soak();
    }
    let name = "any_number_of_jobs_leaves_the_journal_and_the_memory_as_large_as_a_few";
    let measured = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("journal::soak::{name}"), "--nocapture"])
        .env(MEASURED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&measured.stderr);
    eprintln!("{said}");
    assert!(measured.status.success() && said.contains(" jobs in "));
}

fn soak() {
    let wanted = std::env::var("DIVVY_SOAK_JOBS").map_or(JOBS, |jobs| jobs.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let start = new(None).at;
    // Jobs of different sizes and lengths, the same in every run.
    let mut dice = Rng::new(1);
    let mut second = 0_i64;
    let mut waiting: Vec<Job> = Vec::new();
    let mut running: BTreeMap<JobId, (Job, i64)> = BTreeMap::new();
    let (mut submitted, mut ended) = (0, 0);
    let mut early = None;
    while ended < wanted {
        second += 1;
        let now = start + SignedDuration::from_secs(second);
        store.begin().unwrap();
        while waiting.len() < WAITING && submitted < wanted {
            let mut asked = new(None);
            let share = Share::from_thousandths(125 * (1 + u16::try_from(dice.below(8)).unwrap()));
            asked.spec.request = divvy_core::Amount::Share(share.unwrap()).into();
            asked.at = now;
            let job = store.insert(&asked).unwrap();
            store
                .append_event(now, Some(job.id), "submitted", "soak")
                .unwrap();
            waiting.push(job);
            submitted += 1;
        }
        let due: Vec<JobId> = running
            .iter()
            .filter(|(_, (_, end))| *end <= second)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let (mut job, _) = running.remove(&id).unwrap();
            job.apply_event(Event::Exited(ProgramExit::Exited(0)));
            (job.exit_code, job.ended_at) = (Some(0), Some(now));
            store.release_allocations(&job).unwrap();
            store.save(&job).unwrap();
            store.append_event(now, Some(id), "ended", "soak").unwrap();
            ended += 1;
        }
        let held = running.values().map(|(job, _)| {
            let grants = job.state.grants().to_vec();
            AllocatedJob::new(job.id, job.spec.queue.clone(), grants)
        });
        let asks = waiting
            .iter()
            .map(|job| PendingJob::new(job.id, job.request()));
        let snapshot = Snapshot {
            gpus: (0..GPUS).map(gpu).collect(),
            held: held.collect(),
            queues: vec![Queue {
                spec: QueueSpec::open(QueueName::default_queue()),
                waiting: asks.collect(),
            }],
            ..Snapshot::default()
        };
        for start in plan(&snapshot).starts {
            let place = waiting.iter().position(|job| job.id == start.job).unwrap();
            let mut job = waiting.remove(place);
            job.place(start.grants);
            store.save_allocations(&job).unwrap();
            store.save(&job).unwrap();
            let pid = u32::try_from(job.id.0 % 4_000_000 + 2).unwrap();
            job.apply_event(Event::Spawned(Process { pid, start_time: 1 }));
            job.started_at = Some(now);
            store.save(&job).unwrap();
            store
                .append_event(now, Some(job.id), "running", "soak")
                .unwrap();
            let length = 1 + i64::try_from(dice.below(4)).unwrap();
            running.insert(job.id, (job, second + length));
        }
        store.commit().unwrap();
        if second % 100 == 0 {
            forget(&store, &path, now);
        }
        // By then as much is kept as ever is.
        if early.is_none() && ended > u64::from(2 * KEPT) && ended > wanted / 10 {
            early = Some((resident(), pages(&store)));
        }
    }
    assert!(waiting.is_empty() && running.is_empty());
    forget(&store, &path, start + SignedDuration::from_secs(second));
    let (memory, file) = early.expect("more jobs than are kept");
    let (memory_now, file_now) = (resident(), pages(&store));
    eprintln!(
        "{ended} jobs in {second} s: {memory} kB, then {memory_now} kB; {file} pages, then {file_now}"
    );
    assert!(
        file_now <= file + file / 4,
        "the journal grows: {file}, then {file_now} pages"
    );
    // An allocator keeps some of what it was given back.
    assert!(
        memory_now <= memory + 64 * 1024,
        "memory grows: {memory} kB, then {memory_now} kB"
    );
}

/// What retention does, in larger steps.
fn forget(store: &Store, path: &Path, now: Timestamp) {
    let beyond = RetentionLimits {
        ended: Timestamp::UNIX_EPOCH,
        most: KEPT,
        young: now,
        most_young: 5 * KEPT,
        texts: u64::MAX,
        keys: now,
    };
    let cuts = cuts(path, beyond).unwrap();
    let mut counts = EventCounts::default();
    counts.count(path).unwrap();
    loop {
        let jobs = jobs_beyond(path, &cuts, now, 1000).unwrap();
        store.begin().unwrap();
        store.forget_jobs(&jobs).unwrap();
        for _ in 0..10 {
            let most = u64::from(KEPT) * 10;
            let limits = EventLimits {
                before: Timestamp::UNIX_EPOCH,
                acts_before: Timestamp::UNIX_EPOCH,
                young: Timestamp::MAX,
                most,
                most_young: most,
                bytes: u64::MAX,
            };
            if let Some(expired) = counts.expired(path, &limits, 10_000).unwrap() {
                store.forget_events(&expired).unwrap();
                counts.remove(&expired);
            }
            for user in usages_beyond(path, most, 10_000).unwrap() {
                store.forget_usage_of(user).unwrap();
            }
        }
        store.commit().unwrap();
        if jobs.is_empty() {
            return;
        }
    }
}

/// Pages of the file that are in use.
fn pages(store: &Store) -> u64 {
    let pragma = |name: &str| -> u64 {
        let query = format!("PRAGMA {name}");
        store.db.query_row(&query, [], |row| row.get(0)).unwrap()
    };
    pragma("page_count") - pragma("freelist_count")
}
