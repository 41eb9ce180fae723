//! The machine room: the state that all processes of a machine share, in one mapped file.
//!
//! ```text
//! opened ─ state (file, lock) ─ slots (processes) ─ gpu ─ health ─ settings ─ accounting ─ share ─ ipc_event ─ wait
//! group: limits of control groups, and what is charged to them
//! partitions, instances, mig_change, mig_mode: what MIG means for it
//! checkpoint_state: locks and checkpoints      pids
//! ```
//! It may use `time` and `mig`: their records are parts of the file. All other rooms may use it. Everything that needs
//! the lock is a method of [`state::Locked`], and all of them are in this room.
//!
//! May use: `mig`, `time`.
//! Used by: `objects`, `process`, `memory`, `work`.

pub mod accounting;
pub mod checkpoint_state;
pub mod gpu;
pub mod group;
pub mod health;
pub mod instances;
pub mod ipc_event;
pub mod mig_change;
pub mod mig_mode;
pub mod opened;
pub mod partitions;
pub mod pids;
pub mod settings;
pub mod share;
pub mod slots;
pub mod state;
pub mod wait;
