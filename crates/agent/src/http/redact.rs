//! Redaction: removes private fields of other users' jobs from answers. Every caller sees that jobs exist and what they
//! hold; only their owners see what they run.
//!
//! The gate draws the veil over every answer about jobs. A handler that writes thousands of them draws it over each
//! before it is written, and says so with [`AlreadyRedacted`]: to read the whole answer again would take longer than to
//! make it.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use divvy_api::v1::{self, JobState, List};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::body::ApiError;
use super::internal;
use crate::auth::Caller;

/// Answers about jobs are lists of them; the commands take most of the bytes.
const ANSWER_LIMIT: usize = 1 << 30;

/// An answer says with it that the veil lies over it already.
#[derive(Clone, Copy, Debug)]
pub struct AlreadyRedacted;

/// What the caller of a request sees of others' jobs: with the request's extensions.
#[derive(Clone, Debug)]
pub struct Visibility(Caller);

impl Visibility {
    pub fn of(caller: &Caller) -> Self {
        Self(caller.clone())
    }

    /// Whether it sees what this user's jobs run.
    pub fn can_see(&self, owner: u32) -> bool {
        self.0.can_see(owner)
    }

    /// Takes out of a job what is only its owner's to see.
    pub fn redact(&self, job: &mut v1::Job) {
        if job.uid.is_some_and(|owner| self.can_see(owner)) {
            return;
        }
        job.command.clear();
        job.secrets.clear();
        job.labels.clear();
        job.cwd.clear();
        job.directory.clear();
        (job.container, job.claim, job.slice_directory) = (None, None, None);
        (job.output, job.notify) = (None, None);
        // How they came about names files.
        (job.limiter, job.group) = (None, None);
        if job.state == JobState::Ended {
            job.reason = None;
        }
        (job.end_detail, job.ended_by) = (None, None);
        job.redacted = true;
    }
}

/// Takes out of answers about jobs what is only their owners' to see.
pub struct Redactor {
    visibility: Visibility,
    /// The owner of the job that the call is about.
    owner: Option<u32>,
}

/// What an answer is a list of; failures are none.
#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

impl Redactor {
    pub fn of(request: &Request, caller: &Caller, owner: Option<u32>) -> Option<Self> {
        let is_job = request.uri().path().starts_with("/v1/jobs");
        (is_job && !caller.can_see_all_users()).then(|| Self {
            visibility: Visibility::of(caller),
            owner,
        })
    }

    pub async fn redact_response(&self, response: Response) -> Result<Response, ApiError> {
        let (mut parts, body) = response.into_parts();
        let body = to_bytes(body, ANSWER_LIMIT)
            .await
            .map_err(|error| internal(&error))?;
        let body = match self.redact_body(&body).map_err(|error| internal(&error))? {
            Some(drawn) => Body::from(drawn),
            None => Body::from(body),
        };
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, body))
    }

    /// The same answer without what is not to be seen; `None` for one that has nothing of the kind.
    fn redact_body(&self, answer: &[u8]) -> serde_json::Result<Option<Vec<u8>>> {
        let Kind { kind } = serde_json::from_slice(answer)?;
        match kind.as_deref() {
            Some("JobList") => {
                each(answer, |job: &mut v1::Job| self.visibility.redact(job)).map(Some)
            }
            Some("Why") => each(answer, |why: &mut v1::Why| self.redact_why(why)).map(Some),
            _ => Ok(None),
        }
    }

    /// The reason to wait is public; a program's error belongs to its owner.
    fn redact_why(&self, why: &mut v1::Why) {
        let is_seen = self
            .owner
            .is_some_and(|owner| self.visibility.can_see(owner));
        if !is_seen && why.state == JobState::Ended {
            why.summary = "the job has ended".to_owned();
        }
    }
}

