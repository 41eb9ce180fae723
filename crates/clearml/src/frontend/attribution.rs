//! Attribution of an end: which user or worker of the server stopped, reset, dequeued or took a task, in words for the
//! job's record. Pure but for the calls that read the task and its user's name.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use super::task_state::StopReason;
use super::watch::is_stopping;
use crate::facts::{beginning, one_line};
use crate::server::{Status, Task};

/// Bytes of the words, as the daemon takes them.
const LONGEST: usize = 256;

/// The server's message of `tasks.stop` begins so; the user's name follows.
const STOPPED_BY: &str = "Stopped by ";

/// Why these tasks of a queue are not claimed, by task: they left the queue. Where the server does not answer, the
/// words say no more than is known.
pub async fn of_waiting(
    context: &Context,
    queue: &str,
    tasks: &[String],
) -> BTreeMap<String, String> {
    let Ok(found) = context.server.tasks(tasks).await else {
        let unknown = "it left its queue on the ClearML server".to_owned();
        let unknown = tasks.iter().map(|id| (id.clone(), unknown.clone()));
        return unknown.collect();
    };
    let names = names(context, &found).await;
    let words = |id: &String| {
        let task = found.iter().find(|task| task.id == *id);
        (id.clone(), waiting(task, queue, &names))
    };
    tasks.iter().map(words).collect()
}

/// Why a task that runs is stopped.
pub async fn of_running(context: &Context, why: StopReason, id: &str) -> String {
    let found = match why {
        StopReason::Gone | StopReason::Ended | StopReason::Shutdown => Vec::new(),
        StopReason::Abort | StopReason::Changed | StopReason::Reset => {
            let asked = context.server.tasks(&[id.to_owned()]).await;
            asked.unwrap_or_default()
        }
    };
    let names = names(context, &found).await;
    running(why, found.first(), &names)
}

/// The names of the users that changed these tasks last.
async fn names(context: &Context, tasks: &[Task]) -> BTreeMap<String, String> {
    let ids: BTreeSet<&str> = tasks.iter().filter_map(Task::last_changed_by).collect();
    let ids: Vec<String> = ids.into_iter().map(str::to_owned).collect();
    if ids.is_empty() {
        BTreeMap::new()
    } else {
        context.server.user_names(&ids).await.unwrap_or_default()
    }
}

fn waiting(task: Option<&Task>, queue: &str, names: &BTreeMap<String, String>) -> String {
    let on_server = "on the ClearML server";
    let Some(task) = task else {
        return format!("deleted {on_server}");
    };
    let by = by(task, names);
    let worker = task.last_worker().and_then(one_line);
    let message = task.status_message.as_deref().unwrap_or_default();
    let words = match task.status {
        Status::Created => format!("dequeued {on_server}{by}"),
        Status::Stopped if message.starts_with(STOPPED_BY) => format!("stopped {on_server}{by}"),
        // A task that was queued again after its end has that status again, and no message.
        Status::Stopped | Status::Completed | Status::Failed if message.is_empty() => {
            format!("dequeued {on_server}{by}")
        }
        Status::Queued if task.queue().is_some_and(|other| other != queue) => {
            format!("moved to another queue {on_server}{by}")
        }
        Status::Queued => "taken from its queue by another worker".to_owned(),
        Status::InProgress | Status::Completed | Status::Failed | Status::Stopped => match worker {
            Some(worker) => format!("taken by another worker, {worker}"),
            None => "taken by another worker".to_owned(),
        },
        Status::Published | Status::Publishing | Status::Closed | Status::Unknown => {
            format!("its status was changed {on_server}{by}")
        }
    };
    beginning(&words, LONGEST).to_owned()
}

fn running(why: StopReason, task: Option<&Task>, names: &BTreeMap<String, String>) -> String {
    let by = task.map(|task| by(task, names)).unwrap_or_default();
    let words = match why {
        StopReason::Abort => format!("stopped on the ClearML server{by}"),
        StopReason::Reset => format!("reset on the ClearML server{by}"),
        StopReason::Gone => "deleted on the ClearML server".to_owned(),
        StopReason::Changed => format!("its status was changed on the ClearML server{by}"),
        StopReason::Ended => "its own agent had reported its end".to_owned(),
        StopReason::Shutdown => "the daemon was stopped".to_owned(),
    };
    beginning(&words, LONGEST).to_owned()
}

