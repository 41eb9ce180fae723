//! The attempt to exceed a limit in one way: with one large allocation, and block by block.

use super::{Asks, Session, Taken, Way};

/// The result of an attempt to exceed a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Out of memory came before the limit was passed.
    Enforced,
    /// More than the limit was given.
    NotEnforced,
    /// This driver or this GPU does not offer it, or not in a size that would tell.
    NotAvailable,
    /// It was refused in another way than memory is refused, or did not come back.
    Failed,
}

/// A verdict, with its figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The most bytes that were held at once.
    pub got: u64,
    /// How often memory was refused.
    pub refusals: u64,
    /// In words; empty where the figures say all.
    pub detail: String,
}

/// Blocks are this part of the limit, so that a handful of calls reaches it.
const PARTS: u64 = 8;
/// Blocks are multiples of this; the driver maps memory in such pieces (inferred). The granularity that
/// `cuMemGetAllocationGranularity` answers on all current GPUs.
const PIECE: u64 = 2 << 20;
/// Where each call takes what it takes, so many calls at most.
const CALLS: usize = 4096;

/// Takes memory in one way until it is refused, or the limit is passed; then gives all back and takes a block again.
pub fn exceed(session: &Session, way: &Way, limit: u64) -> Outcome {
    let block = (limit / PARTS / PIECE).max(1) * PIECE;
    let mut refusals = 0;
    let outcome = |verdict, got, refusals, detail: String| Outcome {
        verdict,
        got,
        refusals,
        detail,
    };
    match way.take(session, block) {
        Ok(first) if first.bytes() == 0 => {
            let why = "the memory that it takes cannot be measured here";
            return outcome(Verdict::NotAvailable, 0, 0, why.to_owned());
        }
        Ok(first) => drop(first),
        Err(error) => return outcome(Verdict::NotAvailable, 0, 0, error.to_string()),
    }
    let at_most = match way.asks {
        Asks::UpTo(at_most) | Asks::Shared(at_most) => at_most,
        Asks::Nothing => 0,
    };
    if at_most > limit.saturating_add(block) {
        match way.take(session, limit.saturating_add(block)) {
            Ok(all) => {
                return outcome(
                    Verdict::NotEnforced,
                    all.bytes(),
                    0,
                    "in one call".to_owned(),
                );
            }
            Err(error) if error.is_out_of_memory() => refusals += 1,
            Err(error) => return outcome(Verdict::Failed, 0, 0, error.to_string()),
        }
    }
    if matches!(way.asks, Asks::Shared(_)) {
        return outcome(Verdict::Enforced, block, refusals, "in one call".to_owned());
    }
    let mut held: Vec<Taken<'_>> = Vec::new();
    let mut got = 0;
    let refusal = loop {
        if got > limit || held.len() == CALLS {
            break None;
        }
        match way.take(session, block) {
            Ok(taken) => {
                got += taken.bytes();
                held.push(taken);
            }
            Err(error) => break Some(error),
        }
    };
    let calls = held.len();
    // The last taken goes first, as some can only be undone in that order.
    while held.pop().is_some() {}
    match refusal {
        None => {
            return outcome(
                Verdict::NotEnforced,
                got,
                refusals,
                format!("in {calls} calls"),
            );
        }
        Some(error) if error.is_out_of_memory() => refusals += 1,
        Some(error) => return outcome(Verdict::Failed, got, refusals, error.to_string()),
    }
    match way.take(session, block) {
        Ok(_) => outcome(Verdict::Enforced, got, refusals, String::new()),
        Err(error) => {
            let why = format!("an allocation still fails after all memory was freed: {error}");
            outcome(Verdict::Failed, got, refusals, why)
        }
    }
}
