//! Co-scheduling: which tenants may use a GPU beside the lease holder, and how their time is charged then.
//!
//! A tenant visits for a moment, or several tenants share the lease because their utilisation leaves room.

use std::time::Duration;

use super::Arbiter;
use crate::lease::tenant::{Phase, TenantState};
use crate::lease::{EARLY, GRACE, LEAD, LONGEST_HOLD, Lease, Tenant};

/// Tenants that use no more of a GPU than this together, in thousandths, seldom get in each other's way. The tenth that
/// is free takes up what arrives unevenly; less than that would queue work as turns do.
const ROOMY: u32 = 900;
/// Tenants that were let in together and use more than this do.
const CROWDED: u32 = 950;

/// What time that passes is for a tenant.
pub struct Charging {
    /// It is charged for its part, which no other tenant can have.
    pub is_charged: bool,
    /// It has its GPUs to itself, and tells what it does with them.
    pub is_alone: bool,
    /// It shares them with other tenants.
    pub is_co_scheduled: bool,
    /// The shares of all of these, its own one of them, added up.
    pub shares: u32,
    /// Of the time, what other tenants had in which turns overlapped.
    pub lost: Duration,
    /// It is taken out of its bucket.
    pub spends_bucket: bool,
}

impl Arbiter {
    pub fn charging(&self, tenant: Tenant, passed: Duration) -> Charging {
        let standing = &self.tenants[&tenant];
        let is_idle = standing.activity.is_idle();
        let wants = !is_idle || self.now < standing.quiet_since + GRACE;
        let is_guest = |other: &TenantState| {
            matches!(
                other.phase,
                Phase::Visiting { .. } | Phase::Sharing { .. } | Phase::Urgent { .. }
            )
        };
        let has_guests = || self.beside(tenant).any(is_guest);
        let company: u32 = self.co_scheduled(tenant).map(share).sum();
        let is_together = company > 0;
        let lost = self.lost_to_overlaps(tenant, passed);
        Charging {
            is_charged: (standing.has_turn() || is_together)
                && standing.paused.is_none()
                && (!is_idle || self.is_waited_for(tenant)),
            is_alone: standing.has_turn()
                && wants
                && standing.granted != Lease::Open
                && !has_guests(),
            is_co_scheduled: is_together,
            shares: company + share(standing),
            lost,
            spends_bucket: self.spends_bucket(tenant),
        }
    }

    /// The part of time that just passed which is lost to tenants whose turns overlap with this one: the work of one of
    /// them is about to end, and the driver serves their processes in turns. That end is at most so much later than was
    /// reckoned; after it, each of them is charged for all of the time.
    fn lost_to_overlaps(&self, tenant: Tenant, passed: Duration) -> Duration {
        let own = &self.tenants[&tenant];
        let before = self.now.saturating_sub(passed);
        let workers = |standing: &TenantState| standing.activity.workers.max(1);
        let end = |standing: &TenantState| {
            let is_over = matches!(standing.phase, Phase::Draining { .. });
            (is_over && standing.activity.busy).then(|| standing.ends_at() + 4 * EARLY)
        };
        let (mut longest, mut others) = (Duration::ZERO, 0);
        for other in self
            .beside(tenant)
            .filter(|other| own.has_turn() && other.has_turn())
        {
            if let Some(end) = end(own).or_else(|| end(other)) {
                longest = longest.max(end.saturating_sub(before).min(passed));
                others += workers(other);
            }
        }
        longest * others / (workers(own) + others)
    }

    /// The other tenants that share a GPU with this one.
    fn co_scheduled(&self, tenant: Tenant) -> impl Iterator<Item = &TenantState> {
        let shares = |standing: &TenantState| matches!(standing.phase, Phase::Sharing { .. });
        let own = &self.tenants[&tenant];
        let (holds, shares_own) = (own.has_turn(), shares(own));
        self.beside(tenant).filter(move |other| {
            shares_own && other.has_turn() || (shares_own || holds) && shares(other)
        })
    }

    /// Device time that the tenants of a GPU reported, ever, all together.
    pub fn reported(&self, gpu: u32) -> Duration {
        let on_it = self
            .tenants
            .values()
            .filter(|standing| standing.terms.gpus.contains(&gpu));
        on_it.map(TenantState::used_on_each).sum()
    }

