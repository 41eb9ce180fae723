//! A job's folder: the files through which agent and supervisor speak, so that either may die at any moment.
//!
//! ```text
//! spec.json     agent       what to start
//! run.lock      supervisor  held (flock) as long as the supervisor lives
//! limiter.json  supervisor  in which form the limiter got into the program; atomic, not synced
//! held.json     supervisor  what holds its processes together; atomic, not synced
//! launch.json   supervisor  on disk before the program exists: from here on it may have run, so it never runs again
//! started.json  supervisor  the program's pid; atomic, not synced, as it means nothing after a reboot
//! container.json supervisor which container is the job's, where it has one
//! stop          agent       the container is to be stopped, whoever supervises it by then
//! exit.json     supervisor  how it ended, on disk; nothing of the job lives any more
//! log           program     output of jobs that have no terminal
//! ```
//! The agent writes `exit.json` itself, under the lock, for a job that it withdraws before anything was started.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use divvy_core::JobId;
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::container::Plan;
use crate::failpoint;
use crate::process::Process;
use crate::supervise::cgroup::{Group, Held};
use crate::supervise::form::{Limiter, Wish};
use crate::supervise::identity::Identity;

/// Names in a job's folder whose appearance the agent watches for.
pub const STARTED: &str = "started.json";
pub const EXIT: &str = "exit.json";
const SPEC: &str = "spec.json";
/// What is left where [`JobDir::write_spec`] was killed.
const SPEC_UNFINISHED: &str = "spec.json.tmp";
const LAUNCH: &str = "launch.json";
const LIMITER: &str = "limiter.json";
const CONTAINER: &str = "container.json";
const HELD: &str = "held.json";
const STOP: &str = "stop";
const LOCK: &str = "run.lock";
const LOG: &str = "log";

/// What a supervisor needs to know. Holds the job's environment, secrets included: mode 0600, deleted when the job ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub job: String,
    /// Program and arguments.
    pub command: Vec<String>,
    pub cwd: PathBuf,
    /// The program's whole environment, slice variables included.
    pub env: BTreeMap<String, String>,
    /// Time between SIGTERM and SIGKILL when the job is stopped, in milliseconds.
    pub grace_ms: u64,
    /// Bytes that the job's log may hold; `None`: as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_most: Option<u64>,
    /// `None` where the hardware holds it.
    pub limiter: Option<Wish>,
    /// The container to run the command in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Plan>,
    /// As whom the program runs; absent: as the supervisor does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Identity>,
    /// Where its control group is to be, or why it gets none.
    #[serde(default)]
    pub held: Held,
}

/// `launch.json` (the supervisor) and `started.json` (the program).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    #[serde(flatten)]
    pub process: Process,
    pub at: Timestamp,
}

/// `container.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub name: String,
    /// The engine's own name for it.
    pub id: String,
    /// Bytes of the job's log that are not the container's.
    pub log_from: u64,
}

/// `exit.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    #[serde(flatten)]
    pub outcome: Outcome,
    pub at: Timestamp,
}

/// How a program ended, or why there was none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It could not be started; the code is what a shell would say (126, 127, or 125 for our own failure).
    Launch {
        launch_error: String,
        exit_code: i32,
    },
    /// The agent withdrew it before it was started.
    Withdrawn {
        withdrawn: String,
    },
    /// Its container is gone, and nobody knows how it ended.
    Lost {
        lost: String,
    },
    Exited {
        exit_code: i32,
    },
    Signaled {
        signal: i32,
    },
}

impl Outcome {
    /// The code a shell reports: 128+N for signal N; none when there was no program.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Launch { exit_code, .. } | Self::Exited { exit_code } => Some(*exit_code),
            Self::Signaled { signal } => Some(128 + signal),
            Self::Withdrawn { .. } | Self::Lost { .. } => None,
        }
    }
}

/// A job's folder could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path}")]
pub struct RecordError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The folder of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobDir(PathBuf);

impl JobDir {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn log(&self) -> PathBuf {
        self.0.join(LOG)
    }

    /// Makes the folder if it is not there and writes the spec. Not synced: a job whose spec a power cut takes was not
    /// launched, and the agent writes it again from its store.
    pub fn write_spec(&self, spec: &Spec) -> Result<(), RecordError> {
        self.make()?;
        self.replace(SPEC, spec, false)
    }

