//! The energy accounts: each GPU's energy since the first reading, divided over the rows of usage and the idle rows.
//!
//! ```text
//! reading ──► increment since the last one ──► open holdings, rows that ended since, and the idle row: one transaction
//! ```
//! At any commit the energy of all rows ever written and of the idle rows is that of the GPU (`counted`), to the
//! millijoule. The energy of a time without a daemon goes to the jobs that held the GPU by the journal.

use std::collections::BTreeMap;

use divvy_core::{GpuUuid, JobId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::usage::MOST;
use super::{Store, StoreError, rows, sql};
use crate::host::clock::now;
use crate::model::usage::energy::{EnergyReading, EnergySource, HeldStretch, IdleEnergy, divide};
use crate::model::usage::{GpuEnergySums, GpuTime, OTHER};

/// The longest idle row, in microseconds: an hour, as of usage.
const IDLE_ROW_US: i64 = 3600 * 1_000_000;

/// Columns that [`idle`] reads, in its order.
pub(super) const IDLE_COLUMNS: &str = "gpu_uuid, gpu_index, began, ended, energy, estimated";

/// Energy in millijoules, and the part of it that is an estimate.
#[derive(Clone, Copy)]
struct Energy {
    all: u64,
    estimated: u64,
}

impl Energy {
    fn of(all: u64, is_estimate: bool) -> Self {
        let estimated = if is_estimate { all } else { 0 };
        Self { all, estimated }
    }
}

/// A row that a part goes to.
struct Receiver {
    /// It holds the GPU still.
    is_open: bool,
    job: JobId,
    /// Its position in the job's holdings, or its id.
    place: i64,
    user: String,
    project: Option<String>,
    is_mig: bool,
    held: HeldStretch,
}

impl Store {
    /// Divides what a GPU drew since its last reading. Returns the parts of jobs that hold it still. The first reading
    /// counts nothing: it is where counting begins.
    pub fn divide_energy(
        &self,
        gpu: &GpuUuid,
        index: u32,
        reading: &EnergyReading,
    ) -> Result<Vec<(JobId, u64)>, StoreError> {
        let divide = || match self.last_reading(gpu.as_str())? {
            Some(last) if last != *reading => {
                self.add_increment(gpu.as_str(), index, &last, reading)
            }
            last => {
                if last.is_none() {
                    self.save_reading(gpu.as_str(), reading)?;
                }
                Ok(Vec::new())
            }
        };
        divide().map_err(sql("store the energy of a GPU"))
    }

    fn last_reading(&self, gpu: &str) -> rusqlite::Result<Option<EnergyReading>> {
        let mut query = self.db.prepare_cached(
            "SELECT at, millijoules, source, count FROM energy WHERE gpu_uuid = ?1",
        )?;
        let last = query.query_row([gpu], |row| {
            Ok(EnergyReading {
                at: row.get(0)?,
                millijoules: row.get(1)?,
                source: EnergySource::from_name(row.get_ref(2)?.as_str()?)
                    .unwrap_or(EnergySource::Counter),
                count: row.get(3)?,
            })
        });
        last.optional()
    }

    fn save_reading(&self, gpu: &str, reading: &EnergyReading) -> rusqlite::Result<()> {
        let mut save = self.db.prepare_cached(
            "INSERT INTO energy (gpu_uuid, at, millijoules, source, count) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (gpu_uuid) DO UPDATE SET at = excluded.at, millijoules = excluded.millijoules, \
             source = excluded.source, count = excluded.count",
        )?;
        let millijoules = rows::figure(reading.millijoules);
        let EnergyReading { at, count, .. } = reading;
        save.execute(params![gpu, at, millijoules, reading.source.name(), count])
            .map(drop)
    }

    fn add_increment(
        &self,
        gpu: &str,
        index: u32,
        last: &EnergyReading,
        reading: &EnergyReading,
    ) -> rusqlite::Result<Vec<(JobId, u64)>> {
        let receivers = self.receivers(gpu, last.at)?;
        let held: Vec<HeldStretch> = receivers.iter().map(|one| one.held).collect();
        let increment = reading.since(last).min(MOST);
        let (parts, idle) = divide(increment, (last.at, reading.at), &held);
        let is_estimate = reading.source == EnergySource::Power;
        let mut given = Vec::new();
        for (to, part) in receivers.into_iter().zip(parts) {
            let energy = Energy::of(part, is_estimate || to.is_mig);
            let (table, key) = if to.is_open {
                ("holding", "ordinal")
            } else {
                ("usage", "id")
            };
            let mut add = self.db.prepare_cached(&format!(
                "UPDATE {table} SET energy = energy + ?3, estimated = estimated + ?4, lent = 0 \
                 WHERE job = ?1 AND {key} = ?2",
            ))?;
            let [all, estimated] = [energy.all, energy.estimated].map(rows::figure);
            add.execute(params![to.job.0, to.place, all, estimated])?;
            let time = GpuTime {
                millijoules: part,
                ..GpuTime::default()
            };
            self.add_to_total("user", &to.user, time)?;
            self.add_to_total("project", &to.project.unwrap_or_default(), time)?;
            if to.is_open {
                given.push((to.job, part));
            }
        }
        let times = (last.at.min(reading.at), reading.at);
        self.add_idle(gpu, Some(index), times, Energy::of(idle, is_estimate))?;
        self.add_counted(gpu, increment, idle)?;
        self.save_reading(gpu, reading)?;
        Ok(given)
    }

    /// What held a part of the GPU after `since`.
    fn receivers(&self, gpu: &str, since: i64) -> rusqlite::Result<Vec<Receiver>> {
        let mut all = Vec::new();
        for (is_open, query) in [
            (
                true,
                "SELECT h.job, h.ordinal, j.user, j.project, h.mig IS NOT NULL, h.share, h.since, NULL, h.lent \
                 FROM holding h JOIN job j ON j.id = h.job WHERE h.held = 1 AND h.gpu_uuid = ?1 AND ?2 IS NOT NULL",
            ),
            (
                false,
                "SELECT job, id, user, project, mig, share, began, ended, lent FROM usage \
                 WHERE ended > ?2 AND gpu_uuid = ?1",
            ),
        ] {
            let mut query = self.db.prepare_cached(query)?;
            let found = query.query_map(params![gpu, since], |row| {
                Ok(Receiver {
                    is_open,
                    job: JobId(row.get(0)?),
                    place: row.get(1)?,
                    user: row.get(2)?,
                    project: row.get(3)?,
                    is_mig: row.get(4)?,
                    held: HeldStretch {
                        share: row.get(5)?,
                        began: row.get(6)?,
                        ended: row.get::<_, Option<_>>(7)?.unwrap_or(i64::MAX),
                        lent: row.get(8)?,
                    },
                })
            })?;
            all.extend(found.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        Ok(all)
    }

    fn add_counted(&self, gpu: &str, counted: u64, idle: u64) -> rusqlite::Result<()> {
        let mut add = self.db.prepare_cached(
            "UPDATE energy SET counted = min(counted + ?2, ?4), idle = min(idle + ?3, ?4) WHERE gpu_uuid = ?1",
        )?;
        let [counted, idle, most] = [counted, idle, MOST].map(rows::figure);
        add.execute(params![gpu, counted, idle, most]).map(drop)
    }

    /// Adds to the GPU's last idle row, if that stays an hour at most, or begins one.
    fn add_idle(
        &self,
        gpu: &str,
        index: Option<u32>,
        (began, ended): (i64, i64),
        energy: Energy,
    ) -> rusqlite::Result<()> {
        let [all, estimated] = [energy.all, energy.estimated].map(rows::figure);
        if all == 0 {
            return Ok(());
        }
        let mut extend = self.db.prepare_cached(
            "UPDATE idle_energy SET ended = max(ended, ?2), energy = energy + ?3, estimated = estimated + ?4 \
             WHERE id = (SELECT max(id) FROM idle_energy WHERE gpu_uuid = ?1) AND began >= ?2 - ?5 AND began <= ?2",
        )?;
        if extend.execute(params![gpu, ended, all, estimated, IDLE_ROW_US])? > 0 {
            return Ok(());
        }
        let mut insert = self.db.prepare_cached(
            "INSERT INTO idle_energy (gpu_uuid, gpu_index, began, ended, energy, estimated) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        // A time without length lies in no report.
        let ended = ended.max(began.saturating_add(1));
        insert
            .execute(params![
                gpu,
                index.unwrap_or(0),
                began,
                ended,
                all,
                estimated
            ])
            .map(drop)
    }

    /// Gives the energy of rows that are about to go to the idle line: `which` of a table, with this job as `?1`.
    pub(super) fn return_energy(
        &self,
        job: JobId,
        which: &str,
        until: i64,
    ) -> rusqlite::Result<()> {
        let mut find = self.db.prepare_cached(&format!(
            "SELECT one.gpu_uuid, one.gpu_index, one.energy, one.estimated, j.user, j.project \
             FROM {which} AND one.energy > 0"
        ))?;
        let mut found = find.query(params![job.0, until])?;
        while let Some(row) = found.next()? {
            let gpu: String = row.get(0)?;
            let (all, estimated): (u64, u64) = (row.get(2)?, row.get(3)?);
            let at = now().as_microsecond();
            self.add_idle(&gpu, row.get(1)?, (at, at), Energy { all, estimated })?;
            self.add_counted(&gpu, 0, all)?;
            let project: Option<String> = row.get(5)?;
            for (kind, name) in [
                ("user", row.get(4)?),
                ("project", project.unwrap_or_default()),
            ] {
                self.take_from_total(kind, &name, all)?;
            }
        }
        Ok(())
    }

    fn take_from_total(&self, kind: &str, name: &str, energy: u64) -> rusqlite::Result<()> {
        let mut take = self.db.prepare_cached(
            "UPDATE usage_total SET energy = max(energy - ?3, 0) WHERE kind = ?1 AND name = \
             iif(EXISTS (SELECT 1 FROM usage_total WHERE kind = ?1 AND name = ?2), ?2, ?4)",
        )?;
        take.execute(params![kind, name, rows::figure(energy), OTHER])
            .map(drop)
    }
}

/// Reads an idle row of [`IDLE_COLUMNS`].
pub(super) fn idle(row: &Row<'_>) -> rusqlite::Result<IdleEnergy> {
    Ok(IdleEnergy {
        gpu_uuid: row.get(0)?,
        gpu_index: row.get(1)?,
        began: row.get(2)?,
        ended: row.get(3)?,
        millijoules: row.get(4)?,
        estimated: row.get(5)?,
    })
}

/// The sums of each GPU since its first reading, by UUID.
pub(super) fn gpu_sums(db: &Connection) -> rusqlite::Result<BTreeMap<String, GpuEnergySums>> {
    let mut query = db.prepare("SELECT gpu_uuid, counted, idle FROM energy")?;
    let sums = query.query_map([], |row| {
        let (counted, idle) = (row.get(1)?, row.get(2)?);
        Ok((row.get(0)?, GpuEnergySums { counted, idle }))
    })?;
    sums.collect()
}

#[cfg(test)]
impl Store {
    /// Of each GPU: its last reading, what was counted, and the sum of all rows, in millijoules.
    pub fn energy_sums(&self) -> BTreeMap<String, (u64, u64, u64)> {
        let query = "SELECT gpu_uuid, millijoules, counted, idle = (SELECT coalesce(sum(energy), 0) FROM idle_energy i \
                     WHERE i.gpu_uuid = e.gpu_uuid), idle \
                     + (SELECT coalesce(sum(energy), 0) FROM usage u WHERE u.gpu_uuid = e.gpu_uuid) \
                     + (SELECT coalesce(sum(energy), 0) FROM holding h WHERE h.gpu_uuid = e.gpu_uuid AND held = 1) \
                     FROM energy e";
        let mut query = self.db.prepare(query).expect("a query");
        let sums = query.query_map([], |row| {
            assert!(row.get(3)?, "the idle rows are not the idle sum");
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(4)?)))
        });
        sums.and_then(Iterator::collect).expect("sums")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use divvy_core::{Bytes, Enforcement, Grant, Share};
    use jiff::Timestamp;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::tests::new;
    use super::super::{usage_between, usage_totals};
    use super::*;
    use crate::model::job::{Allocation, AllocationStats, Job};
    use crate::model::usage::calendar;
    use crate::model::usage::{GroupBy, Metered, UsageReport};

    const GPUS: u8 = 2;

    #[derive(Clone, Debug)]
    enum Step {
        Start {
            gpu: u8,
            share: u16,
            is_mig: bool,
        },
        End(Index),
        /// The row is split: an hour is over, or the job is resized or suspended.
        Split(Index),
        /// The job had the GPU beyond its share, in milliseconds.
        Lend(Index, u64),
        /// Its start is withdrawn: nothing counts.
        Withdraw(Index),
        Read(u8),
        /// The driver is loaded again: its counter begins at zero, in the same boot or another.
        Reload(u8, bool),
        /// The daemon is killed, and starts again.
        Kill,
        /// The clock is set back by so many milliseconds.
        Back(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let gpu = || 0..GPUS;
        prop_oneof![
            4 => (gpu(), 1..=1000_u16, any::<bool>())
                .prop_map(|(gpu, share, is_mig)| Step::Start { gpu, share, is_mig }),
            3 => any::<Index>().prop_map(Step::End),
            2 => any::<Index>().prop_map(Step::Split),
            3 => (any::<Index>(), 0..50_000_u64).prop_map(|(job, lent)| Step::Lend(job, lent)),
            1 => any::<Index>().prop_map(Step::Withdraw),
            6 => gpu().prop_map(Step::Read),
            1 => (gpu(), any::<bool>()).prop_map(|(gpu, reboots)| Step::Reload(gpu, reboots)),
            2 => Just(Step::Kill),
            1 => (1..5_000_000_i64).prop_map(Step::Back),
        ]
    }

    /// A GPU's counter, and the sum of what its readings showed.
    #[derive(Clone, Default)]
    struct Counter {
        millijoules: u64,
        boots: u32,
        /// Drawn since the last reading, as far as the counter shows it; `None` before the first one.
        unread: Option<u64>,
        sum: u64,
        last: u64,
    }

    struct Scene {
        dir: tempfile::TempDir,
        store: Store,
        jobs: Vec<Job>,
        counters: Vec<Counter>,
        /// Microseconds since 1970.
        at: i64,
    }

    fn uuid(gpu: u8) -> GpuUuid {
        GpuUuid::from_bytes([gpu + 1; 16])
    }

    fn open(dir: &tempfile::TempDir) -> Store {
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        // A kill of the process loses nothing by that, and each step costs no sync.
        store.db.execute_batch("PRAGMA synchronous = OFF").unwrap();
        store
    }

    /// A journal without jobs. To bring each one to its schema would cost a sync for each of its steps.
    fn template() -> &'static [u8] {
        static FILE: OnceLock<Vec<u8>> = OnceLock::new();
        FILE.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            drop(open(&dir));
            std::fs::read(dir.path().join("state.db")).unwrap()
        })
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("state.db"), template()).unwrap();
            let mut scene = Self {
                store: open(&dir),
                dir,
                jobs: Vec::new(),
                counters: vec![Counter::default(); GPUS.into()],
                at: 1_700_000_000_000_000,
            };
            (0..GPUS).for_each(|gpu| scene.read(gpu));
            scene
        }

        fn time(&self) -> Timestamp {
            Timestamp::from_microsecond(self.at).unwrap()
        }

        fn read(&mut self, gpu: u8) {
            let counter = &mut self.counters[usize::from(gpu)];
            counter.sum += counter.unread.replace(0).unwrap_or(0);
            counter.last = counter.millijoules;
            let reading = EnergyReading {
                at: self.at,
                millijoules: counter.millijoules,
                source: EnergySource::Counter,
                count: counter.boots.to_string(),
            };
            let index = u32::from(gpu);
            self.store
                .divide_energy(&uuid(gpu), index, &reading)
                .unwrap();
        }

        fn start(&mut self, gpu: u8, share: u16, is_mig: bool) {
            let mut new = new(None);
            new.spec.user = format!("u{}", self.jobs.len() % 3);
            new.at = self.time();
            let mut job = self.store.insert(&new).unwrap();
            let grant = Grant {
                gpu: uuid(gpu),
                index: gpu.into(),
                memory: Bytes::gib(4),
                share: Share::from_thousandths(share).unwrap(),
                label: format!("gpu{gpu}-{}", job.id),
                mig: None,
            };
            job.allocations = vec![Allocation {
                enforcement: Enforcement::Limiter,
                grant,
                goal: None,
                stats: AllocationStats::default(),
            }];
            self.store.save_allocations(&job).unwrap();
            let set = "UPDATE holding SET since = ?2, mig = iif(?3, '{}', NULL) WHERE job = ?1";
            let set = self
                .store
                .db
                .execute(set, params![job.id.0, self.at, is_mig]);
            set.unwrap();
            self.jobs.push(job);
        }

        fn take(&mut self, place: &Index) -> Option<Job> {
            (!self.jobs.is_empty()).then(|| self.jobs.swap_remove(place.index(self.jobs.len())))
        }

        fn go(&mut self, step: Step, passed: i64, millijoules: u64) {
            self.at += passed;
            for counter in &mut self.counters {
                counter.millijoules += millijoules;
                counter.unread = counter.unread.map(|unread| unread + millijoules);
            }
            match step {
                Step::Start { gpu, share, is_mig } => self.start(gpu, share, is_mig),
                Step::End(place) => {
                    if let Some(mut job) = self.take(&place) {
                        job.ended_at = Some(self.time());
                        self.store.release_allocations(&job).unwrap();
                    }
                }
                Step::Split(place) => {
                    if let Some(job) = self.take(&place) {
                        self.store.split_usage(&job, self.time()).unwrap();
                        self.jobs.push(job);
                    }
                }
                Step::Lend(place, ms) => {
                    if let Some(job) = self.take(&place) {
                        let metered = Metered {
                            micros: ms * 1000,
                            used: ms * 1_000_000,
                            loaned: ms * 1_000_000,
                        };
                        self.store.add_metered(job.id, &[metered], &[]).unwrap();
                        self.jobs.push(job);
                    }
                }
                Step::Withdraw(place) => {
                    if let Some(job) = self.take(&place) {
                        self.store.drop_allocations(&job).unwrap();
                        self.store.release_allocations(&job).unwrap();
                    }
                }
                Step::Read(gpu) => self.read(gpu),
                Step::Reload(gpu, reboots) => {
                    let counter = &mut self.counters[usize::from(gpu)];
                    let drawn = millijoules / 2;
                    // A counter that has passed its last reading shows no reload by itself.
                    counter.boots += u32::from(reboots || drawn >= counter.last);
                    (counter.millijoules, counter.unread) = (drawn, Some(drawn));
                    self.read(gpu);
                }
                Step::Kill => self.store = open(&self.dir),
                Step::Back(ms) => self.at -= ms * 1000,
            }
        }

        /// What the journal says is what the readings showed.
        fn check(&self) -> Result<(), TestCaseError> {
            let sums = self.store.energy_sums();
            for (gpu, counter) in (0..GPUS).zip(&self.counters) {
                let (_, counted, rows) = sums[uuid(gpu).as_str()];
                prop_assert_eq!(counted, counter.sum);
                prop_assert_eq!(rows, counter.sum, "jobs and idle of GPU {}", gpu);
            }
            let path = self.dir.path().join("state.db");
            let totals = usage_totals(&path, self.time()).unwrap();
            let all: u64 = self.counters.iter().map(|counter| counter.sum).sum();
            let idle: u64 = totals.gpus.values().map(|gpu| gpu.idle).sum();
            for names in [&totals.users, &totals.projects] {
                let jobs: u64 = names.values().map(|one| one.millijoules).sum();
                prop_assert_eq!(jobs + idle, all);
            }
            Ok(())
        }

        /// The reports of all time.
        fn check_reports(&self) -> Result<(), TestCaseError> {
            let path = self.dir.path().join("state.db");
            let all: u64 = self.counters.iter().map(|counter| counter.sum).sum();
            let hour = jiff::SignedDuration::from_hours(1);
            let window = (Timestamp::from_second(1_690_000_000).unwrap(), now() + hour);
            let (since, until) = window;
            let months = calendar::months(since, until, &jiff::tz::TimeZone::UTC).unwrap();
            for by in ["user,month", "month", "job,gpu,month"] {
                let by = GroupBy::parse(by).unwrap();
                let mut report = UsageReport::new(by, months.clone(), [].into());
                usage_between(&path, window, None, |row| report.add(row)).unwrap();
                let items = report.items();
                let energy = items.iter().map(|item| item.energy_joules.millijoules());
                prop_assert_eq!(energy.sum::<u64>(), all);
                prop_assert!(
                    items
                        .iter()
                        .all(|item| item.energy_estimated_joules <= item.energy_joules)
                );
                prop_assert!(items.iter().all(|item| !item.idle || item.jobs == 0));
            }
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// For any starts, ends, splits, loans, withdrawals, kills of the daemon, reloads of the driver and settings of the
        /// clock.
        #[test]
        fn jobs_and_idle_energy_are_what_the_counter_showed(
            steps in proptest::collection::vec((step(), 0..4_000_000_000_i64, 0..2_000_000_u64), 1..40),
        ) {
            let mut scene = Scene::new();
            for (step, passed, millijoules) in steps {
                scene.go(step, passed, millijoules);
                scene.check()?;
            }
            (0..GPUS).for_each(|gpu| scene.read(gpu));
            scene.check()?;
            scene.check_reports()?;
        }
    }

    #[test]
    fn energy_goes_by_share_and_time_and_to_a_job_that_ended_without_a_daemon() {
        let mut scene = Scene::new();
        scene.start(0, 250, false);
        scene.start(0, 500, true);
        // The daemon is away; the second job ends after four of ten seconds.
        scene.at += 10_000_000;
        scene.counters[0].millijoules = 1_000_000;
        scene.store = open(&scene.dir);
        let mut ended = scene.jobs.pop().unwrap();
        ended.ended_at = Timestamp::from_microsecond(scene.at - 6_000_000).ok();
        scene.store.release_allocations(&ended).unwrap();
        scene.read(0);
        let path = scene.dir.path().join("state.db");
        let mut found = Vec::new();
        let window = (Timestamp::UNIX_EPOCH, scene.time());
        let take = |row| {
            found.push(match row {
                crate::model::usage::UsageRow::Job(span) => {
                    (span.share, span.millijoules, span.estimated)
                }
                crate::model::usage::UsageRow::Idle(idle) => (0, idle.millijoules, idle.estimated),
            });
        };
        usage_between(&path, window, None, take).unwrap();
        found.sort_unstable();
        let expected = [(0, 550_000, 0), (250, 250_000, 0), (500, 200_000, 200_000)];
        assert_eq!(found, expected);
        // Only users that see all jobs see idle energy.
        let mut idle = 0;
        let take = |row| idle += u32::from(matches!(row, crate::model::usage::UsageRow::Idle(_)));
        usage_between(&path, window, Some(1000), take).unwrap();
        assert_eq!(idle, 0);
    }

    #[test]
    fn idle_energy_has_a_row_an_hour_which_goes_with_its_retention() {
        let mut scene = Scene::new();
        for _ in 0..6 * 48 {
            scene.at += 600_000_000;
            scene.counters[0].millijoules += 1;
            scene.read(0);
        }
        let count = |store: &Store| -> u64 {
            let count = "SELECT count(*) FROM idle_energy";
            store.db.query_row(count, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(count(&scene.store), 48);
        let path = scene.dir.path().join("state.db");
        let day = jiff::SignedDuration::from_hours(24);
        let rows = super::super::usage_beyond(&path, scene.time() - day, 10).unwrap();
        scene.store.forget_usage(rows.unwrap()).unwrap();
        assert_eq!(count(&scene.store), 38, "at most ten at once");
        let rows = super::super::usage_beyond(&path, Timestamp::MAX, 100).unwrap();
        scene.store.forget_usage(rows.unwrap()).unwrap();
        assert_eq!(count(&scene.store), 0);
        let none = super::super::usage_beyond(&path, Timestamp::MAX, 100).unwrap();
        assert_eq!(none, None);
        assert_eq!(
            usage_totals(&path, scene.time()).unwrap().gpus[uuid(0).as_str()].idle,
            288
        );
    }
}
