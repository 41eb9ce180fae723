//! ResourceSlices: the devices that a node publishes for the stock scheduler, and the resolution of an allocated
//! device.
//!
//! ```text
//!   GET /v1/gpus ──► offer ──► order ──► device · counters ──► pool ──► diff ──► publish
//!                      │                                      (slices)  (writes)  (the I/O)
//!                      └──► resolve
//!                 (an allocated device, to what the node's agent holds)
//!   slices of all nodes ──► inventory ──► class
//! ```
//!
//! One pool for each node, one device for each GPU that is allocated in fractions or whole, one for each MIG placement.
//! The scheduler takes the first device that fits, in the order of the slices' names and within a slice in the order of its
//! devices (`structured/internal/incubating` of k8s.io/dynamic-resource-allocation 0.36.2): that order is the packing.
//! Everything but [`publish`] is pure. The scheduler allocates devices; the node's agent checks at the time of use that
//! they are available.

mod class;
mod counters;
mod device;
mod diff;
mod inventory;
mod name;
mod offer;
mod order;
mod pool;
pub mod publish;
mod resolve;

pub use crate::base::quantity::bytes;
pub use class::classes;
pub(crate) use device::least;
pub use diff::{SliceChange, steps};
pub use inventory::{inventory_of, stripped, total_memory};
pub(crate) use offer::STEP;
pub use offer::{Carving, Gpu, Health, Offer, Withheld, gpus};
pub use pool::{Node, Pool, Taints, pool};
pub use resolve::{DeviceAllocation, NoDevice, names, resolve_device};

/// Of a device: what a claim is to know of it. In CEL `device.attributes['gpu.divvy.dev'].type`.
pub const TYPE: &str = "type";
/// A GPU in parts or whole.
pub const FRACTION: &str = "fraction";
/// A place of a MIG instance.
pub const MIG: &str = "mig";
/// A GPU that is given out whole alone.
pub const WHOLE: &str = "whole";
/// The capacity that claims consume.
pub const MEMORY: &str = "memory";
