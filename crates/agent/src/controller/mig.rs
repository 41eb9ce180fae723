//! MIG instances in the controller: a job claims them when it starts, a worker creates them, and the job's end releases
//! them.
//!
//! ```text
//! plan ─► claim ─► journal ─► command ─► worker ─► report ─► journal ─► the job's program
//!                     ▲                              │
//!                     ├── not clean: recreated ──────┤
//! end  ─► release ─► journal: idle                   └─ refused: back into the queue
//! ```
//! A job that waits for its instances is `starting`. The instances on the GPUs are compared with the journal by
//! `core::mig::recover` whenever no command is under way. After a crash that finishes what an earlier daemon began. At
//! other times it finds what other programs have created and destroyed.
//!
//! ```text
//! claim      which job holds which instance   commands  what is journaled and sent to the workers
//! report     the results of the workers       backoff   where no instance is created for a time
//! reconcile  the driver's state and the journal  capacity  the GPUs as the planner sees them
//! mode       shared, MIG, exclusive or unmanaged  view  MIG in the API
//! ```

pub(in crate::controller) mod backoff;
pub(in crate::controller) mod capacity;
pub(in crate::controller) mod claim;
pub(in crate::controller) mod commands;
pub(in crate::controller) mod mode;
pub(in crate::controller) mod reconcile;
pub(in crate::controller) mod report;
pub(in crate::controller) mod view;

use capacity::{overlap, size_in};
use divvy_core::GpuUuid;

use crate::controller::state::GpuState;
use crate::model::mig_instance::MigSlot;
pub(super) use view::ENFORCEMENT;

fn size(gpus: &GpuState, slot: &MigSlot) -> u8 {
    let device = gpus
        .devices
        .iter()
        .find(|device| device.gpu.uuid == slot.gpu);
    let table = device.and_then(crate::gpu::Device::profile_table);
    table.map_or(0, |table| size_in(&table, slot.placement))
}

/// The index of a GPU, for texts.
fn index(gpus: &GpuState, gpu: &GpuUuid) -> u32 {
    let device = gpus.devices.iter().find(|device| device.gpu.uuid == *gpu);
    device.map_or(u32::MAX, |device| device.gpu.index)
}
