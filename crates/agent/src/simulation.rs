//! The simulation of the whole daemon in one seeded run, in virtual time. The controller, journal, job folders, ledger
//! and MIG operations are real. Processes, supervisors and the driver are simulated, so that any event can happen to
//! them at any moment.
//!
//! ```text
//! seed ──► steps ──► clients, programs, faults ──► machine (processes, memory, time) ──► laws, after every step
//!                         │                              ▲
//!                         └──► messages ──► controller ──┘  dies at any point, and starts again
//! ```
//! A step is a word and a number and depends on no step before it, so a failing list is made shorter by leaving steps
//! out. A failure prints its seed and the shortest list found. `DIVVY_AGENT_SEED=N` and `DIVVY_AGENT_STEPS='submit:1f
//! …'` run them again; `DIVVY_AGENT_RUNS=N` goes on with fresh seeds.

mod accounts;
mod arrays;
mod checkpoints;
mod claims;
pub mod clock;
mod container_supervisor;
pub mod daemon;
pub mod driver;
pub mod engine;
mod gates;
pub mod gpus;
mod invariants;
pub mod kernel;
mod machine;
pub mod mig;
mod program;
mod run;
mod services;
mod slices;
mod steps;
mod supervisor;
mod workload;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_api::v1::{Container, Runner};
use divvy_core::mig::MigUuid;
use divvy_core::{Bytes, JobId};

use crate::checkpoint::CheckpointReport;
use crate::host::clock::Instant;
use divvy_testkit::Rng;
use engine::Engine;
use gpus::Health;
use kernel::Proc;
use mig::MigGpu;
use program::Program;
use run::Run;
use steps::Step;

