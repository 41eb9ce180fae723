//! The life mark of a slot: a word that the kernel changes when the thread that wrote it ends, however it ends.
//!
//! A view shows no memory of processes that have ended. To ask the kernel for the life lock of each other process
//! takes a system call a process; the mark takes one load. It is a futex in the robust list of one of the owner's
//! threads (set_robust_list(2)): at the thread's end the kernel sets `FUTEX_OWNER_DIED` in it.
//!
//! | mark | meaning |
//! |---|---|
//! | a thread's number | that thread lives, and its process with it |
//! | the same, and "owner died" | the thread has ended; its process may go on, and then marks itself anew |
//! | 0 | not marked: an older limiter, or a system without robust lists |
//!
//! Only the first one is believed. Otherwise the life lock decides, as it does every few milliseconds in any case: a
//! program may replace its robust list, and then its mark never changes.

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::account::order;
use crate::layout::{LIVE_WORDS, LifeMark};
use crate::slot::{MarkedBy, ProcessSlot};
use crate::syscall::syscall;

/// `FUTEX_OWNER_DIED` of linux/futex.h, for either half of [`LifeMark::thread`].
const OWNER_DIED: u64 = 0x4000_0000_4000_0000;

/// `struct robust_list_head` of linux/futex.h.
#[repr(C)]
struct RobustListHead {
    list: AtomicU64,
    futex_offset: i64,
    pending: AtomicU64,
}

impl LifeMark {
    /// Whether the marked process is known to live.
    #[inline]
    pub fn says_alive(&self) -> bool {
        let thread = self.thread.load(Acquire);
        thread != 0 && thread & OWNER_DIED == 0
    }

    /// Marks the slot by the calling thread. `None` where this thread has no robust list, or one of another layout.
    ///
    /// The C library owns the list, and takes each entry for one of its mutexes: `next` points to the next entry's
    /// `next`, and the word before it (`previous`) back. glibc and musl agree on both, and differ in the place of the
    /// futex, which the list's head tells.
    ///
    /// `marked`: the thread that has marked this slot before, and the head of its list.
    fn mark(&'static self, marked: &MarkedBy) -> Option<()> {
        let (mut head, mut size) = (0usize, 0usize);
        let (at, length) = (&raw mut head, &raw mut size);
        let places = [at.expose_provenance(), length.expose_provenance()];
        // SAFETY: two places for the answers; 0 is the calling thread.
        let asked = unsafe {
            syscall(
                libc::SYS_get_robust_list,
                [0, places[0], places[1], 0, 0, 0],
            )
        };
        if asked != 0 || head == 0 || size != size_of::<RobustListHead>() {
            return None;
        }
        // SAFETY: the kernel has this address from the C library, which keeps the head as long as the thread lives.
        let head_of_list = unsafe { &*std::ptr::with_exposed_provenance::<RobustListHead>(head) };
        let futex = i64::try_from(offset_of!(LifeMark, next)).ok()? + head_of_list.futex_offset;
        let half = futex - i64::try_from(offset_of!(LifeMark, thread)).ok()?;
        if half != 0 && half != 4 {
            return None;
        }
        // SAFETY: no preconditions.
        let thread = unsafe { syscall(libc::SYS_gettid, [0; 6]) };
        let thread = u64::try_from(thread).ok()?;
        self.thread.store(thread << (half * 8), SeqCst);
        // Another process has written over the word, and the entry is where it was.
        if marked.thread.swap(thread, Relaxed) == thread {
            return Some(());
        }
        marked.head.store(head as u64, Relaxed);
        let first = head_of_list.list.load(Relaxed);
        self.next.store(first, Relaxed);
        self.previous.store(head as u64, Relaxed);
        let own = (&raw const self.next).expose_provenance();
        // The lowest bit tells an entry of another kind.
        let entry = usize::try_from(first).ok()? & !1;
        if entry != 0 && entry != head {
            let back = entry.wrapping_sub(size_of::<AtomicU64>());
            // SAFETY: an entry of the list, which is a mutex of this process; before its `next` lies `previous`.
            unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(back) }
                .store(own as u64, Relaxed);
        }
        // Last: from here on the kernel and the C library find it.
        head_of_list.list.store(own as u64, SeqCst);
        Some(())
    }
}

impl ProcessSlot {
    /// Marks this process's slot as alive, by the calling thread, unless a living thread has marked it. For a slot
    /// that is never dropped: the thread's robust list leads to its memory from then on.
    #[inline]
    pub fn mark_life(&'static self) {
        if !self.own_mark().says_alive() && !self.marked_by.is_off.load(Relaxed) {
            self.mark_life_anew();
        }
    }

    #[cold]
    fn mark_life_anew(&'static self) {
        // One thread at a time; another one's mark is as good.
        if self.is_mine() && !self.marked_by.is_off.swap(true, SeqCst) {
            let own = self.own_mark();
            let is_marked = own.says_alive() || own.mark(&self.marked_by).is_some();
            self.marked_by.is_off.store(!is_marked, SeqCst);
        }
    }

    /// Ends the list at this slot, of which empty memory has taken the place: the kernel stops at a null entry.
    pub(crate) fn end_list_here(&self) {
        let head = self.marked_by.head.load(Relaxed);
        self.own_mark().next.store(head, Relaxed);
    }

    /// Whether all other slots in use are free, or marked by living threads. `false` also where a mark is missing.
    #[inline]
    pub(crate) fn are_others_alive(&self) -> bool {
        let (own, bit) = (self.index / 64, 1u64 << (self.index % 64));
        let others = |index: usize| {
            let mine = if index == own { bit } else { 0 };
            self.slots.live[index].load(order::LOAD_LIVE) & !mine
        };
        // A process that is alone finds that without a branch for each word.
        if (0..LIVE_WORDS).fold(0, |any, index| any | others(index)) == 0 {
            return true;
        }
        (0..LIVE_WORDS).all(|index| {
            let mut others = others(index);
            while others != 0 {
                let slot = index * 64 + others.trailing_zeros() as usize;
                if !self.slots.slots[slot].mark.says_alive() {
                    return false;
                }
                others &= others - 1;
            }
            true
        })
    }

    fn own_mark(&self) -> &LifeMark {
        &self.slots.slots[self.index].mark
    }
}
