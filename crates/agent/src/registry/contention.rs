//! Contention between daemons: the decision of a daemon that has published an intent and then read the other entries.
//!
//! ```text
//! publish held + intent ──► read the others ──► fits: journal, then publish held
//!                                           ├─► taken: take the intent back
//!                                           └─► ahead: read again, as the others take theirs back
//! ```
//! Safety: let two daemons get "fits", and let A have published first. B has read A's entry after B's own publication,
//! so B has counted A's intent, or what became of it, and A's amount does not shrink while it is granted.
//!
//! Liveness: owners are ranked. A daemon takes its intent back for intents of a lower rank only, so of the daemons that
//! want a GPU at one moment, the one of the lowest rank waits for the others to do so.

use divvy_core::Bytes;

use crate::registry::entry::Amount;

/// What one daemon says of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Claim<R> {
    pub rank: R,
    pub held: Amount,
    pub intent: Amount,
}

/// What becomes of an intent. The greatest of several GPUs' verdicts counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Fits,
    /// It fits once daemons of a higher rank have taken their intents back.
    Ahead,
    /// It does not fit beside what is held, or what a daemon of a lower rank intends.
    Taken,
}

/// Judges an intent on one GPU with this much usable memory.
pub fn judge<R: Ord + Copy>(
    usable: Bytes,
    mine: Claim<R>,
    others: impl Iterator<Item = Claim<R>>,
) -> Verdict {
    let mut first = mine.held.plus(mine.intent);
    let mut behind = Amount::ZERO;
    for other in others {
        first = first.plus(other.held);
        match other.rank < mine.rank {
            true => first = first.plus(other.intent),
            false => behind = behind.plus(other.intent),
        }
    }
    match (first.fits(usable), first.plus(behind).fits(usable)) {
        (false, _) => Verdict::Taken,
        (true, false) => Verdict::Ahead,
        (true, true) => Verdict::Fits,
    }
}
