//! The run loop: applies each step to the machine and to the daemon, and checks the invariants after each.

use crate::controller::request::{Milestone, ProjectAct};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_api::v1::{
    self, Amount, Confirm, Error, GpuChange, GpuMode, JobState, MigGc, ProjectChange, Resize,
    Runner, Submit,
};
use divvy_core::{JobId, Order, Preemption};
use jiff::SignedDuration;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::accounts::{self, ME};
use super::arrays::Arrays;
use super::checkpoints;
use super::claims;
use super::daemon::{self, Call, Daemon, DaemonOptions, JournaledJob};
use super::engine::{Called, Engine, State};
use super::gpus::{self, Health};
use super::kernel::{self, Kind};
use super::mig::MigGpu;
use super::program::{Behaviour, CONFIRMED};
use super::services::Services;
use super::steps::{self, Step, What};
use super::workload;
use super::{WORLD, World, clock, machine, with};
use crate::controller::ExecEnvironment;
use crate::controller::mailbox::Message;
use crate::gpu::mig::MigReport;
use divvy_testkit::Rng;

const GPUS: usize = 3;

/// The GPUs that may be in MIG mode; the first is, more often.
pub const DIVIDED: [usize; 2] = [2, 1];

/// Where a run's files are: in memory where the machine lets us, for a run syncs its journal some hundred times.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => TempDir::new_in(memory),
        false => TempDir::new(),
    };
    made.expect("a temporary folder")
}

/// An answer that a client waits for.
struct Pending {
    what: Asked,
    answer: oneshot::Receiver<Result<v1::Job, Error>>,
}

enum Asked {
    /// By idempotency key.
    Submit(String),
    Cancel(JobId),
    /// A client comes for its job when it is told that it starts.
    Come(JobId),
    Other,
}

pub struct Run {
    folder: TempDir,
    pub home: Home,
    pub manner: DaemonOptions,
    pub daemon: Option<Daemon>,
    pub inbox: Vec<Message>,
    pending: Vec<Pending>,
    /// Submits without an answer, with their users.
    unanswered: BTreeMap<String, (&'static str, Submit)>,
    /// Keys of acknowledged jobs. Those of accounts are alike but for their names.
    pub keys: BTreeMap<String, JobId>,
    /// The owners of jobs.
    pub owners: BTreeMap<JobId, &'static str>,
    submitted: BTreeMap<&'static str, u64>,
    clients: BTreeSet<JobId>,
    /// Jobs with an acknowledged cancellation.
    pub cancelled: BTreeSet<JobId>,
    /// Jobs that have ended, and how.
    pub ended: BTreeMap<JobId, String>,
    /// What the daemon remembered when its journal was last committed, and what it would remember if that happened now.
    committed: BTreeMap<JobId, JournaledJob>,
    /// Under which rule about doing nothing they are, in seconds.
    rules: BTreeMap<String, u64>,
    /// Jobs that were offloaded or gave way once: a promise to a parked job does not hold against them.
    pub has_given_way: BTreeSet<JobId>,
    /// Which of them start once they are confirmed.
    to_confirm: BTreeSet<String>,
    /// Claims that pods were started with, by uid.
    pub pods: BTreeMap<String, JobId>,
    /// Claims that were released, by uid, and not requested since.
    pub given_back: BTreeSet<String>,
    /// Those of them that this daemon was asked for since.
    pub asked_again: BTreeSet<String>,
    /// Slices that are lent.
    pub lent: super::slices::Lent,
    /// Which want MIG instances.
    wants_mig: BTreeSet<String>,
    pub arrays: Arrays,
    pub services: Services,
    pub steps: u64,
    /// The daemon said so last.
    disk_is_full: bool,
    /// Users who have held as much as their limit allows.
    pub at_limit: BTreeSet<String>,
    /// What each GPU's counter showed when the journal first had it.
    pub first_energy: BTreeMap<String, u64>,
}

impl Run {
    pub fn new(seed: u64) -> Self {
        machine::install();
        let folder = folder();
        let root = folder.path().canonicalize().expect("it was just made");
        let home = Home::under(root.join("home")).expect("a short path");
        home.create().expect("a home");
        let proc = root.join("proc");
        let own = proc.join(std::process::id().to_string());
        std::fs::create_dir_all(own.join("ns")).expect("a folder");
        kernel::mount(&own, "mnt:[1]", Path::new("/")).expect("a folder");
        let preload = root.join("libdivvy_preload.so");
        std::fs::write(&preload, "").expect("a file");
        // Available is enough for all that the GPUs have, whatever other simulations of this process reserve meanwhile;
        // the budget of parked jobs is for two or three.
        let memory = "MemTotal: 33554432 kB\nMemAvailable: 1073741824 kB\n";
        std::fs::write(proc.join("meminfo"), memory).expect("a file");
        std::fs::write(home.state().join("libdivvy_sim.so"), "").expect("a file");
        clock::set(Some(Duration::from_secs(1000)));
        daemon::set_fuse(None);
        daemon::set_room(None);
        daemon::set_low(false);
        WORLD.set(Some(World {
            home: home.clone(),
            proc,
            preload,
            processes: BTreeMap::new(),
            zombies: BTreeMap::new(),
            spawned: 0,
            daemon: None,
            fork_server_dies: false,
            engine: Engine::default(),
            engines: super::slices::Engines::default(),
            gpus: vec![Health::Well; GPUS],
            order: (0..GPUS).collect(),
            known: BTreeSet::new(),
            divided: (0..GPUS).map(|_| MigGpu::default()).collect(),
            meddled: BTreeSet::new(),
            at_work: false,
            listed: BTreeSet::new(),
            luck: Rng::new(seed),
            sampled: BTreeMap::new(),
            worked: BTreeMap::new(),
            watched: BTreeSet::new(),
            wanted: BTreeMap::new(),
            gates: super::gates::Gates::default(),
            driver_is_ill: false,
            no_processes: false,
            is_calm: false,
            started: BTreeSet::new(),
            ends: BTreeMap::new(),
            usage: BTreeMap::new(),
            confirmations: BTreeMap::new(),
            reports: Vec::new(),
            broken: None,
            told: Vec::new(),
        }));
        let mut dice = Rng::new(seed);
        let manner = DaemonOptions {
            order: dice
                .one(&[Order::Strict, Order::Fairness])
                .unwrap_or_default(),
            backfill: dice.once_in(2),
            preemption: dice
                .one(&[Preemption::On, Preemption::Off])
                .unwrap_or_default(),
            cancels: dice.once_in(2),
            project_rules: workload::rules_of_users(&mut dice),
            idle: steps::has_idle_jobs(seed).then(|| workload::idle_park(&mut dice)),
            park: workload::parking(&mut dice),
        };
        let mut run = Self {
            folder,
            home,
            manner,
            daemon: None,
            inbox: Vec::new(),
            pending: Vec::new(),
            unanswered: BTreeMap::new(),
            keys: BTreeMap::new(),
            owners: BTreeMap::new(),
            submitted: BTreeMap::new(),
            clients: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            ended: BTreeMap::new(),
            committed: BTreeMap::new(),
            rules: BTreeMap::new(),
            has_given_way: BTreeSet::new(),
            to_confirm: BTreeSet::new(),
            pods: BTreeMap::new(),
            given_back: BTreeSet::new(),
            asked_again: BTreeSet::new(),
            lent: super::slices::Lent::default(),
            wants_mig: BTreeSet::new(),
            arrays: Arrays::default(),
            services: Services::default(),
            steps: 0,
            disk_is_full: false,
            at_limit: BTreeSet::new(),
            first_energy: BTreeMap::new(),
        };
        for name in ["red", "blue"] {
            let change = ProjectChange {
                quota: Some(1000),
                ..ProjectChange::default()
            };
            run.inbox.push(Message::Project {
                name: name.to_owned(),
                act: ProjectAct::Add(change),
                reply: oneshot::channel().0,
            });
        }
        run
    }

