//! Scheduling state of one tenant: its phase, its virtual times, and the time that a strict tenant has earned.

use std::collections::BTreeMap;
use std::time::Duration;

use super::bucket::Bucket;
use super::meter::Utilisation;
use super::{
    Activity, GRACE, HALF_QUANTUM, LARGEST_DEBT, LONGEST_HOLD, Lease, POLL, STEADY_POLL, Tenant,
    TenantConfig, WAKING,
};
use crate::units::ComputeMode;

/// Time divided by share: nanoseconds on a GPU for a tenant that has all of it.
pub type Virtual = i128;

/// The time that a strict tenant must have earned to begin a turn, and the most that an idle one keeps.
const STRICT_START: Duration = HALF_QUANTUM;
/// The most that a waiting strict tenant keeps, so that it can catch up.
const STRICT_ARREARS: Duration = Duration::from_millis(250);
/// A tenant whose pauses are shorter than [`GRACE`] this often, in thousandths, keeps the GPU through one. A request of
/// two kernels has every other gap short; of single kernels none, and waiting there would cost its bucket and others.
const SHORT_GAPS: u32 = 300;
/// A tenant with this utilisation of its leased GPUs, in thousandths, counts as using them without pause. A tenth of
/// idle time is the gaps between launches of a busy program; below it, a pause is the program's own.
const STEADY: u32 = 900;

