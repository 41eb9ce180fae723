//! MIG instances of ours: recorded before they are made, made and destroyed by a thread of their GPU, found again after anything.
//!
//! ```text
//!             plan                     driver (worker)                 journal
//! create      grant at a placement     GPU instance, compute instance  creating ─► ready
//! reuse       grant on an idle one     is it clean?                    ready
//! anew        grant on an unclean one  as reclaimed, then created      destroying ─► creating ─► ready
//! let go      the job's end            –                               ready, nobody's: idle
//! reclaim     needed by another        compute instance, GPU instance  destroying ─► no row
//! ```
//! What is to be given to whom is decided in the core; when it is journaled, and what a report means, in `cycle::mig`. What has no
//! row is somebody else's and is never touched.

pub mod discover;
pub mod driver;
mod operations;
pub mod worker;

pub use discover::GpuMigState;
pub use operations::MigOpError;
pub use worker::{Epochs, MigCommand, MigOutcome, MigReport, MigTask, Workers};

/// Says in a debug build under test that this is another boot.
const BOOT: &str = "DIVVY_TEST_BOOT";

/// The kernel's id of this boot; what was made in another is no more.
pub fn boot() -> String {
    if cfg!(debug_assertions)
        && let Ok(boot) = std::env::var(BOOT)
    {
        return boot;
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
