//! One checkpoint operation (offload or restore), from its first observation to its report.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use divvy_core::resize::memory::{
    CheckpointStep, ProcessState, next_offload_step, next_restore_step,
};
use divvy_core::{Bytes, GpuUuid};
use divvy_ledger::{ProcessIdentity, ProcessState as SlotState, ProcessUsage, Snapshot};
use rustix::process::Signal;

use super::helper::CheckpointAction;
use super::{
    CheckpointOp, CheckpointOutcome, CheckpointReport, CheckpointUpdate, Checkpointer, Direction,
    ENDED_IN_LOCK, ReportSender, host_memory,
};
use crate::gpu::{GpuOccupancy, Observer};
use crate::host::clock::{self, Instant};
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::host::process::{self, Process};

/// How many searches for processes that have come to use a GPU, or were started, meanwhile. More than a job needs whose
/// start is over; one that forks for ever would have no end.
const MAX_PASSES: usize = 16;

/// How long the driver may go on listing a process after its memory was offloaded. The driver listed killed processes
/// for 72 ms (docs/hardware.md), so this leaves room for a busy host.
const LISTED: Duration = Duration::from_secs(5);

/// A copy takes seconds, so this adds little; a shorter pause would be busy waiting.
const LOOK: Duration = Duration::from_millis(20);

pub struct OpRunner {
    op: CheckpointOp,
    checkpointer: Arc<dyn Checkpointer>,
    observer: Arc<Observer>,
    report: ReportSender,
}

/// Why it comes to no good end.
enum OpError {
    Refused(String),
    Failed(String),
    Withdrawn,
}

impl OpError {
    fn outcome(self, way: Direction) -> CheckpointOutcome {
        match (self, way) {
            (Self::Withdrawn, _) => CheckpointOutcome::Withdrawn,
            (Self::Refused(why), Direction::Offload) => CheckpointOutcome::Refused(why),
            (Self::Failed(why), Direction::Offload) => CheckpointOutcome::Failed(why),
            (Self::Refused(why) | Self::Failed(why), Direction::Restore) => {
                CheckpointOutcome::NotRestored(why)
            }
        }
    }
}

type OpResult<T = ()> = Result<T, OpError>;

/// A group without the memory controller has no such file.
fn allow_swap(group: &Path, is_allowed: bool) {
    let most = if is_allowed { "max" } else { "0" };
    let file = std::fs::File::options()
        .write(true)
        .open(group.join("memory.swap.max"));
    let _ = file.and_then(|mut file| file.write_all(most.as_bytes()));
}

/// By pid.
type States = BTreeMap<u32, ProcessState>;

fn failed(why: impl ToString) -> OpError {
    OpError::Failed(why.to_string())
}

impl OpRunner {
    pub fn new(
        errand: CheckpointOp,
        checkpointer: Arc<dyn Checkpointer>,
        observer: Arc<Observer>,
        report: ReportSender,
    ) -> Self {
        Self {
            op: errand,
            checkpointer,
            observer,
            report,
        }
    }

    /// Carries it out, and always reports.
    pub fn run(self) {
        let way = self.op.direction;
        let carried_out = catch_unwind(AssertUnwindSafe(|| match way {
            Direction::Offload => self.offload().map(|()| CheckpointOutcome::Saved),
            Direction::Restore => self.restore_all().map(|()| CheckpointOutcome::Restored),
        }));
        let interrupted = "an internal error interrupted it; see the daemon's log";
        // The words of a panic are in the log already.
        let ended = carried_out.unwrap_or_else(|_| Err(failed(interrupted)));
        let ended = ended.unwrap_or_else(|trouble| trouble.outcome(way));
        if self.op.parked.is_some() || self.check_withdrawn().is_err() {
            // Of a parked job only calls of the driver wait. Else a signal to end may have arrived before the stop, and
            // the process has to receive it.
            self.signal_all(Signal::CONT, &[]);
        }
        if ended != CheckpointOutcome::Saved {
            self.allow_swap(true);
        }
        self.report(CheckpointUpdate::Finished(ended));
    }

    fn report(&self, what: CheckpointUpdate) {
        (self.report)(CheckpointReport {
            job: self.op.job,
            attempt: self.op.attempt,
            update: what,
        });
    }

