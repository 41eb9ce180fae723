//! Tests of the journal on a real file: committed rows survive any crash, and no foreign file is touched.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::Runner;
use divvy_core::job::{Event, Outcome, Process, ProgramExit};
use divvy_core::mig::Placement;
use divvy_core::reconcile::{BypassKind, BypassPolicy, Limiter};
use divvy_core::resize::ResizeTarget;
use divvy_core::{Amount, Bytes, GpuUuid, Grant, Isolation, MigGrant, QueueName, Share};
use jiff::Timestamp;

use super::*;
use crate::model::bypass::Bypass;
use crate::model::job::{Allocation, AllocationStats, Job, JobSpec, NewJob};
use crate::model::retention::{EventLimits, RetentionLimits};
use crate::model::usage::{Metered, Span};

/// A job of uid 1000's that asks for 4 GiB, as it was submitted.
pub fn new(key: Option<&str>) -> NewJob {
    NewJob {
        spec: JobSpec {
            name: "train".into(),
            user: "me".into(),
            credentials: crate::model::job::Credentials {
                uid: 1000,
                gid: 100,
            },
            project: None,
            queue: QueueName::default_queue(),
            request: Amount::Memory(Bytes::gib(4)).into(),
            runner: Runner::Supervisor,
            command: vec!["python".into(), "train.py".into()],
            container: None,
            cwd: "/work".into(),
            policy: crate::model::policy::JobPolicy::default(),
            secrets: Vec::new(),
        },
        env: BTreeMap::from([("TOKEN".into(), "secret".into())]),
        secrets: BTreeMap::new(),
        key: key.map(str::to_owned),
        at: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
        hold: None,
    }
}

pub(super) fn place(job: &mut Job, label: &str) {
    let grant = Grant {
        gpu: GpuUuid::from_bytes([7; 16]),
        index: 0,
        memory: Bytes::gib(4),
        share: Share::from_thousandths(52).unwrap(),
        label: label.into(),
        mig: None,
    };
    job.state = job
        .state
        .clone()
        .on(Event::Placed(vec![grant.clone()]))
        .unwrap();
    job.allocations = vec![Allocation {
        enforcement: divvy_core::Enforcement::Limiter,
        grant,
        goal: None,
        stats: AllocationStats::default(),
    }];
    job.attempt += 1;
}

/// Every job of the journal, oldest first.
fn every(database: &Path) -> Vec<Job> {
    let db = events::reader(database).unwrap();
    jobs::jobs(&db, "TRUE", []).unwrap()
}

#[test]
fn a_job_is_read_back_as_it_was_at_every_step_of_its_life() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let mut job = store.insert(&new(None)).unwrap();
    assert_eq!(store.living().unwrap(), [job.clone()]);
    assert_eq!(store.env(job.id).unwrap().unwrap()["TOKEN"], "secret");

    place(&mut job, "gpu0.052a");
    store.save_allocations(&job).unwrap();
    store.save(&job).unwrap();
    assert_eq!(
        Store::open(&path).unwrap().living().unwrap(),
        [job.clone()],
        "a second connection sees it"
    );

    job.state = job
        .state
        .on(Event::Spawned(Process {
            pid: 7,
            start_time: 42,
        }))
        .unwrap();
    job.started_at = Some(job.submitted_at);
    store.save(&job).unwrap();
    assert_eq!(store.living().unwrap(), [job.clone()]);

    job.state = job.state.on(Event::Exited(ProgramExit::Exited(3))).unwrap();
    job.ended_at = Some(job.submitted_at);
    job.exit_code = Some(3);
    job.allocations[0].stats = AllocationStats {
        peak: Bytes::gib(3),
        denied: 2,
        last_denied: Some(Bytes::gib(2)),
        mismatch_max: Bytes::mib(6),
    };
    store.release_allocations(&job).unwrap();
    store.save(&job).unwrap();
    assert_eq!(store.living().unwrap(), []);
    assert_eq!(store.job(job.id).unwrap(), Some(job.clone()));
    assert_eq!(store.newest_named("train").unwrap(), Some(job.id));
    assert_eq!(
        (
            store.newest_named("other").unwrap(),
            store.newest().unwrap()
        ),
        (None, Some(job.id))
    );
    assert_eq!(
        store.env(job.id).unwrap(),
        None,
        "an ended job's environment is forgotten"
    );
    assert_eq!(every(&path), [job.clone()]);
    job.state = divvy_core::JobState::Ended {
        outcome: Outcome::Cancelled,
    };
    assert!(
        matches!(store.save(&job), Err(StoreError::Corrupt { .. })),
        "a job ends once"
    );
}

