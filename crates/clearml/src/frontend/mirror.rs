//! Which waiting jobs the agent ought to have: the first tasks of each of the server's queues, in their order. Pure.
//!
//! Not the heads alone: one plan may start several jobs, and with the heads alone it would give a lower queue what the higher
//! queue's second task could have had. So many are mirrored that not all of them can start at once.

use divvy_core::Amount;

/// A queue as it was last seen, and what is done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Tasks on the server, the head first, less those that are being run.
    pub tasks: Vec<String>,
    /// Jobs that stand for them, in the order of their submission.
    pub mirrors: Vec<Mirror>,
    /// Whether tasks are pulled now.
    pub pulls: bool,
    /// How many are mirrored at most.
    pub depth: usize,
    /// A task of it is being claimed.
    pub claiming: bool,
}

/// A job that stands for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub task: String,
    pub job: String,
    /// It has its slice.
    pub granted: bool,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Cancel this task's job.
    Cancel(Mirror),
    /// Submit a job for this task.
    Submit(String),
    /// Claim it: it is the head, and has its slice.
    Claim(Mirror),
}

/// What brings a queue's jobs to what they ought to be.
pub fn steps(view: &View) -> Vec<Step> {
    let most = if view.pulls { view.depth } else { 0 };
    let wanted: Vec<&String> = view.tasks.iter().take(most).collect();
    // What stays is in the order of the queue, without holes: jobs of a queue are served as they were submitted.
    let (kept, left): (Vec<&Mirror>, Vec<&Mirror>) = view
        .mirrors
        .iter()
        .partition(|mirror| view.tasks.contains(&mirror.task) && view.pulls);
    let right = kept
        .iter()
        .zip(&wanted)
        .take_while(|(mirror, task)| mirror.task == ***task)
        .count();
    let wrong = kept[right..].iter().copied();
    let cancel = left.into_iter().chain(wrong).cloned().map(Step::Cancel);
    let submit = wanted[right..]
        .iter()
        .map(|task| Step::Submit((*task).clone()));
    let head = kept[..right]
        .first()
        .filter(|head| head.granted && !view.claiming);
    let claim = head.map(|head| Step::Claim((*head).clone()));
    cancel.chain(submit).chain(claim).collect()
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

/// Of one queue. What is beyond comes as soon as a place is free.
const MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn view(tasks: &[&str], mirrors: &[(&str, bool)]) -> View {
        let mirror = |(task, granted): &(&str, bool)| Mirror {
            task: (*task).into(),
            job: format!("job of {task}"),
            granted: *granted,
        };
        View {
            tasks: tasks.iter().map(|task| (*task).into()).collect(),
            mirrors: mirrors.iter().map(mirror).collect(),
            pulls: true,
            depth: 3,
            claiming: false,
        }
    }

    fn said(view: &View) -> Vec<String> {
        let say = |step| match step {
            Step::Cancel(mirror) => format!("cancel {}", mirror.task),
            Step::Submit(task) => format!("submit {task}"),
            Step::Claim(mirror) => format!("claim {}", mirror.task),
        };
        steps(view).into_iter().map(say).collect()
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
                    Step::Cancel(mirror) => view.mirrors.retain(|other| *other != mirror),
                    Step::Submit(task) => view.mirrors.push(Mirror { job: task.clone(), task, granted: false }),
                    Step::Claim(_) => unreachable!("nothing is granted"),
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
