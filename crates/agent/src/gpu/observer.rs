//! The observer thread: samples the driver often and at random times while there are jobs, rarely while there are none,
//! and soon again on request or after a suspicious sample. Without jobs it leaves powered-down GPUs alone, as almost any
//! call of NVML would wake them.
//!
//! Only this thread calls the driver, and no caller waits for it without a bound: a driver may never answer, as when
//! its GPU has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_api::sync::lock;
use divvy_core::JobId;
use divvy_core::reconcile::{MEAN_GAP, random_gap};
use tokio::sync::watch;

use super::attribution::Attribution;
use super::energy::{EnergyMeter, GpuEnergy};
use super::outside::OutsideProcesses;
use super::sample::{self, NodeSample};
use super::sleep::PowerStates;
use super::source::{Source, SourceError};
use super::unlisted::UnlistedHolders;
use super::watched_jobs::{WatchedJob, WatchedJobs};
use super::{GpuOccupancy, Observation, ObservedGpu, Power};
use crate::host::process::Process;
use crate::host::process::evidence::KnownFiles;

/// Mean interval of observations while there are jobs.
pub const INTERVAL: Duration = MEAN_GAP;

/// Interval of observations for a while after the last job: only the memory of unmanaged processes can change then.
/// Also while the driver cannot be asked, so that its GPUs are served soon after it can.
pub const IDLE_INTERVAL: Duration = Duration::from_secs(2);

/// For how long that is. The driver returns memory of a job within a second; so ends and starts in a row wake no GPU.
const SETTLE: Duration = Duration::from_secs(30);

/// Interval of observations after that, so that GPUs may power down.
pub const REST_INTERVAL: Duration = Duration::from_secs(30);

/// Without jobs so many readers get a fresh sample each; a viewer that goes on reading gets those that come anyway.
const FRESH_READS: u32 = 3;

/// Readers are counted anew after so long without one.
const READERS_GONE: Duration = Duration::from_secs(60);

/// The power draw is asked for no more often. The driver itself averages over about a second, so oftener would give the
/// same figure.
const POWER_INTERVAL: Duration = Duration::from_secs(1);

/// After a suspicious sample: long enough for an exiting process to be gone.
const AGAIN: Duration = Duration::from_millis(25);

/// How long a caller waits for a fresh sample; after that the last one has to do. So a driver that hangs delays a call
/// no longer than that; a healthy one answers within milliseconds.
const FRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// The observer, and the jobs that it watches.
pub struct Observer {
    source: Arc<Source>,
    marks: KnownFiles,
    power_states: PowerStates,
    /// The GPUs as they were when they were asked last, and what did not answer then.
    seen: Mutex<Observation>,
    /// A writer copies it only while a sample is in progress.
    roster: Mutex<Arc<WatchedJobs>>,
    /// Never held while the driver is asked.
    kin: Mutex<Attribution>,
    outside: OutsideProcesses,
    unlisted: UnlistedHolders,
    schedule: Mutex<PollSchedule>,
    changed: Condvar,
    /// What the GPUs drew when they were last asked, by index.
    power: Mutex<BTreeMap<u32, Power>>,
    energy: Mutex<EnergyMeter>,
    /// How many of the requested observations the controller has received.
    completed: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PollSchedule {
    is_busy: bool,
    is_urgent: bool,
    /// How many observations were requested, ever.
    requested: u64,
    /// For how many of the requests an observation has begun.
    started: u64,
    /// Since when the driver is asked.
    in_flight_since: Option<Instant>,
    /// When an observation at a random time is due. No request puts it off: any user may make one, and would know when
    /// no observation comes.
    random_at: Option<Instant>,
    /// A request needs powered-down GPUs too.
    wakes: bool,
    /// The driver could not be asked the last time: no GPU is kept awake by the next one.
    has_failed: bool,
    /// When there was last a job or something to be decided.
    active_at: Option<Instant>,
    /// When the last observation began.
    looked_at: Option<Instant>,
    /// Fresh samples that readers have had since `reader_at` was long ago, and the time of the last reader.
    fresh_reads: u32,
    reader_at: Option<Instant>,
}

/// Which GPUs an observation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    All,
    /// Those that are not powered down.
    Awake,
}

