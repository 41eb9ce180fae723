//! Upgrade tests of journals of earlier versions: each is migrated to the present schema, and keeps its content.

use std::path::Path;

use divvy_api::v1::Runner;
use divvy_core::job::Outcome;
use divvy_core::{Amount, Bytes, Share};

use super::*;
use crate::model::usage::energy::{EnergyReading, EnergySource};

/// What the first version wrote, which every later one wrote as well.
const ROWS: &str = include_str!("upgrade/rows.sql");

/// What versions wrote besides, by the schema that they came with.
const BESIDES: &[(usize, &str)] = &[
    (
        2,
        "INSERT INTO bypass VALUES (2, 'GPU-07070707-0707-0707-0707-070707070707', 0, 4194000, 77, 1767323049500000, \
         1767323049250000, NULL, 'python', 'unlimited', 'not_loaded', 'warn', 1073741824, 0);",
    ),
    (
        3,
        "UPDATE job SET resized = '{\"kind\":\"share\",\"thousandths\":250}' WHERE id = 2; \
         UPDATE holding SET goal_memory = 21474836480, goal_share = 250 WHERE job = 2;",
    ),
    (4, "UPDATE job SET redivided = 'fair' WHERE id = 2;"),
    (
        5,
        "INSERT INTO gpu_mode VALUES ('GPU-07070707-0707-0707-0707-070707070707', 'exclusive', 0);",
    ),
    (
        6,
        "INSERT INTO project VALUES ('vision', 1000, NULL, NULL, NULL, NULL, 0, 0, '[\"ana\"]'); \
         UPDATE job SET terms = '{\"priority\":1,\"retries\":2}', course = '{\"runs\":1}' WHERE id = 2;",
    ),
    (8, "UPDATE job SET uid = 1000, gid = 100 WHERE id = 2;"),
    (
        12,
        "INSERT INTO event (at, job, kind, text) VALUES (1767323048000000, 2, 'uncounted', 'one call');",
    ),
    (
        17,
        "INSERT INTO event (at, job, kind, text) VALUES (1767323049000000, NULL, 'mig_gone', 'an instance'), \
         (1767323049000001, 2, 'memory_due', 'resumed'), (1767323049000002, 2, 'running', 'pid 7');",
    ),
];

/// A journal that every version up to one has worked on.
fn of_version(path: &Path, version: usize) {
    let mut db = Connection::open(path).unwrap();
    for (to, sql) in (1..).zip(MIGRATIONS).take(version) {
        migrate(&mut db, to, sql).unwrap();
        if to == 1 {
            db.execute_batch(ROWS).unwrap();
        }
        for (_, sql) in BESIDES
            .iter()
            .filter(|(with, _)| u32::try_from(*with) == Ok(to))
        {
            db.execute_batch(sql).unwrap();
        }
    }
}

#[test]
fn a_journal_of_every_earlier_version_says_what_it_said() {
    for version in 1..=MIGRATIONS.len() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        of_version(&path, version);
        let store = Store::open(&path).unwrap_or_else(|error| panic!("{version}: {error}"));
        let wrote = |since: usize| version >= since;

        let [runs, waits] = &store.living().unwrap()[..] else {
            panic!("{version}: two have not ended")
        };
        assert_eq!((runs.id, waits.id), (JobId(2), JobId(3)));
        assert_eq!(runs.state.state(), "running");
        assert_eq!(
            runs.state.process().map(|one| (one.pid, one.start_time)),
            Some((4_194_000, 77))
        );
        assert_eq!(runs.allocations[0].grant.memory, Bytes::gib(40));
        assert_eq!(runs.allocations[0].goal.is_some(), wrote(3), "{version}");
        assert_eq!(runs.bypasses.len(), usize::from(wrote(2)), "{version}");
        assert_eq!(runs.redivided.is_some(), wrote(4), "{version}");
        assert_eq!(
            runs.spec.policy.retries,
            if wrote(6) { 2 } else { 0 },
            "{version}"
        );
        assert_eq!(runs.run_state.runs, u32::from(wrote(6)), "{version}");
        assert_eq!(runs.spec.project.as_deref(), Some("vision"));
        let half = Share::from_thousandths(500).unwrap();
        assert_eq!(runs.spec.request.amount, Amount::Share(half));
        assert_eq!(store.env(JobId(2)).unwrap().unwrap()["TOKEN"], "secret");
        assert_eq!(waits.spec.runner, Runner::Client);
        assert_eq!(waits.spec.request.amount, Amount::Memory(Bytes::gib(20)));

        let done = store.job(JobId(1)).unwrap().unwrap();
        assert_eq!(done.state.outcome(), Some(&Outcome::Exited(3)));
        assert_eq!(
            (done.exit_code, done.allocations[0].stats.denied),
            (Some(3), 2)
        );
        assert_eq!(store.setting("cursor").unwrap().as_deref(), Some("1"));
        let name = store.name().unwrap();
        assert!(name.is_some());
        assert_eq!(
            store.began().unwrap(),
            None,
            "{version}: it began before that"
        );
        assert_eq!(store.overhead("A100", "570").unwrap(), Some(314_572_800));
        assert_eq!(store.projects().unwrap().len(), usize::from(wrote(6)));
        assert_eq!(store.modes().unwrap().len(), usize::from(wrote(5)));

        // Energy is divided over what it holds, and begins with the first reading.
        let gpu = &runs.allocations[0].grant.gpu;
        for millijoules in [5, 105] {
            let reading = EnergyReading {
                at: now().as_microsecond(),
                millijoules,
                source: EnergySource::Counter,
                count: String::new(),
            };
            store.divide_energy(gpu, 0, &reading).unwrap();
        }
        assert_eq!(
            store.energy_sums()[gpu.as_str()],
            (105, 100, 100),
            "{version}"
        );

        // And it is written to as any other.
        let mut job = runs.clone();
        job.reason = Some("seen".to_owned());
        store.save(&job).unwrap();
        store.save_allocations(&job).unwrap();
        let again = Store::open(&path).unwrap();
        let seen = again.job(JobId(2)).unwrap().unwrap();
        assert_eq!(seen.reason.as_deref(), Some("seen"));
        assert_eq!(again.name().unwrap(), name);
    }
}