    /// All steps, and the calm after them.
    ///
    /// # Errors
    /// What did not hold.
    pub fn all(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            with(|world| world.trace(|| format!("{step}")));
            self.step(*step)?;
            self.check_invariants()?;
        }
        self.calm()
    }

    pub fn step(&mut self, step: Step) -> Result<(), String> {
        self.steps += 1;
        let mut dice = Rng::new(step.number);
        let gpu = usize::try_from(step.number).unwrap_or(0) % GPUS;
        match step.what {
            What::Round => self.round(true)?,
            What::Blindfold => self.round(false)?,
            What::Time => {
                let ms = dice.one(&[5, 100, 300, 1000, 3000, 12_000, 35_000]);
                clock::advance(Duration::from_millis(ms.unwrap_or(5)));
            }
            What::Quiet => {
                for _ in 0..4 + dice.below(16) {
                    clock::advance(Duration::from_millis(250));
                    self.round(true)?;
                    self.check_invariants()?;
                }
            }
            What::Submit => self.submits(Runner::Supervisor, &mut dice),
            What::Client => self.submits(Runner::Client, &mut dice),
            What::Cancel => self.asks(&mut dice, |reference, id, reply| {
                let by = Box::new(accounts::caller(ME));
                (
                    Message::Cancel {
                        reference,
                        how: Box::default(),
                        by,
                        reply,
                    },
                    Asked::Cancel(id),
                )
            }),
            What::Requeue => self.asks(&mut dice, |reference, _, reply| {
                let by = Box::new(accounts::caller(ME));
                (
                    Message::Requeue {
                        reference,
                        by,
                        reply,
                    },
                    Asked::Other,
                )
            }),
            What::Suspend | What::Resume => {
                let suspend = step.what == What::Suspend;
                self.asks(&mut dice, |reference, _, reply| {
                    let pause = Message::Pause {
                        reference,
                        suspend,
                        reply,
                    };
                    (pause, Asked::Other)
                });
            }
            What::Offload | What::Park | What::Wake => {
                // A job with something on a GPU, if there is one; others are refused, which is soon tried.
                let is_parked = step.what == What::Wake;
                let holders = with(|world| world.with_gpu_memory(is_parked)).unwrap_or_default();
                let id = dice.one(&holders).filter(|_| !dice.once_in(4));
                let ask = |reference, _, reply| {
                    let message = match step.what {
                        What::Offload => Message::Offload { reference, reply },
                        _ => parking(reference, is_parked, reply),
                    };
                    (message, Asked::Other)
                };
                match id.filter(|id| self.keys.values().any(|known| known == id)) {
                    Some(id) => self.asks_about(id, ask),
                    None => self.asks(&mut dice, ask),
                }
            }
            What::Copy => self.copies(&mut dice),
            What::Resize => {
                let thousandths = dice.one(&[125, 250, 500, 750]).unwrap_or(250);
                let resize = Resize {
                    amount: Some(Amount::Share { thousandths }),
                    compute: None,
                };
                self.asks(&mut dice, |reference, _, reply| {
                    let resize = Message::Resize {
                        reference,
                        resize,
                        reply,
                    };
                    (resize, Asked::Other)
                });
            }
            What::Move | What::Change => {
                let change = match step.what {
                    What::Move => workload::a_move(&mut dice),
                    _ => workload::a_change(&mut dice),
                };
                let who = dice.one(accounts::all()).unwrap_or(ME);
                self.asks(&mut dice, |reference, _, reply| {
                    let change = Message::Change {
                        reference,
                        change: Box::new(change),
                        by: Box::new(accounts::caller(who)),
                        reply,
                    };
                    (change, Asked::Other)
                });
            }
            What::Hold | What::Release => {
                let hold = step.what == What::Hold;
                let who = dice.one(accounts::all()).unwrap_or(ME);
                self.asks(&mut dice, |reference, _, reply| {
                    (holding(reference, hold, who, reply), Asked::Other)
                });
            }
            What::Wait => self.asks(&mut dice, |reference, _, reply| {
                let wait = Message::Wait {
                    reference,
                    milestone: Milestone::Ended,
                    reply,
                };
                (wait, Asked::Other)
            }),
            What::Claim => self.claims(gpu, &mut dice),
            What::GiveBack => {
                let uid = dice.one(&claims::UIDS).unwrap_or_default();
                self.gives_back(uid);
            }
            What::Leave => {
                let count = u64::try_from(self.pending.len()).unwrap_or(0);
                if count > 0 {
                    let at = usize::try_from(dice.below(count)).unwrap_or(0);
                    let pending = self.pending.remove(at);
                    if let Asked::Come(id) = pending.what {
                        self.clients.remove(&id);
                    }
                }
            }
            What::Supervisors => self.others(Behaviour::Free, &mut dice, |kind| {
                matches!(kind, Kind::Supervisor(_))
            }),
            What::Programs => self.others(Behaviour::Free, &mut dice, |kind| {
                matches!(kind, Kind::Program(_))
            }),
            What::KillSupervisor | What::KillProgram => {
                let supervisors = step.what == What::KillSupervisor;
                let mortal = move |kind: &Kind| match kind {
                    Kind::Supervisor(_) => supervisors,
                    Kind::Program(_) => !supervisors,
                    _ => false,
                };
                with(|world| {
                    if let Some(pid) = dice.one(&world.pids(mortal)) {
                        world.kill(pid);
                    }
                });
            }
            What::Crash => daemon::set_fuse(u32::try_from(dice.below(40)).ok()),
            What::Stop => {
                if self.daemon.take().is_some() {
                    self.gone("SIGTERM");
                }
            }
            What::DiskFull => daemon::set_room(u32::try_from(dice.below(12)).ok()),
            What::DiskLow => daemon::set_low(true),
            What::DiskFree => {
                daemon::set_room(None);
                daemon::set_low(false);
            }
            What::SubmitMore => self.submits_more(&mut dice),
            What::Confirm => self.confirms(&mut dice),
            What::Enter => self.enters(&mut dice)?,
            What::Sweep => self.sweeps(),
            What::Mig => self.mig_works(&mut dice)?,
            What::Pod => self.pod(&mut dice),
            What::Divide => {
                let mode = dice.one(&[GpuMode::Mig, GpuMode::Mig, GpuMode::Shared]);
                let which = usize::from(dice.once_in(3));
                self.divides(DIVIDED[which], mode.unwrap_or(GpuMode::Shared));
            }
            What::Collect => self.collects(),
            What::Drain => self.drains(gpu, &mut dice),
            What::Undrain => self.undrains(Some(gpu)),
            What::Probe => self.probe_ends(gpu, &mut dice),
            What::SubmitArray => self.submits_array(&mut dice),
            What::ActOnArray => self.acts_on_array(&mut dice),
            What::Slice => self.slice(gpu, &mut dice),
            What::SliceEnds => self.slice_ends(&mut dice),
            What::SubmitOn => {
                let mut submit = workload::plain(Runner::Supervisor, &mut dice, &self.keys);
                submit.gpus_on = vec![u32::try_from(gpu).unwrap_or(0)];
                let (key, who) = self.next_key(&mut dice);
                self.sends(key, who, submit);
            }
            other => {
                with(|world| world.suffers(other, gpu, &mut dice));
            }
        }
        Ok(())
    }

