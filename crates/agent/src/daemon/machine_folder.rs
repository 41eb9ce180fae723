//! The migration of a user's state folder into the folder of this machine, once.
//!
//! Earlier versions kept it where the folders of a shared home's machines now are. Supervisors of running jobs know the
//! old paths, so the folder of jobs is exchanged for a link to it in one step:
//!
//! ```text
//! divvy/jobs/7  divvy/state.db ...      ──►      divvy/MACHINE/jobs/7  divvy/MACHINE/state.db ...  divvy/jobs ──► MACHINE/jobs
//! ```
//! The journal is moved last: the next start completes what a crash has left. The link remains, for scripts and notes have
//! paths of earlier versions.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use divvy_api::home::{Home, machine, private_dir};
use divvy_api::v1::{Error, ErrorCode};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::host::error::internal;
use crate::host::lock_file;
use crate::job_dir::JobDir;

const JOBS: &str = "jobs";
const JOURNAL: &str = "state.db";
const LOCK: &str = "daemon.lock";

/// Exchanges two names in one step, where the file system can.
type Exchange = fn(&Path, &Path) -> rustix::io::Result<()>;

/// Makes the folder of this machine the place of its state, and keeps the paths of earlier versions.
///
/// # Errors
/// [`ErrorCode::Conflict`] while a daemon or a run of an earlier version has the state, or another machine runs a job of
/// it; [`ErrorCode::Internal`] where the file system refuses.
pub fn settle(home: &Home) -> Result<(), Error> {
    let Some(machines) = home.machines() else {
        return Ok(());
    };
    let state = home.state();
    let cannot = |error: io::Error| {
        let what = format!("cannot move the state of {}", machines.display());
        internal(&what, &error)
    };
    if machines.join(JOURNAL).is_file() && !state.join(JOURNAL).exists() {
        let _lock = lock(machines)?;
        if let Some(job) = job_elsewhere(machines) {
            let why = format!("another machine runs job {job} of {}", machines.display());
            return Err(Error::new(ErrorCode::Conflict, why).hint(
                "start this version of Divvy there first: it gives each machine of a shared home a folder",
            ));
        }
        move_state(machines, state, exchange).map_err(cannot)?;
    }
    link_jobs(machines, state).map_err(cannot)
}

/// Moves everything that is no machine's, the journal last.
fn move_state(machines: &Path, state: &Path, exchange: Exchange) -> io::Result<()> {
    private_dir(state).map_err(io::Error::other)?;
    for entry in fs::read_dir(machines)? {
        let name = entry?.file_name();
        let stays = [JOBS, JOURNAL, LOCK].iter().any(|other| name == *other);
        if !stays && !name.to_str().is_some_and(machine::is_folder) {
            fs::rename(machines.join(&name), state.join(&name))?;
        }
    }
    let (old, new) = (machines.join(JOBS), state.join(JOBS));
    if is_folder(&old) {
        // A client may have made an empty one; a link is what a crash has left.
        match fs::remove_dir(&new).or_else(|_| fs::remove_file(&new)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(jobs_of(state), &new)?;
        match exchange(&old, &new) {
            // A network file system may not be able to: there the name is away for the time of two calls.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::remove_file(&new)?;
                fs::rename(&old, &new)?;
                link_jobs(machines, state)?;
            }
            exchanged => exchanged?,
        }
    }
    fs::rename(machines.join(JOURNAL), state.join(JOURNAL))?;
    // A daemon of an earlier version would begin anew here. It is still locked.
    fs::remove_file(machines.join(LOCK))
}

