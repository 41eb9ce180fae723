//! The keeper of the leases of one node: a state machine over what the tenants are seen to do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::meter::Meter;
use super::tenant::{Phase, Standing, Virtual};
use super::{
    Event, GRACE, Grant, HALF_QUANTUM, LEAD, LONGEST_DRAIN, LONGEST_HOLD, POLL, SHORTEST_HOLD,
    Tenant, VISIT,
};

/// A grant is changed for at least this much; less is not worth telling.
const WORTH_TELLING: Duration = Duration::from_micros(100);

/// Tenants that use no more of a GPU than this together, in thousandths, seldom get in each other's way.
const ROOMY: u32 = 900;
/// Tenants that were let in together and use more than this do.
const CROWDED: u32 = 950;

/// Holds the leases of all tenants.
#[derive(Debug, Default)]
pub struct Keeper {
    now: Duration,
    tenants: BTreeMap<Tenant, Standing>,
    /// Where a GPU's tenants stand: the least virtual time among those that want it. Never goes back.
    clocks: BTreeMap<u32, Virtual>,
    meters: BTreeMap<u32, Meter>,
}

/// What time that passes is for a tenant.
struct Passes {
    /// It is charged for its part of it: nobody else can have that.
    is_charged: bool,
    /// It has its GPUs to itself, and tells what it does with them.
    is_alone: bool,
    /// It has them together with others.
    is_together: bool,
    /// The shares of all of these, its own one of them, added up.
    shares: u32,
}

/// What follows from a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Every grant that is another than before.
    pub grants: Vec<(Tenant, Grant)>,
    /// When to ask again if nothing is seen before; never, if nobody wants what another has.
    pub again: Option<Duration>,
}

impl Keeper {
    /// Takes note of something. Times never go back; one that does is taken for the latest one seen.
    pub fn on(&mut self, now: Duration, event: Event) {
        self.advance(now);
        match event {
            Event::Terms(tenant, terms) => {
                let standing = self
                    .tenants
                    .entry(tenant)
                    .or_insert_with(|| Standing::new(terms.clone(), now));
                standing.accept(terms);
            }
            Event::Seen(tenant, activity) => {
                let now = self.now;
                if let Some(standing) = self.tenants.get_mut(&tenant) {
                    standing.see(activity, now, &self.clocks);
                }
            }
            Event::Left(tenant) => {
                self.tenants.remove(&tenant);
            }
            Event::Used(gpu, thousandths) => {
                let reported = self.reported(gpu);
                let meter = self.meters.entry(gpu).or_default();
                meter.read(self.now, reported, thousandths);
            }
        }
        self.level();
    }

    /// Decides who holds what from now on.
    pub fn turn(&mut self, now: Duration) -> Turn {
        self.advance(now);
        // A holder whose time is up at once makes room for another; each tenant can be closed and granted once.
        for _ in 0..=self.tenants.len() {
            self.end_turns();
            self.level();
            self.begin_turns();
            let over = self.set_ends();
            self.renew_shares();
            if !over {
                break;
            }
        }
        Turn {
            grants: self.tell(),
            again: self.again(),
        }
    }

