//! The steps of a run: events of the machine and its users.

use std::fmt;
use std::str::FromStr;

use divvy_testkit::Rng;

/// One thing that happens; the number decides what is left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub what: What,
    pub number: u64,
}

/// The table of them: its word, and how often it comes compared with others.
macro_rules! whats {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $weight:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum What {
            $($(#[$doc])* $name,)*
        }

        impl What {
            const ALL: &[(Self, &str, u64)] = &[$((Self::$name, $word, $weight),)*];
        }
    };
}

whats! {
    /// The daemon does a round, or is started where none is.
    Round = "round", 60;
    /// The same, without an observation of the GPUs.
    Blindfold = "blindfold", 8;
    Time = "time", 12;
    Submit = "submit", 24;
    /// A job that its client runs.
    Client = "client", 5;
    Cancel = "cancel", 6;
    Requeue = "requeue", 4;
    Suspend = "suspend", 4;
    Resume = "resume", 4;
    Resize = "resize", 8;
    /// A job goes into another queue, or first in its queue.
    Move = "move", 5;
    /// A waiting job is kept from starting.
    Hold = "hold", 5;
    Release = "release", 5;
    /// Priority, time limit, amount or name of a job is another one.
    Change = "change", 5;
    Wait = "wait", 4;
    /// Another scheduler has something held, or has it held already.
    Claim = "claim", 6;
    GiveBack = "give-back", 5;
    /// A pod that uses a claim starts.
    Pod = "pod", 6;
    /// A client that waits goes away.
    Leave = "leave", 3;
    Supervisors = "supervisors", 50;
    Programs = "programs", 40;
    KillSupervisor = "kill-supervisor", 4;
    KillProgram = "kill-program", 5;
    /// The daemon dies at one of the next points that it comes to.
    Crash = "crash", 14;
    /// SIGTERM.
    Stop = "stop", 2;
    DiskFull = "disk-full", 3;
    /// The file system tells that it has little room, and takes what is written.
    DiskLow = "disk-low", 3;
    DiskFree = "disk-free", 6;
    NoProcesses = "no-processes", 2;
    Processes = "processes", 5;
    GpuIll = "gpu-ill", 3;
    GpuLost = "gpu-lost", 2;
    GpuAbsent = "gpu-absent", 1;
    GpuWell = "gpu-well", 6;
    DriverIll = "driver-ill", 2;
    DriverWell = "driver-well", 5;
    Stranger = "stranger", 3;
    StrangerLeaves = "stranger-leaves", 3;
    ClockJump = "clock-jump", 2;
    /// A job in a container, in a MIG instance, to be confirmed, or under a rule of its own.
    SubmitMore = "submit-more", 24;
    Confirm = "confirm", 10;
    /// A client starts another program in a job.
    Enter = "enter", 4;
    /// The process of which supervisors are copies ends.
    ForkServerDies = "nursery-dies", 2;
    EngineGoes = "engine-goes", 3;
    /// The engine goes away in the middle of its next call.
    EngineBreaks = "engine-breaks", 4;
    EngineBack = "engine-back", 8;
    /// Another program removes a container.
    ContainerGoes = "container-goes", 1;
    /// What the daemon does about containers when it starts is done.
    Sweep = "sweep", 4;
    /// The MIG workers.
    Mig = "mig", 50;
    /// A GPU is to be divided, or not any more.
    Divide = "divide", 3;
    /// Another program makes instances, or removes them.
    Meddle = "meddle", 8;
    /// Idle instances are to go.
    Collect = "collect", 2;
    /// An array, or a job that runs after one. In place of other steps of a run ([`arrays`]).
    SubmitArray = "submit-array", 0;
    /// A client acts on a whole array.
    ActOnArray = "array", 0;
    /// An engine asks for a slice. In place of other steps of a run ([`slices`]).
    Slice = "slice", 0;
    /// The process or control group of a slice comes or goes.
    SliceEnds = "slice-ends", 0;
    /// The driver lists the GPUs in another order. In place of other steps of a run ([`orders`]).
    GpuOrder = "gpu-order", 0;
    /// A job that asks for a GPU by its index.
    SubmitOn = "submit-on", 0;
    /// GPUs go out of service. In place of other steps of a run ([`services`]).
    Drain = "drain", 0;
    Undrain = "undrain", 0;
    /// A probe of a GPU ends.
    Probe = "probe", 0;
    /// A job is suspended and its memory is offloaded. In place of other steps of a run ([`offloads`]).
    Offload = "offload", 0;
    /// A job is parked, or woken.
    Park = "park", 0;
    Wake = "wake", 0;
    /// The operations that copy memory go on.
    Copy = "copy", 0;
    /// Seconds pass in which no program does anything, and the daemon sees it.
    Quiet = "quiet", 0;
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = What::ALL.iter().find(|(what, ..)| *what == self.what);
        write!(
            out,
            "{}:{:x}",
            word.map_or("", |(_, word, _)| word),
            self.number
        )
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no step");
        let (word, number) = text.split_once(':').ok_or_else(wrong)?;
        let found = What::ALL.iter().find(|(_, known, _)| *known == word);
        Ok(Self {
            what: found.ok_or_else(wrong)?.0,
            number: u64::from_str_radix(number, 16).map_err(|_| wrong())?,
        })
    }
}