    /// The daemon does a round; one that is dead is started first.
    fn round(&mut self, looks: bool) -> Result<(), String> {
        if self.daemon.is_none() {
            self.start()?;
        }
        let Some(daemon) = &mut self.daemon else {
            return Ok(());
        };
        let calls = with(World::reported_calls).unwrap_or_default();
        let calls = calls.into_iter();
        self.inbox
            .extend(calls.map(|(job, call)| Message::WakeWanted { job, call }));
        let messages = std::mem::take(&mut self.inbox);
        let called = daemon::call(|| daemon.round(messages, looks));
        match daemon::has_committed() {
            (true, true) => self.committed = daemon.kept(),
            // More was decided since.
            (true, false) => self.committed = self.read_journal()?,
            (false, _) => {}
        }
        match called {
            Call::Done(()) => {
                self.what_is_told_is_so()?;
                self.suspended_processes_are_stopped()?;
                self.slices_say_what_is_held()?;
                with(|world| world.count_round(false));
                self.waiting_calls_are_heard()?;
                self.held_jobs_wait()?;
                self.has_again();
                self.jobs_have_the_gpus_they_ask_for()?;
                self.devices_bring_in_what_is_lent()?;
                self.slices_end_with_their_ends()?;
                self.answers()?;
                if self.daemon.take_if(|daemon| daemon.is_renewed).is_some() {
                    self.gone("it starts anew for its GPUs");
                }
                Ok(())
            }
            Call::Dead(how) => {
                // What was answered before it died was answered.
                self.answers()?;
                self.daemon = None;
                self.gone(&how);
                Ok(())
            }
            Call::Bug(what) => Err(what),
        }
    }

