//! Tenants with loads on GPUs of a simple time model, and the keeper between them. Simulated time only, in steps.
//!
//! A GPU runs one process at a time and changes among those that have work on it, as a driver does ([`DRIVER_SLICE`]).
//! A process launches when its load says so and its tenant's grant allows it, and keeps no more work ahead than
//! [`WINDOW`], as the limiter does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use divvy_core::lease::{Activity, Arbiter, Lease, Served, Tenant, TenantConfig, TenantEvent};
use divvy_core::{ComputeMode, Share};

/// Kernels take at least two.
pub const STEP: Duration = Duration::from_micros(100);
pub const WINDOW: Duration = Duration::from_millis(10);
/// What a driver lets a process launch ahead when nothing holds it: a thousand kernels, say.
const OPEN_WINDOW: Duration = Duration::from_millis(200);
const OVERDUE: Duration = Duration::from_millis(3);
/// How often the agent asks a GPU's driver.
const LOOK: Duration = Duration::from_millis(250);
/// The default time slice of a channel group in NVIDIA's open kernel module, in steps of [`STEP`]. Not measured.
const DRIVER_SLICE: Duration = Duration::from_micros(1_024);

pub const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a process does with its GPU.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// One kernel, wait for it, think, again.
    Sync { kernel: Duration, think: Duration },
    /// So many kernels, each waited for, with a gap between two; then a pause of half to one and a half times `think`.
    Requests {
        kernels: u32,
        kernel: Duration,
        gap: Duration,
        think: Duration,
    },
    /// The same with kernels of 0.1, 1, 5 and 20 ms in any order.
    Mix,
    /// As many kernels as the window lets in.
    Flood { kernel: Duration },
    /// Floods for so much work, then rests.
    Burst {
        kernel: Duration,
        work: Duration,
        rest: Duration,
    },
    /// A kernel that gets on only while the same process of the same tenant on the other GPU runs its own.
    Collective { kernel: Duration, think: Duration },
}

pub struct Process {
    pub gpu: u32,
    pub load: Load,
    /// What is left of each kernel on the GPU, first first.
    queue: VecDeque<Duration>,
    /// All of that together.
    ahead: Duration,
    launched: u64,
    finished: u64,
    ready_at: Duration,
    work_left: Duration,
    /// Kernels of this request that are done.
    made: u32,
    waiting: bool,
    /// The change of its tenant's grant after which it was first seen at the gate with nothing on its GPU.
    idle_at: Option<u64>,
    /// The change of grant that found it so.
    let_in: Option<u64>,
    asked_at: Duration,
    /// From asking to launch to the end of the kernel, one per kernel that had nothing before it.
    pub latencies: Vec<Duration>,
    pub stopped: bool,
    asked: u64,
}

impl Process {
    fn wants(&self, now: Duration, window: Duration) -> Option<Duration> {
        if now < self.ready_at {
            return None;
        }
        let ahead = self.ahead;
        match self.load {
            Load::Sync { kernel, .. }
            | Load::Collective { kernel, .. }
            | Load::Requests { kernel, .. } => self.queue.is_empty().then_some(kernel),
            Load::Mix => {
                let kernel = [us(100), ms(1), ms(5), ms(20)][spread(self.launched) as usize % 4];
                (ahead.is_zero() || ahead + kernel <= window).then_some(kernel)
            }
            Load::Flood { kernel } => {
                (ahead.is_zero() || ahead + kernel <= window).then_some(kernel)
            }
            Load::Burst { kernel, .. } => (self.work_left >= kernel
                && (ahead.is_zero() || ahead + kernel <= window))
                .then_some(kernel),
        }
    }
}

