//! The shared-memory account of a slice: reserve, commit, release, recovery of dead processes.
//!
//! A slice is a folder with two files. The agent writes `control` ([`Control`]); the slice's processes each own a line of
//! `slots` ([`Slot`]); anybody allowed to may read both ([`Slice`]). No lock is taken to reserve or release, nothing
//! is allocated, and a process killed at any instruction loses nothing and blocks nobody.
//!
//! ```text
//! agent ── Control ──► control (limits) ──► Slot::reserve → driver → Hold::commit ──► slots ──► Slice::read ── agent
//! ```
//! What counts as an allocation and when to reserve is the interposer's business; who gets which limit, the agent's.

mod account;
mod control;
mod fork;
mod hold;
mod join;
mod layout;
mod lock;
mod map;
mod process;
mod recover;
mod slice;
mod slot;

pub use control::{Control, CreateError, GpuSpec, Mode, SliceSpec};
pub use hold::{Denied, Hold};
pub use join::JoinError;
pub use layout::{GPUS, ID_BYTES, SLOTS, VERSION};
pub use map::OpenError;
pub use process::{Owner, boot_time_ns};
pub use recover::{Listed, RETURN_TIME_NS, Reaped};
pub use slice::{ProcessGpu, ProcessState, ProcessUsage, Slice, Snapshot, Usage};
pub use slot::Slot;