#[derive(Debug)]
pub struct TenantState {
    pub terms: TenantConfig,
    pub activity: Activity,
    /// Since when it has had no work on a GPU although it could launch.
    pub quiet_since: Duration,
    /// The request number at which it got a lease and launched nothing, though it waited at the gate.
    pub missed_request: Option<u64>,
    /// How often in a row that happened.
    misses: u32,
    pub phase: Phase,
    /// Its last turn or visit ended because it had no more work.
    pub is_interactive: bool,
    /// Its utilisation of its GPUs while it had them alone.
    pub utilisation: Utilisation,
    /// Its utilisation while it shared them.
    pub shared_utilisation: Utilisation,
    /// Whether it wanted a GPU at the last decision.
    pub active: bool,
    /// Its virtual time on each of its GPUs.
    pub virtual_time: BTreeMap<u32, Virtual>,
    /// Nanoseconds that a strict tenant may still use; below zero after an overrun.
    credit_ns: i128,
    /// Reported nanoseconds of co-scheduled use, beyond those that it was charged for there by the clock; below
    /// zero where it used less.
    uncharged_ns: i128,
    pub granted: Lease,
    /// What a tenant with a latency goal may take at once.
    pub bucket: Bucket,
    /// When it began to wait at the gate.
    pub asked_at: Duration,
    /// Its bucket was empty then.
    pub asked_over_share: bool,
    /// The part of this turn's time in which the GPU worked for others: its work ends so much later than it reckoned.
    pub lost: Duration,
    /// While a visitor with a latency goal keeps it from launching: how much of its own work may still be on the GPU.
    pub paused: Option<Duration>,
    /// How often its pauses were shorter than [`GRACE`], in thousandths; later ones count more.
    short_gaps: u32,
    /// Of a tenant with a latency goal: the request that is being served.
    pub request: Option<ServedRequest>,
    /// The work that its processes were last told to keep ahead; zero for the limiter's own figure.
    pub ahead: Duration,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub struct ServedRequest {
    pub asked_at: Duration,
    pub granted_at: Duration,
    /// What it had reported then.
    pub used: Duration,
    /// It waited because its bucket was empty.
    pub over_share: bool,
    /// The neighbour with the most work on the GPU then.
    pub neighbour: Option<(Tenant, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Closed,
    /// Launches. `until` is none while no other tenant wants its GPUs; `no_later` is when another needs one of them.
    Holding {
        since: Duration,
        until: Option<Duration>,
        no_later: Option<Duration>,
    },
    /// Its turn is over and it has work on a GPU. Until `open_until` it lets in what that work may wait for.
    Draining {
        since: Duration,
        open_until: Option<Duration>,
    },
    /// Launches for a moment beside the holders of its GPUs.
    Visiting {
        until: Duration,
    },
    /// Launches at once, for its latency goal, and the tenants of its GPUs are paused. Once `closing`, it launches
    /// nothing more, and its work ends.
    Urgent {
        until: Duration,
        closing: Option<Duration>,
    },
    /// Launches beside other tenants: all of them together leave the GPUs idle at times.
    Sharing {
        until: Duration,
    },
}

impl TenantState {
    pub fn new(terms: TenantConfig, now: Duration) -> Self {
        Self {
            virtual_time: BTreeMap::new(),
            bucket: Bucket::full(&terms),
            terms,
            activity: Activity::default(),
            quiet_since: now,
            missed_request: None,
            misses: 0,
            phase: Phase::Closed,
            is_interactive: false,
            utilisation: Utilisation::default(),
            shared_utilisation: Utilisation::default(),
            active: false,
            credit_ns: nanos(STRICT_START),
            uncharged_ns: 0,
            granted: Lease::Closed,
            asked_at: now,
            asked_over_share: false,
            lost: Duration::ZERO,
            paused: None,
            short_gaps: 1000,
            request: None,
            ahead: Duration::ZERO,
        }
    }

    /// Goes on under other terms. On other GPUs it begins anew.
    pub fn accept(&mut self, terms: TenantConfig) {
        if terms.gpus != self.terms.gpus || terms.mode == ComputeMode::None {
            self.phase = Phase::Closed;
            self.active = false;
        }
        if terms.gpus != self.terms.gpus {
            (self.utilisation, self.shared_utilisation) =
                (Utilisation::default(), Utilisation::default());
        }
        self.terms = terms;
        self.virtual_time
            .retain(|gpu, _| self.terms.gpus.contains(gpu));
    }

    /// What its processes do now. For what they do on a visit they are charged, and a strict one in company for what it
    /// uses there beyond its part of the time.
    pub fn observe(&mut self, activity: Activity, now: Duration, clocks: &BTreeMap<u32, Virtual>) {
        let used = activity.used.saturating_sub(self.activity.used) / self.gpus();
        self.utilisation.record(used);
        self.shared_utilisation.record(used);
        if matches!(self.phase, Phase::Visiting { .. }) {
            self.charge(used, clocks);
        } else if self.shared_utilisation.counts() {
            let before = self.uncharged_ns.max(0);
            self.uncharged_ns += nanos(used);
            self.spend(self.uncharged_ns.max(0) - before);
        }
        if activity.busy || self.activity.busy {
            self.quiet_since = now;
        }
        if activity.busy && (self.has_turn() || self.is_urgent()) {
            self.misses = 0;
        }
        if activity.waiting && !self.activity.waiting {
            self.asked_at = now;
            self.asked_over_share = self.bucket.is_empty();
            self.record_gap(now);
        }
        if self.missed_request != Some(activity.requests) {
            self.missed_request = None;
        }
        self.activity = activity;
    }

    pub fn begin(&mut self, now: Duration, no_later: Option<Duration>) {
        self.quiet_since = now;
        self.lost = Duration::ZERO;
        self.phase = Phase::Holding {
            since: now,
            until: None,
            no_later,
        };
    }

    /// When a holder that does nothing loses its turn to another; none while it does something.
    pub fn idle_deadline(&self) -> Option<Duration> {
        let patience = match self.activity.waiting {
            true => (WAKING * 2_u32.saturating_pow(self.misses)).min(LONGEST_HOLD),
            false if self.is_urgent() && self.short_gaps >= SHORT_GAPS => GRACE,
            false if self.is_urgent() || self.is_interactive => Duration::ZERO,
            false => GRACE,
        };
        (!self.activity.busy).then(|| self.quiet_since + patience)
    }

    /// How long between two looks at a holder that another waits for.
    pub fn poll_interval(&self) -> Duration {
        let is_steady = self
            .utilisation
            .thousandths()
            .is_some_and(|used| used >= STEADY);
        if self.activity.busy && is_steady {
            STEADY_POLL
        } else {
            POLL
        }
    }

    /// Takes note of the time for which it had nothing to do.
    fn record_gap(&mut self, now: Duration) {
        let is_short = now <= self.quiet_since + GRACE;
        self.short_gaps = (3 * self.short_gaps + if is_short { 1000 } else { 0 }) / 4;
    }

    /// Whether it is let in at once when it asks.
    pub fn is_entitled(&self) -> bool {
        self.goal().is_some() && !self.bucket.is_empty()
    }

    /// Its latency goal, if it takes part on such terms.
    pub fn goal(&self) -> Option<Duration> {
        let is_fair = self.terms.mode == ComputeMode::Fair;
        self.terms.goal.filter(|_| is_fair)
    }

    pub fn is_urgent(&self) -> bool {
        matches!(self.phase, Phase::Urgent { .. })
    }

    /// When what it asked for is due. One that goes on for longer counts as asking again, so that none stays ahead of
    /// another for good.
    pub fn due_at(&self, now: Duration) -> Duration {
        let goal = self.goal().unwrap_or(LONGEST_HOLD).max(GRACE);
        let goals = now.saturating_sub(self.asked_at).as_nanos() / goal.as_nanos();
        self.asked_at + goal * u32::try_from(goals + 1).unwrap_or(u32::MAX)
    }

    /// Its turn, if it has one, takes up where it was after so much more of a pause.
    pub fn extend_pause(&mut self, passed: Duration) {
        match &mut self.phase {
            Phase::Holding { since, until, .. } => {
                *since += passed;
                *until = until.map(|until| until + passed);
            }
            Phase::Draining { since, .. } => *since += passed,
            _ => {}
        }
    }

    /// Ends its turn because it did nothing.
    pub fn forfeit_turn(&mut self) {
        self.phase = Phase::Closed;
        self.is_interactive = !self.activity.waiting;
        self.missed_request = self.activity.waiting.then_some(self.activity.requests);
        if self.activity.waiting {
            self.misses = self.misses.saturating_add(1);
        }
    }

    /// When its work should leave its GPUs.
    pub fn ends_at(&self) -> Duration {
        self.activity.ends_at + self.lost
    }

    /// Has a turn, or work of one on its GPUs.
    pub fn has_turn(&self) -> bool {
        matches!(self.phase, Phase::Holding { .. } | Phase::Draining { .. })
    }

    /// Wants a GPU and may be given it.
    pub fn is_candidate(&self) -> bool {
        self.phase == Phase::Closed && self.is_active()
    }

    /// Whether the virtual time of other tenants is measured against this one.
    pub fn is_active(&self) -> bool {
        match self.phase {
            _ if self.terms.mode == ComputeMode::None => false,
            Phase::Closed => {
                self.activity.waiting
                    && self.missed_request.is_none()
                    && self.until_earned().is_none()
            }
            _ => !self.activity.is_idle(),
        }
    }

    /// Begins to wait: level with the others, or as far behind as before, but at most half a quantum.
    pub fn catch_up(&mut self, clocks: &BTreeMap<u32, Virtual>) {
        let behind = self.to_virtual(HALF_QUANTUM);
        for gpu in &self.terms.gpus {
            let clock = clocks.get(gpu).copied().unwrap_or(0);
            let time = self.virtual_time.entry(*gpu).or_insert(clock);
            *time = (*time).max(clock - behind);
        }
    }

    pub fn charge(&mut self, time: Duration, clocks: &BTreeMap<u32, Virtual>) {
        let (passed, debt) = (self.to_virtual(time), self.to_virtual(LARGEST_DEBT));
        for (gpu, own) in &mut self.virtual_time {
            let most = clocks.get(gpu).map_or(Virtual::MAX, |clock| clock + debt);
            *own = (*own + passed).min(most.max(*own));
        }
        self.spend(nanos(time));
    }

    /// Charges a part of co-scheduled time, less what its reported use has paid for.
    pub fn charge_co_scheduled(&mut self, time: Duration, clocks: &BTreeMap<u32, Virtual>) {
        let before = self.uncharged_ns.max(0);
        self.uncharged_ns -= nanos(time);
        self.spend(self.uncharged_ns.max(0) - before);
        self.charge(time, clocks);
    }

    /// Its co-scheduling has ended.
    pub fn clear_uncharged(&mut self) {
        self.uncharged_ns = 0;
    }

    fn spend(&mut self, nanos_used: i128) {
        self.credit_ns = (self.credit_ns - nanos_used).max(-nanos(LARGEST_DEBT));
    }

    /// What a strict tenant gets for time that passed.
    pub fn earn(&mut self, passed: Duration) {
        let most = if self.activity.is_idle() {
            STRICT_START
        } else {
            STRICT_ARREARS
        };
        let most = nanos(most).max(self.credit_ns);
        self.credit_ns = (self.credit_ns + nanos(passed) * self.thousandths() / 1000).min(most);
    }

    /// How long until a strict tenant has earned enough to begin; none if it may.
    pub fn until_earned(&self) -> Option<Duration> {
        let missing = nanos(STRICT_START) - self.credit_ns;
        (self.is_capped() && missing > 0)
            .then(|| duration((missing * 1000).div_euclid(self.thousandths()) + 1))
    }

    /// A strict tenant that has used up what it earned.
    pub fn is_spent(&self) -> bool {
        self.is_capped() && self.credit_ns <= 0
    }

    /// How long a strict tenant may hold with what it has earned and earns meanwhile.
    pub fn earned_hold(&self) -> Option<Duration> {
        self.is_capped()
            .then(|| duration(self.credit_ns * 1000 / (1000 - self.thousandths())))
    }

    /// What it may do; `alone` on its GPUs or not.
    pub fn grant(&self, alone: bool) -> Lease {
        match self.phase {
            _ if self.terms.mode == ComputeMode::None => Lease::Open,
            _ if self.paused.is_some() => Lease::Closed,
            Phase::Urgent {
                until,
                closing: None,
            } => Lease::Until(until),
            Phase::Urgent { .. } => Lease::Closed,
            Phase::Holding { until: None, .. } if alone => Lease::Open,
            Phase::Holding { until: None, .. } => Lease::Bounded,
            Phase::Holding {
                until: Some(until), ..
            } => Lease::Until(until),
            Phase::Draining {
                open_until: Some(until),
                ..
            } => Lease::Peers(until),
            Phase::Visiting { until } | Phase::Sharing { until } => Lease::Visit(until),
            Phase::Closed | Phase::Draining { .. } => Lease::Closed,
        }
    }

    pub fn to_virtual(&self, time: Duration) -> Virtual {
        nanos(time) * 1000 / self.thousandths()
    }

    pub fn to_time(&self, lead: Virtual) -> Duration {
        duration(lead * self.thousandths() / 1000)
    }

    fn is_capped(&self) -> bool {
        self.terms.mode == ComputeMode::Strict && self.thousandths() < 1000
    }

    /// Device time that it reported, on each of its GPUs.
    pub fn used_on_each(&self) -> Duration {
        self.activity.used / self.gpus()
    }

    fn gpus(&self) -> u32 {
        u32::try_from(self.terms.gpus.len().max(1)).expect("few GPUs")
    }

    fn thousandths(&self) -> i128 {
        i128::from(self.terms.share.thousandths())
    }
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).expect("the nanoseconds of 2^64 seconds fit")
}

/// A time below zero is none; one beyond 500 years is as good as that.
fn duration(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}