#[test]
fn a_job_on_an_instance_is_read_back_with_its_wish_and_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let mut asked = new(None);
    asked.spec.request.isolation = Isolation::Hardware;
    asked.spec.request.exact = true;
    let mut job = store.insert(&asked).unwrap();
    place(&mut job, "gpu0.1g.5gb+me@3");
    job.allocations[0].grant.mig = Some(MigGrant {
        profile: "1g.5gb+me".parse().unwrap(),
        placement: Placement {
            profile: 20,
            start: 3,
        },
    });
    job.state = divvy_core::JobState::Starting {
        grants: vec![job.allocations[0].grant.clone()],
    };
    store.save_allocations(&job).unwrap();
    store.save(&job).unwrap();
    assert_eq!(Store::open(&path).unwrap().living().unwrap(), [job]);

    asked.spec.request.amount = Amount::Mig("2g.10gb".parse().unwrap());
    let named = store.insert(&asked).unwrap();
    assert_eq!(store.job(named.id).unwrap(), Some(named));
}

#[test]
fn what_a_job_is_resized_to_is_kept_until_it_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    let mut job = store.insert(&new(None)).unwrap();
    job.resized = Some(Amount::Memory(Bytes::gib(2)));
    job.redivided = Some("strict=0.125".parse().unwrap());
    store.save_resized(&job).unwrap();
    assert_eq!(store.living().unwrap(), [job.clone()]);
    assert_eq!(job.request().amount, Amount::Memory(Bytes::gib(2)));
    assert_eq!(job.request().compute.to_string(), "strict=0.125");

    place(&mut job, "gpu0.052a");
    job.allocations[0].goal = Some(ResizeTarget {
        memory: Bytes::gib(2),
        share: Share::from_thousandths(26).unwrap(),
    });
    store.save_allocations(&job).unwrap();
    store.save(&job).unwrap();
    assert_eq!(store.living().unwrap(), [job.clone()]);
    let limits = job.limits();
    assert_eq!(
        (limits[0].memory, limits[0].share.thousandths()),
        (Bytes::gib(2), 26)
    );

    store.release_allocations(&job).unwrap();
    job.allocations[0].goal = None;
    assert_eq!(store.living().unwrap(), [job]);
}

#[test]
fn refusals_are_kept_with_their_job_and_say_what_would_have_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let (first, second) = (
        store.insert(&new(None)).unwrap().id,
        store.insert(&new(None)).unwrap().id,
    );
    let record = |number, sufficient| {
        let denial = divvy_ledger::Denial {
            number,
            requested: sufficient,
            ..divvy_ledger::Denial::default()
        };
        crate::model::oom::to_api(&[denial], &[]).remove(0)
    };
    let records = [record(0, 7), record(u64::MAX, u64::MAX), record(3, 5)];
    store.keep_denials(first, &records).unwrap();
    let kept = store.denials(first).unwrap();
    assert_eq!(
        kept,
        [records[0].clone(), records[2].clone(), records[1].clone()]
    );
    assert!(store.denials(second).unwrap().is_empty());
    let most = Bytes::new(i64::MAX.unsigned_abs());
    assert_eq!(sufficient(&path).unwrap(), BTreeMap::from([(first, most)]));
}

#[test]
fn a_key_submits_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    let first = store.insert(&new(Some("k"))).unwrap();
    assert_eq!(store.with_key("k").unwrap(), Some(first));
    assert_eq!(store.with_key("other").unwrap(), None);
    assert!(store.insert(&new(Some("k"))).is_err());
    store.insert(&new(None)).unwrap();
    store.insert(&new(None)).expect("no key repeats nothing");
}

#[test]
fn two_slices_never_carry_one_label() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    let (mut first, mut second) = (
        store.insert(&new(None)).unwrap(),
        store.insert(&new(None)).unwrap(),
    );
    place(&mut first, "gpu0.052a");
    place(&mut second, "gpu0.052a");
    store.save_allocations(&first).unwrap();
    assert!(store.save_allocations(&second).is_err());
    store.release_allocations(&first).unwrap();
    store
        .save_allocations(&second)
        .expect("given back, the label is free");
}

