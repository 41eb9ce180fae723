//! A strict stand-in for the ClearML API server, for tests: the part of its protocol that agents and the SDK use.
//!
//! ```text
//! Stub       a server on 127.0.0.1; gone when dropped
//!  ├ World   its state: queues, tasks, workers, events, and every call that came; tests read and change it
//!  ├ Fault   what is to go wrong with which call, and how often
//!  └ Hold    a call that waits until the test lets it go on
//! ```
//!
//! It is stricter than the server it stands in for: a field that is not in the table of its endpoint, a value of another
//! type and a status that may not follow are refused, and noted ([`Call::complaint`]) so that a test can ask for their
//! absence. What the stock agent and SDK are known to send beyond the server's schema is in the same table. Left out:
//! roles beyond user and guest, several companies, models, artifacts' files, search, statistics.
//!
//! Time is the machine's plus what [`Stub::advance`] has added, so that a worker's ten minutes pass at once.
#![forbid(unsafe_code)]

mod endpoints;
mod fault;
mod http;
mod json;
mod refusal;
mod schema;
mod status;
mod token;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use fault::{Fault, Hold};
pub use refusal::Refusal;
pub use status::Status;
pub use world::{ACCESS_KEY, Call, SECRET_KEY, USER, Worker, World};

/// A running server with a state of its own.
#[derive(Debug)]
pub struct Stub {
    shared: Arc<Shared>,
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    world: Mutex<World>,
    faults: Mutex<Vec<Fault>>,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stub {
    /// Starts one on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When there is no port to be had.
    #[must_use]
    pub fn start() -> Self {
        Self::at(0).expect("127.0.0.1 has a free port")
    }

    /// Starts one on a given port of 127.0.0.1; 0 stands for a free one.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn at(port: u16) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let (port, thread) = http::serve(Arc::clone(&shared), port, stopped)?;
        Ok(Self {
            shared,
            port,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A `clearml.conf` for this server and its user's keys.
    #[must_use]
    pub fn conf(&self) -> String {
        let url = self.url();
        format!(
            "api {{\n  api_server: \"{url}\"\n  web_server: \"{url}\"\n  files_server: \"{url}\"\n  credentials {{\n    \
             access_key: \"{ACCESS_KEY}\"\n    secret_key: \"{SECRET_KEY}\"\n  }}\n}}\n"
        )
    }

    /// Looks at the state, or changes it. Calls wait meanwhile.
    pub fn with<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        look(&mut self.shared.world())
    }

    /// Does what a call of the user would do, without HTTP and without an entry in the list of calls.
    ///
    /// # Errors
    /// The refusal that the server would answer.
    pub fn call(&self, endpoint: &str, body: Value) -> Result<Value, Refusal> {
        endpoints::perform(&mut self.shared.world(), endpoint, &body)
    }

    /// The same for `events.add_batch`, whose body is lines of JSON.
    ///
    /// # Errors
    /// The refusal that the server would answer.
    pub fn add_batch(&self, lines: &str) -> Result<Value, Refusal> {
        endpoints::add_batch(&mut self.shared.world(), lines)
    }

    /// The same where a refusal is a mistake in the test.
    ///
    /// # Panics
    /// When it is refused.
    #[track_caller]
    pub fn must(&self, endpoint: &str, body: Value) -> Value {
        let said = body.to_string();
        self.call(endpoint, body)
            .unwrap_or_else(|refusal| panic!("{endpoint} {said}: {refusal}"))
    }

    /// Makes a queue, or finds the one that has this name; its id.
    ///
    /// # Panics
    /// When the name has less than three characters.
    #[track_caller]
    pub fn queue(&self, name: &str) -> String {
        let found = self.with(|world| world.queue_named(name));
        found.unwrap_or_else(|| text(&self.must("queues.create", json!({ "name": name })), "id"))
    }

    /// Makes a draft task; its id. `edits` are fields of `tasks.edit`: `container`, `script`, `type`, …
    ///
    /// # Panics
    /// When they are not.
    #[track_caller]
    pub fn task(&self, name: &str, edits: Value) -> String {
        let task = text(
            &self.must("tasks.create", json!({ "name": name, "type": "training" })),
            "id",
        );
        let mut edits = edits;
        if let Some(edits) = edits.as_object_mut().filter(|edits| !edits.is_empty()) {
            edits.insert("task".to_owned(), json!(task));
            self.must("tasks.edit", json!(edits));
        }
        task
    }

    /// Makes a task and puts it at the end of a queue, which is made where it is not there; the task's id.
    ///
    /// # Panics
    /// When `edits` are not fields of `tasks.edit`.
    #[track_caller]
    pub fn enqueued(&self, queue: &str, name: &str, edits: Value) -> String {
        let (queue, task) = (self.queue(queue), self.task(name, edits));
        self.must("tasks.enqueue", json!({ "task": task, "queue": queue }));
        task
    }

    /// Status of a task; nothing when it was deleted.
    #[must_use]
    pub fn status(&self, task: &str) -> Option<Status> {
        self.with(|world| world.status(task))
    }

    /// A task with all its fields; null when it was deleted.
    #[must_use]
    pub fn task_fields(&self, task: &str) -> Value {
        self.with(|world| {
            world
                .tasks
                .get(task)
                .cloned()
                .map_or(Value::Null, Value::Object)
        })
    }

    /// Tasks that wait in a queue, first to last.
    #[must_use]
    pub fn waiting(&self, queue: &str) -> Vec<String> {
        self.with(|world| world.waiting(queue))
    }

    /// Workers that are known now, by id.
    #[must_use]
    pub fn workers(&self) -> Vec<Worker> {
        self.with(|world| world.workers().cloned().collect())
    }

    /// What was logged for a task, joined.
    #[must_use]
    pub fn log(&self, task: &str) -> String {
        self.with(|world| world.log(task))
    }

    /// Every call that came over HTTP, in order of their answers.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.with(|world| world.calls.clone())
    }

    /// Calls to one endpoint.
    #[must_use]
    pub fn calls_to(&self, endpoint: &str) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.endpoint == endpoint);
        calls
    }

    /// What callers have done that this server is strict about, a line each: unknown fields and endpoints, wrong types, changes
    /// of status that may not be.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.calls()
            .iter()
            .filter_map(|call| {
                let why = call.complaint.as_ref()?;
                Some(format!("{} {}: {why}", call.endpoint, call.body))
            })
            .collect()
    }

    /// Lets time pass at once, for workers' and tokens' ages.
    pub fn advance(&self, by: Duration) {
        self.with(|world| world.advance(by));
    }

    /// Makes calls go wrong.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults().push(fault);
    }

    /// Holds the next call to an endpoint before anything of it is done.
    #[must_use]
    pub fn hold_before(&self, endpoint: &str) -> Hold {
        let (fault, hold) = Fault::hold_before(endpoint);
        self.inject(fault);
        hold
    }

    /// Holds the answer to the next call to an endpoint when all of it has been done.
    #[must_use]
    pub fn hold_after(&self, endpoint: &str) -> Hold {
        let (fault, hold) = Fault::hold_after(endpoint);
        self.inject(fault);
        hold
    }

    /// Takes back every fault that has not happened. Held calls stay held.
    pub fn heal(&self) {
        self.shared.faults().clear();
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[track_caller]
fn text(answer: &Value, field: &str) -> String {
    let found = answer[field].as_str();
    found
        .unwrap_or_else(|| panic!("{field} is not in {answer}"))
        .to_owned()
}
