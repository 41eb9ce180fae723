//! Memory shared between processes: holding and releasing shares, and mapping pieces of other processes' memory.

use crate::engine::machine::group::GroupId;
use crate::engine::mig::partition::instance_of;
use crate::engine::objects::Objects;
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::backing::{map_anonymous, map_file};
use crate::engine::objects::memory::{Allocation, AllocationKind, LARGE};
use crate::engine::objects::result::Done;
use crate::engine::objects::sharing::{Mapped, PAGE};
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};
use std::fs::File;

/// A piece of shared memory: its bytes in the exporter's file.
pub struct Piece<'a> {
    pub file: &'a File,
    pub offset: u64,
    pub size: u64,
    pub key: u64,
    pub gpu: usize,
}

impl Process {
    /// One more thing of this process's holds on to a share; gives its GPU and bytes, if there is such a share. What
    /// lies in a GPU instance can be shared within it alone (MIG user guide, "Application Considerations").
    pub fn hold_share(&self, objects: &mut Objects, key: u64) -> Option<(usize, u64)> {
        let locked = self.state().lock();
        let partition = locked.partition_of_share(key)?;
        if !self.may_share(partition) {
            return None;
        }
        let found = locked.hold_share(self.slot, key)?;
        drop(locked);
        *objects.sharing.held.entry(key).or_default() += 1;
        Some(found)
    }

    /// Whether memory there can be shared with this process.
    pub fn may_share(&self, partition: usize) -> bool {
        instance_of(partition).is_none() || self.device(partition) >= 0
    }

    /// Turns bytes that this process has taken into a share, with one holder.
    pub fn add_share(
        &self,
        objects: &mut Objects,
        gpu: usize,
        bytes: u64,
        key: u64,
        group: GroupId,
    ) -> Done {
        let locked = self.state().lock();
        if !locked.add_share(self.slot, gpu, bytes, key, group) {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        objects.sharing.held.insert(key, 1);
        Ok(())
    }

    /// One thing less holds on to it.
    pub fn release_share(&self, objects: &mut Objects, key: u64) {
        let Some(count) = objects.sharing.held.get_mut(&key) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            objects.sharing.held.remove(&key);
            self.state().lock().release_share(self.slot, key);
        }
    }

    /// Maps memory of another process's among our own. The share must be held for it: the mapping takes that over.
    pub fn map_piece(
        &self,
        objects: &mut Objects,
        piece: &Piece<'_>,
        context: Option<Handle<Context>>,
        kind: AllocationKind,
    ) -> Done<CUdeviceptr> {
        let first = piece.offset & !(PAGE - 1);
        let end = piece.offset.checked_add(piece.size);
        let end = end.and_then(|end| end.checked_next_multiple_of(PAGE));
        let length = end.ok_or(CUresult::INVALID_VALUE)? - first;
        let room = length.checked_next_multiple_of(LARGE);
        let room = room.ok_or(CUresult::OUT_OF_MEMORY)?;
        let start = objects.memory.take_addresses(room)?;
        // SAFETY: whole blocks, just taken.
        if unsafe { map_file(start, length, piece.file, first) }.is_err() {
            objects.memory.give_addresses(start, room);
            return Err(CUresult::MAP_FAILED);
        }
        let base = start + (piece.offset - first);
        let mapped = Mapped {
            key: piece.key,
            start,
            length: room,
        };
        objects.sharing.mapped.insert(base, mapped);
        objects.memory.insert(Allocation {
            base,
            size: piece.size,
            kind,
            gpu: piece.gpu,
            context,
            id: self.next_id(),
            charged: 0,
            group: GroupId::NONE,
        });
        Ok(base)
    }

    /// Takes the mapping at a pointer away again, and the hold it had.
    pub fn unmap_piece(&self, objects: &mut Objects, pointer: CUdeviceptr) {
        let Some(mapped) = objects.sharing.mapped.remove(&pointer) else {
            return;
        };
        let opened = &mut objects.sharing.opened;
        opened.retain(|_, (opened, _)| *opened != pointer);
        // SAFETY: blocks that nothing but the mapping was in. If the system has no room for it the addresses are not
        // used again.
        if unsafe { map_anonymous(mapped.start, mapped.length) }.is_ok() {
            objects.memory.give_addresses(mapped.start, mapped.length);
        }
        self.release_share(objects, mapped.key);
    }

    /// An allocation has been freed that was exported: its share is let go of, and its addresses once no other process
    /// holds it.
    pub fn end_exported(&self, objects: &mut Objects, key: u64, allocation: &Allocation) {
        let ended = (key, allocation.base, allocation.size);
        objects.sharing.ended.push(ended);
        self.release_share(objects, key);
        self.collect_ended(objects);
    }

    /// Addresses of what was freed here and is not held elsewhere any more are free again.
    pub fn collect_ended(&self, objects: &mut Objects) {
        if objects.sharing.ended.is_empty() {
            return;
        }
        let locked = self.state().lock();
        locked.reap();
        let is_over = |key: u64| !locked.is_held_elsewhere(self.slot, key);
        let ended = std::mem::take(&mut objects.sharing.ended);
        let (over, held): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(key, ..)| is_over(*key));
        objects.sharing.ended = held;
        for (_, base, size) in over {
            objects.memory.give_addresses(base, size);
        }
    }
}
