//! A private daemon over simulated GPUs, and its API. It runs the built program.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::v1::{Amount, Error, Job, JobState, Runner, Submit};
pub use divvy_testkit::PATIENCE;
use divvy_testkit::{Bounded as _, until_async};
use tempfile::TempDir;

/// The seed's example: three GPUs and four queues.
pub const SEED: [&str; 8] = [
    "--sim",
    "a100-80gb:3",
    "--dynamic-gpus",
    "--queue",
    "dual_gpus=2",
    "quarter_gpu=0.25",
    "half_gpu=0.5",
    "single_gpu=1",
];

/// The program under test.
pub fn divvy() -> PathBuf {
    divvy_testkit::programs::folder().join("divvy")
}

/// A home, and perhaps a daemon in it. Dropping it ends the daemon and every job.
pub struct Home {
    pub dir: TempDir,
    pub daemon: Option<Child>,
    /// What its programs find in their environment besides.
    pub env: BTreeMap<&'static str, String>,
}

impl Home {
    pub fn new() -> Self {
        divvy_testkit::signals::reset_for_children();
        Self {
            dir: TempDir::new_in("/tmp").unwrap(),
            daemon: None,
            env: BTreeMap::new(),
        }
    }

    pub fn with(args: &[&str]) -> Self {
        let mut home = Self::new();
        home.start(args);
        home
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The program with this home, and without what the test's own environment says of GPUs.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.by(divvy());
        command.args(args);
        command
    }

    /// Another program with the same environment, which is to start Divvy.
    pub fn by(&self, starter: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(starter);
        command.env("DIVVY_HOME", self.path());
        for name in [
            "DIVVY_SIM",
            "DIVVY_SIM_STATE",
            "DIVVY_SLICE",
            "LD_PRELOAD",
            "XDG_RUNTIME_DIR",
        ] {
            command.env_remove(name);
        }
        command.envs(&self.env);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args)
            .stdin(Stdio::null())
            .output_bounded()
            .unwrap()
    }

    /// Starts the daemon; returns once its socket takes connections.
    pub fn start(&mut self, args: &[&str]) {
        let mut command = self.command(&["daemon"]);
        command.args(args).stdin(Stdio::null());
        self.start_as(&mut command);
    }

    /// The same by a command of the test's own.
    pub fn start_as(&mut self, command: &mut Command) {
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(self.path().join("test.log"))
            .unwrap();
        let mut child = command.stderr(log).spawn().unwrap();
        let socket = self.path().join("divvy.sock");
        until("the daemon takes connections", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the daemon ended with {status}: {}", self.log());
            }
            // A socket of a daemon that was killed is still there and refuses.
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        self.daemon = Some(child);
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait_bounded().unwrap();
    }

    /// Waits until the daemon has died at this point, where `DIVVY_CRASH_AT` has it die. The next one does not.
    pub async fn dies(&mut self, point: &str) {
        let mut daemon = self.daemon.take().unwrap();
        let what = format!("the daemon comes to {point}");
        let status = until_async(what, async || daemon.try_wait().unwrap()).await;
        assert_eq!(status.signal(), Some(9), "{point}: {status}");
        self.env.remove("DIVVY_CRASH_AT");
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("test.log")).unwrap_or_default()
    }

    pub fn client(&self) -> Client {
        Client::new(self.path().join("divvy.sock")).answered_within(PATIENCE)
    }

    /// The supervisor's pid (`launch`), or the program's (`started`): what the record of a job says.
    pub fn pid(&self, job: &str, what: &str) -> u32 {
        let mut said = None;
        until("it is written down", || {
            said = self.recorded(job, what);
            said.is_some()
        });
        u32::try_from(said.unwrap()["pid"].as_u64().unwrap()).unwrap()
    }

    /// What the record of a job says last of `launch`, `started`, `exit`.
    pub fn recorded(&self, job: &str, what: &str) -> Option<serde_json::Value> {
        recorded(&self.path().join("jobs").join(job), what)
    }

    pub fn slices(&self) -> Vec<String> {
        let names = fs::read_dir(self.path().join("slices"))
            .into_iter()
            .flatten();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait_bounded();
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
        let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let jobs = folders(&self.path().join("jobs"));
        // A job that ran several times has a folder below its own for each run but the first.
        for job in jobs.flat_map(|job| folders(&job.path()).chain([job])) {
            for what in ["launch", "started"] {
                if let Some(begun) = recorded(&job.path(), what) {
                    kill_begun(&begun);
                }
            }
            let held = recorded(&job.path(), "held");
            let group = held.and_then(|held| Some(PathBuf::from(held["group"].as_str()?)));
            if let Some(group) = group {
                remove_group(&group);
            }
        }
    }
}

