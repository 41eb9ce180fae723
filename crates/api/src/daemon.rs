//! Daemon options: what `divvy daemon` serves and how, as plain data with its defaults.
//!
//! The command line fills [`DaemonOptions`], and the agent reads it. The serde form is that of a configuration file:
//! kebab-case names, a table for each group, durations such as `90d`, sizes such as `64MiB` or `none`. An absent field
//! has its default.
//!
//! | module | contains |
//! |---|---|
//! | [`keys`] | the table of keys: form, flags, meaning, and whether a reload applies them |
//! | [`file`](mod@file) | the parser of a file, with line and column of each problem |
//! | `check` | the rules for values, alone and together |
//! | `accounts` | the users and groups that the options name |
//! | [`source`] | the file's place, its reading, and the values of the command line that win over it |

mod accounts;
mod check;
pub mod file;
pub mod keys;
mod principal;
mod project_rules;
mod projects;
mod roles;
pub mod source;
mod text;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use divvy_core::reconcile::BypassPolicy;
use divvy_core::{
    Bytes, EnforcementPolicy, GpuSelection, LatencyGoal, LatencyRule, Order, Preemption,
    ProjectName, QueueName, QueueSpec, Share,
};
use serde::{Deserialize, Serialize};

use crate::v1::{Container, Idle};

pub use file::{ConfigError, Place, Problem};
pub use principal::Principal;
pub use project_rules::{GpuLimit, PerUser, ProjectRules, RuleError, UserKey};
pub use projects::ProjectOptions;
pub use roles::{
    Commands, ContainerUser, Containers, OWN_HOME, Others, Role, RoleOptions, SubmitterContainers,
};
pub use source::{Configured, Origin, Setting, Source};
pub use text::{is_sim, parse_duration};

/// Time between SIGTERM and SIGKILL. Docker's own default of `docker stop`: a program that handles SIGTERM there has
/// enough time here. Kubernetes has 30 s, which `--grace` gives.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Jobs of one user that have not ended: ten of the largest arrays. The daemon keeps these jobs in memory, so a loop of
/// one user must not fill it.
pub const DEFAULT_MAX_JOBS: u32 = 100_000;

/// Bytes of texts of one user's jobs that have not ended: as many as the largest array brings. The journal holds them,
/// and the daemon's memory holds the commands as well.
pub const DEFAULT_MAX_TEXT_BYTES: u64 = 64 << 20;

/// Bytes of one job's log: weeks of lines of a training, and a disk that holds models holds a hundred of them. Double
/// would fill such a disk with fifty; half cuts the log of a chatty training in its first days.
pub const DEFAULT_LOG_SIZE: u64 = 256 << 20;

/// What a daemon serves, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct DaemonOptions {
    /// `all`, or a list such as `0,2`.
    #[serde(with = "text::gpus")]
    pub gpus: GpuSelection,
    /// Refuse to start without each of these GPUs, or with a queue whose jobs no GPU here can serve.
    pub strict_start: bool,
    /// In the order in which the daemon serves them. The daemon appends the queue `default` if it is absent.
    #[serde(with = "text::queues")]
    pub queues: Vec<QueueSpec>,
    pub order: Order,
    pub backfill: bool,
    /// Whether jobs over quota give way to jobs within quota.
    pub preemption: Preemption,
    /// Latency goals.
    pub latency: LatencyOptions,
    /// Return once the daemon answers, and leave it running. A property of one start, so no file contains it.
    #[serde(skip)]
    pub detached: bool,
    /// Wait until another daemon of the same home has ended, instead of refusing to start.
    #[serde(skip)]
    pub standby: bool,
    /// The uid of the Kubernetes pod that the daemon is in: processes of other pods may not call it.
    #[serde(skip)]
    pub node_pod: Option<String>,
    /// Simulated GPUs: `a100-80gb:3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sim: Option<String>,
    /// Time between SIGTERM and SIGKILL when the daemon stops a job.
    #[serde(with = "text::duration")]
    pub grace: Duration,
    /// Rule for jobs that do not use their GPUs.
    #[serde(with = "text::idle", skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// When idle jobs are parked, and what parked jobs may have.
    pub park: ParkOptions,
    /// See [`DaemonOptions::bypass_policy`] for the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_bypass: Option<BypassPolicy>,
    /// What is to hold memory limits on shared GPUs.
    pub enforcement: EnforcementPolicy,
    /// Jobs of other users get no user namespaces.
    pub refuse_user_namespaces: bool,
    pub device_nodes: DeviceNodes,
    /// Another scheduler allocates the GPUs, so only claims get them, and no jobs of users below the role admin.
    pub claims_only: bool,
    pub listen: ListenOptions,
    pub limits: LimitOptions,
    /// Rules of projects and users for submissions.
    pub project_rules: ProjectRules,
    pub retention: RetentionPolicy,
    pub containers: ContainerOptions,
    /// The ClearML front end, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clearml: Option<ClearMlOptions>,
    /// Roles of users; without them, and without [`ListenOptions::access`], root is admin and all others are users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<RoleOptions>,
    /// Projects that the file defines; commands define others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub projects: BTreeMap<ProjectName, ProjectOptions>,
}

