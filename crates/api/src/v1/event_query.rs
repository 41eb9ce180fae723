//! The query of `GET /v1/events`: where the list begins, and the job that it is about.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Query of `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventQuery {
    /// Only events after this sequence number.
    pub after: u64,
    /// A job or an array: only its events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Only events after the last one before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Only so many of the events that are there now: the newest ones. Later events follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<u32>,
}

impl EventQuery {
    /// Names and values of the parameters that differ from their defaults.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let after = (self.after > 0).then(|| self.after.to_string());
        let pairs = [
            ("after", after),
            ("job", self.job.clone()),
            ("since", self.since.map(|since| since.to_string())),
            ("tail", self.tail.map(|tail| tail.to_string())),
        ];
        let given = |(name, value)| Option::map(value, |value| (name, value));
        pairs.into_iter().filter_map(given).collect()
    }
}
