//! Usage of jobs: sums over the journal's rows of held and used GPU time. Pure.
//!
//! ```text
//! allocated = used within its share + idle + unknown          used = within + loaned
//! ```
//! Time of a GPU is counted in GPU-nanoseconds (thousandths of a GPU times microseconds), and memory in
//! byte-microseconds: no rounding before the sums are shown. Days are rounded so that they add up to their period.

pub mod calendar;
pub mod energy;
pub mod meter;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use divvy_api::v1::{self, Error};
use divvy_core::JobId;

use self::calendar::Period;
use self::energy::IdleEnergy;
use crate::model::validate::usage;

/// What was measured of one holding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// For how long it was, in microseconds.
    pub micros: u64,
    /// GPU-nanoseconds in which its processes had the GPU.
    pub used: u64,
    /// Of those, what was beyond its share.
    pub loaned: u64,
}

impl Metered {
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    pub fn add(&mut self, more: Self) {
        self.micros = self.micros.saturating_add(more.micros);
        self.used = self.used.saturating_add(more.used);
        self.loaned = self.loaned.saturating_add(more.loaned);
    }
}

/// GPU time in GPU-microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuTime {
    pub allocated: u64,
    pub used: u64,
    pub idle: u64,
    pub loaned: u64,
    /// The energy that was divided over the jobs so far.
    pub millijoules: u64,
}

impl GpuTime {
    pub fn add(&mut self, more: Self) {
        self.allocated = self.allocated.saturating_add(more.allocated);
        self.used = self.used.saturating_add(more.used);
        self.idle = self.idle.saturating_add(more.idle);
        self.loaned = self.loaned.saturating_add(more.loaned);
        self.millijoules = self.millijoules.saturating_add(more.millijoules);
    }

    /// Raises each figure to that of `other` if it is below.
    pub fn raise_to(&mut self, other: Self) {
        self.allocated = self.allocated.max(other.allocated);
        self.used = self.used.max(other.used);
        self.idle = self.idle.max(other.idle);
        self.loaned = self.loaned.max(other.loaned);
        self.millijoules = self.millijoules.max(other.millijoules);
    }
}

/// A GPU's energy since its first reading, in millijoules: what jobs got and what is idle together, and the idle part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuEnergySums {
    pub counted: u64,
    pub idle: u64,
}

/// GPU time of all jobs ever, by name. Jobs without a project count under the empty name, and names beyond
/// [`MAX_NAMES`] under [`OTHER`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuTimeTotals {
    pub users: BTreeMap<String, GpuTime>,
    pub projects: BTreeMap<String, GpuTime>,
    /// By UUID.
    pub gpus: BTreeMap<String, GpuEnergySums>,
}

impl GpuTimeTotals {
    /// Adds what totals had before and have no more, so that no counter falls while a daemon runs.
    pub fn raise_to(&mut self, before: &Self) {
        let both = [
            (&mut self.users, &before.users),
            (&mut self.projects, &before.projects),
        ];
        for (now, before) in both {
            for (name, time) in before {
                now.entry(name.clone()).or_default().raise_to(*time);
            }
        }
        for (gpu, before) in &before.gpus {
            let now = self.gpus.entry(gpu.clone()).or_default();
            now.counted = now.counted.max(before.counted);
            now.idle = now.idle.max(before.idle);
        }
    }
}

/// Users, and projects, with totals of their own: more series are of no use in a dashboard. Without configured
/// projects, a user may submit with any project name, so there must be a bound.
pub const MAX_NAMES: u32 = 256;

/// The name of all others.
pub const OTHER: &str = "other";

/// One amount of one GPU over one stretch of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub owner: SpanOwner,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    /// Thousandths.
    pub share: u16,
    /// Bytes.
    pub memory: u64,
    pub suspended: bool,
    /// Microseconds since 1970.
    pub began: i64,
    pub ended: i64,
    pub metered: Metered,
    /// The energy that was divided so far, and the part of it that is an estimate.
    pub millijoules: u64,
    pub estimated: u64,
    /// The highest use of memory up to the end, in bytes, where it is measured.
    pub most: Option<u64>,
}

/// What is summed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageRow {
    Job(Span),
    Idle(IdleEnergy),
}

#[cfg(test)]
impl UsageRow {
    pub fn span(self) -> Option<Span> {
        match self {
            Self::Job(span) => Some(span),
            Self::Idle(_) => None,
        }
    }
}

/// The job of a span, and what its usage is summed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanOwner {
    pub job: JobId,
    pub name: String,
    pub user: String,
    pub project: Option<String>,
    pub queue: String,
}

