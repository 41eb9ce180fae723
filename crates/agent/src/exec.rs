//! Exec sessions: another program inside of a running job, called a guest. The job's supervisor starts it, as it is the
//! one that has the job's mounts, its control group, and the right to be its user; and what it starts is its
//! descendant, which is counted in the slice and ends with the job.
//!
//! May use: `host`, `job_dir`.
//! Used by: `supervisor`, `container`, `http`.
//!
//! ```text
//! daemon                                  supervisor                                      guest
//! opens a terminal, or pipes
//! rings if JOB/enter is not there ──────► opens it (SIGUSR1)
//! connects to it ───────────────────────► takes calls of its own user's processes alone
//! a Call, and the guest's descriptors ──► finds and starts it as it did the program ────► runs on these descriptors
//!        ◄─────────────────────────────── Started
//! bytes to and from the client ◄────────────────────────────────────────────────────────► reads, writes
//! the number of a signal ───────────────► sends it to the guest's group
//!        ◄─────────────────────────────── Ended
//! goes away, wanted or not ─────────────► SIGHUP, as when a terminal is closed
//! ```
//! The journal records only that a guest came. Like a shell over a network it does not outlive the connection, and the
//! job does not depend on it. The supervisor copies no bytes, so a client that does not read stops only its own guest.
//!
//! In a container the engine does all this ([`crate::container::exec`]).

pub mod client;
pub mod proxy;
pub mod server;
pub mod terminal;

use serde::{Deserialize, Serialize};

/// The socket in a job's folder.
pub const EXEC_SOCKET: &str = "enter";

/// Bytes of a call: the words of a command that Linux would start (2 MiB), each byte written as an escape.
const LARGEST: usize = 12 << 20;

/// What a supervisor is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecRequest {
    /// To start this. With it come descriptors: a terminal, or input, output and errors.
    Enter {
        command: Vec<String>,
        /// On the terminal that came, with this as `TERM`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        terminal: Option<String>,
    },
    /// To send this to the job's own program.
    Signal { number: u8 },
}

/// What it answers: lines of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecReply {
    Started { pid: u32 },
    Refused { exit_code: i32, message: String },
    Ended { exit_code: i32 },
    Sent,
}
