//! The HTTP API of the node agent: versioned bodies, error codes, the paths of an instance, daemon options, and a client
//! behind the feature `client`.
//!
//! A body changes with its version (`v1`), a core type at any time. The conversions between both are here.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
pub mod daemon;
pub mod disposition;
pub mod error_chain;
pub mod frame;
#[cfg(feature = "client")]
pub mod front_end;
pub mod home;
pub mod last_lines;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod proc;
pub mod program;
pub mod route;
pub mod spelling;
pub mod standalone;
pub mod sync;
pub mod v1;
pub mod version;
