//! Arguments of `slice`: slices for programs that Divvy does not start.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::{Format, Look, help};

#[derive(Debug, Subcommand)]
pub enum SliceVerb {
    /// Hold a slice of named GPUs, until its end or `rm`
    Create(SliceCreate),
    /// Run a program in a slice; this process becomes it
    Enter(SliceEnter),
    /// Print what a process needs to enter a slice
    Env(SliceEnv),
    /// List slices: owner, GPUs, limits, use, end
    #[command(after_help = help::SLICE_LS)]
    Ls(Look),
    /// Release slices; an absent one is fine
    Rm(SliceRm),
}

#[derive(Debug, Args)]
#[command(
    override_usage = "divvy slice create NAME --gpus-on LIST\n                    {-g AMOUNT | --gpu-memory SIZE | --mig-profile PROFILE}\n                    [--pid PID | --cgroup DIR] [--wait DURATION] [OPTIONS]",
    after_help = help::SLICE_CREATE
)]
pub struct SliceCreate {
    /// Letters, digits and `-._`: slurm-123
    pub name: String,
    /// The GPUs, by index or UUID: 0,1
    ///
    /// The GPUs, by index or UUID, with commas or as several flags. The slice has the amount on each of them
    #[arg(
        long,
        value_name = "LIST",
        required = true,
        value_delimiter = ',',
        alias = "on"
    )]
    pub gpus_on: Vec<String>,
    /// Part of each GPU (0.25), or 1: the whole GPU
    #[arg(
        short,
        long,
        value_name = "AMOUNT",
        allow_negative_numbers = true,
        required_unless_present_any = ["gpu_memory", "mig_profile"]
    )]
    pub gpu: Option<String>,
    /// Memory on each GPU: 4G, 512M; G means GiB
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "gpu",
        allow_negative_numbers = true
    )]
    pub gpu_memory: Option<String>,
    /// A MIG instance of this profile on each GPU: 2g.10gb
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["gpu", "gpu_memory"], alias = "profile")]
    pub mig_profile: Option<String>,
    /// Compute time: fair, strict, none, or fair=0.5
    #[arg(
        long,
        value_name = "MODE",
        default_value = "fair",
        hide_default_value = true
    )]
    pub compute: String,
    /// Release it when this process has ended: $$
    #[arg(long, value_name = "PID", conflicts_with = "cgroup")]
    pub pid: Option<u32>,
    /// The end of --pid before `rm` is a cancel
    ///
    /// The slice counts as cancelled when the process of --pid ends before `divvy slice rm`: it was killed, or it crashed
    #[arg(long, requires = "pid")]
    pub cancel_on_exit: bool,
    /// Release it when this control group was removed
    ///
    /// Release it when this control group was removed: a folder below /sys/fs/cgroup, which may appear up to 5 minutes
    /// later. Processes in the group count as the slice's, also those that do not enter it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cgroup: Option<PathBuf>,
    /// Wait up to this long for room: 10s
    ///
    /// Wait up to this long, at most an hour, for room on the GPUs, or for the release of an earlier slice of this name
    #[arg(long, value_name = "DURATION")]
    pub wait: Option<String>,
    /// Its owner, by name or uid [default: you]
    ///
    /// The user that the slice counts for and whose processes enter it, by name or uid [default: you]
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Print the slice in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy slice enter NAME -- CMD…", after_help = help::SLICE_ENTER)]
pub struct SliceEnter {
    /// Name of the slice
    pub name: String,
    /// The program and its arguments, after `--`
    #[arg(value_name = "CMD", last = true, required = true)]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = help::SLICE_ENV)]
pub struct SliceEnv {
    /// Name of the slice
    pub name: String,
    /// Format: shell or json
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "shell",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub output: EnvFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EnvFormat {
    /// Lines for a shell's `eval`.
    Shell,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = help::SLICE_RM)]
pub struct SliceRm {
    /// Names of slices
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}
