//! Failpoints of the daemon by what they belong to, in the order in which it passes them (`crates/agent/src/host/failpoint.rs`). A daemon
//! that finds one in [`CRASH_AT`] dies there, as by `kill -9`.

/// The variable that names a failpoint.
pub const CRASH_AT: &str = "DIVVY_CRASH_AT";

/// The confirmation of a job, and its start.
pub const CONFIRM: [&str; 6] = [
    "confirm.granted",
    "confirm.intent",
    "confirm.kept",
    "confirm.answered",
    "confirm.prepared",
    "confirm.spawned",
];

/// A claim on a part of a GPU that the daemon grants.
pub const CLAIM_PUT: [&str; 5] = [
    "claim.intent",
    "claim.kept",
    "claim.laid",
    "claim.cdi",
    "claim.lent",
];

/// A claim that goes.
pub const CLAIM_DELETE: [&str; 3] = ["claim.released", "claim.closed", "claim.freed"];

/// A MIG instance that the daemon creates.
pub const MIG_CREATE: [&str; 6] = [
    "mig.create.intent",
    "mig.create.begin",
    "mig.create.gi",
    "mig.create.ci",
    "mig.create.done",
    "mig.create.kept",
];

/// A MIG instance that the daemon destroys.
pub const MIG_DESTROY: [&str; 6] = [
    "mig.destroy.intent",
    "mig.destroy.begin",
    "mig.destroy.ci",
    "mig.destroy.gi",
    "mig.destroy.done",
    "mig.destroy.kept",
];