impl SpanOwner {
    /// The namespace of a claim, which is a job with the name `NAMESPACE/CLAIM`. A job of another runner can have such a
    /// name too; the journal keeps no runner with its usage.
    fn namespace(&self) -> Option<&str> {
        let (namespace, claim) = self.name.split_once('/')?;
        (!namespace.is_empty() && !claim.is_empty()).then_some(namespace)
    }
}

/// What rows are put together by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupBy {
    Day,
    Month,
    User,
    Project,
    Queue,
    Gpu,
    Job,
    Namespace,
}

impl GroupBy {
    const ALL: [(&'static str, Self); 8] = [
        ("day", Self::Day),
        ("month", Self::Month),
        ("user", Self::User),
        ("project", Self::Project),
        ("queue", Self::Queue),
        ("gpu", Self::Gpu),
        ("job", Self::Job),
        ("namespace", Self::Namespace),
    ];

    /// `user,project`; nothing: everything in one row.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`](v1::ErrorCode::Usage) with the word that is none of them.
    pub fn parse(text: &str) -> Result<Vec<Self>, Error> {
        let mut all = Vec::new();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let known = Self::ALL.iter().find(|(name, _)| *name == word);
            let Some((_, by)) = known else {
                let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
                return Err(
                    usage(format!("usage cannot be grouped by {word:?}")).hint(format!(
                        "use one or more of {}, separated by commas",
                        names.join(", ")
                    )),
                );
            };
            if !all.contains(by) {
                all.push(*by);
            }
        }
        if all.contains(&Self::Day) && all.contains(&Self::Month) {
            return Err(usage("usage cannot be grouped by day and by month")
                .hint("leave out `day` or `month`"));
        }
        Ok(all)
    }
}

/// The owner of a row, in the order of [`GroupBy`]; a field is empty if the query does not group by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The row has the idle energy and no job.
    is_idle: bool,
    user: Option<String>,
    project: Option<String>,
    queue: Option<String>,
    gpu: Option<(u32, String)>,
    job: Option<(JobId, String)>,
    namespace: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Sum {
    jobs: HashSet<JobId>,
    /// GPU-nanoseconds.
    allocated: u128,
    /// Used within the shares.
    within: u128,
    loaned: u128,
    /// Measured time of the shares, used or not.
    measured: u128,
    suspended: u128,
    /// Byte-microseconds; and those beyond the highest use.
    memory: u128,
    unused: u128,
    energy: u64,
    estimated: u64,
}

impl Sum {
    fn add(&mut self, more: &Self) {
        self.allocated += more.allocated;
        self.within += more.within;
        self.loaned += more.loaned;
        self.measured += more.measured;
        self.suspended += more.suspended;
        self.memory += more.memory;
        self.unused += more.unused;
        self.energy = self.energy.saturating_add(more.energy);
        self.estimated = self.estimated.saturating_add(more.estimated);
    }
}

/// Sums over a window of time, or over each of its days.
#[derive(Debug)]
pub struct UsageReport {
    by: Vec<GroupBy>,
    /// In order and without gaps: the whole window, or its days.
    periods: Vec<Period>,
    /// UUIDs of the GPUs whose time counts as that of the machine.
    gpus: BTreeSet<String>,
    /// By owner, then by position in `periods`.
    sums: BTreeMap<Key, BTreeMap<usize, Sum>>,
}

/// `figure` times `part` of `whole`, rounded down.
fn part_of(figure: u128, part: u64, whole: u64) -> u128 {
    (figure * u128::from(part))
        .checked_div(u128::from(whole))
        .unwrap_or(0)
}

/// A stretch of a row's time, in microseconds from its beginning.
#[derive(Clone, Copy)]
struct Part {
    from: u64,
    to: u64,
    whole: u64,
}

impl Part {
    /// As differences of rounded figures, parts add up to the whole.
    fn of(self, figure: u128) -> u128 {
        part_of(figure, self.to, self.whole) - part_of(figure, self.from, self.whole)
    }

    fn of_energy(self, millijoules: u64) -> u64 {
        u64::try_from(self.of(millijoules.into())).unwrap_or(u64::MAX)
    }
}

/// Amounts of a whole span.
struct SpanAmounts {
    /// Microseconds.
    length: u64,
    within: u128,
    loaned: u128,
    measured: u128,
}