/// What the record in a job's folder says last of this.
pub fn recorded(folder: &Path, what: &str) -> Option<serde_json::Value> {
    let text = fs::read_to_string(folder.join("record")).unwrap_or_default();
    let lines = text.lines().skip(1);
    let lines = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter_map(|line| line.get(what).cloned()).last()
}

/// Whether the record in a job's folder still says what was to be started, and with which environment.
pub fn has_spec(folder: &Path) -> bool {
    let text = fs::read_to_string(folder.join("record")).unwrap_or_default();
    text.lines()
        .next()
        .is_some_and(|spec| !spec.trim_matches(['\0', ' ']).is_empty())
}

/// Ends a process by its record, unless its pid is somebody else's by now.
fn kill_begun(begun: &serde_json::Value) {
    let Some(pid) = begun["pid"].as_u64() else {
        return;
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let started = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(19))
        .map(str::to_owned);
    if started == Some(begun["start_time"].to_string()) {
        signal(u32::try_from(pid).unwrap(), "KILL");
    }
}

/// Ends what else is left of a job, and takes its group away.
fn remove_group(group: &Path) {
    let what = format!("the control group {} is empty", group.display());
    divvy_testkit::until(what, || {
        let _ = fs::write(group.join("cgroup.kill"), "1");
        (fs::remove_dir(group).is_ok() || !group.is_dir()).then_some(())
    });
}

pub fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .stderr(Stdio::null())
        .wait_bounded();
    let _ = status.unwrap();
}

pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next())
        .is_some_and(|state| state != "Z")
}

/// Status and body of one call over a connection of its own.
pub fn call(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\ncontent-type: application/json\r\n"
    );
    stream
        .write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes())
        .unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .unwrap_or_else(|error| panic!("no whole answer to {method} {path}: {error}"));
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

/// Looks until it holds; there is nothing to wait on for what other programs do.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    divvy_testkit::until(what, || holds().then_some(()));
}

/// A job of a shell script in a queue.
pub fn script(queue: &str, script: &str) -> Submit {
    Submit {
        queue: Some(queue.to_owned()),
        amount: None,
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..quarter(&["true"])
    }
}

/// A job of a quarter GPU in the default queue.
pub fn quarter(command: &[&str]) -> Submit {
    Submit {
        command: command.iter().map(ToString::to_string).collect(),
        name: None,
        queue: None,
        project: None,
        amount: Some(Amount::Share { thousandths: 250 }),
        compute: None,
        gpus_on: Vec::new(),
        cwd: "/".into(),
        env: BTreeMap::from([("PATH".into(), std::env::var("PATH").unwrap())]),
        runner: Runner::Supervisor,
        isolation: divvy_api::v1::Isolation::Any,
        memory_exact: false,
        no_wait: false,
        dry_run: false,
        idempotency_key: None,
        priority: 0,
        preemptible: false,
        time_limit_s: None,
        after: Vec::new(),
        retries: 0,
        secrets: BTreeMap::new(),
        array: None,
        container: None,
        ..Submit::default()
    }
}

pub async fn ended(client: &Client, job: &str) -> Job {
    reached(client, job, WaitFor::Ended, |job| {
        job.state == JobState::Ended
    })
    .await
}

/// Waits through the API until the job is in a state, and panics when it ends before that.
pub async fn in_state(client: &Client, id: &str, state: JobState) -> Job {
    until_async(format!("job {id} comes to {state:?}"), async || {
        let job = client.job(id).await.unwrap();
        if job.state == state {
            return Some(job);
        }
        assert_ne!(job.state, JobState::Ended, "{job:#?}");
        None
    })
    .await
}

async fn reached(client: &Client, job: &str, what: WaitFor, there: fn(&Job) -> bool) -> Job {
    until_async(format!("job {job} is {what:?}"), async || {
        let job = client.wait(job, what, Duration::from_secs(10)).await;
        Some(job.unwrap()).filter(there)
    })
    .await
}

pub async fn log(client: &Client, job: &str) -> String {
    until_async(format!("the log of job {job} ends"), async || {
        let mut stream = client.log(job, 0, true).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = stream.next().await.unwrap() {
            text.extend_from_slice(&piece);
        }
        Some(String::from_utf8(text).unwrap())
    })
    .await
}

pub fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) -> Error {
    answer.unwrap_err()
}
