//! Another program inside of a running job, and signals to the job's own.

use serde::{Deserialize, Serialize};

/// `POST /v1/jobs/{job}/exec`, with `Connection: Upgrade` and `Upgrade: divvy-exec`: the answer is 101, and what follows on the
/// connection are frames (`divvy_api::frame`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Present: on a terminal of its own, of this kind and size; its output and its errors come together then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
}

/// The caller's terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    pub rows: u16,
    pub columns: u16,
    /// What `TERM` says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// How a program in a running job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// As a shell has it: 128+N for signal N; 125, 126 or 127 where it could not be started.
    pub exit_code: i32,
    /// Why it could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `POST /v1/jobs/{job}/signal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalJob {
    pub signal: Signal,
}

/// A signal that a job's program can be sent. That it is to end is `cancel`, which the journal knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Usr1,
    Usr2,
    Term,
}

impl Signal {
    pub const ALL: [Self; 6] = [
        Self::Hup,
        Self::Int,
        Self::Quit,
        Self::Usr1,
        Self::Usr2,
        Self::Term,
    ];

    /// Its number on Linux (signal(7), the same on every processor that has NVIDIA's driver).
    pub fn number(self) -> u8 {
        match self {
            Self::Hup => 1,
            Self::Int => 2,
            Self::Quit => 3,
            Self::Usr1 => 10,
            Self::Usr2 => 12,
            Self::Term => 15,
        }
    }

    pub fn with_number(number: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|signal| signal.number() == number)
    }

    /// As `kill(1)` has it, and container engines: `SIGINT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Quit => "SIGQUIT",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Term => "SIGTERM",
        }
    }
}
