//! Arguments of `admin`: changes to the node itself.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use divvy_api::v1::GpuMode;

use super::{AdminInit, AdminProject, Format, Read, help};

#[derive(Debug, Subcommand)]
pub enum Admin {
    /// Write the configuration file, and start the daemon
    Init(Box<AdminInit>),
    /// Change the mode of a GPU
    Gpu(AdminGpu),
    /// Take GPUs out of service: running jobs continue, and no job starts there
    Drain(AdminDrain),
    /// Return GPUs to service
    Undrain(AdminUndrain),
    /// MIG instances: list them, plan further ones, remove idle ones
    #[command(subcommand)]
    Mig(AdminMig),
    /// Projects: add, change and remove them
    #[command(subcommand)]
    Project(AdminProject),
    /// The journal: write a copy, or restore one
    #[command(subcommand)]
    Journal(AdminJournal),
}

#[derive(Debug, Subcommand)]
pub enum AdminJournal {
    /// Copy the journal now; the daemon writes a copy each day
    Copy(JournalCopy),
    /// Replace the journal by a copy, while no daemon runs
    Restore(JournalRestore),
}

#[derive(Debug, Args)]
#[command(after_help = help::JOURNAL_COPY)]
pub struct JournalCopy {
    #[command(flatten)]
    pub of: JournalOf,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy admin journal restore FILE [OPTIONS]", after_help = help::JOURNAL_RESTORE)]
pub struct JournalRestore {
    /// A copy of the journal
    pub file: PathBuf,
    #[command(flatten)]
    pub of: JournalOf,
}

#[derive(Debug, Args)]
pub struct JournalOf {
    /// Use the journal of the system's daemon; needs root
    #[arg(long)]
    pub system: bool,
    /// Print the result in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy admin gpu GPU --mode MODE [OPTIONS]", after_help = help::ADMIN_GPU)]
pub struct AdminGpu {
    /// Index or UUID
    pub gpu: String,
    /// shared (slices of any size), mig (instances, created as jobs need them), exclusive (whole GPUs only), unmanaged
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub mode: WantedMode,
    /// Print what would happen and what blocks it, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the result in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy admin drain [GPU…] --reason TEXT [OPTIONS]", after_help = help::ADMIN_DRAIN)]
pub struct AdminDrain {
    /// Indices or UUIDs; all GPUs if none is named
    #[arg(value_name = "GPU")]
    pub gpus: Vec<String>,
    /// Why, in a few words: shown with each job that waits for these GPUs
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Return them to service at this time: 18:00, 2h, 2026-11-30 or 2026-11-30T09:00:00Z
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy admin undrain [GPU…] [OPTIONS]", after_help = help::ADMIN_UNDRAIN)]
pub struct AdminUndrain {
    /// Indices or UUIDs; all GPUs if none is named
    #[arg(value_name = "GPU")]
    pub gpus: Vec<String>,
    #[command(flatten)]
    pub read: Read,
}

/// The requested mode of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WantedMode {
    Shared,
    Mig,
    Exclusive,
    Unmanaged,
}

impl From<WantedMode> for GpuMode {
    fn from(mode: WantedMode) -> Self {
        match mode {
            WantedMode::Shared => Self::Shared,
            WantedMode::Mig => Self::Mig,
            WantedMode::Exclusive => Self::Exclusive,
            WantedMode::Unmanaged => Self::Unmanaged,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum AdminMig {
    /// List MIG instances, their owners and their states
    Ls(Read),
    /// Show where instances of these profiles would be placed
    Plan(MigPlan),
    /// Remove the idle instances
    Gc(MigGc),
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy admin mig plan PROFILE… [OPTIONS]", after_help = help::MIG_PLAN)]
pub struct MigPlan {
    /// Profiles as nvidia-smi writes them: 1g.5gb, 2g.10gb, 1g.5gb+me
    #[arg(required = true, value_name = "PROFILE")]
    pub profiles: Vec<String>,
    /// Only these GPUs, by index: 0,3 or 0-2
    #[arg(long, value_name = "LIST")]
    pub gpus_on: Option<String>,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
pub struct MigGc {
    /// Only on these GPUs, by index: 0,3 or 0-2
    #[arg(long, value_name = "LIST")]
    pub gpus_on: Option<String>,
    /// Print what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub read: Read,
}