    fn start(&mut self) -> Result<(), String> {
        if let Ok(records) = daemon::migs(&self.home) {
            with(|world| world.takes_what_is_recorded(&records));
        }
        daemon::appears();
        let (home, manner) = (self.home.clone(), self.manner.clone());
        match daemon::call(|| Daemon::start(&home, manner)) {
            Call::Done(Some((daemon, before))) => {
                if before != self.committed {
                    let other = daemon::difference(&self.committed, &before);
                    return Err(format!("a restart yields something else\n{other}"));
                }
                self.committed = daemon.kept();
                self.daemon = Some(daemon);
                Ok(())
            }
            Call::Done(None) => {
                self.gone("no GPU responds");
                Ok(())
            }
            Call::Dead(how) => {
                // How far it came is only in its journal.
                if daemon::has_committed().0 {
                    self.committed = self.read_journal()?;
                }
                self.gone(&how);
                Ok(())
            }
            Call::Bug(what) => Err(what),
        }
    }

    /// A job that asked for a GPU by its index has that GPU and no other, whatever indices were since.
    fn jobs_have_the_gpus_they_ask_for(&self) -> Result<(), String> {
        let kept = self.daemon.as_ref().map(Daemon::kept).unwrap_or_default();
        match kept.values().find_map(daemon::JournaledJob::other_gpu) {
            Some(words) => Err(words),
            None => Ok(()),
        }
    }

    /// What the daemon says of jobs that do nothing is so, and no job starts while it says that the disk is full.
    fn what_is_told_is_so(&mut self) -> Result<(), String> {
        let Some(daemon) = &mut self.daemon else {
            return Ok(());
        };
        let now = clock::boot().unwrap_or_default();
        while let Ok(told) = daemon.told.try_recv() {
            let event = &told.event;
            match event.kind.as_str() {
                "disk_full" => {
                    with(|world| world.trace(|| event.text.clone()));
                    self.disk_is_full = true;
                }
                "parked" | "woken" | "wake_requested" => {
                    let (job, kind) = (event.job.as_deref().unwrap_or_default(), &event.kind);
                    with(|world| world.trace(|| format!("  job {job} is {kind}: {}", event.text)));
                }
                "disk_has_room" => self.disk_is_full = false,
                "starting" if self.disk_is_full => {
                    return Err(format!("job {:?} starts on a full disk", event.job));
                }
                _ => {}
            }
            let is_idle = event.text.starts_with("it did not use its GPUs");
            let job = event.job.as_deref().and_then(|job| job.parse().ok());
            let Some(id) = job.filter(|_| is_idle) else {
                continue;
            };
            let key = self.keys.iter().find(|(_, known)| **known == id);
            let own = key.and_then(|(key, _)| self.rules.get(key)).copied();
            let after = own.or(self.manner.idle.map(|rule| rule.after_s));
            let Some(worked) = with(|world| world.worked.get(&id).copied()).flatten() else {
                return Err(format!("job {id} has not begun, and is called idle"));
            };
            // The compute scheduler watches the second half of its time.
            let half = Duration::from_secs(after.unwrap_or_default()) / 2;
            if now.saturating_sub(worked) < half {
                let ago = now.saturating_sub(worked);
                return Err(format!("job {id} is called idle, and worked {ago:?} ago"));
            }
        }
        Ok(())
    }

    fn read_journal(&self) -> Result<BTreeMap<JobId, JournaledJob>, String> {
        daemon::read(&self.home).map_err(|error| error.to_string())
    }

    /// The daemon has died, and all waiting clients learn it.
    fn gone(&mut self, how: &str) {
        checkpoints::die();
        self.disk_is_full = false;
        daemon::set_fuse(None);
        with(|world| {
            // The compute scheduler is gone with it.
            world.watched.clear();
            world.wanted.clear();
            world.gates = super::gates::Gates::default();
            world.count_round(true);
            world.reports.clear();
            world.trace(|| format!("  the agent is gone: {how}"));
            world.daemon_died();
        });
        self.inbox.clear();
        self.asked_again.clear();
        self.pending.clear();
        // A client that lost the daemon does not come.
        self.clients.clear();
    }

