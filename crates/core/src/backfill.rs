//! When a job may start before one that was ahead of it.
//!
//! The job ahead waits for other jobs to end, and nobody knows which will, or in what order. So a start is harmless only
//! if it changes nothing for the job ahead whatever happens: on each GPU that it takes a part of, for **every** set of
//! holders that may be gone one day, the job ahead finds room there with it exactly when it finds room there without it.
//!
//! ```text
//!   GPU 2  ██████████████████████████████··········    free 0.25; the job ahead needs 0.5
//!          └── #1 holds 0.75 ────────────┘└─ 0.25 ─┘   when #1 ends, 0.75 are left beside the new job: harmless
//!          └── #1 0.5 ───────┘└ #2 0.25 ─┘└─ 0.25 ─┘   when #2 ends, 0.5 would be free, but for the new job: not harmless
//! ```
//!
//! As the GPUs that can serve the job ahead are then the same at any time, it starts when it would have started. This is
//! exact for each GPU, and careful beyond: that a job ends on all its GPUs at once, or that another GPU would do as well,
//! is not made use of, and a GPU with too many different holders is left alone. A job ahead that needs whole GPUs keeps
//! every GPU it could use. The promise is to the first job that waits; those between it and the new one are asked in the
//! same way, so that nothing they could use as things are is taken either, but what the first will take is not foreseen.

use std::collections::BTreeSet;

use crate::board::Tile;
use crate::fit::{Need, Size, size};
use crate::request::Request;
use crate::units::Bytes;

/// More different sums than this, and a GPU is left alone. 1024 covers any ten holders, or a thousand equal ones.
const MOST_SUMS: usize = 1024;

/// Whether `new` on this GPU could ever keep the job `ahead` from it.
pub(crate) fn disturbs(tile: &Tile<'_>, new: Size, ahead: &Request) -> bool {
    let Ok(needed) = size(tile, ahead) else {
        return false;
    };
    match Need::of(ahead.amount) {
        // It could use this GPU once every holder is gone, and not beside a new one.
        Need::Whole { .. } => true,
        Need::Parts { .. } => {
            let Some(releases) = releases(tile) else {
                return true;
            };
            releases
                .into_iter()
                .any(|release| takes_away(tile, release, new, needed))
        }
    }
}

/// Whether `needed` fits after this release, with some of the foreign memory gone or none, and not beside `new`.
fn takes_away(tile: &Tile<'_>, (share, memory): (u64, Bytes), new: Size, needed: Size) -> bool {
    let free_share = tile.free_share() + share;
    let needed_share = u64::from(needed.share.thousandths());
    let unheld = tile.unheld_memory().saturating_add(memory);
    if free_share < needed_share || unheld < needed.memory {
        return false;
    }
    // The least that may be free when it fits.
    let free_memory = unheld.saturating_sub(tile.foreign).max(needed.memory);
    free_share < needed_share + u64::from(new.share.thousandths())
        || free_memory < needed.memory.saturating_add(new.memory)
}

/// Every sum of share and memory that some set of holders could give back; `None` when there are too many.
fn releases(tile: &Tile<'_>) -> Option<BTreeSet<(u64, Bytes)>> {
    let mut sums = BTreeSet::from([(0, Bytes::ZERO)]);
    for holder in &tile.holders {
        let (share, memory) = (
            u64::from(holder.grant.share.thousandths()),
            holder.grant.memory,
        );
        let more: Vec<_> = sums
            .iter()
            .map(|(s, m)| (s + share, m.saturating_add(memory)))
            .collect();
        sums.extend(more);
        if sums.len() > MOST_SUMS {
            return None;
        }
    }
    Some(sums)
}
