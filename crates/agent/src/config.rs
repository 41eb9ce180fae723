//! Daemon configuration: the resolved settings of one run. A reload of the configuration file replaces [`Settings`].
//!
//! May use: `host`, `auth`, `model`, `job_dir`.
//! Used by: `controller`, `daemon`, `diagnostics`, `standalone`.

pub mod simulated_gpus;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::daemon::{Configured, DaemonOptions, LatencyOptions, ParkOptions, ProjectRules};
#[cfg(test)]
pub use divvy_api::daemon::{DEFAULT_MAX_JOBS, DEFAULT_MAX_TEXT_BYTES};
use divvy_api::home::Home;
use divvy_api::v1::{Container, Error, FrontEnd};
use divvy_core::reconcile::BypassPolicy;
use divvy_core::{Amount, EnforcementPolicy, Order, Preemption, QueueName, QueueSpec};

use crate::auth::Rules;
use crate::host::limiter_copies::{self, CopyError};
use crate::host::live::Live;
use crate::job_dir::container_spec::OnUnlimited;
use crate::job_dir::injection::{InjectionPolicy, Wrapper};
use crate::model::idle::Rule;
use crate::model::retention::RetentionPolicy;
pub use crate::model::simulated_gpus::Simulated;

/// Variable that selects the injection of the limiter.
const FORM: &str = "DIVVY_FORM";

#[derive(Clone, Debug)]
pub struct Config {
    pub home: Home,
    pub node: NodeConfig,
    pub programs: Programs,
    pub schedule: ScheduleConfig,
    pub limits: Limits,
    /// Rules of projects and users for submissions.
    pub project_rules: ProjectRules,
    /// Time between SIGTERM and SIGKILL when the daemon stops a job.
    pub grace: Duration,
    /// Retention of ended jobs.
    pub retention: Live<RetentionPolicy>,
    /// Rule for idle jobs that have no rule of their own.
    pub idle: Option<Rule>,
    /// How idle jobs are parked.
    pub park: ParkOptions,
    pub confinement: Confinement,
    pub containers: Containers,
    /// Only claims get GPUs, and no jobs of users below the role admin.
    pub claims_only: bool,
    /// Roles of users.
    pub rules: Live<Rules>,
    /// The front end to other queues.
    pub front_end: Option<FrontEnd>,
    /// The options in force, and their origins.
    pub configured: Configured,
    /// Keys whose values in the file are not in force before the next start.
    pub needs_restart: Vec<String>,
}

/// What a reload of the configuration file replaces, besides the roles.
#[derive(Clone, Debug)]
pub struct Settings {
    pub schedule: ScheduleConfig,
    pub limits: Limits,
    pub project_rules: ProjectRules,
    pub grace: Duration,
    pub retention: RetentionPolicy,
    pub idle: Option<Rule>,
    pub park: ParkOptions,
    pub on_bypass: BypassPolicy,
    pub refuse_user_namespaces: bool,
    pub claims_only: bool,
    pub containers: Containers,
}

impl Settings {
    /// The settings of these options, on a node with so many GPUs.
    ///
    /// # Errors
    /// [`divvy_api::v1::ErrorCode::Usage`] for a rule about idle jobs that no daemon can follow.
    pub fn of(options: &DaemonOptions, gpus: u32) -> Result<Self, Error> {
        let queues = options.queues.clone();
        let queues = match options.gives_all_gpus_to_one_job() {
            true => all_to_one(queues, gpus),
            false => queues,
        };
        Ok(Self {
            schedule: ScheduleConfig {
                queues: with_default(queues),
                order: options.order,
                backfill: options.backfill,
                preemption: options.preemption,
                latency: options.latency.clone(),
            },
            limits: Limits {
                max_jobs: options.limits.max_jobs,
                max_texts: options.limits.max_texts.unwrap_or(u64::MAX),
                max_log_bytes: options.limits.log_size,
            },
            project_rules: options.project_rules.clone(),
            grace: options.grace,
            retention: options.retention,
            idle: options.idle.map(Rule::of).transpose()?,
            park: options.park,
            on_bypass: options.bypass_policy(),
            refuse_user_namespaces: options.refuse_user_namespaces,
            claims_only: options.claims_only,
            containers: Containers {
                default: options.containers.default.clone(),
                on_unlimited: match options.containers.deny_unlimited {
                    true => OnUnlimited::Deny,
                    false => OnUnlimited::Warn,
                },
                cdi: options.containers.cdi_dir.clone(),
            },
        })
    }
}

/// Gives all GPUs to each job of a queue without an amount.
fn all_to_one(queues: Vec<QueueSpec>, gpus: u32) -> Vec<QueueSpec> {
    let all = NonZeroU32::new(gpus).map(Amount::Whole);
    let whole = |spec: QueueSpec| QueueSpec {
        amount: spec.amount.or(all),
        ..spec
    };
    queues.into_iter().map(whole).collect()
}

