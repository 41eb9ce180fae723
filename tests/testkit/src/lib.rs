//! Test support for every crate: bounded waits, C programs compiled once, and default signal dispositions.
//!
//! ```text
//! until, until_async   poll a condition, and panic with its name when it does not come true in time
//! bounded              runs a call that blocks, and ends it with its name when it does not return in time
//! Bounded              the same for processes: wait, status and output
//! compiled             a C program or library, compiled once for all test processes
//! links                a folder of symbolic links, made once for all test processes
//! programs             the folder of the programs and libraries that this workspace builds
//! signals              the dispositions with which an interactive shell starts a program
//! ```
//!
//! A test never sleeps for a fixed time. `clippy.toml` lists the calls that block without a bound; the test programs forbid them.
#![forbid(unsafe_code)]

mod compile;
mod orphans;
pub mod programs;
pub mod signals;
mod wait;

pub use compile::{compiled, filled, links, written};
pub use wait::{Bounded, PATIENCE, bounded, bounded_for, join, let_pass, until, until_async};
