//! Packing: which node of several a request goes to.
//!
//! ```text
//!  NodeSpec ──► Cluster ──► policy ──► Choice: a node, and GPUs of it
//!               (what is     (score of every node
//!                free)        where the request fits)
//! ```
//! The queue decides which request is next, and the planner of `divvy-core` allocates inside a node of Divvy's own. This
//! crate answers only the question in between. The scheduler extender and `divvy simulate` ask it.
//!
//! Equal scores go to the node with the lowest index, so the order in which a caller adds nodes is part of the input.
//! Pure and deterministic: no clock, no files, and random numbers from a seed alone.
#![forbid(unsafe_code)]

mod best_fit;
pub mod learned;
mod node;
mod policy;
pub mod random;
pub mod scores;

pub use best_fit::BestFit;
pub use node::{Choice, Cluster, GpuFree, ModelSet, Node, NodeSpec, Shape, WHOLE};
pub use policy::NodePolicy;
