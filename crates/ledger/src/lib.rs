//! The ledger of a slice: memory accounting in shared memory, with reserve, commit, release and reaping of dead
//! processes.
//!
//! A slice is a folder with two files. The daemon writes `control` ([`Control`]); each process of the slice owns a line
//! of `slots` ([`ProcessSlot`]); other permitted processes may read both ([`Slice`]). No lock is taken to reserve or release,
//! nothing is allocated, and a process killed at any instruction loses no bytes and blocks no other.
//!
//! ```text
//! agent ── Control ──► control (limits) ──► Slot::reserve → driver → Hold::commit ──► slots ──► Slice::read ── agent
//! ```
#![doc = "```ignore"]
#![doc = include_str!("../examples/slice.rs")]
#![doc = "```"]
//! Memory that several processes hold is counted once ([`ProcessSlot::export`], [`ProcessSlot::import`]). Refusals are
//! recorded with the usage of the process ([`ProcessSlot::record`], [`Slice::denials`]).
//!
//! The limiter decides what counts as an allocation and when to reserve; the daemon decides each slice's limits.

mod account;
mod compute;
mod control;
mod denial;
mod fork;
mod futex;
mod hold;
mod integrity;
mod join;
pub mod kept;
mod layout;
mod lock;
mod map;
mod process;
mod reader;
mod reap;
mod shared;
mod slice;
mod slot;
mod syscall;

pub use compute::{
    Demand, DemandReader, Grant, MAX_GATE_WAIT_NS, PARKED_WORD, SCHEDULER_TIMEOUT_NS, UNNAMED_CALL,
    Waker, WorkWaitGuard, wait_for_demand,
};
pub use control::{
    Control, CreateError, Field, Forgery, GpuSpec, Numbering, SharingMode, SliceSpec,
};
pub use denial::{
    AllocationGroup, AllocationKind, Denial, DenialCause, DenialReport, NAMED, Peer, Text,
};
pub use hold::{Denied, Hold};
pub use integrity::Damage;
pub use join::JoinError;
pub use layout::{DENIALS, GPUS, ID_BYTES, SHARED, SLOTS, VERSION};
pub use lock::ofd;
pub use map::{OpenError, is_read_only, user};
pub use process::{ProcessIdentity, boot_time_ns};
pub use reader::Reader;
pub use reap::{DRIVER_RELEASE_TIMEOUT_NS, Listed, Reaped};
pub use shared::SharedAllocation;
pub use slice::{
    ContextCounts, ProcessGpu, ProcessState, ProcessUsage, Slice, Snapshot, Usage, is_settled,
};
pub use slot::ProcessSlot;
pub use syscall::nap;

/// The slice's folder of a job with its own mount namespace, or of a container. The supervisor mounts it there, so it
/// takes precedence over the job's environment.
pub const MOUNTED: &str = "/run/divvy-job/slice";
