//! The decision core: units, data model, placement, planner, projects, MIG, leases; pure and deterministic.
//!
//! Nothing here opens a file, reads a clock, draws a random number or awaits: equal inputs give equal answers, byte for
//! byte. The agent observes the node into a [`Snapshot`], asks [`plan()`], and carries the plan out.
//!
//! ```text
//!  text ──► units · model                     "half_gpu=0.5" becomes a type, once
//!               │
//!  Snapshot ──► placement ──► project ──► plan ──► starts, waits, preemptions      decides
//!                    └──────────┴──────────┴──► explain ──► texts and estimates    reads the decision
//! ```
//!
//! The code has eleven rooms. Imports between rooms run one way:
//!
//! | room | for | may use |
//! |---|---|---|
//! | [`units`] | quantities and identifiers | |
//! | [`docker`] | flags of `docker run` that a container job may use | |
//! | [`lease`] | leases of a GPU's compute time | `units` |
//! | [`mig`] | MIG geometry: profiles, layouts, placements, recovery | `units` |
//! | `model` | the node as plain data: GPUs, requests, queues, jobs | `units`, `mig` |
//! | [`reconcile`] | the driver's figures against the ledgers: bypasses | `units`, `model` |
//! | `placement` | occupancy, fit, placement, backfill, pinned allocation | `units`, `mig`, `model` |
//! | [`project`] | quotas, fair shares, limits of users, preemption | `units`, `model`, `placement` |
//! | `plan` | the planner | `units`, `mig`, `model`, `placement`, `project` |
//! | [`resize`] | resizing, offloading and resuming of running jobs | `units`, `mig`, `model`, `placement`, `project`, `plan` |
//! | `explain` | reasons, suggestions, estimates | `units`, `mig`, `model`, `placement`, `project`, `plan`, `resize` |
#![forbid(unsafe_code)]

pub mod docker;
mod explain;
pub mod lease;
pub mod mig;
mod model;
mod placement;
mod plan;
pub mod project;
pub mod reconcile;
pub mod resize;
pub mod units;

pub use explain::available::{Available, available};
pub use explain::capacity::{NeverFits, can_ever_fit};
pub use explain::plan::{Plan, Wait, plan};
pub use explain::reason::{self, Reason};
pub use explain::why::{SuggestedChange, Suggestion, Why, WhyGpu, WhyHolder, why};
pub use explain::{advise, estimate, mig_preview, runtime_stats, start_bound};
pub use mig::MigProfile;
pub use model::enforcement::{Enforcement, EnforcementPolicy};
pub use model::gpu::{Gpu, HeldElsewhere, Mode};
pub use model::isolation::Isolation;
pub use model::job_state::JobState;
pub use model::order_key::{OrderKey, Top};
pub use model::pattern::{FileFacts, FilePattern, FilePatternError};
pub use model::queue::{Order, QueueSpec, QueueWords, parse_queues};
pub use model::request::{Amount, Request};
pub use model::selection::{GpuSelection, SelectionError, parse_gpus};
pub use model::slice::{Grant, MigGrant, show_labels};
pub use model::snapshot::{
    AllocatedJob, LatencyRule, ParkRule, PendingJob, Preemption, Queue, Snapshot,
};
pub use model::{
    command, escape, gpu, invariants, isolation, job_state as job, order_key, queue, request,
    selection,
};
pub use placement::occupancy::{Assignment, NodeUsage};
pub use placement::{Offer, can_ever_place, pinned, rank};
pub use plan::{Decision, Preempt, Simulated, Start, decide_on, scheduling_order, starts_now};
pub use project::{Project, SchedulingClass, is_account_name};
pub use units::{
    Bytes, Compute, ComputeMode, GpuUuid, Gpus, JobId, LatencyGoal, ProjectName, QueueName, Share,
    UserName,
};
