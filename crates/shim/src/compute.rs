//! The compute-time limiter: launches wait at the launch gate while another slice has its time slice (lease) of the GPU.
//!
//! ```text
//! launch ──► gate: open? ── yes: the driver, nothing else (one load)
//!                    └─ no: wait for the turn ──► flight: not too much ahead ──► forecast: what will it cost ──► the driver
//! ```
//! While no other slice wants the GPU, a launch reads one word of the slice's control page. When slices take turns,
//! `flight` keeps this process's queued work short enough to end soon after its turn, by the measured durations of
//! kernels (`forecast`), and reports the work on the GPU to the daemon (`divvy-ledger`). Launches, graph launches and
//! asynchronous copies wait; synchronising calls, host callbacks and stream capture never do (`launch`, `synchronise`).

mod flight;
mod forecast;
mod gate;
pub mod launch;
pub mod synchronise;

pub use forecast::Work;
pub use gate::{Compute, forget_slot, is_open, pass};
