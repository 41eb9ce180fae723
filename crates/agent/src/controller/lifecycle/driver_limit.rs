//! The driver's memory limit of a job's control group (cgroup, through NVML): set after the job's slice is ready and
//! before its program starts, and taken off with its slice.
//!
//! ```text
//! journal ──► slice ──► GPU's thread: group, set, read ──► report ──► supervisor
//!                              │ refused
//!                              ├──► the GPU has the limiter alone, and the job starts with it
//!                              └──► where the driver's limit is demanded, the job returns to its queue
//! ```
//! A daemon may die at each arrow. The next one finds the job without a supervisor and places it anew, or finds it
//! running in its group and asks for the same limit again. Groups without a job lose their limit and go.
//! The group of a container or of a pod is not the daemon's: it is found with the container's first process.

use std::cell::LazyCell;
use std::path::{Component, Path, PathBuf};

use divvy_core::{Bytes, Enforcement, EnforcementPolicy, GpuUuid, Isolation, JobId};
use divvy_driver::nvml::memory_limits::MemoryLimits;

use crate::controller::active_set;
use crate::controller::actuators::Actuators;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{resize, start, start_failure};
use crate::controller::runtime::Shortage;
use crate::controller::state::driver_limits::MOST_GROUPS;
use crate::controller::state::{GpuState, Jobs, State};
use crate::gpu::driver_limit::{LimitTask, NoDriverLimit};
use crate::host::cgroup::{self, Cgroup};
use crate::host::clock::{Instant, now};
use crate::journal::StoreError;
use crate::model::job::Job;

impl Job {
    /// Its processes are born in a group that the daemon makes.
    fn has_own_group(&self) -> bool {
        self.spec.container.is_none() && self.claim().is_none()
    }

    /// Its program may start only in a group that the driver limits.
    pub(in crate::controller) fn needs_limited_group(&self) -> bool {
        self.has_own_group() && self.driver_limits().next().is_some()
    }

    /// What is to hold each of its limits: the driver's own limit needs a control group of the job's, or of its
    /// container's.
    pub(in crate::controller) fn enforce(&mut self, gpus: &GpuState) {
        let is_slice = self.claim().is_some_and(|claim| claim.is_slice());
        let has_group = !is_slice || self.end_group().is_some();
        for allocation in &mut self.allocations {
            let grant = &allocation.grant;
            let mut devices = gpus.devices.iter();
            let device = devices.find(|device| device.gpu.uuid == grant.gpu);
            allocation.enforcement = match device {
                Some(device) if has_group && grant.mig.is_none() => device.gpu.enforcement,
                _ => Enforcement::without_driver(grant),
            };
        }
    }

    /// The group of another scheduler with which its claim ends.
    fn end_group(&self) -> Option<&Path> {
        self.claim()?.ends.as_ref()?.cgroup()
    }

    /// The GPUs on which the driver is to limit it, each with the limit.
    pub(in crate::controller) fn driver_limits(&self) -> impl Iterator<Item = (GpuUuid, Bytes)> {
        let allocations = self.allocations.iter();
        // Offloaded memory returns within the grant, so the limit stays.
        allocations
            .filter(|allocation| allocation.enforcement == Enforcement::Driver)
            .map(|allocation| {
                let target = allocation.goal.map(|goal| goal.memory);
                let memory = target.unwrap_or(allocation.grant.memory);
                (allocation.grant.gpu.clone(), memory)
            })
    }
}

/// What the driver is to limit of a job in a group of its own: without the limiter, a program finds all GPUs of the
/// machine, so it gets nothing of the others.
fn walls(job: &Job, gpus: &GpuState) -> Vec<(GpuUuid, Bytes)> {
    let mut walls: Vec<(GpuUuid, Bytes)> = job.driver_limits().collect();
    if walls.is_empty() {
        return walls;
    }
    let limiting = gpus.devices.iter().filter(|one| one.driver_limit.is_ok());
    for device in limiting {
        let gpu = &device.gpu.uuid;
        if !job.allocations.iter().any(|one| one.grant.gpu == *gpu) {
            walls.push((gpu.clone(), Bytes::ZERO));
        }
    }
    walls
}

/// Asks for the limits of a job whose slice is ready. True if its start has to wait for them.
pub(in crate::controller) fn begin(
    State { jobs, gpus, .. }: &mut State,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) -> bool {
    let Some(active) = jobs.active.get_mut(&id) else {
        return false;
    };
    let Ok(stem) = &io.config.confinement.cgroup_parent else {
        return false;
    };
    if !active.job.has_own_group() {
        return false;
    }
    let group = Cgroup::of(stem, id);
    let limits = walls(&active.job, gpus);
    let Some(placed) = active.placed_mut() else {
        return false;
    };
    if placed.start.failure.is_some() || placed.start.shortage.is_some() {
        return false;
    }
    for (gpu, memory) in limits {
        let command = jobs.limits.want(id, &group, true, &gpu, Some(memory));
        // Otherwise an attempt that failed elsewhere has it in force, or asked for it.
        if command.is_some() || jobs.limits.in_force(id, &gpu).is_none() {
            placed.start.pending_limits.insert(gpu);
        }
        if let Some(command) = command {
            actuators.workers.dispatch(command);
        }
    }
    !placed.start.pending_limits.is_empty()
}

