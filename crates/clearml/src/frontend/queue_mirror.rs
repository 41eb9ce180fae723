//! The queue mirror: the pending jobs that the agent should have, for the first tasks of each of the server's queues,
//! in order. Pure.
//!
//! Not the heads alone: one plan may start several jobs, and with the heads alone it would give a lower queue what the higher
//! queue's second task could have had. So many are mirrored that not all of them can start at once.

use std::collections::{BTreeMap, BTreeSet};

use divvy_core::Amount;

use crate::projects::ProjectPlacement;

/// A task that waits on the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    pub task: String,
    /// Where the mapping of projects puts it.
    pub place: ProjectPlacement,
}

/// A queue as it was last seen, and what is done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Tasks on the server, the head first, less those that are being run.
    pub tasks: Vec<Queued>,
    /// Jobs that stand for them, in the order of their submission.
    pub mirrors: Vec<Mirror>,
    /// Whether tasks are pulled now.
    pub pulls: bool,
    /// How many of each project are mirrored at most.
    pub depth: usize,
    /// Places of tasks that the agent refused when they were last submitted: they hold up no other project's.
    pub barred: BTreeSet<ProjectPlacement>,
    /// A task of it is being claimed.
    pub claiming: bool,
}

/// A job that stands for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub task: String,
    pub job: String,
    pub place: ProjectPlacement,
    /// It has its slice.
    pub granted: bool,
}

/// One step, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorStep {
    /// Cancel this task's job.
    Cancel(Mirror, CancelReason),
    /// Submit a job for this task.
    Submit(Queued),
    /// Claim it: it is the first of its project, and has its slice.
    Claim(Mirror),
}

/// Why a job stands for its task no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The task is not in the queue any more.
    Left,
    /// It waits, and no tasks are pulled now.
    Closed,
    /// It waits at another place, or in another project of the node.
    Moved,
}

/// The steps that bring a queue's jobs to the wanted state. A task that its project's quota holds back waits alone: the
/// tasks of other projects pass it.
pub fn steps(view: &View) -> Vec<MirrorStep> {
    let mut wanted: BTreeMap<&ProjectPlacement, Vec<&Queued>> = BTreeMap::new();
    let mut ordered = Vec::new();
    for queued in view.tasks.iter().filter(|_| view.pulls) {
        let of_place = wanted.entry(&queued.place).or_default();
        if of_place.len() < view.depth && ordered.len() < MOST_MIRRORED {
            of_place.push(queued);
            ordered.push(queued);
        }
    }
    // The remaining jobs of a project are in the order of the queue, without holes: its jobs are served as they were
    // submitted.
    let mut right: BTreeMap<&ProjectPlacement, usize> = BTreeMap::new();
    let mut broken: BTreeSet<&ProjectPlacement> = BTreeSet::new();
    let (mut cancel, mut claim) = (Vec::new(), None);
    let waiting: BTreeSet<(&str, &ProjectPlacement)> = (view.tasks.iter())
        .map(|queued| (queued.task.as_str(), &queued.place))
        .collect();
    let cancelled = |mirror: &Mirror| {
        let waits = (view.tasks.iter()).any(|queued| queued.task == mirror.task);
        let why = match (waits, view.pulls) {
            (false, _) => CancelReason::Left,
            (true, false) => CancelReason::Closed,
            (true, true) => CancelReason::Moved,
        };
        MirrorStep::Cancel(mirror.clone(), why)
    };
    for mirror in &view.mirrors {
        let place = &mirror.place;
        if !waiting.contains(&(mirror.task.as_str(), place)) {
            cancel.push(cancelled(mirror));
            continue;
        }
        let count = right.entry(place).or_default();
        let next = wanted.get(place).and_then(|tasks| tasks.get(*count));
        if broken.contains(place) || next.is_none_or(|next| next.task != mirror.task) {
            broken.insert(place);
            cancel.push(cancelled(mirror));
            continue;
        }
        if *count == 0 && mirror.granted && claim.is_none() && !view.claiming {
            claim = Some(MirrorStep::Claim(mirror.clone()));
        }
        *count += 1;
    }
    let mut seen: BTreeMap<&ProjectPlacement, usize> = BTreeMap::new();
    let submit = ordered.into_iter().filter(|queued| {
        let count = seen.entry(&queued.place).or_default();
        *count += 1;
        !view.barred.contains(&queued.place)
            && *count > right.get(&queued.place).copied().unwrap_or_default()
    });
    let submit = submit.map(|queued| MirrorStep::Submit(queued.clone()));
    cancel.into_iter().chain(submit).chain(claim).collect()
}