/// The link at the place where earlier versions had the folder of jobs. The first machine of a shared home has it.
fn link_jobs(machines: &Path, state: &Path) -> io::Result<()> {
    private_dir(machines).map_err(io::Error::other)?;
    match symlink(jobs_of(state), machines.join(JOBS)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// `MACHINE/jobs`.
fn jobs_of(state: &Path) -> PathBuf {
    Path::new(state.file_name().unwrap_or_default()).join(JOBS)
}

fn exchange(one: &Path, other: &Path) -> rustix::io::Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// The lock of the earlier version's state, which its daemon holds and its runs share.
fn lock(machines: &Path) -> Result<File, Error> {
    let path = machines.join(LOCK);
    let file = lock_file::open(&path)
        .map_err(|error| internal(&format!("cannot open {}", path.display()), &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let why = format!("a divvy of an earlier version uses {}", machines.display());
            Err(Error::new(ErrorCode::Conflict, why).hint(
                "stop its daemon with that version's `divvy daemon --stop`, here or on the machine where it runs, and \
                 wait for runs with --no-daemon; jobs of the daemon run on",
            ))
        }
        Err(TryLockError::Error(error)) => {
            Err(internal(&format!("cannot lock {}", path.display()), &error))
        }
    }
}

/// A job that another machine's supervisor runs: its record is locked, and no process of this machine is the one that it
/// names.
fn job_elsewhere(machines: &Path) -> Option<String> {
    let jobs = fs::read_dir(machines.join(JOBS)).ok()?;
    jobs.flatten().find_map(|entry| {
        let dir = JobDir::new(entry.path());
        let (exit, _) = dir.progress().ok()?;
        let launch = dir.launch().ok()??;
        let is_running = exit.is_none() && matches!(dir.lock(), Ok(None));
        let is_elsewhere = is_running && !launch.process.is_alive();
        is_elsewhere.then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of an earlier version, with a job and its log, beside another machine's folder.
    fn earlier() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let machines = root.path().join("divvy");
        let other = machines.join("f".repeat(32));
        fs::create_dir_all(machines.join("jobs/7")).unwrap();
        fs::create_dir_all(machines.join("history")).unwrap();
        fs::create_dir_all(&other).unwrap();
        let files = [
            (machines.join("jobs/7/log"), "said\n"),
            (machines.join(JOURNAL), "journal"),
            (machines.join("state.db-wal"), "wal"),
            (machines.join(LOCK), ""),
            (other.join(JOURNAL), "theirs"),
        ];
        for (path, text) in files {
            fs::write(path, text).unwrap();
        }
        let state = machines.join("0".repeat(32));
        (root, machines, state)
    }

    fn check(machines: &Path, state: &Path, case: &str) {
        for log in [machines.join("jobs/7/log"), state.join("jobs/7/log")] {
            assert_eq!(fs::read_to_string(log).unwrap(), "said\n", "{case}");
        }
        for name in [JOURNAL, "state.db-wal", "history"] {
            assert!(
                state.join(name).exists() && !machines.join(name).exists(),
                "{case}: {name}"
            );
        }
        let theirs = machines.join("f".repeat(32)).join(JOURNAL);
        assert_eq!(fs::read_to_string(theirs).unwrap(), "theirs", "{case}");
    }

    const EXCHANGES: [(&str, Exchange); 2] = [
        ("in one step", exchange),
        ("by two calls", |_, _| Err(Errno::INVAL)),
    ];

    #[test]
    fn a_state_moves_whole_and_paths_of_its_jobs_stay_valid() {
        for (case, exchange) in EXCHANGES {
            let (_root, machines, state) = earlier();
            // What a client has made there already.
            fs::create_dir_all(state.join(JOBS)).unwrap();
            move_state(&machines, &state, exchange).unwrap();
            check(&machines, &state, case);
        }
    }

    /// A crash leaves the first so many changes.
    #[test]
    fn a_move_of_the_state_that_a_crash_cut_short_is_completed() {
        type Change = fn(&Path, &Path);
        let changes: [Change; 4] = [
            |_, state| fs::create_dir(state).unwrap(),
            |machines, state| {
                fs::rename(machines.join("state.db-wal"), state.join("state.db-wal")).unwrap();
            },
            |_, state| symlink(jobs_of(state), state.join(JOBS)).unwrap(),
            |machines, state| exchange(&machines.join(JOBS), &state.join(JOBS)).unwrap(),
        ];
        for (case, exchange) in EXCHANGES {
            for count in 0..=changes.len() {
                let (_root, machines, state) = earlier();
                let made = &changes[..count];
                made.iter().for_each(|change| change(&machines, &state));
                move_state(&machines, &state, exchange).unwrap();
                check(&machines, &state, &format!("{case}, after {count}"));
            }
        }
        // By two calls, between them.
        let (_root, machines, state) = earlier();
        fs::create_dir(&state).unwrap();
        fs::rename(machines.join(JOBS), state.join(JOBS)).unwrap();
        move_state(&machines, &state, exchange).unwrap();
        link_jobs(&machines, &state).unwrap();
        check(&machines, &state, "between two calls");
    }
}
