//! The daemon harness: a private instance of Divvy with its daemon, its command line and its API.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::v1::{Error, Job, JobState};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

use crate::failpoints::CRASH_AT;
use crate::record::{end_all, recorded};
use crate::{
    Bounded as _, CommandOutput, PATIENCE, Programs, kill_all_that_mention, signals, until,
    until_async, until_passing,
};

/// Variables of the caller that would leak into what is tested.
const FOREIGN: [&str; 6] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// A daemon in the foreground that this process started.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Ends it as a crash would, and waits until it is gone.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn crash(mut self) {
        let _ = self.child.kill();
        self.child
            .wait_bounded()
            .expect("a child can be waited for");
    }

    /// Asks it to stop (SIGTERM) and waits; its exit code.
    ///
    /// # Panics
    /// When it was ended by a signal.
    #[must_use]
    pub fn stop(mut self) -> i32 {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("the daemon is our child");
        self.child
            .wait_bounded()
            .expect("a child can be waited for")
            .code()
            .expect("the daemon ends by itself when asked")
    }

    /// Its exit code, should it have ended.
    pub fn ended(&mut self) -> Option<i32> {
        self.status().and_then(|status| status.code())
    }

    /// How it has ended, should it have.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
    }
}

/// A private instance in a folder of its own, over simulated GPUs or the machine's. When dropped, every process of it
/// is killed, the control groups of its jobs and its folder are removed; when a test fails, what the daemon said is
/// printed first.
///
/// Its daemon is either a [`Daemon`] that the caller keeps ([`Home::daemon`]) or one that the instance keeps
/// ([`Home::start`]).
pub struct Home {
    folder: TempDir,
    /// `DIVVY_HOME`.
    path: PathBuf,
    programs: Programs,
    sim: Option<String>,
    variables: BTreeMap<String, String>,
    memory: Option<TempDir>,
    /// What is started here comes before whatever else the machine does.
    first: bool,
    kept: Option<Daemon>,
    client: Client,
    runtime: OnceLock<Runtime>,
}

impl Home {
    /// An instance over the simulated GPUs that `sim` (`a100-80gb:3`) names, with the programs built like this test.
    ///
    /// # Panics
    /// When its folder cannot be made.
    #[must_use]
    pub fn new(sim: &str) -> Self {
        Self::with(Programs::of_this_test(), Some(sim))
    }

    /// An instance with given programs; over the machine's own GPUs without `sim`. Jobs get their limiter in the form
    /// that `DIVVY_TEST_FORM` names, without it in the best there is.
    ///
    /// # Panics
    /// When its folder cannot be made.
    #[must_use]
    pub fn with(programs: Programs, sim: Option<&str>) -> Self {
        let folder = tempfile::Builder::new().prefix("divvy-").tempdir();
        let folder = folder.expect("a temporary folder can be made");
        // A test may open the folder of gates to other users before the first gate.
        fs::create_dir(folder.path().join("gates")).expect("a new folder can be written");
        let path = folder.path().join("home");
        Self::at(folder, path, programs, sim)
    }

