//! The command line as clap sees it: one parser for every verb, in words the user typed.
//!
//! Amounts, queue tokens and GPU lists stay text here and become types in `ask` and `serve`, where a
//! refusal can say what would be right. `divvy` has one parser so that help, completion and usage errors agree.

mod admin;
mod attach;
mod clearml;
mod files;
mod help;
mod project;
mod simulate;
mod terms;
mod usage;
mod waiting;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, FromArgMatches as _, Parser, Subcommand, ValueEnum, ValueHint};

use divvy_api::v1::Error;
use divvy_core::reconcile::Policy;

use crate::script::JobFile;

pub use admin::{Admin, AdminGpu, AdminJournal, AdminMig, JournalOf, MigGc, MigPlan};
pub use attach::{Attach, Exec, Shell};
pub use clearml::{ClearMl, Stock};
pub use files::{OpenMode, Written};
pub use help::command;
pub use project::{AdminProject, ProjectArgs, RemoveProject};
pub use simulate::Simulate;
pub use terms::{IdleWord, TermArgs};
pub use usage::Usage;
pub use waiting::{AmountArgs, Change, Move};

/// Parses a whole command line, the program's name first.
///
/// # Errors
/// What clap refuses, and what it answers itself: help and the version.
pub fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    checked(command(), words)
}