/// How many tasks of a queue may be on these GPUs at once, and one more: as many as are mirrored.
pub fn depth(amount: Amount, gpus: usize) -> usize {
    let on_one = match amount {
        Amount::Share(share) => 1000 / usize::from(share.thousandths()),
        // No GPU known has more than seven instances, and memory may be as little as one wants.
        Amount::Mig(_) | Amount::Memory(_) => 8,
        Amount::Shares { count, share } => {
            (1000 / usize::from(share.thousandths())).div_ceil(as_usize(count.get()))
        }
        Amount::Whole(count) | Amount::Range { min: count, .. } => {
            return (gpus / as_usize(count.get()) + 1).min(MOST);
        }
    };
    (on_one * gpus + 1).min(MOST)
}

fn as_usize(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Of one project in one queue. What is beyond comes as soon as a place is free. Eight GPUs of eight parts fit 64 tasks
/// at once, so more mirrored tasks could not start anyway.
const MOST: usize = 64;

/// Of one queue, all projects together: four projects with full turns. Each mirrored task is a pending job that the
/// daemon plans with, so more would slow its rounds.
const MOST_MIRRORED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// `a@p` is a task of project p.
    fn place(task: &str) -> ProjectPlacement {
        ProjectPlacement {
            project: task.split_once('@').map(|(_, project)| project.to_owned()),
            missing: None,
        }
    }

    fn queued(task: &str) -> Queued {
        Queued {
            task: task.into(),
            place: place(task),
        }
    }

    fn view(tasks: &[&str], mirrors: &[(&str, bool)]) -> View {
        let mirror = |(task, granted): &(&str, bool)| Mirror {
            task: (*task).into(),
            job: format!("job of {task}"),
            place: place(task),
            granted: *granted,
        };
        View {
            tasks: tasks.iter().map(|task| queued(task)).collect(),
            mirrors: mirrors.iter().map(mirror).collect(),
            pulls: true,
            depth: 3,
            claiming: false,
            barred: BTreeSet::new(),
        }
    }

    fn said(view: &View) -> Vec<String> {
        let say = |step| match step {
            MirrorStep::Cancel(mirror, _) => format!("cancel {}", mirror.task),
            MirrorStep::Submit(queued) => format!("submit {}", queued.task),
            MirrorStep::Claim(mirror) => format!("claim {}", mirror.task),
        };
        steps(view).into_iter().map(say).collect()
    }

    #[test]
    fn a_cancelled_job_says_whether_its_task_left_the_queue() {
        let reason = |tasks: &[&str], pulls: bool| {
            let mut view = view(tasks, &[("a@p", false)]);
            view.pulls = pulls;
            let steps = steps(&view).into_iter();
            let mut reasons = steps.filter_map(|step| match step {
                MirrorStep::Cancel(_, why) => Some(why),
                _ => None,
            });
            reasons.next()
        };
        assert_eq!(reason(&["a@p"], true), None);
        assert_eq!(reason(&["b@p"], true), Some(CancelReason::Left));
        assert_eq!(reason(&["b@p", "a@p"], true), Some(CancelReason::Moved));
        assert_eq!(reason(&["a@p"], false), Some(CancelReason::Closed));
        assert_eq!(reason(&["b@p"], false), Some(CancelReason::Left));
    }

    #[test]
    fn the_first_tasks_are_mirrored_in_their_order() {
        assert_eq!(
            said(&view(&["a", "b", "c", "d"], &[])),
            ["submit a", "submit b", "submit c"]
        );
        assert_eq!(
            said(&view(&["a", "b"], &[("a", false), ("b", false)])),
            [""; 0]
        );
        assert_eq!(said(&view(&[], &[])), [""; 0]);
    }

    #[test]
    fn a_task_that_is_gone_costs_the_others_nothing() {
        let mirrors = [("a", false), ("b", false), ("c", false)];
        assert_eq!(
            said(&view(&["b", "c", "d"], &mirrors)),
            ["cancel a", "submit d"]
        );
        assert_eq!(
            said(&view(&["a", "c", "d"], &mirrors)),
            ["cancel b", "submit d"]
        );
    }

    #[test]
    fn a_task_moved_to_the_front_goes_before_those_it_has_passed() {
        let mirrors = [("a", true), ("b", false)];
        assert_eq!(
            said(&view(&["x", "a", "b"], &mirrors)),
            ["cancel a", "cancel b", "submit x", "submit a", "submit b"]
        );
    }

    #[test]
    fn only_the_head_is_claimed_and_one_at_a_time() {
        let mirrors = [("a", true), ("b", true)];
        let mut view = view(&["a", "b"], &mirrors);
        assert_eq!(said(&view), ["claim a"]);
        view.claiming = true;
        assert_eq!(said(&view), [""; 0]);
        let second_first = super::tests::view(&["a", "b"], &[("a", false), ("b", true)]);
        assert_eq!(said(&second_first), [""; 0]);
    }

    #[test]
    fn a_project_that_waits_for_its_quota_is_passed_by_the_others() {
        let tasks = ["1@a", "2@a", "3@a", "4@a", "5@b", "6@a", "7@b"];
        let mut all = view(&tasks, &[]);
        // As many of each project as of a queue without projects.
        let each = ["1@a", "2@a", "3@a", "5@b", "7@b"];
        assert_eq!(said(&all), each.map(|task| format!("submit {task}")));
        all.mirrors = view(&[], &each.map(|task| (task, task == "5@b"))).mirrors;
        assert_eq!(said(&all), ["claim 5@b"]);
        all.tasks.retain(|queued| queued.task != "5@b");
        assert_eq!(
            said(&all),
            ["cancel 5@b"],
            "it is claimed, and 7@b keeps its place"
        );
        all.mirrors.retain(|mirror| mirror.task != "5@b");
        assert_eq!(said(&all), [""; 0]);
    }

    #[test]
    fn a_task_that_another_project_gets_is_submitted_anew_and_alone() {
        let mut moved = view(
            &["1@a", "2@a", "5@b"],
            &[("1@a", false), ("2@a", false), ("5@b", false)],
        );
        moved.tasks[1].place = place("2@b");
        assert_eq!(
            said(&moved),
            ["cancel 2@a", "cancel 5@b", "submit 2@a", "submit 5@b"]
        );
        let mut refused = view(&["1@a", "2@b"], &[]);
        refused.barred.insert(place("1@a"));
        assert_eq!(said(&refused), ["submit 2@b"]);
    }

    #[test]
    fn no_more_is_mirrored_than_a_bound_however_many_projects_there_are() {
        let tasks: Vec<String> = (0..300)
            .map(|number| format!("{number}@{number}"))
            .collect();
        let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
        assert_eq!(said(&view(&tasks, &[])).len(), MOST_MIRRORED);
    }

    #[test]
    fn a_queue_that_is_not_pulled_has_no_jobs() {
        let mut view = view(&["a", "b"], &[("a", true), ("b", false)]);
        view.pulls = false;
        assert_eq!(said(&view), ["cancel a", "cancel b"]);
    }

    #[test]
    fn one_more_is_mirrored_than_can_run_at_once() {
        let amount = |text: &str| divvy_core::Amount::from_gpu_flag(text).unwrap();
        let depths =
            ["0.25", "0.375", "0.125", "1", "2", "1-4", "2x0.5"].map(|text| depth(amount(text), 3));
        assert_eq!(depths, [13, 7, 25, 4, 2, 4, 4]);
    }

    proptest::proptest! {
        /// Doing what is said brings the jobs to what they ought to be, and then nothing more is said.
        #[test]
        fn steps_lead_to_the_first_tasks_and_end_there(
            tasks in proptest::sample::subsequence((0..8_u8).collect::<Vec<_>>(), 0..8)
                .prop_shuffle(),
            there in proptest::sample::subsequence((0..10_u8).collect::<Vec<_>>(), 0..8)
                .prop_shuffle(),
            pulls: bool,
        ) {
            let names = |numbers: &[u8]| numbers.iter().map(u8::to_string).collect::<Vec<_>>();
            let (tasks, there) = (names(&tasks), names(&there));
            let mirrors: Vec<(&str, bool)> = there.iter().map(|task| (task.as_str(), false)).collect();
            let mut view = view(&tasks.iter().map(String::as_str).collect::<Vec<_>>(), &mirrors);
            view.pulls = pulls;
            for step in steps(&view) {
                match step {
                    MirrorStep::Cancel(mirror, _) => view.mirrors.retain(|other| *other != mirror),
                    MirrorStep::Submit(Queued { task, place }) => view.mirrors.push(Mirror { job: task.clone(), task, place, granted: false }),
                    MirrorStep::Claim(_) => unreachable!("nothing is granted"),
                }
            }
            let have: Vec<&String> = view.mirrors.iter().map(|mirror| &mirror.task).collect();
            let most = if pulls { view.depth } else { 0 };
            let kept_beyond = have.len().max(most);
            proptest::prop_assert_eq!(&have[..], &tasks.iter().take(kept_beyond.min(have.len())).collect::<Vec<_>>()[..]);
            proptest::prop_assert!(have.len() >= tasks.len().min(most));
            proptest::prop_assert_eq!(steps(&view), Vec::new());
        }
    }
    use proptest::prelude::Strategy as _;
}