    /// An instance with a `DIVVY_HOME` that is there before its first daemon. The words of a daemon name its GPUs.
    ///
    /// # Panics
    /// When its folder cannot be made.
    #[must_use]
    pub fn empty() -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let path = folder.path().to_owned();
        Self::at(folder, path, Programs::of_this_test(), None)
    }

    /// The same with a daemon of these words, which the instance keeps.
    ///
    /// # Panics
    /// When the daemon does not start.
    #[must_use]
    #[track_caller]
    pub fn started(words: &[&str]) -> Self {
        let mut home = Self::empty();
        home.start(words);
        home
    }

    fn at(folder: TempDir, path: PathBuf, programs: Programs, sim: Option<&str>) -> Self {
        signals::reset_for_children();
        let client = Client::new(path.join("divvy.sock"));
        Self {
            folder,
            path,
            programs,
            sim: sim.map(str::to_owned),
            variables: std::env::var("DIVVY_TEST_FORM")
                .map(|form| ("DIVVY_FORM".to_owned(), form))
                .into_iter()
                .collect(),
            memory: None,
            first: false,
            kept: None,
            client,
            runtime: OnceLock::new(),
        }
    }

    /// Sets a variable for everything that is started here.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.set(name, value);
        self
    }

    /// Sets a variable for everything that is started from now on.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.variables.insert(name.to_owned(), value.into());
    }

    /// Removes a variable that was set here.
    pub fn unset(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// The value of a variable that was set here.
    ///
    /// # Panics
    /// When it was not.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        let value = self.variables.get(name);
        value.unwrap_or_else(|| panic!("{name} is not set"))
    }

    /// Keeps the slices in memory and the rest on disk, as an installed instance does; a private home has all in one
    /// folder.
    ///
    /// # Panics
    /// When a folder cannot be made.
    #[must_use]
    pub fn slices_in_memory(mut self) -> Self {
        let memory = tempfile::Builder::new()
            .prefix("divvy-")
            .tempdir_in("/dev/shm")
            .expect("/dev/shm can be written");
        fs::DirBuilder::new()
            .mode(0o700)
            .create(self.path())
            .expect("the home is new");
        symlink(memory.path(), self.path.join("slices")).expect("the home is new");
        self.memory = Some(memory);
        self
    }

    /// Gives the processes started here precedence over all others, where that is allowed (root). What is measured of a
    /// simulated GPU is then the GPU's time, and no wait for a processor.
    #[must_use]
    pub fn before_others(mut self) -> Self {
        self.first = true;
        self
    }

    /// `DIVVY_HOME`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket of the API.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join("divvy.sock")
    }

    /// A folder for the test's own files.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.folder.path()
    }

    /// Path of one of our programs, as an argument.
    #[must_use]
    pub fn program(&self, name: &str) -> String {
        self.programs
            .path(name)
            .to_str()
            .expect("the target folder has a readable name")
            .to_owned()
    }

    /// A command with this instance's environment and none of the caller's.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = if self.first {
            Command::new("nice")
        } else {
            Command::new(&program)
        };
        if self.first {
            command.arg("--adjustment=-20").arg(program);
        }
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("DIVVY_") || FOREIGN.contains(&name))
            {
                command.env_remove(name);
            }
        }
        command
            .env("DIVVY_HOME", &self.path)
            .env("NO_COLOR", "1")
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        if let Some(sim) = &self.sim {
            command.env("DIVVY_SIM", sim);
        }
        command.envs(&self.variables);
        command
    }

    /// A command that sees the same GPUs from outside every slice.
    #[must_use]
    pub fn outside(&self, program: &str) -> Command {
        let mut command = self.command(program);
        if self.sim.is_some() {
            command
                .env("LD_LIBRARY_PATH", self.path.join("sim/lib"))
                .env("DIVVY_SIM_STATE", self.path.join("sim/state"));
        }
        command
    }

    /// `divvy WORDS…`, ready to start.
    #[must_use]
    pub fn divvy_command(&self, words: &[&str]) -> Command {
        let mut command = self.command(self.program("divvy"));
        command.args(words);
        command
    }

    /// `divvy`, ready to start as another user, without the rights of root; its words are still to be added.
    #[must_use]
    pub fn divvy_as(&self, uid: &str) -> Command {
        let mut command = self.command("setpriv");
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
        command.args(ids).args(["--clear-groups", "--no-new-privs"]);
        command.arg(self.program("divvy"));
        command
    }

    /// The raw output of `divvy WORDS…`, run to its end.
    ///
    /// # Panics
    /// When it takes longer than a minute.
    #[must_use]
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Output {
        let output = self.divvy_command(words).output_bounded();
        output.expect("divvy starts")
    }

    /// Runs `divvy WORDS…` to its end.
    ///
    /// # Panics
    /// When it takes longer than a minute.
    #[must_use]
    #[track_caller]
    pub fn divvy(&self, words: &[&str]) -> CommandOutput {
        run(&mut self.divvy_command(words))
    }

    /// Runs a command that sees the GPUs from outside every slice to its end.
    ///
    /// # Panics
    /// When it takes longer than a minute.
    #[must_use]
    #[track_caller]
    pub fn look(&self, program: &str, words: &[&str]) -> CommandOutput {
        run(self.outside(program).args(words))
    }

    /// The items that a read verb prints with `-o json`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn items(&self, words: &[&str]) -> Vec<Value> {
        self.divvy(&[words, &["-o", "json"]].concat()).ok().items()
    }

    /// Starts `divvy daemon WORDS…` and waits until it answers.
    ///
    /// # Panics
    /// When it ends instead.
    #[must_use]
    #[track_caller]
    pub fn daemon(&self, words: &[&str]) -> Daemon {
        let mut daemon = self.daemon_with(words, &[]);
        self.is_served_by(&mut daemon);
        daemon
    }

    /// Waits until this daemon answers. Before, a client that finds none may start another.
    ///
    /// # Panics
    /// When it ends instead.
    #[track_caller]
    pub fn is_served_by(&self, daemon: &mut Daemon) {
        until("the daemon answers", || {
            if let Some(code) = daemon.ended() {
                panic!("the daemon ended with {code}:\n{}", self.daemon_said());
            }
            self.call(self.client.node())
                .ok()
                .filter(|node| node.pid == daemon.pid())
        });
    }

    /// Starts `divvy daemon WORDS…` with more variables, and does not wait: [`Self::is_served_by`] does.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn daemon_with(&self, words: &[&str], variables: &[(&str, &str)]) -> Daemon {
        let mut command = self.divvy_command(&[&["daemon"], words].concat());
        self.spawn(command.envs(variables.iter().copied()))
    }

    /// Starts a daemon by a command of the caller's, and does not wait.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn spawn(&self, command: &mut Command) -> Daemon {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.daemon_output())
            .expect("the folder can be written");
        let child = command
            .stdout(log.try_clone().expect("a file can be cloned"))
            .stderr(log)
            .spawn()
            .expect("the daemon starts");
        Daemon { child }
    }

    /// Starts `divvy daemon WORDS…`, keeps it, and waits until its socket takes connections.
    ///
    /// # Panics
    /// When it ends instead.
    #[track_caller]
    pub fn start(&mut self, words: &[&str]) {
        let mut command = self.divvy_command(&[&["daemon"], words].concat());
        self.start_by(&mut command);
    }

    /// The same by a command of the caller's.
    ///
    /// # Panics
    /// When it ends instead.
    #[track_caller]
    pub fn start_by(&mut self, command: &mut Command) {
        let mut daemon = self.spawn(command);
        let socket = self.socket();
        // A daemon of a crash test may die soon after that.
        until_passing("the daemon takes connections", || {
            if let Some(status) = daemon.status() {
                panic!("the daemon ended with {status}: {}", self.daemon_log());
            }
            // The socket of a daemon that was killed is still there and refuses.
            UnixStream::connect(&socket).is_ok_and(|stream| listener_lives(&stream))
        });
        self.keep(daemon);
    }

    /// Keeps a daemon.
    pub fn keep(&mut self, daemon: Daemon) {
        self.kept = Some(daemon);
    }

    /// The daemon that is kept.
    ///
    /// # Panics
    /// When there is none, as for every method that asks something of it.
    #[must_use]
    #[track_caller]
    pub fn kept(&mut self) -> &mut Daemon {
        self.kept.as_mut().expect("a daemon is kept")
    }

    /// Process id of the daemon that is kept.
    ///
    /// # Panics
    /// As [`Self::kept`].
    #[must_use]
    #[track_caller]
    pub fn daemon_pid(&self) -> u32 {
        self.kept.as_ref().expect("a daemon is kept").pid()
    }

    /// Ends the daemon that is kept as a crash would.
    ///
    /// # Panics
    /// As [`Self::kept`].
    #[track_caller]
    pub fn kill(&mut self) {
        self.kept.take().expect("a daemon is kept").crash();
    }

    /// Asks the daemon that is kept to stop (SIGTERM) and waits; its exit code.
    ///
    /// # Panics
    /// As [`Self::kept`], and when a signal ended it.
    #[must_use]
    #[track_caller]
    pub fn stop(&mut self) -> i32 {
        self.kept.take().expect("a daemon is kept").stop()
    }

    /// One row of a crash table: starts a daemon that dies at a failpoint, has it come there by `work`, and starts
    /// another.
    ///
    /// # Panics
    /// When it does not come there.
    pub async fn crash_at(&mut self, point: &str, words: &[&str], work: impl AsyncFnOnce(&Self)) {
        self.die_at(point, words, work).await;
        self.start(words);
    }

    /// The same without another daemon.
    ///
    /// # Panics
    /// When it does not come there.
    pub async fn die_at(&mut self, point: &str, words: &[&str], work: impl AsyncFnOnce(&Self)) {
        self.set(CRASH_AT, point);
        self.start(words);
        work(self).await;
        self.dies(point).await;
    }

    /// Waits until the daemon that is kept has died at this failpoint, of which [`CRASH_AT`] told it. The next one does
    /// not.
    ///
    /// # Panics
    /// When it does not come there, or ends another way.
    async fn dies(&mut self, point: &str) {
        let mut daemon = self.kept.take().expect("a daemon is kept");
        let what = format!("the daemon comes to {point}");
        let status = until_async(what, async || daemon.status()).await;
        assert_eq!(status.signal(), Some(9), "{point}: {status}");
        self.unset(CRASH_AT);
    }

    /// The file that has what the daemons of this instance write to stdout and stderr.
    #[must_use]
    pub fn daemon_output(&self) -> PathBuf {
        self.folder.path().join("daemon.out")
    }

    /// What the daemons of this instance have written to stdout and stderr.
    #[must_use]
    pub fn daemon_log(&self) -> String {
        fs::read_to_string(self.daemon_output()).unwrap_or_default()
    }

    /// What all daemons of this instance have said, the last 60 lines.
    #[must_use]
    pub fn daemon_said(&self) -> String {
        let mut text = self.daemon_log();
        text.push_str(&fs::read_to_string(self.path.join("daemon.log")).unwrap_or_default());
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// The latest entry of this kind in the record of a job: `launch`, `started`, `exit`.
    #[must_use]
    pub fn recorded(&self, job: &str, what: &str) -> Option<Value> {
        recorded(&self.path.join("jobs").join(job), what)
    }

    /// Process id of a job's supervisor (`launch`) or program (`started`), once its record has it.
    ///
    /// # Panics
    /// When its record does not come to it.
    #[must_use]
    #[track_caller]
    pub fn pid(&self, job: &str, what: &str) -> u32 {
        let said = until("it is written down", || self.recorded(job, what));
        let pid = said["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.expect("a process id")
    }

    /// Names of the folders of the slices there are, in order.
    ///
    /// # Panics
    /// When a name is no text.
    #[must_use]
    pub fn slices(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path.join("slices"));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().into_string().expect("a job's id"))
            .collect();
        names.sort();
        names
    }

    /// Puts a job in a queue; its id.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    #[track_caller]
    pub fn submit(&self, flags: &[&str], command: &[&str]) -> String {
        let words = [&["submit", "--parsable"], flags, &["--"], command].concat();
        self.divvy(&words).ok().stdout.trim().to_owned()
    }

    /// Queues a program that takes `bytes` on each of its GPUs and keeps them until the gate named like `gate` opens.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    #[track_caller]
    pub fn submit_holder(&self, flags: &[&str], bytes: u64, gate: &str) -> String {
        let (probe, bytes, gate) = (
            self.program("cudarc_probe"),
            bytes.to_string(),
            self.gate(gate),
        );
        self.submit(
            flags,
            &[&probe, "hold", "--bytes", &bytes, "--until-file", &gate],
        )
    }

    /// Path of a gate: a file that is not there yet and that a holder waits for.
    ///
    /// # Panics
    /// When the folder of the gates cannot be made.
    #[must_use]
    pub fn gate(&self, name: &str) -> String {
        let gates = self.folder.path().join("gates");
        fs::create_dir_all(&gates).expect("the folder can be written");
        let gate = gates.join(name);
        gate.to_str()
            .expect("a temporary folder has a readable name")
            .to_owned()
    }

    /// Opens the gate of that name.
    ///
    /// # Panics
    /// When the file cannot be made.
    pub fn open(&self, name: &str) {
        File::create(self.gate(name)).expect("the gates' folder can be written");
    }

    /// Another client of this instance's API, with connections of its own.
    #[must_use]
    pub fn connect(&self) -> Client {
        Client::new(self.socket()).answered_within(PATIENCE)
    }

    /// A client of this instance's API.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for a call of the API.
    ///
    /// # Errors
    /// The call's.
    ///
    /// # Panics
    /// When the daemon does not answer within [`PATIENCE`].
    #[track_caller]
    pub fn call<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let at = Location::caller();
        let answered = async { tokio::time::timeout(PATIENCE, call).await };
        let runtime = self.runtime.get_or_init(|| {
            let mut runtime = runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build();
            runtime.expect("a runtime can be made")
        });
        let answered = runtime.block_on(answered);
        answered.unwrap_or_else(|_| {
            panic!(
                "waited {} s in vain: the daemon answers {at}",
                PATIENCE.as_secs()
            )
        })
    }

    /// The job, as the API has it now.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[track_caller]
    pub fn job(&self, id: &str) -> Job {
        self.call(self.client.job(id))
            .unwrap_or_else(|error| panic!("job {id}: {error}"))
    }

    /// Waits until the job's program runs.
    ///
    /// # Panics
    /// When it ends instead, or does not start.
    #[track_caller]
    pub fn running(&self, id: &str) -> Job {
        until(format!("job {id} runs"), || {
            let job = self.job(id);
            assert_ne!(
                job.state,
                JobState::Ended,
                "job {id} ended instead of running: {job:?}\n{}",
                self.log(id)
            );
            (job.state == JobState::Running).then_some(job)
        })
    }

    /// Waits until the job has ended.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn ended(&self, id: &str) -> Job {
        until(format!("job {id} ends"), || {
            let job = self
                .call(
                    self.client
                        .wait(id, WaitFor::Ended, Duration::from_secs(10)),
                )
                .ok()?;
            (job.state == JobState::Ended).then_some(job)
        })
    }

    /// Waits until the planner has looked at the job and left it waiting; why.
    ///
    /// # Panics
    /// When it does not wait.
    #[track_caller]
    pub fn waits(&self, id: &str) -> String {
        until(format!("job {id} is told why it waits"), || {
            let job = self.job(id);
            assert_eq!(job.state, JobState::Queued, "{job:?}");
            job.reason
        })
    }

    /// Opens a job's gate, and has it end well.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn end(&self, id: &str, gate: &str) {
        self.open(gate);
        assert_eq!(self.ended(id).exit_code, Some(0), "{}", self.log(id));
    }

    /// What the job has written so far.
    #[must_use]
    pub fn log(&self, id: &str) -> String {
        fs::read_to_string(self.path.join("jobs").join(id).join("log")).unwrap_or_default()
    }

    /// The first line of JSON that the job's program writes.
    #[must_use]
    #[track_caller]
    pub fn first_words(&self, id: &str) -> Value {
        until(format!("job {id} says something"), || {
            let log = self.log(id);
            let line = log.lines().find(|line| line.starts_with('{'))?;
            log.contains(&format!("{line}\n"))
                .then(|| serde_json::from_str(line).expect("the probes print JSON"))
        })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        drop(self.kept.take());
        if thread::panicking() {
            eprintln!("── what the daemon said\n{}", self.daemon_said());
        }
        kill_all_that_mention(
            self.folder
                .path()
                .to_str()
                .expect("a temporary folder has a readable name"),
        );
        end_all(&self.path.join("jobs"));
    }
}

/// Runs a command to its end, or kills it when the deadline passes.
#[track_caller]
fn run(command: &mut Command) -> CommandOutput {
    let words = format!("{command:?}").replace('"', "");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{words} does not start: {error}"));
    let output = child.output_bounded();
    CommandOutput::new(words, &output.expect("a child can be waited for"))
}

/// Whether this process can start programs as several users; if not, it prints what is not tested.
#[must_use]
pub fn can_be_users(untested: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let setpriv = Command::new("setpriv").arg("--version").output_bounded();
    let can = is_root && setpriv.is_ok();
    if !can {
        eprintln!("SKIPPED: it takes root and setpriv to be two users; {untested}");
    }
    can
}

/// Whether the process that listens at the other end still runs. A killed daemon's socket takes connections as long as a
/// child of it, between fork and exec, holds a copy.
fn listener_lives(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| {
        Path::new("/proc")
            .join(peer.pid.as_raw_pid().to_string())
            .exists()
    })
}
