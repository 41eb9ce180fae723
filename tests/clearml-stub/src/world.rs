//! The server's state.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::json::{Fields, put, string};
use crate::status::Status;

/// The user's key.
pub const ACCESS_KEY: &str = "STUBACCESSKEY";
/// Its secret.
pub const SECRET_KEY: &str = "stub-secret-key-0123456789";
/// Id of the user that the key belongs to.
pub const USER: &str = "ana";
/// Company of everything here.
pub(crate) const COMPANY: &str = "company";

/// How long a token lives: the server's default of 30 days.
const TOKEN_LIFE: SignedDuration = SignedDuration::from_hours(24 * 30);
/// The version whose answers these are.
const API_VERSION: &str = "2.34";
/// One that does not know `task` in `queues.get_next_task`, which came with 2.21.
const OLD_API_VERSION: &str = "2.20";

/// Tasks that one queue holds, first to last, and its fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub fields: Fields,
    /// Task and when it was added.
    pub entries: Vec<(String, Timestamp)>,
}

/// A worker as the server knows it.
#[derive(Clone, Debug)]
pub struct Worker {
    pub id: String,
    /// Ids of the queues that it serves.
    pub queues: Vec<String>,
    pub tags: Vec<String>,
    /// The task that its last report named.
    pub task: Option<String>,
    /// How long it is remembered after its last sign of life.
    pub timeout: Duration,
    pub registered: Timestamp,
    pub seen: Timestamp,
    /// The machine stats of its last report that had some.
    pub stats: Value,
    /// Reports since it became known.
    pub reports: usize,
}

/// A call that came over HTTP.
#[derive(Clone, Debug)]
pub struct Call {
    /// `service.action`.
    pub endpoint: String,
    /// `POST`, `GET`, …
    pub method: String,
    /// What `X-ClearML-Worker` said.
    pub worker: String,
    /// What `X-ClearML-Agent` or `X-ClearML-Client` said.
    pub client: String,
    /// The body; for `events.add_batch` the list of its lines.
    pub body: Value,
    /// HTTP status of the answer, and the server's subcode.
    pub code: u16,
    pub subcode: u16,
    /// What the caller did that this server is strict about.
    pub complaint: Option<String>,
    pub at: Timestamp,
}

/// The server's state: what the calls of all endpoints read and change.
#[derive(Debug, Default)]
pub struct World {
    pub(crate) queues: BTreeMap<String, Queue>,
    pub(crate) tasks: BTreeMap<String, Fields>,
    pub(crate) projects: BTreeMap<String, Fields>,
    /// Names of users, by id.
    pub users: BTreeMap<String, String>,
    pub(crate) workers: BTreeMap<String, Worker>,
    /// Events as they came, in order.
    pub events: Vec<Fields>,
    /// Every call, in order of the answers.
    pub calls: Vec<Call>,
    /// Whether the server is one that pops whatever is first, as before API 2.21.
    pub is_old: bool,
    /// Objects of one answer; `None`: the server's own 500 (`max_page_size`).
    pub page_size: Option<usize>,
    /// Tokens issued before this moment count no more.
    pub(crate) tokens_from: Option<Timestamp>,
    ahead: SignedDuration,
    made: u64,
}

impl World {
    /// The server's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::now() + self.ahead
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.ahead += SignedDuration::try_from(by).expect("tests advance by less than an age");
    }

    /// The server's time as its fields have it.
    pub(crate) fn stamp(&self) -> Value {
        json!(stamp(self.now()))
    }

    /// Makes tokens that were issued worthless, as a change of the server's secret does.
    pub fn revoke_tokens(&mut self) {
        self.tokens_from = Some(self.now());
    }

    pub(crate) fn api_version(&self) -> &'static str {
        if self.is_old {
            OLD_API_VERSION
        } else {
            API_VERSION
        }
    }

    /// What a token that is issued now claims.
    pub(crate) fn token_claims(&self, user: &str, role: &str, life: Option<i64>) -> Value {
        let now = self.now();
        let life = life.map_or(TOKEN_LIFE, SignedDuration::from_secs);
        json!({
            "iat": now.as_second(), "exp": (now + life).as_second(), "iat_us": now.as_microsecond(),
            "auth_type": "Bearer", "env": "<unknown>", "api_version": self.api_version(),
            "server_version": "2.3.0", "server_build": "1", "feature_set": "basic",
            "identity": { "user": user, "company": COMPANY, "role": role, "user_name": user, "company_name": COMPANY },
        })
    }

    /// A new id, 32 hexadecimal digits as the server's.
    pub(crate) fn id(&mut self) -> String {
        self.made += 1;
        // Spread, so that order and the first digits say nothing.
        let spread = u128::from(self.made).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        format!("{spread:032x}")
    }

    /// A new id, and what is made under it of what a caller said.
    pub(crate) fn made(&mut self, body: &Fields) -> (String, Fields) {
        let id = self.id();
        let mut fields = body.clone();
        for (field, value) in [
            ("id", json!(id)),
            ("company", json!(COMPANY)),
            ("user", json!(USER)),
            ("created", self.stamp()),
        ] {
            fields.insert(field.to_owned(), value);
        }
        (id, fields)
    }

    /// Id of the queue of this name.
    #[must_use]
    pub fn queue_named(&self, name: &str) -> Option<String> {
        let found = self
            .queues
            .iter()
            .find(|(_, queue)| string(&queue.fields, "name") == name);
        found.map(|(id, _)| id.clone())
    }

    /// Tasks in the queue of this name or id, first to last.
    #[must_use]
    pub fn waiting(&self, queue: &str) -> Vec<String> {
        let id = self.queue_named(queue).unwrap_or_else(|| queue.to_owned());
        let entries = self
            .queues
            .get(&id)
            .map(|queue| &queue.entries[..])
            .unwrap_or_default();
        entries.iter().map(|(task, _)| task.clone()).collect()
    }

    pub(crate) fn user_name(&self, id: &str) -> Option<String> {
        self.users.get(id).cloned()
    }

    pub(crate) fn project_name(&self, id: &str) -> Option<String> {
        let project = self.projects.get(id)?;
        Some(string(project, "name").to_owned())
    }

    /// Status of a task.
    #[must_use]
    pub fn status(&self, task: &str) -> Option<Status> {
        Status::named(string(self.tasks.get(task)?, "status"))
    }

    /// Workers that have given a sign of life within their time.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        let now = self.now();
        self.workers.values().filter(move |worker| {
            SignedDuration::try_from(worker.timeout)
                .is_ok_and(|timeout| worker.seen + timeout > now)
        })
    }

    /// Forgets the workers whose time is over.
    pub(crate) fn forget(&mut self) {
        let alive: Vec<String> = self.workers().map(|worker| worker.id.clone()).collect();
        self.workers.retain(|id, _| alive.contains(id));
    }

    /// What was logged for a task, joined.
    #[must_use]
    pub fn log(&self, task: &str) -> String {
        let logged = self
            .events
            .iter()
            .filter(|event| string(event, "type") == "log" && string(event, "task") == task);
        logged.map(|event| string(event, "msg")).collect()
    }

    /// Tasks that anybody has made, without those that were deleted.
    pub fn task_ids(&self) -> impl Iterator<Item = &str> {
        self.tasks.keys().map(String::as_str)
    }

    /// Puts a value at a dotted path of a task, as no call could.
    ///
    /// # Panics
    /// When there is no such task.
    pub fn set(&mut self, task: &str, path: &str, value: Value) {
        let fields = self.tasks.get_mut(task).expect("the task is there");
        put(fields, path, value);
    }
}

pub(crate) fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string()
}