pub struct Player {
    pub terms: TenantConfig,
    pub processes: Vec<Process>,
    pub grant: Lease,
    /// How often that changed.
    told: u64,
    /// When it last did.
    told_at: Duration,
    /// How much work it is to keep ahead.
    pub window: Duration,
    /// When its processes that wait at the gate have noticed.
    awake_at: Duration,
    /// How long its processes take to wake when it does, as on a machine whose processors are all taken.
    pub wakes_in: Duration,
    /// Says that it waits and is busy, whatever it does.
    pub lies: bool,
    /// Reports no device time.
    pub conceals: bool,
    seen: Activity,
    /// When its work on each GPU should be done, if it has the GPU to itself.
    reckoned: BTreeMap<u32, Duration>,
    /// Work launched so far.
    put: Duration,
    /// Device time used, by second.
    pub used: Vec<Duration>,
}

impl Player {
    /// Whether its grant lets it launch.
    pub fn holds(&self, now: Duration) -> bool {
        match self.grant {
            Lease::Open | Lease::Bounded => true,
            Lease::Until(end) | Lease::Visit(end) => now < end,
            Lease::Peers(_) | Lease::Closed => false,
        }
    }

    /// Whether a process that stood at the gate with nothing on its GPU may launch what work of the others may wait for.
    fn lets_peers_in(&self, now: Duration) -> bool {
        matches!(self.grant, Lease::Peers(end) if now < end)
    }

    /// Whether it knows its grant by now.
    fn is_awake(&self, now: Duration) -> bool {
        now >= self.awake_at.max(self.told_at + self.wakes_in)
    }

    fn activity(&self, now: Duration) -> Activity {
        Activity {
            waiting: self.lies || self.processes.iter().any(|process| process.waiting),
            busy: self.lies
                || self
                    .processes
                    .iter()
                    .any(|process| !process.queue.is_empty()),
            requests: self.processes.iter().map(|process| process.asked).sum(),
            used: self.put,
            workers: self
                .processes
                .iter()
                .filter(|process| !process.queue.is_empty())
                .count() as u32,
            ends_at: self.reckoned.values().max().copied().unwrap_or_default(),
            overdue: self.processes.iter().any(|process| {
                !process.queue.is_empty() && now > self.reckoned[&process.gpu] + OVERDUE
            }),
        }
    }

    /// Device time used in the given seconds, as a part of one GPU.
    pub fn part(&self, seconds: std::ops::Range<usize>) -> f64 {
        let length = seconds.len() as f64;
        let used: Duration = self.used[seconds].iter().sum();
        used.as_secs_f64() / length
    }
}

#[derive(Default)]
struct Gpu {
    running: Option<(usize, usize)>,
    until: Duration,
    /// Time in which it worked since the last look at it.
    busy: Duration,
}

pub struct World {
    pub now: Duration,
    pub players: Vec<Player>,
    pub keeper: Arbiter,
    gpus: Vec<Gpu>,
    again: Option<Duration>,
    /// How often the keeper was asked.
    pub turns: u64,
    /// Without leases: everybody launches at will.
    pub ungated: bool,
    /// How long the driver lets one process of several run.
    pub driver_slice: Duration,
    /// On busy processors, how long the keeper and processes take to wake, on average.
    pub wake_delay: Duration,
    /// The requests with a latency goal that the keeper saw end.
    pub served: Vec<Served>,
    /// How often that was drawn.
    draws: u64,
    /// When the keeper, which was woken, is awake.
    keeper_at: Option<Duration>,
    /// Until then nobody asks the keeper, or tells it anything.
    deaf_until: Duration,
}

impl World {
    pub fn new(gpus: usize) -> Self {
        Self {
            now: Duration::ZERO,
            players: Vec::new(),
            keeper: Arbiter::default(),
            gpus: (0..gpus).map(|_| Gpu::default()).collect(),
            again: None,
            turns: 0,
            ungated: false,
            driver_slice: DRIVER_SLICE,
            wake_delay: Duration::ZERO,
            served: Vec::new(),
            draws: 0,
            keeper_at: None,
            deaf_until: Duration::ZERO,
        }
    }

    /// A tenant with one process per load, each with its GPU; its number is its place.
    pub fn join(&mut self, thousandths: u16, mode: ComputeMode, loads: &[(u32, Load)]) -> usize {
        self.join_with(thousandths, mode, None, loads)
    }

