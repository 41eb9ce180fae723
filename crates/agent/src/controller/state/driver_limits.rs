//! The driver's memory limits of control groups (cgroups): what NVML was asked for, and what is in force.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_core::{Bytes, GpuUuid, JobId};
use jiff::Timestamp;

use crate::gpu::driver_limit::LimitTask;
use crate::gpu::mig::{MigCommand, MigTask};
use crate::host::clock::Instant;

/// Groups of one job that get the driver's limit. A pod has a group for each of its containers, and 16 containers are
/// more than any pod of a claim was seen with; double would let a job that makes groups cost the driver twice as much.
pub const MOST_GROUPS: usize = 16;

/// How often the limits in force are set again: a manager of control groups that turns the controller of device memory
/// off, or a reload of the driver, drops them silently. Each takes three calls of the driver, so half would double
/// these; the limiter holds the job meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// All of them, by folder.
#[derive(Debug, Default)]
pub struct DriverLimits {
    groups: BTreeMap<PathBuf, LimitedGroup>,
    checked_at: Option<Instant>,
}

#[derive(Debug)]
struct LimitedGroup {
    job: JobId,
    /// The daemon makes it and removes it.
    is_own: bool,
    /// It is removed once no GPU limits it.
    is_over: bool,
    gpus: BTreeMap<GpuUuid, GroupLimit>,
}

#[derive(Clone, Copy, Debug, Default)]
struct GroupLimit {
    /// What the driver was asked for last; `None` for no limit.
    wanted: Option<Bytes>,
    in_force: Option<(Bytes, Timestamp)>,
    /// It refused.
    has_failed: bool,
}

impl DriverLimits {
    /// Takes over a limit of the daemon before: a job's program starts once it is in force.
    pub fn adopt(
        &mut self,
        job: JobId,
        group: &Path,
        gpu: &GpuUuid,
        memory: Bytes,
        since: Timestamp,
    ) {
        let _ = self.want(job, group, true, gpu, Some(memory));
        let limit = self
            .groups
            .get_mut(group)
            .and_then(|group| group.gpus.get_mut(gpu));
        if let Some(limit) = limit {
            limit.in_force = Some((memory, since));
        }
    }

    /// The command that gives a group this limit, unless the driver was asked for it already.
    pub fn want(
        &mut self,
        job: JobId,
        group: &Path,
        is_own: bool,
        gpu: &GpuUuid,
        memory: Option<Bytes>,
    ) -> Option<MigCommand> {
        let entry = self
            .groups
            .entry(group.to_owned())
            .or_insert_with(|| LimitedGroup {
                job,
                is_own,
                is_over: false,
                gpus: BTreeMap::new(),
            });
        entry.job = job;
        entry.is_over &= memory.is_none();
        let is_new = !entry.gpus.contains_key(gpu);
        let limit = entry.gpus.entry(gpu.clone()).or_default();
        if !is_new && limit.wanted == memory {
            return None;
        }
        limit.wanted = memory;
        limit.has_failed = false;
        Some(command(job, group, is_own, gpu, memory))
    }

    /// The commands that give the known groups of a job this limit.
    pub fn resize(&mut self, job: JobId, gpu: &GpuUuid, memory: Bytes) -> Vec<MigCommand> {
        let groups = self.groups_of(job);
        let limited = groups.filter(|(_, group)| {
            let limit = group.gpus.get(gpu);
            limit.is_some_and(|limit| limit.wanted.is_some() && !limit.has_failed)
        });
        let paths: Vec<(PathBuf, bool)> = limited
            .map(|(path, group)| (path.clone(), group.is_own))
            .collect();
        let want =
            |(path, is_own): &(PathBuf, bool)| self.want(job, path, *is_own, gpu, Some(memory));
        paths.iter().filter_map(want).collect()
    }