#[test]
fn what_was_not_committed_is_gone_and_what_was_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    store.begin().unwrap();
    store.insert(&new(None)).unwrap();
    store
        .append_event(Timestamp::now(), None, "submitted", "one")
        .unwrap();
    store.commit().unwrap();
    store.begin().unwrap();
    store.insert(&new(None)).unwrap();
    // What a kill leaves: the files as they are, without the connection's clean end.
    let after = dir.path().join("after");
    std::fs::create_dir(&after).unwrap();
    for file in ["state.db", "state.db-wal"] {
        std::fs::copy(dir.path().join(file), after.join(file)).unwrap();
    }
    let wal = after.join("state.db-wal");
    let torn = std::fs::OpenOptions::new().write(true).open(&wal).unwrap();
    let length = torn.metadata().unwrap().len();
    let restarted = Store::open(&after.join("state.db")).unwrap();
    assert_eq!(restarted.living().unwrap().len(), 1);
    assert_eq!(
        events::events_after(&after.join("state.db"), 0, 10, None)
            .unwrap()
            .len(),
        1
    );
    drop(restarted);

    // A write torn in the middle of the last transaction takes that transaction and no other.
    for file in ["state.db", "state.db-wal"] {
        std::fs::copy(dir.path().join(file), after.join(file)).unwrap();
    }
    torn.set_len(length - 100).unwrap();
    Store::open(&after.join("state.db"))
        .unwrap()
        .living()
        .expect("a torn journal is repaired");
}

#[test]
fn a_file_of_a_newer_divvy_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    drop(Store::open(&path).unwrap());
    Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(
        matches!(error, StoreError::Newer { found: 99, .. }),
        "{error}"
    );
    let named = format!("a newer divvy ({}) wrote", divvy_api::version::program());
    assert!(error.to_string().contains(&named), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_no_database_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    std::fs::write(
        &path,
        "this is a text file, long enough to have no database header at all",
    )
    .unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(error.to_string().contains("state.db"), "{error}");
}

#[test]
fn a_state_without_what_belongs_to_it_is_called_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    store.insert(&new(None)).unwrap();
    store
        .db
        .execute("UPDATE job SET state = 'running'", [])
        .unwrap();
    assert!(matches!(store.living(), Err(StoreError::Corrupt { .. })));
    assert!(
        store
            .db
            .execute("UPDATE job SET state = 'lost'", [])
            .is_err(),
        "a state that there is not"
    );
}

#[test]
fn settings_and_overheads_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    assert_eq!(store.setting("cursor").unwrap(), None);
    store.set_setting("cursor", "1").unwrap();
    store.set_setting("cursor", "2").unwrap();
    assert_eq!(store.setting("cursor").unwrap().as_deref(), Some("2"));
    assert_eq!(store.overhead("A100", "570.1").unwrap(), None);
    store.set_overhead("A100", "570.1", 440 << 20).unwrap();
    assert_eq!(store.overhead("A100", "570.1").unwrap(), Some(440 << 20));
    assert_eq!(
        store.overhead("A100", "580.1").unwrap(),
        None,
        "another driver costs something else"
    );
}

#[test]
fn figures_beyond_the_databases_integers_stop_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let mut job = store.insert(&new(None)).unwrap();
    place(&mut job, "gpu0.052a");
    store.save_allocations(&job).unwrap();
    store.save(&job).unwrap();
    job.allocations[0].stats = AllocationStats {
        peak: Bytes::new(u64::MAX),
        denied: u64::MAX,
        last_denied: Some(Bytes::new(u64::MAX)),
        mismatch_max: Bytes::new(u64::MAX),
    };
    store.release_allocations(&job).unwrap();
    let most = i64::MAX.unsigned_abs();
    let read = store.job(job.id).unwrap().unwrap();
    assert_eq!(
        read.allocations[0].stats,
        AllocationStats {
            peak: Bytes::new(most),
            denied: most,
            last_denied: Some(Bytes::new(most)),
            mismatch_max: Bytes::new(most),
        }
    );
    for id in [most, most + 1, u64::MAX] {
        assert_eq!(store.job(JobId(id)).unwrap(), None);
    }
    assert!(events_after(&path, u64::MAX, 1, None).unwrap().is_empty());
}

#[test]
fn a_journal_knows_when_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let before = crate::host::clock::now().as_second();
    let began = Store::open(&path).unwrap().began().unwrap();
    let after = crate::host::clock::now().as_second();
    assert!(began.is_some_and(|began| (before..=after).contains(&began)));
    assert_eq!(Store::open(&path).unwrap().began().unwrap(), began);
}

