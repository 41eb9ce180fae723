//! Checks of this instance's folders, and whether a ledger can be kept in them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use divvy_api::home::{Home, HomeError};
use divvy_api::v1::Finding;
use divvy_core::Bytes;
use divvy_ledger::{Control, GpuSpec, Slice, SliceSpec};
use rustix::fs::{Access, access};

use super::{fail, ok, warn};
use crate::config::loadable;
use crate::host::disk::{self, Disk};
use crate::host::error::error_chain;
use crate::host::{lock_file, log_trim};

/// Below this the journal and the jobs' output soon have no room.
const LITTLE: Bytes = Bytes::mib(256);

const PRIVATE: &str = "set DIVVY_HOME to a folder of your own with a short path";

pub fn findings(home: &Result<Home, HomeError>) -> Vec<Finding> {
    let home = match home {
        Ok(home) => home,
        Err(error) => {
            let means = "the daemon has no folders for its socket, its jobs and their ledgers";
            return vec![fail("home", error_chain(error), means, PRIVATE)];
        }
    };
    let socket = home.socket();
    let runtime = socket.parent().unwrap_or(&socket);
    let mut findings = vec![
        folder("home.runtime", runtime, "the daemon's socket"),
        folder(
            "home.state",
            home.state(),
            "the journal and the output of jobs",
        ),
        folder("home.slices", home.slices(), "the ledgers of slices"),
    ];
    findings.extend(room(home.state()));
    findings.extend(holes(home.state()));
    findings.extend(locks(home.state()));
    findings.push(account(home.slices()));
    if let Err(error) = loadable(&home.sim_lib(), "LD_LIBRARY_PATH") {
        let means = "simulated GPUs do not work with this path; real GPUs do";
        findings.push(warn("home.simulator", error.to_string(), means, PRIVATE));
    }
    findings
}

/// Whether what jobs say can be held to a bound.
fn holes(state: &Path) -> Option<Finding> {
    let error = log_trim::can_punch_holes(&standing(state)).err()?;
    let found = format!(
        "the file system of {} does not support holes in files: {error}",
        state.display()
    );
    let means = "the daemon cannot keep logs of jobs within limits.log-size";
    let hint =
        "put the folder on a local disk (ext4, XFS, Btrfs, ZFS), or reduce the output of programs";
    Some(warn("home.logs", found, means, hint))
}

/// Whether a daemon can keep others out of the folder: a network file system may have no locks.
fn locks(state: &Path) -> Option<Finding> {
    let path = standing(state).join(format!(".divvy-doctor-{}.lock", std::process::id()));
    let file = lock_file::open(&path).ok()?;
    let locked = file.try_lock();
    let _ = fs::remove_file(&path);
    let error = lock_file::cannot_lock(&path, &locked.err()?.into());
    let means = "no daemon starts with this folder, and no `divvy run --no-daemon`";
    let hint = error.hint.as_deref().unwrap_or(PRIVATE);
    Some(fail("home.locks", error.message, means, hint))
}

/// Whether the folder is ours alone, or can be made.
fn folder(check: &str, path: &Path, holds: &str) -> Finding {
    let shown = path.display();
    let means = format!("there is no folder for {holds}, so neither a daemon nor jobs can start");
    let me = rustix::process::geteuid().as_raw();
    match fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => {
            fail(check, format!("{shown} is not a folder"), &means, PRIVATE)
        }
        Ok(meta) if meta.uid() != me => {
            let found = format!("{shown} belongs to uid {}, not to uid {me}", meta.uid());
            fail(check, found, &means, PRIVATE)
        }
        Ok(meta) if meta.mode() & 0o022 != 0 => {
            let found = format!(
                "other users can write to {shown} (mode {:o})",
                meta.mode() & 0o7777
            );
            fail(check, found, &means, &format!("chmod 700 {shown}"))
        }
        Ok(_) => ok(check, format!("{shown}, for {holds}")),
        Err(_) => {
            let above = standing(path);
            match access(&above, Access::WRITE_OK | Access::EXEC_OK) {
                Ok(()) => ok(check, format!("{shown} can be created, for {holds}")),
                Err(error) => {
                    let found =
                        format!("{shown} cannot be created in {}: {error}", above.display());
                    fail(check, found, &means, PRIVATE)
                }
            }
        }
    }
}

