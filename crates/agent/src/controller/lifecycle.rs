//! The lifecycle of a job: scheduling, start, stop, suspension, resize, requeue, end.

pub(super) mod cancel;
pub(super) mod change;
pub(super) mod confirm;
pub mod container;
pub(super) mod finalize;
pub(super) mod forget;
pub(super) mod hold;
pub(super) mod idle;
pub(super) mod job_sync;
pub(super) mod notifications;
pub(super) mod offload;
pub(super) mod orphans;
pub(super) mod pause;
pub(super) mod requeue;
pub(super) mod resize;
pub(super) mod schedule;
pub(super) mod start;
pub(super) mod time_limits;