#[test]
fn a_new_journal_gives_no_number_whose_folder_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    let folders = dir.path().join("jobs");
    let both = [folders.clone(), dir.path().join("slices")];
    store.number_after(&both).unwrap();
    assert_eq!(store.insert(&new(None)).unwrap().id, JobId(1));
    for name in ["7", "12", "notes", "99999999999999999999"] {
        std::fs::create_dir_all(folders.join(name)).unwrap();
    }
    for id in [13, 14] {
        store.number_after(&both).unwrap();
        assert_eq!(store.insert(&new(None)).unwrap().id, JobId(id));
    }
    std::fs::create_dir_all(both[1].join("20")).unwrap();
    store.number_after(&both).unwrap();
    assert_eq!(store.insert(&new(None)).unwrap().id, JobId(21));
}

#[test]
fn bypasses_come_back_with_their_job_and_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let mut job = store.insert(&new(None)).unwrap();
    let other = store.insert(&new(None)).unwrap();
    let bypass = |pid, way, used| Bypass {
        gpu: GpuUuid::from_bytes([9; 16]),
        gpu_index: 1,
        process: crate::host::process::Process {
            pid,
            start_time: u64::from(pid),
        },
        program: "python3".into(),
        way,
        limiter: Limiter::NotLoaded,
        used,
        charged: Bytes::mib(1),
        first_seen: job.submitted_at,
        detected: job.submitted_at,
        over: None,
        action: BypassPolicy::Deny,
    };
    let mut known = bypass(7, BypassKind::Unlimited, Some(Bytes::gib(2)));
    let unknown = bypass(8, BypassKind::OtherGpu, None);
    for bypass in [&known, &unknown] {
        store.add_bypass(job.id, bypass).unwrap();
    }
    assert!(
        store.add_bypass(job.id, &known).is_err(),
        "told once, stored once"
    );
    known.over = Some(job.submitted_at);
    known.used = Some(Bytes::new(u64::MAX));
    store.save_bypass(job.id, &known).unwrap();
    known.used = Some(Bytes::new(i64::MAX.unsigned_abs()));
    job.bypasses = vec![known, unknown];
    assert_eq!(store.job(job.id).unwrap(), Some(job.clone()));
    assert_eq!(every(&path), [job, other]);
    assert_eq!(store.bypass_counts().unwrap(), [1, 1, 0, 0, 0]);
}

/// What was counted of a job, in order: share, length in microseconds, whether it was suspended, what was measured.
fn counted(path: &Path, until: Timestamp) -> Vec<(u16, i64, bool, u64)> {
    let mut spans = Vec::new();
    usage_between(path, (Timestamp::UNIX_EPOCH, until), None, |row| {
        spans.extend(row.span())
    })
    .unwrap();
    spans.sort_by_key(|span| span.began);
    for pair in spans.windows(2) {
        assert_eq!(
            pair[0].ended, pair[1].began,
            "nothing is lost or counted twice"
        );
    }
    let figures = |span: &Span| {
        (
            span.share,
            span.ended - span.began,
            span.suspended,
            span.metered.used,
        )
    };
    spans.iter().map(figures).collect()
}

#[test]
fn what_was_held_is_counted_through_every_change_and_when_it_ended_by_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let mut job = store.insert(&new(None)).unwrap();
    assert_eq!(counted(&path, Timestamp::now()), []);
    place(&mut job, "gpu0.052a");
    store.save_allocations(&job).unwrap();
    store.save(&job).unwrap();
    let used = Metered {
        micros: 10,
        used: 7000,
        loaned: 0,
    };
    store.add_metered(job.id, &[used], &[]).unwrap();
    store.add_metered(job.id, &[used], &[]).unwrap();
    let open = counted(&path, Timestamp::now());
    assert!(matches!(open[..], [(52, 1.., false, 14_000)]), "{open:?}");

    job.allocations[0].grant.share = Share::from_thousandths(500).unwrap();
    store.save_allocations(&job).unwrap();
    job.run_state.suspended = true;
    store.split_usage(&job, crate::host::clock::now()).unwrap();
    let three = counted(&path, Timestamp::now());
    assert_eq!(
        three.iter().map(|one| (one.0, one.2)).collect::<Vec<_>>(),
        [(52, false), (500, false), (500, true)]
    );
    // Another daemon finds that it ended before the first observation.
    drop(store);
    let store = Store::open(&path).unwrap();
    let end = crate::host::clock::now();
    job.state = divvy_core::JobState::Ended {
        outcome: Outcome::Cancelled,
    };
    job.ended_at = Some(end);
    store.release_allocations(&job).unwrap();
    store.save(&job).unwrap();
    let all = counted(&path, Timestamp::MAX);
    assert_eq!(all.len(), 3);
    let mut spans = Vec::new();
    let window = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
    usage_between(&path, window, Some(1000), |row| spans.extend(row.span())).unwrap();
    assert_eq!(
        spans.iter().map(|span| span.ended).max(),
        Some(end.as_microsecond())
    );
    assert_eq!(
        (spans[0].owner.user.as_str(), spans[0].memory),
        ("me", 4 << 30)
    );
    usage_between(&path, window, Some(1001), |_| panic!("it is another's")).unwrap();
    // Given back once.
    store.release_allocations(&job).unwrap();
    assert_eq!(counted(&path, Timestamp::MAX), all);
}

