//! The simulated machine: state shared by all processes, and what one process has in it.
//!
//! ```text
//! shared, in the state file:   state ─ slots ─ standing ─ seat ─ gpu ─ mig ─ settings ─ share ─ mark ─ accounting ─ time ─ wait
//! of one process:              process ─ visible ─ context ─ limit ─ memory ─ pool ─ vmm ─ stream ─ module ─ image ─ kernel ─ launch ─ transfer
//!                              capture ─ graph ─ array ─ texture ─ sharing ─ ipc ─ external ─ peer ─ green ─ multicast ─ door ─ checkpoint
//! helpers:                     handles, addresses
//! ```
//! Locks are taken in this order: a GPU's `issue`, the process's `objects`, the state's lock. Nobody waits for simulated work while holding the latter
//! two.

pub mod accounting;
pub mod addresses;
pub mod array;
pub mod capabilities;
pub mod capture;
pub mod checkpoint;
pub mod context;
pub mod door;
pub mod external;
pub mod gpu;
pub mod graph;
pub mod green;
pub mod handles;
pub mod image;
pub mod ipc;
pub mod kernel;
pub mod launch;
pub mod limit;
pub mod mark;
pub mod memory;
pub mod mig;
pub mod module;
pub mod multicast;
pub mod peer;
pub mod pids;
pub mod pool;
pub mod process;
pub mod seat;
pub mod settings;
pub mod share;
pub mod shared_event;
pub mod sharing;
pub mod slots;
pub mod standing;
pub mod state;
pub mod stream;
pub mod texture;
pub mod time;
pub mod transfer;
pub mod visible;
pub mod vmm;
pub mod wait;
