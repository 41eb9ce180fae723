//! A share of the GPU's time: launches wait at a gate while another slice has its turn.
//!
//! ```text
//! launch ──► gate: open? ── yes: the driver, nothing else (one load)
//!                    └─ no: wait for the turn ──► flight: not too much ahead ──► forecast: what will it cost ──► the driver
//! ```
//! While nobody else wants the GPU, a launch reads one word of the slice's control page. When turns are taken, the work of
//! this process is kept short enough to end soon after its turn does (`flight`), by what kernels were measured to take
//! (`forecast`), and what is on the GPU is told to whoever gives the turns (`divvy-ledger`). Launches, graph launches and
//! asynchronous copies wait; synchronising calls, host callbacks and stream capture never do (`launch`, `synchronise`).

mod flight;
mod forecast;
mod gate;
pub mod launch;
pub mod synchronise;

pub use forecast::Work;
pub use gate::{Compute, forget_slot, is_open, pass};