impl Default for DaemonOptions {
    fn default() -> Self {
        Self {
            gpus: GpuSelection::All,
            strict_start: false,
            queues: Vec::new(),
            order: Order::default(),
            backfill: false,
            preemption: Preemption::default(),
            latency: LatencyOptions::default(),
            detached: false,
            standby: false,
            node_pod: None,
            sim: None,
            grace: DEFAULT_GRACE,
            idle: None,
            park: ParkOptions::default(),
            on_bypass: None,
            enforcement: EnforcementPolicy::default(),
            refuse_user_namespaces: false,
            device_nodes: DeviceNodes::Open,
            claims_only: false,
            listen: ListenOptions::default(),
            limits: LimitOptions::default(),
            project_rules: ProjectRules::default(),
            retention: RetentionPolicy::default(),
            containers: ContainerOptions::default(),
            clearml: None,
            roles: None,
            projects: BTreeMap::new(),
        }
    }
}

impl DaemonOptions {
    /// Returns the policy for memory that a process holds outside the limiter. By default the system's daemon kills,
    /// since its users share the GPUs with others, and a user's own daemon warns.
    pub fn bypass_policy(&self) -> BypassPolicy {
        self.on_bypass.unwrap_or(if self.listen.system {
            BypassPolicy::Kill
        } else {
            BypassPolicy::Warn
        })
    }

    /// Whether a job of a queue without an amount gets all GPUs, so that one job runs at a time: as the stock ClearML
    /// agent serves its queues without `--dynamic-gpus`.
    pub fn gives_all_gpus_to_one_job(&self) -> bool {
        self.clearml
            .as_ref()
            .is_some_and(|clearml| !clearml.dynamic)
    }
}

/// Which programs of users may open the GPUs' device nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceNodes {
    #[default]
    Open,
    /// Those of jobs only.
    Jobs,
}

/// Sockets of the daemon, and the users that it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ListenOptions {
    /// Serve every user of the machine. It decides which file is read, so no file contains it.
    #[serde(skip)]
    pub system: bool,
    /// Serve the machine's GPUs although the system's daemon serves them too.
    pub beside_system: bool,
    /// File with the roles of users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<PathBuf>,
    /// Address of the TCP listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// File with the token of TCP clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Names of the TCP listener besides its address, as a proxy passes them on: `lab1.example`, or with a port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub web_hosts: Vec<String>,
}

/// Latency goals of jobs that name none, and how much of a GPU all jobs with a goal have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct LatencyOptions {
    /// Of each GPU's compute time, for all jobs with a goal together.
    #[serde(with = "text::share")]
    pub share: Share,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub queues: BTreeMap<QueueName, LatencyGoal>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub projects: BTreeMap<ProjectName, LatencyGoal>,
}

impl Default for LatencyOptions {
    fn default() -> Self {
        Self {
            share: LatencyRule::default().most,
            queues: BTreeMap::new(),
            projects: BTreeMap::new(),
        }
    }
}

/// How jobs with the idle action `park` are parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ParkOptions {
    pub when: ParkWhen,
    /// Within this time a parked job gets its room back from jobs that can give it; `None`: whenever there is room.
    #[serde(with = "text::wake")]
    pub wake: Option<Duration>,
    /// A woken job keeps its memory for so long at least.
    #[serde(with = "text::duration")]
    pub min_awake: Duration,
    /// What all parked jobs together have in host memory.
    #[serde(with = "text::host_memory")]
    pub host_memory: HostMemory,
}

/// When an idle job is parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParkWhen {
    /// When another job needs its room.
    #[default]
    Need,
    /// As soon as it is idle.
    Idle,
}

/// A bound on host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemory {
    /// Of what the machine has.
    Percent(u8),
    Size(Bytes),
}

impl Default for ParkOptions {
    fn default() -> Self {
        Self {
            when: ParkWhen::default(),
            // P5: a copy of 60 GB takes seconds; a user takes a longer pause for a failure.
            wake: Some(Duration::from_secs(30)),
            // P4: a copy of 60 GB takes seconds, and its user has asked for it. Half would let two jobs spend their time
            // with copies; double would exceed the default bound of a wake twice.
            min_awake: Duration::from_secs(30),
            // P11: the processes of parked jobs and all others need the rest.
            host_memory: HostMemory::Percent(50),
        }
    }
}

/// Bounds on what one user and one job may make the daemon keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct LimitOptions {
    /// Jobs of one user that have not ended.
    pub max_jobs: u32,
    /// Bytes of the texts of these jobs; `None`: no limit.
    #[serde(with = "text::size")]
    pub max_texts: Option<u64>,
    /// Bytes of one job's log; `None`: no limit.
    #[serde(with = "text::size")]
    pub log_size: Option<u64>,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            max_jobs: DEFAULT_MAX_JOBS,
            max_texts: Some(DEFAULT_MAX_TEXT_BYTES),
            log_size: Some(DEFAULT_LOG_SIZE),
        }
    }
}

