//! Request and response bodies of API version 1. Changes are additive: no field is renamed, removed or redefined.
//!
//! Memory is integer bytes, shares are thousandths of one GPU, times are RFC 3339 UTC, enums are snake_case, ids are
//! strings. Every read answers `{"schema":"divvy/v1","kind":…,"items":[…]}`, every failure `{"error":{…}}`.

pub mod action;
pub mod advice;
pub mod board;
pub mod brief;
pub mod bypass;
pub mod claim;
pub mod config;
pub mod confirm;
pub mod container;
mod convert;
pub mod doctor;
pub mod error;
pub mod event_query;
pub mod exec;
pub mod fold;
pub mod gpu;
pub mod history;
pub mod job;
pub mod job_query;
pub mod mig;
pub mod node;
pub mod oom;
pub mod project;
pub mod queue;
pub mod script;
pub mod selftest;
pub mod usage;
pub mod web;

pub use action::{JobAction, JobsChange, JobsChanged};
pub use advice::Advice;
pub use board::{
    Board, BoardChange, BoardGpu, BoardInstance, BoardJob, BoardMig, BoardQueue, BoardShare,
    BoardSlice, BoardWaiting, BoardWaitingJob,
};
pub use brief::Brief;
pub use bypass::{Bypass, BypassAction, BypassWay};
pub use claim::{Claim, ClaimDevice, ClaimEnd, ClaimInstance, HeldClaim, JobClaim, MigPlacement};
pub use config::{ConfigOrigin, ConfigReload, ConfigValue};
pub use confirm::{Confirm, Confirmation};
pub use container::{Container, DockerArgs, Starter};
pub use doctor::{Finding, FindingStatus};
pub use error::{Error, ErrorBody, ErrorCode};
pub use event_query::EventQuery;
pub use exec::{Exec, ExecEnd, Signal, SignalJob, Terminal};
pub use fold::Folded;
pub use gpu::{
    Drain, Gpu, GpuAvailable, GpuHeldElsewhere, GpuLost, GpuProcess, GpuSlice, OutOfService,
    Undrain, UnlistedHolder,
};
pub use history::{History, HistoryFigure};
pub use job::{
    After, Amount, Array, ArrayTask, Asker, CancelJob, ComputeTime, EndReason, Event, Idle,
    IdleAction, Isolation, Job, JobChange, JobGroup, JobHold, JobMemory, JobState, LatencyCause,
    LatencyTime, Limiter, LimiterForm, MemoryPlace, ReasonCode, Resize, Runner, Slice, Submit,
    Suspend, TaskBound, TaskBoundKind, UsualRun, Why, WhyChange, WhyGpu, WhyHolder,
};
pub use job_query::{JobPage, JobQuery};
pub use mig::{
    GpuChange, GpuChanged, GpuMode, Mig, MigGc, MigInstance, MigPlanned, MigProfile, MigSlice,
    MigState, MigWanted,
};
pub use node::{FrontEnd, Journal, JournalFile, Node, NodeCaller, UnknownJob};
pub use oom::{Oom, OomAllocation, OomCause, OomKind, OomPeer, OomRecord};
pub use project::{Project, ProjectChange};
pub use queue::Queue;
pub use script::{Output, Script};
pub use selftest::{ParkTest, Selftest, SelftestCheck, SelftestKind, SelftestResult};
pub use usage::{Joules, Usage};
pub use web::{WebServer, WebSession};

use serde::{Deserialize, Serialize};

/// Name of this version, the `schema` field of every list.
pub const SCHEMA: &str = "divvy/v1";

/// The envelope of every successful read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct List<T> {
    pub schema: String,
    /// `JobList`, `JobsChange`, `GpuList`, `QueueList`, `EventList`, `Why`, `Node`, `Selftest`, `Doctor`, `Oom`, `AdviceList`,
    /// `MigInstanceList`, `MigPlan`, `GpuChange`, `DockerArgs`, `ProjectList`, `UsageList`, `ClaimList`, `MigPlacementList`,
    /// `ConfigList`, `ConfigReload`, `Board`, `History`.
    pub kind: String,
    pub items: Vec<T>,
}

impl<T> List<T> {
    pub fn new(kind: &str, items: Vec<T>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            kind: kind.to_owned(),
            items,
        }
    }
}
