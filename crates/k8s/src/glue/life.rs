//! What is to be done about a task, by what is seen of it: its record, its pod, and what the server says. Pure.
//!
//! ```text
//!  record: claiming ─► pop ─► record: ours ─► pod ─► runs: started ─► ended: told ─► no pod ─► no record
//!              │ lost            │ its queue is served no more
//!              └── nobody has it ┴─► record: returning ─► front of its queue ─► no record
//! ```
//! Nothing is remembered between two looks but what the record says, so that a glue that was killed goes on where it was. From
//! `ours` on nobody else will ever look at the task: every path from there leads to a state that ends it on the server, or back
//! to the front of its queue.

use divvy_clearml::server::Status;

use super::sight::{Sight, State};

/// How far a task is, as its record says: written down before what it speaks of is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// The server may have given it to us.
    Claiming,
    /// It has.
    Ours,
    /// It is on its way back into its queue.
    Returning,
}

/// What is seen of a task.
#[derive(Clone, Debug)]
pub struct Facts {
    pub mark: Mark,
    pub pod: Option<Sight>,
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
    /// What its user did to it says that its run is to end: see `divvy_clearml`'s watcher, which waits for abort callbacks.
    pub verdict: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Nobody seems to go on with its claim; look again.
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
    Say(String),
    /// `tasks.started`.
    Start,
    Tell(Word),
}

/// What is said to the server at the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    Completed,
    /// Why, in words.
    Failed(String),
    Stopped,
}

/// Looks at a task whose claim nobody seems to go on with before that is believed: who does says so within moments.
pub const LOOKS: u8 = 5;

/// The next step.
pub fn next(facts: &Facts) -> Step {
    match facts.mark {
        Mark::Claiming if facts.pod.is_none() => claiming(facts),
        Mark::Returning => without_pod(facts, Step::PutBack),
        Mark::Claiming | Mark::Ours => ours(facts),
    }
}

fn claiming(facts: &Facts) -> Step {
    match facts.status {
        // Somebody may be about to claim it: a glue that ends as this one begins, another agent that has just popped it.
        _ if facts.looks < LOOKS => Step::LookAgain,
        Some(Status::Queued) if facts.listed => Step::Forget,
        // Nobody else started it: whoever took it, it would be lost.
        Some(Status::Queued) => Step::Return,
        _ => Step::Forget,
    }
}

fn ours(facts: &Facts) -> Step {
    match facts.status {
        Some(Status::Queued) if facts.was_stopped => Step::Tell(Word::Stopped),
        // Its user has taken it back and queued it again: that run is another one.
        Some(Status::Queued) if facts.listed || facts.elsewhere => without_pod(facts, Step::Forget),
        Some(Status::Queued) => queued(facts),
        Some(Status::InProgress) => in_progress(facts),
        Some(Status::Unknown) => Step::Nothing,
        // Its own agent has said so, and the pod is about to end.
        Some(Status::Completed)
            if matches!(
                facts.pod,
                Some(Sight {
                    state: State::Runs,
                    ..
                })
            ) =>
        {
            Step::Nothing
        }
        // Somebody else's word: its agent's, its user's. A program that registered a callback is given its time for it.
        _ => match &facts.pod {
            Some(Sight {
                state: State::Runs, ..
            }) if !facts.verdict => Step::Nothing,
            Some(Sight {
                state: State::Ended(_),
                ..
            }) if !facts.is_logged => Step::Nothing,
            _ => without_pod(facts, Step::Forget),
        },
    }
}

/// Ours, and its own agent has not begun.
fn queued(facts: &Facts) -> Step {
    let Some(pod) = &facts.pod else {
        return match facts.served {
            true => Step::Make,
            false => Step::Return,
        };
    };
    match &pod.state {
        State::Ended(_) if !facts.is_logged => Step::Nothing,
        State::Ended(end) => {
            let why = format!(
                "the task's pod ended before the task started: {}",
                end.words()
            );
            Step::Tell(Word::Failed(why))
        }
        _ if pod.terminating => Step::Nothing,
        State::Waits(None) => Step::Nothing,
        State::Waits(Some(why)) => Step::Say(why.clone()),
        State::Doomed(why) => Step::Tell(Word::Failed(why.clone())),
        State::Runs => Step::Start,
    }
}

fn in_progress(facts: &Facts) -> Step {
    let Some(pod) = &facts.pod else {
        return Step::Tell(match facts.stopping {
            true => Word::Stopped,
            false => {
                Word::Failed("the task's pod is gone: the pod or its node was deleted".to_owned())
            }
        });
    };
    match &pod.state {
        State::Ended(_) if !facts.is_logged => Step::Nothing,
        State::Ended(_) if facts.stopping => Step::Tell(Word::Stopped),
        State::Ended(end) if end.exit == Some(0) => Step::Tell(Word::Completed),
        State::Ended(end) => Step::Tell(Word::Failed(end.words())),
        _ if pod.terminating => Step::Nothing,
        _ if facts.verdict => Step::Delete,
        State::Doomed(why) => Step::Tell(Word::Failed(why.clone())),
        State::Waits(_) | State::Runs => Step::Nothing,
    }
}

/// Has the pod go first.
fn without_pod(facts: &Facts, step: Step) -> Step {
    match &facts.pod {
        None => step,
        Some(pod) if pod.terminating => Step::Nothing,
        Some(_) => Step::Delete,
    }
}

#[cfg(test)]
mod tests;