#[test]
fn a_clock_that_was_set_back_counts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let mut job = store.insert(&new(None)).unwrap();
    place(&mut job, "gpu0.052a");
    store.save_allocations(&job).unwrap();
    store.save(&job).unwrap();
    job.ended_at = Some(job.submitted_at);
    store.release_allocations(&job).unwrap();
    assert_eq!(counted(&path, Timestamp::MAX), []);
}

#[test]
fn an_older_journal_says_what_it_knows_of_usage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let mut db = Connection::open(&path).unwrap();
    for (to, sql) in (1..).zip(&MIGRATIONS[..8]) {
        migrate(&mut db, to, sql).unwrap();
    }
    let rows = "INSERT INTO job (id, name, user, queue, amount, compute, gpus_on, runner, command, cwd, state, submitted_at, \
                started_at, ended_at, outcome) VALUES \
                (1, 'old', 'me', 'default', '{}', 'fair', '[]', 'supervisor', '[]', '/', 'ended', 10, 1000000, 4000000, '{}'), \
                (2, 'new', 'me', 'default', '{}', 'fair', '[]', 'supervisor', '[]', '/', 'running', 10, 2000000, NULL, NULL); \
                INSERT INTO holding (job, ordinal, gpu_uuid, gpu_index, memory, share, label, held) VALUES \
                (1, 0, 'GPU-1', 0, 1024, 250, 'a', 0), (2, 0, 'GPU-1', 0, 1024, 500, 'b', 1)";
    db.execute_batch(rows).unwrap();
    drop(db);
    drop(Store::open(&path).unwrap());
    let mut found = Vec::new();
    let window = (
        Timestamp::UNIX_EPOCH,
        "1970-01-01T00:00:10Z".parse().unwrap(),
    );
    usage_between(&path, window, None, |row| {
        let span = row.span().unwrap();
        found.push((span.owner.job.0, span.share, span.began, span.ended));
    })
    .unwrap();
    assert_eq!(
        found,
        [
            (1, 250, 1_000_000, 4_000_000),
            (2, 500, 2_000_000, 10_000_000)
        ]
    );
}

/// An ended job that ended at this second, with a key or without.
fn ended_at(store: &Store, second: i64, key: Option<&str>) -> JobId {
    ended(store, second, new(key))
}

/// The same of this user.
pub fn ended_of(store: &Store, uid: u32, second: i64) -> JobId {
    let mut job = new(None);
    job.spec.credentials.uid = uid;
    ended(store, second, job)
}

fn ended(store: &Store, second: i64, new: NewJob) -> JobId {
    let mut job = store.insert(&new).unwrap();
    let label = format!("gpu0.052-{}", job.id);
    place(&mut job, &label);
    store.save_allocations(&job).unwrap();
    let at = Timestamp::from_second(second).unwrap();
    store.append_event(at, Some(job.id), "ended", "").unwrap();
    job.state = divvy_core::JobState::Ended {
        outcome: Outcome::Cancelled,
    };
    job.ended_at = Some(at);
    store.release_allocations(&job).unwrap();
    store.save(&job).unwrap();
    job.id
}

/// Nothing is beyond it.
fn all() -> RetentionLimits {
    RetentionLimits {
        ended: Timestamp::MIN,
        young: Timestamp::MAX,
        most: u32::MAX,
        most_young: u32::MAX,
        texts: u64::MAX,
        keys: Timestamp::MAX,
    }
}

fn expired_jobs(path: &Path, beyond: RetentionLimits) -> Vec<JobId> {
    jobs_beyond(path, &cuts(path, beyond).unwrap(), beyond.keys, 100).unwrap()
}