/// Goes on with jobs whose limits the driver has set.
pub(in crate::controller) fn go_on(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) {
    for id in std::mem::take(&mut fx.jobs.walled) {
        let walls = state.jobs.limits.walls(id);
        actuators.observer.set_walls(id, walls);
        // The slice's limit waits for the driver's where that is raised.
        resize::apply_limits(&mut state.jobs, io, actuators, id);
    }
    for id in std::mem::take(&mut fx.jobs.limited) {
        if state.jobs.runs_on_client(id) {
            continue;
        }
        start::spawn(&mut state.jobs, &mut state.children, fx, io, actuators, id);
    }
}

/// Takes over what a GPU's thread did.
///
/// # Errors
/// When the journal fails.
pub(in crate::controller) fn limited(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    gpu: &GpuUuid,
    task: &LimitTask,
    result: Result<MemoryLimits, NoDriverLimit>,
) -> Result<(), StoreError> {
    let limits = &mut state.jobs.limits;
    let is_wanted = limits.is_wanted(gpu, task);
    let held = limits.in_force(task.job, gpu);
    let gone = limits.settle(gpu, task, result.is_ok(), now());
    fx.machine.groups.extend(gone);
    let Some(memory) = task.memory else {
        if let Err(why) = result {
            tracing::warn!(job = %task.job, group = %task.group.display(), %why, "cannot take the driver's limit off; it goes with the group");
        }
        return Ok(());
    };
    let before = match result {
        // Kernels before 7.3 keep the old limit while more is in use. The next observation asks again.
        Err(NoDriverLimit::ReadBack { .. }) if held.is_some() => return Ok(()),
        Err(why) if is_wanted => return refused(state, fx, io, gpu, task, &why),
        Err(_) => return Ok(()),
        Ok(before) => before,
    };
    if !is_wanted {
        return Ok(());
    }
    let expected = held.map(|(held, _)| held.get());
    if before.hard != expected && (held.is_some() || !task.makes_group) {
        let found = before
            .hard
            .map_or("no limit".to_owned(), |hard| Bytes::new(hard).human());
        let text = format!(
            "another program had set {found} on {}; the driver's limit is {} again",
            task.group.display(),
            memory.human()
        );
        fx.record_event(io, Some(task.job), "limit_replaced", &text)?;
    }
    fx.jobs.walled.push(task.job);
    let active = state.jobs.active.get_mut(&task.job);
    if let Some(placed) = active.and_then(|active| active.placed_mut())
        && placed.start.pending_limits.remove(gpu)
        && placed.start.pending_limits.is_empty()
    {
        fx.jobs.limited.push(task.job);
        fx.replies.milestones.push(task.job);
    }
    Ok(())
}

/// The driver refused a limit. From now on the GPU's jobs have the limiter alone, and this one too, unless it or the
/// configuration demands the driver's limit.
fn refused(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    gpu: &GpuUuid,
    task: &LimitTask,
    why: &NoDriverLimit,
) -> Result<(), StoreError> {
    let text = format!("the driver does not limit {}: {why}", task.group.display());
    tracing::warn!(job = %task.job, "{text}");
    fx.record_event(io, Some(task.job), "limit_refused", &text)?;
    let is_auto = io.config.confinement.enforcement == EnforcementPolicy::Auto;
    if let Some(device) = state.gpus.device_mut(gpu)
        && task.makes_group
        && is_auto
    {
        device.set_driver_limit(Err(why.clone()));
        fx.replan = true;
    }
    let is_clients = state.jobs.runs_on_client(task.job);
    let Some(active) = state.jobs.active.get_mut(&task.job) else {
        return Ok(());
    };
    let Some(placed) = active.placed_mut() else {
        return Ok(());
    };
    if !placed.start.pending_limits.remove(gpu) {
        return Ok(());
    }
    let is_demanded = !is_auto || active.job.spec.request.isolation == Isolation::Driver;
    if !is_demanded {
        let allocations = active.job.allocations.iter_mut();
        for allocation in allocations.filter(|one| one.grant.gpu == *gpu) {
            allocation.enforcement = Enforcement::Limiter;
        }
        io.store.save_allocations(&active.job)?;
        if active.has_all_instances() {
            fx.jobs.limited.push(task.job);
            fx.replies.milestones.push(task.job);
        }
        return Ok(());
    }
    if let Some(placed) = active.placed_mut() {
        placed.start.pending_limits.clear();
        let since = Instant::now();
        let why = text.clone();
        placed.start.shortage = (!is_clients).then_some(Shortage { why, since });
    }
    if is_clients {
        start_failure::fail_start(&mut state.jobs, fx, io, task.job, &text);
    }
    Ok(())
}

