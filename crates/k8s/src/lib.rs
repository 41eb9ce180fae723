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

pub mod base;
pub mod carrier;
pub mod controller;
pub mod extender;
pub mod glue;
pub mod node;
pub mod teams;
pub mod tools;
