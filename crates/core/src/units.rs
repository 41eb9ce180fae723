//! Units and identifiers: one type for each quantity (memory, shares, GPUs) and each identity (GPU, job, queue,
//! project, user).
//!
//! A unit holds an integer, and has one `FromStr` and one `Display` with `parse(display(x)) == x`. Floats are for
//! drawing.
//!
//! May use: no other room.
//! Used by: `lease`, `mig`, `model`, `reconcile`, `placement`, `project`, `plan`, `resize`, `explain`.

mod bytes;
mod compute;
mod decimal;
mod gpus;
mod ids;
mod latency;
mod share;

pub use bytes::{Bytes, BytesError};
pub use compute::{Compute, ComputeMode, ComputeModeError};
pub(crate) use decimal::Decimal;
pub use gpus::{Gpus, GpusError};
pub use ids::{GpuUuid, IdError, JobId, ProjectName, QueueName, UserName};
pub use latency::{LatencyGoal, LatencyGoalError};
pub use share::{Share, ShareError, gpus};
