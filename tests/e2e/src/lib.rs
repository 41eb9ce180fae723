//! Whole-system runs over the simulated driver: the real programs, a private home each, nothing mocked.
//!
//! The tests are in `tests/`, the Python clients they run in `clients/`. Here is what they share, and what
//! `cargo xtask demo` and `cargo xtask bench` use too:
//!
//! ```text
//! Programs   where the built programs and libraries lie
//! Home       one private instance: its daemon, the `divvy` command, its API; all gone when dropped
//! Said       what a command answered: exit code, stdout, stderr
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
mod home;
mod programs;
mod said;
mod sweep;
mod tenant;

pub use dialog::Dialog;
pub use divvy_testkit::until;
pub use home::{Daemon, Home};
pub use programs::{Programs, client_script, python, write_program};
pub use said::CommandOutput;
pub use sweep::kill_all_that_mention;
pub use tenant::{Tenant, part};

/// One GiB.
pub const GIB: u64 = 1 << 30;
/// One MiB.
pub const MIB: u64 = 1 << 20;