    /// The commands that set all limits in force again, when that is due.
    pub fn due_checks(&mut self) -> Vec<MigCommand> {
        let is_due = (self.checked_at).is_none_or(|at| at.elapsed() >= CHECK_INTERVAL);
        if !is_due {
            return Vec::new();
        }
        self.checked_at = Some(Instant::now());
        let mut commands = Vec::new();
        for (path, group) in &self.groups {
            for (gpu, limit) in &group.gpus {
                let settled = limit.in_force.map(|(memory, _)| memory);
                if settled.is_some() && settled == limit.wanted {
                    commands.push(command(group.job, path, group.is_own, gpu, settled));
                }
            }
        }
        commands
    }

    /// The commands that take the limits of a job off.
    pub fn clear(&mut self, job: JobId) -> Vec<MigCommand> {
        let mut commands = Vec::new();
        for (path, group) in self.groups.iter_mut().filter(|(_, group)| group.job == job) {
            for (gpu, limit) in &mut group.gpus {
                if limit.wanted.take().is_some() {
                    commands.push(command(job, path, group.is_own, gpu, None));
                }
            }
        }
        commands
    }

    /// The run of a group is over: whether it has to stay until the driver has taken its limits off.
    pub fn retire(&mut self, group: &Path) -> bool {
        let entry = self.groups.get_mut(group);
        entry.is_some_and(|entry| {
            entry.is_over = true;
            !entry.gpus.is_empty()
        })
    }

    /// Takes over what the driver did; `now` is in force since then. Answers with a group to remove.
    pub fn settle(
        &mut self,
        gpu: &GpuUuid,
        task: &LimitTask,
        is_done: bool,
        now: Timestamp,
    ) -> Option<PathBuf> {
        let entry = self.groups.get_mut(&task.group)?;
        let limit = entry.gpus.get_mut(gpu)?;
        match (task.memory, is_done) {
            (Some(memory), true) => {
                let since = limit.in_force.map_or(now, |(_, since)| since);
                limit.in_force = Some((memory, since));
            }
            // What is in force stays, and is asked for less again.
            (Some(_), false) if limit.in_force.is_some() => {
                limit.wanted = limit.in_force.map(|(memory, _)| memory);
            }
            (Some(memory), false) => limit.has_failed |= limit.wanted == Some(memory),
            // What cannot be taken off goes with the group.
            (None, _) => {
                limit.in_force = None;
                if limit.wanted.is_none() {
                    entry.gpus.remove(gpu);
                }
            }
        }
        if !entry.gpus.is_empty() {
            return None;
        }
        let entry = self.groups.remove(&task.group)?;
        (entry.is_own && entry.is_over).then(|| task.group.clone())
    }

    /// Whether the driver was asked for this limit last.
    pub fn is_wanted(&self, gpu: &GpuUuid, task: &LimitTask) -> bool {
        let limit = self
            .groups
            .get(&task.group)
            .and_then(|group| group.gpus.get(gpu));
        limit.is_some_and(|limit| limit.wanted == task.memory)
    }

    /// What the driver holds of a GPU for a job, and since when: the least of its groups.
    pub fn in_force(&self, job: JobId, gpu: &GpuUuid) -> Option<(Bytes, Timestamp)> {
        let limits = self
            .groups_of(job)
            .filter_map(|(_, group)| group.gpus.get(gpu)?.in_force);
        limits.min_by_key(|(memory, _)| *memory)
    }

    /// The groups in which the driver limits a job.
    pub fn walls(&self, job: JobId) -> Vec<PathBuf> {
        let is_limited = |group: &LimitedGroup| {
            let mut limits = group.gpus.values();
            limits.any(|limit| limit.in_force.is_some())
        };
        let groups = self.groups_of(job).filter(|(_, group)| is_limited(group));
        groups.map(|(path, _)| path.clone()).collect()
    }

    /// How many groups of a job are known.
    pub fn count(&self, job: JobId) -> usize {
        self.groups_of(job).count()
    }

