//! The geometry of MIG placements: sizes, and which of them overlap.

use divvy_core::GpuUuid;
use divvy_core::mig::{Placement, ProfileTable};

use crate::controller::state::GpuState;
use crate::model::mig_instance::MigSlot;

pub(super) fn size_in(table: &ProfileTable, placement: Placement) -> u8 {
    let profile = table.profile(placement.profile);
    profile.map_or(0, |profile| profile.memory_slices)
}

pub(super) fn overlap((a, long): (Placement, u8), (b, wide): (Placement, u8)) -> bool {
    let end = |placement: Placement, size: u8| u16::from(placement.start) + u16::from(size);
    u16::from(a.start) < end(b, wide) && u16::from(b.start) < end(a, long)
}

pub(super) fn size(gpus: &GpuState, slot: &MigSlot) -> u8 {
    let device = gpus
        .devices
        .iter()
        .find(|device| device.gpu.uuid == slot.gpu);
    let table = device.and_then(crate::gpu::Device::profile_table);
    table.map_or(0, |table| size_in(&table, slot.placement))
}

/// The index of a GPU, for texts.
pub(super) fn index(gpus: &GpuState, gpu: &GpuUuid) -> u32 {
    let device = gpus.devices.iter().find(|device| device.gpu.uuid == *gpu);
    device.map_or(u32::MAX, |device| device.gpu.index)
}
