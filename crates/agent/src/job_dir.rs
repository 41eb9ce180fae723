//! The job's folder: the files through which daemon and supervisor communicate, so that either may die at any moment.
//!
//! May use: `host`, `model`.
//! Used by: `config`, `exec`, `journal`, `supervisor`, `container`, `controller`, `http`, `daemon`, `diagnostics`,
//! `standalone`.
//!
//! ```text
//! record         daemon      held (flock) by the supervisor as long as it lives; its first line is what to start
//!   launch       supervisor  on disk before the program exists: from here on it may have run, so it never runs again
//!   started      supervisor  the program's pid; not synced, as it means nothing after a reboot
//!   limiter      supervisor  in which form the limiter got into the program; not synced
//!   held         supervisor  what holds its processes together; not synced
//!   container    supervisor  which container is the job's, where it has one
//!   exit         supervisor  how it ended, on disk; nothing of the job lives any more
//! stop           daemon      the container is to be stopped, by any supervisor of it
//! stopped        daemon      why the program is stopped, for its client; only of jobs on their client's terminal
//! replica        daemon      what the journal says since the record was begun; only of jobs that were changed, and of claims
//! log            program     output of jobs that have no terminal
//! log.times      supervisor  how long the log was at which time, of jobs that run for longer than ten seconds
//! script         supervisor  what the job's interpreter reads, where it has a script; its user's
//! notice/        daemon      the record of what is started when the job has ended
//! ```
//! The record is one file of lines, each a JSON object of one member. A file for each of them costs a job more than all
//! the rest, as file systems take longer to make one the more were deleted lately. Only the holder of the lock appends;
//! of two lines of a kind the later counts. A line without an end was cut short and does not count; the next
//! writer removes it. The first line, which holds the environment, is made blank when the job ends.
//!
//! The daemon writes `exit` itself, under the lock, for a job that it withdraws before anything was started.

pub mod container_spec;
pub mod injection;
pub mod processes;
mod record;
pub mod replica;
pub mod slice_entry;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use divvy_core::JobId;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use serde::{Deserialize, Serialize};

use crate::host::cgroup::{Cgroup, CgroupStatus};
use crate::host::run_as::Identity;
use crate::host::{failpoint, lock_file};
use crate::job_dir::container_spec::Plan;
use crate::job_dir::injection::{InjectedLimiter, InjectionPolicy};
use crate::job_dir::replica::Replica;
use crate::model::cause::StopRecord;
use record::RecordLine;
pub use record::{ContainerRecord, ExitRecord, RECORD_VERSION, Record, RunOutcome, StartRecord};

/// What the daemon watches for changes.
pub const RECORD: &str = "record";
/// A job's script, for its interpreter.
pub const SCRIPT: &str = "script";
/// The folder of the notice that a job has ended.
pub const NOTICE: &str = "notice";
/// Before the number of a run.
const RUN: &str = "run-";
const STOP: &str = "stop";
const STOPPED: &str = "stopped";
const LOG: &str = "log";
const LOG_TIMES: &str = "log.times";
/// Bytes behind a record's first line that have room on the disk from the beginning: the supervisor's lines take a tenth of it.
const RESERVED: u64 = 8192;
/// Of builds that kept a file for each thing: made before the program existed, and locked by its supervisor.
const EARLIER_LAUNCH: &str = "launch.json";
const EARLIER_LOCK: &str = "run.lock";

/// What a supervisor needs to know. Holds the job's environment, secrets included: mode 0600, deleted when the job
/// ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSpec {
    pub job: String,
    /// Program and arguments.
    pub command: Vec<String>,
    pub cwd: PathBuf,
    /// The program's whole environment, slice variables included.
    pub env: BTreeMap<String, String>,
    /// Time between SIGTERM and SIGKILL when the job is stopped, in milliseconds.
    pub grace_ms: u64,
    /// The script that the command names and gives arguments to; absent: the command is a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Where its output goes; absent: the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputFiles>,
    /// It is stopped after so many milliseconds, also without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_after_ms: Option<u64>,
    /// Bytes that the job's log may hold; `None`: as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_most: Option<u64>,
    /// `None` where the hardware holds it.
    pub limiter: Option<InjectionPolicy>,
    /// The container to run the command in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Plan>,
    /// The user that the program runs as; absent: the supervisor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Identity>,
    /// Whether its programs are refused user namespaces; of use with a `user`, as root needs none to mount.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_user_namespaces: bool,
    /// Its group opens no GPU, where the kernel allows that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_gpus: bool,
    /// Where its control group is to be, or why it gets none.
    #[serde(default)]
    pub held: CgroupStatus,
    /// The driver limits that group: the program starts in it or not at all.
    #[serde(default)]
    pub needs_group: bool,
    /// What the journal says of the job; absent without a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Replica>,
}

