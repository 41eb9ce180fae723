//! `divvy-k8s project` and `department`: quotas of a cluster in the words of `divvy admin project`, written as Kueue's
//! objects.
//!
//! ```text
//!   flags ──► settings ──► edit ──► kueue::objects ──► server-side apply: flavors, cohorts, ClusterQueue, LocalQueues
//!   ClusterQueues, Workloads ──► list ──► table, JSON                              config: Kueue's own configuration
//! ```
//! The ClusterQueue is the project: it is created first and deleted last, so a command that was killed in the middle is
//! completed by repeating it. A change carries the version that it was read at, so that two administrators do not undo
//! each other's settings.

mod config;
mod department;
mod edit;
mod list;
pub mod report;
mod settings;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use divvy_api::v1::Error;
use kube::Client;

use crate::base::error_output::Format;
pub(crate) use config::{NAMESPACE as KUEUE_NAMESPACE, read as read_kueue_configuration};
pub(crate) use list::workload_name;

#[derive(ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Adds a project: a quota of GPUs for namespaces
    #[command(
        override_usage = "divvy-k8s project add NAME --quota GPUS --namespace NAMESPACE [OPTIONS]"
    )]
    Add(ProjectArgs),
    /// Changes the given settings of a project
    #[command(override_usage = "divvy-k8s project set NAME [OPTIONS]")]
    Set(ProjectArgs),
    /// Removes a project that has no workloads
    Rm(RemoveArgs),
    /// Lists the projects with their quotas and use
    Ls(ListArgs),
    /// Prints the values of Kueue's Helm chart that make Kueue count GPU memory
    Config(ConfigArgs),
}

#[derive(ClapArgs)]
pub struct DepartmentArgs {
    #[command(subcommand)]
    verb: DepartmentVerb,
}

#[derive(Subcommand)]
enum DepartmentVerb {
    /// Adds a department: a quota that projects share
    Add(SettingArgs),
    /// Changes the given settings of a department
    Set(SettingArgs),
    /// Removes a department that has no projects
    Rm(NameArgs),
    /// Lists the departments with their quotas and use
    Ls(ListArgs),
}

/// The settings that projects and departments share.
#[derive(ClapArgs)]
struct SettingArgs {
    name: String,
    /// Guaranteed GPUs, also fractions: 2.5
    #[arg(long, value_name = "GPUS")]
    quota: Option<String>,
    /// Most GPUs at once, or none for no limit
    #[arg(long, value_name = "GPUS")]
    limit: Option<String>,
    /// Allows more GPUs than the quota while other projects leave them idle
    #[arg(long, conflicts_with = "no_over_quota")]
    over_quota: bool,
    /// Allows no more GPUs than the quota
    #[arg(long, conflicts_with = "limit")]
    no_over_quota: bool,
    /// Weight for the GPUs beyond all quotas; 0: only GPUs that no other project wants; quota: as its quota
    #[arg(long, value_name = "N")]
    weight: Option<String>,
    /// Memory of one GPU, such as 80G, if the cluster has GPUs of several sizes
    #[arg(long, value_name = "SIZE")]
    gpu_size: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(ClapArgs)]
struct ProjectArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// Namespace of the project; can be repeated, and takes a list: ana,lee
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',')]
    namespace: Vec<String>,
    /// Department of the project, or none
    #[arg(long, value_name = "NAME")]
    department: Option<String>,
}

#[derive(ClapArgs)]
struct NameArgs {
    name: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(ClapArgs)]
struct RemoveArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Evicts its running workloads first; they and waiting ones stay suspended without a queue
    #[arg(long)]
    force: bool,
}

#[derive(ClapArgs)]
struct ListArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(ClapArgs)]
struct ConfigArgs {
    /// Prints Kueue's Configuration alone, for installations without Helm
    #[arg(long)]
    configuration: bool,
    /// Namespace of Kueue; its present configuration is kept
    #[arg(long, value_name = "NAME", default_value = config::NAMESPACE)]
    kueue_namespace: String,
    /// Output format; table prints YAML
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Args {
    pub fn is_json(&self) -> bool {
        let output = match &self.verb {
            Verb::Add(args) | Verb::Set(args) => args.settings.output,
            Verb::Rm(args) => args.name.output,
            Verb::Ls(args) => args.output,
            Verb::Config(args) => args.output,
        };
        output.is_json()
    }
}

impl DepartmentArgs {
    pub fn is_json(&self) -> bool {
        let output = match &self.verb {
            DepartmentVerb::Add(args) | DepartmentVerb::Set(args) => args.output,
            DepartmentVerb::Rm(args) => args.output,
            DepartmentVerb::Ls(args) => args.output,
        };
        output.is_json()
    }
}

/// # Errors
/// The settings are wrong, Kueue is absent, or the cluster refuses the change.
pub async fn run(args: &Args, client: &Client) -> Result<ExitCode, Error> {
    match &args.verb {
        Verb::Add(args) => edit::add(args, client).await?,
        Verb::Set(args) => edit::set(args, client).await?,
        Verb::Rm(args) => edit::remove(args, client).await?,
        Verb::Ls(args) => list::projects(args.output, client).await?,
        Verb::Config(args) => config::print(args, client).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// As [`run`].
pub async fn run_department(args: &DepartmentArgs, client: &Client) -> Result<ExitCode, Error> {
    match &args.verb {
        DepartmentVerb::Add(args) => department::add(args, client).await?,
        DepartmentVerb::Set(args) => department::set(args, client).await?,
        DepartmentVerb::Rm(args) => department::remove(args, client).await?,
        DepartmentVerb::Ls(args) => list::departments(args.output, client).await?,
    }
    Ok(ExitCode::SUCCESS)
}