    /// Whether a parked job's memory may be swapped out: not while it has a copy of its GPU memory.
    fn allow_swap(&self, is_allowed: bool) {
        if let Some(group) = self.op.parked.as_ref().and_then(|one| one.group.as_ref()) {
            allow_swap(group, is_allowed);
        }
    }

    /// A parked job may not have grown since its bytes were counted, or the budget would not hold.
    fn check_budget(&self, parts: &[Process]) -> OpResult {
        let now: Bytes = parts.iter().map(|one| self.memory_of(*one)).sum();
        match &self.op.parked {
            Some(parked) if now > parked.bytes => {
                let [now, counted] = now.human_beside(parked.bytes);
                Err(failed(format!(
                    "it has grown from {counted} to {now} meanwhile"
                )))
            }
            _ => Ok(()),
        }
    }

    fn offload(&self) -> OpResult {
        // It may have been stopped, and then could not answer.
        self.signal_all(Signal::CONT, &[]);
        let mut parts = self.alive(&self.op.parts);
        let is_new = parts.is_empty();
        let mut states = BTreeMap::new();
        // Until it is over: what is copied already is not available any more, and counts twice for a moment.
        let mut kept = Vec::new();
        for pass in 0..MAX_PASSES {
            self.check_withdrawn()?;
            let snapshot = self.read_ledger()?;
            let using = self.using(&snapshot).map_err(|why| match pass {
                0 if is_new => OpError::Refused(why),
                _ => OpError::Failed(why),
            })?;
            let fresh: Vec<Process> = using
                .into_iter()
                .filter(|process| !parts.contains(process))
                .collect();
            if pass == 0 && is_new {
                kept.push(self.reserve_host_memory(
                    self.all_of_it(&snapshot),
                    &fresh,
                    OpError::Refused,
                )?);
                states = self.query_states(&fresh)?;
            } else {
                let mut to_copy = fresh.clone();
                if pass == 0 {
                    // The others are in the host's memory already.
                    let listed = self.listed(&self.occupied()?);
                    to_copy.extend(parts.iter().filter(|one| listed.contains(one)));
                }
                let need = to_copy.iter().map(|one| self.memory_of(*one)).sum();
                kept.push(self.reserve_host_memory(need, &to_copy, OpError::Failed)?);
            }
            if !fresh.is_empty() {
                parts.extend(fresh);
                self.journal_participants(&parts)?;
            }
            self.allow_swap(false);
            if self.op.parked.is_some() {
                let is_gated = || self.op.slice.slice().is_parked();
                self.checkpointer.settle(&is_gated, &parts);
                reach("aside.gated");
                self.check_withdrawn()?;
            }
            self.save(&mut parts, &mut states)?;
            self.stop_all()?;
            reach("aside.stopped");
            if self.is_off_gpus(&parts)? {
                return self.check_withdrawn();
            }
            self.signal_all(Signal::CONT, &parts);
        }
        Err(failed("more and more processes of the job use a GPU"))
    }

    /// Whether it can be done at all, before anything is; answers how they are.
    fn query_states(&self, using: &[Process]) -> OpResult<States> {
        if using.is_empty() {
            let why = "no process of the job uses GPU memory";
            return Err(OpError::Refused(why.to_owned()));
        }
        let ask = |process: &Process| {
            let asked = self
                .checkpointer
                .call(CheckpointAction::State, *process, Bytes::ZERO);
            let state = asked.map_err(|refusal| OpError::Refused(refusal.what))?;
            Ok((process.pid, state))
        };
        using.iter().map(ask).collect()
    }

    /// What the job has on all GPUs.
    fn all_of_it(&self, snapshot: &Snapshot) -> Bytes {
        let gpus = 0..self.op.gpus.len();
        gpus.map(|gpu| Bytes::new(snapshot.usage(gpu).used())).sum()
    }

    /// Reserves host memory for this much of these processes, so that no other operation takes it meanwhile.
    fn reserve_host_memory(
        &self,
        need: Bytes,
        of: &[Process],
        or: impl FnOnce(String) -> OpError,
    ) -> OpResult<host_memory::HostReservation> {
        host_memory::reserve(need, of).map_err(or)
    }

    /// Journals the processes that the driver is about to lock.
    fn journal_participants(&self, parts: &[Process]) -> OpResult {
        let (journaled, answer) = sync_channel(1);
        self.report(CheckpointUpdate::LockPending(parts.to_vec(), journaled));
        // The daemon is stopping, or the job is to end.
        self.checkpointer
            .wait(&answer)
            .map_err(|_| OpError::Withdrawn)?;
        reach("aside.noted");
        self.check_withdrawn()
    }