impl SpanAmounts {
    /// `None` for a span without length.
    fn of(span: &Span) -> Option<Self> {
        let length = u64::try_from(span.ended.checked_sub(span.began)?).ok()?;
        // No measurement lasts longer than its job, or uses more than a whole GPU.
        let micros = span.metered.micros.min(length);
        let used = span.metered.used.min(micros.saturating_mul(1000));
        let loaned = span.metered.loaned.min(used);
        let measured = u128::from(span.share) * u128::from(micros);
        let within = u128::from(used - loaned).min(measured);
        (length > 0).then_some(Self {
            length,
            within,
            loaned: u128::from(used) - within,
            measured,
        })
    }
}

impl Span {
    /// The GPU time of the whole span.
    pub fn gpu_time(&self) -> GpuTime {
        let Some(whole) = SpanAmounts::of(self) else {
            return GpuTime::default();
        };
        let micros = |gpu_ns: u128| shown(gpu_ns, 1000);
        GpuTime {
            // Energy is added to totals as it is divided.
            millijoules: 0,
            allocated: micros(u128::from(self.share) * u128::from(whole.length)),
            used: micros(whole.within + whole.loaned),
            idle: micros(whole.measured - whole.within),
            loaned: micros(whole.loaned),
        }
    }
}

impl UsageReport {
    /// `gpus`: UUIDs of the GPUs that the daemon manages now.
    pub fn new(by: Vec<GroupBy>, periods: Vec<Period>, gpus: BTreeSet<String>) -> Self {
        Self {
            by,
            periods,
            gpus,
            sums: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, row: UsageRow) {
        match row {
            UsageRow::Job(span) => self.add_span(span),
            UsageRow::Idle(idle) => self.add_idle(&idle),
        }
    }

    /// Counts what of a row lies within the window. What was held is counted to the microsecond; what was measured is
    /// taken to have been even over the row, which is an hour at most while a daemon runs.
    pub fn add_span(&mut self, span: Span) {
        let Some(whole) = SpanAmounts::of(&span) else {
            return;
        };
        let unused = span.most.map_or(0, |most| span.memory.saturating_sub(most));
        let sum = |part: Part| {
            let micros = u128::from(part.to - part.from);
            let allocated = u128::from(span.share) * micros;
            Sum {
                jobs: HashSet::from([span.owner.job]),
                allocated,
                within: part.of(whole.within),
                loaned: part.of(whole.loaned),
                measured: part.of(whole.measured),
                suspended: if span.suspended { allocated } else { 0 },
                memory: u128::from(span.memory) * micros,
                unused: u128::from(unused) * micros,
                energy: part.of_energy(span.millijoules),
                estimated: part.of_energy(span.estimated),
            }
        };
        let found = self.parts((span.began, span.ended), sum);
        if found.is_empty() {
            return;
        }
        self.add_parts(key(&self.by, &span), found);
        if !self.gpus.contains(&span.gpu_uuid) {
            self.gpus.insert(span.gpu_uuid);
        }
    }

    /// Counts what of an idle row lies within the window.
    fn add_idle(&mut self, idle: &IdleEnergy) {
        let sum = |part: Part| Sum {
            energy: part.of_energy(idle.millijoules),
            estimated: part.of_energy(idle.estimated),
            ..Sum::default()
        };
        let found = self.parts((idle.began, idle.ended), sum);
        let has_gpu = self.by.contains(&GroupBy::Gpu);
        let key = Key {
            is_idle: true,
            gpu: has_gpu.then(|| (idle.gpu_index, idle.gpu_uuid.clone())),
            ..Key::default()
        };
        if !found.is_empty() {
            self.add_parts(key, found);
        }
    }

    /// The sum for each period that the time from `began` to `ended` touches.
    fn parts(&self, (began, ended): (i64, i64), sum: impl Fn(Part) -> Sum) -> BTreeMap<usize, Sum> {
        let at = |time: i64| u64::try_from(time - began).unwrap_or(0);
        let whole = at(ended);
        let first = self.periods.partition_point(|one| one.to <= began);
        let periods = self.periods.iter().enumerate().skip(first);
        let touched = periods.take_while(|(_, one)| one.from < ended);
        touched
            .map(|(place, period)| {
                let (from, to) = (at(period.from), at(period.to).min(whole));
                (place, sum(Part { from, to, whole }))
            })
            .collect()
    }

    fn add_parts(&mut self, key: Key, found: BTreeMap<usize, Sum>) {
        let sums = self.sums.entry(key).or_default();
        for (place, part) in found {
            let sum = sums.entry(place).or_default();
            sum.add(&part);
            sum.jobs.extend(part.jobs);
        }
    }

    /// A row for each of what was asked by, in their order, and a row of idle energy. By day or month alone, times without
    /// usage have rows too.
    pub fn items(mut self) -> Vec<v1::Usage> {
        let is_by_month = self.by.contains(&GroupBy::Month);
        if matches!(self.by[..], [GroupBy::Day | GroupBy::Month]) {
            let days = self.sums.entry(Key::default()).or_default();
            for place in 0..self.periods.len() {
                days.entry(place).or_default();
            }
        }
        let capacities = self.capacities();
        let mut rows = Vec::new();
        for (key, sums) in self.sums {
            let figures = Figures::of(&sums);
            for ((place, sum), figures) in sums.into_iter().zip(figures) {
                let mut item = figures.item(&key, &sum);
                let period = self.periods.get(place);
                let day = period.and_then(|period| period.day);
                if is_by_month {
                    item.month = day.map(|day| day.strftime("%Y-%m").to_string());
                } else {
                    item.day = day.map(|day| day.to_string());
                }
                item.capacity_gpu_ms = capacities.get(place).copied().unwrap_or_default();
                rows.push((place, item));
            }
        }
        // Stable: within a day, the order of the keys.
        rows.sort_by_key(|(place, _)| *place);
        rows.into_iter().map(|(_, item)| item).collect()
    }

    /// GPU time of the machine in each period, in GPU-milliseconds; days add up to the window.
    fn capacities(&self) -> Vec<u64> {
        let start = self.periods.first().map_or(0, |first| first.from);
        let gpus = u64::try_from(self.gpus.len()).unwrap_or(u64::MAX);
        let until = |time: i64| {
            let micros = u64::try_from(time.saturating_sub(start)).unwrap_or(0);
            micros.saturating_mul(gpus) / 1000
        };
        let periods = self.periods.iter();
        periods
            .map(|period| until(period.to).saturating_sub(until(period.from)))
            .collect()
    }
}

fn key(by: &[GroupBy], span: &Span) -> Key {
    let has = |one| by.contains(&one);
    let owner = &span.owner;
    Key {
        is_idle: false,
        user: has(GroupBy::User).then(|| owner.user.clone()),
        project: owner.project.clone().filter(|_| has(GroupBy::Project)),
        queue: has(GroupBy::Queue).then(|| owner.queue.clone()),
        gpu: has(GroupBy::Gpu).then(|| (span.gpu_index, span.gpu_uuid.clone())),
        job: has(GroupBy::Job).then(|| (owner.job, owner.name.clone())),
        namespace: owner
            .namespace()
            .filter(|_| has(GroupBy::Namespace))
            .map(str::to_owned),
    }
}

fn shown(figure: u128, unit: u128) -> u64 {
    u64::try_from(figure / unit).unwrap_or(u64::MAX)
}

/// GPU-nanoseconds in milliseconds.
fn ms(gpu_ns: u128) -> u64 {
    shown(gpu_ns, 1_000_000)
}

/// The shown figures of one row: GPU time in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    allocated: u64,
    within: u64,
    loaned: u64,
    idle: u64,
    suspended: u64,
    memory_mib_s: u64,
    unused_memory_mib_s: u64,
}