#[test]
fn jobs_beyond_age_or_number_are_found_except_dependencies_and_valid_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let ids: Vec<JobId> = [1000, 2000, 3000, 4000]
        .map(|second| ended_at(&store, second, None))
        .to_vec();
    let keyed = ended_at(&store, 2500, Some("k"));
    let mut follows = new(None);
    follows.spec.policy.after = vec![crate::model::policy::Dependency {
        job: ids[1],
        ok: false,
        of: Default::default(),
    }];
    store.insert(&follows).unwrap();
    let time = |second| Timestamp::from_second(second).unwrap();
    let expired = |ended, most, keys| {
        let beyond = RetentionLimits {
            ended: time(ended),
            most,
            keys: time(keys),
            ..all()
        };
        expired_jobs(&path, beyond)
    };
    assert_eq!(expired(500, 10, 9000), []);
    assert_eq!(expired(3500, 10, 9000), [ids[0], keyed, ids[2]], "by age");
    assert_eq!(expired(3500, 10, 2000), [ids[0], ids[2]], "the key counts");
    assert_eq!(expired(500, 2, 9000), [ids[0], keyed], "by number");
    assert_eq!(expired(500, 0, 9000), [ids[0], keyed, ids[2], ids[3]]);
    store.forget_jobs(&[ids[0], ids[3], JobId(999)]).unwrap();
    let left: Vec<JobId> = every(&path).iter().map(|job| job.id).collect();
    assert_eq!(left, [ids[1], ids[2], keyed, JobId(6)]);
    let living = JobId(6);
    store.forget_jobs(&[living]).unwrap();
    assert!(store.job(living).unwrap().is_some(), "it lives");
}

#[test]
fn one_users_many_jobs_push_out_only_their_own_and_none_before_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let time = |second| Timestamp::from_second(second).unwrap();
    let (quiet, busy) = (1001, 1002);
    let mine: Vec<JobId> = (0..2).map(|at| ended_of(&store, quiet, at)).collect();
    let theirs: Vec<JobId> = (0..20).map(|at| ended_of(&store, busy, 100 + at)).collect();
    let beyond = RetentionLimits {
        most: 4,
        most_young: 10,
        young: time(0),
        ..all()
    };
    assert_eq!(
        expired_jobs(&path, beyond),
        theirs[..10],
        "more than are kept of the youngest"
    );
    let older = RetentionLimits {
        young: time(114),
        ..beyond
    };
    assert_eq!(
        expired_jobs(&path, older),
        theirs[..14],
        "jobs of before the day"
    );
    let all_older = RetentionLimits {
        young: Timestamp::MAX,
        ..beyond
    };
    assert_eq!(
        expired_jobs(&path, all_older),
        theirs[..16],
        "but the newest four"
    );
    let aged = RetentionLimits {
        ended: time(1),
        ..all()
    };
    assert_eq!(expired_jobs(&path, aged), mine[..1], "age counts for all");
    assert_eq!(overfull(&path, beyond).unwrap(), BTreeSet::from([busy]));
    store.forget_jobs(&theirs[..10]).unwrap();
    assert_eq!(expired_jobs(&path, beyond), []);
    assert_eq!(overfull(&path, beyond).unwrap(), BTreeSet::new());
    let listed = ended_jobs(&path).unwrap();
    let newest = theirs.iter().skip(10).rev().map(|id| (Some(busy), *id));
    let expected: Vec<_> = newest
        .chain([(Some(quiet), mine[1]), (Some(quiet), mine[0])])
        .collect();
    assert_eq!(listed, expected);
}

#[test]
fn a_users_ended_jobs_have_so_many_bytes_of_texts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let mut large = new(None);
    large.spec.command = vec!["x".repeat(1000)];
    // What goes when it ends does not count.
    large.env.insert("A".into(), "x".repeat(100_000));
    let texts = crate::model::validate::budget::ended_job_size(&large.spec);
    assert!((1000..1500).contains(&texts), "{texts}");
    let ids: Vec<JobId> = (1..=10)
        .map(|at| ended(&store, at, large.clone()))
        .collect();
    let beyond = RetentionLimits {
        texts: 6 * texts,
        ..all()
    };
    assert_eq!(expired_jobs(&path, beyond), ids[..4]);
    assert_eq!(overfull(&path, beyond).unwrap(), BTreeSet::from([1000]));
    // A job with a key that counts stays, and its user is known to have too many.
    let keyed = NewJob {
        key: Some("k".into()),
        ..large
    };
    let keyed = ended(&store, 0, keyed);
    let young_keys = RetentionLimits {
        keys: Timestamp::MIN,
        ..beyond
    };
    assert_eq!(expired_jobs(&path, young_keys), ids[..4]);
    store.forget_jobs(&ids[..4]).unwrap();
    assert_eq!(expired_jobs(&path, young_keys), []);
    assert_eq!(overfull(&path, young_keys).unwrap(), BTreeSet::from([1000]));
    assert_eq!(expired_jobs(&path, beyond), [keyed]);
}