/// The nearest folder above that is there.
fn standing(path: &Path) -> PathBuf {
    let above = path.ancestors().find(|above| above.is_dir());
    above.unwrap_or(Path::new("/")).to_owned()
}

fn room(state: &Path) -> Option<Finding> {
    let room = Disk::of(&standing(state)).free_space().ok()?;
    let left = room.bytes;
    let found = format!("{} free for {}", left.human(), state.display());
    Some(if let Some(why) = room.shortage(Bytes::ZERO) {
        let means = "the daemon refuses new jobs and starts none; running jobs continue";
        let hint = disk::hint(&why, state);
        fail("home.room", format!("{found}: {why}"), means, &hint)
    } else if left < LITTLE {
        let means = "once the disk is full, the daemon refuses new jobs, and output is lost";
        warn(
            "home.room",
            found,
            means,
            "free some disk space, or set DIVVY_HOME to a folder on another disk",
        )
    } else {
        ok("home.room", found)
    })
}

/// Keeps a ledger for a moment, as a job's: shared memory, its locks, a reservation.
fn account(slices: &Path) -> Finding {
    const CHECK: &str = "limiter.account";
    let folder = standing(slices).join(format!(".divvy-doctor-{}", std::process::id()));
    let kept = keep(&folder);
    // What is left behind lies in a folder that is ours, and is small.
    let _ = fs::remove_dir_all(&folder);
    match kept {
        Ok(()) => ok(CHECK, "a ledger can be created, joined and charged"),
        Err(error) => fail(
            CHECK,
            error,
            "without a usable ledger, the limiter refuses all GPU memory to a job",
            "make /dev/shm or the runtime folder writable; its file system must support locks (OFD)",
        ),
    }
}

fn keep(folder: &Path) -> Result<(), String> {
    /// More than the ledger's files have, so that they fit.
    const LIMIT: u64 = 4 << 20;
    let spec = SliceSpec {
        id: "doctor".to_owned(),
        generation: 1,
        gpus: vec![GpuSpec {
            uuid: [1; 16],
            limit: LIMIT,
            ..GpuSpec::default()
        }],
        ..SliceSpec::default()
    };
    Control::create(folder, &spec).map_err(|error| error_chain(&error))?;
    let slice = Slice::open(folder).map_err(|error| error_chain(&error))?;
    let slot = slice.join().map_err(|error| error_chain(&error))?;
    let hold = slot.reserve(0, LIMIT).map_err(|error| error.to_string())?;
    hold.commit();
    let refused = slot.reserve(0, 1).is_err();
    slot.release(0, LIMIT);
    if refused {
        Ok(())
    } else {
        Err("a full ledger accepted another byte".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use divvy_api::v1::FindingStatus;

    use super::*;

    #[test]
    fn a_folder_is_well_when_it_is_ours_alone_or_can_be_made() {
        let scratch = tempfile::tempdir().unwrap();
        let status = |path: &Path| folder("x", path, "things").status;
        assert_eq!(status(scratch.path()), FindingStatus::Ok);
        assert_eq!(status(&scratch.path().join("a/b/c")), FindingStatus::Ok);
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(status(&file), FindingStatus::Fail);
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(status(scratch.path()), FindingStatus::Fail);
    }

    #[test]
    fn an_account_is_kept_for_a_moment_and_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let found = account(&scratch.path().join("slices"));
        assert_eq!(found.status, FindingStatus::Ok, "{found:?}");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
