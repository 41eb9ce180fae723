//! Invariants after every step, and at the end of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use divvy_api::daemon::UserKey;
use divvy_api::v1::{ClaimDevice, IdleAction};
use divvy_core::job::Outcome;
use divvy_core::resize::memory::{MemoryResidency, ProcessState};
use divvy_core::{Bytes, JobId, JobState, Share};
use divvy_ledger::{ProcessSlot, Slice};

use super::daemon::difference;
use super::engine::shell;
use super::gpus::{self, uuid};
use super::kernel::{Kind, Proc};
use super::run::Run;
use super::{World, claims, with};
use crate::checkpoint::host_memory;
use crate::job_dir::JobDir;
use crate::model::idle;
use crate::model::job::Job;

impl Run {
    /// Everything that holds at any moment.
    ///
    /// # Errors
    /// What does not.
    pub fn check_invariants(&mut self) -> Result<(), String> {
        if let Some(broken) = with(|world| world.broken.take()).flatten() {
            return Err(broken);
        }
        self.no_gpu_is_overfull()?;
        if self.daemon.is_none() {
            return Ok(());
        }
        let living = self.living();
        self.programs_keep_to_their_grants(&living)?;
        self.grants_fit_their_gpus(&living)?;
        self.locked_processes_are_journaled(&living)?;
        self.parked_jobs_keep_to_their_budget(&living)?;
        self.promises_to_parked_jobs_hold(&living)?;
        self.slices_belong_to_holders(&living)?;
        self.no_ended_job_has_processes(&living)?;
        self.claims_hold_what_was_asked(&living)?;
        self.ends_are_final(&living)?;
        self.no_job_starts_early(&living)?;
        self.no_job_starts_out_of_service(&living)?;
        self.users_keep_to_their_limits(&living)?;
        if self.steps.is_multiple_of(8) {
            self.the_journal_says_what_is_remembered()?;
            self.the_journal_knows_the_instances()?;
            self.energy_adds_up()?;
        }
        self.others_instances_are_theirs()
    }

    fn no_gpu_is_overfull(&self) -> Result<(), String> {
        with(|world| {
            for gpu in 0..world.gpus.len() {
                let held: u64 = world.holders(gpu).values().sum();
                if held > gpus::usable() {
                    return Err(format!("GPU {gpu} holds {held} bytes"));
                }
            }
            Ok(())
        })
        .unwrap_or(Ok(()))
    }

    /// By the driver's word, job by job.
    fn programs_keep_to_their_grants(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        let mut held: BTreeMap<(JobId, usize), (u64, Vec<u32>)> = BTreeMap::new();
        with(|world| {
            for (pid, proc) in &world.processes {
                if let Kind::Program(program) = &proc.kind
                    && !world.is_unattributable(proc)
                {
                    for (gpu, bytes) in &program.held {
                        let (sum, who) = held.entry((JobId(program.job), *gpu)).or_default();
                        *sum += bytes;
                        who.push(*pid);
                    }
                }
            }
        });
        for ((id, gpu), (bytes, who)) in held {
            let granted: Bytes = living
                .get(&id)
                .into_iter()
                // An offloaded job has none: no byte has two holders.
                .filter(|job| job.run_state.aside.memory.holds_gpus())
                .flat_map(|job| job.state.grants())
                .filter(|grant| grant.gpu == uuid(gpu))
                .map(|grant| grant.memory)
                .sum();
            if bytes > granted.get() {
                return Err(format!(
                    "job {id} has {bytes} bytes of GPU {gpu} as {who:?}, and was granted {}",
                    granted.get()
                ));
            }
        }
        Ok(())
    }

    /// What all jobs hold of a GPU fits, those included that are being offloaded or restored.
    fn grants_fit_their_gpus(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        let mut granted: BTreeMap<usize, u64> = BTreeMap::new();
        let holds = |job: &&Job| job.run_state.aside.memory.holds_gpus();
        for job in living.values().filter(holds) {
            for grant in job.state.grants().iter().filter(|one| one.mig.is_none()) {
                *granted.entry(gpus::index(&grant.gpu)).or_default() += grant.memory.get();
            }
        }
        match granted.iter().find(|(_, bytes)| **bytes > gpus::usable()) {
            Some((gpu, bytes)) => Err(format!("{bytes} bytes of GPU {gpu} are granted")),
            None => Ok(()),
        }
    }

