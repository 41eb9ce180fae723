//! The clap parser of the command line: one parser for all verbs, with values as typed.
//!
//! Amounts, queues and GPU lists stay text here. `ask` and `serve` convert them to types, with a hint in each error. One
//! parser keeps help, completion and usage errors consistent.

mod admin;
mod attach;
mod clearml;
mod command;
mod config;
mod files;
mod help;
mod init;
mod lists;
mod project;
mod read;
pub(crate) mod sbatch;
mod select;
mod simulate;
mod slice;
mod submit;
mod terms;
mod top;
mod usage;
mod waiting;
mod web;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, FromArgMatches as _, Parser, Subcommand};

use clap_complete::env::Shells;
use divvy_api::v1::Error;

use crate::error_output::usage;

pub use admin::{
    Admin, AdminDrain, AdminGpu, AdminJournal, AdminMig, AdminUndrain, JournalOf, MigGc, MigPlan,
};
pub use attach::{Attach, Exec, Shell};
pub use clearml::{ClearMl, Stock};
pub use command::command;
pub use config::{ConfigCheck, ConfigInit, ConfigReload, ConfigShow, ConfigVerb};
pub use files::{OpenMode, Written};
pub use help::{GROUPS, examples};
pub use init::AdminInit;
pub use lists::{JobFilter, Look, Ps};
pub use project::{AdminProject, ProjectArgs, RemoveProject};
use read::job;
pub use read::{Format, Read, ReadJob};
pub use select::{Cancel, Select};
pub use simulate::{Arrivals, Eighths, Mode, Question, Rule, Simulate, StudyFormat, Switch};
pub use slice::{EnvFormat, SliceCreate, SliceEnter, SliceEnv, SliceRm, SliceVerb};
use submit::models;
pub use submit::{JobArgs, JobFile, Run, Submit};
pub use terms::{IdleWord, TermArgs};
pub use top::Top;
pub use usage::Usage;
pub use waiting::{AmountArgs, Change, Move};
pub use web::Web;

/// Parses a whole command line, the program's name first.
///
/// # Errors
/// Usage errors, help and the version, as clap reports them.
pub fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    checked(command(), words)
}

/// As [`parse`], with a parser that differs from [`command`] in its settings.
///
/// # Errors
/// As [`parse`].
pub fn checked(mut parser: clap::Command, words: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = parser.try_get_matches_from_mut(with_flags_as_values(words))?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let Verb::Submit(submit) = &cli.verb
        && let Some(why) = submit.contradiction()
    {
        let kind = clap::error::ErrorKind::ArgumentConflict;
        return Err(match parser.find_subcommand_mut("submit") {
            Some(submit) => submit.error(kind, why),
            None => parser.error(kind, why),
        });
    }
    Ok(cli)
}

/// The words with those made values that the stock agent takes as values of `daemon --docker`: `"-v /data:/data"`. Its
/// parser takes a word with a blank for no flag. A blank before the word has that effect on ours.
fn with_flags_as_values(words: &[OsString]) -> Vec<OsString> {
    let mut words = words.to_vec();
    let mut before = words.iter().skip(1);
    let verb = loop {
        match before.next() {
            Some(word) if word == "--config-file" => drop(before.next()),
            Some(word) if word.as_encoded_bytes().starts_with(b"-") => {}
            other => break other,
        }
    };
    if verb.is_none_or(|verb| verb != "daemon") {
        return words;
    }
    let is_container = |word: &OsString| word == "--docker" || word == "--podman";
    let mut is_value = false;
    for word in &mut words {
        let text = word.to_string_lossy();
        let is_flag = text.starts_with('-');
        let is_line = is_flag && is_value && text.contains(' ') && !text.contains('=');
        is_value = is_container(word) || is_value && (!is_flag || is_line);
        if is_line {
            *word = OsString::from(format!(" {text}"));
        }
    }
    words
}

