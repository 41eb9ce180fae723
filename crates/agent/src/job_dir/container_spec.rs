//! The container spec: the part of a supervisor's spec that it needs to create a job's container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use divvy_core::docker::Options;
use serde::{Deserialize, Serialize};

use crate::host::process::Process;
use crate::host::run_as::Identity;
use crate::job_dir::injection::InjectionPolicy;

/// Label with the job's number, and label with the name of the job's instance.
pub const JOB: &str = "divvy.job";
pub const INSTANCE: &str = "divvy.instance";
/// Label with the job's name: the engine's own names are one space for all users, so a container's has the number.
pub const NAME: &str = "divvy.name";
/// Label that names the journal that has the job: one that was begun anew gives the same numbers again.
pub const JOURNAL: &str = "divvy.journal";
/// Label of a container that another program has started in a job's slice: the name that the job's own would have.
pub const JOINS: &str = "divvy.joins";

/// A job's container, before there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The engine's socket.
    pub socket: PathBuf,
    /// The container's name: no two jobs of this machine have the same.
    pub name: String,
    /// [`INSTANCE`]'s value.
    pub instance: String,
    /// [`JOURNAL`]'s value; none without a daemon.
    #[serde(default)]
    pub journal: Option<String>,
    /// When that journal began, in seconds since 1970, where it is known.
    #[serde(default)]
    pub began: Option<i64>,
    pub image: String,
    /// What the job asks for besides; judged.
    pub options: Options,
    /// Folders of the host that no job may mount.
    pub kept: Vec<PathBuf>,
    pub held: ContainerSlice,
    pub on_unlimited: OnUnlimited,
    /// The folder in which the engine searches for CDI specifications, if the slice is to get in that way.
    pub cdi: Option<PathBuf>,
    /// The starter, where that is not the supervisor.
    #[serde(default)]
    pub starter: Option<Starter>,
    /// The user as which it must run; absent: the user that its flags or its image name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<ContainerSubmitter>,
}

/// The submitter of a container that must run as its submitter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSubmitter {
    pub identity: Identity,
    /// Folders below which it may mount; `~` is its home.
    pub folders: Vec<PathBuf>,
    /// The folder in which its mounts are staged.
    pub staging: PathBuf,
}

impl ContainerSubmitter {
    /// The user and group, as the engine takes them.
    pub fn user(&self) -> String {
        format!("{}:{}", self.identity.uid, self.identity.gid)
    }
}

/// The starter of a container that its supervisor does not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Starter {
    /// This process, which asks what to add to its line.
    Process(Process),
    /// This line, which has everything; the supervisor starts it and takes no part.
    Line(Vec<String>),
}

/// What holds a container to its slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSlice {
    /// `None` where the hardware holds it.
    pub limiter: Option<Limiter>,
    pub driver: Driver,
    /// Variables of the slice.
    pub variables: BTreeMap<String, String>,
}

/// What there is of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    Simulated {
        /// The one file that is CUDA and NVML.
        library: PathBuf,
        /// The state that its processes share.
        state: PathBuf,
    },
    Installed {
        cuda: PathBuf,
        nvml: Option<PathBuf>,
        others: Vec<Library>,
        programs: Vec<PathBuf>,
        devices: Vec<Device>,
    },
}

/// A library, and the name under which programs ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    pub name: String,
    pub file: PathBuf,
}

/// A device file; `rw` or `r`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub path: PathBuf,
    pub permissions: String,
}

impl Device {
    pub fn new(path: impl Into<PathBuf>, permissions: &str) -> Self {
        Self {
            path: path.into(),
            permissions: permissions.to_owned(),
        }
    }
}

/// Files of the limiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limiter {
    /// The slice's folder.
    pub slice: PathBuf,
    pub preload: PathBuf,
    /// Of CUDA and of NVML; without them the preload is all there is, for the reason given.
    pub wrappers: Result<(PathBuf, PathBuf), String>,
}

/// The action for an image with programs that the limiter cannot hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnlimited {
    Warn,
    /// It is not started.
    #[default]
    Deny,
}

impl Limiter {
    pub fn new(slice: &Path, preload: &Path, wish: &InjectionPolicy) -> Self {
        let wrappers = match wish {
            InjectionPolicy::Preload { because } => Err(because.clone()),
            InjectionPolicy::Best(wrapper) | InjectionPolicy::Wrapper(wrapper) => {
                Ok((wrapper.cuda.clone(), wrapper.nvml.clone()))
            }
        };
        Self {
            slice: slice.to_owned(),
            preload: preload.to_owned(),
            wrappers,
        }
    }
}

/// The name of an instance, by the folder of its state: the same after a restart, and another's is another.
pub fn instance(state: &Path) -> String {
    // FNV-1a, which has no state and no version.
    let hash = state
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{:08x}", hash >> 32 ^ hash & 0xffff_ffff)
}

/// The flag of `docker run` by which a job's supervisor knows the container of its starter.
pub fn joins(name: &str) -> String {
    format!("--label={JOINS}={name}")
}

/// The name of a job's container. `runs`: how often the job ran before; what is left of that run may not be gone yet.
pub fn name(instance: &str, job: &str, runs: u32) -> String {
    match runs {
        0 => format!("divvy-{instance}-{job}"),
        runs => format!("divvy-{instance}-{job}.{}", u64::from(runs) + 1),
    }
}

/// Whether a container may be a job's by its name. An image committed from a container inherits its labels, but not its
/// name.
pub fn is_name_of(name: &str, instance: &str, job: &str) -> bool {
    let Some(rest) = name.strip_prefix(&self::name(instance, job, 0)) else {
        return false;
    };
    // Of a later run, or of one without a daemon, which has the time in its name.
    let mark = rest.strip_prefix(['.', '-']).unwrap_or_default();
    let is_mark = !mark.is_empty() && mark.bytes().all(|byte| byte.is_ascii_hexdigit());
    rest.is_empty() || is_mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_one_name_for_ever_and_another_one_another() {
        assert_eq!(instance(Path::new("/home/u/.local/state/divvy")).len(), 8);
        assert_eq!(instance(Path::new("/a")), instance(Path::new("/a")));
        assert_ne!(instance(Path::new("/a")), instance(Path::new("/b")));
        assert_eq!(name("0badcafe", "7", 0), "divvy-0badcafe-7");
        assert_eq!(name("0badcafe", "7", 1), "divvy-0badcafe-7.2");
    }

    #[test]
    fn a_container_is_a_jobs_by_its_name_as_well() {
        let is = |name: &str| is_name_of(name, "0badcafe", "7");
        for runs in [0, 1, 11] {
            assert!(is(&name("0badcafe", "7", runs)));
        }
        assert!(is("divvy-0badcafe-7-18a1b2c3d4e5f607"));
        for other in [
            "quirky_curie",
            "divvy-0badcafe-71",
            "divvy-0badcafe-7.",
            "divvy-0badcafe-7-mine",
            "divvy-0badf00d-7",
            "my-divvy-0badcafe-7",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
