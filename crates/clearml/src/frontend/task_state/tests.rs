use proptest::prelude::*;

use super::super::requeue::{RequeueStep, requeue_steps};
use super::*;

/// A server with one task, and an agent with its job.
#[derive(Clone, Debug)]
struct World {
    status: Option<Status>,
    stopping: bool,
    listed: bool,
    job: Job,
    /// Programs started since the task was last put into its queue.
    runs: u32,
    record: Option<ClaimPhase>,
    /// Its user, or another client, has decided its status.
    touched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Gone,
    Awaited,
    Running,
    Ended,
}

/// An event outside the daemon's own steps.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// One action, whole.
    Do,
    /// We die before the action is done.
    DieBefore,
    /// We die after it is done and before we know.
    DieAfter,
    /// The answer is lost, where that matters.
    LoseAnswer,
    UserStops,
    UserResets,
    UserDeletes,
    /// The program ends by itself; its own agent says so.
    ProgramEnds,
    /// The container is killed.
    ProgramDies,
    /// The grant is released, because it was not confirmed in time.
    GrantExpires,
    Shutdown,
}

impl World {
    fn new() -> Self {
        Self {
            status: Some(Status::Queued),
            stopping: false,
            listed: true,
            job: Job::Awaited,
            runs: 0,
            record: None,
            touched: false,
        }
    }

    fn seen(&self) -> TaskState {
        TaskState {
            status: self.status,
            stopping: self.stopping && self.status == Some(Status::InProgress),
        }
    }

    /// Does what is asked for; `None` where nothing comes of it yet.
    fn perform(&mut self, action: Action, lose: bool) -> Option<Event> {
        let seen = self.seen();
        Some(match action {
            Action::Look | Action::LookAgain => Event::Seen {
                seen,
                listed: self.listed,
            },
            Action::Pop | Action::Remove => {
                let popped = std::mem::take(&mut self.listed);
                if popped && self.status == Some(Status::Stopped) {
                    self.status = Some(Status::Queued);
                }
                match (lose, popped) {
                    (true, _) => Event::PopLost,
                    (false, true) => Event::Popped,
                    (false, false) => Event::NotPopped,
                }
            }
            Action::Start => {
                if self.status != Some(Status::Queued) {
                    return Some(Event::StartRefused);
                }
                self.status = Some(Status::InProgress);
                Event::Started
            }
            Action::Confirm => match self.job {
                Job::Awaited => {
                    self.job = Job::Running;
                    self.runs += 1;
                    Event::Confirmed
                }
                Job::Running => Event::Confirmed,
                Job::Gone | Job::Ended => Event::NoSlice,
            },
            Action::Watch => match self.job {
                Job::Ended => Event::JobEnded(JobEnd::Exited(137)),
                Job::Gone => Event::JobEnded(JobEnd::Cancelled),
                Job::Awaited => Event::GrantedAgain,
                Job::Running if seen.stopping => Event::Verdict(StopReason::Abort),
                Job::Running => match self.status {
                    Some(Status::InProgress | Status::Completed) => return None,
                    None => Event::Verdict(StopReason::Gone),
                    Some(Status::Created) => Event::Verdict(StopReason::Reset),
                    Some(_) => Event::Verdict(StopReason::Changed),
                },
            },
            Action::Cancel(_) => {
                self.job = Job::Ended;
                Event::JobEnded(JobEnd::Cancelled)
            }
            Action::ReportEnd(ending) => {
                match ending.final_status(seen) {
                    Some(FinalStatus::Completed) => self.status = Some(Status::Completed),
                    Some(FinalStatus::Failed) => self.status = Some(Status::Failed),
                    Some(FinalStatus::Stopped) => self.status = Some(Status::Stopped),
                    None => {}
                }
                Event::EndReported
            }
            Action::PutBack => {
                for step in requeue_steps(seen, self.listed) {
                    self.step_back(*step);
                }
                Event::PutBack
            }
            Action::Finish(_) => {
                if self.job != Job::Gone {
                    self.job = Job::Ended;
                }
                return None;
            }
        })
    }

