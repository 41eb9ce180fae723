//! Values that the command line and the agent pass to each other within one program: a run without a daemon, the result
//! of a program, and the way into a slice.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

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

/// What a process does to enter a slice: first the mounts, in this order, in a mount namespace of its own, then the
/// environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SliceAccess {
    pub name: String,
    /// Number of the job that stands for the slice.
    pub job: String,
    /// What holds a program that does both to the slice: `wrapper`, `preload`, or `hardware` for a MIG instance.
    pub form: &'static str,
    /// Why it is not the wrapper.
    pub reason: Option<String>,
    /// Variables to set. `LD_PRELOAD` and `LD_LIBRARY_PATH` go before what the program has in them.
    pub environment: BTreeMap<String, String>,
    /// Empty for a process without root's rights.
    pub mounts: Vec<SliceMount>,
    /// Whether the program may create no user namespace, as with the daemon's `refuse_user_namespaces`. `enter` installs
    /// that filter; a program that enters by itself has to.
    pub refuse_user_namespaces: bool,
}

/// One mount of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SliceMount {
    /// The file or folder to bind; `None` for a new file system in memory (tmpfs).
    pub source: Option<PathBuf>,
    /// Below a tmpfs of this list, the target has to be created first.
    pub target: PathBuf,
    /// Whether to make the mount read-only: a bind at once, a tmpfs after the last mount.
    pub read_only: bool,
}
