//! The environment of a command of a node: what Slurm gives a Prolog or an Epilog, and where programs and records lie.

use std::ffi::OsString;
use std::path::PathBuf;

use spank_divvy::hooks::FOR_PROLOG;
use spank_divvy::record::FOLDER;
use spank_divvy::visible::numbers;

/// The environment that Slurm gives a Prolog or an Epilog.
pub struct HookEnvironment {
    pub job: u32,
    pub uid: Option<u32>,
    pub node: String,
    pub has_gpus: bool,
    pub gpu_memory: Option<u64>,
}

/// Reads a variable; an empty one is none.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl HookEnvironment {
    pub fn from_environment() -> Result<Self, String> {
        Self::of(&variable)
    }

    pub fn of(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let number = |name: &str| variable(name).and_then(|value| value.parse().ok());
        let job = number("SLURM_JOB_ID")
            .ok_or("SLURM_JOB_ID is not set: slurmd runs this command, as Prolog or Epilog")?;
        let gpu_memory =
            match variable(&format!("SPANK_{FOR_PROLOG}")) {
                None => None,
                Some(text) => Some(text.parse().map_err(|_| {
                    format!("SPANK_{FOR_PROLOG} is {text:?}, not a number of bytes")
                })?),
            };
        let gpus = variable("SLURM_JOB_GPUS").and_then(|list| numbers(&list));
        Ok(Self {
            job,
            uid: number("SLURM_JOB_UID"),
            node: node_name(variable),
            has_gpus: gpus.is_some(),
            gpu_memory,
        })
    }
}

/// The node's name in Slurm; elsewhere the machine's, up to its first dot.
pub fn node_name(variable: &dyn Fn(&str) -> Option<String>) -> String {
    variable("SLURMD_NODENAME").unwrap_or_else(|| {
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        name.split('.').next().unwrap_or_default().to_owned()
    })
}

pub fn records() -> PathBuf {
    std::env::var_os("DIVVY_SLURM_RECORDS").map_or_else(|| FOLDER.into(), PathBuf::from)
}

/// Folders in which programs lie when Slurm starts a command without `PATH`.
pub fn search_path() -> OsString {
    let usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin:/opt/slurm/sbin";
    match std::env::var_os("PATH") {
        Some(mut path) if !path.is_empty() => {
            path.push(":");
            path.push(usual);
            path
        }
        _ => usual.into(),
    }
}
