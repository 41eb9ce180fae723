//! The queue order key: where a waiting job stands in its queue, as plain data.
//!
//! ```text
//! priority ─► put first by an operator ─► requeued ─► age            places of all jobs
//!                                                      └─► a user's jobs exchange their own places, and no others
//! ```
//! Putting an own job first moves no other user's job. The user's jobs of equal priority keep the same set of places in
//! the queue, in another order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::snapshot::PendingJob;

/// The keys of a job's place in its queue, besides priority and age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderKey {
    /// UID of the user that owns the job.
    pub user: u32,
    /// It was requeued, so it comes before its equals.
    pub requeued: bool,
    pub top: Top,
}

/// Whether a job was put first. The numbers order such jobs: the larger one was put first later, and stands before the
/// other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Top {
    #[default]
    No,
    /// Among its user's own jobs of equal priority.
    OfUser(u64),
    /// Among all jobs of equal priority.
    OfQueue(u64),
}

impl Top {
    /// Whether the job stands where its priority and its age put it.
    pub fn is_no(&self) -> bool {
        *self == Self::No
    }

    /// The number among all jobs; 0 for a job that was not put first there.
    fn of_queue(self) -> u64 {
        match self {
            Self::OfQueue(number) => number,
            Self::No | Self::OfUser(_) => 0,
        }
    }

    /// The number among the user's own jobs; 0 for a job that was not put first there.
    fn of_user(self) -> u64 {
        match self {
            Self::OfUser(number) => number,
            Self::No | Self::OfQueue(_) => 0,
        }
    }
}

/// The place of a job, before users' jobs exchange theirs.
fn key(waiting: &PendingJob) -> impl Ord + use<> {
    let OrderKey { requeued, top, .. } = waiting.turn;
    let priority = Reverse(waiting.owner.priority);
    (priority, Reverse(top.of_queue()), !requeued, waiting.job)
}

/// The key of a user's jobs that may exchange their places.
type Alike = (u32, i32, u64);

fn alike(waiting: &PendingJob) -> Alike {
    let OrderKey { user, top, .. } = waiting.turn;
    (user, waiting.owner.priority, top.of_queue())
}

/// Sorts the pending jobs of one queue into scheduling order.
pub fn sort_queue(waiting: &mut [PendingJob]) {
    waiting.sort_by_cached_key(key);
    let topped = waiting.iter().filter(|one| one.turn.top.of_user() > 0);
    let mut places: BTreeMap<Alike, Vec<usize>> =
        topped.map(|one| (alike(one), Vec::new())).collect();
    if places.is_empty() {
        return;
    }
    for (place, one) in waiting.iter().enumerate() {
        if let Some(own) = places.get_mut(&alike(one)) {
            own.push(place);
        }
    }
    for own in places.into_values() {
        let mut jobs: Vec<PendingJob> = own.iter().map(|place| waiting[*place].clone()).collect();
        jobs.sort_by_key(|one| Reverse(one.turn.top.of_user()));
        for (place, job) in own.into_iter().zip(jobs) {
            waiting[place] = job;
        }
    }
}

/// The number for the next job that is put first: larger than each of these.
pub fn next_number<'a>(tops: impl IntoIterator<Item = &'a Top>) -> u64 {
    let numbers = tops.into_iter().map(|top| match top {
        Top::No => 0,
        Top::OfUser(number) | Top::OfQueue(number) => *number,
    });
    numbers.max().unwrap_or(0).saturating_add(1)
}