/// Without these nothing goes on, or nothing is ever well again.
const STEADY: [What; 11] = [
    What::Round,
    What::Time,
    What::Supervisors,
    What::Programs,
    What::Mig,
    What::DiskFree,
    What::Processes,
    What::GpuWell,
    What::DriverWell,
    What::EngineBack,
    What::StrangerLeaves,
];

/// The steps of a seed. Each has some kinds more often than others have and leaves some out, so that what is rare is
/// met in numbers, and without what would hide it (Groce et al., Swarm Testing, 2012).
pub fn of(seed: u64, count: usize) -> Vec<Step> {
    let mut dice = Rng::new(seed);
    let mut often = |(what, _, weight): &(What, &str, u64)| {
        let times = dice.one(&[0, 1, 1, 1, 4]).unwrap_or(1);
        let times = if STEADY.contains(what) { 1 } else { times };
        (*what, weight * times)
    };
    let swarm = What::ALL.iter().filter(|(_, _, weight)| *weight > 0);
    let swarm: Vec<(What, u64)> = swarm.map(&mut often).collect();
    let all: u64 = swarm.iter().map(|(_, weight)| weight).sum();
    let mut one = || {
        let mut left = dice.below(all);
        let what = swarm.iter().find(|(_, weight)| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        Step {
            what: what.map_or(What::Round, |(what, _)| *what),
            number: dice.draw() >> 32,
        }
    };
    let mut steps: Vec<Step> = (0..count).map(|_| one()).collect();
    // A GPU in use cannot be divided: half of the runs divide it before any other step.
    if dice.once_in(2) {
        for (step, what) in steps.iter_mut().zip(DIVIDES) {
            step.what = what;
        }
    }
    arrays(seed, &mut steps);
    slices(seed, &mut steps);
    orders(seed, &mut steps);
    services(seed, &mut steps);
    offloads(seed, &mut steps);
    parkings(seed, &mut steps);
    steps
}

/// Whether jobs of this run are idle for long and are parked: of a quarter of the runs.
pub fn has_idle_jobs(seed: u64) -> bool {
    seed % 4 == 1
}

/// Puts quiet times in the place of most other steps, and jobs that want the room of idle ones.
fn parkings(seed: u64, steps: &mut [Step]) {
    let mut dice = Rng::new(seed.rotate_left(48) ^ 0x9a_2c1e);
    if !has_idle_jobs(seed) {
        return;
    }
    let whats = [
        [What::Round, What::Supervisors, What::Programs, What::Copy],
        [What::Quiet, What::Supervisors, What::Submit, What::Copy],
        [What::Quiet, What::Submit, What::Submit, What::Wake],
        [What::Quiet, What::Submit, What::Submit, What::Copy],
    ];
    replace_most(steps, &mut dice, 10, whats.as_flattened());
}

/// Puts one of these in the place of each step but one in `kept`.
fn replace_most(steps: &mut [Step], dice: &mut Rng, kept: u64, whats: &[What]) {
    for step in steps.iter_mut() {
        if !dice.once_in(kept) {
            step.what = dice.one(whats).unwrap_or(step.what);
        }
    }
}

/// Puts offloads in the place of most other steps, with what jobs need to get as far as to have memory, in a third of the
/// runs.
fn offloads(seed: u64, steps: &mut [Step]) {
    let mut dice = Rng::new(seed.rotate_left(40) ^ 0x0f_f10a);
    if !dice.once_in(3) {
        return;
    }
    let whats = [
        [What::Round, What::Supervisors, What::Programs, What::Copy],
        [What::Round, What::Supervisors, What::Programs, What::Copy],
        [What::Round, What::Submit, What::Programs, What::Copy],
        [What::Offload, What::Park, What::Resume, What::Wake],
    ];
    replace_most(steps, &mut dice, 6, whats.as_flattened());
}

/// Puts GPUs out of service in the place of other steps, in a quarter of the runs.
fn services(seed: u64, steps: &mut [Step]) {
    let mut dice = Rng::new(seed.rotate_left(24) ^ 0x5e_41ce);
    if dice.once_in(4) {
        let whats = [What::Drain, What::Undrain, What::Undrain, What::Probe];
        replace(dice, steps, 12, &whats);
    }
}

/// Puts other orders of the GPUs, and what comes with them, in the place of other steps, in a third of the runs.
fn orders(seed: u64, steps: &mut [Step]) {
    let mut dice = Rng::new(seed.rotate_left(16) ^ 0x09_de45);
    if dice.once_in(3) {
        let whats = [
            What::GpuOrder,
            What::SubmitOn,
            What::SubmitOn,
            What::GpuAbsent,
            What::GpuWell,
            What::Stop,
            What::Round,
        ];
        replace(dice, steps, 6, &whats);
    }
}

/// Puts slices in the place of other steps, in a third of the runs.
fn slices(seed: u64, steps: &mut [Step]) {
    let mut dice = Rng::new(seed.rotate_left(32) ^ 0x51_1ce5);
    if dice.once_in(3) {
        let whats = [What::Slice, What::Slice, What::SliceEnds];
        replace(dice, steps, 10, &whats);
    }
}

/// Puts arrays in the place of other steps, in half of the runs.
fn arrays(seed: u64, steps: &mut [Step]) {
    let mut dice = Rng::new(!seed);
    if !dice.once_in(2) {
        let whats = [What::SubmitArray, What::SubmitArray, What::ActOnArray];
        replace(dice, steps, 12, &whats);
    }
}

/// Puts these in the place of one step of so many. The dice are the caller's own, so that what a seed has in other runs
/// stays what it was.
fn replace(mut dice: Rng, steps: &mut [Step], one_of: u64, whats: &[What]) {
    for step in steps.iter_mut().skip(DIVIDES.len()) {
        if dice.once_in(one_of) {
            step.what = dice.one(whats).unwrap_or(step.what);
        }
    }
}

/// The daemon starts and gets a request, and a MIG worker carries it out.
const DIVIDES: [What; 8] = [
    What::Round,
    What::Divide,
    What::Round,
    What::Mig,
    What::Mig,
    What::Round,
    What::Divide,
    What::Round,
];

#[test]
fn a_step_is_read_back_as_it_was_written() {
    for step in of(7, 200) {
        assert_eq!(step.to_string().parse(), Ok(step));
    }
    assert!("nothing:1".parse::<Step>().is_err());
}
