//! Points at which a test has the daemon die, as by `kill -9`: between two steps that a crash may fall between.
//!
//! `DIVVY_CRASH_AT=mig.create.gi` ends the process the first time it comes to that point. Debug builds only; in others a point is
//! nothing at all.

/// The points there are, in the order in which a program passes them.
pub const POINTS: &[&str] = &[
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
];

/// Comes to a point.
pub fn reach(point: &str) {
    debug_assert!(POINTS.contains(&point), "{point} is not in the list");
    if cfg!(debug_assertions) && std::env::var("DIVVY_CRASH_AT").is_ok_and(|at| at == point) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
