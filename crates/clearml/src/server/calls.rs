//! The API calls of the ClearML server, one function each.

use std::collections::BTreeMap;

use reqwest::Method as Verb;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::{Event, Popped, QueueFacts, StatusReport, Task, Worker};
use super::error::{ServerError, Subcode};
use super::http::{JSON_LINES, Request, Server};
use crate::facts::{Facts, one_line};

/// Fields of a task that are read before it runs.
const BEFORE: [&str; 11] = [
    "id",
    "name",
    "status",
    "status_message",
    "container",
    "user",
    "project",
    "runtime",
    "execution.queue",
    "last_changed_by",
    "last_worker",
];

/// Fields that are watched while it runs.
const WHILE: [&str; 7] = [
    "id",
    "status",
    "status_message",
    "runtime",
    "execution.queue",
    "last_changed_by",
    "last_worker",
];

#[derive(Deserialize)]
struct Queues {
    #[serde(default)]
    queues: Vec<QueueFacts>,
}

#[derive(Deserialize)]
struct OneQueue {
    queue: QueueFacts,
}

#[derive(Deserialize)]
struct Tasks {
    #[serde(default)]
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Values {
    #[serde(default)]
    tasks: Vec<Value>,
}

#[derive(Deserialize)]
struct Workers {
    #[serde(default)]
    workers: Vec<Worker>,
}

#[derive(Deserialize)]
struct CreatedQueue {
    id: String,
}

/// An answer that is not read.
type Unread = Value;

impl Server {
    /// The queue of this name or id.
    ///
    /// # Errors
    /// The server's error; so for every call here.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueFacts>, ServerError> {
        let body = json!({
            "name": format!("^{}$", escaped(name)),
            "only_fields": ["id", "name"],
            "search_hidden": true,
        });
        let found: Queues = self.call("queues.get_all", body).await?;
        // The server's own idea of a regular expression is not ours to trust.
        if let Some(queue) = found.queues.into_iter().find(|queue| queue.name == name) {
            return Ok(Some(queue));
        }
        let body = json!({"id": [name], "only_fields": ["id", "name"], "search_hidden": true});
        match self.call::<Queues>("queues.get_all", body).await {
            Ok(found) => Ok(found.queues.into_iter().find(|queue| queue.id == name)),
            Err(error) if error.refusal() == Some(Subcode::NoQueue) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The queue that is tagged as the default one.
    pub async fn default_queue(&self) -> Result<QueueFacts, ServerError> {
        self.call("queues.get_default", json!({})).await
    }

    /// Makes a queue; answers its id.
    pub async fn create_queue(&self, name: &str) -> Result<String, ServerError> {
        let made: CreatedQueue = self.call("queues.create", json!({"name": name})).await?;
        Ok(made.id)
    }

    /// The queue of this name or id; where there is none it is made, if `create` says so.
    pub async fn find_queue(
        &self,
        name: &str,
        create: bool,
    ) -> Result<Option<QueueFacts>, ServerError> {
        let found = self.queue(name).await?;
        if found.is_some() || !create {
            return Ok(found);
        }
        let id = self.create_queue(name).await?;
        tracing::info!(queue = name, "created a queue on the ClearML server");
        Ok(Some(QueueFacts {
            id,
            name: name.to_owned(),
            ..QueueFacts::default()
        }))
    }

    /// A queue with its first `most` tasks, asked once.
    pub async fn head(&self, queue: &str, most: usize) -> Result<QueueFacts, ServerError> {
        let body = json!({"queue": queue, "max_task_entries": most});
        let found: OneQueue = self.call_once("queues.get_by_id", body).await?;
        Ok(found.queue)
    }

    /// Takes this task from its queue if it is the first there. A server older than API 2.21 takes the first, whichever it is.
    pub async fn pop(&self, queue: &str, task: &str) -> Result<Popped, ServerError> {
        let body = json!({"queue": queue, "task": task, "get_task_info": true});
        // Asked twice, it would say of a task that it has just given us that it is not there.
        self.call_once("queues.get_next_task", body).await
    }

    /// Puts a task into a queue, last.
    pub async fn add(&self, queue: &str, task: &str) -> Result<(), ServerError> {
        let body = json!({"queue": queue, "task": task});
        self.call::<Unread>("queues.add_task", body).await.map(drop)
    }

    /// Makes a task of a queue its first.
    pub async fn move_to_front(&self, queue: &str, task: &str) -> Result<(), ServerError> {
        let body = json!({"queue": queue, "task": task});
        self.call::<Unread>("queues.move_task_to_front", body)
            .await
            .map(drop)
    }

    /// A task with what is needed to run it.
    pub async fn task(&self, task: &str) -> Result<Option<Task>, ServerError> {
        let found: Tasks = self
            .call("tasks.get_all", of_tasks(&[task.to_owned()], &BEFORE))
            .await?;
        Ok(found.tasks.into_iter().next())
    }

    /// The current state of these tasks; deleted tasks are left out.
    pub async fn tasks(&self, tasks: &[String]) -> Result<Vec<Task>, ServerError> {
        let mut found = Vec::with_capacity(tasks.len());
        for some in tasks.chunks(MOST_TASKS) {
            let mut missing = some.to_vec();
            // A server with a smaller page leaves tasks out as if they were deleted: only one that is missing from an answer with no
            // other task is.
            while !missing.is_empty() {
                let page: Tasks = self
                    .call_once("tasks.get_all", of_tasks(&missing, &WHILE))
                    .await?;
                let before = missing.len();
                missing.retain(|id| page.tasks.iter().all(|task| task.id != *id));
                found.extend(page.tasks);
                if missing.len() == before {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// The display names of these tasks, their users and their projects, in one call.
    pub async fn names(&self, tasks: &[String]) -> Result<BTreeMap<String, Facts>, ServerError> {
        let fields = ["id", "name", "user.name", "project.name", "parent"];
        let found: Values = self
            .call_once("tasks.get_all_ex", of_tasks(tasks, &fields))
            .await?;
        let named = found.tasks.iter().filter_map(|task| {
            let id = task["id"].as_str()?;
            Some((id.to_owned(), Facts::of(task)))
        });
        Ok(named.collect())
    }

    /// The names of these users, as far as the server tells them.
    pub async fn user_names(
        &self,
        ids: &[String],
    ) -> Result<BTreeMap<String, String>, ServerError> {
        let body = json!({"id": ids, "only_fields": ["id", "name"]});
        let found: Value = self.call_once("users.get_all", body).await?;
        let users = found["users"].as_array().into_iter().flatten();
        let named = users.filter_map(|user| {
            let name = one_line(user["name"].as_str()?)?;
            Some((user["id"].as_str()?.to_owned(), name))
        });
        Ok(named.collect())
    }

    /// Takes a task from the middle of its queue; whether it was there.
    pub async fn remove(&self, queue: &str, task: &str) -> Result<bool, ServerError> {
        let body = json!({"queue": queue, "task": task});
        let removed: Value = self.call_once("queues.remove_task", body).await?;
        Ok(removed["removed"].as_u64() != Some(0))
    }

    /// Says that a task runs. Without force, and all the same a server takes it of a task that its user has stopped or reset: it is to
    /// be looked at right before.
    pub async fn started(&self, task: &str, message: &str) -> Result<(), ServerError> {
        let body =
            json!({"task": task, "status_reason": "pulled by agent", "status_message": message});
        self.call::<Unread>("tasks.started", body).await.map(drop)
    }

    /// Replaces a task's runtime properties, all of them.
    pub async fn set_runtime(
        &self,
        task: &str,
        runtime: &Map<String, Value>,
    ) -> Result<(), ServerError> {
        let body = json!({"task": task, "force": true, "runtime": runtime});
        self.call::<Unread>("tasks.edit", body).await.map(drop)
    }

    /// Writes a task's container.
    pub async fn set_container(
        &self,
        task: &str,
        container: &super::Container,
    ) -> Result<(), ServerError> {
        let body = json!({"task": task, "force": true, "container": container});
        self.call::<Unread>("tasks.edit", body).await.map(drop)
    }

    pub async fn ping(&self, task: &str) -> Result<(), ServerError> {
        self.call::<Unread>("tasks.ping", json!({"task": task}))
            .await
            .map(drop)
    }

    pub async fn completed(
        &self,
        task: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), ServerError> {
        let body = json!({"task": task, "status_reason": reason, "status_message": message});
        self.call::<Unread>("tasks.completed", body).await.map(drop)
    }

    pub async fn failed(&self, task: &str, reason: &str, message: &str) -> Result<(), ServerError> {
        let body = json!({"task": task, "status_reason": reason, "status_message": message});
        self.call::<Unread>("tasks.failed", body).await.map(drop)
    }

    /// Fails a task that was never started: from `queued` there is no way to `failed` but force.
    pub async fn failed_unstarted(
        &self,
        task: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), ServerError> {
        let body = json!({"task": task, "status_reason": reason, "status_message": message, "force": true});
        self.call::<Unread>("tasks.failed", body).await.map(drop)
    }

    /// Sets a task's status message, in any status: the reason why it waits.
    pub async fn say_status(&self, task: &str, message: &str) -> Result<(), ServerError> {
        let body = json!({"task": task, "status_message": message});
        self.call::<Unread>("tasks.update", body).await.map(drop)
    }

    pub async fn stopped(
        &self,
        task: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), ServerError> {
        let body = json!({"task": task, "status_reason": reason, "status_message": message, "force": false});
        self.call::<Unread>("tasks.stopped", body).await.map(drop)
    }

    /// Makes a task a draft again: what it was, less what its run left.
    pub async fn reset(&self, task: &str) -> Result<(), ServerError> {
        self.call::<Unread>("tasks.reset", json!({"task": task, "force": true}))
            .await
            .map(drop)
    }

    /// Puts a task that is a draft, or has ended, into a queue.
    pub async fn enqueue(&self, queue: &str, task: &str) -> Result<(), ServerError> {
        let body = json!({"queue": queue, "task": task});
        self.call::<Unread>("tasks.enqueue", body).await.map(drop)
    }

    /// Puts a worker on the server's list.
    pub async fn register(
        &self,
        worker: &str,
        queues: &[String],
        timeout: u64,
        tags: &[String],
    ) -> Result<(), ServerError> {
        let body = json!({"worker": worker, "queues": queues, "timeout": timeout, "tags": tags});
        self.call::<Unread>("workers.register", body)
            .await
            .map(drop)
    }

    /// Takes it off.
    pub async fn unregister(&self, worker: &str) -> Result<(), ServerError> {
        let body = json!({"worker": worker, "queues": []});
        self.call::<Unread>("workers.unregister", body)
            .await
            .map(drop)
    }

    /// Reports a worker's state and figures, in one call; the next report repeats them.
    pub async fn report(&self, report: &StatusReport) -> Result<(), ServerError> {
        let body = serde_json::to_value(report).unwrap_or_default();
        self.call_once::<Unread>("workers.status_report", body)
            .await
            .map(drop)
    }

    /// Slots of the daemons called `name` that were heard of in the last `seconds`, asked once. The server's pattern is a glob:
    /// the caller looks at the names itself.
    pub async fn slots(&self, name: &str, seconds: u64) -> Result<Vec<Worker>, ServerError> {
        let body = json!({"last_seen": seconds, "worker_pattern": slots_of(name)});
        let found: Workers = self.call_once("workers.get_all", body).await?;
        Ok(found.workers)
    }

    /// Adds events to logs, in requests of at most a mebibyte, as the stock agent does.
    pub async fn add_events(&self, events: &[Event]) -> Result<(), ServerError> {
        let lines: Vec<String> = events
            .iter()
            .map(|event| serde_json::to_string(event).unwrap_or_default())
            .collect();
        for request in requests(&lines, MOST_REQUEST.min(self.most())) {
            let body = request.join("\n");
            let what = Request {
                endpoint: "events.add_batch",
                verb: Verb::POST,
                kind: JSON_LINES,
                retries: self.retries(),
            };
            self.send::<Unread>(&what, body).await?;
        }
        Ok(())
    }
}

fn of_tasks(tasks: &[String], fields: &[&str]) -> Value {
    json!({"id": tasks, "only_fields": fields, "search_hidden": true})
}

/// `node1:gpu*`. A letter that means something in a glob is any letter.
fn slots_of(name: &str) -> String {
    let plain = |one: char| if "*?[]^\\".contains(one) { '?' } else { one };
    let name: String = name.chars().map(plain).collect();
    format!("{name}:gpu*")
}

/// Tasks of one answer: `max_page_size` of the server's configuration (`services/_mongo.conf`), which leaves out the rest.
const MOST_TASKS: usize = 500;

/// Bytes of one request of events, as the stock agent sends them.
const MOST_REQUEST: usize = 1 << 20;

/// Cuts lines into requests of at most `most` bytes, line breaks counted; a line that is longer goes alone.
fn requests(lines: &[String], most: usize) -> Vec<&[String]> {
    let mut requests = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (at, line) in lines.iter().enumerate() {
        let length = line.len() + 1;
        if at > from && bytes + length > most {
            requests.push(&lines[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += length;
    }
    if from < lines.len() {
        requests.push(&lines[from..]);
    }
    requests
}

/// A name as a regular expression that matches it alone, in the dialects of Python and MongoDB.
fn escaped(name: &str) -> String {
    let mut pattern = String::new();
    for letter in name.chars() {
        if letter.is_ascii() && !letter.is_ascii_alphanumeric() && letter != '_' {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queues_name_is_no_pattern() {
        assert_eq!(escaped("half_gpu"), "half_gpu");
        assert_eq!(escaped("a.b (c)=1 ü"), "a\\.b\\ \\(c\\)\\=1\\ ü");
    }

    #[test]
    fn a_daemons_name_is_no_glob() {
        assert_eq!(slots_of("node-1.a"), "node-1.a:gpu*");
        assert_eq!(slots_of("n[1]*\\"), "n?1???:gpu*");
    }

    #[test]
    fn events_are_sent_in_requests_of_bounded_size() {
        let lines: Vec<String> = [3, 3, 3, 20, 1].map(|n| "x".repeat(n)).into();
        let sizes: Vec<usize> = requests(&lines, 8)
            .iter()
            .map(|request| request.len())
            .collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
        assert_eq!(requests(&[], 8).len(), 0);
    }
}
