//! Runs with a visible queue: requests wait until they fit, and a rule chooses which of them start.
//!
//! The rules are strict order, backfill without a reservation, and [`patterns`] with a bound by age. The queue of Divvy's
//! own, with projects and promises, is in `plan`; this run measures what the choice among waiting requests is worth.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::departures::Timed;
use crate::cluster::patterns::{self, Started, Waiting};
use crate::cluster::{BestFit, Choice, Cluster, NodePolicy, Shape};

/// Which waiting requests start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// In order of arrival, until one does not fit.
    InOrder,
    /// In order of arrival, each that fits.
    Backfill,
    /// Those that fill GPUs exactly. Requests that have waited for longer than this are due and go first.
    Patterns { due_after: f64 },
}

/// What became of a request, in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub arrived: f64,
    /// When it started; `None` where it still waited at the end.
    pub started: Option<f64>,
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueResult {
    pub outcomes: Vec<Outcome>,
    /// Thousandths of GPUs in use, times the time for which they were.
    pub used: f64,
    /// When the last event happened.
    pub end: f64,
}

impl QueueResult {
    /// The waits of the requests that started, in order of arrival.
    pub fn waits(&self) -> impl Iterator<Item = f64> {
        let outcomes = self.outcomes.iter();
        outcomes.filter_map(|outcome| Some(outcome.started? - outcome.arrived))
    }

    /// The longest wait of a request that started; 0 where none did.
    pub fn longest_wait(&self) -> f64 {
        self.waits().fold(0.0, f64::max)
    }

    pub fn mean_wait(&self) -> f64 {
        let (sum, count) = self
            .waits()
            .fold((0.0, 0_u32), |(sum, count), wait| (sum + wait, count + 1));
        sum / f64::from(count.max(1))
    }

    /// Requests that started while an earlier one, due after this time, was waiting.
    pub fn overtakes_of_due(&self, due_after: f64) -> usize {
        let mut overtakes = 0;
        for (at, later) in self.outcomes.iter().enumerate() {
            let Some(started) = later.started else {
                continue;
            };
            let overtaken = self.outcomes[..at].iter().any(|earlier| {
                let waits = earlier.started.is_none_or(|other| other > started);
                waits && started - earlier.arrived > due_after
            });
            overtakes += usize::from(overtaken);
        }
        overtakes
    }
}

/// Lets requests arrive, wait, start and leave, until the last arrival has started or nothing more can happen.
pub fn run(
    rule: Rule,
    cluster: &Cluster,
    arrivals: impl IntoIterator<Item = Timed>,
) -> QueueResult {
    let mut run = Run {
        rule,
        cluster: cluster.clone(),
        best_fit: BestFit::default(),
        now: 0.0,
        waiting: Vec::new(),
        holders: Vec::new(),
        leaving: BinaryHeap::new(),
        result: QueueResult::default(),
    };
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let next_arrival = arrivals.peek().map(|request| request.at);
        let next_departure = run.leaving.peek().map(|Reverse(leaving)| leaving.at);
        match (next_arrival, next_departure) {
            (None, _) if run.waiting.is_empty() => break,
            (Some(at), departure) if departure.is_none_or(|departure| at < departure) => {
                run.advance(at);
                // Requests that arrive together are seen together.
                while let Some(request) = arrivals.next_if(|request| request.at <= at) {
                    run.arrive(request);
                }
            }
            (_, Some(at)) => {
                run.advance(at);
                run.depart();
            }
            // What waits fits nowhere, however empty the cluster is.
            (_, None) => break,
        }
        run.start_some();
    }
    run.result
}

/// A job that leaves. The order is by time, then by number.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    at: f64,
    number: usize,
}

impl PartialEq for Leaving {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Leaving {}

impl PartialOrd for Leaving {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Leaving {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_time = self.at.total_cmp(&other.at);
        by_time.then(self.number.cmp(&other.number))
    }
}

struct Run {
    rule: Rule,
    cluster: Cluster,
    best_fit: BestFit,
    now: f64,
    /// Requests by number, in order of arrival.
    waiting: Vec<(usize, Timed)>,
    /// What each request holds, by number.
    holders: Vec<Option<(Shape, Choice)>>,
    leaving: BinaryHeap<Reverse<Leaving>>,
    result: QueueResult,
}

impl Run {
    fn advance(&mut self, to: f64) {
        let used = self.cluster.capacity_milli() - self.cluster.free_milli();
        self.result.used += used as f64 * (to - self.now);
        self.result.end = to;
        self.now = to;
    }

    fn arrive(&mut self, request: Timed) {
        self.waiting.push((self.holders.len(), request));
        self.holders.push(None);
        self.result.outcomes.push(Outcome {
            arrived: request.at,
            started: None,
        });
    }

    fn depart(&mut self) {
        if let Some(Reverse(leaving)) = self.leaving.pop()
            && let Some((shape, choice)) = self.holders[leaving.number].take()
        {
            self.cluster.release(&shape, &choice);
        }
    }

    fn start_some(&mut self) {
        let mut started: BTreeSet<usize> = BTreeSet::new();
        match self.rule {
            Rule::InOrder | Rule::Backfill => {
                let mut refused: BTreeSet<Shape> = BTreeSet::new();
                for at in 0..self.waiting.len() {
                    let shape = self.waiting[at].1.shape;
                    if refused.contains(&shape) {
                        continue;
                    }
                    if let Some(choice) = self.best_fit.choose(&self.cluster, &shape) {
                        self.start(at, choice);
                        started.insert(at);
                    } else if self.rule == Rule::InOrder {
                        break;
                    } else {
                        refused.insert(shape);
                    }
                }
            }
            Rule::Patterns { due_after } => {
                // Most departures make room for none of the requests: then there is nothing to choose.
                let shapes: BTreeSet<Shape> =
                    self.waiting.iter().map(|(_, one)| one.shape).collect();
                let mut shapes = shapes.iter();
                if !shapes.any(|shape| self.best_fit.choose(&self.cluster, shape).is_some()) {
                    return;
                }
                let waiting = self.waiting.iter().map(|(_, request)| Waiting {
                    shape: request.shape,
                    is_due: self.now - request.at > due_after,
                });
                let waiting: Vec<Waiting> = waiting.collect();
                for Started { waiting, choice } in patterns::start(&self.cluster, &waiting) {
                    self.start(waiting, choice);
                    started.insert(waiting);
                }
            }
        }
        let mut at = 0;
        self.waiting.retain(|_| {
            let waits = !started.contains(&at);
            at += 1;
            waits
        });
    }

    fn start(&mut self, at: usize, choice: Choice) {
        let (number, request) = self.waiting[at];
        let taken = self.cluster.take(&request.shape, &choice);
        debug_assert!(taken, "{:?} does not fit at {choice:?}", request.shape);
        self.holders[number] = Some((request.shape, choice));
        self.result.outcomes[number].started = Some(self.now);
        self.leaving.push(Reverse(Leaving {
            at: self.now + request.holding,
            number,
        }));
    }
}