impl PollSchedule {
    /// When the next observation is due, after one that ended at `last`. `gap` draws a random interval.
    fn due_at(&mut self, last: Instant, now: Instant, gap: impl FnOnce() -> Duration) -> Instant {
        if self.requested > self.started {
            return now;
        }
        let is_settling = |at| now.saturating_duration_since(at) < SETTLE;
        let regular = if self.is_busy {
            *self.random_at.get_or_insert_with(|| last + gap())
        } else if self.has_failed || self.active_at.is_some_and(is_settling) {
            last + IDLE_INTERVAL
        } else {
            last + REST_INTERVAL
        };
        match self.is_urgent {
            true => regular.min(last + AGAIN),
            false => regular,
        }
    }

    /// An observation begins.
    fn begin(&mut self, now: Instant) -> Ask {
        if self.is_busy || self.is_urgent {
            self.active_at = Some(now);
        }
        self.random_at = self.random_at.filter(|at| *at > now);
        self.is_urgent = false;
        self.started = self.requested;
        self.in_flight_since = Some(now);
        self.looked_at = Some(now);
        match std::mem::take(&mut self.wakes) || self.is_busy {
            true => Ask::All,
            false => Ask::Awake,
        }
    }

    /// Something is to be decided by the next observation.
    fn request(&mut self, now: Instant) -> u64 {
        self.active_at = Some(now);
        self.wakes = true;
        self.requested += 1;
        self.requested
    }

    /// A reader comes; `None` if the last sample has to do.
    fn request_read(&mut self, now: Instant) -> Option<u64> {
        let passed = |at: Option<Instant>, time| {
            at.is_none_or(|at| now.saturating_duration_since(at) >= time)
        };
        if passed(self.reader_at.replace(now), READERS_GONE) {
            self.fresh_reads = 0;
        }
        if !self.is_busy {
            if !passed(self.looked_at, IDLE_INTERVAL) || self.fresh_reads >= FRESH_READS {
                return None;
            }
            self.fresh_reads += 1;
        }
        self.requested += 1;
        Some(self.requested)
    }
}

impl Observer {
    pub fn new(source: Arc<Source>, marks: KnownFiles, power_states: PowerStates) -> Self {
        let schedule = PollSchedule {
            active_at: Some(Instant::now()),
            ..PollSchedule::default()
        };
        Self {
            source,
            marks,
            power_states,
            seen: Mutex::default(),
            roster: Mutex::default(),
            kin: Mutex::default(),
            outside: OutsideProcesses::default(),
            unlisted: UnlistedHolders::default(),
            schedule: Mutex::new(schedule),
            changed: Condvar::new(),
            power: Mutex::default(),
            energy: Mutex::default(),
            completed: watch::Sender::default(),
        }
    }

    /// A slice is to be observed from now on.
    pub fn register(&self, job: JobId, entry: WatchedJob) {
        Arc::make_mut(&mut *lock(&self.roster)).register(job, entry);
    }

    /// A process that the job's tree grows from.
    pub fn add_root(&self, job: JobId, root: Process) {
        Arc::make_mut(&mut *lock(&self.roster)).add_root(job, root);
    }

    /// The control group that a job's processes are born in.
    pub fn set_cgroup(&self, job: JobId, group: PathBuf) {
        Arc::make_mut(&mut *lock(&self.roster)).set_cgroup(job, group);
    }

    /// The control groups in which the driver limits a job.
    pub fn set_walls(&self, job: JobId, walls: Vec<PathBuf>) {
        Arc::make_mut(&mut *lock(&self.roster)).set_walls(job, walls);
    }

    /// A slice is no more.
    pub fn unregister(&self, job: JobId) {
        Arc::make_mut(&mut *lock(&self.roster)).unregister(job);
    }