    /// By what the driver has copied, not by what the daemon counts.
    fn parked_jobs_keep_to_their_budget(
        &self,
        living: &BTreeMap<JobId, Job>,
    ) -> Result<(), String> {
        let is_parked = |id: u64| {
            let job = living.get(&JobId(id));
            job.is_some_and(|job| job.run_state.aside.is_parked())
        };
        let saved = |proc: &Proc| match &proc.kind {
            Kind::Program(program) if is_parked(program.job) => program.saved.values().sum(),
            _ => 0,
        };
        let all: u64 = with(|world| world.processes.values().map(saved).sum()).unwrap_or(0);
        match host_memory::park_budget(self.manner.park.host_memory) {
            Some(budget) if all > budget.get() => Err(format!(
                "parked jobs have {all} bytes, and may have {budget:?}"
            )),
            _ => Ok(()),
        }
    }

    /// I2: a parked job has room beside the holders that never gave way.
    fn promises_to_parked_jobs_hold(
        &mut self,
        living: &BTreeMap<JobId, Job>,
    ) -> Result<(), String> {
        let Some(bound) = self.manner.park.wake else {
            return Ok(());
        };
        let parks = |job: &Job| {
            let rule = idle::rule(job.spec.policy.idle, self.manner.idle);
            rule.is_some_and(|rule| rule.action == IdleAction::Park)
        };
        let gives_way = |job: &&Job| {
            let ends = job.spec.policy.time_limit_s.map(Duration::from_secs);
            parks(job) && job.spec.container.is_none() && job.claim().is_none()
                || ends.is_some_and(|ends| ends <= bound)
                || job.run_state.aside.memory != MemoryResidency::Kept
        };
        let given = living.values().filter(gives_way).map(|job| job.id);
        let given: Vec<JobId> = given.collect();
        let is_promised = |job: &&Job| {
            let aside = &job.run_state.aside;
            let is_offloaded = aside.is_parked() && aside.memory == MemoryResidency::Offloaded;
            is_offloaded && parks(job) && matches!(job.state, JobState::Running { .. })
        };
        let promised: Vec<&Job> = living.values().filter(is_promised).collect();
        self.has_given_way.extend(given);
        let firm = living
            .values()
            .filter(|job| !self.has_given_way.contains(&job.id));
        let firm: Vec<_> = firm.flat_map(|job| job.state.grants()).collect();
        for (job, own) in promised.iter().flat_map(|job| {
            let grants = job.state.grants().iter();
            grants.map(|grant| (job.id, grant))
        }) {
            let beside = firm.iter().filter(|grant| grant.gpu == own.gpu);
            if beside.clone().next().is_some() {
                with(|world| world.trace(|| format!("  beside a promise to job {job}")));
            }
            let (memory, share) = beside.fold((0, 0), |(memory, share), grant| {
                (
                    memory + grant.memory.get(),
                    share + grant.share.thousandths(),
                )
            });
            if memory + own.memory.get() > gpus::usable() || share + own.share.thousandths() > 1000
            {
                return Err(format!(
                    "parked job {job} is promised {own:?}, and {memory} bytes and {share} thousandths do not give way"
                ));
            }
        }
        Ok(())
    }

    /// A process that the driver holds is in the journal, so that a daemon that dies finds it.
    fn locked_processes_are_journaled(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        with(|world| {
            for (pid, proc) in &world.processes {
                let Kind::Program(program) = &proc.kind else {
                    continue;
                };
                if program.checkpoint == ProcessState::Running || world.has_escaped(proc) {
                    continue;
                }
                let job = living.get(&JobId(program.job));
                if !job.is_some_and(|job| job.run_state.aside.parts.contains(&proc.process)) {
                    return Err(format!(
                        "pid {pid} of job {} is {:?}, and the journal does not know it",
                        program.job, program.checkpoint
                    ));
                }
            }
            Ok(())
        })
        .unwrap_or(Ok(()))
    }