/// A list, with this done to each of it.
fn each<T>(list: &[u8], draw: impl FnMut(&mut T)) -> serde_json::Result<Vec<u8>>
where
    T: DeserializeOwned + Serialize,
{
    let mut list: List<T> = serde_json::from_slice(list)?;
    list.items.iter_mut().for_each(draw);
    serde_json::to_vec(&list)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::Role;
    use crate::host::account::UserAccount;

    /// What user 1000 sees of a call about a job of this owner's.
    fn veil(owner: Option<u32>) -> Redactor {
        let caller = Caller {
            account: UserAccount {
                uid: 1000,
                gid: 1000,
                name: "ana".into(),
                groups: Vec::new(),
                home: None,
            },
            role: Role::User,
            can_see_all: false,
            is_engine: false,
        };
        Redactor {
            visibility: Visibility::of(&caller),
            owner,
        }
    }

    fn job(uid: Option<u32>, state: &str) -> v1::Job {
        let job = json!({
            "id": "7", "name": "train", "user": "lee", "uid": uid, "redacted": false, "project": "p", "queue": "q",
            "state": state, "end_reason": null, "exit_code": 127, "request": {"kind": "whole", "count": 1},
            "compute": "fair", "slices": [], "reason": "cannot start /secret/x", "place": null,
            "command": ["/secret/x"], "cwd": "/secret", "directory": "/secret/7", "slice_directory": "/secret/s",
            "container": {"image": "secret"}, "secrets": ["SECRET"], "labels": {"task": "secret"},
            "limiter": {"form": "preload", "reason": "cannot open /secret/libcuda.so.1"},
            "group": {"path": "/secret/g", "reason": null}, "runner": "supervisor", "pid": 7,
            "submitted_at": "2026-01-02T03:04:05Z", "started_at": null, "ended_at": null,
            "end_detail": "cancelled by secret (uid 5)", "ended_by": {"uid": 5, "name": "secret"},
            "claim": {"uid": "secret", "namespace": "secret", "name": "secret", "pods": ["secret"], "cdi_device": "secret"},
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn of_anothers_job_nothing_is_left_of_what_it_runs() {
        let seen = |job: &v1::Job| {
            let mut job = job.clone();
            veil(None).visibility.redact(&mut job);
            serde_json::to_value(&job).unwrap()
        };
        // A job without a known owner is not shown.
        for uid in [None, Some(1001)] {
            let shown = seen(&job(uid, "ended"));
            let text = shown.to_string().to_lowercase().replace("\"secrets\"", "");
            assert!(!text.contains("secret"), "{text}");
            assert_eq!(
                (&shown["name"], &shown["redacted"]),
                (&json!("train"), &json!(true))
            );
            let waits = seen(&job(uid, "queued"));
            assert_eq!(waits["reason"], "cannot start /secret/x");
        }
        let own = job(Some(1000), "ended");
        assert_eq!(seen(&own), serde_json::to_value(&own).unwrap());
    }

    #[test]
    fn why_anothers_job_ended_is_not_told_and_why_it_waits_is() {
        let told = |owner, state: JobState| {
            let why = json!({
                "job": "7", "state": state, "queue": "q", "place": null, "summary": "cannot start /secret/x",
                "gpus": [], "behind": [], "suggestions": [],
            });
            let answer = serde_json::to_vec(&List::new("Why", vec![why])).unwrap();
            let drawn = veil(owner).redact_body(&answer).unwrap().unwrap();
            String::from_utf8(drawn).unwrap().contains("secret")
        };
        assert!(told(Some(1000), JobState::Ended), "one's own");
        assert!(!told(Some(1001), JobState::Ended));
        assert!(!told(None, JobState::Ended));
        assert!(told(Some(1001), JobState::Queued));
    }

    #[test]
    fn a_job_is_the_same_text_drawn_over_before_it_is_written_and_afterwards() {
        for uid in [None, Some(1000), Some(1001)] {
            for state in ["queued", "running", "ended"] {
                let mut job = job(uid, state);
                let written = serde_json::to_vec(&List::new("JobList", vec![job.clone()])).unwrap();
                let after = veil(uid).redact_body(&written).unwrap().unwrap();
                veil(uid).visibility.redact(&mut job);
                assert_eq!(job.redacted, uid != Some(1000));
                let before = serde_json::to_vec(&List::new("JobList", vec![job])).unwrap();
                assert_eq!(String::from_utf8(after), String::from_utf8(before));
            }
        }
    }

    #[test]
    fn an_answer_about_something_else_is_left_as_it_is() {
        for other in [json!({"kind": "Oom", "items": []}), json!({"error": {}})] {
            let text = serde_json::to_vec(&other).unwrap();
            assert!(veil(None).redact_body(&text).unwrap().is_none());
        }
    }
}
