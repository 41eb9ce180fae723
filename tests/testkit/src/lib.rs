//! The development crate: what the tests of every crate share.
//!
//! ```text
//! until, until_async     poll a condition, and panic with its name when it does not come true in time
//! bounded                runs a call that blocks, and ends it with its name when it does not return in time
//! Bounded                the same for processes: wait, status and output
//! Rng                    random numbers from a seed
//! Home, Daemon           the daemon harness: a private instance, its daemon, the `divvy` command, its API
//! quarter, script        jobs to submit
//! ended, in_state, log   waits for what becomes of a job
//! failpoints             the points at which a test has a daemon die
//! recorded, has_spec     the record in a job's folder
//! signal, is_alive       processes by their ids
//! compiled               a C program or library, compiled once for all test processes
//! page                   a running `divvy web`, and HTTP by hand
//! markers                the part of a document that a program writes
//! links                  a folder of symbolic links, made once for all test processes
//! cgroup2_root           the root of control groups of version 2
//! sim::control           orders to the simulated driver: a sick GPU, a reset
//! programs               the folder of the programs and libraries that this workspace builds
//! signals                the dispositions with which an interactive shell starts a program
//! ```
//!
//! A test never sleeps for a fixed time. `clippy.toml` lists the calls that block without a bound; the test programs forbid them.
#![forbid(unsafe_code)]

mod cgroups;
mod command_output;
mod compile;
pub mod failpoints;
mod home;
mod http;
mod jobs;
pub mod markers;
mod orphans;
pub mod page;
mod processes;
pub mod programs;
mod record;
mod rng;
pub mod signals;
pub mod sim;
mod wait;

pub use cgroups::cgroup2_root;
pub use command_output::CommandOutput;
pub use compile::{compiled, filled, links, written};
pub use home::{Daemon, Home, can_be_users};
pub use http::call;
pub use jobs::{SEED, ended, in_state, log, quarter, refused, script, two_run_and_one_waits};
pub use processes::{is_alive, kill_all_that_mention, mentions, signal};
pub use programs::{Programs, divvy};
pub use record::{has_spec, recorded};
pub use rng::Rng;
pub use wait::{
    Bounded, Look, PATIENCE, bounded, bounded_for, join, let_pass, until, until_async,
    until_passing,
};
