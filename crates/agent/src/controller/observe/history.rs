//! The samples of the history: once a second, from what the last observation has shown. Nothing is asked for them.

use std::collections::BTreeMap;

use divvy_core::JobState;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::history::HistoryClock;
use crate::controller::state::mig::MigManager;
use crate::controller::state::{GpuState, Jobs, State};
use crate::controller::{active_set, mig, query};
use crate::gpu::{Device, Power};
use crate::history::{Figure, Sample, Values};
use crate::host::clock::{Instant, now};

/// How long a value stays while observations come often, and while they are rare, in seconds. Observations come each
/// second, or each 30 s: two may be missing, so that a late one leaves no gap in a curve.
const LASTS: i64 = 3;
const IDLE_LASTS: i64 = 75;

/// Sums of some jobs.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    memory: u64,
    limit: u64,
    /// Thousandths.
    share: u32,
    /// The same, of the jobs whose use is known.
    used: Option<u32>,
    running: u32,
    waiting: u32,
}

/// Records a sample, if this second has none.
pub(in crate::controller) fn record(state: &mut State, fx: &mut Effects, io: &Io) {
    if !state.timers.history.is_kept {
        return;
    }
    let at = now().as_second();
    if std::mem::replace(&mut state.timers.history.second, at) == at {
        return;
    }
    count_waiting(&state.jobs, &mut state.timers.history, io);
    let is_busy = !state.jobs.active.is_empty();
    fx.machine.samples.push(Sample {
        at,
        lasts: if is_busy { LASTS } else { IDLE_LASTS },
        is_busy,
        series: series(state, io),
    });
}

/// Counts the waiting jobs of the node and of each queue, user and project, if the journal has changed.
fn count_waiting(jobs: &Jobs, clock: &mut HistoryClock, io: &Io) {
    let version = Some(io.store.changes());
    if std::mem::replace(&mut clock.journal_version, version) == version {
        return;
    }
    let (mut queues, mut users, mut projects) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut all = 0_u32;
    let waiting = jobs.active.values().map(|active| &active.job);
    for job in waiting.filter(|job| job.state == JobState::Queued) {
        all += 1;
        *queues.entry(&job.spec.queue).or_insert(0) += 1;
        *users.entry(&*job.spec.user).or_insert(0) += 1;
        if let Some(project) = &job.spec.project {
            *projects.entry(&**project).or_insert(0) += 1;
        }
    }
    clock.waiting.clear();
    let named = queues
        .into_iter()
        .map(|(queue, count)| (of_queue(queue), count));
    clock.waiting.extend(named);
    let named = users
        .into_iter()
        .map(|(user, count)| (of_user(user), count));
    clock.waiting.extend(named);
    let named = projects
        .into_iter()
        .map(|(project, count)| (of_project(project), count));
    clock.waiting.extend(named);
    clock.waiting.insert(NODE.to_owned(), all);
}

const NODE: &str = "node";

fn of_queue(queue: impl std::fmt::Display) -> String {
    format!("queue:{queue}")
}

fn of_user(user: &str) -> String {
    format!("user:{user}")
}

fn of_project(project: &str) -> String {
    format!("project:{project}")
}

/// Every series: first the node and its parts, then groups of jobs, then jobs.
fn series(state: &mut State, io: &Io) -> Vec<(String, Values)> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for queue in &io.config.schedule.queues {
        sums.entry(of_queue(&queue.name)).or_default();
    }
    for project in &state.queues.projects {
        sums.entry(of_project(&project.name.to_string()))
            .or_default();
    }
    for (subject, waiting) in &state.timers.history.waiting {
        sums.entry(subject.clone()).or_default().waiting = *waiting;
    }
    let mut jobs = Vec::new();
    let mut on_gpus = BTreeMap::new();
    for id in active_set::active_jobs(&mut state.jobs, io) {
        let Some(active) = state.jobs.active.get(&id).filter(|one| one.job.holds()) else {
            continue;
        };
        let slices = slices_of(active, &state.mig, io);
        for (slice, holding) in slices.iter().zip(&active.job.allocations) {
            let held = on_gpus
                .entry(holding.grant.gpu.clone())
                .or_insert_with(Sum::default);
            *held = held.plus(slice.1);
        }
        let whole = slices.iter().map(|(_, sum)| *sum).reduce(Sum::plus);
        let Some(mut whole) = whole else { continue };
        whole.running = 1;
        let spec = &active.job.spec;
        let groups = [
            Some(NODE.to_owned()),
            Some(of_queue(&spec.queue)),
            Some(of_user(&spec.user)),
            spec.project.as_deref().map(of_project),
        ];
        for group in groups.into_iter().flatten() {
            let sum = sums.entry(group).or_default();
            *sum = sum.plus(whole);
        }
        jobs.push((format!("job:{id}"), whole.of_job()));
        if slices.len() > 1 {
            let named = |(label, sum): (&str, Sum)| (format!("slice:{id}/{label}"), sum.of_job());
            jobs.extend(slices.into_iter().map(named));
        }
    }
    let node = sums.remove(NODE).unwrap_or_default();
    let power = io.sensors.power();
    let mut series = vec![(NODE.to_owned(), of_node(&state.gpus, node, &power))];
    let devices = state.gpus.devices.iter().filter(|device| !device.gpu.away);
    series.extend(devices.map(|device| {
        let held = on_gpus.get(&device.gpu.uuid).copied().unwrap_or_default();
        let subject = format!("gpu:{}", device.gpu.uuid);
        (subject, of_gpu(device, held, &power))
    }));
    let queues = |subject: &str| subject.starts_with("queue:");
    series.extend(
        sums.iter()
            .filter(|(subject, _)| queues(subject))
            .map(|(subject, sum)| (subject.clone(), sum.counts(Values::default()))),
    );
    let groups = sums.into_iter().filter(|(subject, _)| !queues(subject));
    series.extend(groups.map(|(subject, sum)| (subject, sum.counts(sum.of_job()))));
    series.extend(jobs);
    series
}