fn with_default(mut queues: Vec<QueueSpec>) -> Vec<QueueSpec> {
    let default = QueueName::default_queue();
    if !queues.iter().any(|spec| spec.name == default) {
        queues.push(QueueSpec::open(default));
    }
    queues
}

impl Config {
    /// Takes over the settings of a reloaded file. Readers of retention and roles see them at once.
    pub fn adopt(&mut self, settings: Settings, rules: Rules) {
        let Settings {
            schedule,
            limits,
            project_rules,
            grace,
            retention,
            idle,
            park,
            on_bypass,
            refuse_user_namespaces,
            claims_only,
            containers,
        } = settings;
        self.schedule = schedule;
        self.limits = limits;
        self.project_rules = project_rules;
        self.grace = grace;
        self.retention.set(retention);
        self.idle = idle;
        self.park = park;
        self.confinement.on_bypass = on_bypass;
        self.confinement.refuse_user_namespaces = refuse_user_namespaces;
        self.claims_only = claims_only;
        self.containers = containers;
        self.rules.set(rules);
    }
}

/// The node and its GPUs.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub hostname: String,
    pub driver_version: String,
    /// What the start found missing, or different from the one before.
    pub start_warnings: Vec<String>,
    /// The simulated GPUs, if the node has no real ones.
    pub simulated: Option<Simulated>,
}

/// The order in which jobs start.
#[derive(Clone, Debug)]
pub struct ScheduleConfig {
    /// In the order in which the daemon serves them; `default` is among them.
    pub queues: Vec<QueueSpec>,
    pub order: Order,
    pub backfill: bool,
    pub preemption: Preemption,
    /// Latency goals of queues and projects, and what jobs with a goal may have of a GPU.
    pub latency: LatencyOptions,
}

/// Bounds on what one user and one job may make the daemon keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most jobs of one user that have not ended.
    pub max_jobs: u32,
    /// Most bytes of texts of these jobs ([`crate::model::validate::budget`]).
    pub max_texts: u64,
    /// Most bytes of a job's log; `None`: no limit.
    pub max_log_bytes: Option<u64>,
}

/// How the daemon keeps jobs apart besides the limiter.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// Action on memory that a process holds outside the limiter.
    pub on_bypass: BypassPolicy,
    /// What is to hold the memory limits of parts of GPUs.
    pub enforcement: EnforcementPolicy,
    /// Jobs of other users get no user namespaces.
    pub refuse_user_namespaces: bool,
    /// Parent cgroup of jobs, or the reason why there is none.
    pub cgroup_parent: Result<PathBuf, String>,
}

/// How jobs run in containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Containers {
    /// The container of submitted jobs that name none; without it they run as plain processes.
    pub default: Option<Container>,
    pub on_unlimited: OnUnlimited,
    /// Folder of CDI files, if the engine injects slices as CDI devices.
    pub cdi: Option<PathBuf>,
}

/// Files of the installation.
#[derive(Clone, Debug)]
pub struct Programs {
    /// This program, for supervisors and probes.
    pub divvy: PathBuf,
    /// The preload library of the limiter.
    pub preload: PathBuf,
    /// The wrapper libraries of the limiter, or the reason why there are none.
    pub wrappers: Result<Wrappers, String>,
    pub injection_preference: InjectionPreference,
}

/// The two wrapper libraries, mounted in place of the driver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrappers {
    pub cuda: PathBuf,
    pub nvml: PathBuf,
}

/// The value of `DIVVY_FORM`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InjectionPreference {
    #[default]
    Best,
    Preload,
    Wrapper,
}

impl InjectionPreference {
    /// # Errors
    /// For an unknown value.
    pub fn from_env() -> Result<Self, String> {
        match std::env::var(FORM).as_deref() {
            Err(_) | Ok("") => Ok(Self::Best),
            Ok("preload") => Ok(Self::Preload),
            Ok("wrapper") => Ok(Self::Wrapper),
            Ok(other) => Err(format!("{FORM}={other} is neither preload nor wrapper")),
        }
    }
}

impl Programs {
    /// Returns all files of the limiter.
    pub fn limiters(&self) -> impl Iterator<Item = &Path> {
        let wrappers = self
            .wrappers
            .iter()
            .flat_map(|files| [&files.cuda, &files.nvml]);
        std::iter::once(&self.preload)
            .chain(wrappers)
            .map(PathBuf::as_path)
    }