    /// A tenant with a latency goal.
    pub fn join_urgent(&mut self, thousandths: u16, goal: Duration, load: Load) -> usize {
        self.join_with(thousandths, ComputeMode::Fair, Some(goal), &[(0, load)])
    }

    pub fn join_with(
        &mut self,
        thousandths: u16,
        mode: ComputeMode,
        goal: Option<Duration>,
        loads: &[(u32, Load)],
    ) -> usize {
        let mut gpus: Vec<u32> = loads.iter().map(|(gpu, _)| *gpu).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let terms = TenantConfig {
            gpus,
            share: Share::from_thousandths(thousandths).expect("a share"),
            mode,
            goal,
        };
        let number = self.players.len();
        self.keeper.handle(
            self.now,
            TenantEvent::Configured(number as Tenant, terms.clone()),
        );
        let processes = loads.iter().map(|(gpu, load)| Process {
            gpu: *gpu,
            load: *load,
            queue: VecDeque::new(),
            ahead: Duration::ZERO,
            launched: 0,
            finished: 0,
            ready_at: self.now,
            work_left: match load {
                Load::Burst { work, .. } => *work,
                _ => Duration::MAX,
            },
            made: 0,
            waiting: false,
            idle_at: None,
            let_in: None,
            asked_at: self.now,
            latencies: Vec::new(),
            stopped: false,
            asked: 0,
        });
        self.players.push(Player {
            terms,
            processes: processes.collect(),
            grant: Lease::Closed,
            told: 0,
            told_at: Duration::ZERO,
            awake_at: Duration::ZERO,
            window: WINDOW,
            wakes_in: Duration::ZERO,
            lies: false,
            conceals: false,
            seen: Activity::default(),
            reckoned: BTreeMap::new(),
            put: Duration::ZERO,
            used: vec![Duration::ZERO],
        });
        self.turn();
        number
    }

    pub fn leave(&mut self, number: usize) {
        self.keeper
            .handle(self.now, TenantEvent::Left(number as Tenant));
        self.players[number].processes.clear();
        self.turn();
    }

    /// A tenant launches nothing any more; what it has on the GPUs stays there.
    pub fn fall_asleep(&mut self, number: usize) {
        for process in &mut self.players[number].processes {
            process.ready_at = Duration::MAX;
        }
    }

