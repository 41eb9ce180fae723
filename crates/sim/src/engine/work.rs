//! The work room: calls that give work to a GPU or wait for it.
//!
//! ```text
//! stream ─ event ─ ipc_event ─ launch ─ kernel ─ transfer ─ graph        capture: work becomes nodes instead
//! ```
//! It may use `memory`, `process` and `objects`, and below them `machine` and `time`. `context` waits for a GPU and
//! ends streams through it.
//!
//! May use: `machine`, `objects`, `process`, `time`.

pub mod capture;
pub mod capture_work;
pub mod event;
pub mod graph;
pub mod ipc_event;
pub mod kernel;
pub mod launch;
pub mod stream;
pub mod transfer;
