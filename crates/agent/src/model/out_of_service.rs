//! Out of service: a GPU that gets no jobs for a time, with the user that decided so, the times and the reason.

use divvy_api::v1;
use divvy_core::Mode;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfService {
    /// The administrator; `None` if the daemon found a fault.
    pub by: Option<String>,
    pub since: Timestamp,
    pub until: Option<Timestamp>,
    pub reason: String,
}

impl OutOfService {
    /// Of a GPU with a fault, from now on.
    pub fn fault(reason: String, since: Timestamp) -> Self {
        Self {
            by: None,
            since,
            until: None,
            reason,
        }
    }

    pub fn is_fault(&self) -> bool {
        self.by.is_none()
    }

    /// `out of service since 2026-11-29 14:20 CET by root, until 2026-11-29 18:00 CET: driver update`. Times are in the
    /// machine's zone, because a reason is one text for all users.
    pub fn describe(&self) -> String {
        let zone = TimeZone::system();
        let time = |at: Timestamp| {
            let at = at.to_zoned(zone.clone());
            at.strftime("%Y-%m-%d %H:%M %Z").to_string()
        };
        let by = self.by.as_deref().unwrap_or("the daemon");
        let until = self.until.map(|until| format!(", until {}", time(until)));
        format!(
            "out of service since {} by {by}{}: {}",
            time(self.since),
            until.unwrap_or_default(),
            self.reason
        )
    }

    /// `mode`: the one that the GPU returns to.
    pub fn to_api(&self, mode: Mode) -> v1::OutOfService {
        v1::OutOfService {
            by: self.by.clone(),
            since: self.since,
            until: self.until,
            reason: self.reason.clone(),
            mode: mode.name().to_owned(),
        }
    }
}
