//! The data model: GPUs, requests, queues, jobs and projects of one node, as plain data without a decision.
//!
//! ```text
//!  text ──► request · queue · selection · pattern        parsed once
//!  Snapshot = gpu + slice (grants) + queue + project     what a plan depends on
//!  job_state                                             the life of one job, one transition function
//!  invariants                                            conditions of every snapshot
//! ```
//!
//! May use: `units`, `mig`.
//! Used by: `reconcile`, `placement`, `project`, `plan`, `resize`, `explain`.

pub mod command;
pub mod enforcement;
pub mod escape;
pub mod gpu;
pub mod invariants;
pub mod isolation;
pub mod job_state;
pub mod order_key;
pub mod pattern;
pub mod project;
pub mod queue;
pub mod request;
pub mod selection;
pub mod slice;
pub mod snapshot;