    /// I6, after a round: a call that waits for the memory of a parked job has made the job due, and no call waits at the
    /// gate of a job that has its memory.
    ///
    /// # Errors
    /// Which has not.
    pub fn waiting_calls_are_heard(&self) -> Result<(), String> {
        let living = self.living();
        with(|world| {
            for (pid, proc) in &world.processes {
                let Kind::Program(program) = &proc.kind else {
                    continue;
                };
                let is_its = program.has_joined() && !world.has_escaped(proc);
                let call = program.call.filter(|call| is_its && call.rounds > 1);
                let job = living.get(&JobId(program.job)).filter(|job| {
                    let aside = &job.run_state.aside;
                    let waits = match aside.memory {
                        MemoryResidency::Leaving | MemoryResidency::Offloaded => aside.is_parked(),
                        MemoryResidency::Kept => {
                            program.slot.as_ref().is_some_and(ProcessSlot::is_parked)
                        }
                        MemoryResidency::Due | MemoryResidency::Returning { .. } => false,
                    };
                    waits && matches!(job.state, JobState::Running { .. })
                });
                if let (Some(call), Some(job)) = (call, job) {
                    return Err(format!(
                        "{call:?} of pid {pid} waits, and job {} is {:?}",
                        job.id, job.run_state.aside.memory
                    ));
                }
            }
            Ok(())
        })
        .unwrap_or(Ok(()))
    }

    /// By the rules of the run, in thousandths of GPUs. Claims count for no user.
    fn users_keep_to_their_limits(&mut self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        let mut used: BTreeMap<&str, u64> = BTreeMap::new();
        for job in living.values().filter(|job| job.claim().is_none()) {
            let holds = job.held().filter(|held| held.resuming_since.is_none());
            let grants = holds.into_iter().flat_map(|held| held.grants);
            let shares = grants.map(|grant| u64::from(grant.share.thousandths()));
            *used.entry(job.spec.user.as_str()).or_default() += shares.sum::<u64>();
        }
        for (name, used) in used {
            let user = UserKey {
                name,
                uid: None,
                groups: Vec::new(),
            };
            let limit = self.manner.project_rules.max_gpus.largest(&user);
            let most = limit.and_then(|limit| limit.gpus());
            if most.is_some_and(|most| used == most.thousandths())
                && self.at_limit.insert(name.to_owned())
            {
                with(|world| world.trace(|| format!("  {name} holds all that the limit allows")));
            }
            if let Some(most) = most.filter(|most| used > most.thousandths()) {
                return Err(format!(
                    "{name} holds {used} thousandths of GPUs, and the limit is {most} GPUs"
                ));
            }
        }
        Ok(())
    }

    fn slices_belong_to_holders(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        for name in names(self.home.slices()) {
            let holds = |id: &JobId| {
                living
                    .get(id)
                    .is_some_and(|job| !job.state.grants().is_empty())
            };
            if !name.parse().is_ok_and(|id| holds(&id)) {
                return Err(format!("the slice {name} is nobody's"));
            }
        }
        Ok(())
    }

    /// To the byte and to the place.
    fn claims_hold_what_was_asked(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        for job in living.values() {
            let (Some(claim), grants) = (&job.spec.policy.claim, job.state.grants()) else {
                continue;
            };
            let is_held = |asked: &ClaimDevice| {
                let mut there = grants
                    .iter()
                    .filter(|grant| grant.gpu.to_string() == asked.gpu);
                there.any(|grant| match (&asked.mig, asked.memory_bytes, grant.mig) {
                    (Some(asked), _, Some(mig)) => {
                        let profile = mig.profile.to_string();
                        (profile, Some(mig.placement.start)) == (asked.profile.clone(), asked.start)
                    }
                    (None, Some(bytes), None) => grant.memory.get() >= bytes,
                    // The daemon cannot promise the memory of unmanaged processes on a whole GPU.
                    (None, None, None) => {
                        grant.share == Share::FULL && grant.memory.get() <= gpus::usable()
                    }
                    _ => false,
                })
            };
            let left = claim.devices.iter().find(|asked| !is_held(asked));
            if let Some(left) = left.filter(|_| !grants.is_empty()) {
                return Err(format!(
                    "claim {} asked for {left:?}, and holds {grants:?}",
                    claim.uid
                ));
            }
        }
        Ok(())
    }

