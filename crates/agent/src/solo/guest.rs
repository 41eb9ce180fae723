//! A run without a daemon whose program is a `docker run` of somebody else's: the container is started with the slice's flags, and the
//! run's supervisor sees to it as to any that another has started.

use std::process::{Child, Command};

use divvy_api::v1::{Error, ErrorCode};

use crate::container::cover;
use crate::container::edits::{Files, edits};
use crate::container::plan::{Plan, joins};
use crate::process::Process;
use crate::records::JobDir;
use crate::supervise::chain;

/// Starts the line with what brings its container into the slice; the plan then says who the starter is.
///
/// # Errors
/// [`ErrorCode::LaunchFailed`] when the files cannot be laid or the program cannot be started.
pub fn start(dir: &JobDir, plan: Plan, line: &[String], cwd: &str) -> Result<(Plan, Child), Error> {
    let failed = |why: String| Error::new(ErrorCode::LaunchFailed, why);
    let [program, verb, rest @ ..] = line else {
        return Err(failed("there is no `docker run` to start".to_owned()));
    };
    let files = Files::of(dir.path());
    let edits = edits(&plan.held, &files);
    cover::lay(&edits, &files).map_err(|error| failed(chain(&error)))?;
    let child = Command::new(program)
        .arg(verb)
        .args(edits.flags())
        .arg(joins(&plan.name))
        .args(rest)
        .current_dir(cwd)
        .spawn()
        .map_err(|error| failed(format!("{program} cannot be started: {error}")))?;
    // One that has ended already is nobody's number any more, and is not waited for.
    let starter = Process::with_pid(child.id()).unwrap_or(Process {
        pid: child.id(),
        start_time: 0,
    });
    let starter = Some(starter);
    Ok((Plan { starter, ..plan }, child))
}
