//! GPU settings: what an administrator can set. It holds for all processes and, as on a machine that is never rebooted,
//! for good.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

/// Zeroed memory is the state after making the machine.
#[repr(C)]
pub struct Settings {
    compute_mode: AtomicU32,
    persistence_off: AtomicU32,
    accounting: AtomicU32,
    /// Milliwatts; 0 is the model's limit.
    power_limit: AtomicU32,
    /// MHz; 0 is the model's.
    memory_clock: AtomicU32,
    graphics_clock: AtomicU32,
}

/// The processes that may make contexts on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComputeMode {
    Default,
    Prohibited,
    ExclusiveProcess,
}

impl ComputeMode {
    /// The number that both CUDA and NVML have for it.
    pub fn number(self) -> u32 {
        match self {
            ComputeMode::Default => 0,
            ComputeMode::Prohibited => 2,
            ComputeMode::ExclusiveProcess => 3,
        }
    }

    pub fn from_number(number: u32) -> Option<ComputeMode> {
        match number {
            0 => Some(ComputeMode::Default),
            2 => Some(ComputeMode::Prohibited),
            3 => Some(ComputeMode::ExclusiveProcess),
            _ => None,
        }
    }
}

impl Settings {
    pub fn compute_mode(&self) -> ComputeMode {
        ComputeMode::from_number(self.compute_mode.load(SeqCst)).unwrap_or(ComputeMode::Default)
    }

    pub fn set_compute_mode(&self, mode: ComputeMode) {
        self.compute_mode.store(mode.number(), SeqCst);
    }

    pub fn persistence(&self) -> bool {
        self.persistence_off.load(SeqCst) == 0
    }

    pub fn set_persistence(&self, on: bool) {
        self.persistence_off.store(u32::from(!on), SeqCst);
    }

    pub fn accounting(&self) -> bool {
        self.accounting.load(SeqCst) != 0
    }

    pub fn set_accounting(&self, on: bool) {
        self.accounting.store(u32::from(on), SeqCst);
    }

    pub fn power_limit(&self) -> Option<u32> {
        Some(self.power_limit.load(SeqCst)).filter(|limit| *limit != 0)
    }

    pub fn set_power_limit(&self, milliwatts: u32) {
        self.power_limit.store(milliwatts, SeqCst);
    }

    /// Clocks of memory and graphics that programs are to run with, if any were set.
    pub fn clocks(&self) -> Option<(u32, u32)> {
        let clocks = (
            self.memory_clock.load(SeqCst),
            self.graphics_clock.load(SeqCst),
        );
        Some(clocks).filter(|(memory, graphics)| *memory != 0 && *graphics != 0)
    }

    pub fn set_clocks(&self, clocks: Option<(u32, u32)>) {
        let (memory, graphics) = clocks.unwrap_or_default();
        self.memory_clock.store(memory, SeqCst);
        self.graphics_clock.store(graphics, SeqCst);
    }
}
