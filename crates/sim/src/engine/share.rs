//! Physical memory that more than one process can hold: the account of allocations exported from their maker.
//!
//! Its bytes belong to the GPU until the last holder, in whatever process, lets go or dies. An entry is found by the inode of its memfd, which is
//! all that an importer has in hand.

use super::slots::SLOTS;
use super::state::Locked;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub const SHARES: usize = 1024;

#[repr(C)]
pub struct Share {
    inode: AtomicU64,
    /// Index of the GPU plus one; 0 is a free entry.
    gpu: AtomicU64,
    bytes: AtomicU64,
    /// Slot of the process that made it, plus one; its NVML row shows the bytes while it holds them.
    maker: AtomicU64,
    /// One bit per slot.
    holders: [AtomicU64; SLOTS / 64],
}

impl Share {
    /// The GPU, while anyone holds the memory.
    pub fn gpu(&self) -> Option<usize> {
        (self.gpu.load(SeqCst) as usize)
            .checked_sub(1)
            .filter(|_| self.is_held())
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    fn is_held(&self) -> bool {
        self.holders.iter().any(|bits| bits.load(SeqCst) != 0)
    }

    fn set_held(&self, slot: usize, held: bool) {
        let (word, bit) = (&self.holders[slot / 64], 1u64 << (slot % 64));
        if held {
            word.fetch_or(bit, SeqCst)
        } else {
            word.fetch_and(!bit, SeqCst)
        };
    }

    fn is_held_by(&self, slot: usize) -> bool {
        self.holders[slot / 64].load(SeqCst) & 1 << (slot % 64) != 0
    }
}

impl Locked<'_> {
    /// Turns bytes a slot holds alone into a share under `inode`. False when the table is full.
    pub fn add_share(&self, slot: usize, gpu: usize, bytes: u64, inode: u64) -> bool {
        let Some(share) = self.shares().iter().find(|share| share.gpu().is_none()) else {
            return false;
        };
        share.inode.store(inode, SeqCst);
        share.bytes.store(bytes, SeqCst);
        share.maker.store(slot as u64 + 1, SeqCst);
        share.gpu.store(gpu as u64 + 1, SeqCst);
        share.set_held(slot, true);
        self.slots()[slot].change_used(gpu, 0, bytes);
        true
    }

    /// Makes a slot a holder of the share under `inode`; gives its GPU and bytes.
    pub fn hold_share(&self, slot: usize, inode: u64) -> Option<(usize, u64)> {
        let share = self
            .shares()
            .iter()
            .find(|share| share.gpu().is_some() && share.inode.load(SeqCst) == inode)?;
        share.set_held(slot, true);
        Some((share.gpu()?, share.bytes()))
    }

    /// A slot lets go of the share under `inode`; the GPU gets the bytes back with the last holder.
    pub fn release_share(&self, slot: usize, inode: u64) {
        let held = self
            .shares()
            .iter()
            .filter(|share| share.is_held_by(slot) && share.inode.load(SeqCst) == inode);
        held.for_each(|share| share.set_held(slot, false));
        self.sum_up();
    }

    pub(super) fn drop_shares_of(&self, slot: usize) {
        for share in self.shares() {
            share.set_held(slot, false);
        }
    }

    /// Bytes of shares that this slot made and still holds.
    pub fn shared_bytes_of(&self, slot: usize, gpu: usize) -> u64 {
        let own = self
            .shares()
            .iter()
            .filter(|share| share.maker.load(SeqCst) == slot as u64 + 1);
        own.filter(|share| share.gpu() == Some(gpu) && share.is_held_by(slot))
            .map(Share::bytes)
            .sum()
    }
}
