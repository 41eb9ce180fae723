//! Advancing several GPUs (or compute instances) together, and meetings of queues (rendezvous).

use crate::engine::time::{Engine, Interval, Kind, Lane, Stage};
use std::sync::atomic::Ordering::Relaxed;

/// One GPU and its queues that have work, in the order of their slots.
pub struct ActiveEngine<'a> {
    pub engine: &'a Engine,
    pub lanes: Vec<Lane<'a>>,
}

impl<'a> ActiveEngine<'a> {
    pub fn new(engine: &'a Engine, lanes: impl IntoIterator<Item = Lane<'a>>) -> ActiveEngine<'a> {
        let lanes = lanes.into_iter().filter(|lane| lane.queue.has_work());
        ActiveEngine {
            engine,
            lanes: lanes.collect(),
        }
    }

    /// How far time may jump before something happens here; None when nothing will by itself: all queued work is done,
    /// stands at a gate, or spins for a party that is not queued anywhere.
    pub fn until_next_event(&self) -> Option<u64> {
        let mut heads = self.lanes.iter().filter_map(|lane| lane.queue.head());
        if !heads.any(|head| head.kind.gets_on()) {
            return None;
        }
        let step = self.engine.next_step(&self.lanes);
        step.map(|step| step.ns)
    }
}

/// Brings GPUs to time `to` together, so that queues that meet across them do so at one time. The caller holds the
/// lock.
pub fn advance(parts: &[ActiveEngine<'_>], to: u64) {
    for ActiveEngine { engine, .. } in parts {
        if to < engine.now() {
            // The machine was restarted: the monotonic clock began anew.
            engine.now.store(to, Relaxed);
        }
    }
    let latest = parts.iter().map(|part| part.engine.now()).max();
    for part in parts {
        advance_in_step(std::slice::from_ref(part), latest.unwrap_or(to));
    }
    advance_in_step(parts, to);
}

/// The parts stand at the same time.
fn advance_in_step(parts: &[ActiveEngine<'_>], to: u64) {
    let now = || parts.first().map_or(to, |part| part.engine.now());
    loop {
        finish_due(parts);
        let steps: Vec<Option<Interval>> = parts
            .iter()
            .map(|part| part.engine.next_step(&part.lanes))
            .collect();
        let next = steps.iter().flatten().map(|step| step.ns).min();
        let Some(ns) = next.filter(|_| now() < to) else {
            break;
        };
        let ns = ns.min(to - now());
        for (ActiveEngine { engine, lanes }, step) in parts.iter().zip(&steps) {
            match step {
                Some(step) => engine.take(lanes, step, ns),
                None => engine.now.store(engine.now() + ns, Relaxed),
            }
        }
    }
    for ActiveEngine { engine, .. } in parts {
        engine.now.store(to, Relaxed);
    }
}

/// Ends what is over at this moment: entries that have had their time, and meetings of parties that all run or have
/// run.
fn finish_due(parts: &[ActiveEngine<'_>]) {
    loop {
        for part in parts {
            part.engine.finish_heads(&part.lanes);
        }
        let met = parts
            .iter()
            .fold(false, |met, part| met | meet(part, parts));
        if !met {
            return;
        }
    }
}

/// Advances the meeting of the lane with the turn, if it has one; whether a lane got on by it.
fn meet(part: &ActiveEngine<'_>, all: &[ActiveEngine<'_>]) -> bool {
    let heads = || all.iter().flat_map(|part| &part.lanes);
    let spins = |lane: &&Lane<'_>| {
        let head = lane.queue.head();
        head.is_some_and(|head| matches!(head.kind, Kind::Meet { .. }))
    };
    if !part.lanes.iter().any(|lane| spins(&lane)) {
        return false;
    }
    let runs = part
        .engine
        .next_step(&part.lanes)
        .and_then(|step| step.runs);
    let Some(lane) = runs.map(|at| part.lanes[at]) else {
        return false;
    };
    let Some(Kind::Meet {
        key,
        parties,
        stage,
    }) = lane.queue.head().map(|head| head.kind)
    else {
        return false;
    };
    match stage {
        Stage::Released => {
            lane.queue.finish_head(part.engine.now());
            true
        }
        // One that had come alone, while its GPU was brought to the others' time, finds them now.
        Stage::Arrived | Stage::Expected => {
            lane.queue.set_stage_of_head(Stage::Arrived);
            let arrived = Kind::Meet {
                key,
                parties,
                stage: Stage::Arrived,
            };
            let here: Vec<&Lane<'_>> = heads()
                .filter(|lane| lane.queue.head().is_some_and(|head| head.kind == arrived))
                .collect();
            if here.len() < usize::from(parties) {
                return false;
            }
            here.into_iter()
                .for_each(|lane| lane.queue.set_stage_of_head(Stage::Released));
            true
        }
    }
}
