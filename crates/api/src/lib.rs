//! The HTTP contract of the node agent: versioned bodies, error codes, where an instance lives, and a client behind the
//! `client` feature. And what clients and agent have to see alike of a process: which signals it was started with ignored.
//!
//! Bodies change by version (`v1`); core types change by insight. Conversions between the two live here, at one place.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
pub mod disposition;
pub mod frame;
pub mod home;
#[cfg(feature = "openapi")]
pub mod openapi;
mod proc;
pub mod program;
pub mod route;
pub mod v1;
