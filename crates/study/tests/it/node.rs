//! A node on paper: GPUs, and what becomes of MIG instances that jobs get and leave.

use divvy_core::mig::{UnallocatedInstance, UnallocatedState};
use divvy_core::{Amount, Bytes, Gpu, GpuUuid, Grant, Mode, Snapshot, Start};

/// A GPU of 80 GiB, all of it usable, so that figures in tests are round.
pub fn gpu(index: u32) -> Gpu {
    let mut uuid = [0; 16];
    uuid[15] = u8::try_from(index).expect("few GPUs");
    Gpu {
        uuid: GpuUuid::from_bytes(uuid),
        index,
        model: "A100 80GB".to_owned(),
        mode: Mode::Shared,
        away: false,
        out_of_service: None,
        total: Bytes::gib(80),
        reserved: Bytes::ZERO,
        unmanaged: Bytes::ZERO,
        unlisted: Bytes::ZERO,
        elsewhere: Vec::new(),
        context: Bytes::ZERO,
        mig: None,
    }
}

pub fn amount(text: &str) -> Amount {
    match text.parse() {
        Ok(memory) => Amount::Memory(memory),
        Err(_) => Amount::from_gpu_flag(text)
            .or_else(|_| Amount::from_mig_flag(text))
            .expect("an amount"),
    }
}

/// What becomes of the instances of a job that starts: those in its way are removed, and idle ones that it got are its own.
pub fn take(snapshot: &mut Snapshot, start: &Start) {
    let got = start.grants.iter();
    let got = got.filter_map(|grant| Some((grant.gpu.clone(), grant.mig?.placement)));
    for (uuid, placement) in got.chain(start.reclaim.iter().cloned()) {
        let gpu = snapshot.gpus.iter_mut().find(|gpu| gpu.uuid == uuid);
        if let Some(carving) = gpu.and_then(|gpu| gpu.mig.as_mut()) {
            carving
                .instances
                .retain(|instance| instance.placement != placement);
        }
    }
}

/// What becomes of the instances of jobs that have ended: they are kept.
pub fn keep(snapshot: &mut Snapshot, grants: &[Grant]) {
    for grant in grants {
        let gpu = snapshot.gpus.iter_mut().find(|gpu| gpu.uuid == grant.gpu);
        let carving = gpu.and_then(|gpu| gpu.mig.as_mut());
        if let (Some(carving), Some(mig)) = (carving, grant.mig) {
            carving.instances.push(UnallocatedInstance {
                placement: mig.placement,
                standing: UnallocatedState::Idle,
            });
        }
    }
}
