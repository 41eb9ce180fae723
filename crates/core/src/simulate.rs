//! Simulations of placement: MIG instances on simulated GPUs, and requests on the nodes of a cluster.
//!
//! ```text
//!  mix ──► demand ──► arrivals (drawn, or of a trace) ──► pool ──► run ──► estimate
//!  (sizes)  (profiles      random                        (several    (what     (mean over runs,
//!            of a table)                                  GPUs)       came)     and how far off)
//!                 └────► layouts ──► exact               one GPU: no sampling
//!
//!  workload ──► arranged (published, seeded, given) ──► fill          no job leaves
//!  (nodes and      └── go_random                   ──► departures    jobs leave, nothing waits
//!   requests)
//! ```
//!
//! A request that gets nothing at once is lost, so that the figures measure the placement and not a queue. Time has no
//! unit. [`waits`] is the exception: there jobs queue, under the planner. No code here reads a clock, and seeds are
//! arguments: equal input gives equal figures. Figures are floating point, since they are statistics and decide nothing.
//!
//! May use: `units`, `mig`, `model`, `placement`, `cluster`, `project`, `plan`.

mod arrivals;
mod chain;
pub mod departures;
mod estimate;
mod exact;
pub mod fill;
mod go_random;
mod layouts;
mod mix;
mod policy;
mod pool;
pub mod queue_visible;
pub mod volumes;
pub mod waits;
pub mod workload;

pub use arrivals::{Arrivals, rate};
pub use estimate::Estimate;
pub use exact::{Exact, OneGpu};
pub use mix::{BuiltinMix, Demand, Mix, MixError, ProfileSelector, builtin_mixes};
pub use policy::{Policy, PolicyError};
pub use pool::{Arrival, Pool, PoolError, RunResult, Tally};
