//! `admin`: what changes the node itself.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use divvy_api::v1::GpuMode;

use super::{AdminProject, Format, Read, help};

#[derive(Debug, Subcommand)]
pub enum Admin {
    /// Change how a GPU may be used
    Gpu(AdminGpu),
    /// MIG instances: what there is, where more would go, and removing those that nobody uses
    #[command(subcommand)]
    Mig(AdminMig),
    /// Projects: who is guaranteed how much
    #[command(subcommand)]
    Project(AdminProject),
    /// The journal: writing a copy of it, and restoring one
    #[command(subcommand)]
    Journal(AdminJournal),
}

#[derive(Debug, Subcommand)]
pub enum AdminJournal {
    /// Write a copy of the journal now; the daemon writes one each day
    Copy(JournalCopy),
    /// Put a copy in the place of the journal, while no daemon serves
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
    /// The journal of the system's daemon; needs root
    #[arg(long)]
    pub system: bool,
    /// Print what was done in this form: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy admin gpu GPU --mode MODE [OPTIONS]", after_help = help::ADMIN_GPU)]
pub struct AdminGpu {
    /// Index or UUID
    pub gpu: String,
    /// shared (slices of any size), mig (instances, made as jobs need them), exclusive (whole jobs only), unmanaged
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub mode: WantedMode,
    /// Say what would happen and what is in the way, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print what was done in this form: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

/// How a GPU is to be used.
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
    /// Every MIG instance, whose it is and what it is there for
    Ls(Read),
    /// Where instances of these profiles would go, all of them together
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
    /// Say what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub read: Read,
}
