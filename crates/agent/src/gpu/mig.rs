//! MIG instances of ours: journaled before they are created, created and destroyed by a worker thread of their GPU, and
//! recovered after a crash.
//!
//! ```text
//!             plan                     driver (worker)                 journal
//! create      grant at a placement     GPU instance, compute instance  creating ─► ready
//! reuse       grant on an idle one     is it clean?                    ready
//! anew        grant on an unclean one  as reclaimed, then created      destroying ─► creating ─► ready
//! release     the job's end            –                               ready, unowned: idle
//! reclaim     needed by another        compute instance, GPU instance  destroying ─► no row
//! ```
//! The core decides which instance a job gets. `controller::mig` decides when it is journaled, and what a report means.
//! An instance without a row is foreign and is never touched.

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
    divvy_api::home::machine::boot()
}