    /// Puts the memory of all of these aside, and stops each once its own is: a call that it makes meanwhile could end
    /// it (reported).
    fn save(&self, parts: &mut Vec<Process>, states: &mut States) -> OpResult {
        for process in parts.iter() {
            if states.contains_key(&process.pid) {
                continue;
            }
            let asked = self
                .checkpointer
                .call(CheckpointAction::State, *process, Bytes::ZERO);
            if asked == Ok(ProcessState::Checkpointed) {
                let _ = process.signal(Signal::STOP);
            }
            let state = asked.or_else(|refusal| match process.is_alive() {
                true => Err(failed(refusal)),
                false => Ok(ProcessState::Checkpointed),
            })?;
            states.insert(process.pid, state);
        }
        // Each is locked and saved once, or something is wrong.
        for _ in 0..=2 * parts.len() {
            parts.retain(|process| process.is_alive());
            if parts.is_empty() && self.op.parked.is_some() {
                return Err(failed(ENDED_IN_LOCK));
            }
            let now: Vec<Option<ProcessState>> = parts
                .iter()
                .map(|process| states.get(&process.pid).copied())
                .collect();
            let (at, act) = match next_offload_step(&now) {
                CheckpointStep::Lock(at) => (at, CheckpointAction::Lock),
                CheckpointStep::Save(at) => (at, CheckpointAction::Save),
                CheckpointStep::Done => return Ok(()),
                CheckpointStep::Restore(at)
                | CheckpointStep::Unlock(at)
                | CheckpointStep::Stuck(at) => {
                    let pid = parts[at].pid;
                    return Err(failed(format!(
                        "the driver reports that the checkpoint of pid {pid} has failed"
                    )));
                }
            };
            self.check_withdrawn()?;
            if act == CheckpointAction::Save {
                self.check_budget(parts)?;
            }
            let process = parts[at];
            match self
                .checkpointer
                .call(act, process, self.memory_of(process))
            {
                Ok(state) => states.insert(process.pid, state),
                Err(_) if !process.is_alive() => continue,
                Err(refusal) => return Err(failed(refusal)),
            };
            if act == CheckpointAction::Save {
                let _ = process.signal(Signal::STOP);
                reach("aside.saved");
            } else {
                reach("aside.locked");
            }
        }
        Err(failed(
            "the driver reports success, but the checkpoint state of the job's processes does not change",
        ))
    }

    /// Whether no process of the job is on a GPU any more, now that all are stopped. False if one has started to use a
    /// GPU.
    fn is_off_gpus(&self, parts: &[Process]) -> OpResult<bool> {
        let deadline = Instant::now() + LISTED;
        loop {
            let using = self.using(&self.read_ledger()?).map_err(failed)?;
            if using.iter().any(|process| !parts.contains(process)) {
                return Ok(false);
            }
            let occupied = self.occupied()?;
            let answers = |gpu: &GpuUuid| occupied.iter().any(|one| one.uuid == *gpu);
            if let Some(gpu) = self.op.gpus.iter().find(|gpu| !answers(gpu)) {
                return Err(failed(format!("GPU {gpu} does not respond")));
            }
            let listed = self.listed(&occupied);
            let Some(process) = listed.first() else {
                return Ok(true);
            };
            if Instant::now() > deadline {
                let why = format!("the driver still lists pid {} on a GPU", process.pid);
                return Err(failed(why));
            }
            clock::sleep(LOOK);
        }
    }

