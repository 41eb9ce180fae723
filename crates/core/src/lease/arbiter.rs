//! The arbiter of the leases of one node: a state machine over the observed demand of the tenants.

mod co_schedule;
mod latency;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::units::ComputeMode;

use super::meter::Meter;
use super::tenant::{Phase, TenantState, Virtual};
use co_schedule::Charging;

use super::{
    EARLY, HALF_QUANTUM, LEAD, LONGEST_DRAIN, LONGEST_HOLD, Lease, POLL, SHORTEST_HOLD,
    STEADY_POLL, Served, Tenant, TenantEvent, VISIT,
};

/// A grant is changed for at least this much; less is not worth telling. A fortieth of the shortest hold; each change
/// is a write that processes of the slice may wake for.
const WORTH_TELLING: Duration = Duration::from_micros(100);

/// Holds the leases of all tenants.
#[derive(Debug, Default)]
pub struct Arbiter {
    now: Duration,
    tenants: BTreeMap<Tenant, TenantState>,
    /// Where a GPU's tenants stand: the least virtual time among those that want it. Never goes back.
    clocks: BTreeMap<u32, Virtual>,
    meters: BTreeMap<u32, Meter>,
}

/// What follows from a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Every grant that is another than before; those that close first.
    pub leases: Vec<(Tenant, Lease)>,
    /// The tenants that are to keep another amount of work ahead, and that amount; zero for the limiter's own.
    pub ahead: Vec<(Tenant, Duration)>,
    /// The requests with a latency goal that ended.
    pub served: Vec<Served>,
    /// When to ask again without an event; never, if no tenant waits for a GPU.
    pub wake_at: Option<Duration>,
}

impl Arbiter {
    /// Takes note of something. Times never go back; one that does is taken for the latest one seen.
    pub fn handle(&mut self, now: Duration, event: TenantEvent) {
        self.advance(now);
        match event {
            TenantEvent::Configured(tenant, terms) => {
                let standing = self
                    .tenants
                    .entry(tenant)
                    .or_insert_with(|| TenantState::new(terms.clone(), now));
                standing.accept(terms);
            }
            TenantEvent::Observed(tenant, activity) => {
                let now = self.now;
                if let Some(standing) = self.tenants.get_mut(&tenant) {
                    standing.observe(activity, now, &self.clocks);
                }
            }
            TenantEvent::Left(tenant) => {
                self.tenants.remove(&tenant);
            }
            TenantEvent::DriverUtilisation(gpu, thousandths) => {
                let reported = self.reported(gpu);
                let meter = self.meters.entry(gpu).or_default();
                meter.read(self.now, reported, thousandths);
            }
        }
        self.advance_clocks();
    }

    /// Decides the leases from now on.
    pub fn decide(&mut self, now: Duration) -> Decision {
        self.advance(now);
        // A holder with no time left makes room for another at once; each tenant can be closed and granted once.
        for _ in 0..=self.tenants.len() {
            self.end_turns();
            self.advance_clocks();
            self.begin_visits();
            self.set_pauses();
            self.begin_turns();
            self.set_pauses();
            let over = self.set_ends();
            self.renew_shares();
            if !over {
                break;
            }
        }
        let leases = self.changed_leases();
        Decision {
            served: self.follow_requests(&leases),
            leases,
            ahead: self.changed_ahead(),
            wake_at: self.next_wakeup(),
        }
    }