    /// Takes what has been answered.
    fn answers(&mut self) -> Result<(), String> {
        for mut pending in std::mem::take(&mut self.pending) {
            let answer = match pending.answer.try_recv() {
                Ok(answer) => answer,
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.pending.push(pending);
                    continue;
                }
                Err(oneshot::error::TryRecvError::Closed) => continue,
            };
            match (pending.what, answer) {
                (Asked::Submit(key), Ok(job)) => self.acknowledged(key, &job)?,
                // Refused, and nothing is to come of it.
                (Asked::Submit(key), Err(_)) => drop(self.unanswered.remove(&key)),
                (Asked::Cancel(id), Ok(_)) => drop(self.cancelled.insert(id)),
                (Asked::Come(id), Ok(job)) if job.state != JobState::Ended => {
                    self.clients.remove(&id);
                    let dir = self.home.job(&job.id);
                    with(|world| world.client_comes(&dir));
                }
                (Asked::Come(id), _) => drop(self.clients.remove(&id)),
                (Asked::Cancel(_) | Asked::Other, _) => {}
            }
        }
        Ok(())
    }

    fn acknowledged(&mut self, key: String, job: &v1::Job) -> Result<(), String> {
        let id: JobId = job
            .id
            .parse()
            .map_err(|_| "a job without a number".to_owned())?;
        let submit = self.unanswered.remove(&key);
        if let Some((who, _)) = &submit {
            let before = self.owners.insert(id, who);
            if job.user != *who || before.is_some_and(|before| before != *who) {
                return Err(format!(
                    "{who} was given job {id} for {key}, which is {}'s",
                    job.user
                ));
            }
        }
        if let Some(before) = self.keys.insert(key.clone(), id)
            && before != id
        {
            return Err(format!("the key {key} stands for jobs {before} and {id}"));
        }
        if let Some((who, submit)) = &submit {
            for (key, job) in self.knows_array(&key, id, submit) {
                self.keys.insert(key, job);
                self.owners.insert(job, who);
            }
        }
        if submit.is_some_and(|(_, submit)| submit.runner == Runner::Client)
            && self.clients.insert(id)
        {
            let (reply, answer) = oneshot::channel();
            self.inbox.push(Message::Wait {
                reference: id.to_string(),
                milestone: Milestone::Starting,
                reply,
            });
            self.pending.push(Pending {
                what: Asked::Come(id),
                answer,
            });
        }
        Ok(())
    }

    fn submits(&mut self, runner: Runner, dice: &mut Rng) {
        // A client without an answer asks again.
        let again = dice.once_in(3).then(|| self.unanswered.iter().next());
        if let Some((key, (who, submit))) = again.flatten() {
            return self.sends(key.clone(), who, submit.clone());
        }
        let mut submit = workload::plain(runner, dice, &self.keys);
        let (key, who) = self.next_key(dice);
        // Drawn last, so that the lists of steps that broke a law once still do what they did.
        submit.hold = runner == Runner::Supervisor && dice.once_in(16);
        if self.manner.idle.is_some() && who == ME && !dice.once_in(3) {
            // It keeps its room.
            let action = v1::IdleAction::Notify;
            submit.idle = Some(v1::Idle { after_s: 0, action });
        }
        self.sends(key, who, submit);
    }

    /// A job of one of the other kinds.
    fn submits_more(&mut self, dice: &mut Rng) {
        let wish = workload::other(dice, &self.keys);
        let (key, who) = self.next_key(dice);
        if wish.wants_mig {
            self.wants_mig.insert(key.clone());
        }
        if wish.to_confirm {
            self.to_confirm.insert(key.clone());
        }
        if let Some(after_s) = wish.rule {
            self.rules.insert(key.clone(), after_s);
        }
        self.sends(key, who, wish.submit);
    }

    /// A user, and a key that the user has not used.
    pub fn next_key(&mut self, dice: &mut Rng) -> (String, &'static str) {
        let who = dice.one(accounts::all()).unwrap_or(ME);
        let submitted = self.submitted.entry(who).or_default();
        *submitted += 1;
        (format!("{who}/key-{submitted}"), who)
    }

    /// A client confirms a job, with a value.
    fn confirms(&mut self, dice: &mut Rng) {
        let word = format!("word-{}", dice.below(3));
        let who = dice.one(accounts::all()).unwrap_or(ME);
        let mut asked = None;
        self.asks(dice, |reference, id, reply| {
            asked = Some(id);
            (confirmation(reference, who, &word, reply), Asked::Other)
        });
        // Only its owner says as what it runs.
        if let Some(id) = asked.filter(|id| self.owners.get(id) == Some(&who)) {
            with(|world| world.confirmations.entry(id.0).or_default().insert(word));
        }
    }

    /// A client starts another program inside of a job: its supervisor starts it, or the engine.
    fn enters(&mut self, dice: &mut Rng) -> Result<(), String> {
        let known: Vec<JobId> = self.keys.values().copied().collect();
        let (Some(id), Some(daemon)) = (dice.one(&known), &mut self.daemon) else {
            return Ok(());
        };
        for who in accounts::all() {
            let uid = accounts::uid(who);
            let has_some = self.owners.values().any(|owner| owner == who);
            if let (true, Ok((id, owner))) = (
                has_some,
                daemon.cycle.queries().resolve_for_caller("last", uid),
            ) && owner != uid
            {
                return Err(format!(
                    "the last job of {who} is {id}, which is uid {owner}'s"
                ));
            }
        }
        if let Ok(inside) = daemon.cycle.queries().exec_target(&id.to_string()) {
            with(|world| match &inside.environment {
                ExecEnvironment::Process { .. } => world.guest_comes(inside.dir.path()),
                ExecEnvironment::Container { name, .. } => world.guest_comes_into(name),
            });
        }
        Ok(())
    }

    /// The operations that copy memory go on by some calls of the driver.
    fn copies(&mut self, dice: &mut Rng) {
        with(|world| world.luck = Rng::new(dice.draw()));
        let turns = 1 + dice.below(6);
        for _ in 0..turns {
            if !checkpoints::turn(dice.draw()) {
                return;
            }
        }
    }

    fn sweeps(&mut self) {
        let sweep = self.daemon.as_mut().and_then(|daemon| daemon.sweep.take());
        if let Some(sweep) = sweep {
            with(|world| world.swept(&sweep));
        }
    }

    /// Each MIG worker carries out a command.
    fn mig_works(&mut self, dice: &mut Rng) -> Result<(), String> {
        for gpu in 0..GPUS {
            let Some(daemon) = &self.daemon else {
                return Ok(());
            };
            let epochs = &daemon.source.epochs;
            let Some(order) = with(|world| world.next_order(gpu, epochs)).flatten() else {
                continue;
            };
            with(|world| (world.at_work, world.luck) = (true, Rng::new(dice.draw())));
            let called = daemon::call(|| Ok(daemon.execute(order)));
            with(|world| world.at_work = false);
            let result = match called {
                Call::Done(result) => result,
                Call::Dead(how) => {
                    self.daemon = None;
                    self.gone(&how);
                    return Ok(());
                }
                Call::Bug(what) => return Err(what),
            };
            with(|world| world.carried_out(gpu, &result));
            let gpu = gpus::uuid(gpu);
            self.inbox.push(Message::MigReport(Box::new(MigReport {
                epoch: epochs.advance(&gpu),
                gpu,
                outcome: result,
                took: Duration::ZERO,
            })));
        }
        Ok(())
    }

    fn divides(&mut self, gpu: usize, mode: GpuMode) {
        self.inbox.push(Message::GpuMode {
            gpu: super::gpus::uuid(gpu).to_string(),
            change: GpuChange {
                mode,
                dry_run: false,
            },
            reply: oneshot::channel().0,
        });
    }

    fn collects(&mut self) {
        self.inbox.push(Message::MigGc {
            gc: MigGc::default(),
            reply: oneshot::channel().0,
        });
    }

    pub fn sends(&mut self, key: String, who: &'static str, mut submit: Submit) {
        self.unanswered.insert(key.clone(), (who, submit.clone()));
        workload::owned(&mut submit, who);
        // Others' may be the same.
        submit.idempotency_key = key.split_once('/').map(|(_, key)| key.to_owned());
        let (reply, answer) = oneshot::channel();
        self.inbox.push(Message::Submit {
            submit: Box::new(submit),
            by: Box::new(accounts::caller(who)),
            named: None,
            turn: None,
            client: None,
            reply,
        });
        self.pending.push(Pending {
            what: Asked::Submit(key),
            answer,
        });
    }

    /// A client makes a request about a job.
    fn asks(
        &mut self,
        dice: &mut Rng,
        ask: impl FnOnce(String, JobId, oneshot::Sender<Result<v1::Job, Error>>) -> (Message, Asked),
    ) {
        let known: Vec<JobId> = self
            .keys
            .values()
            .filter(|id| !self.ended.contains_key(id))
            .copied()
            .collect();
        let Some(id) = dice.one(&known) else { return };
        self.asks_about(id, ask);
    }

    fn asks_about(
        &mut self,
        id: JobId,
        ask: impl FnOnce(String, JobId, oneshot::Sender<Result<v1::Job, Error>>) -> (Message, Asked),
    ) {
        let (reply, answer) = oneshot::channel();
        let (message, what) = ask(self.reference(id), id, reply);
        self.inbox.push(message);
        self.pending.push(Pending { what, answer });
    }

    /// Some of the other processes do something.
    fn others(&mut self, mood: Behaviour, dice: &mut Rng, who: impl Fn(&Kind) -> bool) {
        with(|world| {
            for pid in world.pids(&who) {
                let awake = world.processes.get(&pid).is_some_and(|one| !one.stopped);
                if !awake || (mood == Behaviour::Free && dice.once_in(2)) {
                    continue;
                }
                world.supervisor_steps(pid, dice);
                world.program_steps(pid, mood, dice);
            }
        });
    }

    /// No more faults: everything comes to its end, and then nothing is left.
    fn calm(&mut self) -> Result<(), String> {
        with(|world| {
            world.trace(|| "calm".to_owned());
            world.driver_is_ill = false;
            world.no_processes = false;
            world.fork_server_dies = false;
            world.is_calm = true;
            world.engine.is_away = false;
            world.engine.breaks = false;
            world.gpus = vec![Health::Well; GPUS];
            world.others_give_up();
            for pid in world.pids(|kind| matches!(kind, Kind::Stranger { .. })) {
                world.kill(pid);
            }
        });
        // Jobs that are parked again and again would not end.
        self.manner.idle = None;
        daemon::set_fuse(None);
        daemon::set_room(None);
        daemon::set_low(false);
        if self.daemon.take().is_some() {
            // It serves the GPUs that answered when it was started.
            self.gone("SIGTERM");
        }
        for (key, (who, submit)) in self.unanswered.clone() {
            self.sends(key, who, submit);
        }
        let mut dice = Rng::new(0);
        for second in 0..CALM {
            if second % 20 == 0 {
                self.ends_all(second % 40 == 0);
                with(World::strays_end);
            }
            if !self.manner.cancels {
                self.confirms_all();
            }
            self.round(true)?;
            self.check_invariants()?;
            for _ in 0..3 {
                let mood = match self.manner.cancels {
                    true => Behaviour::ExitOnSigterm,
                    false => Behaviour::Exit,
                };
                self.others(mood, &mut dice, |_| true);
                self.check_invariants()?;
                self.mig_works(&mut dice)?;
                self.check_invariants()?;
                self.copies(&mut dice);
                self.check_invariants()?;
            }
            clock::advance(Duration::from_secs(1));
            let done = self
                .daemon
                .as_ref()
                .is_some_and(|one| one.kept().is_empty() && one.has_no_instances());
            let waits = with(|world| world.has_orders()).unwrap_or(false);
            if done && !waits && self.unanswered.is_empty() && self.inbox.is_empty() {
                self.round(true)?;
                self.check_invariants()?;
                // The next daemon finds what the last supervisors left.
                self.daemon = None;
                self.gone("SIGTERM");
                self.round(true)?;
                self.sweeps();
                return self.nothing_is_left();
            }
        }
        let left = self.daemon.as_ref().map(Daemon::kept).unwrap_or_default();
        let left = daemon::difference(&left, &BTreeMap::new());
        Err(format!(
            "{CALM} s without a fault, and these have not ended:\n{left}"
        ))
    }

    /// The owners of jobs that need confirmation wait for them and confirm them.
    fn confirms_all(&mut self) {
        let ended = &self.ended;
        let waits = |(key, id): (&String, &JobId)| {
            let id = (!ended.contains_key(id)).then_some(*id);
            id.filter(|_| self.to_confirm.contains(key))
        };
        let all: Vec<JobId> = self.keys.iter().filter_map(waits).collect();
        for id in all {
            let who = self.owners.get(&id).copied().unwrap_or(ME);
            let word = "at last".to_owned();
            let reply = oneshot::channel().0;
            let confirm = confirmation(self.reference(id), who, &word, reply);
            self.inbox.push(confirm);
            with(|world| world.confirmations.entry(id.0).or_default().insert(word));
            self.inbox.push(Message::Wait {
                reference: self.reference(id),
                milestone: Milestone::Starting,
                reply: oneshot::channel().0,
            });
        }
    }

    /// Ends all jobs. Suspended jobs would not end by themselves; half of the runs cancel every job, and in the others
    /// jobs end by themselves. `divides`: the jobs that want MIG instances have their turn; else those that want all
    /// GPUs whole.
    fn ends_all(&mut self, divides: bool) {
        self.collects();
        self.undrains(None);
        let waits = |key: &&String| {
            let id = self.keys.get(*key);
            id.is_none_or(|id| !self.ended.contains_key(id))
        };
        let mode = match divides && self.wants_mig.iter().any(|key| waits(&key)) {
            true => GpuMode::Mig,
            false => GpuMode::Shared,
        };
        for gpu in DIVIDED {
            self.divides(gpu, mode);
        }
        with(World::pods_end);
        self.engines_end();
        for uid in claims::UIDS {
            self.gives_back(uid);
        }
        let lost = with(|world| world.not_restorable()).unwrap_or_default();
        for id in self.keys.values() {
            let reference = self.reference(*id);
            // A held job would not start; its admin releases every job.
            let released = holding(reference.clone(), false, ME, oneshot::channel().0);
            self.inbox.push(released);
            let woken = parking(reference.clone(), true, oneshot::channel().0);
            self.inbox.push(woken);
            let reply = oneshot::channel().0;
            self.inbox
                .push(match self.manner.cancels || lost.contains(id) {
                    true => Message::Cancel {
                        reference,
                        how: Box::default(),
                        by: Box::new(accounts::caller(ME)),
                        reply,
                    },
                    false => Message::Pause {
                        reference,
                        suspend: false,
                        reply,
                    },
                });
        }
    }
}

