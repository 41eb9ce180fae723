//! Queue simulation: what jobs wait for on a set of nodes, and what a change of the nodes or of the rules would do.
//!
//! ```text
//!  Scene ───────────────┐
//!  (nodes, queues,      ├──► run: at each arrival and end the planner decides ──► Figures
//!   rules)              │                                                         (waits, GPU in use)
//!  Submission ──────────┘
//!  (of a trace, or drawn)        Scene + Change ──► the same submissions again ──► Answer (both, and the difference)
//!                                Scene + Present ─► running and waiting jobs, durations drawn ──► Forecast
//! ```
//!
//! Queue order, projects, backfill, preemption and the GPUs of a node are decisions of that node's planner. A preempted
//! job goes back to its queue before its equals, and starts anew. Times are milliseconds from any start.

pub mod change;
mod draw;
pub mod figures;
mod forecast;
mod ground;
mod question;
mod run;
pub mod scene;
mod tally;
pub mod work;

pub use forecast::{History, forecast};
pub use question::{Progress, ask, simulate};
