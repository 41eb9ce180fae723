//! Shared memory of this process: the shares that it holds, and other processes' memory that it has mapped.
//!
//! ```text
//! here:   allocation ─ exported under a key ─┐           ┌─ key held ─ mapped in blocks of 2 MiB ─ pointer    there
//!                                            └─ share ───┘
//! ```
//! A process holds a share once in the shared account, however many things of its own hold on to it; those are counted
//! here. What is freed here while others still hold it keeps its addresses, and with them the file's bytes, until they
//! have let go.

use divvy_driver::sys::cuda::CUdeviceptr;
use std::collections::BTreeMap;

/// The kernel's page on x86-64.
pub const PAGE: u64 = 4096;

#[derive(Default)]
pub struct Sharing {
    /// How many things of this process hold on to each share.
    pub held: BTreeMap<u64, u32>,
    /// Keys of allocations that were exported, by their beginning.
    pub exported: BTreeMap<CUdeviceptr, u64>,
    /// Exported, freed here, held elsewhere: key, beginning, size.
    pub ended: Vec<(u64, CUdeviceptr, u64)>,
    /// Memory of others, by the pointer to it.
    pub mapped: BTreeMap<CUdeviceptr, Mapped>,
    /// Handles of other processes that are open, by key: the pointer, and how often.
    pub opened: BTreeMap<u64, (CUdeviceptr, u32)>,
}

pub struct Mapped {
    pub key: u64,
    /// The blocks it was mapped over.
    pub start: u64,
    pub length: u64,
}