/// The same by a parser that differs from [`command`] in its settings.
///
/// # Errors
/// As [`parse`].
pub fn checked(mut parser: clap::Command, words: &[OsString]) -> Result<Cli, clap::Error> {
    let cli = Cli::from_arg_matches(&parser.try_get_matches_from_mut(words)?)?;
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

#[derive(Debug, Parser)]
#[command(
    name = "divvy",
    bin_name = "divvy",
    version,
    about = "Cut NVIDIA GPUs into safe fractions, on the fly, per job",
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Where the stock ClearML agent has it: before `daemon`
    #[arg(long, value_name = "FILE", hide = true)]
    config_file: Option<PathBuf>,
    /// Likewise: the daemon's log with all details
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
                let file = daemon.clearml.config_file.take();
                daemon.clearml.config_file = file.or(self.config_file.take());
                daemon.debug = self.debug;
                Ok(self)
            }
            _ => Err(crate::failure::usage(
                format!("{flag} stands before a verb that does not take it"),
                "it is for divvy daemon --clearml; elsewhere set DIVVY_LOG=debug for more of the daemon's log",
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
    /// Open a shell in a slice of its own, or in that of a running job
    Shell(Box<Shell>),
    /// Run another program in a running job's slice
    Exec(Exec),
    /// Follow a running job: what it says, signals to it, its exit code
    Attach(Attach),
    /// Containers in slices
    #[command(subcommand)]
    Docker(Docker),
    /// Jobs that wait and run
    Ps(Ps),
    /// GPUs, what is cut from them and what is free
    Gpus(Read),
    /// Queues, in the order they are served
    Queues(Read),
    /// Projects: what each is guaranteed, uses and is due
    Projects(Read),
    /// Who had how much of the GPUs, and what of it was used
    Usage(Usage),
    /// Everything about one job
    Describe(ReadJob),
    /// What happened, in order
    Events(Events),
    /// A job's output
    Logs(Logs),
    /// What a waiting job waits for, and what would start it now
    Why(ReadJob),
    /// What refused a job GPU memory, and what would have passed
    Oom(ReadJob),
    /// How much memory to ask for, from what earlier runs used
    Advise(Advise),
    /// Give a job more or less memory or compute time, also while it runs
    Resize(Resize),
    /// Put waiting jobs into another queue, or first in it
    Move(Move),
    /// Keep waiting jobs from starting
    #[command(after_help = help::HOLD)]
    Hold(Cancel),
    /// Let held jobs go on
    Release(Cancel),
    /// Change a waiting job's amount, priority, time limit or name
    Change(Change),
    /// Wait for jobs to end; passes the exit code
    Wait(Wait),
    /// Stop jobs, or take them out of their queue
    Cancel(Cancel),
    /// Stop jobs and put them back into their queue, to be started anew
    Requeue(Cancel),
    /// Stop all processes of jobs that run; they keep their memory
    #[command(after_help = help::SUSPEND)]
    Suspend(Suspend),
    /// Let suspended jobs go on
    Resume(Cancel),
    /// Serve queues on this machine's GPUs
    Daemon(Box<Daemon>),
    /// Look at what is here, what will hold limits, and what to do
    Doctor(Doctor),
    /// Try to pass a memory limit in many ways, here, and show what holds
    Selftest(Selftest),
    /// What ways to place MIG instances would do with requests to come
    Simulate(Box<Simulate>),
    /// Change how GPUs may be used, and look after MIG instances
    #[command(subcommand)]
    Admin(Admin),
    /// Print a completion script for a shell
    Completion(Completion),
    /// Write the manual pages into a folder: for who packages this program
    #[command(hide = true)]
    Manual(Manual),
    /// Own one job's process: started by the daemon
    #[command(hide = true)]
    Supervise(Supervise),
    /// Make standard input the terminal of a program, and be that program: started by a job's supervisor
    #[command(hide = true)]
    OnTerminal(OnTerminal),
    /// Hold a slice for the shell that is opened in it: started by `shell`
    #[command(hide = true)]
    HoldSlice,
    /// Measure what a CUDA context costs: started by the daemon
    #[command(hide = true)]
    ProbeContext(ProbeContext),
    /// One call of the driver about another process: started by the daemon
    #[command(hide = true)]
    Checkpoint(Checkpoint),
    /// Print what a program meets of the driver: started by `doctor`
    #[command(hide = true)]
    ProbeDriver,
    /// Try to take more memory than this: started by `selftest`
    #[command(hide = true)]
    ProbeLimits(ProbeLimits),
}

/// What a job asks for and what it runs: the same for `run` and `submit`.
#[derive(Clone, Debug, Default, Args)]
pub struct JobArgs {
    /// Part of a GPU (0.25), or GPUs: 2, 1-4, 8x0.5
    ///
    /// Part of a GPU (0.25), whole GPUs (2 or 1-4), or parts of several (8x0.5)
    #[arg(short, long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub gpu: Option<String>,
    /// Memory on one GPU: 4G, 512M; G means GiB
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "gpu",
        allow_negative_numbers = true
    )]
    pub gpu_memory: Option<String>,
    /// With MIG: what an instance has, not its name
    ///
    /// With --gpu-memory: on a MIG GPU by what an instance has, and not by its name, which is rounded up
    #[arg(long, requires = "gpu_memory", conflicts_with_all = ["gpu", "mig_profile"])]
    pub gpu_memory_exact: bool,
    /// A MIG instance of this profile: 2g.10gb
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["gpu", "gpu_memory"])]
    pub mig_profile: Option<String>,
    /// Held by: cooperative, driver, hardware, any
    ///
    /// What is to hold the limit: cooperative (the limiter), driver or hardware (a MIG instance) [default: any]
    #[arg(long, value_name = "KIND")]
    pub isolation: Option<String>,
    /// Compute time: fair, strict, none, or fair=0.5
    ///
    /// Compute time among slices of one GPU: fair (by share, idle time to whoever wants it), strict (never more), or none;
    /// `fair=0.5` for a share other than the memory's
    #[arg(
        long,
        value_name = "MODE",
        default_value = "fair",
        hide_default_value = true
    )]
    pub compute: String,
    /// Name of the job [default: the program's]
    ///
    /// Name to show and to refer to the job by [default: the program's]
    #[arg(long)]
    pub name: Option<String>,
    /// Queue to wait in [default: default]
    #[arg(short, long)]
    pub queue: Option<String>,
    /// Project the job belongs to
    #[arg(short, long)]
    pub project: Option<String>,
    /// Only these GPUs, by index: 0,3 or 0-2
    #[arg(long, value_name = "LIST")]
    pub gpus_on: Option<String>,
    #[command(flatten)]
    pub terms: TermArgs,
    /// Run it in this folder
    ///
    /// Run the program in this folder [default: the present one]
    #[arg(short = 'C', long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub chdir: Option<PathBuf>,
    /// Start this, by `sh -c`, when the job has ended
    ///
    /// Have the daemon start this line by `sh -c` when the job has ended for good: as its user, without GPUs, for a minute at most, at
    /// most once; DIVVY_END_REASON and DIVVY_EXIT_CODE say how the job ended
    #[arg(long, value_name = "CMD", allow_hyphen_values = true)]
    pub notify: Option<String>,
    /// Refuse (exit code 6) rather than wait
    ///
    /// Refuse (exit code 6) where the job would have to wait
    #[arg(long)]
    pub no_wait: bool,
    /// Simulated GPUs, if no daemon runs: l4-24gb:2
    ///
    /// Simulate GPUs when a daemon has to be started: a100-80gb:3
    #[arg(long, value_name = "MODEL:N", value_parser = models)]
    pub sim: Option<String>,
    /// A daemon of your own, not the system's
    ///
    /// Use a daemon of your own where the system's is installed, and start it if need be; it does not count the jobs of the system's
    #[arg(long)]
    pub own_daemon: bool,
    /// The program and its arguments, after `--`
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy run [-g AMOUNT | --gpu-memory SIZE | --mig-profile PROFILE]\n                 [OPTIONS] -- CMD…", after_help = help::RUN)]
pub struct Run {
    #[command(flatten)]
    pub job: JobArgs,
    /// Without any daemon
    ///
    /// Without any daemon: a slice that only runs started this way know of
    #[arg(long, conflicts_with_all = ["queue", "project", "priority", "time", "after", "after_ok", "own_daemon", "notify"])]
    pub no_daemon: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy submit [-g AMOUNT | --gpu-memory SIZE | --mig-profile PROFILE]\n                    [OPTIONS] -- CMD…", after_help = help::SUBMIT)]
pub struct Submit {
    #[command(flatten)]
    pub job: JobArgs,
    /// In a container of this image
    ///
    /// Run the command in a container of this image; without a command, the image's own
    #[arg(long, value_name = "IMAGE")]
    pub docker: Option<String>,
    /// Flags of `docker run` for it, in one word
    ///
    /// Flags of `docker run` for it, in one word: '-v /data:/data --shm-size 8g'
    #[arg(
        long,
        value_name = "FLAGS",
        requires = "docker",
        allow_hyphen_values = true
    )]
    pub docker_args: Option<String>,
    /// May go over quota, and be stopped for others
    ///
    /// Let the job be stopped, and started anew later, for one that is within its project's quota; until then it may use what
    /// other projects leave
    #[arg(long)]
    pub preemptible: bool,
    /// A job for each index, N at once: 0-9, 0-99%4
    ///
    /// Submit a job for each index, at most N of them at once: 0-9, 1,3,5-7, 0-99%4; each finds its own in DIVVY_ARRAY_INDEX. The
    /// number that is answered means all of them, and 12_3 the one with the index 3
    #[arg(long, value_name = "LIST[%N]")]
    pub array: Option<String>,
    /// Start it again if it fails, N times at most
    ///
    /// Start the program again if it fails, so many times at most
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// Let it wait until `divvy release`
    #[arg(long)]
    pub hold: bool,
    /// Say what would happen and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the id of the job or the array
    #[arg(long)]
    pub parsable: bool,
    /// The same key submits once
    ///
    /// The same key submits once: a repeat answers with the first job
    #[arg(long, value_name = "KEY", hide_short_help = true)]
    pub idempotency_key: Option<String>,
    /// Print it as table, wide, json, …; or --stdout
    ///
    /// Print the job in this form: table, wide, json, ndjson or name. Any other value is a file, as behind --stdout; one without a dot,
    /// a slash and a % is written ./FILE
    #[arg(short, long, value_name = "FORMAT|FILE", value_parser = files::Words)]
    pub output: Option<Written>,
    /// The file of its output: out-%j.txt
    ///
    /// Write the output into this file, which the job's user opens in the job's folder, and not into the job's log: %j stands for the
    /// job's number, %A its array's, %a its index, %x its name, %u its user, %N the machine, %% a percent sign; %4j has four digits
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub stdout: Option<String>,
    /// The file of its errors [default: the output's]
    ///
    /// Write standard error into this file, as --stdout [default: where the output goes]
    #[arg(short = 'e', long, value_name = "FILE", value_hint = ValueHint::FilePath, alias = "error")]
    pub stderr: Option<String>,
    /// truncate or append [default: truncate]
    ///
    /// What the first run does with what the files have: truncate or append; later runs of the job append [default: truncate]
    #[arg(
        long,
        value_name = "MODE",
        hide_short_help = true,
        hide_possible_values = true
    )]
    pub open_mode: Option<OpenMode>,
    /// Run this line by `sh -c`
    #[arg(
        long,
        value_name = "LINE",
        conflicts_with_all = ["command", "docker"],
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub wrap: Option<String>,
    /// The job file that its command names, once it was read.
    #[arg(skip)]
    pub file: Option<JobFile>,
}

