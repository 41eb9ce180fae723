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
//! Then the same GPUs can serve the job ahead at any time, so it starts when it would have started.
//!
//! Where a job holds several GPUs, it ends on all of them at once, and then other GPUs may do as well. So a start that
//! takes a GPU away is harmless too if **no** set of ends leaves the job ahead enough GPUs without it and too few with
//! it:
//!
//! ```text
//!   GPU 0  ██ #1 ██    GPU 1  ██ #1 ██    GPU 2  free      the job ahead needs 2 whole GPUs
//!          once #1 ends, GPUs 0 and 1 are enough: a job on GPU 2 is harmless
//! ```
//!
//! The check is conservative in the rest:
//!
//! - A GPU with too many different holders is left alone, and so are GPUs that too many jobs hold together.
//! - A job ahead for a range of GPUs keeps every GPU that it could use: with fewer it would start smaller.
//! - On a GPU in MIG mode the check compares placements instead of sums.
//!
//! The promise is to the first job that waits. The jobs between it and the new one are checked in the same way, without
//! regard to what the first job will take.

use std::collections::BTreeSet;

use crate::model::gpu::Mode;
use crate::model::request::Request;
use crate::model::snapshot::PendingJob;
use crate::placement::Offer;
use crate::placement::fit::{GrantSize, RequestShape, size};
use crate::placement::occupancy::{GpuUsage, HeldTogether, NodeUsage, Releases};
use crate::units::{Bytes, JobId};

/// With more different sums than this, the check leaves the GPU alone. 1024 covers any ten holders, or a thousand equal
/// ones.
const MOST_SUMS: usize = 1024;

/// Of more jobs than this that hold GPUs together, the check supposes that they end on each GPU alone. Eight have 256
/// sets of ends, a quarter of the sums above; a job that holds several GPUs leaves room for few others on them.
const MOST_TOGETHER: usize = 8;

/// How many GPUs could serve the job ahead after some ends: without the new job, and beside it.
type Outcome = (u32, u32);

/// Whether a new job with these offers could ever keep the job ahead from the GPUs.
pub(crate) fn delays(node: &NodeUsage<'_>, new: &[Offer], ahead: &PendingJob) -> bool {
    let request = &ahead.request;
    let takes = |offer: &&Offer| delays_reserved(&node.gpus[offer.position], offer, request);
    let taken: Vec<&Offer> = new.iter().filter(takes).collect();
    if taken.is_empty() {
        return false;
    }
    let count = match RequestShape::of(request.amount) {
        RequestShape::Whole { min, max } if min != max => return true,
        RequestShape::Whole { min: count, .. } | RequestShape::Parts { count, .. } => count,
    };
    let is_mig = |offer: &&Offer| node.gpus[offer.position].gpu.mode == Mode::Mig;
    // Without a job on several GPUs, each GPU that is taken away may be the last that the job ahead waits for.
    if taken.iter().any(is_mig) || node.held_together().is_empty() {
        return true;
    }
    let outcomes = Outcomes {
        node,
        taken: &taken,
        ahead,
    };
    let mut alone: BTreeSet<usize> = (0..node.gpus.len()).collect();
    let mut reachable = BTreeSet::from([(0, 0)]);
    for group in node.held_together() {
        if group.jobs.len() <= MOST_TOGETHER {
            alone.retain(|at| !group.gpus.contains(at));
            reachable = combined(&reachable, &outcomes.of_group(group));
        }
    }
    for at in alone {
        reachable = combined(&reachable, &outcomes.of_gpu(at));
    }
    let harms = |(without, beside): &Outcome| *beside < count && count <= *without;
    reachable.iter().any(harms)
}

/// The outcomes of independent GPUs together.
fn combined(first: &BTreeSet<Outcome>, second: &BTreeSet<Outcome>) -> BTreeSet<Outcome> {
    let sums = first.iter().flat_map(|(without, beside)| {
        (second.iter()).map(move |(more, more_beside)| (without + more, beside + more_beside))
    });
    sums.collect()
}

/// What GPUs can do for the job ahead, without the new job and beside it.
struct Outcomes<'a> {
    node: &'a NodeUsage<'a>,
    /// The offers of the new job that take a GPU away from the job ahead, after some ends.
    taken: &'a [&'a Offer],
    ahead: &'a PendingJob,
}

