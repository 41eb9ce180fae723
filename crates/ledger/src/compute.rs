//! Compute time in the account of a slice: what its processes may launch now, and what they say they do.
//!
//! ```text
//!  agent ── Control::grant ──► control: grant, told ──► Slot::may_launch ── a launch
//!        ◄── Lookout::demand ─── slots: waiting, asked, end of work ◄── Slot::{wait_for_turn, put_work, work_done}
//! ```
//! The grant is where no job can write it. What the processes say is believed only as far as it harms nobody else: who
//! holds for how long is measured by whoever gives the grants (`divvy-core`'s leases), not here.
//!
//! While the grant is open, a launch reads one word and writes nothing. Otherwise each process keeps, per GPU, when its work should
//! be done, in a chain through one word of the slice, since its processes share the GPU.

mod demand;
mod gate;

pub use demand::{Demand, DemandReader, Waker, wait_for_demand};
pub(crate) use gate::forget;
pub use gate::{Grant, MAX_GATE_WAIT_NS, SCHEDULER_TIMEOUT_NS, WorkWaitGuard};
