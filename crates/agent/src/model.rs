//! Plain data of jobs and nodes and pure rules over it: no file, no process, no clock.

pub mod bypass;
pub mod cause;
pub mod claim;
pub mod counters;
pub mod idle;
pub mod job;
pub mod oom;
pub mod policy;
pub mod recommend;
pub mod retention;
pub mod run_signature;
pub mod usage;
pub mod validate;
