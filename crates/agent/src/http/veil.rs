//! What a caller may see of jobs. Everybody sees that there are jobs and what they hold; what they run is their owners' to see.
//!
//! The gate draws the veil over every answer about jobs. A handler that writes thousands of them draws it over each before it is
//! written, and says so with [`Drawn`]: to read the whole answer again would take longer than to make it.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use divvy_api::v1::{self, JobState};
use serde_json::Value;

use super::body::Failure;
use super::internal;
use crate::access::Caller;

/// Answers about jobs are lists of them, whose commands take most of it.
const ANSWER_LIMIT: usize = 1 << 30;

/// An answer says with it that the veil lies over it already.
#[derive(Clone, Copy, Debug)]
pub struct Drawn;

/// What the caller of a request sees of others' jobs: with the request's extensions.
#[derive(Clone, Debug)]
pub struct Sight(Caller);

impl Sight {
    pub fn of(caller: &Caller) -> Self {
        Self(caller.clone())
    }

    /// Whether it sees what this user's jobs run.
    pub fn sees(&self, owner: u32) -> bool {
        self.0.sees(owner)
    }

    /// Takes out of a job what is only its owner's to see.
    pub fn draw(&self, job: &mut v1::Job) {
        if job.uid.is_some_and(|owner| self.sees(owner)) {
            return;
        }
        job.command.clear();
        job.secrets.clear();
        job.labels.clear();
        job.cwd.clear();
        job.directory.clear();
        (job.container, job.claim, job.slice_directory) = (None, None, None);
        // How they came about names files.
        (job.limiter, job.group) = (None, None);
        if job.state == JobState::Ended {
            job.reason = None;
        }
        job.redacted = true;
    }
}

/// Takes out of answers about jobs what is only their owners' to see.
pub struct Veil {
    caller: Caller,
    /// Whose job the call is about.
    owner: Option<u32>,
}

impl Veil {
    pub fn of(request: &Request, caller: &Caller, owner: Option<u32>) -> Option<Self> {
        let is_job = request.uri().path().starts_with("/v1/jobs");
        (is_job && !caller.sees_everybody()).then(|| Self {
            caller: caller.clone(),
            owner,
        })
    }