#[test]
fn history_is_looked_through_in_indexes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    for query in [past::USERS, past::NEWEST, past::ENDED, past::USAGES] {
        let mut plan = store
            .db
            .prepare(&format!("EXPLAIN QUERY PLAN {query}"))
            .unwrap();
        let values = std::iter::repeat_n(1, plan.parameter_count());
        let steps = plan.query_map(rusqlite::params_from_iter(values), |row| {
            row.get::<_, String>(3)
        });
        let steps: Vec<String> = steps.unwrap().map(Result::unwrap).collect();
        assert!(
            steps
                .iter()
                .all(|step| step.contains("USING COVERING INDEX")),
            "{query}: {steps:?}"
        );
    }
}

#[test]
fn one_users_usage_pushes_out_only_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let later = jiff::Timestamp::now().as_second() + 60;
    for uid in [1001, 1002, 1002, 1001, 1002, 1002, 1002] {
        ended_of(&store, uid, later);
    }
    let rows = |uid| {
        let mut rows = 0;
        let window = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        usage_between(&path, window, Some(uid), |_| rows += 1).unwrap();
        rows
    };
    assert_eq!((rows(1001), rows(1002)), (2, 5));
    let mut steps = 0;
    loop {
        let users = usages_beyond(&path, 2, 2).unwrap();
        if users.is_empty() {
            break;
        }
        for user in users {
            store.forget_usage_of(user).unwrap();
        }
        steps += 1;
    }
    assert_eq!((rows(1001), rows(1002), steps), (2, 2, 2));
}

#[test]
fn bypasses_that_are_forgotten_with_their_jobs_were_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    for round in 1..=2 {
        let id = ended_at(&store, 1000 + round, None);
        let bypass = Bypass {
            gpu: GpuUuid::from_bytes([9; 16]),
            gpu_index: 1,
            process: crate::host::process::Process {
                pid: 7,
                start_time: 7,
            },
            program: "python3".into(),
            way: BypassKind::OtherGpu,
            limiter: Limiter::NotLoaded,
            used: None,
            charged: Bytes::ZERO,
            first_seen: Timestamp::UNIX_EPOCH,
            detected: Timestamp::UNIX_EPOCH,
            over: None,
            action: BypassPolicy::Deny,
        };
        store.add_bypass(id, &bypass).unwrap();
        store.forget_jobs(&[id]).unwrap();
        let counts = store.bypass_counts().unwrap();
        assert_eq!(counts.iter().sum::<u64>(), round.unsigned_abs());
    }
}

#[test]
fn usage_goes_in_steps_and_numbers_of_deleted_events_are_never_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let time = |second| Timestamp::from_second(second).unwrap();
    for second in 1..=10 {
        store.append_event(time(second), None, "x", "").unwrap();
    }
    assert_eq!(events_forgotten(&path).unwrap(), 0);
    let limits = |before| EventLimits {
        before,
        acts_before: before,
        young: Timestamp::MAX,
        most: 10,
        most_young: 10,
        bytes: u64::MAX,
    };
    let mut counts = EventCounts::default();
    counts.count(&path).unwrap();
    assert_eq!(counts.expired(&path, &limits(time(1)), 100).unwrap(), None);
    let mut prune = |before, rows| {
        let expired = counts.expired(&path, &limits(before), rows).unwrap();
        let expired = expired.expect("some may go");
        store.forget_events(&expired).unwrap();
        counts.remove(&expired);
        events_forgotten(&path).unwrap()
    };
    assert_eq!(prune(time(8), 3), 3);
    assert_eq!(prune(time(8), 100), 7);
    let left = events_after(&path, 0, 100, None).unwrap();
    let left: Vec<u64> = left.iter().map(|one| one.event.seq).collect();
    assert_eq!(left, [8, 9, 10]);
    assert_eq!(prune(Timestamp::MAX, 100), 10);
    let next = store.append_event(time(11), None, "x", "").unwrap();
    assert_eq!(next.seq, 11, "numbers go on");

    ended_at(&store, jiff::Timestamp::now().as_second() + 60, None);
    assert_eq!(usage_beyond(&path, Timestamp::UNIX_EPOCH, 9).unwrap(), None);
    let step = usage_beyond(&path, Timestamp::MAX, 9).unwrap().unwrap();
    store.forget_usage(step).unwrap();
    assert_eq!(usage_beyond(&path, Timestamp::MAX, 9).unwrap(), None);
}

