//! Backfill check: whether a job may start before a job ahead of it without delaying it.
//!
//! The job ahead waits for other jobs to end, and their order is unknown. So a start is harmless only if it changes
//! nothing for the job ahead in any order: on each GPU that it takes a part of, for **every** set of holders that may
//! be gone one day, the job ahead finds room there with it exactly when it finds room there without it.
//!
//! ```text
//!   GPU 2  ██████████████████████████████··········    free 0.25; the job ahead needs 0.5
//!          └── #1 holds 0.75 ────────────┘└─ 0.25 ─┘   when #1 ends, 0.75 are left: harmless
//!          └── #1 0.5 ───────┘└ #2 0.25 ─┘└─ 0.25 ─┘   when #2 ends, only 0.25 are left: not harmless
//! ```
//!
//! Then the same GPUs can serve the job ahead at any time, so it starts when it would have started. The check is exact
//! for each GPU and conservative beyond:
//!
//! - It ignores that a job ends on all its GPUs at once, and that another GPU would do as well.
//! - A GPU with too many different holders is left alone.
//! - A job ahead that needs whole GPUs keeps every GPU that it could use.
//! - On a GPU in MIG mode the check compares placements instead of sums.
//!
//! The promise is to the first job that waits. The jobs between it and the new one are checked in the same way, without
//! regard to what the first job will take.

use std::collections::BTreeSet;

use crate::model::request::Request;
use crate::placement::Offer;
use crate::placement::fit::{GrantSize, RequestShape, size};
use crate::placement::occupancy::{GpuUsage, Releases};
use crate::units::Bytes;

/// With more different sums than this, the check leaves the GPU alone. 1024 covers any ten holders, or a thousand equal
/// ones.
const MOST_SUMS: usize = 1024;

/// Whether `new` on this GPU could ever keep the job `ahead` from it.
pub(crate) fn delays_reserved(usage: &GpuUsage<'_>, new: &Offer, ahead: &Request) -> bool {
    let Ok(needed) = size(usage, ahead) else {
        return false;
    };
    if let (Some(mig), Some(choice), Some(profile)) = (&usage.mig, &new.mig, needed.profile) {
        return mig.may_block(choice.grant.placement, profile);
    }
    match RequestShape::of(ahead.amount) {
        // The job ahead can use this GPU once every holder has ended, but not beside a new holder.
        RequestShape::Whole { .. } => true,
        RequestShape::Parts { .. } => {
            let Some(releases) = usage.releases(releases) else {
                return true;
            };
            let mut releases = releases.iter();
            releases.any(|release| takes_away(usage, *release, new.size, needed))
        }
    }
}

/// Whether `needed` fits after this release, with enough unmanaged memory and memory of other daemons freed, but not
/// beside `new` as things are. Other daemons release in steps that are unknown here, so the check takes the step after
/// which `needed` just fits.
fn takes_away(
    usage: &GpuUsage<'_>,
    (share, memory): (u64, Bytes),
    new: GrantSize,
    needed: GrantSize,
) -> bool {
    let (free_share, unheld) = (
        usage.free_share() + share,
        usage.unallocated_memory().saturating_add(memory),
    );
    let [needed_share, new_share] = [needed, new].map(|size| u64::from(size.share.thousandths()));
    let elsewhere = usage.elsewhere;
    let fits = needed_share <= free_share + elsewhere.share
        && needed.memory <= unheld.saturating_add(elsewhere.memory);
    let (free_share, unheld) = (free_share.max(needed_share), unheld.max(needed.memory));
    let beside = needed_share + new_share <= free_share
        && needed.memory.saturating_add(new.memory) <= unheld.saturating_sub(usage.unmanaged);
    fits && !beside
}

/// Every sum of share and memory that some set of holders could release; `None` when there are too many.
fn releases(usage: &GpuUsage<'_>) -> Option<Releases> {
    let mut sums = BTreeSet::from([(0, Bytes::ZERO)]);
    for holder in &usage.holders {
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

    /// A GPU of 80 GiB with these held, and whether starting `new` there delays `ahead`.
    fn delays(unmanaged: Bytes, held: &[&str], new: &str, ahead: &str) -> bool {
        let request = |text: &str| match text.parse() {
            Ok(memory) => Request::from(Amount::Memory(memory)),
            Err(_) => Amount::from_gpu_flag(text).unwrap().into(),
        };
        let gpu = Gpu {
            unmanaged,
            ..Gpu::sample(0, Bytes::gib(80))
        };
        let gpus = [gpu];
        let mut node = NodeUsage::empty(&gpus);
        for (job, text) in (1..).zip(held) {
            let offers = place(&node, &request(text), |_, _| true).unwrap();
            node.assign(JobId(job), &QueueName::default_queue(), &offers);
        }
        node.gpus[0].unmanaged = unmanaged;
        let new = Offer {
            position: 0,
            size: size(&node.gpus[0], &request(new)).unwrap(),
            mig: None,
        };
        super::delays_reserved(&node.gpus[0], &new, &request(ahead))
    }

    #[test]
    fn one_large_holder_leaves_room_for_both_when_it_ends() {
        assert!(!delays(Bytes::ZERO, &["0.75"], "0.25", "0.5"));
    }

    #[test]
    fn a_small_holder_whose_end_would_have_been_enough_forbids_it() {
        assert!(delays(Bytes::ZERO, &["0.5", "0.25"], "0.25", "0.5"));
        assert!(
            !delays(Bytes::ZERO, &["0.625", "0.125"], "0.125", "0.5"),
            "0.375, then 0.875 or 1 free"
        );
    }

    #[test]
    fn whole_jobs_keep_every_gpu_that_they_could_use() {
        assert!(delays(Bytes::ZERO, &["0.75"], "0.125", "1"));
    }

    #[test]
    fn a_job_that_can_never_use_the_gpu_is_not_disturbed() {
        assert!(!delays(Bytes::ZERO, &["0.5"], "0.5", "100GiB"));
    }

    #[test]
    fn shares_count_where_memory_would_do() {
        // 40888 MiB are half of the GPU in shares, and leave 72 MiB of its half in memory.
        assert!(delays(Bytes::ZERO, &["0.5", "1MiB"], "1MiB", "40888MiB"));
    }

    #[test]
    fn what_fits_in_memory_alone_does_not_fit() {
        // 40880 MiB are free, and 500 thousandths needed where 499 are; with the holder gone there is room for both.
        assert!(!delays(Bytes::ZERO, &["0.501"], "1MiB", "40880MiB"));
    }

    #[test]
    fn memory_counts_where_shares_would_do_and_foreign_memory_may_go() {
        // 30 GiB are free now; with 10 GiB of the foreign memory gone the half would fit, but not beside the eighth.
        assert!(delays(Bytes::gib(30), &["0.25"], "0.125", "0.5"));
        assert!(
            !delays(Bytes::ZERO, &["0.25"], "0.125", "0.5"),
            "it fits beside it even now"
        );
    }

    #[test]
    fn a_gpu_with_too_many_different_holders_is_left_alone() {
        let sizes: Vec<String> = (0..11).map(|bit| format!("{}MiB", 2 << bit)).collect();
        let held: Vec<&str> = sizes.iter().map(String::as_str).collect();
        assert!(delays(Bytes::ZERO, &held, "2MiB", "2MiB"));
        assert!(!delays(Bytes::ZERO, &held[..9], "2MiB", "2MiB"));
    }
}