    /// Whether what is reported of a tenant's GPUs is believed.
    fn are_reports_trusted(&self, tenant: Tenant) -> bool {
        let mut gpus = self.tenants[&tenant].terms.gpus.iter();
        gpus.all(|gpu| {
            let meter = self.meters.get(gpu);
            meter.is_none_or(|meter| meter.is_trusted(self.now))
        })
    }

    /// Whether it is interactive, and not ahead of the holders of these of its GPUs. Work that is to leave a GPU is
    /// not held up by a visit: it would seem to wait for something.
    pub fn may_visit(&self, tenant: Tenant, taken: &[u32]) -> bool {
        let standing = &self.tenants[&tenant];
        let mut holders = taken.iter().filter_map(|gpu| self.holder(*gpu));
        standing.is_interactive
            && self.are_reports_trusted(tenant)
            && holders.all(|holder| {
                let holds = matches!(holder.phase, Phase::Holding { .. });
                holds && self.lead(standing) <= self.lead(holder)
            })
    }

    /// Whether it and all tenants on its GPUs leave them idle at times, by what each used alone.
    pub fn may_share(&self, tenant: Tenant) -> bool {
        let mut gpus = self.tenants[&tenant].terms.gpus.iter();
        self.are_reports_trusted(tenant)
            && gpus.all(|gpu| {
                let all = self.let_in_with(tenant, *gpu);
                let sum: Option<u32> = all.map(|each| each.utilisation.thousandths()).sum();
                sum.is_some_and(|sum| sum <= ROOMY)
            })
    }

    /// Whether those that it shares its GPUs with use more together than they may.
    fn is_crowded(&self, tenant: Tenant) -> bool {
        let mut gpus = self.tenants[&tenant].terms.gpus.iter();
        gpus.any(|gpu| {
            let all = self.let_in_with(tenant, *gpu);
            let known = all.filter_map(|each| each.shared_utilisation.thousandths());
            known.sum::<u32>() > CROWDED
        })
    }

    /// A tenant, and the other tenants that may use a GPU of it.
    fn let_in_with(&self, tenant: Tenant, gpu: u32) -> impl Iterator<Item = &TenantState> {
        let others = self
            .beside(tenant)
            .filter(move |other| other.phase != Phase::Closed && other.terms.gpus.contains(&gpu));
        others.chain([&self.tenants[&tenant]])
    }

    /// Renews co-scheduling: tenants go on while they want to and there is room, and no longer than the holder. Of
    /// those that get in each other's way, what was known is forgotten, so that they take turns until it is known
    /// again.
    pub fn renew_shares(&mut self) {
        let tenants: Vec<Tenant> = self.tenants.keys().copied().collect();
        let crowded: Vec<Tenant> = tenants
            .iter()
            .copied()
            .filter(|tenant| {
                self.co_scheduled(*tenant).next().is_some() && self.is_crowded(*tenant)
            })
            .collect();
        for tenant in tenants {
            if let Phase::Sharing { until } = self.tenants[&tenant].phase {
                let until = if crowded.contains(&tenant) {
                    self.now
                } else {
                    self.shares_until(tenant, until)
                };
                self.standing_mut(tenant).phase = Phase::Sharing { until };
            }
        }
        for tenant in crowded {
            let standing = self.standing_mut(tenant);
            standing.utilisation.forget();
            standing.shared_utilisation.forget();
        }
    }

    /// How long a tenant that may share until then goes on with it.
    fn shares_until(&self, tenant: Tenant, until: Duration) -> Duration {
        let standing = &self.tenants[&tenant];
        let wants = !standing.activity.is_idle() || self.now < standing.quiet_since + LONGEST_HOLD;
        let next = if wants && until <= self.now + LEAD && self.may_share(tenant) {
            self.now + LONGEST_HOLD
        } else {
            until
        };
        let ends = standing.terms.gpus.iter().map(|gpu| {
            match self.holder(*gpu).map(|holder| holder.phase) {
                Some(Phase::Holding { until, .. }) => until.unwrap_or(next),
                _ => self.now,
            }
        });
        ends.min().map_or(next, |end| end.min(next))
    }
}

fn share(standing: &TenantState) -> u32 {
    u32::from(standing.terms.share.thousandths())
}