    fn step_back(&mut self, step: RequeueStep) {
        match step {
            RequeueStep::Add => self.listed = true,
            RequeueStep::Reset => (self.status, self.runs) = (Some(Status::Created), 0),
            RequeueStep::Enqueue => (self.status, self.listed) = (Some(Status::Queued), true),
            RequeueStep::Front => {}
            RequeueStep::Stop => self.status = Some(Status::Stopped),
        }
    }

    fn outside(&mut self, act: Act) {
        let is_ended =
            |status: Status| matches!(status, Status::Completed | Status::Failed | Status::Stopped);
        match act {
            Act::UserStops => {
                self.touched = true;
                match self.status {
                    Some(Status::Queued) => {
                        (self.status, self.listed) = (Some(Status::Stopped), false)
                    }
                    Some(Status::InProgress) => self.stopping = true,
                    _ => {}
                }
            }
            Act::UserResets if self.status.is_some_and(|status| !is_ended(status)) => {
                (self.status, self.listed, self.touched) = (Some(Status::Created), false, true);
            }
            Act::UserDeletes => (self.status, self.listed, self.touched) = (None, false, true),
            Act::ProgramEnds if self.job == Job::Running => {
                self.job = Job::Ended;
                if self.status == Some(Status::InProgress) {
                    self.status = Some(Status::Completed);
                }
            }
            Act::ProgramDies if self.job == Job::Running => self.job = Job::Ended,
            Act::GrantExpires if self.job == Job::Awaited => self.job = Job::Gone,
            _ => {}
        }
    }

    fn recovered_job(&self) -> RecoveredJob {
        match self.job {
            Job::Awaited => RecoveredJob::Awaited,
            Job::Running | Job::Ended => RecoveredJob::Begun,
            Job::Gone => RecoveredJob::Nothing,
        }
    }

    /// The state after a restart.
    fn restarted(&self) -> TaskLifecycle {
        self.record
            .map_or(TaskLifecycle::at(State::Done(Outcome::NotOurs)), |mark| {
                TaskLifecycle::recovered(mark, self.recovered_job())
            })
    }
}

