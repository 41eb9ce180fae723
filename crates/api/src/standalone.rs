//! Values that the command line and the agent pass to each other within one program: a run without a daemon, and the
//! result of a program.

use jiff::Timestamp;

use crate::v1::Submit;

/// A run without a daemon: `divvy run --no-daemon`.
#[derive(Clone, Debug)]
pub struct StandaloneOptions {
    pub submit: Submit,
    /// A `docker run …` line in place of a program; the submission describes the container that it creates.
    pub docker: Vec<String>,
    /// Simulated GPUs: `a100-80gb:3`.
    pub sim: Option<String>,
}

/// The result of a program that this process ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramResult {
    /// Exit code, as a shell reports it.
    pub code: u8,
    /// When and why Divvy stopped the program, if it did: `its time limit of 2h was reached`.
    pub stopped: Option<(Timestamp, String)>,
}
