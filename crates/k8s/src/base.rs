//! What the other rooms share: a pod's request and its claim, the node's devices as slices, calls to the cluster, output.

pub mod claim;
pub mod cluster;
pub mod error_output;
pub mod inject;
pub(crate) mod metrics;
pub mod objects;
pub mod pod_request;
pub mod quantity;
pub mod role;
pub(crate) mod server;
pub mod sharing;
pub mod slices;
pub mod workload;
pub mod yaml;