/// Jobs of an array as they are submitted, the first with this key.
fn array(store: &Store, name: &str, indices: &[u32], key: Option<&str>) -> Vec<JobId> {
    let mut first = None;
    let mut jobs = Vec::new();
    for index in indices {
        let mut task = new(key.filter(|_| first.is_none()));
        task.spec.name = format!("{name}[{index}]");
        task.spec.policy.array = Some(crate::model::policy::ArrayTask {
            array: first,
            index: *index,
            most: None,
            count: u32::try_from(indices.len()).ok(),
        });
        let id = store.insert(&task).unwrap().id;
        first.get_or_insert(id);
        jobs.push(id);
    }
    jobs
}

/// Ends a job with this exit code.
fn exits(store: &Store, id: JobId, code: i32) {
    let mut job = store.job(id).unwrap().unwrap();
    job.place(Vec::new());
    job.apply_event(Event::Spawned(Process {
        pid: 1,
        start_time: 1,
    }));
    job.apply_event(Event::Exited(ProgramExit::Exited(code)));
    (job.exit_code, job.ended_at) = (Some(code), Some(Timestamp::UNIX_EPOCH));
    store.save(&job).unwrap();
}

#[test]
fn an_array_is_found_by_number_name_and_index_also_without_its_first_job() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).unwrap();
    let alone = store.insert(&new(None)).unwrap().id;
    let jobs = array(&store, "sweep", &[5, 3, 9], None);
    let other = array(&store, "sweep[3]", &[0, 1], None);
    let first = |array| {
        let kept = store.first_of_array(array).unwrap();
        kept.map(|(job, _)| job.id)
    };
    assert_eq!(first(jobs[0]), Some(jobs[0]));
    for none in [alone, jobs[1], JobId(99), JobId(u64::MAX)] {
        assert_eq!(first(none), None, "{none}");
    }
    let task = |index| store.task_of_array(jobs[0], index).unwrap();
    assert_eq!(
        (task(9), task(5), task(0)),
        (Some(jobs[2]), Some(jobs[0]), None)
    );
    let named = |name| store.newest_array_named(name).unwrap();
    assert_eq!(named("sweep"), Some(jobs[0]));
    assert_eq!(named("sweep[3]"), Some(other[0]));
    assert_eq!((named("swee"), named("job")), (None, None));
    let extent = store.extent_of_array(jobs[0]).unwrap();
    assert_eq!(extent, Some((3, 9, jobs[2])));

    exits(&store, jobs[0], 0);
    exits(&store, jobs[2], 7);
    let ends = store.ends_of_array(jobs[0]).unwrap();
    assert_eq!((ends.ended, ends.badly), (2, Some(jobs[2])));
    assert_eq!(store.verdict_of_array(jobs[0]).unwrap(), Some(jobs[2]));
    exits(&store, jobs[1], 4);
    assert_eq!(store.verdict_of_array(jobs[0]).unwrap(), Some(jobs[1]));

    store.forget_jobs(&[jobs[0]]).unwrap();
    assert_eq!(first(jobs[0]), Some(jobs[1]));
    assert_eq!((task(9), task(5)), (Some(jobs[2]), None));
    assert_eq!(named("sweep"), Some(jobs[0]));
    let ended = arrays::ended_of_array(&dir.path().join("state.db"), jobs[0]).unwrap();
    let ended: Vec<JobId> = ended.iter().map(|job| job.id).collect();
    assert_eq!(ended, jobs[1..]);
}

#[test]
fn what_a_living_job_runs_after_is_kept_and_so_is_the_first_of_its_array() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let store = Store::open(&path).unwrap();
    let beyond = || {
        let beyond = RetentionLimits {
            ended: Timestamp::MAX,
            ..all()
        };
        let mut found = expired_jobs(&path, beyond);
        found.sort_unstable();
        found
    };
    let before = array(&store, "before", &[0, 1, 2], None);
    let running = array(&store, "running", &[0, 1], None);
    let over = array(&store, "over", &[0, 1], None);
    for id in before.iter().chain(&running[..1]).chain(&over) {
        exits(&store, *id, 0);
    }
    let mut follows = new(None);
    follows.spec.policy.after = vec![crate::model::policy::Dependency {
        job: before[0],
        ok: true,
        of: crate::model::policy::Of::Array(3),
    }];
    let follows = store.insert(&follows).unwrap().id;
    assert_eq!(beyond(), over);
    exits(&store, follows, 0);
    exits(&store, running[1], 0);
    assert_eq!(beyond().len(), 8, "nobody needs them any more");
}
