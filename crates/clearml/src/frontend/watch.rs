//! The status watch of a running task: whether its status on the server asks for an abort, a stop or a requeue. Pure
//! but for the clock it is given.

use std::time::Duration;

use serde_json::{Map, Value};

use super::task_state::StopReason;
use crate::server::{Status, Task};

/// A message of this word in it on a task in progress is its user's wish to end it.
const STOPPING: &str = "stopping";

/// How long a task's process may live on after its agent has told the server how the task ended: it uploads what is left and
/// unregisters. The stock agent takes about a second.
const OWN_END: Duration = Duration::from_secs(60);

/// Looks that find the task reset before it counts as that, as in the stock agent.
const RESETS: u32 = 5;

const CALLBACK_TIMEOUT: &str = "_abort_callback_timeout";
const CALLBACK_POLL: &str = "_abort_poll_freq";
const CALLBACK_DONE: &str = "_abort_callback_completed";

/// The decision after an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchDecision {
    /// Nothing.
    Go,
    /// It is about to be stopped; this line belongs into its log.
    Wait(String),
    /// Stop it; the line, if any, belongs into its log.
    Stop(StopReason, Option<String>),
}

/// The history of observations.
#[derive(Clone, Debug, Default)]
pub struct Watcher {
    resets: u32,
    /// When the task's own abort callback began, and how long it may take.
    callback: Option<(Duration, Duration)>,
    /// When the task was first seen ended by its own agent.
    ended: Option<Duration>,
}

/// Whether the last change of the task's status is its own agent's, which says `Changed by clearml-agent WORKER`.
pub fn is_own_word(task: &Task, worker: &str) -> bool {
    let message = task.status_message.as_deref().unwrap_or_default();
    message.starts_with("Changed by ")
        && (message.strip_suffix(worker)).is_some_and(|before| before.ends_with(' '))
}

/// Whether its user has asked for its end.
pub fn is_stopping(task: &Task) -> bool {
    let message = task.status_message.as_deref().unwrap_or_default();
    message.contains(STOPPING)
}

impl Watcher {
    /// Looks at the task that runs as `worker`, as `Watcher::look` does. An end that its own agent has told the server is no wish of
    /// its user: the process is left to end, for a while.
    pub fn look_at(
        &mut self,
        task: Option<&Task>,
        worker: &str,
        now: Duration,
        most: Duration,
    ) -> WatchDecision {
        let ended = task.filter(|task| {
            let is_end = matches!(
                task.status,
                Status::Failed | Status::Closed | Status::Completed | Status::Stopped
            );
            is_end && is_own_word(task, worker)
        });
        let Some(task) = ended else {
            self.ended = None;
            return self.observe(task, now, most);
        };
        let since = *self.ended.get_or_insert(now);
        // It has done what its user wished; nothing is left to wait for but its slot.
        let is_over = task.status == Status::Stopped || now.saturating_sub(since) >= OWN_END;
        if is_over {
            WatchDecision::Stop(StopReason::Ended, None)
        } else {
            WatchDecision::Go
        }
    }

    /// Looks at the task at `now`, on any clock that goes forward; `most` is how long a callback may take.
    pub fn observe(&mut self, task: Option<&Task>, now: Duration, most: Duration) -> WatchDecision {
        let Some(task) = task else {
            return WatchDecision::Stop(StopReason::Gone, None);
        };
        let why = match task.status {
            Status::InProgress if is_stopping(task) => StopReason::Abort,
            Status::Stopped
            | Status::Failed
            | Status::Closed
            | Status::Published
            | Status::Publishing
            | Status::Queued => StopReason::Changed,
            Status::Created => {
                self.resets += 1;
                if self.resets < RESETS {
                    return WatchDecision::Go;
                }
                StopReason::Reset
            }
            _ => {
                self.resets = 0;
                return WatchDecision::Go;
            }
        };
        self.after_callback(why, task, now, most)
    }

    /// A task that registered a callback is given its time for it.
    fn after_callback(
        &mut self,
        why: StopReason,
        task: &Task,
        now: Duration,
        most: Duration,
    ) -> WatchDecision {
        let none = Map::new();
        let runtime = task.runtime.as_ref().unwrap_or(&none);
        let is_done = runtime.get(CALLBACK_DONE).is_some_and(is_true);
        if let Some((since, may_take)) = self.callback {
            let elapsed = now.saturating_sub(since);
            let line = if is_done {
                format!(
                    "### Task abort callback completed in {:.2} seconds ###",
                    elapsed.as_secs_f64()
                )
            } else if elapsed < may_take {
                return WatchDecision::Go;
            } else {
                format!(
                    "### Task abort callback timed out [timeout: {}, elapsed: {:.2}] ###",
                    may_take.as_secs_f64(),
                    elapsed.as_secs_f64()
                )
            };
            return WatchDecision::Stop(why, Some(line));
        }
        let timeout = runtime
            .get(CALLBACK_TIMEOUT)
            .and_then(seconds)
            .unwrap_or_default();
        if timeout == 0.0 || is_done {
            return WatchDecision::Stop(why, None);
        }
        let poll = runtime
            .get(CALLBACK_POLL)
            .and_then(seconds)
            .unwrap_or_default();
        let may_take = Duration::from_secs_f64((timeout + poll).min(most.as_secs_f64()));
        self.callback = Some((now, may_take));
        WatchDecision::Wait(format!(
            "### Task abort callback timeout set, waiting for max {} sec ###",
            may_take.as_secs_f64()
        ))
    }
}

