//! The compute-time part of the ledger: the grant that says which launches may start, and the demand that processes
//! report.
//!
//! ```text
//!  agent ── Control::grant ──► control: grant, told ──► Slot::may_launch ── a launch
//!        ◄── DemandReader::demand ── slots: waiting, asked, end of work ◄── Slot::{wait_for_turn, put_work, work_done}
//! ```
//! Only the daemon writes the grant. The demand that processes report is trusted only as far as a lie harms no other
//! slice: the daemon measures how long each slice holds the lease (`divvy-core`'s leases).
//!
//! The gate of a parked job holds every call that needs the GPU (`park`).
//!
//! While the grant is open, a launch reads one word and writes nothing. Otherwise each process keeps, per GPU, when its work should
//! be done, in a chain through one word of the slice, since its processes share the GPU.

mod demand;
mod gate;
mod park;

pub use demand::{Demand, DemandReader, Waker, wait_for_demand};
pub use gate::{Grant, MAX_GATE_WAIT_NS, PARKED_WORD, SCHEDULER_TIMEOUT_NS, WorkWaitGuard};
pub(crate) use gate::{WrittenGate, forget};
pub use park::UNNAMED_CALL;