/// One action of the daemon, whole or broken off.
fn act(life: TaskLifecycle, world: &mut World, act: Act) -> TaskLifecycle {
    match act {
        Act::Do | Act::LoseAnswer | Act::DieBefore | Act::DieAfter => {
            // The record comes first, and goes last.
            if life.mark().is_some() {
                world.record = life.mark();
            }
            if matches!(act, Act::DieBefore) {
                return world.restarted();
            }
            let event = world.perform(life.action(), matches!(act, Act::LoseAnswer));
            if matches!(act, Act::DieAfter) {
                return world.restarted();
            }
            if matches!(life.action(), Action::Finish(_)) {
                world.record = None;
            }
            event.map_or(life, |event| life.on(event))
        }
        Act::Shutdown => life.on(Event::Stop),
        outside => {
            world.outside(outside);
            life
        }
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => Just(Act::Do),
        2 => Just(Act::DieBefore),
        2 => Just(Act::DieAfter),
        1 => Just(Act::LoseAnswer),
        1 => Just(Act::UserStops),
        1 => Just(Act::UserResets),
        1 => Just(Act::UserDeletes),
        2 => Just(Act::ProgramEnds),
        1 => Just(Act::ProgramDies),
        1 => Just(Act::GrantExpires),
        1 => Just(Act::Shutdown),
    ];
    proptest::collection::vec(act, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// A popped task has ended or waits in its queue, its program was started once at most, and no process of it is
    /// left. This holds for every crash and every action of its user.
    #[test]
    fn no_task_is_lost_or_run_twice(acts in acts()) {
        let mut world = World::new();
        let mut life = TaskLifecycle::new();
        for what in acts {
            life = act(life, &mut world, what);
            prop_assert!(world.runs <= 1, "{what:?} {life:?} {world:?}");
        }
        // From here on nothing goes wrong, and the program ends at last.
        for _ in 0..64 {
            world.outside(Act::ProgramEnds);
            life = act(life, &mut world, Act::Do);
            prop_assert!(world.runs <= 1, "{life:?} {world:?}");
        }
        prop_assert!(matches!(life.action(), Action::Finish(_)), "{life:?} {world:?}");
        prop_assert!(world.record.is_none() && world.job != Job::Running, "{life:?} {world:?}");
        let ended = matches!(world.status, Some(Status::Completed | Status::Failed | Status::Stopped));
        let waits = world.status == Some(Status::Queued) && world.listed;
        prop_assert!(ended || waits || world.touched, "{life:?} {world:?}");
    }
}

fn walk(life: TaskLifecycle, events: &[Event]) -> TaskLifecycle {
    events.iter().fold(life, |life, event| life.on(*event))
}

fn seen(status: Status) -> Event {
    let seen = TaskState {
        status: Some(status),
        stopping: false,
    };
    Event::Seen {
        seen,
        listed: false,
    }
}

/// From the queue to a running program.
fn to_running() -> [Event; 6] {
    [
        seen(Status::Queued),
        Event::Popped,
        seen(Status::Queued),
        Event::Started,
        seen(Status::InProgress),
        Event::Confirmed,
    ]
}

#[test]
fn a_task_goes_from_its_queue_to_its_end_without_a_detour() {
    let life = walk(TaskLifecycle::new(), &to_running());
    let life = life.on(Event::JobEnded(JobEnd::Exited(0)));
    assert_eq!(
        life.action(),
        Action::ReportEnd(Ending::Job(JobEnd::Exited(0)))
    );
    assert_eq!(
        life.on(Event::EndReported).action(),
        Action::Finish(Outcome::Ended)
    );
}

/// A daemon that is asked to stop leaves no task's job running, whatever it waits for at that moment.
#[test]
fn no_task_runs_on_after_a_stop_at_any_step() {
    for step in 0..=to_running().len() {
        let (before, after) = (&to_running()[..step], &to_running()[step..]);
        let stopped = walk(TaskLifecycle::new(), before).on(Event::Stop);
        let life = walk(stopped, after);
        let expected = match step {
            0 => Action::Finish(Outcome::NotOurs),
            1..=4 => Action::PutBack,
            _ => Action::Cancel(StopReason::Shutdown),
        };
        assert_eq!(life.action(), expected, "a stop after {before:?}");
    }
}

#[test]
fn a_task_aborted_before_its_container_starts_never_has_one() {
    let claimed = walk(TaskLifecycle::new(), &[seen(Status::Queued), Event::Popped]);
    let released = claimed.on(seen(Status::Stopped));
    assert_eq!(released.action(), Action::Finish(Outcome::Released));

    let started = walk(claimed, &[seen(Status::Queued), Event::Started]);
    let stopping = TaskState {
        status: Some(Status::InProgress),
        stopping: true,
    };
    let aborted = started.on(Event::Seen {
        seen: stopping,
        listed: false,
    });
    assert_eq!(
        aborted.action(),
        Action::ReportEnd(Ending::Stopped(StopReason::Abort))
    );
    assert_eq!(
        Ending::Stopped(StopReason::Abort).final_status(stopping),
        Some(FinalStatus::Stopped)
    );
}

#[test]
fn popping_a_stopped_task_does_not_bring_it_back_to_life() {
    let life = walk(
        TaskLifecycle::new(),
        &[seen(Status::Stopped), Event::Popped, seen(Status::Queued)],
    );
    assert_eq!(life.action(), Action::ReportEnd(Ending::Unstarted));
    assert_eq!(
        Ending::Unstarted.final_status(waiting()),
        Some(FinalStatus::Stopped)
    );
}

fn waiting() -> TaskState {
    TaskState {
        status: Some(Status::Queued),
        stopping: false,
    }
}

/// Its user stopped it, reset it and put it into a queue again before this run's end was reported.
#[test]
fn the_end_of_a_run_is_not_reported_over_the_tasks_next_claim() {
    for ending in [
        Ending::Stopped(StopReason::Abort),
        Ending::Stopped(StopReason::Shutdown),
        Ending::Job(JobEnd::Exited(0)),
        Ending::Job(JobEnd::Cancelled),
        Ending::Unfit,
    ] {
        assert_eq!(ending.final_status(waiting()), None, "{ending:?}");
    }
}

#[test]
fn a_task_that_is_cancelled_while_it_waits_is_out_of_its_queue_before_it_is_stopped() {
    let life = walk(TaskLifecycle::withdrawing(), &[seen(Status::Queued)]);
    assert_eq!(
        (life.action(), life.mark()),
        (Action::Remove, Some(ClaimPhase::Claiming))
    );
    let theirs = life.on(Event::NotPopped);
    assert_eq!(theirs.action(), Action::Finish(Outcome::NotOurs));
    let taken = life.on(Event::Popped);
    for (now, then) in [
        (Status::Queued, Action::ReportEnd(Ending::Unstarted)),
        (Status::InProgress, Action::Finish(Outcome::NotOurs)),
        (Status::Created, Action::Finish(Outcome::Released)),
    ] {
        assert_eq!(taken.on(seen(now)).action(), then, "{now:?}");
    }
    // A daemon that dies here puts the task back: the cancel was not acknowledged.
    let mark = taken.mark().unwrap();
    let after = TaskLifecycle::recovered(mark, RecoveredJob::Nothing);
    assert_eq!(after.action(), Action::PutBack);
}

#[test]
fn a_job_that_is_cancelled_during_the_claim_ends_its_task() {
    let confirming = [
        seen(Status::Queued),
        Event::Popped,
        seen(Status::Queued),
        Event::Started,
        seen(Status::InProgress),
    ];
    let life = walk(TaskLifecycle::new(), &confirming);
    assert_eq!(life.action(), Action::Confirm);
    let ended = life.on(Event::JobEnded(JobEnd::Cancelled));
    let end = Ending::Job(JobEnd::Cancelled);
    assert_eq!(ended.action(), Action::ReportEnd(end));
    let running = TaskState {
        status: Some(Status::InProgress),
        stopping: false,
    };
    assert_eq!(end.final_status(running), Some(FinalStatus::Stopped));
}

#[test]
fn a_task_that_passes_others_is_taken_from_the_middle_of_its_queue() {
    let life = walk(TaskLifecycle::passing(), &[seen(Status::Queued)]);
    assert_eq!(
        (life.action(), life.mark()),
        (Action::Remove, Some(ClaimPhase::Claiming))
    );
    let taken = walk(life, &[Event::Popped, seen(Status::Queued)]);
    assert_eq!(taken.action(), Action::Start);
    assert_eq!(life.on(Event::PopLost).action(), Action::LookAgain);
}

#[test]
fn a_task_that_another_agent_took_while_our_answer_was_lost_is_left_to_it() {
    let unsure = walk(
        TaskLifecycle::new(),
        &[seen(Status::Queued), Event::PopLost],
    );
    assert_eq!(unsure.action(), Action::LookAgain);
    let theirs = walk(unsure, &[seen(Status::Queued), seen(Status::InProgress)]);
    assert_eq!(theirs.action(), Action::Finish(Outcome::NotOurs));
    let nobodys = (0..LOOKS).fold(unsure, |life, _| life.on(seen(Status::Queued)));
    assert_eq!(nobodys.action(), Action::PutBack);
}

#[test]
fn what_the_tasks_own_agent_has_said_is_not_said_over() {
    let done = TaskState {
        status: Some(Status::Completed),
        stopping: false,
    };
    for ending in [
        Ending::Job(JobEnd::Exited(0)),
        Ending::Job(JobEnd::Lost),
        Ending::Stopped(StopReason::Abort),
    ] {
        assert_eq!(ending.final_status(done), None);
    }
}
