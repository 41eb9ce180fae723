//! Failpoints: named crash points at which a test kills the daemon, as by `kill -9`.
//!
//! `DIVVY_CRASH_AT=mig.create.gi` ends the process the first time it comes to that point,
//! `DIVVY_CRASH_AT=journal.commit:5` the fifth time. A daemon passes the variable to its supervisors; their points
//! begin with `supervise` and `container`. Debug builds only. A machine that a test has installed gets every point,
//! and may end the daemon or fill its disk.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::machine::machine;

/// The variable that names a point.
const CRASH_AT: &str = "DIVVY_CRASH_AT";

/// The points there are, in the order in which a program passes them.
pub const POINTS: &[&str] = &[
    "journal.begin",
    "journal.commit",
    "journal.committed",
    "journal.reserve",
    "start.slice",
    "start.prepared",
    "start.locked",
    "start.spawned",
    "round.answered",
    "stop.told",
    "resize.told",
    "pause.held",
    "aside.intent",
    "aside.noted",
    "aside.gated",
    "aside.locked",
    "aside.saved",
    "aside.stopped",
    "aside.kept",
    "back.due",
    "back.intent",
    "back.woken",
    "back.restored",
    "back.unlocked",
    "back.done",
    "back.kept",
    "end.decided",
    "end.freed",
    "end.forgotten",
    "notice.noted",
    "notice.given",
    "record.new",
    "record.written",
    "record.there",
    "supervise.locked",
    "supervise.launched",
    "supervise.spawned",
    "supervise.started",
    "supervise.ended",
    "supervise.recorded",
    "container.made",
    "container.launched",
    "container.started",
    "container.ended",
    "limit.intent",
    "limit.begin",
    "limit.group",
    "limit.set",
    "mig.create.intent",
    "mig.create.begin",
    "mig.create.gi",
    "mig.create.ci",
    "mig.create.done",
    "mig.create.kept",
    "mig.reuse.intent",
    "mig.reuse.begin",
    "mig.reuse.done",
    "mig.reuse.kept",
    "mig.destroy.intent",
    "mig.destroy.begin",
    "mig.destroy.ci",
    "mig.destroy.gi",
    "mig.destroy.done",
    "mig.destroy.kept",
    "mig.mode.intent",
    "mig.mode.begin",
    "mig.mode.set",
    "mig.mode.done",
    "mig.mode.kept",
    "confirm.granted",
    "confirm.intent",
    "confirm.kept",
    "confirm.answered",
    "confirm.prepared",
    "confirm.spawned",
    "claim.intent",
    "claim.kept",
    "claim.laid",
    "claim.cdi",
    "claim.lent",
    "claim.released",
    "claim.closed",
    "claim.freed",
];

/// Comes to a point.
pub fn reach(point: &str) {
    debug_assert!(POINTS.contains(&point), "unknown failpoint {point}");
    machine().reach(point);
    if cfg!(debug_assertions) && is_last(point) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Comes to a point at which something is about to be written.
///
/// # Errors
/// Where a test has the disk full, and nowhere else.
pub fn write(point: &str) -> io::Result<()> {
    reach(point);
    machine().write()
}

/// Has a supervisor die where the variable says, too.
pub fn forward_to(command: &mut Command) {
    if cfg!(debug_assertions)
        && let Some(at) = std::env::var_os(CRASH_AT)
    {
        command.env(CRASH_AT, at);
    }
}

/// Whether the process is to die here, this time.
fn is_last(point: &str) -> bool {
    static TIMES: AtomicU32 = AtomicU32::new(0);
    let Ok(at) = std::env::var(CRASH_AT) else {
        return false;
    };
    let (name, nth) = match at.split_once(':') {
        Some((name, nth)) => (name, nth.parse().unwrap_or(1)),
        None => (at.as_str(), 1),
    };
    name == point && TIMES.fetch_add(1, Ordering::Relaxed) + 1 == nth
}
