//! Simulated GPUs: the location of the simulated driver, and its setup for this process and its jobs.
//!
//! The simulated driver reads its environment when it is loaded. Setting variables in a running process is unsafe with
//! threads, so the daemon executes itself again with them.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode};

use crate::config::{self, LibraryMissing, Simulated};
use crate::host::error::error_chain;
use crate::host::error::internal;

/// The simulator's file, and the names under which programs ask for it.
const SIMULATOR: &str = "libdivvy_sim.so";
const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"];

const MODELS: &str = "DIVVY_SIM";
const STATE: &str = "DIVVY_SIM_STATE";
const ROOT: &str = "DIVVY_SIM_ROOT";

/// What `--sim` or else `DIVVY_SIM` asks for.
pub fn requested(flag: Option<&str>, home: &Home) -> Option<Simulated> {
    let variable = || {
        std::env::var(MODELS)
            .ok()
            .filter(|models| !models.is_empty())
    };
    let models = flag.map(str::to_owned).or_else(variable)?;
    Some(Simulated {
        models,
        lib: home.sim_lib(),
        state: home.sim_state(),
    })
}

/// The folder that stands for `/`, which `DIVVY_SIM_ROOT` names.
pub fn root() -> Option<PathBuf> {
    let folder = std::env::var_os(ROOT).filter(|folder| !folder.is_empty())?;
    Some(PathBuf::from(folder))
}

/// The state file that `DIVVY_SIM_STATE` names.
pub fn named_state() -> Option<PathBuf> {
    let state = PathBuf::from(std::env::var_os(STATE)?);
    state.is_file().then_some(state)
}

/// The state file that `DIVVY_SIM_STATE` names, if a simulated driver in this process has it mapped. The variable alone
/// may be a leftover on a machine with GPUs.
pub fn loaded_state() -> Option<PathBuf> {
    let state = named_state()?;
    let inode = std::fs::metadata(&state).ok()?.ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_mapped = |line: &str| line.split_whitespace().nth(4) == Some(&inode);
    maps.lines().any(is_mapped).then_some(state)
}

/// Returns when this process's environment is the simulator's; until then replaces the process by one where it is.
pub fn ensure_environment(simulated: &Simulated) -> Result<(), Error> {
    let is = |name: &str, value: &std::ffi::OsStr| {
        std::env::var_os(name).is_some_and(|found| found == value)
    };
    if is(MODELS, simulated.models.as_ref()) && is(STATE, simulated.state.as_os_str()) {
        return Ok(());
    }
    Err(exec(|command| {
        command
            .env(MODELS, &simulated.models)
            .env(STATE, &simulated.state);
    }))
}

/// Replaces the process by one of the same program with the same arguments; returns only why that cannot be.
pub fn exec(change: impl FnOnce(&mut Command)) -> Error {
    let this = match std::env::current_exe() {
        Ok(this) => this,
        Err(error) => return internal("cannot find the file of this program", &error),
    };
    let mut words = std::env::args_os();
    let mut command = Command::new(this);
    command
        .arg0(words.next().unwrap_or_else(|| "divvy".into()))
        .args(words);
    change(&mut command);
    divvy_fork::inherited().pass_on(&mut command);
    internal("cannot start this program again", &command.exec())
}

/// Lets programs of every user have the simulated GPUs, as they may open a real GPU's device nodes.
pub fn share(home: &Home) -> io::Result<()> {
    let set =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    set(&home.sim_lib(), 0o755)?;
    set(&home.sim_state(), 0o666)
}

/// The simulator's own file.
pub fn library(divvy: &Path) -> Result<PathBuf, LibraryMissing> {
    config::library(SIMULATOR, divvy)
}

/// Makes the links to the simulator, and a new simulated node where the old one was of other models and is not in use.
pub fn install(simulated: &Simulated, divvy: &Path, in_use: bool) -> Result<(), Error> {
    let simulator =
        library(divvy).map_err(|error| Error::new(ErrorCode::Internal, error_chain(&error)))?;
    let link = || -> io::Result<()> {
        std::fs::create_dir_all(&simulated.lib)?;
        for name in NAMES {
            relink(&simulator, &simulated.lib.join(name))?;
        }
        Ok(())
    };
    link().map_err(|error| {
        internal(
            &format!("cannot create the symlinks in {}", simulated.lib.display()),
            &error,
        )
    })?;
    // Written before the state it speaks of is made, so that a state never goes with the wrong name.
    let made_for = models_of(&simulated.state);
    match last_models(&simulated.state) {
        Some(before) if before == simulated.models => Ok(()),
        Some(before) if in_use => {
            let why = format!(
                "{} requested, but jobs still run on the simulated GPUs {before}",
                simulated.models
            );
            Err(Error::new(ErrorCode::Conflict, why).hint(format!(
                "start the daemon with --sim {before} and cancel these jobs first"
            )))
        }
        _ => {
            let renew = || match std::fs::remove_file(&simulated.state) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => std::fs::write(&made_for, &simulated.models),
            };
            renew().map_err(|error| {
                internal(
                    &format!("cannot replace {}", simulated.state.display()),
                    &error,
                )
            })
        }
    }
}

/// The GPUs that were simulated last with this state file.
pub fn last_models(state: &Path) -> Option<String> {
    std::fs::read_to_string(models_of(state)).ok()
}

fn models_of(state: &Path) -> PathBuf {
    state.with_extension("models")
}

/// A link that is right stays: programs may be following it at this moment.
fn relink(target: &Path, link: &Path) -> io::Result<()> {
    if std::fs::read_link(link).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let draft = link.with_extension("new");
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, &draft)?;
    std::fs::rename(draft, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_the_installation() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("libcuda.so.1");
        for target in [
            "/old/libdivvy_sim.so",
            "/new/libdivvy_sim.so",
            "/new/libdivvy_sim.so",
        ] {
            relink(Path::new(target), &link).unwrap();
            assert_eq!(std::fs::read_link(&link).unwrap(), Path::new(target));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