fn parking(
    reference: String,
    wake: bool,
    reply: oneshot::Sender<Result<v1::Job, Error>>,
) -> Message {
    Message::Park {
        reference,
        wake,
        reply,
    }
}

fn holding(
    reference: String,
    hold: bool,
    who: &str,
    reply: oneshot::Sender<Result<v1::Job, Error>>,
) -> Message {
    Message::Hold {
        reference,
        hold,
        by: Box::new(accounts::caller(who)),
        reply,
    }
}

fn confirmation(
    reference: String,
    who: &str,
    word: &str,
    reply: oneshot::Sender<Result<v1::Job, Error>>,
) -> Message {
    let env = BTreeMap::from([(CONFIRMED.to_owned(), word.to_owned())]);
    Message::Confirm {
        reference,
        confirm: Box::new(Confirm {
            env,
            ..Confirm::default()
        }),
        by: Box::new(accounts::caller(who)),
        reply,
    }
}

/// Rounds of a second: longer than any time limit, silence or grace, one after the other.
const CALM: u32 = 300;

impl Drop for Run {
    fn drop(&mut self) {
        checkpoints::die();
        self.daemon = None;
        WORLD.set(None);
        clock::set(None);
        daemon::set_fuse(None);
        daemon::set_room(None);
        daemon::set_low(false);
        let _ = self.folder.path();
    }
}

