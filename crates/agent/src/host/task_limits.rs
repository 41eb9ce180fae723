//! Task limits: the bound on a job's processes and threads, by its control group or by a resource limit of its user.
//!
//! | bound | counts | where |
//! |---|---|---|
//! | `pids.max` of the job's group | the job's own tasks | cgroup v2 with the `pids` controller |
//! | `RLIMIT_NPROC` | all tasks of the user, in jobs or not | elsewhere; the kernel does not apply it to root (setrlimit(2)) |
//!
//! The `pids` hierarchy of cgroup v1 is not used: a process has to be moved into a group of it, which waits for every
//! processor (up to 12 ms on a machine with two), and no process can be born there.

use std::fs;
use std::sync::OnceLock;

use rustix::io;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, getuid, prlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// Threads and pids that the whole machine may have; the lesser counts.
const MACHINE: [&str; 2] = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"];

/// Percent of the machine's for one job: as systemd bounds a service (`DefaultTasksMax=`, systemd-system.conf(5)).
const OF_A_JOB: u64 = 15;

/// Percent of the machine's for all that a user runs: as systemd bounds a user's sessions (`UserTasksMax=`,
/// logind.conf(5)).
const OF_A_USER: u64 = 33;

/// What bounds the number of a job's processes and threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskBound {
    /// `pids.max` of the job's control group.
    Group {
        most: u64,
    },
    /// `RLIMIT_NPROC`, which counts all tasks of this user.
    User {
        uid: u32,
        most: u64,
        because: String,
    },
    Nothing {
        because: String,
    },
}

/// The limit of a user's tasks that the programs of a job start with.
#[derive(Clone, Copy, Debug)]
pub struct UserLimit(Rlimit);

impl UserLimit {
    /// Lifts the limit of the calling process until [`Self::apply`]: exec(2) fails after setuid(2) to a user at the
    /// limit that holds then, and the program that ends a job's processes is one too. A process that may not raise its
    /// limits keeps them.
    pub fn lift(self) {
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        let _ = setrlimit(Resource::Nproc, unlimited);
    }

    /// Limits the calling process and all that it starts. For a copy that is about to become a program.
    ///
    /// # Errors
    /// When the kernel refuses it, which a limit below the present one never meets.
    pub fn apply(self) -> io::Result<()> {
        setrlimit(Resource::Nproc, self.0)
    }

    /// Limits another process.
    ///
    /// # Errors
    /// When it is gone.
    pub fn apply_to(self, pid: Pid) -> io::Result<()> {
        prlimit(Some(pid), Resource::Nproc, self.0).map(drop)
    }
}

impl TaskBound {
    /// The bound of a job without a task count in its control group, as `because` says, and the limit to start its
    /// programs with. `user` is the programs' user, where that is not this process's own.
    pub fn without_pids(user: Option<u32>, because: String) -> (Self, Option<UserLimit>) {
        let uid = user.unwrap_or_else(|| getuid().as_raw());
        let Some(most) = max_tasks_per_user().filter(|_| uid != 0) else {
            return (Self::Nothing { because }, None);
        };
        let limit = lower(getrlimit(Resource::Nproc), most);
        let most = limit.current.unwrap_or(most);
        (Self::User { uid, most, because }, Some(UserLimit(limit)))
    }
}

/// The lower of what a process has already and a new bound.
fn lower(before: Rlimit, most: u64) -> Rlimit {
    let at_most = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    Rlimit {
        current: at_most(before.current),
        maximum: at_most(before.maximum),
    }
}

/// Tasks that one job may have; `None` where the kernel does not say how many there may be.
pub fn max_tasks_per_job() -> Option<u64> {
    part(OF_A_JOB, of_machine())
}

/// Tasks that one user may have, in jobs or not.
pub fn max_tasks_per_user() -> Option<u64> {
    part(OF_A_USER, of_machine())
}

/// Read once by each supervisor, which needs it for the group and for the user.
fn of_machine() -> [Option<u64>; 2] {
    static READ: OnceLock<[Option<u64>; 2]> = OnceLock::new();
    *READ.get_or_init(|| MACHINE.map(read))
}

fn read(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn part(percent: u64, of: [Option<u64>; 2]) -> Option<u64> {
    let least = of.into_iter().flatten().min()?;
    Some((least.saturating_mul(percent) / 100).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_part_of_the_lesser_of_threads_and_pids() {
        assert_eq!(part(15, [Some(192_000), Some(4_194_304)]), Some(28_800));
        assert_eq!(part(33, [Some(192_000), Some(32_768)]), Some(10_813));
        assert_eq!(part(15, [None, Some(3)]), Some(1));
        assert_eq!(part(15, [None, None]), None);
    }

    #[test]
    fn a_limit_that_is_lower_already_stays_and_one_of_root_is_not_set() {
        let limits = |current, maximum| Rlimit { current, maximum };
        let numbers = |limit: Rlimit| (limit.current, limit.maximum);
        assert_eq!(numbers(lower(limits(None, None), 9)), (Some(9), Some(9)));
        let before = limits(Some(5), Some(20));
        assert_eq!(numbers(lower(before, 9)), (Some(5), Some(9)));
        let (bound, limit) = TaskBound::without_pids(Some(0), "why".into());
        assert!(limit.is_none());
        let because = "why".to_owned();
        assert_eq!(bound, TaskBound::Nothing { because });
    }
}