#[derive(Debug, Parser)]
#[command(
    name = "divvy",
    bin_name = "divvy",
    version = divvy_api::version::program(),
    about = "Cut NVIDIA GPUs into safe fractions, on the fly, per job",
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Accepted before `daemon`, as by the stock ClearML agent
    #[arg(long, value_name = "FILE", hide = true)]
    config_file: Option<PathBuf>,
    /// Write all details to the daemon's log; accepted before `daemon`
    #[arg(short, long, hide = true)]
    debug: bool,
    #[command(subcommand)]
    pub verb: Verb,
}

impl Cli {
    /// Hands what stands before the verb to `daemon --clearml`.
    ///
    /// # Errors
    /// [`divvy_api::v1::ErrorCode::Usage`] before any other verb.
    pub fn placed(mut self) -> Result<Self, Error> {
        let flag = match (&self.config_file, self.debug) {
            (Some(_), _) => "--config-file",
            (None, true) => "--debug",
            (None, false) => return Ok(self),
        };
        match &mut self.verb {
            Verb::Daemon(daemon) if daemon.clearml.clearml => {
                if daemon.clearml.config_file.is_none() {
                    daemon.clearml.config_file = self.config_file.take();
                }
                daemon.debug = self.debug;
                Ok(self)
            }
            _ => Err(usage(
                format!("{flag} is not a flag of this verb"),
                "use it with `divvy daemon --clearml`; for details of the daemon, start it with DIVVY_LOG=debug",
            )),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a program in a slice, on this terminal
    Run(Box<Run>),
    /// Put a job in a queue and return
    Submit(Box<Submit>),
    /// Open a shell in a new slice, or inside a running job
    Shell(Box<Shell>),
    /// Run another program in a running job's slice
    Exec(Exec),
    /// Follow a running job: its output, signals to it, its exit code
    Attach(Attach),
    /// Run containers in slices
    #[command(subcommand)]
    Docker(Docker),
    /// Hold slices for programs of other engines
    #[command(subcommand)]
    Slice(SliceVerb),
    /// List pending and running jobs
    Ps(Ps),
    /// Watch GPUs, jobs and pending jobs, live
    Top(Top),
    /// Show GPUs, jobs and users in a browser, on this machine
    Web(Web),
    /// List GPUs, their slices and their free capacity
    Gpus(Look),
    /// List queues, in the order that the daemon serves them
    Queues(Look),
    /// List projects: quota, use and fair share
    Projects(Look),
    /// Report GPU hours by day, user, project, queue, GPU or job
    Usage(Usage),
    /// Show everything about one job
    Describe(ReadJob),
    /// List the daemon's events, in order
    Events(Events),
    /// Print a job's output
    Logs(Logs),
    /// Show why a job waits, and what would start it now
    Why(ReadJob),
    /// Show why GPU memory was refused, and what the call needed
    Oom(ReadJob),
    /// Suggest a memory limit, from what earlier runs used
    Advise(Advise),
    /// Change the memory or compute time of a job, also while it runs
    Resize(Resize),
    /// Move pending jobs to another queue, or to its top
    Move(Move),
    /// Keep pending jobs from starting
    #[command(after_help = help::HOLD)]
    Hold(Cancel),
    /// Let held jobs start
    Release(Cancel),
    /// Change a pending job's amount, priority, time limit or name
    Change(Change),
    /// Wait for jobs to end, and return their exit code
    Wait(Wait),
    /// Stop jobs, or remove them from their queue
    Cancel(Cancel),
    /// Stop jobs and put them back into their queue, to start again
    Requeue(Cancel),
    /// Stop all processes of running jobs; they keep their memory
    #[command(after_help = help::SUSPEND)]
    Suspend(Suspend),
    /// Resume suspended jobs
    Resume(Cancel),
    /// Move GPU memory of running jobs to host memory; their processes run on
    #[command(hide = true, after_help = help::PARK)]
    Park(Parked),
    /// Bring the GPU memory of parked jobs back
    #[command(hide = true)]
    Wake(Parked),
    /// Serve queues on this machine's GPUs
    Daemon(Box<Daemon>),
    /// Write, check, show and reload the daemon's configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Check GPUs, driver, limiter and daemon, and suggest what to fix
    Doctor(Doctor),
    /// Try to exceed a memory limit in many ways, and report the results
    Selftest(Selftest),
    /// Compare placements, and ask what a change would do to waits
    Simulate(Box<Simulate>),
    /// Change GPU modes and projects, and manage MIG instances
    #[command(subcommand)]
    Admin(Admin),
    /// Print a completion script for a shell
    Completion(Completion),
    /// Write the manual pages into a folder, for packagers
    #[command(hide = true)]
    Manual(Manual),
    /// Run and supervise one job; started by the daemon
    #[command(hide = true)]
    Supervise(Supervise),
    /// Make standard input the controlling terminal and run a program; started by a job's supervisor
    #[command(hide = true)]
    OnTerminal(OnTerminal),
    /// Hold a slice for the shell that opens in it; started by `shell`
    #[command(hide = true)]
    HoldSlice,
    /// Measure the memory of a CUDA context; started by the daemon
    #[command(hide = true)]
    ProbeContext(ProbeContext),
    /// Call the driver's checkpoint functions for other processes; started by the daemon
    #[command(hide = true)]
    Checkpoint(Checkpoint),
    /// Print the driver's answers inside a job; started by `doctor`
    #[command(hide = true)]
    ProbeDriver,
    /// Try to allocate more memory than this; started by `selftest`
    #[command(hide = true)]
    ProbeLimits(ProbeLimits),
}

#[derive(Debug, Subcommand)]
pub enum Docker {
    /// Run a container in a slice, on this terminal, as `docker run` does
    Run(DockerRun),
    /// Print the flags for `docker run`, or a CDI file, that add a job's slice
    Args(DockerArgs),
    /// Run your own `docker run` in a slice that is released with its container
    Slice(DockerSlice),
}

/// Flags of a slice, and a line that starts a container.
#[derive(Debug, Args)]
#[command(
    override_usage = "divvy docker slice {-g AMOUNT | --gpu-memory SIZE} [SLICE FLAGS]\n                          [--no-daemon] -- docker run [FLAGS] IMAGE [CMD…]",
    after_help = help::DOCKER_SLICE,
    disable_help_flag = true
)]
pub struct DockerSlice {
    /// Flags of the slice, `--`, and the command line
    #[arg(
        value_name = "WORDS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<String>,
}