/// Whether a job is before all jobs of its queue that were put first in the same way.
pub fn is_topmost<'a>(top: Top, others: impl IntoIterator<Item = &'a Top>) -> bool {
    let mut others = others.into_iter();
    match top {
        Top::No => false,
        Top::OfUser(number) => others.all(|other| other.of_user() < number),
        Top::OfQueue(number) => others.all(|other| other.of_queue() < number),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::model::project::SchedulingClass;
    use crate::model::request::Amount;
    use crate::units::JobId;

    fn job(id: u64, user: u32, priority: i32, requeued: bool, top: Top) -> PendingJob {
        PendingJob {
            owner: SchedulingClass {
                priority,
                ..SchedulingClass::default()
            },
            turn: OrderKey {
                user,
                requeued,
                top,
            },
            ..PendingJob::new(JobId(id), Amount::ONE_GPU.into())
        }
    }

    fn ordered(mut jobs: Vec<PendingJob>) -> Vec<u64> {
        sort_queue(&mut jobs);
        jobs.iter().map(|one| one.job.0).collect()
    }

    #[test]
    fn jobs_stand_by_priority_then_an_operators_top_then_requeue_then_age() {
        let jobs = vec![
            job(1, 1, 0, false, Top::No),
            job(2, 1, 0, true, Top::No),
            job(3, 2, 0, false, Top::OfQueue(1)),
            job(4, 2, 0, false, Top::OfQueue(2)),
            job(5, 3, 1, false, Top::No),
            job(6, 3, -1, true, Top::OfQueue(9)),
        ];
        assert_eq!(ordered(jobs), [5, 4, 3, 2, 1, 6]);
    }

    #[test]
    fn a_users_top_exchanges_places_of_that_users_jobs_alone() {
        let jobs = |top| {
            vec![
                job(1, 7, 0, false, Top::No),
                job(2, 8, 0, false, Top::No),
                job(3, 7, 0, false, Top::No),
                job(4, 8, 0, false, Top::No),
                job(5, 7, 0, false, top),
                job(6, 7, 1, false, Top::No),
            ]
        };
        assert_eq!(ordered(jobs(Top::No)), [6, 1, 2, 3, 4, 5]);
        assert_eq!(ordered(jobs(Top::OfUser(1))), [6, 5, 2, 1, 4, 3]);
    }

    #[test]
    fn the_job_that_was_put_first_last_stands_first() {
        let tops = [Top::OfUser(3), Top::No, Top::OfQueue(5)];
        assert_eq!(next_number(&tops), 6);
        assert_eq!(next_number(&[]), 1);
        assert!(is_topmost(Top::OfUser(4), &tops) && !is_topmost(Top::OfUser(3), &tops));
        assert!(is_topmost(Top::OfQueue(6), &tops) && !is_topmost(Top::OfQueue(5), &tops));
        assert!(!is_topmost(Top::No, &[]));
    }

    fn tops() -> impl Strategy<Value = Top> {
        prop_oneof![
            3 => Just(Top::No),
            1 => (1..4_u64).prop_map(Top::OfUser),
            1 => (1..4_u64).prop_map(Top::OfQueue),
        ]
    }

    fn queues() -> impl Strategy<Value = Vec<PendingJob>> {
        vec((0..3_u32, -1..2_i32, any::<bool>(), tops()), 0..12).prop_map(|jobs| {
            let jobs = (1..).zip(jobs);
            jobs.map(|(id, (user, priority, requeued, top))| job(id, user, priority, requeued, top))
                .collect()
        })
    }

    fn order(waiting: &[PendingJob]) -> Vec<JobId> {
        waiting.iter().map(|one| one.job).collect()
    }

    /// What stands on each place, without saying which of a user's jobs.
    fn users(jobs: &[PendingJob]) -> Vec<Alike> {
        jobs.iter().map(alike).collect()
    }

    proptest! {
        #[test]
        fn the_order_has_every_job_once_and_depends_on_no_order_before(jobs in queues(), rotate in 0..12_usize) {
            let mut one = jobs.clone();
            sort_queue(&mut one);
            let mut ids = order(&one);
            ids.sort_unstable();
            prop_assert_eq!(ids, order(&jobs));
            let mut other = jobs.clone();
            other.rotate_left(rotate.min(jobs.len()));
            sort_queue(&mut other);
            prop_assert_eq!(&one, &other);
            sort_queue(&mut other);
            prop_assert_eq!(one, other);
        }

        #[test]
        fn no_job_stands_before_one_of_a_higher_priority(jobs in queues()) {
            let mut jobs = jobs;
            sort_queue(&mut jobs);
            let before = jobs.windows(2).all(|pair| pair[0].owner.priority >= pair[1].owner.priority);
            prop_assert!(before);
        }

        #[test]
        fn a_users_tops_change_no_other_users_place(jobs in queues(), user in 0..3_u32) {
            let mut with = jobs.clone();
            sort_queue(&mut with);
            let mut without = jobs;
            for one in without.iter_mut().filter(|one| one.turn.user == user) {
                if one.turn.top.of_user() > 0 {
                    one.turn.top = Top::No;
                }
            }
            sort_queue(&mut without);
            prop_assert_eq!(users(&with), users(&without));
            let others = |jobs: &[PendingJob]| -> Vec<(usize, JobId)> {
                let all = jobs.iter().enumerate();
                all.filter(|(_, one)| one.turn.user != user).map(|(place, one)| (place, one.job)).collect()
            };
            prop_assert_eq!(others(&with), others(&without));
        }
    }
}
