//! The driver on a node, under a kubelet that speaks real gRPC over unix sockets, a real daemon over simulated GPUs, and an API
//! server in memory. Daemon and driver are processes, and are killed.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::apiserver;
mod away;
mod callers;
mod claims;
mod crash;
mod enforcer;
mod fake;
mod gate;
mod incidents;
mod leak;
pub mod machine;
mod probe;
mod raw;
mod registration;
mod rig;
mod views;
