//! What must hold after every step, and what must be left at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use divvy_core::job::Outcome;
use divvy_core::{Bytes, JobId};

use super::daemon::difference;
use super::engine::shell;
use super::gpus::{self, uuid};
use super::kernel::{Kind, Proc};
use super::run::Run;
use super::{World, with};
use crate::job::Job;
use crate::records::JobDir;

impl Run {
    /// Everything that holds at any moment.
    ///
    /// # Errors
    /// What does not.
    pub fn hold(&mut self) -> Result<(), String> {
        if let Some(broken) = with(|world| world.broken.take()).flatten() {
            return Err(broken);
        }
        self.no_gpu_is_overfull()?;
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let living: BTreeMap<JobId, Job> = daemon
            .cycle
            .remembered()
            .map(|job| (job.id, job.clone()))
            .collect();
        self.everybody_keeps_to_what_was_granted(&living)?;
        self.slices_are_of_those_who_hold(&living)?;
        self.nobody_who_has_ended_lives(&living)?;
        self.ends_are_final(&living)?;
        if self.steps.is_multiple_of(8) {
            self.the_journal_says_what_is_remembered()?;
            self.others_instances_are_theirs()?;
        }
        Ok(())
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
    fn everybody_keeps_to_what_was_granted(
        &self,
        living: &BTreeMap<JobId, Job>,
    ) -> Result<(), String> {
        let mut held: BTreeMap<(JobId, usize), u64> = BTreeMap::new();
        with(|world| {
            for proc in world.processes.values() {
                if let Kind::Program(program) = &proc.kind {
                    for (gpu, bytes) in &program.held {
                        *held.entry((JobId(program.job), *gpu)).or_default() += bytes;
                    }
                }
            }
        });
        for ((id, gpu), bytes) in held {
            let granted: Bytes = living
                .get(&id)
                .into_iter()
                .flat_map(|job| job.life.grants())
                .filter(|grant| grant.gpu == uuid(gpu))
                .map(|grant| grant.memory)
                .sum();
            if bytes > granted.get() {
                return Err(format!(
                    "job {id} has {bytes} bytes of GPU {gpu}, and was granted {}",
                    granted.get()
                ));
            }
        }
        Ok(())
    }

    fn slices_are_of_those_who_hold(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        for name in names(self.home.slices()) {
            let holds = |id: &JobId| {
                living
                    .get(id)
                    .is_some_and(|job| !job.life.grants().is_empty())
            };
            if !name.parse().is_ok_and(|id| holds(&id)) {
                return Err(format!("the slice {name} is nobody's"));
            }
        }
        Ok(())
    }

    fn nobody_who_has_ended_lives(&self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        with(|world| {
            for (pid, proc) in &world.processes {
                if let Kind::Program(program) = &proc.kind
                    && !world.has_escaped(proc)
                    && living
                        .get(&JobId(program.job))
                        .is_none_or(|job| job.life.grants().is_empty())
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
            let Some(outcome) = job.life.outcome() else {
                return Err(format!(
                    "job {id} is forgotten while it is {}",
                    job.life.state()
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

    fn others_instances_are_theirs(&self) -> Result<(), String> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let journaled = daemon.cycle.journal().migs();
        let journaled = journaled.map_err(|error| error.to_string())?;
        let remembered = daemon.cycle.instances();
        if journaled != *remembered {
            return Err(format!(
                "the journal has the instances {journaled:#?}, and the agent {remembered:#?}"
            ));
        }
        with(|world| world.knows_its_own(remembered)).unwrap_or(Ok(()))
    }

    /// Everybody has ended: no slice, no process, no secret is left, and every GPU is whole.
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

/// How a job is said to have ended is how the program of its last run did.
fn said_as_it_was(folder: &Path, job: &Job) -> Result<(), String> {
    let run = match job.course.runs {
        0 => folder.to_owned(),
        run => folder.join(format!("run-{run}")),
    };
    let status = with(|world| world.ends.get(&run).copied()).flatten();
    let said = match job.life.outcome() {
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
    /// Whether nothing holds a process any more: its job's supervisor was killed, it has left the session, and no slice is its. Where
    /// there are control groups nothing gets out; here there are none.
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
            Kind::Daemon | Kind::Stranger { .. } => false,
        };
        let is_found = line.iter().any(is_known) || proc.session == program.led_by;
        !is_found && !program.has_joined()
    }
}
