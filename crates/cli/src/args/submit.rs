//! Arguments of a job: amount, program and place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use divvy_api::v1::Script;

use super::files::{self, OpenMode, Written};
use super::{TermArgs, help};

/// The amount and the program of a job: the same for `run` and `submit`.
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
    /// With MIG: compare actual memory, not the name
    ///
    /// With --gpu-memory on a MIG GPU: compare with the instance's actual memory. Its profile name is rounded up
    #[arg(
        long,
        requires = "gpu_memory",
        conflicts_with_all = ["gpu", "mig_profile"],
        hide_short_help = true
    )]
    pub gpu_memory_exact: bool,
    /// A MIG instance of this profile: 2g.10gb
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["gpu", "gpu_memory"])]
    pub mig_profile: Option<String>,
    /// Enforced by: cooperative, driver, hardware, any
    ///
    /// How the limit is enforced: cooperative (by the limiter), driver, hardware (a MIG instance) or any [default: any]
    #[arg(long, value_name = "KIND")]
    pub isolation: Option<String>,
    /// Compute time: fair, strict, none, or fair=0.5
    ///
    /// How the slices of one GPU share compute time: fair (by share, idle time to other slices), strict (never more than
    /// the share) or none. `fair=0.5` sets a share that differs from the memory's
    #[arg(
        long,
        value_name = "MODE",
        default_value = "fair",
        hide_default_value = true
    )]
    pub compute: String,
    /// Time in which a request should be answered: 20ms
    ///
    /// Latency goal of an inference job: 20ms. Its requests go first while it keeps to its share. A goal, not a promise;
    /// needs --compute fair
    #[arg(long, value_name = "TIME", conflicts_with = "mig_profile")]
    pub latency: Option<String>,
    /// Name of the job [default: the program's]
    ///
    /// Name that lists show and that other commands accept [default: the program's]
    #[arg(long)]
    pub name: Option<String>,
    /// Queue to wait in [default: default]
    #[arg(short, long)]
    pub queue: Option<String>,
    /// Project that the job belongs to
    #[arg(short, long)]
    pub project: Option<String>,
    /// Only these GPUs, by index: 0,3 or 0-2
    #[arg(long, value_name = "LIST")]
    pub gpus_on: Option<String>,
    #[command(flatten)]
    pub terms: TermArgs,
    /// Run it in this folder
    ///
    /// Run the program in this folder [default: the current one]
    #[arg(short = 'C', long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub chdir: Option<PathBuf>,
    /// Run this with `sh -c` when the job has ended
    ///
    /// The daemon runs this line with `sh -c` when the job has ended, as the job's user and without GPUs. It runs at most
    /// once, for at most a minute. DIVVY_END_REASON and DIVVY_EXIT_CODE hold the result of the job, DIVVY_USED
    /// its peak memory
    #[arg(long, value_name = "CMD", allow_hyphen_values = true)]
    pub notify: Option<String>,
    /// Fail with exit code 6 instead of waiting
    ///
    /// Fail with exit code 6 if the job cannot start at once
    #[arg(long)]
    pub no_wait: bool,
    /// Simulate GPUs if no daemon runs: l4-24gb:2
    ///
    /// Simulate GPUs if this command starts a daemon: a100-80gb:3
    #[arg(long, value_name = "MODEL:N", value_parser = models)]
    pub sim: Option<String>,
    /// Use a daemon of your own, not the system's
    ///
    /// Use a daemon of your own although the system's is installed, and start it if needed. The two daemons do not count
    /// each other's jobs
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
    /// Run without any daemon
    ///
    /// Run without any daemon. Only programs started with this flag count each other's slices
    #[arg(long, conflicts_with_all = ["queue", "project", "priority", "time", "after", "after_ok", "own_daemon", "notify"])]
    pub no_daemon: bool,
    /// Keep the job when this command is killed
    ///
    /// Keep the job when this command ends by SIGKILL or a crash. By default the daemon then cancels the job
    #[arg(long, conflicts_with = "no_daemon")]
    pub outlive_client: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy submit [-g AMOUNT | --gpu-memory SIZE | --mig-profile PROFILE]\n                    [OPTIONS] -- CMD…", after_help = help::SUBMIT)]
pub struct Submit {
    #[command(flatten)]
    pub job: JobArgs,
    /// Run in a container of this image
    ///
    /// Run the command in a container of this image. Without a command, run the image's default one
    #[arg(long, value_name = "IMAGE")]
    pub docker: Option<String>,
    /// Flags for `docker run`, as one argument
    ///
    /// Flags for `docker run`, as one argument: '-v /data:/data --shm-size 8g'
    #[arg(
        long,
        value_name = "FLAGS",
        requires = "docker",
        allow_hyphen_values = true
    )]
    pub docker_args: Option<String>,
    /// Let it exceed its quota, and be preempted
    ///
    /// Let the job use quota that other projects leave. The daemon may stop it for a job within quota, and starts it
    /// again later
    #[arg(long)]
    pub preemptible: bool,
    /// One job per index, N at once: 0-9, 0-99%4
    ///
    /// Submit one job per index, at most N of them running at once: 0-9, 1,3,5-7, 0-99%4. Each job finds its index in
    /// DIVVY_ARRAY_INDEX. The printed number, such as 12, names the array, and 12_3 the job with index 3
    #[arg(long, value_name = "LIST[%N]")]
    pub array: Option<String>,
    /// Start it again if it fails, at most N times
    ///
    /// Start the program again if it fails, at most N times
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// Keep it pending until `divvy release`
    #[arg(long)]
    pub hold: bool,
    /// Print what would happen, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print only the id of the job or the array
    #[arg(long)]
    pub parsable: bool,
    /// Submit only once per key
    ///
    /// Submit only once per key: a repeat returns the first job
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Print as table, wide, json, …; or log to ./FILE
    ///
    /// Two meanings. Print the job in this format: table, wide, json, ndjson or name. Any other value is a file, as with --stdout;
    /// write ./FILE for a name without a dot, a slash and a %
    #[arg(short, long, value_name = "FORMAT|FILE", value_parser = files::Words)]
    pub output: Option<Written>,
    /// Write its output to this file: out-%j.txt
    ///
    /// Write the output to this file instead of the job's log, as the job's user and relative to the job's folder. Fields:
    /// %j job number, %A array number, %a index, %x name, %u user, %N machine, %% percent sign; %4j pads to four digits
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub stdout: Option<String>,
    /// Write its errors to this file
    ///
    /// Write standard error to this file, as with --stdout [default: the file or log of the output]
    #[arg(short = 'e', long, value_name = "FILE", value_hint = ValueHint::FilePath, alias = "error")]
    pub stderr: Option<String>,
    /// truncate or append [default: truncate]
    ///
    /// truncate or append: how the first run opens files that exist. Later runs of the job append [default: truncate]
    #[arg(
        long,
        value_name = "MODE",
        hide_short_help = true,
        hide_possible_values = true
    )]
    pub open_mode: Option<OpenMode>,
    /// Run this line with `sh -c`
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

/// A job file, and what its lines say besides flags.
#[derive(Clone, Debug)]
pub struct JobFile {
    pub script: Script,
    /// Variables that Slurm would set.
    pub env: BTreeMap<String, String>,
}

/// `a100-80gb:3`, several joined by commas. Which models there are is the simulator's to say.
pub(super) fn models(text: &str) -> Result<String, &'static str> {
    if divvy_api::daemon::is_sim(text) {
        Ok(text.to_owned())
    } else {
        Err("use MODEL:N, for example a100-80gb:3")
    }
}