    /// The same with the copies of the limiter in this folder, which are made if need be.
    ///
    /// # Errors
    /// When there is no copy.
    pub fn copied(&self, copies: &Path) -> Result<Self, CopyError> {
        let files: Vec<&Path> = self.limiters().collect();
        let folder = limiter_copies::keep(copies, &files)?;
        let copy = |file: &Path| limiter_copies::copy_of(&folder, file);
        Ok(Self {
            divvy: self.divvy.clone(),
            preload: copy(&self.preload),
            wrappers: self.wrappers.clone().map(|files| Wrappers {
                cuda: copy(&files.cuda),
                nvml: copy(&files.nvml),
            }),
            injection_preference: self.injection_preference,
        })
    }

    /// Returns the injection for the limiter of a job.
    pub fn choose_injection(&self, slice: &Path, simulated: Option<&Simulated>) -> InjectionPolicy {
        let wrappers = match (&self.wrappers, self.injection_preference) {
            (_, InjectionPreference::Preload) => {
                return InjectionPolicy::Preload {
                    because: format!("{FORM}=preload"),
                };
            }
            (Err(missing), _) => {
                return InjectionPolicy::Preload {
                    because: missing.clone(),
                };
            }
            (Ok(wrappers), _) => wrappers.clone(),
        };
        let wrapper = Wrapper {
            cuda: wrappers.cuda,
            nvml: wrappers.nvml,
            preload: self.preload.clone(),
            slice: slice.to_owned(),
            slice_by_file: false,
            simulated: simulated.map(|simulated| simulated.lib.clone()),
        };
        match self.injection_preference {
            InjectionPreference::Wrapper => InjectionPolicy::Wrapper(wrapper),
            InjectionPreference::Best | InjectionPreference::Preload => {
                InjectionPolicy::Best(wrapper)
            }
        }
    }
}

/// A library that is missing from the installation.
#[derive(Debug, thiserror::Error)]
#[error("cannot find {name}: not next to {}, not in {} and not in the folder in DIVVY_LIB_DIR", executable.display(), installed.display())]
pub struct LibraryMissing {
    pub name: &'static str,
    pub executable: PathBuf,
    pub installed: PathBuf,
}

/// A path that ld.so(8) would split in the variable that contains it: jobs would run without the library.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the path {path:?} cannot be used in {variable}: the dynamic loader would split it at {part}"
)]
pub struct Unloadable {
    pub path: PathBuf,
    pub variable: &'static str,
    pub part: &'static str,
}

/// Checks that ld.so(8) reads `path` as one name in `LD_PRELOAD` (separators: blanks and `:`) or `LD_LIBRARY_PATH` (`:`
/// and `;`). In both `$` begins a token.
///
/// # Errors
/// [`Unloadable`] with the separator.
pub fn loadable(path: &Path, variable: &'static str) -> Result<(), Unloadable> {
    let separators: &[(char, &'static str)] = if variable == "LD_PRELOAD" {
        &[(':', "its `:`"), (' ', "its space"), ('$', "its `$`")]
    } else {
        &[(':', "its `:`"), (';', "its `;`"), ('$', "its `$`")]
    };
    let part = match path.to_str() {
        // The environment of a job is text.
        None => Some("its bytes that are not UTF-8"),
        Some(text) => separators
            .iter()
            .find(|(separator, _)| text.contains(*separator))
            .map(|(_, part)| *part),
    };
    part.map_or(Ok(()), |part| {
        Err(Unloadable {
            path: path.to_owned(),
            variable,
            part,
        })
    })
}

/// Finds a library in `$DIVVY_LIB_DIR`, beside the executable (as built by Cargo) or in `../lib/divvy` (as installed).
///
/// # Errors
/// [`LibraryMissing`].
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_path_that_the_loader_would_take_apart_is_refused() {
        for plain in ["/a/b.so", "/a-b_c/größe/x.so"] {
            for variable in ["LD_PRELOAD", "LD_LIBRARY_PATH"] {
                assert_eq!(loadable(Path::new(plain), variable), Ok(()));
            }
        }
        assert_eq!(
            loadable(Path::new("/my home/lib"), "LD_LIBRARY_PATH"),
            Ok(())
        );
        for (path, variable) in [
            ("/my home/x.so", "LD_PRELOAD"),
            ("/a:b/x.so", "LD_PRELOAD"),
            ("/$LIB/x.so", "LD_PRELOAD"),
            ("/a:b/lib", "LD_LIBRARY_PATH"),
            ("/a;b/lib", "LD_LIBRARY_PATH"),
        ] {
            let error = loadable(Path::new(path), variable).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains(variable), "{error}");
        }
        let bytes = Path::new(OsStr::from_bytes(b"/a\xff/x.so"));
        assert!(loadable(bytes, "LD_PRELOAD").is_err());
    }
}
