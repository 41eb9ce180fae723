//! Jobs in containers: the create request that holds a container to its slice, and the supervisor of a container.
//!
//! May use: `host`, `model`, `job_dir`, `exec`, `supervisor`.
//! Used by: `controller`, `http`, `daemon`, `standalone`.
//!
//! ```text
//! daemon                        supervisor                                 engine (Docker, Podman)
//! a spec with a Plan ─────────► finds the image, makes the container ─────► created, labelled
//!                               inspects it: can the limiter hold it?
//!                               launch, synced
//!                               starts it ────────────────────────────────► runs
//!                               started: the container's first process
//! SIGTERM to stop ────────────► the stop signal, after the grace SIGKILL ─► ends
//!                               exit, synced; removes the container
//! ```
//! The supervisor is the one of [`crate::supervisor`], with a container in place of a program. A container does not die
//! with it: the daemon starts another supervisor, which finds the container by its name and goes on. That supervisor
//! starts a container that was never started, and no other: the engine knows which.
//!
//! [`edits`] says what is added, as plain data; [`create_request`], [`cdi`] and `divvy docker args` write that down in three ways.

mod account_files;
pub mod cdi;
mod create_request;
pub mod driver;
pub mod edits;
mod elf;
pub mod engine;
pub mod exec;
pub mod gc;
mod image;
mod inspect;
pub mod job_files;
pub mod options;
mod path_stat;
mod raw_api;
mod resolve_mounts;
pub mod run;
mod terminal;
pub mod user_mounts;