impl Figures {
    /// The figures of each of these sums, in their order. In each, the parts add up to what was allocated; all of them
    /// together are the figures of the whole.
    fn of(sums: &BTreeMap<usize, Sum>) -> Vec<Self> {
        let mut so_far = Sum::default();
        let until: Vec<Self> = sums
            .values()
            .map(|sum| {
                so_far.add(sum);
                Self::rounded(&so_far)
            })
            .collect();
        let total = |of: fn(&Self) -> u64| until.iter().map(of).collect::<Vec<u64>>();
        let allocated = total(|until| until.allocated);
        let within = fit(&total(|until| until.within), &allocated);
        let rest: Vec<u64> = (allocated.iter().zip(&within))
            .map(|(all, part)| all - part)
            .collect();
        let idle = fit(&total(|until| until.idle), &rest);
        let suspended = fit(&total(|until| until.suspended), &allocated);
        let mut loaned = total(|until| until.loaned);
        if let (Some(last), Some(within)) = (loaned.last_mut(), within.last()) {
            // So that all the used time together is rounded down once.
            *last = ms(so_far.within + so_far.loaned) - within;
        }
        let memory = total(|until| until.memory_mib_s);
        let unused = fit(&total(|until| until.unused_memory_mib_s), &memory);
        (0..until.len())
            .map(|place| {
                let step = |totals: &[u64]| {
                    let before = place.checked_sub(1).and_then(|before| totals.get(before));
                    totals[place] - before.copied().unwrap_or(0)
                };
                Self {
                    allocated: step(&allocated),
                    within: step(&within),
                    loaned: step(&loaned),
                    idle: step(&idle),
                    suspended: step(&suspended),
                    memory_mib_s: step(&memory),
                    unused_memory_mib_s: step(&unused),
                }
            })
            .collect()
    }

