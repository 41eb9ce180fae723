//! The engines of the studies: requests on the nodes of a cluster, and jobs in queues.
//!
//! ```text
//!  workload ──► arranged (seeded, given) ──► fill          no job leaves
//!  (nodes and                            ──► departures    jobs leave, nothing waits
//!   requests)
//!  scene, submissions ──► waits                            jobs queue, under the planner
//! ```
//!
//! In a fill and with departures, a request that gets nothing at once is lost, so that the figures measure the choice of
//! nodes and not a queue. No code here reads a clock, and seeds are arguments: equal input gives equal figures. Figures
//! are floating point, since they are statistics and decide nothing.

pub mod departures;
pub mod estimate;
pub mod fgd;
pub mod fill;
mod fragmentation;
pub mod patterns;
pub mod policy_name;
pub mod volumes;
pub mod waits;
pub mod workload;
