//! Exec sessions in a running job, and signals to the job's program.

use serde::{Deserialize, Serialize};

/// Body of `POST /v1/jobs/{job}/exec`, with `Connection: Upgrade` and `Upgrade: divvy-exec`. The answer is 101;
/// frames (`divvy_api::frame`) follow on the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Terminal for the program, of this kind and size. Output and errors then share one stream. Absent: no terminal.
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
    /// Value of `TERM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// End of a program in a running job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// Exit code as in a shell: 128+N for signal N; 125, 126 or 127 if the program could not be started.
    pub exit_code: i32,
    /// Reason why the program could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Body of `POST /v1/jobs/{job}/signal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalJob {
    pub signal: Signal,
}

/// A signal that a caller may send to a job's program. To end a job, use `cancel`, which the journal records.
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

    /// Returns the signal's number on Linux (signal(7)), which is the same on every processor that has NVIDIA's
    /// driver.
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

    /// Returns the name as in `kill(1)` and in container engines: `SIGINT`.
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
