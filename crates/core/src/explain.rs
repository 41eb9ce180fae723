//! Explanations for users: the reason of each wait, changes that would start a job, estimates and recommendations.
//!
//! | module | text or figure |
//! |---|---|
//! | `reason` | why a job waits, in one line |
//! | `why` | why a job waits, GPU by GPU, and which change would start it now |
//! | `suggest` | smaller requests that may fit |
//! | `available` | the largest job that each GPU has room for now |
//! | `capacity` | requests that no empty node could serve, with the nearest that it could |
//! | [`estimate`], [`start_bound`] | when a pending job starts: expected, and at the latest |
//! | [`runtime_stats`], [`advise`] | usual runtime and memory of earlier runs |
//! | [`mig_preview`] | where a batch of MIG instances would go |
//!
//! May use: `units`, `mig`, `model`, `placement`, `project`, `plan`, `resize`.

pub mod advise;
pub mod available;
pub mod capacity;
mod constraint;
pub mod estimate;
pub mod mig_preview;
pub mod plan;
mod quota;
pub mod reason;
mod resize;
pub mod runtime_stats;
pub mod start_bound;
mod suggest;
pub mod why;
