//! Divvy on Kubernetes: a pod's GPU request becomes a ResourceClaim that the stock scheduler packs, and that no pod can
//! edit.
//!
//! ```text
//!   pod with a label, limit or annotation ──► pod_request ──► inject ──► the same pod with a claim   controller
//!                                                   └───────► claim ──► the claim's template         (the webhook)
//!   the node's GPUs ──► slices ──► the stock scheduler allocates devices to the claim
//!   kubelet ──► node ──► the agent holds the claim's allocation                                      node
//! ```
//!
//! `pod_request`, `inject`, `claim` and most of `slices` are pure: objects in, objects out, as JSON. Supported requests:
//! the label `clearml-injector/fraction`, limits `clear.ml/fraction-N`, the annotations `gpu-fraction` and `gpu-memory` of
//! Run:ai and KAI, HAMi's `nvidia.com/gpumem`. Device classes alone serve `nvidia.com/gpu` and `nvidia.com/mig-*`.

pub mod admin;
pub mod carrier;
pub mod claim;
pub mod cluster;
pub mod controller;
pub mod doctor;
pub mod error_output;
pub mod extender;
pub mod glue;
pub mod inject;
pub mod kai;
pub mod kueue;
pub(crate) mod metrics;
pub mod node;
pub mod pod_request;
pub mod project;
pub mod quantity;
pub mod role;
pub(crate) mod server;
pub mod sharing;
pub mod slices;
pub mod submit;
pub mod uninstall;
pub mod views;
pub mod why;
pub mod workload;
pub mod yaml;