    /// Each figure rounded down.
    fn rounded(sum: &Sum) -> Self {
        let mib_s = |figure| shown(figure, (1 << 20) * 1_000_000);
        Self {
            allocated: ms(sum.allocated),
            within: ms(sum.within),
            loaned: ms(sum.loaned),
            idle: ms(sum.measured.saturating_sub(sum.within)),
            suspended: ms(sum.suspended),
            memory_mib_s: mib_s(sum.memory),
            unused_memory_mib_s: mib_s(sum.unused),
        }
    }

    fn item(self, key: &Key, sum: &Sum) -> v1::Usage {
        let (gpu_index, gpu_uuid) = key.gpu.clone().unzip();
        let (job, name) = key.job.clone().unzip();
        v1::Usage {
            day: None,
            month: None,
            idle: key.is_idle,
            user: key.user.clone(),
            project: key.project.clone(),
            queue: key.queue.clone(),
            gpu_index,
            gpu_uuid,
            job: job.map(|job| job.to_string()),
            name,
            namespace: key.namespace.clone(),
            jobs: u64::try_from(sum.jobs.len()).unwrap_or(u64::MAX),
            allocated_gpu_ms: self.allocated,
            used_gpu_ms: self.within.saturating_add(self.loaned),
            loaned_gpu_ms: self.loaned,
            idle_gpu_ms: self.idle,
            // What is left, so that the figures that are shown add up.
            unknown_gpu_ms: self.allocated - self.within - self.idle,
            suspended_gpu_ms: self.suspended,
            memory_mib_s: self.memory_mib_s,
            unused_memory_mib_s: self.unused_memory_mib_s,
            energy_joules: v1::Joules::from_millijoules(sum.energy),
            energy_estimated_joules: v1::Joules::from_millijoules(sum.estimated),
            capacity_gpu_ms: 0,
        }
    }
}

