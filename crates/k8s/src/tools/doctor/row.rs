//! One thing that the doctor looked at, and how well it is.

use serde::Serialize;

/// How well it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// The doctor could not read it.
    Unknown,
    /// Divvy works, and something is worse than it could be.
    Warn,
    /// Pods would not run, or would not be held to their limits.
    Fail,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One fact that the doctor has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// A stable name: `server.version`, `nodes.cdi`.
    pub check: &'static str,
    pub status: Status,
    /// The source of the fact.
    pub read: &'static str,
    /// The finding.
    pub found: String,
    /// Its effect on pods; empty if all is well.
    pub means: String,
    /// The remedy, or where to look; empty if nothing needs to be done.
    pub fix: String,
}

impl Row {
    pub(crate) fn ok(check: &'static str, read: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            status: Status::Ok,
            read,
            found: found.into(),
            means: String::new(),
            fix: String::new(),
        }
    }

    /// The same check, not well.
    pub(crate) fn but(
        mut self,
        status: Status,
        means: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        self.status = status;
        self.means = means.into();
        self.fix = fix.into();
        self
    }

    pub(crate) fn unknown(check: &'static str, read: &'static str, why: &str) -> Self {
        Self::ok(check, read, format!("cannot read it: {why}")).but(Status::Unknown, "", UNREADABLE)
    }
}

/// The remedy of every check that cannot read its facts.
pub const UNREADABLE: &str = "use a context of KUBECONFIG that may read it";
