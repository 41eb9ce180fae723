//! Usage of jobs: sums over the journal's rows of held and used GPU time. Pure.
//!
//! ```text
//! allocated = used within its share + idle + unknown          used = within + loaned
//! ```
//! Time of a GPU is counted in GPU-nanoseconds (thousandths of a GPU times microseconds), and memory in
//! byte-microseconds: no rounding before the sums are shown.

pub mod meter;

use std::collections::{BTreeMap, HashSet};

use divvy_api::v1::{self, Error};
use divvy_core::JobId;
use jiff::Timestamp;

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

/// What rows are put together by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupBy {
    User,
    Project,
    Queue,
    Gpu,
    Job,
}

impl GroupBy {
    const ALL: [(&'static str, Self); 5] = [
        ("user", Self::User),
        ("project", Self::Project),
        ("queue", Self::Queue),
        ("gpu", Self::Gpu),
        ("job", Self::Job),
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
        Ok(all)
    }
}

/// The owner of a row, in the order of [`GroupBy`]; a field is empty if the query does not group by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    user: Option<String>,
    project: Option<String>,
    queue: Option<String>,
    gpu: Option<(u32, String)>,
    job: Option<(JobId, String)>,
}

#[derive(Clone, Debug, Default)]
struct Sum {
    jobs: HashSet<JobId>,
    /// GPU-nanoseconds.
    allocated: u128,
    used: u128,
    loaned: u128,
    idle: u128,
    suspended: u128,
    /// Byte-microseconds.
    memory: u128,
}

/// Sums over a window of time.
#[derive(Debug)]
pub struct UsageReport {
    by: Vec<GroupBy>,
    since: i64,
    until: i64,
    sums: BTreeMap<Key, Sum>,
}

/// `part` of `whole` of a figure.
fn part_of(figure: u64, part: u64, whole: u64) -> u128 {
    (u128::from(figure) * u128::from(part))
        .checked_div(u128::from(whole))
        .unwrap_or(0)
}

impl UsageReport {
    pub fn new(by: Vec<GroupBy>, (since, until): (Timestamp, Timestamp)) -> Self {
        Self {
            by,
            since: since.as_microsecond(),
            until: until.as_microsecond(),
            sums: BTreeMap::new(),
        }
    }

    /// Counts what of a row lies within the window. What was held is counted to the microsecond; what was measured is
    /// taken to have been even over the row, which is an hour at most while a daemon runs.
    pub fn add_span(&mut self, span: Span) {
        let from = span.began.max(self.since);
        let (Ok(part), Ok(whole)) = (
            u64::try_from(span.ended.min(self.until) - from),
            u64::try_from(span.ended - span.began),
        ) else {
            return;
        };
        if part == 0 || whole == 0 {
            return;
        }
        let share = u128::from(span.share);
        let allocated = share * u128::from(part);
        // No measurement lasts longer than its job, or uses more than a whole GPU.
        let micros = span.metered.micros.min(whole);
        let used = span.metered.used.min(micros.saturating_mul(1000));
        let loaned = span.metered.loaned.min(used);
        let measured = share * part_of(micros, part, whole);
        let used = part_of(used, part, whole);
        let loaned = part_of(loaned, part, whole).min(used);
        // Rounding must not make more of it than was held.
        let within = (used - loaned).min(measured);
        let sum = self.sums.entry(key(&self.by, &span)).or_default();
        sum.jobs.insert(span.owner.job);
        sum.allocated += allocated;
        sum.used += used;
        sum.loaned += used - within;
        sum.idle += measured - within;
        sum.memory += u128::from(span.memory) * u128::from(part);
        if span.suspended {
            sum.suspended += allocated;
        }
    }

    /// A row for each of what was asked by, in their order.
    pub fn items(self) -> Vec<v1::Usage> {
        self.sums
            .into_iter()
            .map(|(key, sum)| item(key, &sum))
            .collect()
    }
}

fn key(by: &[GroupBy], span: &Span) -> Key {
    let has = |one| by.contains(&one);
    let owner = &span.owner;
    Key {
        user: has(GroupBy::User).then(|| owner.user.clone()),
        project: owner.project.clone().filter(|_| has(GroupBy::Project)),
        queue: has(GroupBy::Queue).then(|| owner.queue.clone()),
        gpu: has(GroupBy::Gpu).then(|| (span.gpu_index, span.gpu_uuid.clone())),
        job: has(GroupBy::Job).then(|| (owner.job, owner.name.clone())),
    }
}

fn item(key: Key, sum: &Sum) -> v1::Usage {
    let shown = |figure: u128, unit: u128| u64::try_from(figure / unit).unwrap_or(u64::MAX);
    let ms = |gpu_ns: u128| shown(gpu_ns, 1_000_000);
    let (allocated, used, idle) = (ms(sum.allocated), ms(sum.used), ms(sum.idle));
    // By the part that is no loan: each rounded down, the figures add up to no more than what was allocated.
    let within = ms(sum.used.saturating_sub(sum.loaned));
    let (gpu_index, gpu_uuid) = key.gpu.unzip();
    let (job, name) = key.job.unzip();
    v1::Usage {
        day: None,
        capacity_gpu_ms: 0,
        user: key.user,
        project: key.project,
        queue: key.queue,
        gpu_index,
        gpu_uuid,
        job: job.map(|job| job.to_string()),
        name,
        jobs: u64::try_from(sum.jobs.len()).unwrap_or(u64::MAX),
        allocated_gpu_ms: allocated,
        used_gpu_ms: used,
        loaned_gpu_ms: used - within,
        idle_gpu_ms: idle,
        // What is left, so that the figures that are shown add up.
        unknown_gpu_ms: allocated.saturating_sub(within).saturating_sub(idle),
        suspended_gpu_ms: ms(sum.suspended),
        memory_mib_s: shown(sum.memory, (1 << 20) * 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> i64 {
        seconds * 1_000_000
    }

    fn window(since: i64, until: i64) -> (Timestamp, Timestamp) {
        let time = |seconds| Timestamp::from_second(seconds).unwrap();
        (time(since), time(until))
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
        }
    }

    #[test]
    fn what_is_held_counts_by_share_and_time_and_only_within_the_window() {
        let mut report = UsageReport::new(GroupBy::parse("user,job").unwrap(), window(100, 200));
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
        let mut report = UsageReport::new(Vec::new(), window(0, 50));
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
        let mut report = UsageReport::new(Vec::new(), window(0, 101));
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
    fn a_word_that_is_nothing_to_sum_by_is_refused() {
        assert_eq!(
            GroupBy::parse("user,gpu,user").unwrap(),
            [GroupBy::User, GroupBy::Gpu]
        );
        assert_eq!(GroupBy::parse("").unwrap(), []);
        let error = GroupBy::parse("users").unwrap_err();
        assert!(error.message.contains("\"users\"") && error.hint.is_some());
    }

    proptest! {
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
                let mut report = UsageReport::new(Vec::new(), window(since, until));
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
