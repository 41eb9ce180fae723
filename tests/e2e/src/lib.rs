//! Whole-system runs over the simulated driver: the real programs, a private home each, nothing mocked.
//!
//! The tests are in `tests/`, the Python clients they run in `clients/`. The daemon harness is `divvy_testkit`'s. Here is what else they
//! share, and what `cargo xtask demo` and `cargo xtask bench` use too:
//!
//! ```text
//! Dialog     a program that is spoken to line by line
//! Tenant     one of those that gives its GPU work
//! Engine     Docker or Podman, and images of this machine's files
//! help       every verb that `--help` lists, and its flags
//! clearml    a ClearML server, its user, and an instance that serves its queues
//! ```
//!
//! Nothing sleeps for a guessed time: a test waits for a condition, [`until`] it holds or a generous deadline passes.
#![forbid(unsafe_code)]

pub mod clearml;
mod dialog;
pub mod engine;
pub mod help;
mod programs;
mod tenant;

pub use dialog::Dialog;
pub use divvy_testkit::{
    CommandOutput, Daemon, Home, Programs, kill_all_that_mention, page, until,
};
pub use programs::{can_unshare, client_script, python, write_program};
pub use tenant::{Tenant, part};

/// One GiB.
pub const GIB: u64 = 1 << 30;
/// One MiB.
pub const MIB: u64 = 1 << 20;