/// The machine.
pub struct World {
    home: Home,
    /// In the form of proc(5).
    proc: PathBuf,
    /// The limiter's file.
    preload: PathBuf,
    processes: BTreeMap<u32, Proc>,
    /// Children of the daemon that have ended and that it has not waited for, with their statuses.
    zombies: BTreeMap<u32, i32>,
    spawned: u32,
    daemon: Option<u32>,
    /// The fork server fails to start the next supervisor, or its report of the start is lost.
    fork_server_dies: bool,
    engine: Engine,
    /// Engines that hold slices.
    engines: slices::Engines,
    gpus: Vec<Health>,
    /// The order in which the driver lists them.
    order: Vec<usize>,
    /// Those that have answered this daemon.
    known: BTreeSet<usize>,
    /// Their MIG sides.
    divided: Vec<MigGpu>,
    /// Devices that another program has removed.
    meddled: BTreeSet<MigUuid>,
    /// A MIG worker is at work; events meanwhile are random.
    at_work: bool,
    luck: Rng,
    /// The processes that the driver has listed.
    listed: BTreeSet<u32>,
    /// When the driver was asked last what was done on each.
    sampled: BTreeMap<usize, Duration>,
    /// When each job was last at work.
    worked: BTreeMap<JobId, Duration>,
    /// Jobs with launches that the compute scheduler watches, and when it saw one.
    watched: BTreeSet<JobId>,
    wanted: BTreeMap<JobId, Instant>,
    /// The gates of jobs that this daemon has parked.
    gates: gates::Gates,
    /// Not even the number of GPUs is told.
    driver_is_ill: bool,
    /// fork(2) says EAGAIN.
    no_processes: bool,
    /// No more faults.
    is_calm: bool,
    /// Runs with a started program.
    started: BTreeSet<PathBuf>,
    /// Peaks and refusals on each GPU of a slice, by job and generation.
    usage: BTreeMap<(JobId, u64), Vec<(Bytes, u64)>>,
    /// How programs ended, by run, as wait(2) has it.
    ends: BTreeMap<PathBuf, i32>,
    /// The values that jobs were confirmed with, by any client.
    confirmations: BTreeMap<u64, BTreeSet<String>>,
    /// What operations have reported, and the daemon has not read yet.
    reports: Vec<CheckpointReport>,
    /// What did not hold, as soon as it was seen.
    broken: Option<String>,
    /// The trace of the run, printed with a failure.
    told: Vec<String>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Does something to this thread's simulated machine, where there is one.
fn with<T>(act: impl FnOnce(&mut World) -> T) -> Option<T> {
    WORLD.with_borrow_mut(|world| world.as_mut().map(act))
}

impl World {
    fn broken(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    fn trace(&mut self, what: impl FnOnce() -> String) {
        self.told.push(what());
    }

    /// A job's program is started: never twice in one run, and never beside another run of it.
    fn ran(&mut self, program: &Program) {
        let job = program.job;
        if !self.started.insert(program.run.clone()) {
            self.broken(format!(
                "the program of {} ran twice",
                program.run.display()
            ));
        }
        let other = self.processes.values().find(|other| match &other.kind {
            kernel::Kind::Program(program) => program.job == job && !self.has_escaped(other),
            _ => false,
        });
        if let Some(other) = other {
            let pid = other.process.pid;
            self.broken(format!(
                "job {job} is started again while pid {pid} of it lives"
            ));
        }
        for device in &program.devices {
            self.has_its_device(job, &program.tenant, device);
        }
        let (owner, devices) = (program.tenant.clone(), program.devices.len());
        self.trace(|| format!("  job {job} of {owner} starts in {devices} devices"));
        if let Err(what) = self.is_of_its_owner(program) {
            self.broken(what);
        }
        if let Some((_, said)) = &program.confirmed {
            let asked = self.confirmations.get(&job);
            let is_asked = |said: &String| asked.is_some_and(|asked| asked.contains(said));
            if !said.as_ref().is_some_and(is_asked) {
                self.broken(format!(
                    "job {job} runs as {said:?}, and was confirmed as {asked:?}"
                ));
            }
        }
        let now = clock::boot().unwrap_or_default();
        self.worked.insert(JobId(job), now);
    }
}

impl World {
    /// A program runs on the account of its submitter, with that account's secrets alone, and its slice is that
    /// account's.
    fn is_of_its_owner(&self, program: &Program) -> Result<(), String> {
        let (job, owner) = (program.job, program.tenant.as_str());
        let (uid, me) = (accounts::uid(owner), accounts::uid(accounts::ME));
        if program.uid != (uid != me).then_some(uid) {
            return Err(format!(
                "job {job} of {owner} runs as uid {:?}",
                program.uid
            ));
        }
        let secret = workload::secret_of(owner);
        if program.secret.as_ref().is_some_and(|said| *said != secret) {
            return Err(format!("job {job} of {owner} has another's secret"));
        }
        let slots = self.home.slice(&job.to_string()).join("slots");
        match std::fs::metadata(slots).map(|slots| slots.uid()) {
            Ok(whose) if whose != uid => Err(format!(
                "the slice of job {job} of {owner} is uid {whose}'s"
            )),
            _ => Ok(()),
        }
    }
}

/// Has the compute scheduler watch a job's launches, or stop watching them.
pub fn watch(job: JobId, closely: bool) {
    with(|world| match closely {
        true => drop(world.watched.insert(job)),
        false => {
            world.watched.remove(&job);
            world.wanted.remove(&job);
        }
    });
}

/// When it last saw one.
pub fn wanted(job: JobId) -> Option<Instant> {
    with(|world| world.wanted.get(&job).copied()).flatten()
}

/// How many steps a run has.
const STEPS: usize = 220;

/// Runs that the tests try: enough that each kind of fault meets each kind of step many times, and that each event of
/// [`MET`] comes. `cargo xtask soak` tries 10,000.
const RUNS: u64 = 100;

/// The first seed of these runs. From 1, 101 and 301 on, no hundred runs meet all of [`MET`].
const FIRST: u64 = 201;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// What a list of steps does, and what happened; an error is what did not hold, and what happened until then.
fn outcome(seed: u64, steps: &[Step]) -> Result<Vec<String>, (String, Vec<String>)> {
    let mut run = Run::new(seed);
    let result = run.all(steps);
    let told = with(|world| std::mem::take(&mut world.told)).unwrap_or_default();
    drop(run);
    match result {
        Ok(()) => Ok(told),
        Err(broken) => Err((broken, told)),
    }
}

/// Leaves out what is not needed for the failure: halves first, then single steps.
fn shorter(seed: u64, mut steps: Vec<Step>) -> Vec<Step> {
    let mut size = steps.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            match outcome(seed, &fewer) {
                Err(_) => steps = fewer,
                Ok(_) => at += size,
            }
        }
        size /= 2;
    }
    steps
}