    /// Charges everybody for the time since the last moment.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        if passed.is_zero() {
            return;
        }
        self.now = now;
        let passes: Vec<Passes> = self
            .tenants
            .keys()
            .map(|tenant| self.passes(*tenant))
            .collect();
        for (standing, passes) in self.tenants.values_mut().zip(passes) {
            standing.earn(passed);
            if passes.is_charged {
                let own = u32::from(standing.terms.share.thousandths());
                standing.charge(passed * own / passes.shares, &self.clocks);
            }
            standing.duty.pass(passed, passes.is_alone);
            standing.together.pass(passed, passes.is_together);
        }
        self.level();
    }

    /// What time that passes is for a tenant.
    fn passes(&self, tenant: Tenant) -> Passes {
        let standing = &self.tenants[&tenant];
        let sharers = self.sharers(tenant);
        let is_together = sharers.len() > 1;
        let idle = standing.activity.is_idle();
        let wants = !idle || self.now < standing.quiet_since + GRACE;
        let is_visited = || {
            let is_visitor = |other: &Standing| matches!(other.phase, Phase::Visiting { .. });
            self.beside(tenant).any(is_visitor)
        };
        Passes {
            is_charged: (standing.has_turn() || is_together)
                && (!idle || self.is_waited_for(tenant)),
            is_alone: standing.has_turn()
                && wants
                && standing.granted != Grant::Open
                && !is_visited(),
            is_together,
            shares: sharers.iter().sum(),
        }
    }

    /// The shares of those that have this tenant's GPUs together with it, because all of them together leave the GPUs idle at times; its own
    /// is one of them.
    fn sharers(&self, tenant: Tenant) -> Vec<u32> {
        let standing = &self.tenants[&tenant];
        let shares =
            |standing: &Standing| matches!(standing.phase, Phase::Visiting { shares: true, .. });
        let is_in = standing.has_turn() || shares(standing);
        let beside = self
            .beside(tenant)
            .filter(|other| is_in && (shares(other) || shares(standing) && other.has_turn()));
        let share = |each: &Standing| u32::from(each.terms.share.thousandths());
        beside.chain([standing]).map(share).collect()
    }

    /// Moves the clocks on, and puts whoever has just begun to want something level with the others.
    fn level(&mut self) {
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
                    let late = standing.loses_turn_at().is_some_and(|end| end <= now);
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
                        let open_until = Some(now + SHORTEST_HOLD);
                        Some(Phase::Draining { since, open_until })
                    } else {
                        None
                    }
                }
                Phase::Visiting { until, shares } => {
                    let has_left = !shares && standing.activity.is_idle();
                    (until <= now || has_left || standing.is_spent()).then_some(Phase::Closed)
                }
                Phase::Closed => None,
            };
            over.extend(next.map(|phase| (*tenant, phase)));
        }
        for (tenant, phase) in over {
            let standing = self.standing_mut(tenant);
            standing.visits &= standing.activity.is_idle();
            standing.phase = phase;
        }
        for tenant in absent {
            self.standing_mut(tenant).give_up();
        }
    }

    /// Gives those that wait their GPUs, furthest behind first; keeps what one that needs several GPUs will need.
    fn begin_turns(&mut self) {
        let mut kept: BTreeMap<u32, Duration> = BTreeMap::new();
        for tenant in self.in_order() {
            let gpus = self.tenants[&tenant].terms.gpus.clone();
            let taken: Vec<u32> = gpus
                .iter()
                .copied()
                .filter(|gpu| self.holder(*gpu).is_some())
                .collect();
            if taken.is_empty() {
                let no_later = gpus.iter().filter_map(|gpu| kept.get(gpu)).min().copied();
                if no_later.is_none_or(|end| end >= self.now + SHORTEST_HOLD) {
                    let now = self.now;
                    self.standing_mut(tenant).begin(now, no_later);
                }
            } else if taken.len() == gpus.len() && self.may_share(tenant) {
                let until = self.now + LONGEST_HOLD;
                self.standing_mut(tenant).phase = Phase::Visiting {
                    until,
                    shares: true,
                };
            } else if self.may_visit(tenant, &taken) {
                let until = self.now + VISIT;
                self.standing_mut(tenant).phase = Phase::Visiting {
                    until,
                    shares: false,
                };
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

    /// Device time that the tenants of a GPU reported, ever, all together.
    fn reported(&self, gpu: u32) -> Duration {
        let on_it = self
            .tenants
            .values()
            .filter(|standing| standing.terms.gpus.contains(&gpu));
        on_it.map(Standing::used_on_each).sum()
    }

    /// Whether what is reported of a tenant's GPUs is believed.
    fn is_believed(&self, tenant: Tenant) -> bool {
        let mut gpus = self.tenants[&tenant].terms.gpus.iter();
        gpus.all(|gpu| {
            let meter = self.meters.get(gpu);
            meter.is_none_or(|meter| meter.is_believed(self.now))
        })
    }

    /// Whether it comes and goes, and is no further than those who have these of its GPUs.
    fn may_visit(&self, tenant: Tenant, taken: &[u32]) -> bool {
        let standing = &self.tenants[&tenant];
        let holders = taken.iter().filter_map(|gpu| self.holder(*gpu));
        standing.visits
            && self.is_believed(tenant)
            && holders
                .map(|holder| self.lead(holder))
                .all(|lead| self.lead(standing) <= lead)
    }

    /// Whether it and all who are let onto its GPUs together leave them idle at times.
    fn may_share(&self, tenant: Tenant) -> bool {
        let standing = &self.tenants[&tenant];
        let is_let_in = |other: &&Standing| other.phase != Phase::Closed;
        self.is_believed(tenant)
            && standing.terms.gpus.iter().all(|gpu| {
                let others = self.beside(tenant).filter(is_let_in);
                let on_it = others.filter(|other| other.terms.gpus.contains(gpu));
                let all = on_it.chain([standing]).map(|each| each.duty.thousandths());
                all.sum::<Option<u32>>().is_some_and(|sum| sum <= ROOMY)
            })
    }

    /// Sees to those that share: they go on while there is room, and no longer than whoever has the turn. Where they get in each other's
    /// way, what was known of them is forgotten.
    fn renew_shares(&mut self) {
        let now = self.now;
        let sharing: Vec<(Tenant, Duration)> = self
            .tenants
            .iter()
            .filter_map(|(tenant, standing)| match standing.phase {
                Phase::Visiting {
                    until,
                    shares: true,
                } => Some((*tenant, until)),
                _ => None,
            })
            .collect();
        for (tenant, until) in sharing {
            let standing = &self.tenants[&tenant];
            let gpus = &standing.terms.gpus;
            let is_crowded = gpus.iter().any(|gpu| {
                let beside = self
                    .beside(tenant)
                    .filter(|other| other.terms.gpus.contains(gpu));
                let all = beside
                    .chain([standing])
                    .filter(|each| each.phase != Phase::Closed);
                all.filter_map(|each| each.together.thousandths())
                    .sum::<u32>()
                    > CROWDED
            });
            let holders = gpus.iter().filter_map(|gpu| self.holder(*gpu));
            let latest = holders.filter_map(|holder| match holder.phase {
                Phase::Holding { until, .. } => until,
                _ => Some(now),
            });
            let latest = latest.min();
            let is_held = gpus.iter().all(|gpu| self.holder(*gpu).is_some());
            let wants = now < standing.quiet_since + LONGEST_HOLD || !standing.activity.is_idle();
            let next = if is_crowded || !is_held {
                now
            } else if wants && until <= now + LEAD && self.may_share(tenant) {
                now + LONGEST_HOLD
            } else {
                until
            };
            let until = latest.map_or(next, |latest| next.min(latest));
            let beside: Vec<Tenant> = match is_crowded {
                true => self
                    .tenants
                    .keys()
                    .copied()
                    .filter(|other| self.sharers(*other).len() > 1)
                    .collect(),
                false => Vec::new(),
            };
            for other in beside {
                let standing = self.standing_mut(other);
                standing.duty.forget();
                standing.together.forget();
            }
            self.standing_mut(tenant).phase = Phase::Visiting {
                until,
                shares: true,
            };
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

    /// When a holder has to stop as things are; never, while nobody waits for it.
    fn end_of(
        &self,
        tenant: Tenant,
        standing: &Standing,
        since: Duration,
        no_later: Option<Duration>,
    ) -> Option<Duration> {
        let next = self.rivals(tenant).map(|rival| self.lead(rival)).min();
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
    fn lead(&self, standing: &Standing) -> Virtual {
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

    /// The others that share a GPU with this tenant.
    fn beside(&self, tenant: Tenant) -> impl Iterator<Item = &Standing> {
        let gpus = &self.tenants[&tenant].terms.gpus;
        self.tenants
            .iter()
            .filter(move |(other, standing)| {
                **other != tenant && standing.terms.gpus.iter().any(|gpu| gpus.contains(gpu))
            })
            .map(|(_, standing)| standing)
    }

    /// Those of them that wait for it.
    fn rivals(&self, tenant: Tenant) -> impl Iterator<Item = &Standing> {
        self.beside(tenant).filter(|other| other.is_candidate())
    }

    fn is_waited_for(&self, tenant: Tenant) -> bool {
        self.rivals(tenant).next().is_some()
    }

    /// Whoever holds the GPU, or has work on it still.
    fn holder(&self, gpu: u32) -> Option<&Standing> {
        self.tenants
            .values()
            .find(|standing| standing.has_turn() && standing.terms.gpus.contains(&gpu))
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

    fn tell(&mut self) -> Vec<(Tenant, Grant)> {
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
        changed
    }

    fn again(&self) -> Option<Duration> {
        let moments = self.tenants.iter().filter_map(|(tenant, standing)| {
            let watched = self.is_waited_for(*tenant).then(|| self.now + POLL);
            match standing.phase {
                Phase::Holding {
                    until: Some(until), ..
                } => watched.into_iter().chain([self.renewal(until)]).min(),
                Phase::Holding { until: None, .. } => watched,
                Phase::Visiting {
                    until,
                    shares: false,
                } => Some((self.now + POLL).min(until)),
                Phase::Visiting {
                    until,
                    shares: true,
                } => Some(self.renewal(until)),
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

    fn standing_mut(&mut self, tenant: Tenant) -> &mut Standing {
        self.tenants
            .get_mut(&tenant)
            .expect("a tenant just listed is there")
    }
}
