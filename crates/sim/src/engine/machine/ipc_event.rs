//! IPC events: events that several processes know, with the place in a queue where each was recorded last.
//!
//! An event with an interprocess handle has an entry in the state file. The process that records it writes down the
//! place in its queue, and a process that queries or waits looks at that queue. The entry goes with the event it was
//! made for.

use crate::engine::machine::slots::QueuePosition;
use crate::engine::machine::state::{Locked, State};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// More than tests make; so a leak is found as an error of the state file, whose size is fixed.
pub const MAX_IPC_EVENTS: usize = 1024;

/// Zeroed memory is a free entry.
#[repr(C)]
pub struct IpcEvent {
    /// Slot of the process that owns the event, plus one.
    owner: AtomicU64,
    /// Counts its owners, so that old handles find nothing.
    generation: AtomicU64,
    /// Slot of the process that recorded it last, plus one; 0 is never.
    recorder: AtomicU64,
    gpu: AtomicU64,
    ticket: AtomicU64,
}

/// Which mark, and of which owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcEventId {
    pub index: u32,
    pub generation: u64,
}

impl State {
    fn mark(&self, id: IpcEventId) -> Option<&IpcEvent> {
        let mark = self.marks().get(id.index as usize)?;
        let is_it = mark.owner.load(SeqCst) != 0 && mark.generation.load(SeqCst) == id.generation;
        is_it.then_some(mark)
    }

    /// Whether the event it was made for is still there.
    pub fn has_ipc_event(&self, id: IpcEventId) -> bool {
        self.mark(id).is_some()
    }

    /// What one has to wait for; None when it was never recorded, or the mark is gone.
    pub fn ipc_event_position(&self, id: IpcEventId) -> Option<QueuePosition> {
        let mark = self.mark(id)?;
        Some(QueuePosition {
            slot: (mark.recorder.load(SeqCst) as usize).checked_sub(1)?,
            gpu: mark.gpu.load(SeqCst) as usize,
            ticket: mark.ticket.load(SeqCst),
        })
    }
}

impl Locked<'_> {
    /// A mark for an event of a slot's; None when all are taken.
    pub fn allocate_ipc_event(&self, slot: usize) -> Option<IpcEventId> {
        let mut marks = self.marks().iter().enumerate();
        let (index, mark) = marks.find(|(_, mark)| mark.owner.load(SeqCst) == 0)?;
        mark.recorder.store(0, SeqCst);
        let generation = mark.generation.fetch_add(1, SeqCst) + 1;
        mark.owner.store(slot as u64 + 1, SeqCst);
        let index = index as u32;
        Some(IpcEventId { index, generation })
    }

    pub fn free_ipc_event(&self, id: IpcEventId) {
        if let Some(mark) = self.mark(id) {
            mark.owner.store(0, SeqCst);
        }
    }

    /// The event was recorded at a place in a queue.
    pub fn record_ipc_event(&self, id: IpcEventId, at: QueuePosition) {
        if let Some(mark) = self.mark(id) {
            mark.gpu.store(at.gpu as u64, SeqCst);
            mark.ticket.store(at.ticket, SeqCst);
            mark.recorder.store(at.slot as u64 + 1, SeqCst);
        }
    }

    pub fn drop_marks_of(&self, slot: usize) {
        for mark in self.marks() {
            if mark.owner.load(SeqCst) == slot as u64 + 1 {
                mark.owner.store(0, SeqCst);
            }
        }
    }
}