impl World {
    /// A job's supervisor starts another program in it.
    fn guest_comes(&mut self, dir: &Path) {
        let its = self.pids(|kind| match kind {
            Kind::Supervisor(supervisor) => {
                supervisor.dir.path() == dir && supervisor.takes_guests()
            }
            _ => false,
        });
        let (Some(supervisor), Some(guest)) = (its.first(), self.guest_of(dir)) else {
            return;
        };
        // It leads a session of its own.
        self.spawn(*supervisor, None, guest);
    }

    /// The engine starts another program in a container.
    fn guest_comes_into(&mut self, container: &str) {
        let Some(name) = container.strip_prefix("id-") else {
            return;
        };
        let Some((dir, namespace)) = self.room_of(name) else {
            return;
        };
        if self.engine.call() != Called::Away
            && let Some(guest) = self.guest_of(&dir)
        {
            let within = self.next_within(namespace);
            self.spawn_within(1, None, guest, Some(within));
        }
    }

    /// The run and the namespace of a container that runs.
    fn room_of(&self, name: &str) -> Option<(PathBuf, u64)> {
        let State::Running(first) = self.engine.state(name)? else {
            return None;
        };
        let first = self.processes.get(&first)?;
        match &first.kind {
            Kind::Program(program) => Some((program.run.clone(), first.within?.namespace)),
            _ => None,
        }
    }

