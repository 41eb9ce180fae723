//! The lifecycle of a job: scheduling, start, stop, suspension, resize, requeue, end.

pub(in crate::controller) mod cancel;
pub(in crate::controller) mod change;
pub(in crate::controller) mod client_tie;
pub(in crate::controller) mod confirm;
pub mod container;
pub(in crate::controller) mod container_gc;
pub(in crate::controller) mod driver_limit;
pub(in crate::controller) mod end;
pub(in crate::controller) mod finalize;
pub(in crate::controller) mod forget;
pub(in crate::controller) mod hold;
pub(in crate::controller) mod idle;
pub(in crate::controller) mod job_sync;
pub(in crate::controller) mod notifications;
pub(in crate::controller) mod offload;
pub(in crate::controller) mod orphans;
pub(in crate::controller) mod park;
pub(in crate::controller) mod pause;
pub(in crate::controller) mod planner_input;
pub(in crate::controller) mod release;
pub(in crate::controller) mod requeue;
pub(in crate::controller) mod resize;
pub(in crate::controller) mod schedule;
pub(in crate::controller) mod selection;
pub(in crate::controller) mod start;
pub(in crate::controller) mod start_failure;
pub(in crate::controller) mod time_limits;
