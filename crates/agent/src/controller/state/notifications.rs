//! Notifications: the queue of commands that users have requested for the ends of their jobs.

use std::collections::{BTreeMap, HashSet, VecDeque};

use divvy_core::JobId;

use crate::host::process::Process;
use crate::job_dir::LaunchSpec;

/// Notifications that may run at once: of all users, and of one. Each is a process that may hang for a minute. A
/// quarter for one user leaves room for three others.
pub const MOST_RUNNING: usize = 16;

/// A quarter of all, so that one user leaves room for others.
pub const MOST_RUNNING_OF_A_USER: usize = 4;

/// Notifications of one user that may be queued, and their bytes. An array's end brings thousands, of which a user
/// reads no more; the daemon's memory must hold them.
pub const MOST_WAITING: usize = 1000;

/// So each of them has 16 KiB of texts.
pub const MOST_BYTES: u64 = 16 << 20;

/// The notifications of ended jobs.
#[derive(Debug, Default)]
pub struct Notifications {
    /// By user.
    pub waiting: BTreeMap<u32, VecDeque<Notification>>,
    pub running: Vec<Running>,
}

#[derive(Debug)]
pub struct Notification {
    pub job: JobId,
    pub spec: LaunchSpec,
    pub bytes: u64,
}

/// A notification that has started. Its supervisor has not been reaped.
#[derive(Debug)]
pub struct Running {
    pub job: JobId,
    pub uid: u32,
    pub supervisor: u32,
    /// Its processes on GPUs that an event has reported.
    pub reported: HashSet<Process>,
}

impl Notifications {
    /// Whether a notification of this size may be queued.
    pub fn admits(&self, uid: u32, bytes: u64) -> bool {
        let waiting = self.waiting.get(&uid).map(VecDeque::as_slices);
        let (front, back) = waiting.unwrap_or_default();
        let held: u64 = front.iter().chain(back).map(|notice| notice.bytes).sum();
        front.len() + back.len() < MOST_WAITING && held.saturating_add(bytes) <= MOST_BYTES
    }

    /// The next notification to start: of the user with the fewest running ones.
    pub fn next(&mut self) -> Option<(u32, Notification)> {
        if self.running.len() >= MOST_RUNNING {
            return None;
        }
        let running = |uid: u32| self.running.iter().filter(|one| one.uid == uid).count();
        let uid = self.waiting.keys().copied().min_by_key(|uid| running(*uid));
        let uid = uid.filter(|uid| running(*uid) < MOST_RUNNING_OF_A_USER)?;
        let queue = self.waiting.get_mut(&uid)?;
        let notice = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&uid);
        }
        notice.map(|notice| (uid, notice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(job: u64, bytes: u64) -> Notification {
        Notification {
            job: JobId(job),
            spec: LaunchSpec::default(),
            bytes,
        }
    }

    fn running(uid: u32, count: usize) -> Vec<Running> {
        let one = |supervisor| Running {
            job: JobId(1),
            uid,
            supervisor,
            reported: HashSet::new(),
        };
        (0..).take(count).map(one).collect()
    }

    #[test]
    fn the_notices_of_one_user_wait_up_to_their_bounds_and_hold_up_no_other() {
        let mut notices = Notifications::default();
        assert!(notices.admits(1, MOST_BYTES) && !notices.admits(1, MOST_BYTES + 1));
        let many = (0..MOST_WAITING as u64).map(|job| one(job, 1));
        notices.waiting.insert(1, many.collect());
        assert!(!notices.admits(1, 1));
        assert!(notices.admits(2, 1));
        notices.waiting.insert(2, [one(7, 1)].into());

        notices.running = running(1, MOST_RUNNING_OF_A_USER);
        let (uid, notice) = notices.next().unwrap();
        assert_eq!((uid, notice.job), (2, JobId(7)));
        assert!(notices.next().is_none(), "user 1 has all that may run");
        notices.running = running(3, MOST_RUNNING);
        assert!(notices.next().is_none(), "all that may run do");
        notices.running = running(3, 1);
        assert_eq!(notices.next().unwrap().1.job, JobId(0), "the oldest");
    }
}