fn seconds(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    (number.is_finite() && number > 0.0).then_some(number)
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.trim(), "" | "0" | "false" | "False"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(1800);

    fn task(status: &str, message: &str, runtime: Value) -> Task {
        serde_json::from_value(serde_json::json!({
            "id": "t", "status": status, "status_message": message, "runtime": runtime,
        }))
        .unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_task_is_left_alone_until_its_user_says_something() {
        let mut watcher = Watcher::default();
        let running = task("in_progress", "pulled by node1:gpu0.5a", Value::Null);
        assert_eq!(
            watcher.observe(Some(&running), at(0), MOST),
            WatchDecision::Go
        );
        let done = task("completed", "", Value::Null);
        assert_eq!(watcher.observe(Some(&done), at(5), MOST), WatchDecision::Go);
        let stopping = task("in_progress", "stopping", Value::Null);
        assert_eq!(
            watcher.observe(Some(&stopping), at(10), MOST),
            WatchDecision::Stop(StopReason::Abort, None)
        );
        assert_eq!(
            watcher.observe(None, at(15), MOST),
            WatchDecision::Stop(StopReason::Gone, None)
        );
        let stopped = task("stopped", "Stopped by me", Value::Null);
        assert_eq!(
            watcher.observe(Some(&stopped), at(20), MOST),
            WatchDecision::Stop(StopReason::Changed, None)
        );
    }

    #[test]
    fn an_end_that_the_tasks_own_agent_told_is_waited_for_in_silence() {
        let worker = "node1:gpu2.25a";
        let own = "Changed by clearml-agent node1:gpu2.25a";
        let look = |watcher: &mut Watcher, status: &str, message: &str, second| {
            let task = task(status, message, Value::Null);
            watcher.look_at(Some(&task), worker, at(second), MOST)
        };
        for status in ["failed", "completed", "closed"] {
            let mut watcher = Watcher::default();
            for second in [0, 5, 59] {
                assert_eq!(
                    look(&mut watcher, status, own, second),
                    WatchDecision::Go,
                    "{status}"
                );
            }
            let hung = look(&mut watcher, status, own, 60);
            assert_eq!(
                hung,
                WatchDecision::Stop(StopReason::Ended, None),
                "{status}"
            );
        }
        let mut watcher = Watcher::default();
        assert_eq!(look(&mut watcher, "failed", own, 0), WatchDecision::Go);
        assert_eq!(
            look(&mut watcher, "in_progress", own, 50),
            WatchDecision::Go,
            "it was started again"
        );
        assert_eq!(look(&mut watcher, "failed", own, 70), WatchDecision::Go);
        assert_eq!(
            look(&mut watcher, "stopped", own, 71),
            WatchDecision::Stop(StopReason::Ended, None)
        );
        for other in [
            "",
            "Stopped by ana",
            "Changed by clearml-agent node1:gpu2.25ab",
            "Changed by clearml-agent other-node1:gpu2.25a",
            "node1:gpu2.25a",
        ] {
            assert_eq!(
                look(&mut Watcher::default(), "failed", other, 0),
                WatchDecision::Stop(StopReason::Changed, None),
                "{other}"
            );
        }
    }

    #[test]
    fn a_reset_counts_once_it_was_seen_five_times_in_a_row() {
        let mut watcher = Watcher::default();
        let (reset, running) = (
            task("created", "", Value::Null),
            task("in_progress", "", Value::Null),
        );
        for _ in 0..4 {
            assert_eq!(
                watcher.observe(Some(&reset), at(0), MOST),
                WatchDecision::Go
            );
        }
        assert_eq!(
            watcher.observe(Some(&running), at(0), MOST),
            WatchDecision::Go
        );
        for _ in 0..4 {
            assert_eq!(
                watcher.observe(Some(&reset), at(0), MOST),
                WatchDecision::Go
            );
        }
        assert_eq!(
            watcher.observe(Some(&reset), at(0), MOST),
            WatchDecision::Stop(StopReason::Reset, None)
        );
    }

    #[test]
    fn an_abort_callback_is_waited_for_until_it_is_done_or_its_time_is_over() {
        let callback = |done: Value| {
            task(
                "in_progress",
                "stopping",
                serde_json::json!({"_abort_callback_timeout": 30, "_abort_poll_freq": "5", "_abort_callback_completed": done}),
            )
        };
        let mut watcher = Watcher::default();
        let pending = callback(Value::Null);
        assert_eq!(
            watcher.observe(Some(&pending), at(100), MOST),
            WatchDecision::Wait(
                "### Task abort callback timeout set, waiting for max 35 sec ###".into()
            )
        );
        assert_eq!(
            watcher.observe(Some(&pending), at(134), MOST),
            WatchDecision::Go
        );
        let mut other = watcher.clone();
        assert_eq!(
            other.observe(Some(&pending), at(135), MOST),
            WatchDecision::Stop(
                StopReason::Abort,
                Some("### Task abort callback timed out [timeout: 35, elapsed: 35.00] ###".into())
            )
        );
        let done = callback(Value::Bool(true));
        assert_eq!(
            watcher.observe(Some(&done), at(134), MOST),
            WatchDecision::Stop(
                StopReason::Abort,
                Some("### Task abort callback completed in 34.00 seconds ###".into())
            )
        );
        let mut short = Watcher::default();
        let WatchDecision::Wait(line) = short.observe(Some(&pending), at(0), at(10)) else {
            panic!()
        };
        assert!(line.contains("max 10 sec"), "{line}");
    }
}