    /// After a round: the processes of suspended jobs are stopped unless they are to end, and no other processes are.
    ///
    /// # Errors
    /// Which is not.
    pub fn suspended_processes_are_stopped(&self) -> Result<(), String> {
        let living = self.living();
        with(|world| {
            let ending = world.are_to_end();
            for (pid, proc) in &world.processes {
                let Kind::Program(program) = &proc.kind else {
                    continue;
                };
                let Some(job) = living.get(&JobId(program.job)) else {
                    continue;
                };
                let is_held = job.run_state.suspended && job.spec.container.is_none();
                let runs = matches!(job.state, JobState::Running { .. });
                // What a program has left is told to end, and goes on to do so.
                let may_be_either = world.has_escaped(proc)
                    || is_held && ending.contains(pid)
                    || job.run_state.aside.memory.is_copying();
                if runs && !may_be_either && proc.stopped != is_held {
                    return Err(match is_held {
                        true => format!("job {} is suspended, and pid {pid} goes on", job.id),
                        false => format!("job {} runs, and pid {pid} is stopped", job.id),
                    });
                }
            }
            Ok(())
        })
        .unwrap_or(Ok(()))
    }

    /// After a round: what the limiter lets a job have is what it holds, or is to shrink to.
    ///
    /// # Errors
    /// Where it is not.
    pub fn slices_say_what_is_held(&self) -> Result<(), String> {
        for (id, job) in self.living() {
            let is_used = matches!(job.state, JobState::Running { .. } | JobState::Bound { .. });
            let slice = Slice::open(&self.home.slice(&id.to_string())).ok();
            let snapshot = slice
                .filter(|_| is_used)
                .and_then(|slice| slice.read().ok());
            let Some(snapshot) = snapshot else { continue };
            let said: Vec<u64> = snapshot.spec().gpus.iter().map(|gpu| gpu.limit).collect();
            let limits = job.limits();
            let limits: Vec<u64> = limits.iter().map(|grant| grant.memory.get()).collect();
            if said != limits {
                return Err(format!(
                    "the slice of job {id} says {said:?}, and it is to have {limits:?}"
                ));
            }
        }
        Ok(())
    }

    /// After a round: a job that is held has no grant and no turn.
    ///
    /// # Errors
    /// Which is not so.
    pub fn held_jobs_wait(&self) -> Result<(), String> {
        for (id, job) in self.living() {
            let is_held = job.run_state.hold.is_some();
            if is_held && (job.state != JobState::Queued || job.on_hold().is_none()) {
                return Err(format!("job {id} is held, and is {}", job.state.state()));
            }
            let turn = self
                .daemon
                .as_ref()
                .and_then(|one| one.cycle.queue_position(id));
            if is_held && turn.is_some() {
                return Err(format!("job {id} is held, and has a turn: {turn:?}"));
            }
        }
        Ok(())
    }

    /// After a round: the device of a claim that is lent is there, and brings in what it holds and nothing else. Of one
    /// that was given back to a daemon that died of it the device may be gone: it is given back again.
    ///
    /// # Errors
    /// Where it does not.
    pub fn devices_bring_in_what_is_lent(&self) -> Result<(), String> {
        for job in self.living().values() {
            let (Some(claim), JobState::Bound { grants }) = (&job.spec.policy.claim, &job.state)
            else {
                continue;
            };
            if self.given_back.contains(&claim.uid) {
                continue;
            }
            let there = claims::visible(&self.home, &claim.uid);
            let held = World::visible(grants).join(",");
            if there.as_ref() != Some(&held) {
                return Err(format!(
                    "the device of claim {} brings in {there:?}, and it holds {held}",
                    claim.uid
                ));
            }
        }
        Ok(())
    }

    /// What the daemon remembers, while there is one.
    pub fn living(&self) -> BTreeMap<JobId, Job> {
        let all = self.daemon.iter().flat_map(|one| one.cycle.known_jobs());
        all.map(|job| (job.id, job.clone())).collect()
    }

    fn no_ended_job_has_processes(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        with(|world| {
            for (pid, proc) in &world.processes {
                if let Kind::Program(program) = &proc.kind
                    && !world.has_escaped(proc)
                    && !program.is_idle_pod()
                    && living
                        .get(&JobId(program.job))
                        .is_none_or(|job| job.state.grants().is_empty())
                {
                    return Err(format!(
                        "pid {pid} of job {} lives, and that holds nothing",
                        program.job
                    ));
                }
            }
            Ok(())
        })
        .unwrap_or(Ok(()))
    }