    /// Charges all tenants for the time since the last decision.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        if passed.is_zero() {
            return;
        }
        self.now = now;
        let all: Vec<Charging> = self
            .tenants
            .keys()
            .map(|tenant| self.charging(*tenant, passed))
            .collect();
        let visits: BTreeMap<Tenant, Duration> = self.charge_paused(passed).into_iter().collect();
        for ((tenant, standing), passing) in self.tenants.iter_mut().zip(all) {
            standing.earn(passed);
            let visit = visits.get(tenant).copied();
            if let Some(time) = visit {
                standing.charge(time, &self.clocks);
            }
            if standing.goal().is_some() {
                standing.bucket.refill(passed, &standing.terms);
                if passing.spends_bucket {
                    let time = visit.unwrap_or(passed);
                    standing.bucket.spend(time, &standing.terms);
                }
            }
            if passing.is_charged {
                let own = u32::from(standing.terms.share.thousandths());
                let part = (passed - passing.lost) * own / passing.shares;
                standing.lost += passing.lost;
                if passing.is_co_scheduled {
                    standing.charge_co_scheduled(part, &self.clocks)
                } else {
                    standing.charge(part, &self.clocks)
                }
            }
            if !passing.is_co_scheduled {
                standing.clear_uncharged();
            }
            let alone = passed - passing.lost;
            standing.utilisation.pass(alone, passing.is_alone);
            standing
                .shared_utilisation
                .pass(passed, passing.is_co_scheduled);
        }
        self.advance_clocks();
    }

    /// Advances the clocks, and puts each tenant that has just begun to wait level with the others.
    fn advance_clocks(&mut self) {
        for standing in self.tenants.values_mut() {
            let active = standing.is_active();
            if active && !standing.active {
                standing.catch_up(&self.clocks);
            }
            standing.active = active;
        }
        let mut least: BTreeMap<u32, Virtual> = BTreeMap::new();
        for standing in self.tenants.values().filter(|standing| standing.active) {
            for (gpu, time) in &standing.virtual_time {
                let least = least.entry(*gpu).or_insert(*time);
                *least = (*least).min(*time);
            }
        }
        for (gpu, time) in least {
            let clock = self.clocks.entry(gpu).or_insert(time);
            *clock = (*clock).max(time);
        }
    }

    /// Ends the turns that are over.
    fn end_turns(&mut self) {
        let (now, mut over, mut absent) = (self.now, Vec::new(), Vec::new());
        for (tenant, standing) in &self.tenants {
            let next = match standing.phase {
                Phase::Holding { .. } if standing.paused.is_some() => {
                    self.wants_nothing(standing).then_some(Phase::Closed)
                }
                Phase::Holding {
                    until: Some(until), ..
                } if until <= now => Some(if standing.activity.busy {
                    Phase::Draining {
                        since: now,
                        open_until: None,
                    }
                } else {
                    Phase::Closed
                }),
                Phase::Holding { .. } => {
                    let late = standing.idle_deadline().is_some_and(|end| end <= now);
                    if late && self.is_waited_for(*tenant) {
                        absent.push(*tenant);
                    }
                    None
                }
                Phase::Draining { since, open_until } => {
                    let activity = standing.activity;
                    if !activity.busy || now >= since + LONGEST_DRAIN {
                        Some(Phase::Closed)
                    } else if activity.overdue
                        && activity.waiting
                        && open_until.is_none_or(|until| until + LONGEST_HOLD <= now)
                    {
                        // The longer the visit lasts, the later they wake the kernel that it waits for.
                        let time = ((now - since) / 2).clamp(SHORTEST_HOLD, LONGEST_HOLD);
                        let open_until = Some(now + time);
                        Some(Phase::Draining { since, open_until })
                    } else {
                        None
                    }
                }
                Phase::Visiting { until } => {
                    let is_over = until <= now || standing.activity.is_idle();
                    (is_over || standing.is_spent()).then_some(Phase::Closed)
                }
                Phase::Sharing { until } => {
                    (until <= now || standing.is_spent()).then_some(Phase::Closed)
                }
                Phase::Urgent { .. } => {
                    let late = standing.idle_deadline().is_some_and(|end| end <= now);
                    if late && standing.paused.is_none() {
                        absent.push(*tenant);
                    }
                    self.after_visit(standing)
                }
                Phase::Closed => None,
            };
            over.extend(next.map(|phase| (*tenant, phase)));
        }
        for (tenant, phase) in over {
            let standing = self.standing_mut(tenant);
            standing.is_interactive &= standing.activity.is_idle();
            standing.phase = phase;
        }
        for tenant in absent {
            self.standing_mut(tenant).forfeit_turn();
        }
    }

    /// Gives those that wait their GPUs, furthest behind first; keeps what one that needs several GPUs will need.
    fn begin_turns(&mut self) {
        let mut kept: BTreeMap<u32, Duration> = BTreeMap::new();
        // GPUs that one further behind waits for until all work has left them.
        let mut awaited: BTreeSet<u32> = BTreeSet::new();
        for tenant in self.in_order() {
            let gpus = self.tenants[&tenant].terms.gpus.clone();
            let taken: Vec<u32> = gpus
                .iter()
                .copied()
                .filter(|gpu| match gpus.len() {
                    1 if !awaited.contains(gpu) => self.is_taken(*gpu),
                    // Its processes wait for each other, so one that is slower for a while holds up all.
                    _ => self.holder(*gpu).is_some(),
                })
                .collect();
            let is_paused = self.tenants[&tenant].paused.is_some();
            if gpus.len() > 1 {
                awaited.extend(&taken);
            }
            if taken.is_empty() {
                let no_later = gpus.iter().filter_map(|gpu| kept.get(gpu)).min().copied();
                if no_later.is_none_or(|end| end >= self.now + SHORTEST_HOLD) {
                    let now = self.now;
                    self.standing_mut(tenant).begin(now, no_later);
                }
            } else if is_paused {
                // It waits for the visitor, whatever else it may do.
            } else if taken.len() == gpus.len() && self.may_share(tenant) {
                let until = self.now + LONGEST_HOLD;
                self.standing_mut(tenant).phase = Phase::Sharing { until };
            } else if self.may_visit(tenant, &taken) {
                let until = self.now + VISIT;
                self.standing_mut(tenant).phase = Phase::Visiting { until };
            } else {
                let back = taken
                    .iter()
                    .map(|gpu| self.due_back(*gpu))
                    .max()
                    .unwrap_or(self.now);
                for gpu in gpus.iter().filter(|gpu| !taken.contains(gpu)) {
                    let end = kept.entry(*gpu).or_insert(back);
                    *end = back.min(*end);
                }
            }
        }
    }

    /// Decides when each holder's turn ends. True if one is over already.
    fn set_ends(&mut self) -> bool {
        let now = self.now;
        let mut ends = Vec::new();
        for (tenant, standing) in &self.tenants {
            let Phase::Holding {
                since,
                until,
                no_later,
            } = standing.phase
            else {
                continue;
            };
            if standing.paused.is_some() {
                continue;
            }
            let end = self.end_of(*tenant, standing, since, no_later);
            let changes = match (until, end) {
                (Some(until), Some(end)) => {
                    end + WORTH_TELLING < until || until <= now + LEAD && end >= until + LEAD
                }
                (until, end) => until != end,
            };
            if changes {
                ends.push((
                    *tenant,
                    Phase::Holding {
                        since,
                        until: end,
                        no_later,
                    },
                ));
            }
        }
        let mut over = false;
        for (tenant, phase) in ends {
            over |= matches!(phase, Phase::Holding { until: Some(until), .. } if until <= now);
            self.standing_mut(tenant).phase = phase;
        }
        over
    }

    /// The time at which a holder has to stop; `None` while no tenant waits for it.
    fn end_of(
        &self,
        tenant: Tenant,
        standing: &TenantState,
        since: Duration,
        no_later: Option<Duration>,
    ) -> Option<Duration> {
        // Of one with a latency goal the bucket bounds the turn.
        let rivals = self.rivals(tenant).filter(|_| !standing.is_entitled());
        let next = rivals.map(|rival| self.lead(rival)).min();
        let by_turn = next.map(|next| {
            let may_gain = next + standing.to_virtual(HALF_QUANTUM) - self.lead(standing);
            let end = (self.now + standing.to_time(may_gain)).max(since + SHORTEST_HOLD);
            let end = no_later.map_or(end, |latest| end.min(latest));
            end.min(self.now + LONGEST_HOLD)
        });
        let by_cap = standing.earned_hold().map(|left| self.now + left);
        [by_turn, by_cap].into_iter().flatten().min()
    }

    /// How far a tenant is ahead of the furthest behind, on the GPU where it is most ahead.
    fn lead(&self, standing: &TenantState) -> Virtual {
        let ahead = |(gpu, time): (&u32, &Virtual)| time - self.clocks.get(gpu).unwrap_or(time);
        standing.virtual_time.iter().map(ahead).max().unwrap_or(0)
    }

    /// Those that wait and may be given something, furthest behind first.
    fn in_order(&self) -> Vec<Tenant> {
        let waiting = self
            .tenants
            .iter()
            .filter(|(_, standing)| standing.is_candidate());
        let mut order: Vec<(Virtual, Tenant)> = waiting
            .map(|(tenant, standing)| (self.lead(standing), *tenant))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, tenant)| tenant).collect()
    }

    /// The other tenants on a GPU of this tenant.
    fn beside(&self, tenant: Tenant) -> impl Iterator<Item = &TenantState> {
        let gpus = &self.tenants[&tenant].terms.gpus;
        self.tenants
            .iter()
            .filter(move |(other, standing)| {
                **other != tenant && standing.terms.gpus.iter().any(|gpu| gpus.contains(gpu))
            })
            .map(|(_, standing)| standing)
    }

    /// Those of them that wait for it.
    fn rivals(&self, tenant: Tenant) -> impl Iterator<Item = &TenantState> {
        self.beside(tenant).filter(|other| other.is_candidate())
    }

    fn is_waited_for(&self, tenant: Tenant) -> bool {
        self.rivals(tenant).next().is_some()
    }

    /// The tenants that hold the GPU or still have work on it.
    fn holders(&self, gpu: u32) -> impl Iterator<Item = &TenantState> {
        self.tenants
            .values()
            .filter(move |standing| standing.has_turn() && standing.terms.gpus.contains(&gpu))
    }

    /// The tenant that holds the GPU, or else one that still has work on it.
    fn holder(&self, gpu: u32) -> Option<&TenantState> {
        let is_over = |standing: &&TenantState| matches!(standing.phase, Phase::Draining { .. });
        self.holders(gpu).min_by_key(is_over)
    }

    /// Whether no turn may begin on a GPU: one goes on, or its work will be there for longer than [`EARLY`].
    fn is_taken(&self, gpu: u32) -> bool {
        self.holders(gpu).any(|standing| !self.ends_soon(standing))
    }

    fn ends_soon(&self, standing: &TenantState) -> bool {
        let ends_at = standing.ends_at();
        // Beside a tenant without leases no end is known, and a strict one is not to have more than its share for it.
        let are_fair = || {
            let mut all = self.tenants.values();
            all.all(|other| {
                let mut gpus = other.terms.gpus.iter();
                other.terms.mode == ComputeMode::Fair
                    || !gpus.any(|gpu| standing.terms.gpus.contains(gpu))
            })
        };
        matches!(standing.phase, Phase::Draining { .. })
            && standing.paused.is_none()
            && standing.terms.gpus.len() == 1
            && !standing.activity.overdue
            && self.now + EARLY >= ends_at
            && self.now <= ends_at + EARLY
            && are_fair()
    }

    /// When a GPU that is taken will be free, as far as that is known.
    fn due_back(&self, gpu: u32) -> Duration {
        match self.holder(gpu).map(|standing| standing.phase) {
            Some(Phase::Holding {
                until: Some(until), ..
            }) => until,
            _ => self.now,
        }
    }

    fn changed_leases(&mut self) -> Vec<(Tenant, Lease)> {
        let alone: Vec<bool> = self
            .tenants
            .keys()
            .map(|tenant| self.beside(*tenant).next().is_none())
            .collect();
        let mut changed = Vec::new();
        for ((tenant, standing), alone) in self.tenants.iter_mut().zip(alone) {
            let grant = standing.grant(alone);
            if grant != standing.granted {
                standing.granted = grant;
                changed.push((*tenant, grant));
            }
        }
        changed.sort_by_key(|(tenant, lease)| (*lease != Lease::Closed, *tenant));
        changed
    }

    fn next_wakeup(&self) -> Option<Duration> {
        let moments = self.tenants.iter().filter_map(|(tenant, standing)| {
            let is_waited_for = self.is_waited_for(*tenant);
            let watched = is_waited_for.then(|| self.now + standing.poll_interval());
            match standing.phase {
                Phase::Urgent { until, .. } => Some((self.now + POLL).min(self.renewal(until))),
                _ if standing.paused.is_some() => None,
                Phase::Holding {
                    until: Some(until), ..
                } => watched.into_iter().chain([self.renewal(until)]).min(),
                Phase::Holding { until: None, .. } => watched,
                Phase::Visiting { until } => Some((self.now + POLL).min(until)),
                Phase::Sharing { until } => Some(self.renewal(until)),
                // The next turn has begun, or may.
                Phase::Draining { .. } if self.ends_soon(standing) => Some(self.now + STEADY_POLL),
                Phase::Draining { since, .. } => Some((self.now + POLL).min(since + LONGEST_DRAIN)),
                Phase::Closed => standing
                    .until_earned()
                    .filter(|_| standing.activity.waiting)
                    .map(|wait| self.now + wait),
            }
        });
        moments.min()
    }

    /// When to look at a grant that ends then.
    fn renewal(&self, until: Duration) -> Duration {
        let renewal = until.checked_sub(LEAD);
        renewal
            .filter(|renewal| *renewal > self.now)
            .unwrap_or(until)
    }

    fn standing_mut(&mut self, tenant: Tenant) -> &mut TenantState {
        self.tenants
            .get_mut(&tenant)
            .expect("a tenant just listed is there")
    }
}