    /// Lets its user reach the log by its name. The records stay the agent's.
    pub fn open_to(&self, _user: &Identity) -> Result<(), RecordError> {
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o711))
            .map_err(|error| self.error("open", "", error))
    }

    fn make(&self) -> Result<(), RecordError> {
        match fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
        {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.error("make", "", error))
            }
            _ => Ok(()),
        }
    }

    pub fn spec(&self) -> Result<Option<Spec>, RecordError> {
        self.read(SPEC)
    }

    /// Removes the spec and with it the job's environment.
    pub fn forget_spec(&self) -> Result<(), RecordError> {
        for name in [SPEC, SPEC_UNFINISHED] {
            match fs::remove_file(self.0.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.error("remove", name, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes the run lock; `None` when another process holds it. Makes the folder if it is not there: an agent may die
    /// after it journalled the start and before it made the folder, and the job is then one that nobody has started.
    pub fn lock(&self) -> Result<Option<File>, RecordError> {
        let file = match self.open_lock() {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                self.make()?;
                self.open_lock()?
            }
            file => file?,
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(self.error("lock", LOCK, error)),
        }
    }

    /// The lock file itself, for comparing an inherited descriptor with it.
    pub fn open_lock(&self) -> Result<File, RecordError> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.0.join(LOCK))
            .map_err(|error| self.error("open", LOCK, error))
    }

    /// For a program to write to. It may be there from an earlier run, and is its user's then ([`UNMOVED`]).
    pub fn open_log(&self) -> Result<File, RecordError> {
        let open = || {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | UNMOVED;
            let log = rustix::fs::open(self.log(), flags, Mode::RUSR | Mode::WUSR)?;
            // The program's output is as it would be without.
            rustix::fs::fcntl_setfl(&log, OFlags::APPEND)?;
            io::Result::Ok(File::from(log))
        };
        open().map_err(|error| self.error("open", LOG, error))
    }

    pub fn launch(&self) -> Result<Option<Begun>, RecordError> {
        self.read(LAUNCH)
    }

    /// On disk when this returns.
    pub fn write_launch(&self, begun: &Begun) -> Result<(), RecordError> {
        self.replace(LAUNCH, begun, true)
    }

    pub fn started(&self) -> Result<Option<Begun>, RecordError> {
        self.read(STARTED)
    }

    pub fn write_started(&self, begun: &Begun) -> Result<(), RecordError> {
        self.replace(STARTED, begun, false)
    }

    pub fn limiter(&self) -> Result<Option<Limiter>, RecordError> {
        self.read(LIMITER)
    }

    pub fn write_limiter(&self, limiter: &Limiter) -> Result<(), RecordError> {
        self.replace(LIMITER, limiter, false)
    }

    pub fn held(&self) -> Result<Option<Held>, RecordError> {
        self.read(HELD)
    }

    pub fn write_held(&self, held: &Held) -> Result<(), RecordError> {
        self.replace(HELD, held, false)
    }

    /// The job's control group, where it has one.
    pub fn group(&self) -> Option<Group> {
        Some(Group::at(self.held().ok()??.group?))
    }

    pub fn container(&self) -> Result<Option<Placed>, RecordError> {
        self.read(CONTAINER)
    }

    pub fn write_container(&self, placed: &Placed) -> Result<(), RecordError> {
        self.replace(CONTAINER, placed, false)
    }

    /// Whether somebody wants its container to end. A signal can be lost with the supervisor that it was for; this cannot.
    pub fn is_to_stop(&self) -> bool {
        self.0.join(STOP).exists()
    }

    pub fn mark_to_stop(&self) -> Result<(), RecordError> {
        File::create(self.0.join(STOP))
            .map(drop)
            .map_err(|error| self.error("write", STOP, error))
    }

    pub fn exit(&self) -> Result<Option<Exit>, RecordError> {
        self.read(EXIT)
    }

    /// On disk when this returns.
    pub fn write_exit(&self, exit: &Exit) -> Result<(), RecordError> {
        self.replace(EXIT, exit, true)
    }

    /// Readers see the old file or the new one, whole.
    fn replace(
        &self,
        name: &str,
        value: &impl Serialize,
        durable: bool,
    ) -> Result<(), RecordError> {
        let body =
            serde_json::to_vec(value).map_err(|error| self.error("write", name, error.into()))?;
        let write = || -> io::Result<()> {
            failpoint::write("record.new")?;
            let tmp = self.0.join(format!("{name}.tmp"));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&tmp)?;
            file.write_all(&body)?;
            if durable {
                file.sync_data()?;
            }
            drop(file);
            failpoint::reach("record.written");
            fs::rename(&tmp, self.0.join(name))?;
            failpoint::reach("record.there");
            if durable {
                File::open(&self.0)?.sync_data()?;
            }
            Ok(())
        };
        write().map_err(|error| self.error("write", name, error))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RecordError> {
        match fs::read(self.0.join(name)) {
            Ok(body) => serde_json::from_slice(&body)
                .map(Some)
                .map_err(|error| self.error("understand", name, error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error("read", name, error)),
        }
    }

    fn error(&self, verb: &'static str, name: &str, source: io::Error) -> RecordError {
        RecordError {
            verb,
            path: self.0.join(name),
            source,
        }
    }
}

/// How a file is opened that belongs to a job's user: nothing that the user does with it leads elsewhere or keeps the opener waiting.
/// Under a lease (fcntl(2), `F_SETLEASE`) a plain open waits for the holder, for 45 seconds unless the machine says otherwise; with
/// `O_NONBLOCK` it fails with `EWOULDBLOCK`.
pub const UNMOVED: OFlags = OFlags::NONBLOCK
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Removes the specs that are left of jobs that have ended, with the environments in them: whoever was to remove them was killed.
pub fn sweep(jobs: &Path, lives: impl Fn(JobId) -> bool) {
    for entry in fs::read_dir(jobs).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let job = name.to_str().and_then(|name| name.parse().ok());
        if job.is_none_or(&lives) {
            continue;
        }
        let first = entry.path();
        let again = (1..).map(|run| first.join(format!("run-{run}")));
        let runs = std::iter::once(first.clone()).chain(again.take_while(|run| run.is_dir()));
        for run in runs {
            if let Err(error) = JobDir::new(run).forget_spec() {
                tracing::warn!(%error, "the spec of a job that ended, with its environment, stays on disk");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, JobDir) {
        let root = tempfile::tempdir().unwrap();
        let dir = JobDir::new(root.path().join("7"));
        let spec = Spec {
            job: "7".into(),
            command: vec!["true".into()],
            cwd: "/".into(),
            env: BTreeMap::from([("KEY".into(), "secret".into())]),
            grace_ms: 10_000,
            log_most: None,
            limiter: Some(Wish::Preload {
                because: "a test".into(),
            }),
            container: None,
            user: None,
            held: Held::default(),
        };
        dir.write_spec(&spec).unwrap();
        assert_eq!(dir.spec().unwrap(), Some(spec));
        (root, dir)
    }

    #[test]
    fn an_exit_record_has_one_field_for_how_it_ended() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let cases = [
            (
                Outcome::Exited { exit_code: 3 },
                r#"{"exit_code":3,"at":"2026-01-02T03:04:05Z"}"#,
                Some(3),
            ),
            (
                Outcome::Signaled { signal: 9 },
                r#"{"signal":9,"at":"2026-01-02T03:04:05Z"}"#,
                Some(137),
            ),
            (
                Outcome::Launch {
                    launch_error: "no".into(),
                    exit_code: 127,
                },
                r#"{"launch_error":"no","exit_code":127,"at":"2026-01-02T03:04:05Z"}"#,
                Some(127),
            ),
            (
                Outcome::Withdrawn {
                    withdrawn: "cancelled".into(),
                },
                r#"{"withdrawn":"cancelled","at":"2026-01-02T03:04:05Z"}"#,
                None,
            ),
            (
                Outcome::Lost {
                    lost: "gone".into(),
                },
                r#"{"lost":"gone","at":"2026-01-02T03:04:05Z"}"#,
                None,
            ),
        ];
        for (outcome, text, code) in cases {
            let exit = Exit { outcome, at };
            assert_eq!(serde_json::to_string(&exit).unwrap(), text);
            assert_eq!(serde_json::from_str::<Exit>(text).unwrap(), exit);
            assert_eq!(exit.outcome.code(), code);
        }
    }

    #[test]
    fn a_torn_temporary_file_is_not_a_record() {
        let (_root, dir) = dir();
        fs::write(dir.path().join("exit.json.tmp"), b"{\"exit_").unwrap();
        assert_eq!(dir.exit().unwrap(), None);
        let exit = Exit {
            outcome: Outcome::Exited { exit_code: 0 },
            at: Timestamp::now(),
        };
        dir.write_exit(&exit).unwrap();
        assert_eq!(dir.exit().unwrap(), Some(exit));
    }

    #[test]
    fn a_forgotten_spec_leaves_no_secret() {
        let (_root, dir) = dir();
        // Killed while it wrote.
        fs::write(dir.path().join("spec.json.tmp"), "{\"KEY\":\"secret").unwrap();
        dir.forget_spec().unwrap();
        dir.forget_spec().expect("a second time changes nothing");
        assert_eq!(dir.spec().unwrap(), None);
        for file in fs::read_dir(dir.path()).unwrap() {
            assert!(
                !fs::read_to_string(file.unwrap().path())
                    .unwrap()
                    .contains("secret")
            );
        }
    }

    #[test]
    fn specs_of_jobs_that_ended_are_swept_with_those_of_all_their_runs() {
        let (root, dir) = dir();
        let run = dir.path().join("run-1");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("spec.json"), "secret").unwrap();
        fs::write(run.join("spec.json.tmp"), "secret").unwrap();
        sweep(root.path(), |job| job == JobId(7));
        assert!(dir.spec().unwrap().is_some(), "it lives");
        sweep(root.path(), |job| job == JobId(8));
        assert_eq!(dir.spec().unwrap(), None);
        assert_eq!(fs::read_dir(run).unwrap().count(), 0);
    }

    #[test]
    fn a_log_is_appended_to_and_is_never_what_a_link_leads_to() {
        let (_root, dir) = dir();
        let log = || dir.open_log();
        log().unwrap().write_all(b"one\n").unwrap();
        log().unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(dir.log()).unwrap(), "one\ntwo\n");
        let flags = rustix::fs::fcntl_getfl(log().unwrap()).unwrap();
        assert!(flags.contains(OFlags::APPEND) && !flags.contains(OFlags::NONBLOCK));
        fs::rename(dir.log(), dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", dir.log()).unwrap();
        assert!(log().is_err());
    }

    #[test]
    fn the_run_lock_has_one_holder() {
        let (_root, dir) = dir();
        let held = dir.lock().unwrap().expect("free");
        assert!(dir.lock().unwrap().is_none());
        drop(held);
        assert!(dir.lock().unwrap().is_some());
    }
}
