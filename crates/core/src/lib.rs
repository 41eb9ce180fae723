//! Decides everything: units, placement, queues, lifecycles; pure and deterministic.
//!
//! Nothing here opens a file, reads a clock, draws a random number or awaits: equal inputs give equal answers, byte for
//! byte. The agent observes the node into a [`Snapshot`], asks [`plan()`], and carries the plan out.
//!
//! ```text
//!  text ──► units · ids · request · queue · selection          "half_gpu=0.5" becomes a type, once
//!                       │
//!  Snapshot ──► board ──► fit ──► placement ──► plan ──► starts, and a reason for every wait
//!  (GPUs, who     (what is   (one GPU,   (which         ▲
//!   holds, who     taken)     one need)   GPUs)      backfill
//!   waits)                        └──► capacity (can it ever fit?) · why (what would start it now?)
//! ```
//!
//! [`memory`] says where the memory of a suspended job is, [`comeback`] when it may be on its GPUs again.
//! [`exact`] holds what another scheduler has chosen, or refuses it; [`job`] is the life of one job; [`lease`] says who may use a GPU's compute now; [`invariants`] is what must hold after
//! every step, whoever made it. [`simulate`] plays placement through, with numbers that follow from a seed it is given.
#![forbid(unsafe_code)]

pub mod advise;
mod backfill;
mod board;
pub mod capacity;
pub mod comeback;
pub mod docker;
pub mod escape;
pub mod exact;
mod fit;
pub mod forecast;
pub mod gpu;
pub mod ids;
pub mod invariants;
pub mod isolation;
pub mod job;
pub mod latest;
pub mod lease;
pub mod memory;
pub mod mig;
pub mod obstacle;
pub mod outlook;
pub mod pattern;
mod placement;
pub mod plan;
pub mod project;
pub mod queue;
pub mod reason;
pub mod reconcile;
pub mod request;
pub mod resize;
mod seats;
pub mod selection;
pub mod simulate;
pub mod slice;
mod smaller;
pub mod snapshot;
pub mod turn;
pub mod units;
pub mod usual;
pub mod why;

pub use capacity::{NeverFits, can_ever_fit};
pub use gpu::{Gpu, Mode};
pub use ids::{GpuUuid, JobId, ProjectName, QueueName};
pub use isolation::Isolation;
pub use job::JobState;
pub use mig::MigProfile;
pub use pattern::{FileFacts, FilePattern, FilePatternError};
pub use plan::{Plan, Preempt, Start, Wait, plan};
pub use project::{Project, SchedulingClass};
pub use queue::{Order, QueueSpec, parse_queues};
pub use reason::Reason;
pub use request::{Amount, Request};
pub use selection::{GpuSelection, parse_gpus};
pub use slice::{Grant, MigGrant};
pub use snapshot::{AllocatedJob, PendingJob, Preemption, Queue, Snapshot};
pub use turn::{OrderKey, Top};
pub use units::{Bytes, Compute, ComputeMode, Gpus, Share};
pub use why::{SuggestedChange, Suggestion, Why, WhyGpu, WhyHolder, starts_now, why};
