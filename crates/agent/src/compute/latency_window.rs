//! The requests of a slice with a latency goal over the last minute: how long they waited at the launch gate and worked,
//! and why some took longer than the goal.

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;
use std::time::Duration;

use divvy_api::v1::{LatencyCause, LatencyTime};
use divvy_core::lease::{MissCause, Served};

/// The figures cover this time: long enough for a 99th percentile of two requests a second, and short enough to follow a
/// change of load.
const PERIOD: Duration = Duration::from_secs(60);
/// Requests that are kept: 68 a second over the period, and 96 KiB. With more, the older ones are left out, so that the
/// figures cover a shorter time.
const MOST: usize = 4096;
/// The figures are made anew after this time: sorting for each look of the scheduler would take a processor.
const REFRESH: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct LatencyWindow {
    served: VecDeque<(Duration, Served)>,
    summary: Option<(Duration, LatencyTime)>,
}

impl LatencyWindow {
    pub(super) fn record(&mut self, now: Duration, served: Served) {
        if self.served.len() == MOST {
            self.served.pop_front();
        }
        self.served.push_back((now, served));
    }

    /// The figures; `over_share`: the slice has used up its share.
    pub(super) fn summary(
        &mut self,
        now: Duration,
        goal: Duration,
        over_share: bool,
    ) -> LatencyTime {
        let known = self.summary.filter(|(at, _)| now < *at + REFRESH);
        let mut summary = known.map_or_else(|| self.summarise(now), |(_, summary)| summary);
        (summary.goal_us, summary.over_share) = (micros(goal), over_share);
        if known.is_none() {
            self.summary = Some((now, summary));
        }
        summary
    }

    fn summarise(&mut self, now: Duration) -> LatencyTime {
        while self
            .served
            .front()
            .is_some_and(|(at, _)| *at + PERIOD < now)
        {
            self.served.pop_front();
        }
        let sorted = |part: fn(&Served) -> Duration| {
            let mut all: Vec<Duration> = self.served.iter().map(|(_, one)| part(one)).collect();
            all.sort_unstable();
            all
        };
        let (waits, works) = (sorted(|one| one.waited), sorted(|one| one.worked));
        // The most frequent kind, and of that the last one.
        let mut kinds: HashMap<_, (u32, MissCause)> = HashMap::new();
        for cause in self.served.iter().filter_map(|(_, one)| one.cause) {
            let kind = kinds.entry(discriminant(&cause)).or_insert((0, cause));
            *kind = (kind.0 + 1, cause);
        }
        let missed = kinds.values().map(|(missed, _)| missed).sum();
        let cause = kinds.into_values().max_by_key(|(missed, _)| *missed);
        LatencyTime {
            goal_us: 0,
            requests: count(self.served.len()),
            missed,
            wait_p50_us: percentile(&waits, 50),
            wait_p99_us: percentile(&waits, 99),
            work_p50_us: percentile(&works, 50),
            work_p99_us: percentile(&works, 99),
            over_share: false,
            cause: cause.map(|(_, cause)| to_api(cause)),
        }
    }
}

fn to_api(cause: MissCause) -> LatencyCause {
    match cause {
        MissCause::OverShare => LatencyCause::OverShare,
        MissCause::OwnWork(time) => LatencyCause::OwnWork {
            work_us: micros(time),
        },
        MissCause::Ungated => LatencyCause::UngatedNeighbour,
        MissCause::Neighbour(job, time) => LatencyCause::Neighbour {
            job,
            work_us: micros(time),
        },
        MissCause::Unknown => LatencyCause::Unknown,
    }
}

/// The value that so many of 100 do not exceed, in microseconds; 0 of none.
fn percentile(sorted: &[Duration], part: usize) -> u64 {
    let last = sorted.len().saturating_sub(1);
    let at = (sorted.len() * part / 100).min(last);
    sorted.get(at).copied().map_or(0, micros)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: Duration = Duration::from_millis(20);

    fn served(millis: u64, cause: Option<MissCause>) -> Served {
        Served {
            tenant: 1,
            waited: Duration::from_millis(millis),
            worked: Duration::from_millis(2 * millis),
            cause,
        }
    }

    #[test]
    fn a_lease_of_a_slice_with_a_goal_has_percentiles_and_the_most_frequent_cause_of_the_last_minute()
     {
        let mut window = LatencyWindow::default();
        let second = Duration::from_secs(1);
        assert_eq!(window.summary(Duration::ZERO, GOAL, false).requests, 0);
        for millis in 1..=100 {
            window.record(second, served(millis, None));
        }
        let long = |millis| Some(MissCause::Neighbour(14, Duration::from_millis(millis)));
        for cause in [long(48), Some(MissCause::OverShare), long(50)] {
            window.record(3 * second, served(100, cause));
        }
        let seen = window.summary(3 * second, GOAL, true);
        assert_eq!((seen.goal_us, seen.requests, seen.missed), (20_000, 103, 3));
        assert_eq!((seen.wait_p50_us, seen.wait_p99_us), (52_000, 100_000));
        assert_eq!((seen.work_p50_us, seen.work_p99_us), (104_000, 200_000));
        let (job, work_us) = (14, 50_000);
        assert_eq!(seen.cause, Some(LatencyCause::Neighbour { job, work_us }));
        assert!(seen.over_share);
        // A minute later the first are left out.
        let later = window.summary(62 * second, GOAL, false);
        assert_eq!(
            (later.requests, later.missed, later.over_share),
            (3, 3, false)
        );
    }

    #[test]
    fn the_requests_that_are_kept_for_a_lease_are_bounded() {
        let mut window = LatencyWindow::default();
        for _ in 0..2 * MOST {
            window.record(Duration::ZERO, served(1, None));
        }
        let seen = window.summary(Duration::from_secs(1), GOAL, false);
        assert_eq!(seen.requests as usize, MOST);
    }
}