/// Flags of a slice, then flags of `docker run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "divvy docker run {-g AMOUNT | --gpu-memory SIZE | --mig-profile PROFILE}\n                        [SLICE FLAGS] [DOCKER RUN FLAGS] IMAGE [CMD…]",
    after_help = help::DOCKER_RUN,
    disable_help_flag = true
)]
pub struct DockerRun {
    /// Flags of the slice, flags of `docker run`, the image, its command
    #[arg(
        value_name = "WORDS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = help::DOCKER_ARGS)]
pub struct DockerArgs {
    /// Id, unique name, or `last`
    #[arg(default_value = "last", value_parser = job)]
    pub job: String,
    /// Print a CDI file instead of flags
    #[arg(long)]
    pub cdi: bool,
}

#[derive(Debug, Args)]
pub struct Events {
    /// Only events of this job or array: id, name, or `last`
    #[arg(value_parser = job)]
    pub job: Option<String>,
    /// Print further events as they happen
    #[arg(short, long)]
    pub follow: bool,
    /// Only events after this sequence number
    #[arg(
        long,
        value_name = "SEQ",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub after: u64,
    /// Only events since this time: 2h, 3d, a date
    ///
    /// Only events since this time: 2h or 3d before now, a day (2026-11-01) or a time in RFC 3339
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only the last N of the events that there are now
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<u32>,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
pub struct Logs {
    /// Id, unique name, or `last`
    #[arg(default_value = "last", value_parser = job)]
    pub job: String,
    /// Print further output until the job ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last N lines of the output that there is now
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only output since this time: 2h, 3d, a date
    ///
    /// Only output since this time: 2h or 3d before now, a day (2026-11-01) or a time in RFC 3339. It begins up to 10 s
    /// earlier; of times long ago, up to a thirtieth of their age
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy advise [JOB | --name NAME | -- CMD…] [OPTIONS]", after_help = help::ADVISE)]
pub struct Advise {
    /// From earlier runs of this job's program: id, unique name, or `last`
    pub job: Option<String>,
    /// From runs of jobs with this name; `*` matches any text
    #[arg(long, conflicts_with = "job")]
    pub name: Option<String>,
    /// From runs of this command, after `--`
    #[arg(value_name = "CMD", last = true, conflicts_with_all = ["job", "name"])]
    pub command: Vec<String>,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy resize JOB {--gpu-memory SIZE | -g AMOUNT | --compute MODE}\n                    [OPTIONS]", after_help = help::RESIZE)]
pub struct Resize {
    /// Id, unique name, or `last`
    #[arg(value_parser = job)]
    pub job: String,
    /// Part of each of its GPUs, or whole GPUs
    ///
    /// Part of each of its GPUs (0.25), or whole GPUs. For a pending job any amount
    #[arg(short, long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub gpu: Option<String>,
    /// Memory on each of its GPUs: 4G, 512M; G means GiB
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "gpu",
        allow_negative_numbers = true
    )]
    pub gpu_memory: Option<String>,
    /// Compute time: fair, strict, none, or fair=0.5
    ///
    /// How it shares compute time from now on: fair, strict or none. `fair=0.5` sets a share that differs from the
    /// memory's
    #[arg(long, value_name = "MODE")]
    pub compute: Option<String>,
    /// Format: table, wide, json, ndjson, name
    ///
    /// Print the job in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(after_help = help::WAIT)]
pub struct Wait {
    /// Ids, unique names, or `last`
    #[arg(required = true, value_name = "JOB", value_parser = job)]
    pub jobs: Vec<String>,
    /// Stop waiting (exit code 9) after this long: 90s, 5m, 2h
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Ring the terminal's bell when a job ends
    #[arg(long)]
    pub bell: bool,
    /// Print the ended jobs in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
pub struct Suspend {
    #[command(flatten)]
    pub jobs: Cancel,
    /// Move their GPU memory to the host, to free the GPUs
    #[arg(long)]
    pub release_memory: bool,
}

#[derive(Debug, Args)]
pub struct Parked {
    /// Ids, unique names, or `last`
    #[arg(required = true, value_name = "JOB", value_parser = job)]
    pub jobs: Vec<String>,
    /// Print the jobs in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(infer_long_args = true, override_usage = "divvy daemon [--gpus LIST] [--queue NAME=AMOUNT…] …", after_help = help::DAEMON)]
pub struct Daemon {
    /// Configuration file; flags take precedence
    ///
    /// Read the configuration from this file; flags take precedence [default: DIVVY_CONFIG, else config.toml in
    /// DIVVY_HOME, in /etc/divvy with --system, or in ~/.config/divvy]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set a key of the file: --set backfill=true
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// With --clearml: a slot for each task
    ///
    /// With --clearml: each task has a slot of its own, and each --queue is NAME=AMOUNT. Without --clearml it changes
    /// nothing: each --queue may have an amount
    #[arg(long)]
    pub dynamic_gpus: bool,
    /// GPUs to serve: 0-2 [default: all]
    ///
    /// GPUs to serve: 0-2, or 0,1, or UUIDs, or all [default: all]. The daemon remembers their UUIDs: at a later start with
    /// the same list it serves the same GPUs, whatever their indices are then
    #[arg(long, value_name = "LIST", num_args = 1..)]
    pub gpus: Vec<String>,
    /// NAME or NAME=AMOUNT, in the order to serve them
    ///
    /// Queues, in the order to serve them: NAME=0.25 (steps of 0.125), NAME=2, NAME=1-4 or NAME=2g.10gb sets the amount
    /// of each job; with NAME each job requests its own
    #[arg(long, value_name = "QUEUE", num_args = 1..)]
    pub queue: Vec<String>,
    /// Take one job from each queue in turn
    #[arg(long)]
    pub order_fairness: bool,
    /// Serve all users of this machine, as root
    ///
    /// Serve every user of this machine on /run/divvy/divvy.sock. Jobs run as the users that submit them. Needs root
    #[arg(long)]
    pub system: bool,
    /// Wait for the end of a running daemon
    ///
    /// Wait until the running daemon of this home has ended, instead of refusing to start
    #[arg(long, conflicts_with_all = ["detached", "stop", "status"], hide_short_help = true)]
    pub standby: bool,
    /// The uid of the Kubernetes pod of this daemon
    ///
    /// The uid of the Kubernetes pod that this daemon is in. Processes of other pods may not call the daemon; those of the
    /// node itself may
    #[arg(long, value_name = "UID", hide_short_help = true)]
    pub node_pod: Option<String>,
    /// Run jobs in containers, by default of IMAGE
    ///
    /// Run submitted jobs in containers. Jobs without an image use this one, with these flags of `docker run`
    #[arg(long, value_name = "IMAGE", num_args = 0..)]
    pub docker: Option<Vec<String>>,
    /// Recognised from existing command lines, and refused
    #[arg(long, value_name = "N", num_args = 0..=1, hide = true)]
    pub services_mode: Option<Option<String>>,
    /// Stay in the foreground, which is the default
    #[arg(long, conflicts_with = "detached", hide_short_help = true)]
    pub foreground: bool,
    /// Return when it serves
    ///
    /// Run in the background, and return when the daemon serves
    #[arg(short, long)]
    pub detached: bool,
    /// Stop the running daemon; jobs keep running
    ///
    /// Stop the running daemon; with --gpus or the name of a worker, only if it is the daemon of these. Jobs keep
    /// running; tasks of --clearml are stopped
    #[arg(long, value_name = "WORKER", num_args = 0..)]
    pub stop: Option<Vec<String>>,
    /// Show the running daemon and its jobs
    ///
    /// Show the running daemon and its jobs
    #[arg(long, conflicts_with = "stop")]
    pub status: bool,
    /// Serve simulated GPUs: a100-80gb:3
    #[arg(long, value_name = "MODEL:N", value_parser = models)]
    pub sim: Option<String>,
    #[command(flatten)]
    pub clearml: ClearMl,
    /// Whether `--debug` stands before the verb.
    #[arg(skip)]
    pub debug: bool,
}

#[derive(Debug, Args)]
#[command(after_help = help::DOCTOR)]
pub struct Doctor {
    /// Check simulated GPUs: a100-80gb:3
    #[arg(long, value_name = "MODEL:N", value_parser = models)]
    pub sim: Option<String>,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
#[command(after_help = help::SELFTEST)]
pub struct Selftest {
    /// The GPU to test, by index [default: the one that a job would get]
    #[arg(long, value_name = "INDEX")]
    pub gpu: Option<u32>,
    /// Test every GPU
    #[arg(long, conflicts_with = "gpu")]
    pub all: bool,
    /// Test parking instead: a process's GPU memory is moved to host memory and back. Jobs are parked only by a driver
    /// that has passed
    #[arg(long)]
    pub park: bool,
    /// With --park: record the result for the system's daemon, as root
    #[arg(long, requires = "park")]
    pub system: bool,
    /// Memory limit of the tested slice. Several CUDA contexts must fit
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub gpu_memory: String,
    /// Test simulated GPUs: a100-80gb:3
    #[arg(long, value_name = "MODEL:N", value_parser = models)]
    pub sim: Option<String>,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
#[command(after_help = help::COMPLETION)]
pub struct Completion {
    /// The shell to print a script for
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(Shells::builtins().names()))]
    pub shell: String,
}

#[derive(Debug, Args)]
pub struct Manual {
    pub folder: PathBuf,
}

#[derive(Debug, Args)]
pub struct Supervise {
    pub job_directory: PathBuf,
}

#[derive(Debug, Args)]
pub struct OnTerminal {
    /// The program's file, its name, its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ProbeContext {
    pub gpu_uuid: String,
    /// The folder of the simulated driver [default: the machine's driver]
    #[arg(long, value_name = "DIR")]
    pub simulated: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Checkpoint {
    /// Answer the requests on standard input, a line each
    #[arg(long, required = true)]
    pub serve: bool,
    /// The driver's library [default: the one that the loader finds]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ProbeLimits {
    #[arg(long)]
    pub limit: u64,
    pub words: Vec<String>,
}
