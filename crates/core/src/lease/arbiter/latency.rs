//! Visits of tenants with a latency goal: which of them are let in, which tenants are paused for them, and how their
//! time is charged.

use std::time::Duration;

use super::Arbiter;
use crate::lease::tenant::{Phase, ServedRequest, TenantState};
use crate::lease::{
    GRACE, LEAD, LONGEST_AHEAD, LONGEST_DRAIN, LONGEST_HOLD, Lease, MissCause, Served, Tenant,
    ahead_beside,
};
use crate::units::ComputeMode;

impl Arbiter {
    /// Whether a visitor with a latency goal keeps this tenant from launching. Of two, the one whose request is due
    /// first goes on.
    fn is_outranked(&self, tenant: Tenant, standing: &TenantState) -> bool {
        let rank = |number: Tenant, other: &TenantState| (other.due_at(self.now), number);
        let gpus = &standing.terms.gpus;
        self.tenants.iter().any(|(number, other)| {
            *number != tenant
                && other.is_urgent()
                && other.terms.gpus.iter().any(|gpu| gpus.contains(gpu))
                && (!standing.is_urgent() || rank(*number, other) < rank(tenant, standing))
        })
    }

    /// Divides time that passed while tenants were paused. Work that a holder had on the GPU runs on, in turns with the
    /// visitor's: half of the time is the holder's, for as long as it said that this work takes, at its own expense. The
    /// rest is the visitor's, whatever it reports. Returns what each visitor is to be charged.
    pub fn charge_paused(&mut self, passed: Duration) -> Vec<(Tenant, Duration)> {
        let mut shared = Vec::new();
        let clocks = &self.clocks;
        for standing in self.tenants.values_mut() {
            let Some(left) = standing.paused else {
                continue;
            };
            standing.extend_pause(passed);
            if standing.has_turn() && standing.activity.busy {
                let part = (passed / 2).min(left);
                standing.paused = Some(left - part);
                standing.lost += passed - part;
                standing.charge(part, clocks);
                shared.extend(standing.terms.gpus.iter().map(|gpu| (*gpu, part)));
            }
        }
        let urgent = self
            .tenants
            .iter()
            .filter(|(_, standing)| standing.is_urgent() && standing.paused.is_none());
        let own = |standing: &TenantState| {
            let parts = standing.terms.gpus.iter().map(|gpu| {
                let of_others = shared.iter().filter(|(at, _)| at == gpu);
                of_others.map(|(_, part)| *part).sum::<Duration>()
            });
            passed.saturating_sub(parts.min().unwrap_or_default())
        };
        urgent
            .map(|(tenant, standing)| (*tenant, own(standing)))
            .collect()
    }

    /// Whether time that passes is taken out of its bucket: another tenant could have had it.
    pub fn spends_bucket(&self, tenant: Tenant) -> bool {
        let standing = &self.tenants[&tenant];
        let takes = standing.has_turn() || standing.is_urgent();
        let is_wanted = || {
            self.beside(tenant)
                .any(|other| other.paused.is_some() || other.is_candidate())
        };
        standing.goal().is_some() && takes && is_wanted()
    }

    /// What becomes of a visit; none while it goes on.
    pub fn after_visit(&self, standing: &TenantState) -> Option<Phase> {
        let Phase::Urgent { until, closing } = standing.phase else {
            return None;
        };
        let is_alone = standing
            .terms
            .gpus
            .iter()
            .all(|gpu| self.holder(*gpu).is_none());
        let is_empty = standing.bucket.is_empty();
        match closing {
            Some(since) if !standing.activity.busy || self.now >= since + LONGEST_DRAIN => {
                Some(Phase::Closed)
            }
            Some(_) => None,
            None if is_empty && standing.activity.busy => Some(Phase::Urgent {
                until,
                closing: Some(self.now),
            }),
            None if is_empty => Some(Phase::Closed),
            // The tenants that it paused are gone, or want nothing: the GPU is its own.
            None if is_alone && standing.paused.is_none() => Some(Phase::Holding {
                since: self.now,
                until: None,
                no_later: None,
            }),
            None if until <= self.now + LEAD => Some(Phase::Urgent {
                until: self.now + LONGEST_HOLD,
                closing,
            }),
            None => None,
        }
    }

    /// Whether a paused holder has nothing to go on with.
    pub fn wants_nothing(&self, standing: &TenantState) -> bool {
        standing.activity.is_idle() && self.now >= standing.quiet_since + GRACE
    }

    /// Lets in the tenants with a latency goal that ask, the one that is due first before the others.
    pub fn begin_visits(&mut self) {
        let mut asking: Vec<(Duration, Tenant)> = self
            .tenants
            .iter()
            .filter(|(_, standing)| standing.is_entitled() && standing.is_candidate())
            .map(|(tenant, standing)| (standing.due_at(self.now), *tenant))
            .collect();
        asking.sort_unstable();
        for (_, tenant) in asking {
            let now = self.now;
            let gpus = &self.tenants[&tenant].terms.gpus;
            let is_free = gpus.iter().all(|gpu| self.holder(*gpu).is_none())
                && !self.beside(tenant).any(TenantState::is_urgent);
            let standing = self.standing_mut(tenant);
            standing.begin(now, None);
            if !is_free {
                standing.phase = Phase::Urgent {
                    until: now + LONGEST_HOLD,
                    closing: None,
                };
            }
        }
    }

