//! A run without a daemon whose program is a `docker run` of somebody else's: its supervisor starts the line, with the slice's flags,
//! and sees to the container as to any that another has started.

use crate::container::edits::{Files, edits};
use crate::container::plan::{Plan, Starter, joins};
use crate::records::JobDir;

/// The plan with what is to be started: the words `docker run`, what brings a container into the slice, and the rest of the line.
pub fn plan(dir: &JobDir, plan: Plan, line: &[String]) -> Plan {
    let (start, rest) = line.split_at(line.len().min(2));
    let edits = edits(&plan.held, &Files::of(dir.path()));
    let words = start.iter().cloned().chain(edits.flags());
    let words = words.chain([joins(&plan.name)]).chain(rest.iter().cloned());
    let starter = Some(Starter::Line(words.collect()));
    Plan { starter, ..plan }
}
