//! The simulated NVIDIA driver: libcuda.so.1 and libnvidia-ml.so.1 in one library.
//!
//! ```text
//! exports (one row a function) ──► trace (log, faults) ──► handler ──► engine (process ──► shared machine)
//!                                                                        config, model: data
//! ```
//! docs/simulator.md says what it models and what is a guess.

mod config;
mod engine;
mod exports;
mod model;
mod trace;