    /// Pauses the tenants beside a visitor, and lets those go on that have none any more.
    pub fn set_pauses(&mut self) {
        // Most nodes have no such visitor, and then none is compared with each other.
        let any_visitor = self.tenants.values().any(TenantState::is_urgent);
        let outranked: Vec<(Tenant, bool)> = self
            .tenants
            .iter()
            .map(|(tenant, standing)| {
                (*tenant, any_visitor && self.is_outranked(*tenant, standing))
            })
            .collect();
        for (tenant, is_paused) in outranked {
            let now = self.now;
            let standing = self.standing_mut(tenant);
            match (standing.paused, is_paused) {
                (None, true) => {
                    let left = standing.activity.ends_at.saturating_sub(now);
                    standing.paused = Some(left.min(LONGEST_DRAIN));
                }
                (Some(_), false) => {
                    standing.paused = None;
                    standing.quiet_since = now;
                }
                _ => {}
            }
        }
    }

    /// How much work a tenant's processes keep ahead: zero for what the limiter keeps where no tenant has a goal.
    fn ahead_of(&self, tenant: Tenant) -> Duration {
        let goals = self.beside(tenant).filter_map(TenantState::goal);
        let least = goals.map(ahead_beside).min();
        least
            .filter(|ahead| *ahead < LONGEST_AHEAD)
            .unwrap_or_default()
    }

    /// The tenants that are to keep another amount ahead than before.
    pub fn changed_ahead(&mut self) -> Vec<(Tenant, Duration)> {
        let any_goal = self.tenants.values().any(|one| one.goal().is_some());
        let ahead_of = |tenant| {
            if any_goal {
                self.ahead_of(tenant)
            } else {
                Duration::ZERO
            }
        };
        let all: Vec<(Tenant, Duration)> = self
            .tenants
            .keys()
            .map(|tenant| (*tenant, ahead_of(*tenant)))
            .collect();
        let mut changed = Vec::new();
        for (tenant, ahead) in all {
            let standing = self.standing_mut(tenant);
            if std::mem::replace(&mut standing.ahead, ahead) != ahead {
                changed.push((tenant, ahead));
            }
        }
        changed
    }

    /// Follows the requests of tenants with a latency goal, by the leases that change: one begins when its gate opens, and
    /// ends when it closes. Returns those that ended.
    pub fn follow_requests(&mut self, changed: &[(Tenant, Lease)]) -> Vec<Served> {
        let mut served = Vec::new();
        for (tenant, lease) in changed {
            let standing = &self.tenants[tenant];
            if standing.goal().is_none() {
                continue;
            }
            let request = match (standing.request, *lease) {
                (Some(request), Lease::Closed) => {
                    served.push(self.served(*tenant, &request));
                    None
                }
                (None, lease) if lease != Lease::Closed && standing.activity.waiting => {
                    Some(ServedRequest {
                        asked_at: standing.asked_at,
                        granted_at: self.now,
                        used: standing.activity.used,
                        over_share: standing.asked_over_share || standing.bucket.is_empty(),
                        neighbour: self.longest_beside(*tenant),
                    })
                }
                (request, _) => request,
            };
            self.standing_mut(*tenant).request = request;
        }
        served
    }

    /// The neighbour whose work is expected to stay on the GPU for the longest time.
    fn longest_beside(&self, tenant: Tenant) -> Option<(Tenant, Duration)> {
        let gpus = &self.tenants[&tenant].terms.gpus;
        let shares_gpu =
            |other: &TenantState| other.terms.gpus.iter().any(|gpu| gpus.contains(gpu));
        self.tenants
            .iter()
            .filter(|(number, other)| {
                **number != tenant && other.activity.busy && shares_gpu(other)
            })
            .map(|(number, other)| (*number, other.ends_at().saturating_sub(self.now)))
            .filter(|(_, left)| !left.is_zero())
            .max_by_key(|(_, left)| *left)
    }

    fn served(&self, tenant: Tenant, request: &ServedRequest) -> Served {
        let standing = &self.tenants[&tenant];
        let waited = request.granted_at.saturating_sub(request.asked_at);
        let worked = standing.quiet_since.saturating_sub(request.granted_at);
        let used = standing.activity.used.saturating_sub(request.used);
        let is_ungated = |other: &TenantState| {
            other.terms.mode == ComputeMode::None && !other.activity.is_idle()
        };
        let goal = standing.goal().unwrap_or_default();
        let cause = || match request.neighbour {
            _ if request.over_share => MissCause::OverShare,
            _ if used > goal => MissCause::OwnWork(used),
            _ if self.beside(tenant).any(is_ungated) => MissCause::Ungated,
            Some((other, left)) => MissCause::Neighbour(other, left),
            None => MissCause::Unknown,
        };
        Served {
            tenant,
            waited,
            worked,
            cause: (waited + worked > goal).then(cause),
        }
    }

    /// Whether a tenant with a latency goal has used up its share, so that it waits like the others.
    pub fn is_over_share(&self, tenant: Tenant) -> bool {
        let standing = self.tenants.get(&tenant);
        standing.is_some_and(|standing| standing.goal().is_some() && standing.bucket.is_empty())
    }
}