/// Retention of ended jobs, their logs and usage records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct RetentionPolicy {
    /// Age at which ended jobs, their folders and events are deleted.
    #[serde(with = "text::duration")]
    pub jobs_for: Duration,
    /// Ended jobs of each user, the newest first.
    pub max_jobs: u32,
    /// Bytes of the logs of each user's ended jobs, as blocks of the file system; `None`: no limit.
    #[serde(with = "text::size")]
    pub max_log_bytes: Option<u64>,
    /// Age at which usage records are deleted.
    #[serde(with = "text::duration")]
    pub usage_for: Duration,
}

impl Default for RetentionPolicy {
    /// A quarter of a year of jobs, of which 20,000 take about half a gigabyte without their logs; 16 logs of
    /// [`DEFAULT_LOG_SIZE`]; a year of usage, and a month more to look back at it.
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        Self {
            jobs_for: days(90),
            max_jobs: 20_000,
            max_log_bytes: Some(16 * DEFAULT_LOG_SIZE),
            usage_for: days(400),
        }
    }
}

/// Containers of submitted jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ContainerOptions {
    /// Jobs run in containers.
    pub docker: bool,
    /// The container of jobs that name none; without it they run as plain processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Container>,
    /// Start no image with programs that the limiter cannot limit.
    pub deny_unlimited: bool,
    /// Folder where the engine looks for CDI devices, if slices become CDI devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdi_dir: Option<PathBuf>,
}

impl Default for ContainerOptions {
    fn default() -> Self {
        Self {
            docker: false,
            default: None,
            deny_unlimited: true,
            cdi_dir: None,
        }
    }
}

/// The front end to a ClearML Server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ClearMlOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_file: Option<PathBuf>,
    pub create_queue: bool,
    /// Queues of the server, in the order in which the daemon polls them; empty: the server's default queue. They are
    /// the names of [`DaemonOptions::queues`].
    #[serde(skip)]
    pub queues: Vec<String>,
    /// The value of `--gpus` without blanks. The names of workers contain it.
    #[serde(skip)]
    pub gpus: Option<String>,
    /// Every task has its own slot; otherwise one task runs at a time, on all GPUs.
    pub dynamic: bool,
    /// Image of tasks that name none, and its arguments. Without it tasks run as processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docker: Option<Vec<String>>,
    pub uptime: Vec<String>,
    pub downtime: Vec<String>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub polling_interval: Option<u64>,
    pub slot_tags: Vec<String>,
    pub keep_children: bool,
    /// Program and arguments that run tasks as processes [default: `clearml-agent`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Vec<String>>,
    /// `user`, `project`, `none`, or the absolute path of a file that maps the server's names to projects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_by: Option<String>,
    /// Environment variables with the meaning of flags of the stock agent.
    #[serde(skip)]
    pub variables: Vec<(&'static str, String)>,
    /// Containers install this machine's version of the stock agent.
    pub current_version: bool,
    /// Use Podman as container engine.
    pub podman: bool,
    /// Flags of the stock agent that have no effect.
    #[serde(skip)]
    pub ignored: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let options: DaemonOptions = toml::from_str("").unwrap();
        assert_eq!(options, DaemonOptions::default());
    }

    #[test]
    fn options_survive_a_file() {
        let options = DaemonOptions {
            gpus: GpuSelection::Indices(vec![0, 2]),
            queues: vec![
                "half=0.5".parse().unwrap(),
                QueueSpec::open("open".parse().unwrap()),
                QueueSpec::open("half=0.5 of ClearML".parse().unwrap()),
            ],
            limits: LimitOptions {
                max_texts: None,
                ..LimitOptions::default()
            },
            clearml: Some(ClearMlOptions::default()),
            ..DaemonOptions::default()
        };
        let file = toml::to_string(&options).unwrap();
        assert_eq!(toml::from_str::<DaemonOptions>(&file).unwrap(), options);
    }

    #[test]
    fn durations_and_sizes_have_units() {
        let file = "gpus = '0-2'\ngrace = '1m30s'\n[limits]\nmax-texts = 'none'\nlog-size = '64M'\n[retention]\njobs-for = '30d'\n";
        let options: DaemonOptions = toml::from_str(file).unwrap();
        assert_eq!(options.gpus, GpuSelection::Indices(vec![0, 1, 2]));
        assert_eq!(options.grace, Duration::from_secs(90));
        assert_eq!(options.limits.max_texts, None);
        assert_eq!(options.limits.log_size, Some(64 << 20));
        assert_eq!(
            options.retention.jobs_for,
            Duration::from_secs(30 * 24 * 3600)
        );
        for wrong in [
            "grace = '90'",
            "gpus = '0-x'",
            "[limits]\nlog-size = 'much'",
            "grase = '1s'",
        ] {
            assert!(toml::from_str::<DaemonOptions>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_systems_daemon_kills_on_a_bypass_by_default() {
        let mut options = DaemonOptions::default();
        assert_eq!(options.bypass_policy(), BypassPolicy::Warn);
        options.listen.system = true;
        assert_eq!(options.bypass_policy(), BypassPolicy::Kill);
        options.on_bypass = Some(BypassPolicy::Warn);
        assert_eq!(options.bypass_policy(), BypassPolicy::Warn);
    }
}