    fn restore_all(&self) -> OpResult {
        let parts = self.alive(&self.op.parts);
        self.check_gpu_memory(&parts)?;
        let mut states = Vec::new();
        for process in &parts {
            self.check_withdrawn()?;
            let _ = process.signal(Signal::CONT);
            reach("back.woken");
            let asked = self
                .checkpointer
                .call(CheckpointAction::State, *process, Bytes::ZERO);
            let state = match asked {
                // At once: a call that it makes before could end it (reported).
                Ok(ProcessState::Checkpointed) => self.restore(*process).map(Some)?,
                Ok(state) => Some(state),
                Err(_) if !process.is_alive() => Some(ProcessState::Running),
                Err(refusal) => {
                    tracing::warn!(job = %self.op.job, "{refusal}");
                    None
                }
            };
            states.push(state);
        }
        for _ in 0..=2 * parts.len() {
            match next_restore_step(&states) {
                CheckpointStep::Done => {
                    reach("back.done");
                    return Ok(());
                }
                CheckpointStep::Restore(at) => states[at] = Some(self.restore(parts[at])?),
                CheckpointStep::Unlock(at) => {
                    let unlocked =
                        self.checkpointer
                            .call(CheckpointAction::Unlock, parts[at], Bytes::ZERO);
                    states[at] = Some(match unlocked {
                        Ok(state) => state,
                        Err(_) if !parts[at].is_alive() => ProcessState::Running,
                        Err(refusal) => return Err(failed(refusal)),
                    });
                    reach("back.unlocked");
                }
                CheckpointStep::Stuck(at) if states[at].is_none() => {
                    let asked =
                        self.checkpointer
                            .call(CheckpointAction::State, parts[at], Bytes::ZERO);
                    states[at] = Some(asked.map_err(failed)?);
                }
                CheckpointStep::Stuck(at) | CheckpointStep::Lock(at) | CheckpointStep::Save(at) => {
                    let pid = parts[at].pid;
                    return Err(failed(format!(
                        "the driver reports that the checkpoint of pid {pid} has failed"
                    )));
                }
            }
        }
        Err(failed(
            "the driver reports success, but the checkpoint state of the job's processes does not change",
        ))
    }

    fn restore(&self, process: Process) -> OpResult<ProcessState> {
        match self
            .checkpointer
            .call(CheckpointAction::Restore, process, self.memory_of(process))
        {
            Ok(state) => {
                reach("back.restored");
                Ok(state)
            }
            Err(_) if !process.is_alive() => Ok(ProcessState::Running),
            Err(refusal) => {
                if self.op.parked.is_none() {
                    let _ = process.signal(Signal::STOP);
                }
                Err(failed(refusal))
            }
        }
    }

    /// A restore that fails for want of memory may never succeed again, so it is not tried before the driver says that
    /// there is room.
    fn check_gpu_memory(&self, parts: &[Process]) -> OpResult {
        let (snapshot, occupied) = (self.read_ledger()?, self.occupied()?);
        for (at, gpu) in self.op.gpus.iter().enumerate() {
            let Some(there) = occupied.iter().find(|one| one.uuid == *gpu) else {
                return Err(failed(format!("GPU {gpu} does not respond")));
            };
            let listed: Vec<u32> = there.processes.iter().map(|one| one.pid).collect();
            let need = offloaded_bytes(at, &snapshot, parts, &listed);
            if need > there.free {
                let index = there.index;
                let [need, free] = need.human_beside(there.free);
                let why = format!("{need} needed on GPU {index}, but only {free} is free");
                return Err(failed(why));
            }
        }
        Ok(())
    }

    fn check_withdrawn(&self) -> OpResult {
        match self.op.is_withdrawn.load(Ordering::SeqCst) {
            true => Err(OpError::Withdrawn),
            false => Ok(()),
        }
    }

    fn read_ledger(&self) -> OpResult<Snapshot> {
        let read = self.op.slice.read();
        read.map_err(|error| {
            failed(format!(
                "cannot read the job's slice: {}",
                error_chain(&error)
            ))
        })
    }

    fn occupied(&self) -> OpResult<Vec<GpuOccupancy>> {
        let asked = self.observer.occupancy();
        asked.map_err(|error| failed(error_chain(&error)))
    }

    /// All processes of the job but its supervisor. None where that is gone: what is left of such a job is ended by
    /// others, and what is in its control group may be its next run.
    fn tree(&self) -> Vec<Process> {
        match self.op.supervisor.is_alive() {
            true => process::descendants(self.op.supervisor.pid),
            false => Vec::new(),
        }
    }

    fn alive(&self, processes: &[Process]) -> Vec<Process> {
        let alive = processes.iter().filter(|process| process.is_alive());
        alive.copied().collect()
    }