/// Running totals of a part, changed by a millisecond here and there so that no step is larger than the step of the
/// whole, and the last total stays. Both never fall, and no total of the part exceeds that of the whole.
fn fit(part: &[u64], whole: &[u64]) -> Vec<u64> {
    let mut fitted: Vec<u64> = part.to_vec();
    for place in (1..part.len()).rev() {
        let step = whole[place] - whole[place - 1];
        let next = fitted[place];
        fitted[place - 1] = part[place - 1]
            .min(whole[place - 1])
            .clamp(next.saturating_sub(step), next);
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> i64 {
        seconds * 1_000_000
    }

    /// A report by these words over one window of seconds, on a machine with one GPU.
    fn report(by: &str, since: i64, until: i64) -> UsageReport {
        let window = Period {
            day: None,
            from: at(since),
            to: at(until),
        };
        over(by, vec![window])
    }

    fn over(by: &str, periods: Vec<Period>) -> UsageReport {
        UsageReport::new(
            GroupBy::parse(by).unwrap(),
            periods,
            ["GPU-1".to_owned()].into(),
        )
    }

    fn span(job: u64, user: &str, share: u16, (began, ended): (i64, i64)) -> Span {
        Span {
            owner: SpanOwner {
                job: JobId(job),
                name: "train".into(),
                user: user.into(),
                project: None,
                queue: "default".into(),
            },
            gpu_uuid: "GPU-1".into(),
            gpu_index: 0,
            share,
            memory: 4 << 30,
            suspended: false,
            began: at(began),
            ended: at(ended),
            metered: Metered::default(),
            millijoules: 0,
            estimated: 0,
            most: None,
        }
    }

    #[test]
    fn claims_are_summed_by_namespace_and_other_jobs_have_none() {
        let mut report = report("namespace", 100, 200);
        let named = |job, name: &str, time| {
            let mut span = span(job, "root", 250, time);
            span.owner.name = name.into();
            span
        };
        report.add_span(named(1, "team/train-fraction-gpu-x", (100, 110)));
        report.add_span(named(2, "team/eval", (110, 120)));
        report.add_span(named(3, "other/train", (100, 140)));
        report.add_span(named(4, "train", (100, 104)));
        report.add_span(named(5, "/train", (104, 108)));
        let items = report.items();
        let told: Vec<_> = items
            .iter()
            .map(|item| (item.namespace.as_deref(), item.jobs, item.allocated_gpu_ms))
            .collect();
        assert_eq!(
            told,
            [
                (None, 2, 2000),
                (Some("other"), 1, 10_000),
                (Some("team"), 2, 5000)
            ]
        );
    }

    #[test]
    fn what_is_held_counts_by_share_and_time_and_only_within_the_window() {
        let mut report = report("user,job", 100, 200);
        report.add_span(span(1, "ana", 250, (90, 110)));
        report.add_span(span(1, "ana", 500, (110, 120)));
        report.add_span(span(2, "ana", 1000, (150, 300)));
        report.add_span(span(3, "kim", 1000, (200, 300)));
        report.add_span(span(4, "kim", 1000, (10, 100)));
        let items = report.items();
        let told: Vec<_> = items
            .iter()
            .map(|item| (item.job.as_deref().unwrap(), item.allocated_gpu_ms))
            .collect();
        assert_eq!(told, [("1", 2500 + 5000), ("2", 50_000)]);
        assert_eq!(items[0].memory_mib_s, 4096 * 20);
        assert_eq!(items[0].unknown_gpu_ms, 7500, "nothing was measured");
        assert_eq!(items[0].user.as_deref(), Some("ana"));
        assert_eq!(items[0].project, None);
        assert_eq!((items[0].capacity_gpu_ms, &items[0].day), (100_000, &None));
    }

    #[test]
    fn what_is_used_beyond_the_share_is_loaned_and_what_is_not_used_is_idle() {
        let mut held = span(1, "ana", 250, (0, 100));
        // Eighty of the hundred seconds were measured, and thirty of them it had the whole GPU.
        held.metered = Metered {
            micros: 80_000_000,
            used: 30_000_000_000,
            loaned: 22_500_000_000,
        };
        held.suspended = true;
        let mut report = report("", 0, 50);
        report.add_span(held);
        let [item] = &report.items()[..] else {
            panic!("one row")
        };
        assert_eq!(item.allocated_gpu_ms, 12_500);
        assert_eq!((item.used_gpu_ms, item.loaned_gpu_ms), (15_000, 11_250));
        assert_eq!((item.idle_gpu_ms, item.unknown_gpu_ms), (6250, 2500));
        assert_eq!((item.suspended_gpu_ms, item.jobs), (12_500, 1));
        assert_eq!((&item.user, &item.job), (&None, &None));
    }

    #[test]
    fn parts_of_a_millisecond_do_not_make_more_of_it_than_was_allocated() {
        // Measured all the time: 25,000.6 ms allocated, 2.1 used, 0.8 of them a loan.
        let mut held = span(1, "ana", 250, (0, 100));
        held.ended += 2_400;
        held.metered = Metered {
            micros: 100_002_400,
            used: 2_100_000,
            loaned: 800_000,
        };
        let mut report = report("", 0, 101);
        report.add_span(held);
        let [item] = &report.items()[..] else {
            panic!("one row")
        };
        assert_eq!((item.allocated_gpu_ms, item.used_gpu_ms), (25_000, 2));
        assert_eq!(
            item.used_gpu_ms - item.loaned_gpu_ms + item.idle_gpu_ms + item.unknown_gpu_ms,
            item.allocated_gpu_ms
        );
    }

    #[test]
    fn memory_beyond_the_highest_use_is_unused_and_unknown_use_counts_as_used() {
        let mut known = span(1, "ana", 250, (0, 100));
        known.most = Some(1 << 30);
        let mut over = span(2, "ana", 250, (0, 100));
        over.most = Some(5 << 30);
        let unknown = span(3, "ana", 250, (0, 100));
        let mut report = report("job", 0, 50);
        for span in [known, over, unknown] {
            report.add_span(span);
        }
        let unused = report
            .items()
            .into_iter()
            .map(|item| item.unused_memory_mib_s);
        assert_eq!(unused.collect::<Vec<_>>(), [3072 * 50, 0, 0]);
    }

    #[test]
    fn idle_energy_has_rows_of_its_own_and_no_job() {
        let idle = |gpu: u32, began, ended| {
            UsageRow::Idle(IdleEnergy {
                gpu_uuid: format!("GPU-{gpu}"),
                gpu_index: gpu,
                began: at(began),
                ended: at(ended),
                millijoules: 1001,
                estimated: 1,
            })
        };
        let shown = |by: &str| {
            let days = vec![day(0, 10), day(10, 20), day(20, 25)];
            let mut report = over(by, days);
            let mut job = span(1, "ana", 500, (5, 12));
            job.millijoules = 70;
            report.add(UsageRow::Job(job));
            report.add(idle(1, 8, 18));
            report.add(idle(2, 12, 14));
            let items = report.items().into_iter();
            let row = |item: v1::Usage| {
                let time = item.day.or(item.month).unwrap();
                (
                    time,
                    item.user,
                    item.gpu_index,
                    item.idle,
                    item.energy_joules.millijoules(),
                )
            };
            items.map(row).collect::<Vec<_>>()
        };
        let of = |day: &str, user: Option<&str>, gpu, is_idle, energy| {
            (
                day.to_owned(),
                user.map(str::to_owned),
                gpu,
                is_idle,
                energy,
            )
        };
        let ana = Some("ana");
        let expected = [
            of("2026-11-01", ana, None, false, 50),
            of("2026-11-01", None, None, true, 200),
            of("2026-11-11", ana, None, false, 20),
            of("2026-11-11", None, None, true, 1802),
        ];
        assert_eq!(shown("day,user"), expected);
        let expected = [
            of("2026-11-01", None, Some(0), false, 50),
            of("2026-11-01", None, Some(1), true, 200),
            of("2026-11-11", None, Some(0), false, 20),
            of("2026-11-11", None, Some(1), true, 801),
            of("2026-11-11", None, Some(2), true, 1001),
        ];
        assert_eq!(shown("gpu,day"), expected);
        let expected = [
            of("2026-11", None, None, false, 50),
            of("2026-11", None, None, false, 20),
            of("2026-11", None, None, false, 0),
            of("2026-11", None, None, true, 200),
            of("2026-11", None, None, true, 1802),
        ];
        let mut found = shown("month");
        found.sort_by_key(|row| row.3);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_word_that_is_nothing_to_sum_by_is_refused() {
        assert_eq!(
            GroupBy::parse("user,gpu,user").unwrap(),
            [GroupBy::User, GroupBy::Gpu]
        );
        assert_eq!(GroupBy::parse("").unwrap(), []);
        let error = GroupBy::parse("users").unwrap_err();
        assert!(error.message.contains("\"users\"") && error.hint.is_some());
        assert!(GroupBy::parse("user,month").is_ok());
        let error = GroupBy::parse("month,user,day").unwrap_err();
        assert!(error.message.contains("by day and by month") && error.hint.is_some());
    }

    fn day(from: i64, to: i64) -> Period {
        Period {
            day: jiff::civil::date(2026, 11, 1)
                .checked_add(jiff::Span::new().days(from))
                .ok(),
            from: at(from),
            to: at(to),
        }
    }

    #[test]
    fn a_row_of_a_day_has_what_lies_in_it_and_days_without_usage_have_rows() {
        let days = || vec![day(0, 10), day(10, 20), day(20, 25)];
        let mut report = over("day", days());
        report.add_span(span(1, "ana", 500, (5, 12)));
        report.add_span(span(2, "kim", 1000, (12, 14)));
        let shown = |items: &[v1::Usage]| {
            let of = |item: &v1::Usage| {
                let day = item.day.clone().unwrap();
                (day, item.allocated_gpu_ms, item.jobs, item.capacity_gpu_ms)
            };
            items.iter().map(of).collect::<Vec<_>>()
        };
        let expected = [
            ("2026-11-01", 2500, 1, 10_000),
            ("2026-11-11", 3000, 2, 10_000),
            ("2026-11-21", 0, 0, 5000),
        ];
        let expected = expected.map(|(day, held, jobs, all)| (day.to_owned(), held, jobs, all));
        assert_eq!(shown(&report.items()), expected);

        let mut report = over("user,day", days());
        report.add_span(span(2, "kim", 1000, (12, 14)));
        report.add_span(span(1, "ana", 500, (5, 12)));
        let items = report.items();
        let order: Vec<_> = items
            .iter()
            .map(|item| (item.day.as_deref().unwrap(), item.user.as_deref().unwrap()))
            .collect();
        let expected = [
            ("2026-11-01", "ana"),
            ("2026-11-11", "ana"),
            ("2026-11-11", "kim"),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_gpu_that_was_used_and_is_gone_counts_as_one_of_the_machine() {
        let mut report = report("", 0, 100);
        let mut other = span(1, "ana", 1000, (0, 100));
        other.gpu_uuid = "GPU-2".into();
        report.add_span(other);
        report.add_span(span(2, "ana", 1000, (0, 100)));
        let items = report.items();
        assert_eq!(items[0].allocated_gpu_ms, 200_000);
        assert_eq!(items[0].capacity_gpu_ms, 200_000);
    }

    proptest! {
        /// For any spans, any days and any window over them.
        #[test]
        fn days_add_up_to_the_report_without_days_to_the_millisecond(
            spans in proptest::collection::vec(
                (1_u16..=1000, 0_i64..40_000_000, 1_i64..40_000_000, any::<u64>(), any::<u64>(), any::<u64>(), 0_u64..4),
                1..8,
            ),
            mut cuts in proptest::collection::vec(1_i64..80_000_000, 1..8),
        ) {
            cuts.sort_unstable();
            cuts.dedup();
            let (from, to) = (cuts[0], *cuts.last().unwrap());
            prop_assume!(from < to);
            let days: Vec<Period> = cuts.windows(2).map(|cut| Period { from: cut[0], to: cut[1], ..day(0, 1) }).collect();
            let fill = |report: &mut UsageReport| {
                for (share, began, length, micros, used, loaned, job) in spans.clone() {
                    let mut one = span(job, if job % 2 == 0 { "ana" } else { "kim" }, share, (0, 0));
                    // Also figures that fit a span.
                    let bound = |figure: u64, most: i64| figure % (most.unsigned_abs() + 1);
                    (one.began, one.ended, one.suspended) = (began, began + length, job == 3);
                    one.millijoules = used >> 14;
                    one.estimated = one.millijoules / 3;
                    one.most = (job != 1).then_some(micros >> 30);
                    one.metered = match job {
                        0 => Metered { micros, used, loaned },
                        _ => Metered { micros: bound(micros, length), used: bound(used, length * 1000), loaned },
                    };
                    report.add_span(one);
                }
            };
            let mut whole = over("user", vec![Period { day: None, from, to }]);
            let mut split = over("day,user", days);
            fill(&mut whole);
            fill(&mut split);
            let (whole, split) = (whole.items(), split.items());
            for item in whole.iter().chain(&split) {
                prop_assert!(item.unused_memory_mib_s <= item.memory_mib_s);
                prop_assert_eq!(
                    item.allocated_gpu_ms,
                    item.used_gpu_ms - item.loaned_gpu_ms + item.idle_gpu_ms + item.unknown_gpu_ms
                );
                prop_assert!(item.suspended_gpu_ms <= item.allocated_gpu_ms);
            }
            let figures: [fn(&v1::Usage) -> u64; 10] = [
                |item| item.allocated_gpu_ms, |item| item.used_gpu_ms, |item| item.loaned_gpu_ms,
                |item| item.idle_gpu_ms, |item| item.unknown_gpu_ms, |item| item.suspended_gpu_ms,
                |item| item.memory_mib_s, |item| item.unused_memory_mib_s,
                |item| item.energy_joules.millijoules(), |item| item.energy_estimated_joules.millijoules(),
            ];
            for row in &whole {
                for (place, figure) in figures.into_iter().enumerate() {
                    let days = split.iter().filter(|item| item.user == row.user);
                    prop_assert_eq!(days.map(figure).sum::<u64>(), figure(row), "figure {}", place);
                }
            }
        }

        /// For every measurement, and every division of time into windows.
        #[test]
        fn the_figures_add_up_and_windows_lose_nothing(
            share in 1_u16..=1000, length in 1_i64..100_000, cut in 0_i64..100_000,
            micros in any::<u64>(), used in any::<u64>(), loaned in any::<u64>(),
        ) {
            let mut held = span(1, "ana", share, (0, length));
            held.metered = Metered { micros, used, loaned };
            let cut = cut.min(length);
            let of = |since, until| {
                let mut report = report("", since, until);
                report.add_span(held.clone());
                report.items().pop()
            };
            let whole = of(0, length).unwrap();
            prop_assert_eq!(
                whole.allocated_gpu_ms,
                whole.used_gpu_ms - whole.loaned_gpu_ms + whole.idle_gpu_ms + whole.unknown_gpu_ms
            );
            prop_assert_eq!(whole.allocated_gpu_ms, u64::from(share) * length.unsigned_abs());
            let parts: u64 = [of(0, cut), of(cut, length)].iter().flatten().map(|part| part.allocated_gpu_ms).sum();
            prop_assert_eq!(parts, whole.allocated_gpu_ms);
        }
    }
}
