//! The state machine of a task: the next action, from its record, its pod and its status on the server. Pure.
//!
//! ```text
//!  record: claiming ─► pop ─► record: ours ─► pod ─► runs: started ─► ended: told ─► no pod ─► no record
//!              │ lost            │ its queue is served no more
//!              └── no agent has it ─► record: returning ─► front of its queue ─► no record
//! ```
//! The record holds all state between two observations, so a restarted glue continues where the killed one was. From
//! `ours` on no other agent will pick up the task: every path from there leads to a state that ends it on the server,
//! or back to the front of its queue.

use divvy_clearml::server::Status;

use super::pod_status::{PodState, TaskPodStatus};

/// How far a task is, as its record says: written down before what it speaks of is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimPhase {
    /// The server may have given it to us.
    Claiming,
    /// It has.
    Ours,
    /// It is on its way back into its queue.
    Returning,
}

/// The observed state of a task.
#[derive(Clone, Debug)]
pub struct TaskFacts {
    pub mark: ClaimPhase,
    pub pod: Option<TaskPodStatus>,
    /// All that it wrote is on the server, or no longer ours to send.
    pub is_logged: bool,
    /// `None`: it was deleted.
    pub status: Option<Status>,
    /// Its user has asked for its end.
    pub stopping: bool,
    /// Before it was popped, which made it `queued` again, its user had stopped it.
    pub was_stopped: bool,
    /// It is in the queue that it was taken from.
    pub listed: bool,
    /// Its queue, by the server, is another one.
    pub elsewhere: bool,
    /// Its queue is one of those that are served.
    pub served: bool,
    /// Looks that found it so.
    pub looks: u8,
    /// Its user has decided that its run ends: see `divvy_clearml`'s watcher, which waits for abort callbacks.
    pub verdict: bool,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskStep {
    Nothing,
    /// No agent seems to go on with its claim; look again.
    LookAgain,
    /// Remove its record: nothing more.
    Forget,
    /// Write into its record that it goes back.
    Return,
    /// Put it to the front of its queue, and remove its record.
    PutBack,
    /// Make its pod.
    Make,
    /// Delete its pod.
    Delete,
    /// Say why it waits.
    ReportWaiting(String),
    /// `tasks.started`.
    Start,
    ReportEnd(FinalStatus),
}

/// The final status that the server gets at the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinalStatus {
    Completed,
    /// Why, in words.
    Failed(String),
    Stopped,
}

/// Observations of a claimed task without a visible agent before it counts as abandoned: a live agent registers within
/// moments. As in the ClearML front end: half would take tasks from live agents.
pub const LOOKS: u8 = 5;

/// The next step.
pub fn next(facts: &TaskFacts) -> TaskStep {
    match facts.mark {
        ClaimPhase::Claiming if facts.pod.is_none() => claiming(facts),
        ClaimPhase::Returning => without_pod(facts, TaskStep::PutBack),
        ClaimPhase::Claiming | ClaimPhase::Ours => ours(facts),
    }
}

fn claiming(facts: &TaskFacts) -> TaskStep {
    match facts.status {
        // Another agent may be about to claim it: a glue that ends as this one begins, or one that has just popped it.
        _ if facts.looks < LOOKS => TaskStep::LookAgain,
        Some(Status::Queued) if facts.listed => TaskStep::Forget,
        // No other agent started it within the time, so it would be lost.
        Some(Status::Queued) => TaskStep::Return,
        _ => TaskStep::Forget,
    }
}

fn ours(facts: &TaskFacts) -> TaskStep {
    match facts.status {
        Some(Status::Queued) if facts.was_stopped => TaskStep::ReportEnd(FinalStatus::Stopped),
        // Its user has taken it back and queued it again: that run is another one.
        Some(Status::Queued) if facts.listed || facts.elsewhere => {
            without_pod(facts, TaskStep::Forget)
        }
        Some(Status::Queued | Status::InProgress) if is_preempted(facts) => TaskStep::Return,
        Some(Status::Queued) => queued(facts),
        Some(Status::InProgress) => in_progress(facts),
        Some(Status::Unknown) => TaskStep::Nothing,
        // Its agent set the status, and the pod is about to end; or its user did, and a program that registered a callback is
        // given its time for it.
        _ => match &facts.pod {
            Some(TaskPodStatus {
                state: PodState::Runs,
                ..
            }) if !facts.verdict => TaskStep::Nothing,
            Some(TaskPodStatus {
                state: PodState::Ended(_),
                ..
            }) if !facts.is_logged => TaskStep::Nothing,
            _ => without_pod(facts, TaskStep::Forget),
        },
    }
}

/// Whether another workload gets its quota: it waits again, unless its user wants its end or it came first.
fn is_preempted(facts: &TaskFacts) -> bool {
    let is_over =
        |pod: &TaskPodStatus| matches!(&pod.state, PodState::Ended(end) if end.exit == Some(0));
    let pod = facts.pod.as_ref();
    !facts.stopping && pod.is_some_and(|pod| pod.preempted.is_some() && !is_over(pod))
}

/// Ours, and its own agent has not begun.
fn queued(facts: &TaskFacts) -> TaskStep {
    let Some(pod) = &facts.pod else {
        return if facts.served {
            TaskStep::Make
        } else {
            TaskStep::Return
        };
    };
    match &pod.state {
        PodState::Ended(_) if !facts.is_logged => TaskStep::Nothing,
        PodState::Ended(end) => {
            let why = format!(
                "the task's pod ended before the task started: {}",
                end.describe()
            );
            TaskStep::ReportEnd(FinalStatus::Failed(why))
        }
        _ if pod.terminating => TaskStep::Nothing,
        PodState::Waits(None) => TaskStep::Nothing,
        PodState::Waits(Some(why)) => TaskStep::ReportWaiting(why.clone()),
        PodState::Unstartable(why) => TaskStep::ReportEnd(FinalStatus::Failed(why.clone())),
        PodState::Runs => TaskStep::Start,
    }
}

fn in_progress(facts: &TaskFacts) -> TaskStep {
    let Some(pod) = &facts.pod else {
        return TaskStep::ReportEnd(if facts.stopping {
            FinalStatus::Stopped
        } else {
            FinalStatus::Failed(
                "the task's pod is gone: the pod or its node was deleted".to_owned(),
            )
        });
    };
    match &pod.state {
        PodState::Ended(_) if !facts.is_logged => TaskStep::Nothing,
        PodState::Ended(_) if facts.stopping => TaskStep::ReportEnd(FinalStatus::Stopped),
        PodState::Ended(end) if end.exit == Some(0) => TaskStep::ReportEnd(FinalStatus::Completed),
        PodState::Ended(end) => TaskStep::ReportEnd(FinalStatus::Failed(end.describe())),
        _ if pod.terminating => TaskStep::Nothing,
        _ if facts.verdict => TaskStep::Delete,
        PodState::Unstartable(why) => TaskStep::ReportEnd(FinalStatus::Failed(why.clone())),
        PodState::Waits(_) | PodState::Runs => TaskStep::Nothing,
    }
}

/// Has the pod go first.
fn without_pod(facts: &TaskFacts, step: TaskStep) -> TaskStep {
    match &facts.pod {
        None => step,
        Some(pod) if pod.terminating => TaskStep::Nothing,
        Some(_) => TaskStep::Delete,
    }
}

#[cfg(test)]
mod tests;