fn check(seed: u64, steps: Vec<Step>) {
    if outcome(seed, &steps).is_ok() {
        return;
    }
    let steps = shorter(seed, steps);
    let (broken, told) = outcome(seed, &steps).expect_err("it failed before");
    let words: Vec<String> = steps.iter().map(ToString::to_string).collect();
    panic!(
        "{broken}\n\nwhat happened:\n{}\n\nagain: DIVVY_AGENT_SEED={seed} DIVVY_AGENT_STEPS='{}' cargo test -p divvy-agent --lib simulation",
        told.join("\n"),
        words.join(" ")
    );
}

#[test]
fn whatever_fails_and_dies_no_job_is_lost_runs_twice_or_keeps_what_it_held() {
    let seed = number("DIVVY_AGENT_SEED");
    if let Ok(steps) = std::env::var("DIVVY_AGENT_STEPS") {
        let steps = steps
            .split_whitespace()
            .map(|step| step.parse().expect("a step"));
        return check(seed.unwrap_or(0), steps.collect());
    }
    let first = seed.unwrap_or(FIRST);
    let runs = number("DIVVY_AGENT_RUNS").unwrap_or(if seed.is_some() { 1 } else { RUNS });
    // Each machine is its thread's.
    let (next, broken) = (AtomicU64::new(first), Mutex::new(BTreeSet::new()));
    let unmet = Mutex::new(BTreeSet::from(MET));
    let broken_now = || broken.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + runs {
                return;
            }
            match outcome(seed, &steps::of(seed, STEPS)) {
                Ok(told) => {
                    let told = told.join("\n");
                    let mut unmet = unmet.lock().unwrap_or_else(PoisonError::into_inner);
                    unmet.retain(|what| !told.contains(what));
                }
                Err((what, _)) => {
                    eprintln!("seed {seed}: {}", what.lines().next().unwrap_or_default());
                    broken_now().insert(seed);
                }
            }
            let done = seed + 1 - first;
            if runs > RUNS && done.is_multiple_of(500) {
                eprintln!("{done} of {runs} runs, {} broken", broken_now().len());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    // The first is told in full.
    let first = broken_now().first().copied();
    if let Some(seed) = first {
        check(seed, steps::of(seed, STEPS));
    }
    let unmet = unmet.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(
        runs < RUNS || unmet.is_empty() || accounts::all().len() < 2,
        "no run has met {unmet:?}: a law that nothing comes near holds nothing"
    );
}

/// What happens in some of the runs that the tests try.
const MET: [&str; 25] = [
    "it starts anew for its GPUs",
    " was GPU ",
    " is back",
    "holds all that the limit allows",
    "the disk is full",
    " of lee starts in 1 devices",
    " of ana starts in 2 devices",
    "a pod of the claim of job",
    "somebody else makes",
    "somebody else divides",
    "somebody else takes",
    "somebody leaks a handle of",
    "killed at mig.",
    "killed at claim.",
    " comes after an array",
    "Cancel array ",
    "Cancel by filter ",
    ": Saved",
    " is parked",
    " is woken",
    " needed its room",
    "by cuMemAlloc_v2",
    "beside a promise to job",
    ": Restored",
    " meets a fault",
];

/// Lists that broke a law once, with their seeds. Without another comment: a process had left its session and lost
/// its supervisor. It came into the slice of the job's next run, which began, or was requeued, with the process inside.
const BROKE: [(u64, &str); 14] = [
    // A submit that was sent again was refused on a full disk, though its job was there.
    (
        90,
        "submit:cef38860 submit:416b26bd client:d0570dfb leave:81b2e8a7 leave:dd6821d7 round:89de8a3 disk-low:7cd99989 \
         client:98f27cc1 round:6f132a6d",
    ),
    // A job for GPUs that no longer responded was submitted beyond its project's quota, and waited for ever.
    (
        23_470,
        "gpu-absent:6cd0a01 round:5c61b51f gpu-absent:811e95fb stop:a7f7e8aa round:3ee0e98c gpu-absent:e8b6522b round:82d6f755 \
         submit:f5640129 blindfold:6cbf73b3",
    ),
    // A slice on a GPU that was ill at the daemon's start was adopted with contexts that cost nothing.
    (
        57,
        "submit:ef49ba0b round:85e697a1 submit:c41a7d53 submit:fa395b76 round:60d06125 supervisors:5a2e3d5a stop:b87b8bb5 \
         supervisors:56f2421d supervisors:a264eb70 gpu-ill:4e50ccac blindfold:a9b14555 enter:20ffd92f gpu-well:efa21b2e \
         programs:b5879eb2 enter:51d805b5 programs:f6de3bee programs:bdd44ce3",
    ),
    (
        88_003_996,
        "submit:b84483a2 leave:15d20215 submit:64228688 round:b641c08b submit:901e46fb submit:a0094d3d supervisors:c6ca4b94 \
         round:99cb4367 submit:cc44e536 supervisors:222d9e1a round:ebdcf67d supervisors:9cc907fd kill-program:2027240 \
         supervisors:d26d14a4 kill-program:e99a0113 kill-supervisor:33317f3e crash:60a9a513 round:34bc9ff9 round:f18446bb \
         programs:1e69ed9e programs:e2914b7 round:47d7e5ef programs:1b9dc5b8",
    ),
    (
        88_004_091,
        "submit:a55491cc round:48bf9af1 cancel:99405fa supervisors:a092a68d submit:25dd9b10 supervisors:1c411a52 \
         supervisors:e6d8c283 round:7af6baa7 programs:a35c3a92 crash:c74409cb supervisors:c23a05d3 round:c8881c5b submit:b709689f \
         round:3dd430af supervisors:4ca8c58f supervisors:3643023a programs:bcd84da8 kill-program:fb517908 round:419d6fe2 \
         kill-supervisor:6b39046e round:6689c9bb programs:13d90d2c",
    ),
    (
        99_006_734,
        "submit:b9d43c99 round:d80c53c0 client:c3c1567d round:cec7bbde requeue:6ad8a5a7 supervisors:82bc42c9 submit:af3c8b84 \
         supervisors:f397c1bd programs:7c20e746 cancel:c97feacd blindfold:fe0e439a programs:4cd10052 kill-supervisor:63730a4b \
         cancel:70aead8b round:2152ddc9 supervisors:7840483c time:a4b2ebe3 round:bfa29a1d kill-supervisor:6ca9144c \
         resize:7acab5df disk-full:d9027014 round:a7b8e15 stranger:f1d7b2e4 time:7af4d808 programs:605af8de disk-free:64ba4aee \
         round:4a7e2a4e",
    ),
    // A confirmed job whose supervisor had died was started again on a full disk.
    (
        1_882_927_181_859_494,
        "submit-more:728f2b77 round:c4c751fd confirm:2c98dd0c round:cc194a86 kill-supervisor:952cbf44 time:99e211b2 \
         disk-low:17eda67a round:ec8386ea",
    ),
    // There was no observation for a long time, and at the first one a working job counted as idle.
    (
        1_882_518_002_337_159,
        "submit-more:b160f041 round:c8385764 supervisors:497eb2d5 supervisors:20827599 supervisors:ae0ca7e8 time:84740e94 \
         blindfold:cbfa1246 time:244001b2 programs:d12d7f6b blindfold:53e27ba3",
    ),
    // A MIG instance was found destroyed by hand and was made anew under its old record. It was unmanaged when the
    // daemon died before the report.
    (
        1_882_600_000_005_840,
        "divide:4333f4dd submit-more:8c32c9d1 round:2df75523 mig:41de04a3 submit:15281053 mig:31ab6d29 round:8aacfa36 mig:689dd1e5 \
         mig:4e6d29 crash:3f4d087d mig:1c033356 mig:7b7e66cb round:fd3ea45a round:1a088dbd meddle:c080d51b mig:d873b839 mig:5d1c623f \
         mig:aa44fff0",
    ),
    // Another program divided a MIG instance while it was made, or took its compute instance: its own went with it.
    (
        30_205,
        "divide:f7586266 round:d64c42ac mig:61cedff8 mig:6408ce20 divide:aef10110 round:1e0d113f submit-more:5fb46c6 mig:27f52be3 \
         mig:17c77868 round:7af1d474 round:baca5d5c claim:5b22d2a1 blindfold:b9f5eef6 mig:5dc95676 mig:87195632",
    ),
    (
        30_660,
        "divide:a97ffeca round:73f519c5 mig:871e80f7 divide:e999b9a6 round:6cf8eda9 mig:cf561fff mig:3a2375cd round:8af50434 \
         submit:35279149 round:4472f99 mig:c0a5e2e5 mig:efa783d0",
    ),
    // A claim was given back while its GPU was silent, and the next daemon, which does not serve that GPU, ended it
    // with a pod on it.
    (
        101_242,
        "claim:e25e456a blindfold:ba80970e round:2687c278 pod:df7c1a33 programs:40d0587b round:9ba15806 give-back:61c87b3f \
         gpu-ill:f64e471f round:395d27dd stop:6e748790 round:562204ef",
    ),
    // An observation that could not read the instances of a GPU showed no process in them. The claim was then released
    // with a pod in its instance.
    (
        7_400_004_047,
        "divide:5ebfa1c0 round:dd92e6c7 mig:133d1b9a mig:8aae0d3c round:a42bbf09 claim:ea81dc18 blindfold:2fcf07b9 mig:f10967e5 \
         mig:e6bbd79b round:43ed92b2 blindfold:8da814f0 pod:cb2fec76 round:fa784d7f programs:89695be9 round:d6f13978 give-back:3d0292c1 \
         blindfold:904dc562 round:9ca8cc95",
    ),
    // A daemon ended a job before the first observation of it; the supervisor was dead and the program was in an
    // instance.
    (
        7_400_008_837,
        "divide:67330114 round:431e7d25 mig:6683b366 mig:2dbffec3 round:d21cdce3 submit-more:2a2dba41 claim:97d3b7d9 round:fae303fe \
         mig:8b26c6b3 mig:9c5b096 round:3e429647 supervisors:5d0079bd supervisors:53458243 pod:6d156620 kill-supervisor:921e2c38 \
         programs:1329e5d1 programs:556dedfe",
    ),
];

#[test]
fn what_broke_a_law_once_does_so_no_more() {
    for (seed, steps) in BROKE {
        let steps = steps.split_whitespace();
        check(
            seed,
            steps.map(|step| step.parse().expect("a step")).collect(),
        );
    }
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let story = |seed| {
        let mut run = Run::new(seed);
        run.all(&steps::of(seed, STEPS)).expect("nothing is broken");
        with(|world| std::mem::take(&mut world.told)).expect("a world")
    };
    for seed in [3, 4] {
        assert_eq!(story(seed), story(seed));
    }
}

#[test]
fn claims_of_a_run_are_held_and_given_back() {
    let steps = "claim:0 round:0 round:0 claim:1 round:0 round:0 crash:7 claim:2 round:0 round:0";
    let steps = steps
        .split_whitespace()
        .map(|step| step.parse().expect("a step"));
    let mut run = Run::new(1);
    run.all(&steps.collect::<Vec<_>>())
        .expect("nothing is broken");
    let events =
        crate::journal::events_after(&run.home.database(), 0, 1000, None).expect("a journal");
    let told = |kind: &str, word: &str| {
        let mut events = events.iter();
        events.any(|one| one.event.kind == kind && one.event.text.contains(word))
    };
    assert!(told("allocated", "team/train") && told("running", "divvy.dev/slice="));
    assert!(told("ended", "released"));
}

#[test]
fn a_job_in_a_container_is_not_parked() {
    let mut run = Run::new(1);
    let mut submit = workload::plain(Runner::Supervisor, &mut Rng::new(1), &BTreeMap::new());
    submit.container = Some(Container {
        image: "image".to_owned(),
        arguments: Vec::new(),
        starter: None,
        as_submitter: false,
    });
    run.sends(format!("{}/key", accounts::ME), accounts::ME, submit);
    let rounds = "round:0 supervisors:1 supervisors:2 sweep:0 time:2 ".repeat(12);
    for step in rounds.split_whitespace() {
        run.step(step.parse().expect("a step"))
            .expect("nothing is broken");
    }
    let (reply, mut answer) = tokio::sync::oneshot::channel();
    run.inbox.push(crate::controller::mailbox::Message::Park {
        reference: "last".to_owned(),
        wake: false,
        reply,
    });
    run.step("round:0".parse().expect("a step"))
        .expect("nothing is broken");
    let error = answer
        .try_recv()
        .expect("an answer")
        .expect_err("it is not parked");
    let why = "runs in a container, and cannot be parked by Divvy";
    assert!(error.message.contains(why), "{error}");
}

#[test]
fn slices_end_with_their_process_and_their_control_group_and_after_a_restart() {
    // Two slices are lent. Each ends while there is no daemon.
    let mut run = Run::new(1);
    let request = |run: &mut Run, name: &str, ends| {
        run.inbox
            .push(crate::controller::mailbox::Message::HoldClaim {
                uid: name.to_owned(),
                claim: Box::new(divvy_api::v1::Claim {
                    devices: vec![divvy_api::v1::ClaimDevice::share("0", 125)],
                    ends: Some(ends),
                    ..divvy_api::v1::Claim::default()
                }),
                by: Box::new(accounts::caller(accounts::ME)),
                maker: None,
                reply: tokio::sync::oneshot::channel().0,
            });
    };
    let steps = |run: &mut Run, steps: &str| {
        for step in steps.split_whitespace() {
            let step: Step = step.parse().expect("a step");
            run.step(step).expect("nothing is broken");
        }
    };
    steps(&mut run, "round:0 time:1");
    let engine = with(|world| world.spawn(1, None, kernel::Kind::Engine)).expect("a world");
    request(
        &mut run,
        "by-pid",
        divvy_api::v1::ClaimEnd::with_process(engine, None),
    );
    request(
        &mut run,
        "by-group",
        divvy_api::v1::ClaimEnd::with_cgroup("/sys/fs/cgroup/g"),
    );
    steps(&mut run, "round:0 round:0 round:0");
    let group = PathBuf::from("/sys/fs/cgroup/g");
    with(|world| world.group_appears(&group));
    steps(&mut run, "time:1 round:0 round:0 stop:0");
    with(|world| world.kill(engine));
    steps(&mut run, "round:0 time:1 round:0 round:0 stop:0");
    // Another group under the same name is not the one of the slice.
    with(|world| {
        world.group_goes(&group);
        world.group_appears(&group);
    });
    // The release waits for an observation after the close.
    steps(
        &mut run,
        "round:0 time:1 round:0 round:0 time:1 round:0 round:0",
    );
    let events =
        crate::journal::events_after(&run.home.database(), 0, 1000, None).expect("a journal");
    let said = |kind: &str, word: &str| {
        let mut events = events.iter();
        events.any(|one| one.event.kind == kind && one.event.text.contains(word))
    };
    assert!(said("running", "divvy.dev/slice="), "{events:?}");
    assert!(said("stopping", "has ended"), "{events:?}");
    assert!(
        said("stopping", "/sys/fs/cgroup/g was removed"),
        "{events:?}"
    );
    assert!(run.living().is_empty(), "a slice is left");
    assert!(
        std::fs::read_dir(run.home.slices())
            .expect("a folder")
            .next()
            .is_none()
    );
}
