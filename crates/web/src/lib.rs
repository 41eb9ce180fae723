//! The side of Divvy that faces browsers: the embedded page, and what stands between a browser and the API.
//!
//! ```text
//! connection ──► connections, deadline ──► gate (Host, Origin) ──► files ──► token ──► the API
//!                                                                                       │
//!                                   browser ◄── headers ◄── gzip ◄──────────────────────┘
//! ```
//! `divvy web` and the daemon's TCP listener both use these parts, so that one table of rules holds for both. This crate
//! knows neither the API nor a user: a refusal is plain data, which its users word as an error of the API.
#![forbid(unsafe_code)]

pub mod connections;
pub mod deadline;
pub mod files;
pub mod gate;
pub mod gzip;
pub mod headers;
pub mod token;

/// The build script's module, so that its tests run.
#[cfg(test)]
#[path = "../bundle.rs"]
mod bundle;