    pub async fn over(&self, response: Response) -> Result<Response, Failure> {
        let (mut parts, body) = response.into_parts();
        let body = to_bytes(body, ANSWER_LIMIT)
            .await
            .map_err(|error| internal(&error))?;
        let mut answer: Value = serde_json::from_slice(&body).map_err(|error| internal(&error))?;
        let draw: fn(&Self, &mut Value) = match answer["kind"].as_str() {
            Some("JobList") => Self::draw,
            Some("Why") => Self::mute,
            _ => |_, _| {},
        };
        if let Some(items) = answer["items"].as_array_mut() {
            items.iter_mut().for_each(|item| draw(self, item));
        }
        let body = serde_json::to_vec(&answer).map_err(|error| internal(&error))?;
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    /// Why one waits is everybody's business; what went wrong in a program is its owner's.
    fn mute(&self, why: &mut Value) {
        if self.owner.is_none_or(|owner| !self.caller.sees(owner)) && why["state"] == "ended" {
            why["summary"] = "it has ended".into();
        }
    }

    fn draw(&self, job: &mut Value) {
        let owner = job["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok());
        if owner.is_some_and(|owner| self.caller.sees(owner)) {
            return;
        }
        let Some(job) = job.as_object_mut() else {
            return;
        };
        for (field, nothing) in [
            ("command", Value::Array(Vec::new())),
            ("secrets", Value::Array(Vec::new())),
            ("labels", Value::Object(serde_json::Map::new())),
            ("container", Value::Null),
            ("claim", Value::Null),
            ("cwd", Value::String(String::new())),
            ("directory", Value::String(String::new())),
            ("slice_directory", Value::Null),
            // How they came about names files.
            ("limiter", Value::Null),
            ("group", Value::Null),
        ] {
            if let Some(value) = job.get_mut(field) {
                *value = nothing;
            }
        }
        // As in [`Self::mute`].
        if job.get("state").is_some_and(|state| state == "ended") {
            job.insert("reason".into(), Value::Null);
        }
        job.insert("redacted".into(), Value::Bool(true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::account::Account;

    fn veil() -> Veil {
        Veil {
            caller: Caller {
                account: Account {
                    uid: 1000,
                    gid: 1000,
                    name: "ana".into(),
                    groups: Vec::new(),
                },
                role: Role::User,
                sees_all: false,
            },
            owner: None,
        }
    }

    #[test]
    fn of_anothers_job_nothing_is_left_of_what_it_runs() {
        let job = serde_json::json!({
            "id": "7", "uid": 1001, "name": "train", "state": "ended", "reason": "cannot start /secret/x",
            "command": ["/secret/x"], "cwd": "/secret", "directory": "/secret/7", "slice_directory": "/secret/s",
            "container": {"image": "secret"}, "secrets": ["SECRET"], "labels": {"task": "secret"},
            "limiter": {"form": "preload", "reason": "cannot open /secret/libcuda.so.1"}, "group": {"path": "/secret/g"},
        });
        let mut shown = job.clone();
        veil().draw(&mut shown);
        let text = shown.to_string().to_lowercase().replace("\"secrets\"", "");
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(shown["name"], "train");
        assert_eq!(shown["redacted"], true);
        let mut own = job.clone();
        own["uid"] = 1000.into();
        let before = own.clone();
        veil().draw(&mut own);
        assert_eq!(own, before);
        // A job of which it is not said whose it is, is not shown.
        let mut stray = job;
        stray.as_object_mut().unwrap().remove("uid");
        veil().draw(&mut stray);
        assert_eq!(stray["command"], Value::Array(Vec::new()));
    }

    #[test]
    fn why_anothers_job_ended_is_not_told_and_why_it_waits_is() {
        let told = |owner, state: &str| {
            let mut why = serde_json::json!({"state": state, "summary": "cannot start /secret/x"});
            Veil { owner, ..veil() }.mute(&mut why);
            why["summary"].to_string().contains("secret")
        };
        assert!(told(Some(1000), "ended"), "one's own");
        assert!(!told(Some(1001), "ended"));
        assert!(!told(None, "ended"));
        assert!(told(Some(1001), "queued"));
    }

    #[test]
    fn a_job_is_drawn_over_before_it_is_written_as_it_is_afterwards() {
        let full = |uid: Option<u32>, state: &str| {
            serde_json::json!({
                "id": "7", "name": "train", "user": "lee", "uid": uid, "redacted": false, "project": "p", "queue": "q",
                "state": state, "end_reason": null, "exit_code": 127, "request": {"kind": "whole", "count": 1},
                "compute": "fair", "slices": [], "reason": "cannot start /secret/x", "place": null,
                "command": ["/secret/x"], "cwd": "/secret", "directory": "/secret/7", "slice_directory": "/secret/s",
                "container": {"image": "secret"}, "secrets": ["SECRET"], "labels": {"task": "secret"},
                "limiter": {"form": "preload", "reason": "cannot open /secret/libcuda.so.1"},
                "group": {"path": "/secret/g", "reason": null}, "runner": "supervisor", "pid": 7,
                "submitted_at": "2026-01-02T03:04:05Z", "started_at": null, "ended_at": null,
                "claim": {"uid": "secret", "namespace": "secret", "name": "secret", "pods": ["secret"], "cdi_device": "secret"},
            })
        };
        for uid in [None, Some(1000), Some(1001)] {
            for state in ["queued", "running", "ended"] {
                let mut job: v1::Job = serde_json::from_value(full(uid, state)).unwrap();
                let mut written = serde_json::to_value(&job).unwrap();
                veil().draw(&mut written);
                let written: v1::Job = serde_json::from_value(written).unwrap();
                Sight(veil().caller).draw(&mut job);
                let [before, after] =
                    [&job, &written].map(|job| serde_json::to_value(job).unwrap());
                assert_eq!(before, after);
                assert_eq!(job.redacted, uid != Some(1000));
            }
        }
    }
}
