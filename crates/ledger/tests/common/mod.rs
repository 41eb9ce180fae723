//! A slice in a temporary folder.
#![allow(dead_code, reason = "each test file uses its own part")]

use divvy_ledger::{Control, GpuSpec, Mode, Slice, SliceSpec};
use tempfile::TempDir;

pub struct Place {
    pub dir: TempDir,
    pub control: Control,
}

pub fn uuid(gpu: u8) -> [u8; 16] {
    [gpu + 1; 16]
}

impl Place {
    pub fn with_limit(limit: u64) -> Self {
        Self::new(&[limit])
    }

    /// One GPU for each limit; a context costs 256 MiB.
    pub fn new(limits: &[u64]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let gpu = |(index, limit): (usize, &u64)| GpuSpec {
            uuid: uuid(index as u8),
            limit: *limit,
            overhead: 256 << 20,
            weight: 250,
            cap: 0,
        };
        let gpus = limits.iter().enumerate().map(gpu).collect();
        let spec = SliceSpec {
            id: "job-1".into(),
            generation: 7,
            mode: Mode::Fair,
            gpus,
        };
        let control = Control::create(dir.path(), &spec).expect("a slice is set up");
        Self { dir, control }
    }

    pub fn slice(&self) -> Slice {
        Slice::open(self.dir.path()).expect("the slice is sound")
    }
}
