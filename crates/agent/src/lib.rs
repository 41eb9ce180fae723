//! The node agent: observe, plan, apply; journal, runners, HTTP server.
#![forbid(unsafe_code)]

mod job;
mod process;
mod records;
mod store;
mod supervise;
mod watch;

pub use divvy_api::home;
pub use supervise::{SuperviseError, run_client_job, supervise};
