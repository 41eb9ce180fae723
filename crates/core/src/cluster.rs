//! Clusters: which node of several a request goes to.
//!
//! ```text
//!  NodeSpec ──► Cluster ──► policy ──► Choice: a node, and GPUs of it
//!               (what is     (score of every node
//!                free)        where the request fits)
//! ```
//! The queue decides which request is next, and [`placement`](crate::placement) allocates inside a node of Divvy's own.
//! This room answers only the question in between. `divvy simulate` and the scheduler extender ask it.
//!
//! Quantities are integers: thousandths of a core, MiB, thousandths of a GPU. Equal scores go to the node with the lowest
//! index, so the order in which a caller adds nodes is part of the input.
//!
//! May use: `placement`.
//! Used by: `simulate`.

mod best_fit;
mod fgd;
mod fragmentation;
pub mod learned;
mod node;
pub mod patterns;
mod policy;
pub(crate) mod random;
mod scores;
mod stock;

pub use best_fit::BestFit;
pub use fgd::Fgd;
pub use node::{Choice, Cluster, GpuFree, ModelSet, Node, NodeSpec, Shape};
pub use policy::{NodePolicy, PolicyName, PolicyNameError};
pub use stock::{Stock, Strategy};
