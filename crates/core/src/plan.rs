//! The plan: who starts now and on what, who waits and why.
//!
//! Jobs are asked in the order in which queues are served. The first that does not fit stops the pass, so that nothing
//! small overtakes it for ever; with `backfill` the pass goes on for those that cannot delay it (see `backfill`). A job
//! that could never fit, say because a GPU was lost since it was accepted, is set aside and stops nobody.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backfill::disturbs;
use crate::board::Board;
use crate::capacity::fits_empty;
use crate::ids::{GpuUuid, JobId, QueueName};
use crate::mig::Placement;
use crate::placement::{Offer, place};
use crate::queue::Order;
use crate::reason::{Ahead, Reason, Shortage};
use crate::request::Request;
use crate::slice::Grant;
use crate::snapshot::{Snapshot, Waiting};

/// What to do now. Every waiting job of the snapshot is in exactly one of the two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they were decided.
    pub starts: Vec<Start>,
    /// In the order in which they were asked.
    pub waits: Vec<Wait>,
    /// For the next snapshot.
    pub cursor: usize,
}

/// A job that starts, and what it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub job: JobId,
    pub queue: QueueName,
    pub grants: Vec<Grant>,
    /// Idle MIG instances in the way of its own: to be removed before.
    pub reclaim: Vec<(GpuUuid, Placement)>,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub job: JobId,
    pub queue: QueueName,
    /// Its place in its queue once the plan is carried out, from 1.
    pub place: usize,
    pub reason: Reason,
}

/// Decides. Equal snapshots give equal plans.
pub fn plan(snapshot: &Snapshot) -> Plan {
    plan_on_board(snapshot).0
}

/// The plan, and the board with the plan carried out.
pub(crate) fn plan_on_board(snapshot: &Snapshot) -> (Plan, Board<'_>) {
    let mut pass = Pass {
        board: Board::of(snapshot),
        empty: Board::empty(&snapshot.gpus),
        backfill: snapshot.backfill,
        ahead: Vec::new(),
        found: BTreeMap::new(),
    };
    let mut plan = Plan {
        cursor: snapshot.cursor,
        ..Plan::default()
    };
    let mut places = vec![0; snapshot.queues.len()];
    let mut turns = turns(snapshot);
    for turn in 0..turns.len() {
        let (queue, place) = turns[turn];
        let Waiting { job, request } = &snapshot.queues[queue].waiting[place];
        let name = snapshot.queues[queue].spec.name.clone();
        let unobstructed = pass.ahead.is_empty();
        match pass.ask(*job, &name, request) {
            Ok(grants) => {
                if unobstructed && snapshot.order == Order::Fairness {
                    plan.cursor = (queue + 1) % snapshot.queues.len();
                }
                plan.starts.push(Start {
                    job: *job,
                    queue: name,
                    grants,
                    reclaim: Vec::new(),
                });
            }
            Err(reason) => {
                places[queue] += 1;
                plan.waits.push(Wait {
                    job: *job,
                    queue: name,
                    place: places[queue],
                    reason,
                });
            }
        }
        if snapshot.backfill && unobstructed && !pass.ahead.is_empty() {
            // What the head leaves over goes by priority, so that the next plan would ask in the same order.
            turns[turn + 1..].sort_unstable();
        }
    }
    (plan, pass.board)
}

/// The waiting jobs as (queue, place in it), in the order in which they are served.
///
/// Strict: queue by queue, for after each start it is the first queue's turn again. Fair: the first job of each queue
/// from the cursor on, then the second of each, and so on; an empty queue loses its turn.
fn turns(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    let queues = snapshot.queues.iter().enumerate();
    let mut turns: Vec<_> = queues
        .flat_map(|(queue, on)| (0..on.waiting.len()).map(move |place| (queue, place)))
        .collect();
    if snapshot.order == Order::Fairness {
        let count = snapshot.queues.len();
        turns.sort_by_key(|(queue, place)| {
            (*place, (queue + count - snapshot.cursor % count) % count)
        });
    }
    turns
}

/// So many different requests may wait before backfill looks no further; it bounds the time a plan takes.
const DEEPEST_BACKFILL: usize = 64;

/// A pass over the waiting jobs.
struct Pass<'a> {
    board: Board<'a>,
    empty: Board<'a>,
    backfill: bool,
    /// The jobs that did not fit, one for each different request; the first of them is the head.
    ahead: Vec<(&'a Request, Arc<Ahead>)>,
    /// Why the next job with this request waits. Nothing is released during a pass, so it stays true.
    found: BTreeMap<&'a Request, Reason>,
}

impl<'a> Pass<'a> {
    /// Starts the job, or says why not.
    fn ask(
        &mut self,
        job: JobId,
        queue: &QueueName,
        request: &'a Request,
    ) -> Result<Vec<Grant>, Reason> {
        if let Some(reason) = self.found.get(request) {
            return Err(reason.clone());
        }
        if let Err(never) = fits_empty(&self.empty, request) {
            let reason = Reason::Never(Arc::new(never));
            self.found.insert(request, reason.clone());
            return Err(reason);
        }
        if let Some((_, head)) = self.ahead.first()
            && !(self.backfill && self.ahead.len() < DEEPEST_BACKFILL)
        {
            let reason = Reason::Behind(Arc::clone(head));
            self.found.insert(request, reason.clone());
            return Err(reason);
        }
        if let Some(offers) = self.place_sparing(&self.ahead, request) {
            return Ok(self.board.give(job, queue, &offers));
        }
        let short = Arc::new(Shortage::of(&self.board, request));
        let reason = match self.in_the_way(request) {
            Some(ahead) => Reason::Yields(ahead),
            None => Reason::Short(Arc::clone(&short)),
        };
        let this = Arc::new(Ahead {
            job,
            queue: queue.clone(),
            short,
        });
        let next = if self.backfill {
            reason.clone()
        } else {
            Reason::Behind(Arc::clone(&this))
        };
        self.found.insert(request, next);
        self.ahead.push((request, this));
        Err(reason)
    }

    /// The job ahead for whose sake this request is not started, if it fits.
    fn in_the_way(&self, request: &Request) -> Option<Arc<Ahead>> {
        let fits = |first: usize| self.place_sparing(&self.ahead[..first], request).is_some();
        let stopper = (1..=self.ahead.len())
            .find(|first| !fits(*first))
            .filter(|_| fits(0))?;
        Some(Arc::clone(&self.ahead[stopper - 1].1))
    }

    /// Places the request where it disturbs none of these.
    fn place_sparing(
        &self,
        ahead: &[(&Request, Arc<Ahead>)],
        request: &Request,
    ) -> Option<Vec<Offer>> {
        place(&self.board, request, |tile, size| {
            !ahead.iter().any(|(ahead, _)| disturbs(tile, size, ahead))
        })
    }
}
