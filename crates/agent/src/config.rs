//! What one run of the agent is given: nothing in it changes while the agent lives.

use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_core::{Order, QueueSpec};

/// Time between SIGTERM and SIGKILL unless told otherwise.
pub const GRACE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Config {
    pub home: Home,
    /// In the order they are served; `default` is among them.
    pub queues: Vec<QueueSpec>,
    pub order: Order,
    pub backfill: bool,
    pub grace: Duration,
    /// Name of the user whose daemon this is.
    pub user: String,
    pub hostname: String,
    pub programs: Programs,
    pub simulated: Option<Simulated>,
    pub driver_version: String,
}

/// Files of the installation.
#[derive(Clone, Debug)]
pub struct Programs {
    /// This program, for supervisors and probes.
    pub divvy: PathBuf,
    /// The interposer.
    pub preload: PathBuf,
}

/// Simulated GPUs: what jobs need to find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// `a100-80gb:3`.
    pub models: String,
    /// Folder of links through which programs find the simulated libraries.
    pub lib: PathBuf,
    pub state: PathBuf,
}

/// A library of the installation that is not where it belongs.
#[derive(Debug, thiserror::Error)]
#[error("{name} is not beside {}, nor in {}, nor in the folder that DIVVY_LIB_DIR names", executable.display(), installed.display())]
pub struct LibraryMissing {
    pub name: &'static str,
    pub executable: PathBuf,
    pub installed: PathBuf,
}

/// Finds a library: `$DIVVY_LIB_DIR`, beside the executable (as Cargo builds it), `../lib/divvy` (as it is installed).
///
/// # Errors
/// When it is in none of them.
pub fn library(name: &'static str, executable: &Path) -> Result<PathBuf, LibraryMissing> {
    let beside = executable.parent().unwrap_or(executable);
    let installed = beside.join("../lib/divvy");
    let given = std::env::var_os("DIVVY_LIB_DIR")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from);
    let places = given
        .iter()
        .map(PathBuf::as_path)
        .chain([beside, &installed]);
    let found = places.map(|dir| dir.join(name)).find(|file| file.is_file());
    let found = found.map(|file| file.canonicalize().unwrap_or(file));
    found.ok_or_else(|| LibraryMissing {
        name,
        executable: executable.to_owned(),
        installed: installed.clone(),
    })
}
