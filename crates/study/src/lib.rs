//! `divvy simulate`: what the scheduler would do with other GPUs, rules or policies, without a GPU.
//!
//! ```text
//!  words ──divvy-cli──► args ──► verb ──► input: lists of jobs and nodes
//!                                 ├─────► engine: fill, departures, waits ──► the planner, policies of nodes
//!                                 └─────► render, chart
//! ```
//! The program `divvy` joins the command line and [`simulate`]. No daemon links this crate.
#![forbid(unsafe_code)]

pub mod engine;
pub mod render;
mod verb;

pub use verb::simulate;