/// What a supervisor opens for its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFiles {
    pub stdout: Option<PathBuf>,
    pub stderr: Option<PathBuf>,
    /// They are begun anew.
    pub truncate: bool,
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

    /// Time marks of the log.
    pub fn log_times(&self) -> PathBuf {
        self.0.join(LOG_TIMES)
    }

    /// Makes the folder if it is not there and begins its record with the spec. Not synced: if a power cut removes the
    /// spec, the job was not launched, and the daemon writes the spec again from its journal.
    ///
    /// # Errors
    /// Also when a process holds the lock, or when the record has `launch`: the job was started, and must not be a
    /// second time.
    pub fn write_spec(&self, spec: &LaunchSpec) -> Result<(), RecordError> {
        let mut line =
            serde_json::to_vec(spec).map_err(|error| self.error("write", RECORD, error.into()))?;
        line.push(b'\n');
        let held = || self.error("begin", RECORD, io::ErrorKind::WouldBlock.into());
        let mut file = self.lock()?.ok_or_else(held)?;
        let is_new = file.metadata().is_ok_and(|meta| meta.len() == 0);
        if !is_new && self.record()?.launch.is_some() {
            let launched = io::Error::other("the job's program was started already");
            return Err(self.error("begin", RECORD, launched));
        }
        let mut write = || {
            failpoint::write("record.new")?;
            file.set_len(0)?;
            file.write_all(&line)?;
            // A full disk must not keep a supervisor from writing down how its program ended. Not every file system
            // can.
            let _ = fallocate(
                &file,
                FallocateFlags::KEEP_SIZE,
                0,
                line.len() as u64 + RESERVED,
            );
            failpoint::reach("record.written");
            failpoint::reach("record.there");
            Ok(())
        };
        write().map_err(|error| self.error("write", RECORD, error))
    }

    pub fn has_record(&self) -> bool {
        self.0.join(RECORD).is_file()
    }

    /// Writes a file beside the record. Readers see it whole or not at all.
    fn write_file(&self, name: &str, content: &impl Serialize) -> Result<(), RecordError> {
        let write = || -> io::Result<()> {
            let new = self.0.join(format!("{name}.new"));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(&serde_json::to_vec(content)?)?;
            fs::rename(&new, self.0.join(name))
        };
        write().map_err(|error| self.error("write", name, error))
    }

    /// Lets its user reach the log by its name. The records stay the agent's.
    pub fn grant_log_access(&self, _user: &Identity) -> Result<(), RecordError> {
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
                Err(self.error("create", "", error))
            }
            _ => Ok(()),
        }
    }

    pub fn spec(&self) -> Result<Option<LaunchSpec>, RecordError> {
        self.parsed(record::parse_spec(&self.text()?))
    }

    /// Makes the spec blank and with it the job's environment, and removes the job's script.
    pub fn erase_spec(&self) -> Result<(), RecordError> {
        // Most jobs have none.
        let _ = fs::remove_file(self.0.join(SCRIPT));
        match record::blank_spec(&self.0.join(RECORD)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.error("delete the beginning of", RECORD, error))
            }
            _ => Ok(()),
        }
    }

    /// Takes the run lock; `None` when another process holds it. Makes the folder if it is not there: a daemon may die
    /// after it journaled the start and before it made the folder, and then no supervisor has started the job.
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
            Err(TryLockError::Error(error)) => Err(self.error("lock", RECORD, error)),
        }
    }

    /// The lock file itself, for comparing an inherited descriptor with it.
    pub fn open_lock(&self) -> Result<File, RecordError> {
        lock_file::open(&self.0.join(RECORD)).map_err(|error| self.error("open", RECORD, error))
    }

    /// For a program to write to. It may be there from an earlier run, and is its user's then ([`SAFE_OPEN_FLAGS`]).
    pub fn open_log(&self) -> Result<File, RecordError> {
        self.open_log_with(OFlags::CREATE)
    }

    /// The same, if it is there.
    pub fn open_existing_log(&self) -> Result<File, RecordError> {
        self.open_log_with(OFlags::empty())
    }

    fn open_log_with(&self, more: OFlags) -> Result<File, RecordError> {
        let open = || {
            let flags = OFlags::WRONLY | OFlags::APPEND | SAFE_OPEN_FLAGS | more;
            let log = rustix::fs::open(self.log(), flags, Mode::RUSR | Mode::WUSR)?;
            // The program's output is as it would be without.
            rustix::fs::fcntl_setfl(&log, OFlags::APPEND)?;
            io::Result::Ok(File::from(log))
        };
        open().map_err(|error| self.error("open", LOG, error))
    }

    /// All that is written down, and what is to be started, at once.
    pub fn read_all(&self) -> Result<(Option<LaunchSpec>, Record), RecordError> {
        let text = self.text()?;
        let spec = self.parsed(record::parse_spec(&text))?;
        Ok((spec, self.parsed(Record::parse(&text))?))
    }

    /// All that is written down.
    pub fn record(&self) -> Result<Record, RecordError> {
        self.parsed(Record::parse(&self.text()?))
    }

    /// Whether a build that kept other records has started the job: what it wrote is not read, and the job never
    /// started again.
    pub fn is_from_earlier_build(&self) -> bool {
        self.0.join(EARLIER_LAUNCH).exists()
    }

    /// Whether the supervisor that such a build gave it lives.
    pub fn has_earlier_supervisor(&self) -> bool {
        let lock = File::open(self.0.join(EARLIER_LOCK));
        self.is_from_earlier_build()
            && lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    }

    pub fn launch(&self) -> Result<Option<StartRecord>, RecordError> {
        Ok(self.record()?.launch)
    }

    /// On disk when this returns.
    pub fn write_launch(&self, begun: &StartRecord) -> Result<(), RecordError> {
        self.append(&[RecordLine::Launch(*begun)], true)
    }

    pub fn started(&self) -> Result<Option<StartRecord>, RecordError> {
        Ok(self.record()?.started)
    }

    pub fn write_started(&self, begun: &StartRecord) -> Result<(), RecordError> {
        self.append(&[RecordLine::Started(*begun)], false)
    }

    /// The same, with how its limiter came in, if it has one, and what holds its processes together.
    pub fn write_started_as(
        &self,
        begun: &StartRecord,
        limiter: Option<&InjectedLimiter>,
        held: &CgroupStatus,
    ) -> Result<(), RecordError> {
        let limiter = limiter.cloned().map(RecordLine::Limiter);
        let lines = [RecordLine::Held(held.clone()), RecordLine::Started(*begun)];
        let lines: Vec<RecordLine> = limiter.into_iter().chain(lines).collect();
        self.append(&lines, false)
    }

    pub fn limiter(&self) -> Result<Option<InjectedLimiter>, RecordError> {
        Ok(self.record()?.limiter)
    }

    pub fn write_limiter(&self, limiter: &InjectedLimiter) -> Result<(), RecordError> {
        self.append(&[RecordLine::Limiter(limiter.clone())], false)
    }

    /// The job's control group, where it has one. The program of a job can kill its supervisor before that has recorded
    /// the group; the program is then in the one that the spec names.
    pub fn group(&self) -> Option<Cgroup> {
        let record = self.record().ok()?;
        let held = match record.held {
            Some(held) => held,
            None => {
                record.launch?;
                self.spec().ok()??.held
            }
        };
        Some(Cgroup::at(held.group?))
    }

    pub fn container(&self) -> Result<Option<ContainerRecord>, RecordError> {
        Ok(self.record()?.container)
    }

    pub fn write_container(&self, placed: &ContainerRecord) -> Result<(), RecordError> {
        self.append(&[RecordLine::Container(placed.clone())], false)
    }

    /// Whether the daemon wants the job's container to end. A signal can be lost with the supervisor that it was for;
    /// this cannot.
    pub fn is_stop_requested(&self) -> bool {
        self.0.join(STOP).exists()
    }

    pub fn request_stop(&self) -> Result<(), RecordError> {
        File::create(self.0.join(STOP))
            .map(drop)
            .map_err(|error| self.error("write", STOP, error))
    }

    /// Why its program is stopped, for its client.
    pub fn write_stopped(&self, stopped: &StopRecord) -> Result<(), RecordError> {
        self.write_file(STOPPED, stopped)
    }

    /// Why its program was stopped; `None` where it was not, or had ended before.
    pub fn stopped(&self) -> Option<StopRecord> {
        let text = fs::read(self.0.join(STOPPED)).ok()?;
        let stopped: StopRecord = serde_json::from_slice(&text).ok()?;
        let exit = self.exit().ok().flatten();
        exit.is_none_or(|exit| exit.at >= stopped.at)
            .then_some(stopped)
    }

    /// It is the last that is ever written down, so nothing else is read for it.
    pub fn exit(&self) -> Result<Option<ExitRecord>, RecordError> {
        self.parsed(record::parse_exit(&self.text()?))
    }

    /// How it ended, or that it runs.
    pub fn progress(&self) -> Result<(Option<ExitRecord>, Option<StartRecord>), RecordError> {
        let text = self.text()?;
        match self.parsed(record::parse_exit(&text))? {
            Some(exit) => Ok((Some(exit), None)),
            None => Ok((None, self.parsed(Record::parse(&text))?.started)),
        }
    }

    /// On disk when this returns.
    pub fn write_exit(&self, exit: &ExitRecord) -> Result<(), RecordError> {
        self.append(&[RecordLine::Exit(exit.clone())], true)
    }

    /// Appends to the record. The caller holds the lock.
    fn append(&self, lines: &[RecordLine], durable: bool) -> Result<(), RecordError> {
        record::append(&self.0, lines, durable).map_err(|error| self.error("write", RECORD, error))
    }

    fn parsed<T>(&self, parsed: serde_json::Result<T>) -> Result<T, RecordError> {
        parsed.map_err(|error| self.error("parse", RECORD, error.into()))
    }

    fn text(&self) -> Result<Vec<u8>, RecordError> {
        match fs::read(self.0.join(RECORD)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.map_err(|error| self.error("read", RECORD, error)),
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

/// How a file is opened that belongs to a job's user: nothing that the user does with it leads elsewhere or keeps the
/// opener waiting. Under a lease (fcntl(2), `F_SETLEASE`) a plain open waits for the holder, for 45 seconds unless the
/// machine says otherwise; with `O_NONBLOCK` it fails with `EWOULDBLOCK`.
pub const SAFE_OPEN_FLAGS: OFlags = OFlags::NONBLOCK
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The folders of a job's runs after the first, by number. Not all of them are kept ([`remove_middle_runs`]).
pub fn later_runs(folder: &Path) -> BTreeMap<u32, PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let runs = entries.filter_map(|entry| {
        let name = entry.file_name();
        let run = name.to_str()?.strip_prefix(RUN)?.parse().ok()?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_folder.then(|| (run, entry.path()))
    });
    runs.collect()
}

/// The folder of a run: the job's own folder for the first one, a folder below it for each later one.
pub fn run_folder(folder: &Path, run: u32) -> PathBuf {
    match run {
        0 => folder.to_owned(),
        run => folder.join(format!("{RUN}{run}")),
    }
}

/// Removes the folders of a job's runs but for its first and its last: a job may be retried for ever.
///
/// # Errors
/// The file system's; the rest stays.
pub fn remove_middle_runs(folder: &Path) -> io::Result<()> {
    let mut later = later_runs(folder);
    later.pop_last();
    later.into_values().try_for_each(fs::remove_dir_all)
}

/// Removes the leftover specs of runs that are over, with the environments in them, if the process that was to remove
/// them was killed. `present_run` is the number of a job's present run; `None` for a job that has ended.
pub fn erase_leftover_specs(jobs: &Path, present_run: impl Fn(JobId) -> Option<u32>) {
    for entry in fs::read_dir(jobs).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(job) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let present = present_run(job);
        let first = entry.path();
        let runs = std::iter::once((0, first.clone())).chain(later_runs(&first));
        let over = runs.filter(|(run, _)| present.is_none_or(|present| *run < present));
        let notice = present.is_none().then(|| first.join(NOTICE));
        for run in over.map(|(_, run)| run).chain(notice) {
            if let Err(error) = JobDir::new(run).erase_spec() {
                tracing::warn!(%error, "cannot remove the spec of a run that is over, which contains its environment");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::host::process::Process;

    fn dir() -> (tempfile::TempDir, JobDir) {
        let root = tempfile::tempdir().unwrap();
        let dir = JobDir::new(root.path().join("7"));
        let spec = LaunchSpec {
            job: "7".into(),
            command: vec!["true".into()],
            cwd: "/".into(),
            env: BTreeMap::from([("KEY".into(), "secret".into())]),
            grace_ms: 10_000,
            script: None,
            output: None,
            ends_after_ms: None,
            log_most: None,
            limiter: Some(InjectionPolicy::Preload {
                because: "a test".into(),
            }),
            container: None,
            user: None,
            refuse_user_namespaces: false,
            refuse_gpus: false,
            held: CgroupStatus::default(),
            needs_group: false,
            replica: None,
        };
        dir.write_spec(&spec).unwrap();
        assert_eq!(dir.spec().unwrap(), Some(spec));
        (root, dir)
    }

    #[test]
    fn a_line_that_was_cut_short_says_nothing_and_goes() {
        let (_root, dir) = dir();
        let cut_short = || {
            let file = OpenOptions::new()
                .append(true)
                .open(dir.path().join(RECORD));
            file.unwrap().write_all(b"{\"exit\":{").unwrap();
        };
        cut_short();
        assert_eq!(dir.record().unwrap(), Record::default());
        assert_eq!(dir.exit().unwrap(), None);
        let begun = StartRecord::now(Process::this().unwrap());
        dir.write_launch(&begun).unwrap();
        cut_short();
        let exit = ExitRecord {
            outcome: RunOutcome::Exited { exit_code: 0 },
            at: Timestamp::now(),
        };
        dir.write_exit(&exit).unwrap();
        assert_eq!(dir.exit().unwrap(), Some(exit.clone()));
        let record = dir.record().unwrap();
        assert_eq!((record.launch, record.exit), (Some(begun), Some(exit)));
        assert!(dir.spec().unwrap().is_some());
    }

    #[test]
    fn of_two_lines_of_a_kind_the_later_counts() {
        let (_root, dir) = dir();
        let begun = |pid| StartRecord {
            process: Process { pid, start_time: 1 },
            at: Timestamp::now(),
            boot_ns: None,
        };
        let held = CgroupStatus::default();
        for pid in [1, 2] {
            dir.write_launch(&begun(pid)).unwrap();
            dir.write_started_as(&begun(pid + 2), None, &held).unwrap();
        }
        let record = dir.record().unwrap();
        assert_eq!(record.launch.map(|begun| begun.process.pid), Some(2));
        assert_eq!(record.started.map(|begun| begun.process.pid), Some(4));
        assert_eq!((record.held, record.exit), (Some(held), None));
    }

    #[test]
    fn a_job_whose_supervisor_died_before_it_recorded_the_control_group_has_the_one_of_its_spec() {
        let (_root, dir) = dir();
        let mut spec = dir.spec().unwrap().unwrap();
        spec.held.group = Some("of-the-spec".into());
        dir.write_spec(&spec).unwrap();
        assert_eq!(dir.group(), None, "nothing has been started in it");
        let begun = StartRecord::now(Process::this().unwrap());
        dir.write_launch(&begun).unwrap();
        assert_eq!(dir.group(), Some(Cgroup::at("of-the-spec")));
        let none = CgroupStatus::default();
        dir.write_started_as(&begun, None, &none).unwrap();
        assert_eq!(dir.group(), None, "it could not enter it");
    }

    #[test]
    fn what_was_started_is_not_begun_again() {
        let (_root, dir) = dir();
        let spec = dir.spec().unwrap().unwrap();
        let _lock = dir.lock().unwrap().expect("free");
        dir.write_spec(&spec).unwrap_err();
    }

    #[test]
    fn a_forgotten_spec_leaves_no_secret() {
        let (_root, dir) = dir();
        let begun = StartRecord::now(Process::this().unwrap());
        dir.write_launch(&begun).unwrap();
        dir.erase_spec().unwrap();
        dir.erase_spec().expect("a second time changes nothing");
        assert_eq!(dir.spec().unwrap(), None);
        assert_eq!(dir.launch().unwrap(), Some(begun), "the rest stays");
        for file in fs::read_dir(dir.path()).unwrap() {
            assert!(
                !fs::read_to_string(file.unwrap().path())
                    .unwrap()
                    .contains("secret")
            );
        }
        // Killed while it wrote.
        fs::write(dir.path().join(RECORD), "{\"KEY\":\"secret").unwrap();
        dir.erase_spec().unwrap();
        assert_eq!(fs::read(dir.path().join(RECORD)).unwrap(), b"");
    }

    #[test]
    fn specs_of_runs_that_are_over_are_swept() {
        let (root, dir) = dir();
        let run = dir.path().join("run-1");
        fs::create_dir(&run).unwrap();
        fs::write(run.join(RECORD), "secret").unwrap();
        let sweep = |run: Option<u32>| {
            erase_leftover_specs(root.path(), |job| run.filter(|_| job == JobId(7)))
        };
        sweep(Some(0));
        assert!(
            dir.spec().unwrap().is_some(),
            "its first run is its present one"
        );
        sweep(Some(1));
        assert_eq!(dir.spec().unwrap(), None);
        assert_eq!(fs::read(run.join(RECORD)).unwrap(), b"secret");
        sweep(None);
        assert_eq!(fs::read(run.join(RECORD)).unwrap(), b"");
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
