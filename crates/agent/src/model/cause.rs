//! The cause of a stop: why the daemon stops a job's program, in words, and the user that requested it.

use divvy_api::v1;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::auth::Caller;

/// Why a job is to stop. The journal keeps it with the job; the folder of a job on its client's terminal has a copy, from which
/// the client tells it without a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// `its time limit of 2h was reached`, `cancelled by ana (uid 1001)`.
    pub words: String,
    /// The user that requested it; absent for a rule of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Asker>,
}

/// A user, by the kernel's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    pub uid: u32,
    pub name: String,
}

impl Cause {
    /// What this caller has asked for: `cancelled by ana (uid 1001)`.
    pub fn requested_by(done: &str, by: &Caller) -> Self {
        let (name, uid) = (by.account.name.clone(), by.account.uid);
        Self {
            words: format!("{done} by {name} (uid {uid})"),
            by: Some(Asker { uid, name }),
        }
    }
}

impl From<String> for Cause {
    fn from(words: String) -> Self {
        Self { words, by: None }
    }
}

impl From<&str> for Cause {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

impl From<&Asker> for v1::Asker {
    fn from(asker: &Asker) -> Self {
        Self {
            uid: asker.uid,
            name: asker.name.clone(),
        }
    }
}

/// A length of time as it is typed: `2h`, `1h30m`.
pub fn format_duration(seconds: u64) -> String {
    let length = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    format!("{length:#}")
}

/// `stopped`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRecord {
    #[serde(flatten)]
    pub cause: Cause,
    /// When the daemon asked it to stop.
    pub at: Timestamp,
}