    /// A job that was acknowledged is there; one that has ended has ended so, for good.
    fn ends_are_final(&mut self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let all = self.steps.is_multiple_of(16);
        for id in self.keys.values() {
            if living.contains_key(id) {
                if self.ended.contains_key(id) {
                    return Err(format!("job {id} had ended, and lives"));
                }
                continue;
            }
            if self.ended.contains_key(id) && !all {
                continue;
            }
            let job = daemon
                .cycle
                .journal()
                .job(*id)
                .map_err(|error| error.to_string())?;
            let Some(job) = job else {
                return Err(format!("job {id} was acknowledged, and is lost"));
            };
            let Some(outcome) = job.state.outcome() else {
                return Err(format!(
                    "job {id} is forgotten while it is {}",
                    job.state.state()
                ));
            };
            said_as_it_was(&self.home.job(&id.to_string()), &job)?;
            if self.cancelled.contains(id) && *outcome != Outcome::Cancelled {
                return Err(format!("job {id} was cancelled, and has {outcome}"));
            }
            let words = format!("{outcome} {:?} {:?}", job.exit_code, job.ended_at);
            let before = self.ended.entry(*id).or_insert_with(|| words.clone());
            if *before != words {
                return Err(format!("job {id} ended twice: {before}, {words}"));
            }
        }
        Ok(())
    }

    fn the_journal_says_what_is_remembered(&self) -> Result<(), String> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let journaled = daemon.journaled().map_err(|error| error.to_string())?;
        let remembered = daemon.kept();
        match journaled == remembered {
            true => Ok(()),
            false => Err(format!(
                "the journal (-) and the agent (+) say different things\n{}",
                difference(&journaled, &remembered)
            )),
        }
    }

    fn the_journal_knows_the_instances(&self) -> Result<(), String> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let journaled = daemon.cycle.journal().migs();
        let journaled = journaled.map_err(|error| error.to_string())?;
        let remembered = daemon.cycle.instances();
        match journaled == *remembered {
            true => Ok(()),
            false => Err(format!(
                "the journal has the instances {journaled:#?}, and the agent {remembered:#?}"
            )),
        }
    }

    /// Jobs and idle together are what the counter showed since the first reading, over any deaths of the daemon.
    fn energy_adds_up(&mut self) -> Result<(), String> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        for (gpu, (reading, counted, rows)) in daemon.cycle.journal().energy_sums() {
            let first = *(self.first_energy.entry(gpu.clone())).or_insert(reading - counted);
            if (counted, rows) != (reading - first, reading - first) {
                return Err(format!(
                    "{gpu} drew {} mJ; {counted} are counted, and its rows have {rows}",
                    reading - first
                ));
            }
        }
        Ok(())
    }

    fn others_instances_are_theirs(&self) -> Result<(), String> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        with(|world| world.knows_its_own(daemon.cycle.instances())).unwrap_or(Ok(()))
    }

    /// All jobs have ended: no slice, no process, no secret is left, and every GPU is whole.
    ///
    /// # Errors
    /// What is left.
    pub fn nothing_is_left(&self) -> Result<(), String> {
        let slices = names(self.home.slices());
        if !slices.is_empty() {
            return Err(format!("slices are left: {slices:?}"));
        }
        let left = with(|world| {
            let all = world.processes.values();
            let held =
                all.filter(|one| !matches!(one.kind, Kind::Daemon) && !world.has_escaped(one));
            held.map(|one| one.process.pid).collect::<Vec<_>>()
        })
        .unwrap_or_default();
        if !left.is_empty() {
            return Err(format!("processes are left: {left:?}"));
        }
        let devices = names(&self.home.state().join("cdi"));
        if !devices.is_empty() {
            return Err(format!("devices of claims are left: {devices:?}"));
        }
        let me = super::accounts::uid(super::accounts::ME);
        let entries = names(&self.home.claims().join(me.to_string()));
        if !entries.is_empty() {
            return Err(format!("entries of slices are left: {entries:?}"));
        }
        let containers = with(|world| world.engine.containers.keys().cloned().collect());
        let containers: Vec<String> = containers.unwrap_or_default();
        if !containers.is_empty() {
            return Err(format!("containers are left: {containers:?}"));
        }
        let instances = with(|world| world.instances_of_ours()).unwrap_or_default();
        if !instances.is_empty() {
            return Err(format!("MIG instances are left: {instances:?}"));
        }
        let secrets = names(&self.home.state().join("secrets"));
        if !secrets.is_empty() {
            return Err(format!("secrets are left: {secrets:?}"));
        }
        let folders = names(&self.home.jobs())
            .into_iter()
            .map(|name| self.home.job(&name));
        for folder in folders {
            let runs = names(&folder).into_iter().map(|run| folder.join(run));
            for folder in runs.chain([folder.clone()]) {
                if folder.is_dir() && !matches!(JobDir::new(&folder).spec(), Ok(None)) {
                    return Err(format!("{} still holds an environment", folder.display()));
                }
            }
        }
        match self.keys.values().find(|id| !self.ended.contains_key(id)) {
            Some(id) => Err(format!("job {id} was acknowledged, and has no end")),
            None => Ok(()),
        }
    }
}

