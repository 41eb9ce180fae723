//! Patterns: which of all waiting requests start now, so that they fill GPUs exactly.
//!
//! ```text
//!  waiting ──► sets of parts that fill a GPU ──► pool: as many GPUs as are idle ──► nodes, by CPU per GPU ──► gaps
//! ```
//! An online policy has to place each request as it comes. Where requests wait, the queue is known: parts that add up to
//! whole GPUs start together, and nodes get requests that use their CPU up evenly. Requests that pack badly wait longer,
//! so the caller bounds that by age: requests that are due go first.

mod assign;
mod pool;

use std::collections::BTreeSet;

use self::assign::Assignment;
use divvy_packing::{Choice, Cluster, Shape};

/// Requests that are considered at once; the oldest ones. More would slow each decision, and the oldest come first
/// anyway.
pub const MOST_WAITING: usize = 50_000;

/// GPUs in the pool for each idle GPU, in percent. Which is best depends on the mix, so each is tried.
const POOLS: [u64; 6] = [100, 102, 104, 106, 108, 110];

/// Attempts to start all requests that are due. Each takes as long as the first, so more would slow every decision.
const ATTEMPTS: usize = 4;

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub shape: Shape,
    /// Whether it has waited so long that requests which are not due must not start in its place.
    pub is_due: bool,
}

/// A request that starts, by its place in the list of those that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    pub waiting: usize,
    pub choice: Choice,
}

/// The requests that start, each with its place. `waiting` is in order of arrival, the oldest first. The same input
/// gives the same answer.
///
/// Where there is no room for all requests that are due, they start in order of arrival until one does not fit, and no
/// other request starts.
pub fn start(cluster: &Cluster, waiting: &[Waiting]) -> Vec<Started> {
    let waiting = &waiting[..waiting.len().min(MOST_WAITING)];
    let due = waiting.iter().enumerate().filter(|(_, one)| one.is_due);
    let due: BTreeSet<usize> = due.map(|(at, _)| at).collect();
    // The least to do better than: all that are due by best fit, the biggest first, or else in order of arrival.
    let mut best = Assignment::new(cluster);
    best.place_biggest_first(due.iter().copied(), waiting);
    if !best.has_started(&due) {
        best = Assignment::new(cluster);
        best.place_in_order(&due, waiting);
        if !best.has_started(&due) {
            return best.started;
        }
    }
    best.place_rest(waiting);
    let mut most = best.milli(cluster, waiting);
    // Due requests for which no pool leaves room go before all others in the next attempt.
    let mut first: BTreeSet<usize> = BTreeSet::new();
    for _ in 0..ATTEMPTS {
        let mut missing: BTreeSet<usize> = BTreeSet::new();
        let mut found = false;
        for percent in POOLS {
            let mut assignment = Assignment::new(cluster);
            assignment.place_biggest_first(first.iter().copied(), waiting);
            assignment.place_pool(&first, percent, waiting);
            assignment.place_rest(waiting);
            if !assignment.has_started(&due) {
                missing.extend(assignment.not_started(&due));
                continue;
            }
            found = true;
            let milli = assignment.milli(cluster, waiting);
            if milli > most {
                (most, best) = (milli, assignment);
            }
        }
        if found {
            break;
        }
        first.extend(missing);
    }
    best.started
}