    /// Time passes without the keeper, as when its process is stopped or the machine sleeps: what was granted is not taken back.
    pub fn run_without_keeper(&mut self, time: Duration) {
        self.deaf_until = self.now + time;
        self.run(time);
        self.turn();
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    pub fn step(&mut self) {
        if self.launch() || self.again.is_some_and(|again| again <= self.now) {
            let awake = self.now + self.draw_delay();
            self.keeper_at.get_or_insert(awake);
        }
        if self.keeper_at.is_some_and(|at| at <= self.now) {
            self.keeper_at = None;
            self.turn();
            self.launch();
        }
        for gpu in 0..self.gpus.len() {
            self.execute(gpu);
        }
        self.now += STEP;
        if self.now.as_nanos().is_multiple_of(LOOK.as_nanos()) {
            self.look();
        }
        let second = self.now.as_secs() as usize;
        for player in &mut self.players {
            if player.used.len() <= second {
                player.used.resize(second + 1, Duration::ZERO);
            }
        }
    }

    /// The time that the next one takes to wake: exponentially distributed.
    fn draw_delay(&mut self) -> Duration {
        if self.wake_delay.is_zero() {
            return Duration::ZERO;
        }
        self.draws += 1;
        let part = f64::from(spread(self.draws) + 1) / 1000.0;
        self.wake_delay.mul_f64(-part.ln())
    }

    /// Tells the keeper what the driver says of each GPU.
    fn look(&mut self) {
        if self.now < self.deaf_until {
            return;
        }
        for (gpu, state) in self.gpus.iter_mut().enumerate() {
            let busy = std::mem::take(&mut state.busy).as_nanos() * 1000 / LOOK.as_nanos();
            let used = TenantEvent::DriverUtilisation(gpu as u32, busy as u32);
            self.keeper.handle(self.now, used);
        }
    }

    /// Everybody launches what they may. True if the keeper is to be woken: one begins to wait, or waits and has drained.
    fn launch(&mut self) -> bool {
        let (now, ungated) = (self.now, self.ungated);
        let mut wake = false;
        for player in &mut self.players {
            let awake = player.is_awake(now);
            let open = ungated || awake && player.holds(now);
            let peers = awake && player.lets_peers_in(now);
            let window = match player.grant {
                Lease::Open => OPEN_WINDOW,
                _ => player.window,
            };
            for process in &mut player.processes {
                if process.stopped {
                    continue;
                }
                let was = process.waiting;
                process.waiting = false;
                let is_idle = was && process.queue.is_empty();
                process.idle_at = is_idle.then(|| process.idle_at.unwrap_or(player.told));
                if process.idle_at.is_some_and(|told| told != player.told) {
                    process.let_in = Some(player.told);
                }
                let peers = peers && process.let_in == Some(player.told);
                while let Some(kernel) = process.wants(now, window) {
                    let begins = process.made == 0 && process.queue.is_empty();
                    if !was && !process.waiting && begins {
                        process.asked_at = now;
                    }
                    if !(open || peers && process.queue.is_empty()) {
                        process.waiting = true;
                        process.asked += u64::from(!was || now.subsec_millis() % 20 == 0);
                        break;
                    }
                    let reckoned = player.reckoned.entry(process.gpu).or_default();
                    *reckoned = now.max(*reckoned) + kernel;
                    if !player.conceals {
                        player.put += kernel;
                    }
                    process.queue.push_back(kernel);
                    process.ahead += kernel;
                    process.launched += 1;
                    process.work_left = process.work_left.saturating_sub(kernel);
                }
            }
            if player.lies || player.processes.iter().any(|process| process.waiting) {
                let activity = player.activity(now);
                wake |=
                    activity.requests != player.seen.requests || !activity.busy && player.seen.busy;
            }
        }
        wake
    }

    fn turn(&mut self) {
        let now = self.now;
        if now < self.deaf_until {
            return;
        }
        self.turns += 1;
        for (number, player) in self.players.iter_mut().enumerate() {
            let mut activity = player.activity(now);
            // One that launches, waits and launches again is seen between the two every other time; at the gate it has said what is left.
            activity.busy |= activity.used != player.seen.used && !activity.waiting;
            if activity != player.seen {
                player.seen = activity;
                self.keeper
                    .handle(self.now, TenantEvent::Observed(number as Tenant, activity));
            }
        }
        let turn = self.keeper.decide(self.now);
        for (tenant, grant) in turn.leases {
            let awake = now + self.draw_delay();
            let player = &mut self.players[tenant as usize];
            if !player.holds(now) {
                player.awake_at = awake;
            }
            (player.grant, player.told, player.told_at) = (grant, player.told + 1, now);
            self.check();
        }
        for (tenant, ahead) in turn.ahead {
            let window = if ahead.is_zero() { WINDOW } else { ahead };
            self.players[tenant as usize].window = window;
        }
        self.again = turn.wake_at;
        self.served.extend(turn.served);
    }

    /// No GPU has two tenants that leases apply to, between two grants of one decision either.
    fn check(&self) {
        let mut holders = BTreeMap::new();
        for (number, player) in self.players.iter().enumerate() {
            let gated = player.terms.mode != ComputeMode::None && !player.processes.is_empty();
            let visits = matches!(player.grant, Lease::Visit(_));
            if gated && !visits && player.holds(self.now) {
                for gpu in &player.terms.gpus {
                    let other = holders.insert(*gpu, number);
                    assert_eq!(
                        other, None,
                        "GPU {gpu} at {:?}, beside tenant {number}",
                        self.now
                    );
                }
            }
        }
    }

    /// Whether a tenant stands at the gate.
    pub fn is_waiting(&self, player: usize) -> bool {
        self.players[player]
            .processes
            .iter()
            .any(|process| process.waiting)
    }

    /// Whether a tenant has work on a GPU.
    pub fn is_used_by(&self, player: usize) -> bool {
        self.players[player]
            .processes
            .iter()
            .any(|process| !process.queue.is_empty())
    }

    fn execute(&mut self, gpu: usize) {
        let now = self.now;
        let has_work = |players: &[Player], (player, process): (usize, usize)| {
            players[player]
                .processes
                .get(process)
                .is_some_and(|process| process.gpu as usize == gpu && !process.queue.is_empty())
        };
        let last = self.gpus[gpu].running;
        let running = last.filter(|at| has_work(&self.players, *at));
        let next = match running {
            Some(at) if now < self.gpus[gpu].until => Some(at),
            _ => {
                let all: Vec<(usize, usize)> = (0..self.players.len())
                    .flat_map(|player| {
                        (0..self.players[player].processes.len())
                            .map(move |process| (player, process))
                    })
                    .filter(|at| has_work(&self.players, *at))
                    .collect();
                let later = all.iter().find(|other| Some(**other) > last);
                later.or(all.first()).copied()
            }
        };
        if next != running || now >= self.gpus[gpu].until {
            self.gpus[gpu].until = now + self.driver_slice;
        }
        self.gpus[gpu].running = next.or(self.gpus[gpu].running);
        let Some((player, process)) = next else {
            return;
        };
        self.gpus[gpu].busy += STEP;
        let second = now.as_secs() as usize;
        self.players[player].used[second] += STEP;
        let spins = self.waits_for_peer(player, process);
        let process = &mut self.players[player].processes[process];
        let front = process.queue.front_mut().expect("it has work");
        if spins {
            return;
        }
        let done = STEP.min(*front);
        *front -= done;
        process.ahead -= done;
        if front.is_zero() {
            process.queue.pop_front();
            process.finished += 1;
            let end = now + STEP;
            let is_last = match process.load {
                Load::Requests { kernels, .. } => process.made + 1 == kernels,
                _ => true,
            };
            process.made = if is_last { 0 } else { process.made + 1 };
            if is_last {
                process.latencies.push(end - process.asked_at);
            }
            match process.load {
                Load::Requests { think, .. } if is_last => {
                    process.ready_at = end + think / 2 + think * spread(process.finished) / 1000;
                }
                Load::Requests { gap, .. } => process.ready_at = end + gap,
                Load::Sync { think, .. } | Load::Collective { think, .. } => {
                    process.ready_at = end + think;
                }
                Load::Burst { kernel, work, rest }
                    if process.work_left < kernel && process.queue.is_empty() =>
                {
                    process.work_left = work;
                    process.ready_at = end + rest;
                }
                _ => {}
            }
        }
    }

    /// A rank of a collective gets on only once all ranks have launched theirs.
    fn waits_for_peer(&self, player: usize, process: usize) -> bool {
        let processes = &self.players[player].processes;
        let own = &processes[process];
        matches!(own.load, Load::Collective { .. })
            && processes
                .iter()
                .filter(|other| matches!(other.load, Load::Collective { .. }))
                .any(|other| other.launched <= own.finished)
    }

    pub fn finished(&self, player: usize) -> u64 {
        self.players[player]
            .processes
            .iter()
            .map(|process| process.finished)
            .sum()
    }
}

/// A number below a thousand for each number: spread evenly, and always the same.
fn spread(number: u64) -> u32 {
    // The golden ratio's bits, as in Knuth's multiplicative hashing.
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (mixed % 1000) as u32
}

/// The value that 99 of 100 do not exceed.
pub fn p99(values: &[Duration]) -> Duration {
    percentile(values, 99)
}

/// The value that so many of 100 do not exceed.
pub fn percentile(values: &[Duration], part: usize) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * part / 100).min(sorted.len() - 1)]
}