/// The journal records the end of a job as the program of its last run ended, with the peaks and refusals of its slice.
fn said_as_it_was(folder: &Path, job: &Job) -> Result<(), String> {
    let key = (job.id, u64::from(job.attempt));
    let used = with(|world| world.usage.get(&key).cloned()).flatten();
    let kept = job
        .allocations
        .iter()
        .map(|one| (one.stats.peak, one.stats.denied));
    if let Some(used) = used
        && used
            .iter()
            .zip(kept.clone())
            .any(|(used, kept)| *used != kept)
    {
        return Err(format!(
            "the journal records {1:?} of job {0}, and its slice had {used:?} (peak, refusals)",
            job.id,
            kept.collect::<Vec<_>>()
        ));
    }
    let run = match job.run_state.runs {
        0 => folder.to_owned(),
        run => folder.join(format!("run-{run}")),
    };
    let status = with(|world| world.ends.get(&run).copied()).flatten();
    let said = match job.state.outcome() {
        Some(Outcome::Exited(code)) => *code,
        Some(Outcome::Signaled(signal)) => 128 + signal,
        _ => return Ok(()),
    };
    match status.map(shell) {
        Some(code) if code == said => Ok(()),
        code => Err(format!(
            "job {} is said to have ended with {said}, and its program did with {code:?}",
            job.id
        )),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

impl World {
    /// Processes without an attributable job end by themselves.
    pub fn strays_end(&mut self) {
        let strays = self
            .processes
            .values()
            .filter(|proc| self.is_unattributable(proc));
        let strays: Vec<u32> = strays.map(|proc| proc.process.pid).collect();
        for pid in strays {
            self.kill(pid);
        }
    }

    /// Whether a process cannot be attributed: no supervisor holds it any more, and it is in an instance and so in no
    /// slice.
    fn is_unattributable(&self, proc: &Proc) -> bool {
        matches!(&proc.kind, Kind::Program(program) if !program.inside.is_empty())
            && self.has_escaped(proc)
    }

    /// Jobs with memory that the driver does not give back: only a cancellation ends them.
    pub fn not_restorable(&self) -> BTreeSet<JobId> {
        let failed = |proc: &Proc| match &proc.kind {
            Kind::Program(program) => {
                (program.checkpoint == ProcessState::Failed).then_some(JobId(program.job))
            }
            _ => None,
        };
        self.processes.values().filter_map(failed).collect()
    }

    /// Whether nothing holds a process any more: its job's supervisor was killed, it has left the session, and no slice
    /// is its. Where there are control groups nothing gets out; here there are none.
    pub fn has_escaped(&self, proc: &Proc) -> bool {
        let Kind::Program(program) = &proc.kind else {
            return false;
        };
        // A container ends as a whole.
        if proc.within.is_some() {
            return false;
        }
        let mut line = vec![proc];
        while let Some(parent) = line
            .last()
            .and_then(|last| self.processes.get(&last.parent))
        {
            line.push(parent);
        }
        let is_known = |one: &&Proc| match &one.kind {
            Kind::Supervisor(_) => true,
            Kind::Program(program) => program.is_first,
            Kind::Daemon | Kind::Engine | Kind::Stranger { .. } => false,
        };
        let is_found = line.iter().any(is_known) || proc.session == program.led_by;
        !is_found && !program.has_joined()
    }
}