/// ` by Ana Ruiz`; empty where the server does not tell the name.
fn by(task: &Task, names: &BTreeMap<String, String>) -> String {
    let message = task.status_message.as_deref().unwrap_or_default();
    let said = message.strip_prefix(STOPPED_BY).and_then(one_line);
    let changed = task.last_changed_by().and_then(|id| names.get(id).cloned());
    // While a task is being stopped its message is the bare word, and while it runs the last change may be our own.
    let is_users = said.is_some() || task.status != Status::InProgress || is_stopping(task);
    let name = said.or(changed).filter(|_| is_users);
    name.map(|name| format!(" by {name}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(task: serde_json::Value) -> String {
        let task: Option<Task> = serde_json::from_value(task).unwrap();
        let names = BTreeMap::from([("u1".to_owned(), "Ana Ruiz".to_owned())]);
        waiting(task.as_ref(), "q1", &names)
    }

    #[test]
    fn a_task_that_left_its_queue_says_whose_doing_it_was() {
        let queue = json!({"queue": "q1"});
        for (task, says) in [
            (json!(null), "deleted on the ClearML server"),
            (
                json!({"status": "created", "last_changed_by": "u1"}),
                "dequeued on the ClearML server by Ana Ruiz",
            ),
            (
                json!({"status": "created", "last_changed_by": "u2"}),
                "dequeued on the ClearML server",
            ),
            (
                json!({"status": "stopped", "status_message": "Stopped by Bob\nLee"}),
                "stopped on the ClearML server by Bob Lee",
            ),
            (
                json!({"status": "failed", "status_message": "", "last_worker": "node2:gpu0", "last_changed_by": "u1"}),
                "dequeued on the ClearML server by Ana Ruiz",
            ),
            (
                json!({"status": "stopped", "status_message": "Changed by clearml-agent node2:gpu0", "last_worker": "node2:gpu0"}),
                "taken by another worker, node2:gpu0",
            ),
            (
                json!({"status": "queued", "execution": {"queue": "q2"}, "last_changed_by": "u1"}),
                "moved to another queue on the ClearML server by Ana Ruiz",
            ),
            (
                json!({"status": "queued", "execution": queue, "last_changed_by": "u1"}),
                "taken from its queue by another worker",
            ),
            (
                json!({"status": "in_progress", "last_worker": "node2:gpu0"}),
                "taken by another worker, node2:gpu0",
            ),
            (
                json!({"status": "published", "last_changed_by": "u1"}),
                "its status was changed on the ClearML server by Ana Ruiz",
            ),
        ] {
            assert_eq!(words(task.clone()), says, "{task}");
        }
        let long = json!({"status": "in_progress", "last_worker": "x".repeat(1 << 20)});
        assert!(words(long).len() <= LONGEST);
    }

    #[test]
    fn a_running_task_names_the_user_that_stopped_it_and_never_the_last_reporter() {
        let names = BTreeMap::from([("u1".to_owned(), "Ana Ruiz".to_owned())]);
        let task = |status: &str, message: &str| -> Task {
            let task =
                json!({"status": status, "status_message": message, "last_changed_by": "u1"});
            serde_json::from_value(task).unwrap()
        };
        let says = |why, task: Option<&Task>| running(why, task, &names);
        let stopping = task("in_progress", "stopping");
        assert_eq!(
            says(StopReason::Abort, Some(&stopping)),
            "stopped on the ClearML server by Ana Ruiz"
        );
        let ours = task("in_progress", "pulled by node1:gpu0");
        assert_eq!(
            says(StopReason::Abort, Some(&ours)),
            "stopped on the ClearML server"
        );
        assert_eq!(
            says(StopReason::Reset, Some(&task("created", ""))),
            "reset on the ClearML server by Ana Ruiz"
        );
        assert_eq!(
            says(StopReason::Gone, None),
            "deleted on the ClearML server"
        );
    }
}
