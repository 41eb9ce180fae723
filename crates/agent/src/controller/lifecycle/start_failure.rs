//! Failed starts: why a job with its grants cannot start, and how its end is recorded.

use std::fs::File;
use std::io;

use divvy_core::JobId;
use divvy_ledger::{CreateError, OpenError};
use rustix::io::Errno;

use crate::container::job_files::CoverError;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::container::ContainerError;
use crate::controller::state::Jobs;
use crate::gpu::slice::SliceError;
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::job_dir::{ExitRecord, RecordError, RunOutcome};
use crate::journal::StoreError;
use crate::journal::secrets::SecretsError;
use crate::supervisor::forkserver;

/// Why a job with grants could not be started.
#[derive(Debug, thiserror::Error)]
pub(in crate::controller) enum StartError {
    #[error(transparent)]
    Slice(#[from] SliceError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    #[error("the journal lacks the job's environment")]
    NoEnvironment,
    #[error("its MIG instance does not exist")]
    NoInstance,
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Cover(#[from] CoverError),
    #[error("cannot write its CDI file")]
    Cdi(#[source] io::Error),
    #[error("cannot write the slice's entry")]
    Entry(#[source] io::Error),
    #[error("another process supervises it already")]
    Locked,
    #[error("cannot start its supervisor")]
    Spawn(#[source] io::Error),
}

impl StartError {
    /// Whether the machine lacks descriptors, processes or disk space now. That is no fault of the job, and it may
    /// start later.
    pub(in crate::controller) fn is_shortage(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref().is_some_and(is_short) {
                return true;
            }
            cause = error.source();
        }
        match self {
            // For a spawn this means too many processes; for a file it has another meaning.
            Self::Spawn(error) => {
                Errno::from_io_error(error) == Some(Errno::AGAIN)
                    || forkserver::is_server_gone(error)
            }
            // These errors do not return the kernel's error as their source.
            Self::Slice(
                SliceError::Create(CreateError::Open(OpenError::Io { source, .. }))
                | SliceError::Open(OpenError::Io { source, .. }),
            ) => is_short(source),
            _ => false,
        }
    }
}

fn is_short(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::DQUOT)
    )
}

/// Fails a job that could not be started; the next round journals its end.
pub(in crate::controller) fn fail_start(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    why: &str,
) {
    if jobs.is_claim(id) {
        return give_up_claim(jobs, fx, id, why);
    }
    tracing::error!(job = %id, why, "cannot start the job");
    let exit = ExitRecord {
        outcome: not_started(why),
        at: now(),
    };
    if let Ok(Some(lock)) = jobs.dir(&io.config.home, id).lock() {
        mark_spent(jobs, io, id, &exit, &lock);
    }
    if let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        placed.start.failure = Some(exit);
    }
    fx.jobs.recheck.push(id);
}

/// Fails a claim, because its devices could not be prepared.
pub(in crate::controller) fn give_up_claim(
    jobs: &mut Jobs,
    fx: &mut Effects,
    id: JobId,
    why: &str,
) {
    tracing::error!(job = %id, why, "cannot allocate the claim");
    if let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        placed.start.pending_instances.clear();
        placed.start.failure = Some(ExitRecord {
            outcome: RunOutcome::Withdrawn {
                withdrawn: why.to_owned(),
            },
            at: now(),
        });
    }
    fx.jobs.recheck.push(id);
}

/// Records under the lock of a job that no process has started that it must not be started. A late supervisor or client
/// then finds an ended job.
pub(in crate::controller) fn mark_spent(
    jobs: &Jobs,
    io: &Io,
    id: JobId,
    exit: &ExitRecord,
    _lock: &File,
) {
    if let Err(error) = jobs.dir(&io.config.home, id).write_exit(exit) {
        tracing::error!(job = %id, error = error_chain(&error), "cannot write the folder of a withdrawn job");
    }
}

/// The outcome of a start that failed because of Divvy itself.
pub(in crate::controller) fn not_started(why: &str) -> RunOutcome {
    RunOutcome::Launch {
        launch_error: format!("divvy could not start it: {why}"),
        exit_code: 125,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_descriptors_processes_and_room_is_no_fault_of_a_job() {
        let of = |errno: Errno| io::Error::from(errno);
        let slice = |errno| {
            StartError::Slice(SliceError::Open(OpenError::Io {
                path: "/s".into(),
                operation: "open",
                source: of(errno),
            }))
        };
        let remove = |errno| {
            StartError::Slice(SliceError::Remove {
                path: "/s".into(),
                source: of(errno),
            })
        };
        for short in [
            StartError::Spawn(of(Errno::AGAIN)),
            StartError::Spawn(of(Errno::MFILE)),
            slice(Errno::NFILE),
            slice(Errno::NOSPC),
            slice(Errno::DQUOT),
            remove(Errno::MFILE),
        ] {
            assert!(short.is_shortage(), "{short:?}");
        }
        for other in [
            StartError::Spawn(of(Errno::NOENT)),
            slice(Errno::ROFS),
            remove(Errno::AGAIN),
            StartError::Locked,
        ] {
            assert!(!other.is_shortage(), "{other:?}");
        }
    }
}