/// After an observation: asks for the limits of containers' and pods' groups as their processes are found, again for
/// what the driver has not taken, and at times for all, which another program or a reload of the driver may have
/// dropped.
pub(in crate::controller) fn follow(jobs: &mut Jobs, fx: &mut Effects, io: &Io) {
    fx.mig_commands.extend(jobs.limits.due_checks());
    let mut limited = Vec::new();
    let own = LazyCell::new(cgroup::own);
    active_set::for_each_active(jobs, io, |id, active| {
        let limits: Vec<_> = active.job.driver_limits().collect();
        if limits.is_empty() {
            return;
        }
        let found = match active.job.end_group() {
            _ if active.job.has_own_group() => Vec::new(),
            Some(group) => vec![group.to_owned()],
            None => {
                let members = active.members().iter();
                let groups =
                    members.filter_map(|process| container_group(process.pid, own.as_deref()));
                groups.collect()
            }
        };
        limited.push((id, limits, found));
    });
    for (id, limits, found) in limited {
        for (gpu, memory) in &limits {
            fx.mig_commands.extend(jobs.limits.resize(id, gpu, *memory));
        }
        for group in found {
            if jobs.limits.count(id) >= MOST_GROUPS {
                break;
            }
            for (gpu, memory) in &limits {
                let command = jobs.limits.want(id, &group, false, gpu, Some(*memory));
                fx.mig_commands.extend(command);
            }
        }
    }
}

/// The group of a container's process; `None` for the daemon's `own`, the root, and one outside this namespace.
fn container_group(pid: u32, own: Option<&Path>) -> Option<PathBuf> {
    let group = cgroup::cgroup_of(pid)?;
    let is_outside = group.components().any(|part| part == Component::ParentDir);
    let is_ours = own.is_none_or(|own| own.starts_with(&group));
    (!is_outside && !is_ours).then_some(group)
}

/// Takes the limits of an ended job off, after what the same round has asked for.
pub(in crate::controller) fn take_off(jobs: &mut Jobs, fx: &mut Effects, id: JobId) {
    fx.mig_commands.extend(jobs.limits.clear(id));
}

/// At the daemon's start: takes over the limits of jobs that may run, which the first observation sets again, and
/// removes groups without a job.
pub(in crate::controller) fn resume(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) {
    let State { jobs, gpus, .. } = state;
    let Ok(prefix) = &io.config.confinement.cgroup_parent else {
        return;
    };
    let mut kept: Vec<PathBuf> = Vec::new();
    let placed: Vec<JobId> = (jobs.active.iter())
        .filter(|(_, active)| active.placed().is_some())
        .map(|(id, _)| *id)
        .collect();
    for id in placed {
        let Some(active) = jobs.active.get(&id) else {
            continue;
        };
        let dir = jobs.dir(&io.config.home, id);
        let own = || Cgroup::at(Cgroup::of(prefix, id));
        // A supervisor that has not written its group yet is in the one that the journal's job gets.
        let path = dir.group().unwrap_or_else(own).path().to_owned();
        if active.job.has_own_group() && dir.path().is_dir() {
            let since = active.job.started_at.unwrap_or_else(now);
            for (gpu, memory) in walls(&active.job, gpus) {
                jobs.limits.adopt(id, &path, &gpu, memory, since);
            }
            actuators.observer.set_walls(id, jobs.limits.walls(id));
        }
        kept.push(path);
    }
    for (job, group) in cgroup::job_groups(prefix) {
        let is_known = kept.iter().any(|path| path == group.path());
        if is_known || jobs.unjournaled.contains_key(&job) || !group.members().is_empty() {
            continue;
        }
        let limiting = gpus
            .devices
            .iter()
            .filter(|device| device.driver_limit.is_ok());
        for device in limiting {
            let command = jobs
                .limits
                .want(job, group.path(), true, &device.gpu.uuid, None);
            fx.mig_commands.extend(command);
        }
        if !jobs.limits.retire(group.path()) {
            group.remove_if_empty();
        }
    }
    cgroup::remove_notices(prefix);
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_testkit::{Bounded as _, cgroup2_root};

    #[test]
    fn the_group_of_a_containers_process_is_limited_and_the_daemons_own_is_not() {
        let own = cgroup::own();
        assert_eq!(container_group(std::process::id(), own.as_deref()), None);
        let (Some(root), true) = (cgroup2_root(), rustix::process::geteuid().is_root()) else {
            eprintln!("SKIPPED: it takes root and control groups of version 2");
            return;
        };
        let group = root.join(format!("divvy-container-{}", std::process::id()));
        std::fs::create_dir_all(&group).unwrap();
        let mut sleep = std::process::Command::new("sleep");
        let mut container = sleep.arg("60").spawn().unwrap();
        std::fs::write(group.join("cgroup.procs"), container.id().to_string()).unwrap();
        let found = container_group(container.id(), own.as_deref());
        container.kill().unwrap();
        container.wait_bounded().unwrap();
        divvy_testkit::until("the group is empty", || std::fs::remove_dir(&group).is_ok());
        assert_eq!(found, Some(group));
    }
}