#[test]
fn stored_events_get_the_new_names_of_their_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    of_version(&path, 17);
    let store = Store::open(&path).unwrap();
    let events = events_after(&path, 0, 100, None).unwrap();
    let kinds: Vec<&str> = events.iter().map(|one| one.event.kind.as_str()).collect();
    let new = [
        "uncounted_calls",
        "mig_lost",
        "memory_restore_pending",
        "running",
    ];
    assert_eq!(kinds, [&["submitted", "ended"][..], &new].concat());
    assert!(
        store.has_uncounted_event(JobId(2)).unwrap(),
        "found by its kind"
    );
    assert!(!store.has_uncounted_event(JobId(3)).unwrap());
    let db = Connection::open(&path).unwrap();
    let count = |of: &str| -> u64 {
        let query = format!("SELECT count(*) FROM event WHERE {of}");
        db.query_row(&query, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(
        count("job = 2 AND uid = 1000"),
        3,
        "they count for its owner"
    );
    assert_eq!(
        (count("job IS NULL AND uid IS NULL"), count("act = 1")),
        (1, 0)
    );
}

#[test]
fn a_journal_that_is_killed_half_way_to_the_present_is_brought_there_the_next_time() {
    for (killed_after, next_sql) in MIGRATIONS.iter().enumerate().skip(1) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        of_version(&path, 1);
        {
            let mut db = Connection::open(&path).unwrap();
            for (to, sql) in (1..).zip(MIGRATIONS).take(killed_after).skip(1) {
                migrate(&mut db, to, sql).unwrap();
            }
            // Of the next one everything but its commit.
            let next = db.transaction().unwrap();
            next.execute_batch(next_sql).unwrap();
        }
        let store = Store::open(&path).unwrap_or_else(|error| panic!("{killed_after}: {error}"));
        assert_eq!(store.living().unwrap().len(), 2, "{killed_after}");
    }
}

#[test]
fn a_journal_of_every_earlier_version_knows_its_gpus_by_their_uuids() {
    for version in 1..=MIGRATIONS.len() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        of_version(&path, version);
        let store = Store::open(&path).unwrap();
        let [gpu] = &store.known_gpus().unwrap()[..] else {
            panic!("{version}: one GPU has allocations")
        };
        assert_eq!((gpu.number, &gpu.record), (0, &None), "{version}");
        let moved = crate::model::known_gpu::KnownGpu {
            number: 3,
            ..gpu.clone()
        };
        store.save_known_gpus(&[moved]).unwrap();
        let job = |id| store.job(JobId(id)).unwrap().unwrap();
        let grant = |job: &crate::model::job::Job| {
            let grant = &job.allocations[0].grant;
            (grant.index, grant.label.clone())
        };
        let runs = job(2);
        assert_eq!(
            runs.spec.request.on,
            [3],
            "{version}: asked for GPU 0 of then"
        );
        assert_eq!(grant(&runs), (3, "gpu3.5a".to_owned()), "{version}");
        assert_eq!(runs.state.grants()[0].label, "gpu3.5a", "{version}");
        // An allocation that has ended keeps its label; its index is the GPU's present number.
        assert_eq!(grant(&job(1)), (3, "gpu0.25a".to_owned()), "{version}");
    }
}