    /// Those of the job that have something on a GPU: by the slice's ledger, which they write, or by the driver's list.
    fn using(&self, snapshot: &Snapshot) -> Result<Vec<Process>, String> {
        let tree = self.tree();
        let here = ProcessIdentity::current().pid_namespace;
        let mut using = Vec::new();
        for slot in snapshot.processes() {
            let ProcessIdentity {
                pid,
                start_time,
                pid_namespace,
            } = slot.owner;
            if slot.state != SlotState::Live || !is_charged(&slot) {
                continue;
            }
            if pid_namespace != here {
                return Err("a process of the job is in another PID namespace".to_owned());
            }
            let process = Process { pid, start_time };
            match tree.contains(&process) {
                true => using.push(process),
                false if !process.is_alive() => {}
                false => {
                    return Err(format!(
                        "pid {pid} uses the job's slice, but the job did not start it"
                    ));
                }
            }
        }
        let occupied = self
            .observer
            .occupancy()
            .map_err(|error| error_chain(&error))?;
        for process in self.listed(&occupied) {
            if !using.contains(&process) {
                using.push(process);
            }
        }
        Ok(using)
    }

    /// Those of the job that the driver lists. What programs of it have started as jobs of their own is not its.
    fn listed(&self, occupied: &[GpuOccupancy]) -> Vec<Process> {
        let mut tree = self.tree();
        let is_listed = |process: &Process| {
            let mut all = occupied.iter().flat_map(|gpu| &gpu.processes);
            all.any(|listed| listed.pid == process.pid)
        };
        tree.retain(|process| {
            is_listed(process) && self.observer.job_of(*process) == Some(self.op.job)
        });
        tree
    }

    /// What a process is charged for, on all GPUs.
    fn memory_of(&self, process: Process) -> Bytes {
        let snapshot = self.op.slice.read();
        let slots = snapshot.iter().flat_map(Snapshot::processes);
        let its = slots.filter(|slot| slot.owner.pid == process.pid);
        its.flat_map(|slot| slot.gpus)
            .map(|gpu| Bytes::new(gpu.charged.saturating_add(gpu.overhead)))
            .sum()
    }

    /// Stops every process, those included that it starts meanwhile.
    fn stop_all(&self) -> OpResult {
        let mut before = Vec::new();
        for _ in 0..MAX_PASSES {
            self.check_withdrawn()?;
            let tree = self.tree();
            for process in &tree {
                // Gone by itself is just as well.
                let _ = process.signal(Signal::STOP);
            }
            if tree == before {
                break;
            }
            before = tree;
        }
        Ok(())
    }

    fn signal_all(&self, signal: Signal, but: &[Process]) {
        for process in self.tree() {
            if !but.contains(&process) {
                // Gone by itself is just as well.
                let _ = process.signal(signal);
            }
        }
    }
}

/// The bytes of this ledger's position that are off the GPU, on which the driver lists these pids. A listed process
/// has all of its memory there, even if the driver gives no figure. Bytes without a charged process have left with all
/// of them.
fn offloaded_bytes(at: usize, snapshot: &Snapshot, parts: &[Process], listed: &[u32]) -> Bytes {
    let is_away = |slot: &ProcessUsage| {
        let ProcessIdentity {
            pid, start_time, ..
        } = slot.owner;
        parts.contains(&Process { pid, start_time }) && !listed.contains(&pid)
    };
    let away: u64 = snapshot
        .processes()
        .into_iter()
        .filter(is_away)
        .map(|slot| slot.gpus[at].charged.saturating_add(slot.gpus[at].overhead))
        .sum();
    let is_nobody_there = !parts.iter().any(|part| listed.contains(&part.pid));
    let unseen = match is_nobody_there && !parts.is_empty() {
        true => snapshot.usage(at).unseen,
        false => 0,
    };
    Bytes::new(away.saturating_add(unseen))
}

fn is_charged(slot: &ProcessUsage) -> bool {
    slot.gpus
        .iter()
        .any(|gpu| gpu.charged > 0 || gpu.overhead > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_parked_job_may_not_swap_where_the_kernel_has_the_key() {
        let group = tempfile::tempdir().unwrap();
        let key = group.path().join("memory.swap.max");
        allow_swap(group.path(), false);
        assert!(!key.exists(), "a group without the controller has no file");
        std::fs::write(&key, "max").unwrap();
        for (is_allowed, expected) in [(false, "0"), (true, "max")] {
            allow_swap(group.path(), is_allowed);
            // The kernel takes each write as a whole; a plain file keeps the rest.
            let written = std::fs::read_to_string(&key).unwrap();
            assert!(written.starts_with(expected), "{written}");
        }
    }
}