#[derive(Debug, Subcommand)]
pub enum Docker {
    /// Run a container in a slice, on this terminal, as `docker run` would
    Run(DockerRun),
    /// What a job's slice adds to a container: flags for `docker run`, or a CDI file
    Args(DockerArgs),
    /// Run a `docker run` of your own in a slice that lives as long as its container
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
    /// Flags of the slice, `--`, and the line
    #[arg(
        value_name = "WORDS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<String>,
}

/// Flags of a slice that `docker run` has no other use for.
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
    #[arg(default_value = "last")]
    pub job: String,
    /// Print a CDI file and not flags
    #[arg(long)]
    pub cdi: bool,
}

#[derive(Debug, Args)]
pub struct Ps {
    /// Only these, ended or not: ids, unique names, or `last`
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Also jobs that have ended
    #[arg(short, long)]
    pub all: bool,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
pub struct Read {
    /// Print it as table, wide, json, ndjson, name
    ///
    /// Form of the answer: table, wide, json, ndjson or name
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "table",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub output: Format,
}

#[derive(Debug, Args)]
pub struct ReadJob {
    /// Id, unique name, or `last`
    #[arg(default_value = "last")]
    pub job: String,
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
pub struct Events {
    /// Go on as things happen
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
    #[command(flatten)]
    pub read: Read,
}

#[derive(Debug, Args)]
pub struct Logs {
    /// Id, unique name, or `last`
    #[arg(default_value = "last")]
    pub job: String,
    /// Go on until the job ends
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy advise [JOB | --name NAME | -- CMD…] [OPTIONS]", after_help = help::ADVISE)]
pub struct Advise {
    /// From runs of what this job runs: id, unique name, or `last`
    pub job: Option<String>,
    /// From runs of jobs of this name; `*` stands for any text
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
    pub job: String,
    /// Part of each GPU it has, or whole GPUs
    ///
    /// Part of each GPU it has (0.25), or whole GPUs; while it waits, whatever can be asked for
    #[arg(short, long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub gpu: Option<String>,
    /// Memory on each GPU it has: 4G, 512M; G means GiB
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "gpu",
        allow_negative_numbers = true
    )]
    pub gpu_memory: Option<String>,
    /// Compute time: fair, strict, none, or fair=0.5
    ///
    /// Compute time from now on, alone or with an amount: fair, strict or none; `fair=0.5` for a share other than the memory's
    #[arg(long, value_name = "MODE")]
    pub compute: Option<String>,
    /// Print it as table, wide, json, ndjson, name
    ///
    /// Print the job in this form: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(after_help = help::WAIT)]
pub struct Wait {
    /// Ids, unique names, or `last`
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Give up (exit code 9) after this long: 90s, 5m, 2h
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Ring the terminal's bell as each ends
    #[arg(long)]
    pub bell: bool,
    /// Print the ended jobs in this form: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
pub struct Cancel {
    /// Ids, unique names, or `last`
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Print the jobs in this form: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
pub struct Suspend {
    #[command(flatten)]
    pub jobs: Cancel,
    /// Put their GPU memory into the host's, for others
    #[arg(long)]
    pub release_memory: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy daemon [--gpus LIST] [--dynamic-gpus --queue NAME=AMOUNT…] …", after_help = help::DAEMON)]
pub struct Daemon {
    /// Queues are NAME=AMOUNT: what jobs get
    ///
    /// Read each queue as NAME=AMOUNT: what every one of its jobs gets
    #[arg(long)]
    pub dynamic_gpus: bool,
    /// GPUs to serve: 0-2 [default: all]
    ///
    /// GPUs to serve: 0-2, or 0,1, or all [default: all]
    #[arg(long, value_name = "LIST", num_args = 1..)]
    pub gpus: Vec<String>,
    /// NAME or NAME=AMOUNT, first served first
    ///
    /// Queues, the first served first: NAME, and with --dynamic-gpus NAME=0.25 (steps of 0.125), NAME=2, NAME=1-4 or NAME=2g.10gb
    #[arg(long, value_name = "QUEUE", num_args = 1..)]
    pub queue: Vec<String>,
    /// Serve the queues in turn, one job each
    #[arg(long)]
    pub order_fairness: bool,
    /// Lower jobs start where that delays nobody
    ///
    /// Let a lower job start when that cannot delay the one that waits first
    #[arg(long)]
    pub backfill: bool,
    /// Stop no jobs that are over their quota
    ///
    /// Never stop jobs that are over their project's quota for jobs that are within theirs; all may go over then
    #[arg(long)]
    pub no_preemption: bool,
    /// Living jobs of a user at most [default: 100000]
    ///
    /// Refuse what a user submits beyond so many jobs that have not ended, those of arrays included [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_jobs: Option<u32>,
    /// Texts of a user's living jobs [default: 64M]
    ///
    /// Refuse what a user submits beyond so many bytes of commands, environments and secrets of jobs that have not
    /// ended; none: no bound [default: 64M]
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    pub max_texts: Option<String>,
    /// Serve all users of this machine, as root
    ///
    /// Serve every user of this machine on /run/divvy/divvy.sock; jobs run as who submitted them. Takes root
    #[arg(long)]
    pub system: bool,
    /// Serve GPUs that the system's daemon serves
    ///
    /// Serve this machine's GPUs although its system daemon serves them too: neither counts the jobs of the other
    #[arg(long, hide_short_help = true)]
    pub beside_system: bool,
    /// With --system: who has which role
    ///
    /// Who is viewer, user, operator or admin of the system's daemon [default: root is admin, all others are users]
    #[arg(long, value_name = "FILE")]
    pub access: Option<PathBuf>,
    /// Answer over TCP, to who has the token
    ///
    /// Answer on this address of this machine too, for callers with the token of --token-file
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// With --listen: the file with the token
    ///
    /// A file of mode 0600 with the token for --listen, at least 32 characters
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Run jobs in containers, of this image
    ///
    /// Run submitted jobs in containers: those that name no image in this one, with these flags of `docker run`
    #[arg(long, value_name = "IMAGE", num_args = 0..)]
    pub docker: Option<Vec<String>>,
    /// If no limit holds: warn [default: deny]
    ///
    /// What to do about an image whose programs the limiter cannot hold (musl, static): warn, or deny (it is not started)
    #[arg(
        long,
        value_name = "DO",
        default_value = "deny",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub on_unlimited_image: OnUnlimitedImage,
    /// Slices as CDI devices, files in DIR
    ///
    /// Bring slices into containers as CDI devices, whose files are put into this folder [default: by plain flags]
    #[arg(long, value_name = "DIR")]
    pub cdi_dir: Option<PathBuf>,
    /// Known from existing command lines, and refused
    #[arg(long, value_name = "N", num_args = 0..=1, hide = true)]
    pub services_mode: Option<Option<String>>,
    /// Stay in the foreground, which is the default
    #[arg(long, conflicts_with = "detached", hide_short_help = true)]
    pub foreground: bool,
    /// Return once it serves
    ///
    /// Return once the daemon serves, and leave it running
    #[arg(short, long)]
    pub detached: bool,
    /// Stop the daemon that serves; jobs go on
    ///
    /// Stop the daemon that serves now, if a worker is named only that one; jobs that run go on, tasks of --clearml are stopped
    #[arg(long, value_name = "WORKER", num_args = 0.., conflicts_with_all = ["detached", "foreground"])]
    pub stop: Option<Vec<String>>,
    /// Say what serves now, and what it runs
    ///
    /// Say what the daemon that serves now is, and what it runs
    #[arg(long, conflicts_with_all = ["stop", "detached", "foreground"])]
    pub status: bool,
    /// Serve simulated GPUs: a100-80gb:3
    #[arg(long, value_name = "MODEL:N", value_parser = models)]
    pub sim: Option<String>,
    /// From SIGTERM to SIGKILL [default: 10s]
    ///
    /// Time a job has to end when it is stopped, before it is killed [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub grace: Option<String>,
    /// Kept of a job's log [default: 256M]
    ///
    /// What a job's log keeps of its output, the last of it; none: all [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub log_size: Option<String>,
    /// Jobs whose GPUs are idle for so long
    ///
    /// What to do with jobs that have done nothing with their GPUs for this long, unless they say it themselves: see --idle-action
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<String>,
    /// notify, suspend or cancel
    ///
    /// notify (an event), suspend or cancel [default: notify]
    #[arg(
        long,
        value_name = "ACTION",
        requires = "idle_timeout",
        hide_possible_values = true
    )]
    pub idle_action: Option<IdleWord>,
    /// Forget ended jobs after
    ///
    /// Forget ended jobs, their folders and events after this long
    #[arg(long, value_name = "TIME", default_value = "90d")]
    pub keep: String,
    /// Ended jobs kept of each user
    ///
    /// Of each user's ended jobs, keep the newest N, and others for a day
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub keep_jobs: u32,
    /// Logs of a user's ended jobs [default: 4G]
    ///
    /// Of the logs of each user's ended jobs, keep the newest so many bytes; none: all [default: 4G]
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    pub keep_logs: Option<String>,
    /// Forget usage after
    ///
    /// Forget what was used after this long
    #[arg(long, value_name = "TIME", default_value = "400d")]
    pub keep_usage: String,
    /// warn, deny, kill [warn; with --system: kill]
    ///
    /// What to do about a job that holds GPU memory past the limiter: warn, deny (its slice gets no more), kill [default: warn, with
    /// --system kill]
    #[arg(long, value_name = "POLICY", hide_possible_values = true)]
    pub on_bypass: Option<OnBypass>,
    /// allow or refuse them to jobs [default: allow]
    ///
    /// With --system: whether jobs may make user namespaces, which rootless containers (Apptainer, Podman) need: allow or refuse
    /// [default: allow]
    #[arg(
        long,
        value_name = "DO",
        requires = "system",
        hide_possible_values = true
    )]
    pub user_namespaces: Option<UserNamespaces>,
    #[command(flatten)]
    pub clearml: ClearMl,
    /// From before the verb.
    #[arg(skip)]
    pub debug: bool,
}

/// What is done about an image that the limiter cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUnlimitedImage {
    Warn,
    Deny,
}