    /// A slice was released by an earlier daemon: a process in its control group or in a pod of its claim is of no job.
    pub fn add_released(&self, job: JobId, cgroup: Option<(PathBuf, u64)>, pods: Vec<String>) {
        Arc::make_mut(&mut *lock(&self.roster)).add_released(job, cgroup, pods);
    }

    /// The nearest job above a living process, by the kernel's word.
    pub fn job_of(&self, process: Process) -> Option<JobId> {
        let roster = Arc::clone(&lock(&self.roster));
        lock(&self.kin).owning_job(process, &roster)
    }

    /// Observes all GPUs now.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn observe(&self) -> Result<NodeSample, SourceError> {
        self.observe_now(Ask::All)
    }

    fn observe_now(&self, ask: Ask) -> Result<NodeSample, SourceError> {
        let roster = Arc::clone(&lock(&self.roster));
        let before = sample::read_ledgers(&roster);
        let at = sample::now();
        let observation = self.ask_driver(ask)?;
        let mut sample = sample::build_sample(
            at,
            observation,
            before,
            &roster,
            &mut lock(&self.kin),
            &self.marks,
        );
        self.outside.describe(&mut sample);
        self.unlisted.add_to(&mut sample);
        Ok(sample)
    }

    /// The driver's answers; those of powered-down GPUs are the last ones, unless all are asked.
    fn ask_driver(&self, ask: Ask) -> Result<Observation, SourceError> {
        let asleep = match ask {
            Ask::All => BTreeSet::new(),
            Ask::Awake => self.power_states.asleep(lock(&self.seen).gpus.iter()),
        };
        let mut seen = lock(&self.seen).clone();
        seen.gpus.retain(|gpu| asleep.contains(&gpu.index));
        let is_all_asleep = !asleep.is_empty() && lock(&self.seen).gpus.len() == asleep.len();
        let mut observation = match is_all_asleep && seen.troubles.is_empty() {
            true => Observation::default(),
            false => self.source.observe_awake(&asleep)?,
        };
        let sleeping = seen.gpus.iter().map(ObservedGpu::fallen_asleep);
        observation.gpus.extend(sleeping);
        observation.gpus.sort_by_key(|gpu| gpu.index);
        lock(&self.seen).clone_from(&observation);
        Ok(observation)
    }

    /// Waits until the controller has received an observation of all GPUs that began after this call. If the driver does
    /// not answer, the wait is short. For what decides something: a powered-down GPU wakes.
    pub async fn wait_for_fresh_sample(&self) {
        self.wait_for(|schedule| Some(schedule.request(Instant::now())))
            .await;
    }

    /// The same for readers. It wakes no GPU; and without jobs, readers that come again and again do not have the driver
    /// asked more often.
    pub async fn wait_for_recent_sample(&self) {
        self.wait_for(|schedule| schedule.request_read(Instant::now()))
            .await;
    }

    async fn wait_for(&self, request: impl FnOnce(&mut PollSchedule) -> Option<u64>) {
        if self.is_unresponsive() {
            return;
        }
        let mut told = self.completed.subscribe();
        let Some(asked) = request(&mut lock(&self.schedule)) else {
            return;
        };
        self.changed.notify_all();
        // A late sample counts as missing: the caller uses the one before.
        let _ = tokio::time::timeout(FRESH_TIMEOUT, told.wait_for(|told| *told >= asked)).await;
    }

    /// Whether the last sample is older than the time that a caller waits for a fresh one.
    pub fn is_unresponsive(&self) -> bool {
        self.unresponsive_for()
            .is_some_and(|silent| silent >= FRESH_TIMEOUT)
    }

    /// For how long the driver has been asked without an answer.
    pub fn unresponsive_for(&self) -> Option<Duration> {
        lock(&self.schedule)
            .in_flight_since
            .map(|since| since.elapsed())
    }

    /// What GPUs drew lately, by index: at most a second ago, or an observation if these are rarer. The driver is not
    /// asked for it.
    pub fn power(&self) -> BTreeMap<u32, Power> {
        lock(&self.power).clone()
    }

    /// The last readings of the energy of GPUs.
    pub fn energy(&self) -> Vec<GpuEnergy> {
        lock(&self.energy).last()
    }

    /// Asks the driver for the power draw, behind an observation, so that no observation takes longer for it. A
    /// powered-down GPU keeps its last figure.
    pub fn ask_power(&self) {
        let seen = lock(&self.seen).clone();
        let sleeping = seen.gpus.iter().filter(|gpu| gpu.asleep);
        let asleep: BTreeSet<u32> = sleeping.map(|gpu| gpu.index).collect();
        if asleep.len() == seen.gpus.len() {
            return;
        }
        let answers = self.source.power(&asleep);
        lock(&self.energy).read(&seen.gpus, &answers);
        let mut power = lock(&self.power);
        power.retain(|index, _| asleep.contains(index));
        power.extend(answers);
    }

    /// What is on the GPUs now.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
        self.source.occupancy()
    }

    /// Sets whether there are jobs that need frequent observation.
    pub fn set_busy(&self, busy: bool) {
        let mut pace = lock(&self.schedule);
        if std::mem::replace(&mut pace.is_busy, busy) != busy {
            pace.active_at = Some(Instant::now());
            self.changed.notify_all();
        }
    }

    pub fn is_busy(&self) -> bool {
        lock(&self.schedule).is_busy
    }

    /// Requests an observation soon.
    pub fn sample_soon(&self) {
        lock(&self.schedule).is_urgent = true;
        self.changed.notify_all();
    }

    /// Gives every sample to `report`, for as long as the process lives.
    pub fn spawn(
        self: Arc<Self>,
        report: impl Fn(Result<NodeSample, SourceError>) + Send + 'static,
    ) -> std::io::Result<()> {
        // The first reader finds it too.
        self.ask_power();
        let run = move || {
            let mut power_at = Instant::now();
            loop {
                let (begun, ask) = self.wait_until_due(Instant::now());
                let sample = self.observe_now(ask);
                let mut schedule = lock(&self.schedule);
                schedule.in_flight_since = None;
                schedule.has_failed = sample.is_err();
                drop(schedule);
                report(sample);
                self.completed.send_replace(begun);
                self.unlisted
                    .read_if_due(&self.marks, |process| self.job_of(process));
                if power_at.elapsed() >= POWER_INTERVAL {
                    power_at = Instant::now();
                    lock(&self.schedule).in_flight_since = Some(power_at);
                    self.ask_power();
                    lock(&self.schedule).in_flight_since = None;
                }
            }
        };
        std::thread::Builder::new()
            .name("observe".into())
            .spawn(run)
            .map(drop)
    }

    /// Waits until the next observation is due, after one at `last`; returns the number of requests that it answers, and
    /// what it asks for.
    fn wait_until_due(&self, last: Instant) -> (u64, Ask) {
        let mut pace = lock(&self.schedule);
        loop {
            let now = Instant::now();
            // Keyed anew each time, from what the kernel gave the thread: no process can compute it.
            let due_at = pace.due_at(last, now, || random_gap(RandomState::new().hash_one(0)));
            let left = due_at.saturating_duration_since(now);
            if left.is_zero() {
                let ask = pace.begin(now);
                return (pace.started, ask);
            }
            let waited = self.changed.wait_timeout(pace, left);
            pace = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::{Bytes, GpuUuid};

    use super::*;
    use crate::gpu::mig::driver::Gpu;
    use crate::gpu::source::{GpuDriver, MigReader};

    /// A bypass is reported at the second sample that finds it, which is promised within a second of the first.
    #[test]
    fn while_there_are_jobs_a_second_look_comes_well_within_a_second() {
        let now = Instant::now();
        let wait = |is_urgent, random| {
            let mut pace = PollSchedule {
                is_busy: true,
                is_urgent,
                ..PollSchedule::default()
            };
            pace.due_at(now, now, || random_gap(random)) - now
        };
        for random in [0, 1 << 60, u64::MAX] {
            let both = wait(false, random) + wait(true, random);
            assert!(both < Duration::from_secs(1), "{both:?}");
        }
        assert_eq!(
            (wait(true, 0), wait(true, u64::MAX)),
            (AGAIN, Duration::ZERO)
        );
    }

    /// A job that asks for a look whenever it has given its memory back would otherwise meet no other.
    #[test]
    fn with_jobs_requested_observations_put_off_none_at_a_random_time() {
        let begun = Instant::now();
        let mut busy = PollSchedule {
            is_busy: true,
            ..PollSchedule::default()
        };
        let (mut last, mut unasked, mut numbers) = (begun, 0, 0_u64);
        for ms in 0..60_000 {
            let now = begun + Duration::from_millis(ms);
            let gap = || {
                numbers += 1;
                random_gap(numbers.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            };
            let is_due = busy.due_at(last, now, gap) <= now;
            let is_asked = ms % 20 == 0 && busy.request_read(now).is_some();
            if is_due || is_asked {
                unasked += u64::from(is_due);
                assert_eq!(busy.begin(now), Ask::All);
                last = now;
            }
        }
        // Four a second, as without the requests.
        assert!((210..270).contains(&unasked), "{unasked}");
    }

    /// Runs a schedule over some seconds, a quarter at a time, and returns how many observations begin.
    fn looks(
        schedule: &mut PollSchedule,
        begun: Instant,
        seconds: std::ops::Range<u32>,
        each: impl Fn(&mut PollSchedule, Instant),
    ) -> u32 {
        let mut looks = 0;
        for quarter in seconds.start * 4..seconds.end * 4 {
            let now = begun + Duration::from_millis(250) * quarter;
            each(schedule, now);
            let last = schedule.looked_at.unwrap();
            if schedule.due_at(last, now, || INTERVAL) <= now {
                schedule.begin(now);
                looks += 1;
            }
        }
        looks
    }

    /// The figure that docs/reference.md gives. A daemon that looked every two seconds would have 30.
    #[test]
    fn without_jobs_the_driver_is_asked_twice_a_minute_also_while_a_viewer_reads() {
        let begun = Instant::now();
        let mut idle = PollSchedule::default();
        idle.request(begun);
        assert_eq!(idle.begin(begun), Ask::All, "something is to be decided");
        let settles = looks(&mut idle, begun, 0..60, |_, _| {});
        assert!((15..=17).contains(&settles), "{settles}");
        assert_eq!(looks(&mut idle, begun, 60..120, |_, _| {}), 2);
        let read = |idle: &mut PollSchedule, now| {
            idle.request_read(now);
        };
        let first = looks(&mut idle, begun, 120..180, read);
        let most = FRESH_READS + 2;
        assert!((FRESH_READS..=most).contains(&first), "{first}");
        assert_eq!(looks(&mut idle, begun, 180..240, read), 2);
        assert!(!idle.wakes, "and no reader wakes a GPU");
        // A minute without readers later, one gets a fresh sample again.
        let late = begun + Duration::from_secs(400);
        assert!(idle.request_read(late).is_some());
        assert_eq!(idle.begin(late), Ask::Awake);
    }

    #[test]
    fn with_jobs_every_reader_gets_a_fresh_sample_of_all_gpus() {
        let now = Instant::now();
        let mut busy = PollSchedule {
            is_busy: true,
            ..PollSchedule::default()
        };
        for _ in 0..10 {
            assert!(busy.request_read(now).is_some());
            assert_eq!(busy.due_at(now, now, || INTERVAL), now);
            assert_eq!(busy.begin(now), Ask::All);
        }
    }

    #[test]
    fn after_a_failed_observation_the_next_one_comes_soon_also_without_jobs() {
        let now = Instant::now();
        let due = |has_failed| {
            let mut idle = PollSchedule {
                has_failed,
                ..PollSchedule::default()
            };
            idle.due_at(now, now, || INTERVAL) - now
        };
        assert_eq!((due(false), due(true)), (REST_INTERVAL, IDLE_INTERVAL));
    }

    /// A driver of two GPUs that notes what it is asked for.
    struct Noting(Arc<Mutex<Vec<String>>>);

    impl GpuDriver for Noting {
        fn version(&self) -> Result<String, SourceError> {
            Ok("1".to_owned())
        }

        fn gpu(&self, _: &GpuUuid) -> Result<Box<dyn Gpu + '_>, SourceError> {
            unreachable!("nothing is changed")
        }

        fn observe(
            &self,
            _: MigReader<'_>,
            asleep: &BTreeSet<u32>,
        ) -> Result<Observation, SourceError> {
            lock(&self.0).push(format!("observe without {asleep:?}"));
            let gpu = |index: u32| ObservedGpu {
                bus: format!("00000000:0{index}:00.0"),
                used: Bytes::gib(2),
                utilization_percent: Some(35),
                temperature_celsius: Some(50),
                ..ObservedGpu::idle(
                    GpuUuid::from_bytes([u8::try_from(index).unwrap(); 16]),
                    index,
                )
            };
            let awake = (0..2).filter(|index| !asleep.contains(index));
            Ok(Observation {
                gpus: awake.map(gpu).collect(),
                troubles: Vec::new(),
                xids: Vec::new(),
            })
        }

        fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
            unreachable!("no memory is moved")
        }

        fn power(&self, asleep: &BTreeSet<u32>) -> BTreeMap<u32, Power> {
            lock(&self.0).push(format!("power without {asleep:?}"));
            let awake = (0..2).filter(|index| !asleep.contains(index));
            let power = Power {
                milliwatts: Some(30_000),
                ..Power::default()
            };
            awake.map(|index| (index, power)).collect()
        }
    }

    #[test]
    fn a_powered_down_gpu_is_not_asked_and_keeps_its_last_figures() {
        let folder = tempfile::tempdir().unwrap();
        let set = |index: u32, state: &str| {
            let power = format!("bus/pci/devices/0000:0{index}:00.0/power");
            let power = folder.path().join(power);
            std::fs::create_dir_all(&power).unwrap();
            std::fs::write(power.join("runtime_status"), format!("{state}\n")).unwrap();
        };
        let notes = Arc::new(Mutex::new(Vec::new()));
        let source = Arc::new(Source::new(Noting(Arc::clone(&notes))));
        let marks = KnownFiles {
            limiters: Vec::new(),
            driver: None,
        };
        let power_states = PowerStates::below(Some(folder.path().to_owned()));
        let observer = Observer::new(source, marks, power_states);
        let look = |ask| {
            let sample = observer.observe_now(ask).unwrap();
            observer.ask_power();
            let gpus = sample.gpus.into_iter().map(|gpu| gpu.observed);
            let gpus = gpus.map(|gpu| (gpu.index, gpu.asleep, gpu.used, gpu.utilization_percent));
            (gpus.collect::<Vec<_>>(), std::mem::take(&mut *lock(&notes)))
        };
        let (two, awake) = (Bytes::gib(2), Some(35));
        let both = vec![(0, false, two, awake), (1, false, two, awake)];
        let all = ["observe without {}", "power without {}"].map(str::to_owned);
        // Nothing is known before the first look, and a GPU that sysfs does not show is awake.
        assert_eq!(look(Ask::Awake), (both.clone(), all.to_vec()));
        set(0, "active");
        set(1, "suspended");
        let of_one = ["observe without {1}", "power without {1}"].map(str::to_owned);
        let one = vec![(0, false, two, awake), (1, true, two, Some(0))];
        assert_eq!(look(Ask::Awake), (one, of_one.to_vec()));
        assert_eq!(observer.power().len(), 2, "the last known figure stays");
        set(0, "suspended");
        let none = vec![(0, true, two, Some(0)), (1, true, two, Some(0))];
        assert_eq!(look(Ask::Awake), (none.clone(), Vec::new()));
        assert_eq!(look(Ask::Awake), (none, Vec::new()), "no call at all");
        // Something is to be decided.
        assert_eq!(look(Ask::All), (both, all.to_vec()));
        set(0, "resuming");
        let (gpus, _) = look(Ask::Awake);
        assert_eq!((gpus[0].1, gpus[1].1), (false, true));
    }
}