    fn guest_of(&self, run: &Path) -> Option<Kind> {
        self.processes.values().find_map(|one| match &one.kind {
            Kind::Program(program) if program.run == run && program.is_first => {
                Some(Kind::Program(Box::new(program.child())))
            }
            _ => None,
        })
    }

    pub fn pids(&self, who: impl Fn(&Kind) -> bool) -> Vec<u32> {
        let living = self
            .processes
            .iter()
            .filter(|(pid, one)| who(&one.kind) && !self.zombies.contains_key(pid));
        living.map(|(pid, _)| *pid).collect()
    }

    /// A fault of the machine, or its end.
    fn suffers(&mut self, what: What, gpu: usize, dice: &mut Rng) {
        match what {
            What::NoProcesses => self.no_processes = true,
            What::Processes => self.no_processes = false,
            What::GpuIll => self.gpus[gpu] = Health::Ill,
            What::GpuLost => {
                self.gpus[gpu] = Health::Lost;
                self.pods_fail(gpu);
            }
            What::GpuAbsent => {
                self.gpus[gpu] = Health::Absent;
                self.pods_fail(gpu);
            }
            What::GpuWell => self.gpus[gpu] = Health::Well,
            What::GpuOrder => {
                let other = usize::try_from(dice.below(2)).unwrap_or(0);
                self.order.swap(gpu, (gpu + 1 + other) % GPUS);
            }
            What::DriverIll => self.driver_is_ill = true,
            What::DriverWell => self.driver_is_ill = false,
            What::Stranger => {
                let bytes = self.left(gpu).min((1 + dice.below(30)) << 30);
                if bytes > 0 && !self.divided[gpu].mode.current {
                    self.spawn(1, None, Kind::Stranger { gpu, bytes });
                }
            }
            What::StrangerLeaves => {
                let unmanaged = self.pids(|kind| matches!(kind, Kind::Stranger { .. }));
                if let Some(pid) = dice.one(&unmanaged) {
                    self.kill(pid);
                }
            }
            What::ForkServerDies => self.fork_server_dies = true,
            What::EngineGoes => self.engine_goes(dice.once_in(2)),
            What::EngineBreaks => self.engine.breaks = true,
            What::EngineBack => self.engine.is_away = false,
            What::ContainerGoes => {
                let names: Vec<String> = self.engine.containers.keys().cloned().collect();
                let at = dice.below(u64::try_from(names.len()).unwrap_or(0).max(1));
                let name = usize::try_from(at).ok().and_then(|at| names.get(at));
                if let Some(name) = name
                    && self.engine.call() == Called::Answered
                {
                    self.trace(|| format!("  somebody takes {name} away"));
                    self.container_goes(name);
                }
            }
            What::Meddle => {
                let divided = DIVIDED
                    .into_iter()
                    .filter(|gpu| self.divided[*gpu].mode.current);
                if let Some(gpu) = dice.one(&divided.collect::<Vec<_>>()) {
                    self.meddles(gpu, dice);
                }
            }
            What::ClockJump => {
                let seconds = dice.one(&[-86_400, -60, 60, 86_400]).unwrap_or(60);
                clock::jump(SignedDuration::from_secs(seconds));
            }
            _ => {}
        }
    }
}