/// What a job has on each GPU.
fn slices_of<'a>(active: &'a ActiveJob, mig: &MigManager, io: &Io) -> Vec<(&'a str, Sum)> {
    let ledger = query::snapshot(active);
    let job = &active.job;
    let slices = job.allocations.iter().enumerate().map(|(gpu, holding)| {
        let grant = &holding.grant;
        let unseen = active
            .slice_usage()
            .get(gpu)
            .copied()
            .unwrap_or_default()
            .unaccounted;
        let ledger = ledger.as_ref().map(|ledger| ledger.usage(gpu));
        let memory = match mig::view::found_in(mig, grant) {
            Some(found) => found.used().get(),
            None => ledger.map_or(0, |usage| query::used(&usage, unseen.get())),
        };
        let used = active.activity.recent.last_of(gpu, Instant::now());
        let scheduled = || io.sensors.usage(job.id)?.used;
        let sum = Sum {
            memory,
            limit: grant.memory.get(),
            share: u32::from(grant.share.thousandths()),
            used: used.or_else(|| scheduled().map(u32::from)),
            ..Sum::default()
        };
        (&*grant.label, sum)
    });
    slices.collect()
}

/// What is measured of a GPU, and what jobs hold of it. Of a GPU that is powered down nothing is measured.
fn of_gpu(device: &Device, held: Sum, power: &BTreeMap<u32, Power>) -> Values {
    let held = Values::default()
        .with(Figure::MemoryLimit, held.limit as f32)
        .with(Figure::Share, held.share as f32);
    if device.asleep {
        return held;
    }
    let milliwatts = power
        .get(&device.gpu.index)
        .and_then(|power| power.milliwatts);
    let number = |number: Option<u32>| number.map(|number| number as f32);
    held.with(Figure::MemoryUsed, device.used.get() as f32)
        .with(Figure::Utilization, number(device.utilization_percent))
        .with(Figure::Temperature, number(device.temperature_celsius))
        .with(Figure::Power, number(milliwatts.map(watts)))
}

/// The GPUs that the daemon serves, together.
fn of_node(gpus: &GpuState, jobs: Sum, power: &BTreeMap<u32, Power>) -> Values {
    let there = || {
        let devices = gpus.devices.iter();
        devices.filter(|device| device.is_managed && !device.gpu.away && !device.asleep)
    };
    let used = there().map(|device| device.used.get());
    let used = used.reduce(u64::saturating_add);
    let busy: Vec<u32> = there()
        .filter_map(|device| device.utilization_percent)
        .collect();
    let mean = busy.iter().sum::<u32>() as f32 / busy.len() as f32;
    let drawn = there().filter_map(|device| power.get(&device.gpu.index)?.milliwatts);
    let drawn = drawn.reduce(u32::saturating_add);
    jobs.counts(jobs.of_job())
        .with(Figure::MemoryUsed, used.map(|used| used as f32))
        .with(Figure::Utilization, (!busy.is_empty()).then_some(mean))
        .with(Figure::Power, drawn.map(|drawn| watts(drawn) as f32))
}

/// Whole watts, as lists show them: a figure that flickers less takes less room.
fn watts(milliwatts: u32) -> u32 {
    milliwatts / 1000
}

impl Sum {
    #[must_use]
    fn plus(self, other: Self) -> Self {
        let used = [self.used, other.used].into_iter().flatten();
        Self {
            memory: self.memory.saturating_add(other.memory),
            limit: self.limit.saturating_add(other.limit),
            share: self.share + other.share,
            used: used.reduce(|one, two| one + two),
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
        }
    }

    fn of_job(&self) -> Values {
        Values::default()
            .with(Figure::MemoryUsed, self.memory as f32)
            .with(Figure::MemoryLimit, self.limit as f32)
            .with(Figure::Share, self.share as f32)
            .with(Figure::ShareUsed, self.used.map(|used| used as f32))
    }

    fn counts(&self, values: Values) -> Values {
        values
            .with(Figure::Running, self.running as f32)
            .with(Figure::Waiting, self.waiting as f32)
    }
}
