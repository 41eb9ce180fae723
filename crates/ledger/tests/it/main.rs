//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod allocation;
mod common;
mod compute;
mod crash;
mod denials;
mod example;
mod files;
mod fork;
mod hostile;
mod life_mark;
mod one_process;
mod shared;
mod two_processes;