/// Whether jobs may make user namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UserNamespaces {
    Allow,
    Refuse,
}

/// What is done about a bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnBypass {
    Warn,
    Deny,
    Kill,
}

impl From<OnBypass> for Policy {
    fn from(policy: OnBypass) -> Self {
        match policy {
            OnBypass::Warn => Self::Warn,
            OnBypass::Deny => Self::Deny,
            OnBypass::Kill => Self::Kill,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = help::DOCTOR)]
pub struct Doctor {
    /// Look at simulated GPUs: a100-80gb:3
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
    /// Limit of the slice that is tested: several contexts have to fit in, and twice as much should be free
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
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(crate::complete::shells()))]
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
}

#[derive(Debug, Args)]
pub struct Checkpoint {
    /// What is to be done: state, lock, save, restore, unlock
    pub act: String,
    pub pid: u32,
    /// When the process started, in clock ticks since boot
    #[arg(value_name = "START")]
    pub start_time: u64,
    /// It ends itself after so long
    #[arg(long, value_name = "MS")]
    pub within_ms: u64,
    /// The driver's library, unless the loader's own
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ProbeLimits {
    #[arg(long)]
    pub limit: u64,
    pub words: Vec<String>,
}

/// `a100-80gb:3`, several joined by commas. Which models there are is the simulator's to say.
fn models(text: &str) -> Result<String, &'static str> {
    let counted = |item: &str| {
        let count = item.split_once(':').filter(|(model, _)| !model.is_empty());
        count.is_some_and(|(_, count)| count.parse::<u32>().is_ok_and(|count| count > 0))
    };
    if text.split(',').all(counted) {
        Ok(text.to_owned())
    } else {
        Err("write MODEL:N, as in a100-80gb:3")
    }
}

/// Form of an answer on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people, fitted to the terminal
    Table,
    /// For people, every column, never cut
    Wide,
    /// One document: {"schema":"divvy/v1","kind":…,"items":[…]}
    Json,
    /// One item a line
    Ndjson,
    /// What other verbs refer to the item by, one a line
    Name,
}

impl Format {
    /// Whether failures are told in JSON as well.
    pub fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Ndjson)
    }
}
