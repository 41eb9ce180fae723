//! Shares: the account of device memory that several processes hold because it was exported.
//!
//! Its bytes belong to the GPU until the last holder, in whatever process, lets go or dies. An entry is found by its
//! key: the inode of the memfd for what goes from process to process as a descriptor, a number of its own for the rest.

use crate::engine::machine::group::GroupId;
use crate::engine::machine::slots::SLOTS;
use crate::engine::machine::state::Locked;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// As many as processes: more than tests share, and a leak is found as an error.
pub const SHARES: usize = 1024;

/// Keys that are not inodes.
pub const NUMBERED: u64 = 1 << 63;

#[repr(C)]
pub struct Share {
    key: AtomicU64,
    /// Index of the GPU plus one; 0 is a free entry.
    gpu: AtomicU64,
    bytes: AtomicU64,
    /// Slot of the process that made it, plus one; its NVML row shows the bytes while it holds them. 0 when it is dead.
    maker: AtomicU64,
    /// The group that is charged for it, also when its maker is dead.
    group: AtomicU64,
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

    pub fn group(&self) -> GroupId {
        GroupId(self.group.load(SeqCst))
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

    fn is_held_beside(&self, slot: usize) -> bool {
        let words = self.holders.iter().enumerate();
        words.into_iter().any(|(at, word)| {
            let own = if at == slot / 64 { 1 << (slot % 64) } else { 0 };
            word.load(SeqCst) & !own != 0
        })
    }

    fn is_made_by(&self, slot: usize) -> bool {
        self.maker.load(SeqCst) == slot as u64 + 1
    }
}

impl Locked<'_> {
    fn share(&self, key: u64) -> Option<&Share> {
        let mut shares = self.shares().iter();
        shares.find(|share| share.key.load(SeqCst) == key && share.gpu().is_some())
    }

    /// Turns bytes a slot holds alone into a share under `key`. False when the table is full.
    pub fn add_share(&self, slot: usize, gpu: usize, bytes: u64, key: u64, group: GroupId) -> bool {
        let Some(share) = self.shares().iter().find(|share| share.gpu().is_none()) else {
            return false;
        };
        share.key.store(key, SeqCst);
        share.bytes.store(bytes, SeqCst);
        share.maker.store(slot as u64 + 1, SeqCst);
        share.group.store(group.0, SeqCst);
        share.gpu.store(gpu as u64 + 1, SeqCst);
        share.set_held(slot, true);
        self.uncharge(slot, gpu, bytes, group);
        self.slots()[slot].change_used(gpu, 0, bytes);
        true
    }

    pub fn partition_of_share(&self, key: u64) -> Option<usize> {
        self.share(key)?.gpu()
    }

    /// Makes a slot a holder of the share under `key`; gives its GPU and bytes.
    pub fn hold_share(&self, slot: usize, key: u64) -> Option<(usize, u64)> {
        let share = self.share(key)?;
        share.set_held(slot, true);
        Some((share.gpu()?, share.bytes()))
    }

    /// A slot lets go of the share under `key`; the GPU gets the bytes back with the last holder.
    pub fn release_share(&self, slot: usize, key: u64) {
        if let Some(share) = self.share(key) {
            share.set_held(slot, false);
        }
        self.sum_up();
    }

    /// Moves `more` bytes that a slot holds alone into a share, and gives `less` of the share's back to the GPU. The
    /// share has one group: `group`, to which `more` was charged, where it has none yet.
    pub fn change_share(&self, slot: usize, key: u64, more: u64, less: u64, group: GroupId) {
        let Some(share) = self.share(key) else {
            return;
        };
        share.bytes.store(share.bytes() + more - less, SeqCst);
        if share.group() == GroupId::NONE {
            share.group.store(group.0, SeqCst);
        }
        if let Some(gpu) = share.gpu() {
            self.uncharge(slot, gpu, more, group);
            self.slots()[slot].change_used(gpu, 0, more);
        }
        self.sum_up();
    }

    /// Whether a process other than the slot's holds the share under `key`.
    pub fn is_held_elsewhere(&self, slot: usize, key: u64) -> bool {
        self.share(key)
            .is_some_and(|share| share.is_held_beside(slot))
    }

    /// Whether a slot holds any memory that was exported, its own or others'.
    pub fn shares_anything(&self, slot: usize) -> bool {
        let mut shares = self.shares().iter();
        shares.any(|share| share.gpu().is_some() && share.is_held_by(slot))
    }

    pub fn drop_shares_of(&self, slot: usize) {
        for share in self.shares() {
            share.set_held(slot, false);
            if share.is_made_by(slot) {
                share.maker.store(0, SeqCst);
            }
        }
    }

    /// Bytes of shares that this slot holds: of those it made, or of the others' that it imported.
    pub fn shared_bytes_of(&self, slot: usize, gpu: usize, imported: bool) -> u64 {
        let held = self
            .shares()
            .iter()
            .filter(|share| share.gpu() == Some(gpu) && share.is_held_by(slot));
        held.filter(|share| share.is_made_by(slot) != imported)
            .map(Share::bytes)
            .sum()
    }
}
