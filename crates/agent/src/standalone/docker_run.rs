//! A run without a daemon of the user's own `docker run` line: the supervisor starts the line with the slice's flags, and
//! watches its container like every container that it did not create.

use crate::container::edits::{JobFiles, edits};
use crate::host::clock::now;
use crate::job_dir::JobDir;
use crate::job_dir::container_spec::{Plan, Starter, joins};

/// The plan with what is to be started: the words `docker run`, what brings a container into the slice, and the rest of the line.
///
/// A run's number is given again once it has ended, and its container may still lie there: so the name has the time in it.
pub fn plan_docker_run(dir: &JobDir, plan: Plan, line: &[String]) -> Plan {
    let name = format!("{}-{:x}", plan.name, now().as_nanosecond());
    let plan = Plan { name, ..plan };
    let (start, rest) = line.split_at(line.len().min(2));
    let edits = edits(&plan.held, &JobFiles::of(dir.path()));
    let words = start.iter().cloned().chain(edits.flags());
    let words = words.chain([joins(&plan.name)]).chain(rest.iter().cloned());
    let starter = Some(Starter::Line(words.collect()));
    Plan { starter, ..plan }
}
