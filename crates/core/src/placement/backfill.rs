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
//! every GPU it could use. On a GPU in MIG mode the same is asked of places instead of sums: for every set of instances that
//! may be gone, there is a place for the job ahead beside the new instance exactly when there is one without it. The promise is to the first job that waits; those between it and the new one are asked in the
//! same way, so that nothing they could use as things are is taken either, but what the first will take is not foreseen.

use std::collections::BTreeSet;

use crate::model::request::Request;
use crate::placement::Offer;
use crate::placement::fit::{GrantSize, RequestShape, size};
use crate::placement::occupancy::{GpuUsage, Releases};
use crate::units::Bytes;

/// More different sums than this, and a GPU is left alone. 1024 covers any ten holders, or a thousand equal ones.
const MOST_SUMS: usize = 1024;

/// Whether `new` on this GPU could ever keep the job `ahead` from it.
pub(crate) fn delays_reserved(tile: &GpuUsage<'_>, new: &Offer, ahead: &Request) -> bool {
    let Ok(needed) = size(tile, ahead) else {
        return false;
    };
    if let (Some(seats), Some(seat), Some(profile)) = (&tile.mig, &new.mig, needed.profile) {
        return seats.may_block(seat.grant.placement, profile);
    }
    match RequestShape::of(ahead.amount) {
        // It could use this GPU once every holder is gone, and not beside a new one.
        RequestShape::Whole { .. } => true,
        RequestShape::Parts { .. } => {
            let Some(releases) = tile.releases(releases) else {
                return true;
            };
            let mut releases = releases.iter();
            releases.any(|release| takes_away(tile, *release, new.size, needed))
        }
    }
}

/// Whether `needed` fits after this release, once enough foreign memory is gone too, and not beside `new` as it is.
fn takes_away(
    tile: &GpuUsage<'_>,
    (share, memory): (u64, Bytes),
    new: GrantSize,
    needed: GrantSize,
) -> bool {
    let (free_share, unheld) = (
        tile.free_share() + share,
        tile.unallocated_memory().saturating_add(memory),
    );
    let [needed_share, new_share] = [needed, new].map(|size| u64::from(size.share.thousandths()));
    let fits = needed_share <= free_share && needed.memory <= unheld;
    let beside = needed_share + new_share <= free_share
        && needed.memory.saturating_add(new.memory) <= unheld.saturating_sub(tile.unmanaged);
    fits && !beside
}

/// Every sum of share and memory that some set of holders could give back; `None` when there are too many.
fn releases(tile: &GpuUsage<'_>) -> Option<Releases> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::Gpu;
    use crate::model::request::Amount;
    use crate::placement::occupancy::NodeUsage;
    use crate::placement::place;
    use crate::units::{JobId, QueueName};

    /// A GPU of 80 GiB with these held, and whether starting `new` there disturbs `ahead`.
    fn disturbs(foreign: Bytes, held: &[&str], new: &str, ahead: &str) -> bool {
        let request = |text: &str| match text.parse() {
            Ok(memory) => Request::from(Amount::Memory(memory)),
            Err(_) => Amount::from_gpu_flag(text).unwrap().into(),
        };
        let gpu = Gpu {
            foreign,
            ..Gpu::sample(0, Bytes::gib(80))
        };
        let gpus = [gpu];
        let mut board = NodeUsage::empty(&gpus);
        for (job, text) in (1..).zip(held) {
            let offers = place(&board, &request(text), |_, _| true).unwrap();
            board.assign(JobId(job), &QueueName::default_queue(), &offers);
        }
        board.gpus[0].unmanaged = foreign;
        let new = Offer {
            position: 0,
            size: size(&board.gpus[0], &request(new)).unwrap(),
            mig: None,
        };
        super::delays_reserved(&board.gpus[0], &new, &request(ahead))
    }

    #[test]
    fn one_large_holder_leaves_room_for_both_when_it_ends() {
        assert!(!disturbs(Bytes::ZERO, &["0.75"], "0.25", "0.5"));
    }

    #[test]
    fn a_small_holder_whose_end_would_have_been_enough_forbids_it() {
        assert!(disturbs(Bytes::ZERO, &["0.5", "0.25"], "0.25", "0.5"));
        assert!(
            !disturbs(Bytes::ZERO, &["0.625", "0.125"], "0.125", "0.5"),
            "0.375, then 0.875 or 1 free"
        );
    }

    #[test]
    fn whole_jobs_keep_every_gpu_that_they_could_use() {
        assert!(disturbs(Bytes::ZERO, &["0.75"], "0.125", "1"));
    }

    #[test]
    fn a_job_that_can_never_use_the_gpu_is_not_disturbed() {
        assert!(!disturbs(Bytes::ZERO, &["0.5"], "0.5", "100GiB"));
    }

    #[test]
    fn shares_count_where_memory_would_do() {
        // 40888 MiB are half of the GPU in shares, and leave 72 MiB of its half in memory.
        assert!(disturbs(Bytes::ZERO, &["0.5", "1MiB"], "1MiB", "40888MiB"));
    }

    #[test]
    fn what_fits_in_memory_alone_does_not_fit() {
        // 40880 MiB are free, and 500 thousandths needed where 499 are; with the holder gone there is room for both.
        assert!(!disturbs(Bytes::ZERO, &["0.501"], "1MiB", "40880MiB"));
    }

    #[test]
    fn memory_counts_where_shares_would_do_and_foreign_memory_may_go() {
        // 30 GiB are free now; with 10 GiB of the foreign memory gone the half would fit, but not beside the eighth.
        assert!(disturbs(Bytes::gib(30), &["0.25"], "0.125", "0.5"));
        assert!(
            !disturbs(Bytes::ZERO, &["0.25"], "0.125", "0.5"),
            "it fits beside it even now"
        );
    }

    #[test]
    fn a_gpu_with_too_many_different_holders_is_left_alone() {
        let sizes: Vec<String> = (0..11).map(|bit| format!("{}MiB", 2 << bit)).collect();
        let held: Vec<&str> = sizes.iter().map(String::as_str).collect();
        assert!(disturbs(Bytes::ZERO, &held, "2MiB", "2MiB"));
        assert!(!disturbs(Bytes::ZERO, &held[..9], "2MiB", "2MiB"));
    }
}
