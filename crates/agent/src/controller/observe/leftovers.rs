//! Leftovers: processes that hold GPU memory in the control group of a job whose slice was released. No slice counts
//! their memory.
//!
//! A released slice grants nothing, so such a process took its memory past the limiter. The policy for bypasses applies
//! to it. It has no slice that could be denied memory, so `deny` reports it and no more.

use divvy_core::Mode;
use divvy_core::reconcile::{BypassKind, BypassPolicy};

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::observe::reconcile::way_index;
use crate::controller::state::GpuState;
use crate::gpu::sample::{Leftover, NodeSample};
use crate::host::process::{Process, evidence};
use crate::journal::StoreError;

/// Reports each leftover once, and kills it where the policy says so.
pub(super) fn end_leftovers(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    let kills = io.config.confinement.on_bypass == BypassPolicy::Kill;
    let mut there: Vec<Process> = Vec::new();
    for left in &sample.leftovers {
        let mut devices = gpus.devices.iter();
        let device = devices.find(|device| device.gpu.index == left.gpu_index);
        let is_ours = device.is_some_and(|device| device.mode.assigned != Mode::Unmanaged);
        if there.contains(&left.process) || !is_ours {
            continue;
        }
        there.push(left.process);
        if kills {
            fx.processes_to_kill.push(left.process);
        }
        if gpus.leftovers.contains(&left.process) {
            continue;
        }
        let text = describe(left, &evidence::name(left.process.pid), kills);
        tracing::warn!(job = %left.job, "{text}");
        gpus.bypasses[way_index(BypassKind::Unlimited)] += 1;
        fx.record_event(io, Some(left.job), "bypass", &text)?;
    }
    gpus.leftovers = there;
    Ok(())
}

/// `pid 4711 (python3) holds 4.0 GiB of GPU 0 in the control group of a released slice; the daemon kills it`.
fn describe(left: &Leftover, program: &str, kills: bool) -> String {
    let held = left
        .used
        .map_or_else(|| "memory".to_owned(), |used| used.human());
    let (pid, index) = (left.process.pid, left.gpu_index);
    let end = if kills { "; the daemon kills it" } else { "" };
    format!(
        "pid {pid} ({program}) holds {held} of GPU {index} in the control group of a released slice{end}"
    )
}