impl Outcomes<'_> {
    /// For every set of ends of the jobs that hold these GPUs together.
    fn of_group(&self, group: &HeldTogether) -> BTreeSet<Outcome> {
        let mut reachable = BTreeSet::new();
        for set in 0..1_usize << group.jobs.len() {
            let ended = |job: JobId| {
                let mut jobs = group.jobs.iter();
                jobs.position(|other| *other == job)
                    .is_some_and(|bit| set >> bit & 1 == 1)
            };
            let nothing = BTreeSet::from([(0, 0)]);
            let after = (group.gpus.iter()).fold(nothing, |sum, at| {
                combined(&sum, &self.of_gpu_after(*at, &ended))
            });
            reachable.extend(after);
        }
        reachable
    }

    /// For every set of ends of a GPU's holders, whatever else they hold.
    fn of_gpu(&self, at: usize) -> BTreeSet<Outcome> {
        match (self.size(at), self.taken_at(at)) {
            (None, _) => BTreeSet::from([(0, 0)]),
            (Some(_), None) => BTreeSet::from([(0, 0), (1, 1)]),
            (Some(_), Some(_)) => BTreeSet::from([(0, 0), (1, 0), (1, 1)]),
        }
    }

    /// Once these jobs have ended. Both outcomes of a GPU with unmanaged memory or other daemons: theirs may end or not.
    fn of_gpu_after(&self, at: usize, ended: &impl Fn(JobId) -> bool) -> BTreeSet<Outcome> {
        let Some(needed) = self.size(at) else {
            return BTreeSet::from([(0, 0)]);
        };
        let usage = &self.node.gpus[at];
        let new = self.taken_at(at);
        let request = &self.ahead.request;
        let (fits, is_taken) = match RequestShape::of(request.amount) {
            RequestShape::Whole { .. } => {
                let mut holders = usage.holders.iter();
                (holders.all(|holder| ended(holder.job)), new.is_some())
            }
            RequestShape::Parts { .. } => {
                let gone = usage.holders.iter().filter(|holder| ended(holder.job));
                let release = gone.fold((0, Bytes::ZERO), |(share, memory), holder| {
                    let grant = &holder.grant;
                    let share = share + u64::from(grant.share.thousandths());
                    (share, memory.saturating_add(grant.memory))
                });
                let takes = |new: &Offer| takes_away(usage, release, new.size, needed);
                (could_fit(usage, release, needed), new.is_some_and(takes))
            }
        };
        let most = (u32::from(fits), u32::from(fits && !is_taken));
        let other = usage.elsewhere;
        if usage.unmanaged == Bytes::ZERO && other.memory == Bytes::ZERO && other.share == 0 {
            BTreeSet::from([most])
        } else {
            BTreeSet::from([(0, 0), most])
        }
    }

    /// What the job ahead needs of this GPU; `None` where it counts for nothing. GPUs in MIG mode count for nothing: they
    /// stay as they are, and parts of one job are all on shared GPUs or all in MIG mode.
    fn size(&self, at: usize) -> Option<GrantSize> {
        let usage = &self.node.gpus[at];
        let size = size(usage, &self.ahead.request).ok()?;
        (usage.gpu.mode != Mode::Mig).then_some(size)
    }

    fn taken_at(&self, at: usize) -> Option<&Offer> {
        let mut taken = self.taken.iter().copied();
        taken.find(|offer| offer.position == at)
    }
}

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
    let fits = could_fit(usage, (share, memory), needed);
    let (free_share, unheld) = (
        usage.free_share() + share,
        usage.unallocated_memory().saturating_add(memory),
    );
    let [needed_share, new_share] = [needed, new].map(|size| u64::from(size.share.thousandths()));
    let (free_share, unheld) = (free_share.max(needed_share), unheld.max(needed.memory));
    let beside = needed_share + new_share <= free_share
        && needed.memory.saturating_add(new.memory) <= unheld.saturating_sub(usage.unmanaged);
    fits && !beside
}

/// Whether `needed` fits after this release, with all unmanaged memory and all of other daemons gone.
fn could_fit(usage: &GpuUsage<'_>, (share, memory): (u64, Bytes), needed: GrantSize) -> bool {
    let elsewhere = usage.elsewhere;
    let free_share = usage.free_share() + share + elsewhere.share;
    let unheld = usage.unallocated_memory().saturating_add(memory);
    u64::from(needed.share.thousandths()) <= free_share
        && needed.memory <= unheld.saturating_add(elsewhere.memory)
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
