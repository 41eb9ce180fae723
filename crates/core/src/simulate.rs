//! Simulations of MIG placement: instances come and go on simulated GPUs, placed by the functions that place real ones.
//!
//! ```text
//!  mix ──► demand ──► arrivals (drawn, or of a trace) ──► pool ──► run ──► estimate
//!  (sizes)  (profiles      random                        (several    (what     (mean over runs,
//!            of a table)                                  GPUs)       came)     and how far off)
//!                 └────► layouts ──► exact               one GPU: no sampling
//! ```
//!
//! A request that gets no instance at once is lost, so that the figures measure the placement and not a queue. Time has
//! no unit. No code here reads a clock, and seeds are arguments: equal input gives equal figures. Figures are floating
//! point, since they are statistics and decide nothing.
//!
//! May use: `mig`.

mod arrivals;
mod chain;
mod estimate;
mod exact;
mod layouts;
mod mix;
mod policy;
mod pool;
mod random;

pub use arrivals::{Arrivals, rate};
pub use estimate::Estimate;
pub use exact::{Exact, OneGpu};
pub use mix::{BuiltinMix, Demand, Mix, MixError, ProfileSelector, builtin_mixes};
pub use policy::{Policy, PolicyError};
pub use pool::{Arrival, Pool, PoolError, RunResult, Tally};
