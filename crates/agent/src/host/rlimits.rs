//! Resource limits: the daemon's raised to the maximum, and RLIMIT_NOFILE of the jobs restored.
//!
//! All users' connections are descriptors of one process, and so are the files of a job's start. A program that uses
//! `select` cannot have more than 1024 (select(2)), which is why the usual limit is that, so children get the old one.

use std::process::Child;
use std::sync::OnceLock;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::Bytes;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// What this process was started with.
static INITIAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Limits of a program that was to run for a while: the daemon would reach them one day, and end. They are unlimited by
/// default, so the jobs get the raised ones.
const OF_ONE_PROGRAM: [Resource; 4] =
    [Resource::Cpu, Resource::Fsize, Resource::As, Resource::Data];

/// Raises the limits that the shell that started this daemon had set for itself.
pub fn raise_limits_of_one_program() {
    for resource in OF_ONE_PROGRAM {
        let maximum = getrlimit(resource).maximum;
        let most = Rlimit {
            current: maximum,
            maximum,
        };
        // Each user may raise a soft limit to the hard one. There is no log yet.
        let _ = setrlimit(resource, most);
    }
}

/// Three times the journal's reserve of 5 MiB. With less, the daemon would be on a full disk from its first jobs on.
const LEAST_FILE_SIZE: Bytes = Bytes::mib(16);

/// Checks that the files of this daemon may be large enough.
///
/// # Errors
/// The limit, where it is too low and cannot be raised.
pub fn check_file_size() -> Result<(), Error> {
    let limit = getrlimit(Resource::Fsize).current.map(Bytes::new);
    let Some(limit) = limit.filter(|limit| *limit < LEAST_FILE_SIZE) else {
        return Ok(());
    };
    let (limit, least) = (limit.human(), LEAST_FILE_SIZE.human());
    let why = format!(
        "files may have at most {limit} (RLIMIT_FSIZE), but the daemon's journal needs {least}"
    );
    let hint = "start it in a shell in which `ulimit -f` says unlimited: divvy daemon --detached";
    Err(Error::new(ErrorCode::Internal, why).hint(hint))
}

/// Lets this process open as many files as it may.
pub fn raise_nofile_limit() {
    let before = INITIAL_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    let most = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Gives a child that has just been started this process's original limit. The child has started nothing by then: a
/// supervisor first resolves its job's program.
pub fn restore_nofile_limit(child: &Child) {
    let (Some(before), Some(pid)) = (INITIAL_LIMIT.get(), pid(child)) else {
        return;
    };
    let before = Rlimit {
        current: before.current,
        maximum: before.maximum,
    };
    // One that is gone already needs none.
    let _ = prlimit(Some(pid), Resource::Nofile, before);
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}
