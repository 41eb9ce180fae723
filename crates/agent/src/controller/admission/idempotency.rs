//! Idempotency keys: a repeated submission gets the job that the first one created.
//!
//! A key stands for the text of a submission, not for its meaning at the time. When the client repeats it, `last` may
//! be another job, its dependency may have failed, or a project may have changed. So the first job keeps a digest of
//! the submission.

use std::collections::BTreeMap;

use divvy_api::v1::{Error, ErrorCode, Submit};
use serde_json::Value;

use super::submit::SubmitOutcome;
use crate::auth::Caller;
use crate::model::job::{Credentials, Job};

/// The key as the journal stores it. Each user has an own key space, so two users may use the same key.
pub(in crate::controller) fn scoped_key(key: &str, by: &Caller) -> String {
    match by.account.uid == Credentials::current().uid {
        true => key.to_owned(),
        false => format!("{}:{key}", by.account.uid),
    }
}

/// A digest of the submission. It leaves out the environment, which differs in every shell, and the values of secrets.
/// Absent and empty fields do not count, so fields of later versions change no digest.
pub(in crate::controller) fn digest(submit: &Submit) -> String {
    let secrets = submit.secrets.keys();
    let bare = Submit {
        env: BTreeMap::new(),
        secrets: secrets.map(|name| (name.clone(), String::new())).collect(),
        idempotency_key: None,
        no_wait: false,
        dry_run: false,
        ..submit.clone()
    };
    let mut json = serde_json::to_value(bare).expect("a submit can be written");
    if let Value::Object(fields) = &mut json {
        fields.retain(|_, value| !is_nothing(value));
    }
    sha1_smol::Sha1::from(json.to_string()).digest().to_string()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The reply to a known key: the first job, if the submission is the same.
pub(in crate::controller) fn replay(before: &Job, same: bool) -> Result<SubmitOutcome, Error> {
    if same {
        return Ok(SubmitOutcome::Job {
            id: before.id,
            warning: None,
        });
    }
    Err(Error::new(
        ErrorCode::Conflict,
        format!("the idempotency key belongs to another job, #{}", before.id),
    )
    .hint("use a new key for each job")
    .details(serde_json::json!({ "job": before.id.to_string() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_of_what_is_asked_for_and_not_of_its_surroundings() {
        let submit = |more: Value| -> Submit {
            let mut all = serde_json::json!({"command": ["true"], "cwd": "/", "env": {}});
            let fields = all.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            serde_json::from_value(all).unwrap()
        };
        let bare = digest(&submit(serde_json::json!({})));
        for alike in [
            serde_json::json!({"env": {"A": "1"}}),
            serde_json::json!({"no_wait": true, "dry_run": true, "idempotency_key": "k"}),
            serde_json::json!({"priority": 0, "after": [], "name": null}),
        ] {
            assert_eq!(digest(&submit(alike.clone())), bare, "{alike}");
        }
        let secret = |value: &str| digest(&submit(serde_json::json!({"secrets": {"A": value}})));
        assert_eq!(secret("1"), secret("2"));
        let others = [
            serde_json::json!({"secrets": {"A": "1"}}),
            serde_json::json!({"command": ["false"]}),
            serde_json::json!({"priority": 1}),
            serde_json::json!({"after": [{"job": "last"}]}),
            serde_json::json!({"array": {"indices": [0, 1]}}),
            serde_json::json!({"array": {"indices": [0, 1, 2]}}),
        ];
        let mut seen = vec![bare];
        for other in others {
            let digest = digest(&submit(other.clone()));
            assert!(!seen.contains(&digest), "{other}");
            seen.push(digest);
        }
    }
}
