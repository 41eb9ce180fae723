//! Divvy on Kubernetes: what a pod asks for becomes a claim that the stock scheduler packs, and that no pod can edit.
//!
//! ```text
//!   pod with a label, a limit or an annotation ──► ask ──► inject ──► the same pod with a claim      controller
//!                                                   └────► claim ──► the claim's template            (the webhook)
//!   the node's GPUs ──► slices ──► the stock scheduler gives the claim devices
//!   kubelet ──► node ──► the agent holds what the claim was given                                    node
//! ```
//!
//! `ask`, `inject`, `claim` and most of `slices` are pure: objects in, objects out, as JSON. What is understood: the label
//! `clearml-injector/fraction`, limits `clear.ml/fraction-N`, the annotations `gpu-fraction` and `gpu-memory` of Run:ai and KAI,
//! HAMi's `nvidia.com/gpumem`. `nvidia.com/gpu` and `nvidia.com/mig-*` alone need nothing from here: device classes serve them.

pub mod admin;
pub mod claim;
pub mod cluster;
pub mod controller;
pub mod doctor;
pub mod error_output;
pub mod glue;
pub mod inject;
pub mod node;
pub mod pod_request;
pub mod quantity;
pub mod reservation;
pub mod role;
pub mod slices;
pub mod submit;
