//! GPUs as the agent sees them: what the driver tells, and what of it belongs to whom.

pub mod overhead;
pub mod slice;
mod source;

use std::collections::HashSet;

use divvy_core::{Bytes, Gpu, GpuUuid, Mode};

pub use source::Source;

/// What the driver told about all GPUs of the node, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    pub gpus: Vec<Observed>,
}

/// One GPU, in the driver's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub uuid: GpuUuid,
    pub index: u32,
    pub model: String,
    pub total: Bytes,
    pub reserved: Bytes,
    pub used: Bytes,
    pub utilization_percent: Option<u32>,
    pub processes: Vec<GpuProcess>,
}

/// A process that has a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    pub pid: u32,
    /// `None` where the driver does not say (NVML's "not available").
    pub used: Option<Bytes>,
}

/// A GPU as the cycle keeps it.
#[derive(Clone, Debug)]
pub struct Device {
    pub gpu: Gpu,
    pub used: Bytes,
    pub utilization_percent: Option<u32>,
    /// What a context costs each process before its first allocation.
    pub overhead: Bytes,
    /// Processes that use the GPU and belong to no slice.
    pub unmanaged: Vec<u32>,
    /// The mode it has while it answers.
    pub assigned: Mode,
    /// It does not answer.
    pub lost: bool,
}

impl Device {
    pub fn new(observed: &Observed, mode: Mode, overhead: Bytes) -> Self {
        let gpu = Gpu {
            uuid: observed.uuid.clone(),
            index: observed.index,
            model: observed.model.clone(),
            mode,
            total: observed.total,
            reserved: observed.reserved,
            foreign: Bytes::ZERO,
        };
        Self {
            gpu,
            used: observed.used,
            utilization_percent: observed.utilization_percent,
            overhead,
            unmanaged: Vec::new(),
            assigned: mode,
            lost: false,
        }
    }

    /// Takes over what was observed; `members` are the processes of our slices, `charged` what those are charged for on
    /// this GPU. True when memory held by strangers has changed.
    pub fn update(&mut self, observed: &Observed, members: &HashSet<u32>, charged: Bytes) -> bool {
        self.used = observed.used;
        self.utilization_percent = observed.utilization_percent;
        let strangers: Vec<GpuProcess> = observed
            .processes
            .iter()
            .filter(|process| !members.contains(&process.pid))
            .copied()
            .collect();
        self.unmanaged = strangers.iter().map(|process| process.pid).collect();
        let known: Option<Bytes> = strangers.iter().try_fold(Bytes::ZERO, |sum, process| {
            process.used.map(|used| sum.saturating_add(used))
        });
        // Where the driver names a stranger but not its memory, all that is not ours must be taken for its.
        let foreign = known.unwrap_or_else(|| observed.used.saturating_sub(charged));
        std::mem::replace(&mut self.gpu.foreign, foreign) != foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(used: u64, processes: &[(u32, Option<u64>)]) -> Observed {
        let processes = processes
            .iter()
            .map(|&(pid, used)| GpuProcess {
                pid,
                used: used.map(Bytes::gib),
            })
            .collect();
        Observed {
            uuid: GpuUuid::from_bytes([1; 16]),
            index: 0,
            model: "A100".into(),
            total: Bytes::gib(80),
            reserved: Bytes::gib(1),
            used: Bytes::gib(used),
            utilization_percent: None,
            processes,
        }
    }

    #[test]
    fn memory_of_strangers_is_foreign_and_they_are_listed() {
        let seen = observed(9, &[(10, Some(4)), (20, Some(3)), (30, Some(2))]);
        let mut device = Device::new(&seen, Mode::Shared, Bytes::mib(400));
        assert!(device.update(&seen, &[10].into(), Bytes::gib(4)));
        assert_eq!(device.gpu.foreign, Bytes::gib(5));
        assert_eq!(device.unmanaged, [20, 30]);
        assert!(
            !device.update(&seen, &[10].into(), Bytes::gib(4)),
            "nothing has changed"
        );
    }

    #[test]
    fn a_stranger_of_unknown_size_has_all_that_is_not_ours() {
        let seen = observed(9, &[(10, None), (20, None)]);
        let mut device = Device::new(&seen, Mode::Shared, Bytes::mib(400));
        device.update(&seen, &[10].into(), Bytes::gib(4));
        assert_eq!(
            (device.gpu.foreign, &device.unmanaged[..]),
            (Bytes::gib(5), &[20][..])
        );
        device.update(&seen, &[10, 20].into(), Bytes::gib(4));
        assert_eq!(
            device.gpu.foreign,
            Bytes::ZERO,
            "no stranger, nothing foreign"
        );
    }
}