    fn groups_of(&self, job: JobId) -> impl Iterator<Item = (&PathBuf, &LimitedGroup)> {
        self.groups
            .iter()
            .filter(move |(_, group)| group.job == job)
    }
}

fn command(
    job: JobId,
    group: &Path,
    makes_group: bool,
    gpu: &GpuUuid,
    memory: Option<Bytes>,
) -> MigCommand {
    MigCommand {
        gpu: gpu.clone(),
        task: MigTask::Limit(LimitTask {
            job,
            group: group.to_owned(),
            memory,
            makes_group,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(7);

    fn gpu(index: u8) -> GpuUuid {
        GpuUuid::from_bytes([index; 16])
    }

    fn task(command: &MigCommand) -> LimitTask {
        let MigTask::Limit(task) = &command.task else {
            panic!("{command:?}");
        };
        task.clone()
    }

    /// Has the driver done this.
    fn done(limits: &mut DriverLimits, command: &MigCommand) -> Option<PathBuf> {
        limits.settle(&command.gpu, &task(command), true, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_group_is_removed_once_each_gpu_has_taken_its_limit_off() {
        let mut limits = DriverLimits::default();
        let group = Path::new("/g/7");
        let set = [1, 2].map(|index| {
            limits
                .want(JOB, group, true, &gpu(index), Some(Bytes::gib(4)))
                .unwrap()
        });
        assert_eq!(limits.walls(JOB), [] as [PathBuf; 0]);
        for command in &set {
            assert_eq!(done(&mut limits, command), None);
        }
        assert_eq!(limits.walls(JOB), [group]);
        let again = limits.want(JOB, group, true, &gpu(1), Some(Bytes::gib(4)));
        assert!(again.is_none());
        let off = limits.clear(JOB);
        assert_eq!(off.len(), 2);
        assert!(limits.retire(group), "the limits are still in force");
        assert_eq!(done(&mut limits, &off[0]), None);
        assert_eq!(done(&mut limits, &off[1]).as_deref(), Some(group));
        assert!(!limits.retire(group), "no group is known");
    }

    #[test]
    fn a_limit_taken_off_late_leaves_the_next_run_its_limit() {
        let mut limits = DriverLimits::default();
        let group = Path::new("/g/7");
        let want = |limits: &mut DriverLimits| {
            let set = limits.want(JOB, group, true, &gpu(1), Some(Bytes::gib(4)));
            set.unwrap()
        };
        let first = want(&mut limits);
        done(&mut limits, &first);
        let off = limits.clear(JOB);
        assert!(limits.retire(group));
        let second = want(&mut limits);
        assert_eq!(done(&mut limits, &off[0]), None, "the next run has begun");
        assert_eq!(limits.in_force(JOB, &gpu(1)), None);
        done(&mut limits, &second);
        let (memory, _) = limits.in_force(JOB, &gpu(1)).unwrap();
        assert_eq!(memory, Bytes::gib(4));
    }

    #[test]
    fn a_refused_limit_is_not_asked_for_again_until_another_is_wanted() {
        let mut limits = DriverLimits::default();
        let group = Path::new("/pod/c");
        let set = limits.want(JOB, group, false, &gpu(1), Some(Bytes::gib(4)));
        let set = set.unwrap();
        limits.settle(&set.gpu, &task(&set), false, Timestamp::UNIX_EPOCH);
        assert_eq!(limits.walls(JOB), [] as [PathBuf; 0]);
        assert!(
            limits
                .want(JOB, group, false, &gpu(1), Some(Bytes::gib(4)))
                .is_none()
        );
        assert_eq!(limits.resize(JOB, &gpu(1), Bytes::gib(2)).len(), 0);
        let off = limits.clear(JOB);
        assert_eq!(done(&mut limits, &off[0]), None, "it is not ours to remove");
        assert_eq!(limits.count(JOB), 0);
    }
}
