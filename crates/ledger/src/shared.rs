//! Shared allocations: memory that several processes of a slice hold is counted once, until the last of them releases
//! it.
//!
//! A process that exports an allocation hands its bytes over to a line of the slice's own. From then on they are no process's:
//! the exporter may free or die while others use the memory, and the charge ends with the last holder.
//!
//! ```text
//!             export                      import, let_go: a bit of `holders`           last holder
//! own word ────────────► line of its own ◄──────────────────────────────── each process ──────────► nothing
//! ```
//! # Counted at every moment
//! Reservations count the slots first and then the lines (`account`). Bytes move one way only, from a slot to a line,
//! and are in the line before they leave the slot: a count that misses them in the slot finds them in the line. While
//! they are in both, the line is undecided, and a counting process waits rather than refuses.
//!
//! # Death of a process
//! Lines change under one lock of the slots file, which the kernel drops with its holder; each prefix of each change is
//! sound. A holder's bit counts only while its slot is live, or dead and not yet reaped, so it ends with the slot, when
//! the driver has returned the process's memory. Each reaping also frees lines without a holder ([`sweep`]). A process
//! that is stopped inside the lock costs others an export or import that is counted twice, never a hang.

use std::io;
use std::mem::offset_of;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::account::{Word, order};
use crate::hold::BoundedWait;
use crate::layout::{
    GPUS, LIVE_WORDS, SHARED, SHARED_WORDS, SharedLine, SlotLines, SlotsFile, state,
};
use crate::lock;
use crate::map::word;
use crate::reap::SlotsAccess;
use crate::slice::ProcessState;
use crate::slot::ProcessSlot;

/// A shared allocation that this process holds; ends with [`ProcessSlot::release_shared`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedAllocation {
    line: usize,
    claim: u64,
}

impl ProcessSlot {
    /// Moves `bytes` of a GPU from this process's charge to the slice's shared line, which counts them until the last
    /// holder is gone. `key` names the allocation for [`ProcessSlot::import`]. If a process shares it under that key already,
    /// this process becomes one more holder and its own charge ends.
    ///
    /// `None`: it stays this process's own, for 256 are shared already, or a process was stopped while changing the table.
    pub fn export(&self, gpu: usize, key: u64, bytes: u64) -> Option<SharedAllocation> {
        self.cell(gpu)?;
        let key = valid(key);
        self.changing(|| {
            let line = match self.find(gpu, key) {
                Some(line) => {
                    self.hold_line(line);
                    let known = Word(self.slots.shared[line].used.load(SeqCst)).bytes();
                    if bytes > known {
                        self.change(line, |word| word.force(bytes - known));
                    }
                    line
                }
                None => {
                    let line = (0..SHARED).find(|line| self.is_unused(*line))?;
                    self.begin(line, gpu, key, bytes);
                    line
                }
            };
            self.release(gpu, bytes);
            self.change(line, Word::make_firm);
            Some(self.shared(line))
        })?
    }

    /// Becomes one more holder of a shared allocation. Returns `None` if no process shares it; the caller then reserves
    /// its bytes, and may share them by [`ProcessSlot::export`] under the same key.
    pub fn import(&self, gpu: usize, key: u64) -> Option<SharedAllocation> {
        self.cell(gpu)?;
        self.changing(|| {
            let line = self.find(gpu, valid(key))?;
            self.hold_line(line);
            Some(self.shared(line))
        })?
    }

    /// The GPU of the allocation that a process of this slice shares under that key, if one does.
    pub fn gpu_of_shared(&self, key: u64) -> Option<usize> {
        let key = valid(key);
        let mut lines = self.slots.shared.iter();
        let line = lines.find(|line| line.key.load(SeqCst) == key)?;
        let gpu = usize::try_from(line.gpu.load(SeqCst)).ok()?;
        self.cell(gpu).map(|_| gpu)
    }

    /// The GPU and the key of each shared allocation that counts.
    pub fn shared_keys(&self) -> Vec<(usize, u64)> {
        let of = |gpu| {
            let lines = self.shared_lines(gpu);
            lines.map(move |line| (gpu, line.key.load(SeqCst)))
        };
        let keys = (0..GPUS).flat_map(of);
        keys.filter(|(_, key)| *key != 0).collect()
    }

    /// How many bytes a shared allocation is, if no other living process holds it.
    pub fn bytes_held_alone(&self, shared: SharedAllocation) -> Option<u64> {
        let line = self.slots.shared.get(shared.line)?;
        let holders = line.holders.each_ref().map(|word| word.load(SeqCst));
        let is_other =
            |slot: usize| slot != self.index && self.state_of(slot) == Some(ProcessState::Live);
        let is_alone = holder(line.owner.load(SeqCst), &holders, is_other).is_none();
        let is_same = line.claim.load(SeqCst) == shared.claim;
        (is_alone && is_same).then(|| Word(line.used.load(SeqCst)).bytes())
    }

    /// Ends this process's hold. With the last one the bytes are the slice's again.
    pub fn release_shared(&self, shared: SharedAllocation) {
        let Some(line) = self
            .slots
            .shared
            .get(shared.line)
            .filter(|_| self.is_mine())
        else {
            return;
        };
        if line.claim.load(SeqCst) != shared.claim {
            self.alarm();
            return;
        }
        line.holders[self.index / 64].fetch_and(!(1 << (self.index % 64)), SeqCst);
        self.changing(|| {
            let same = line.claim.load(SeqCst) == shared.claim && line.key.load(SeqCst) != 0;
            if same && self.holder(line).is_none() {
                self.end(shared.line);
            }
        });
    }

    /// Whether this process holds anything that is shared.
    pub(crate) fn holds_shared(&self) -> bool {
        let (index, bit) = (self.index / 64, 1 << (self.index % 64));
        (0..GPUS).any(|gpu| {
            self.shared_lines(gpu)
                .any(|line| line.holders[index].load(SeqCst) & bit != 0)
        })
    }

    /// The shared allocations that count against a GPU.
    pub(crate) fn shared_lines(&self, gpu: usize) -> impl Iterator<Item = &SharedLine> {
        (0..SHARED_WORDS).flat_map(move |index| {
            let mut live = self.slots.shared_live[gpu][index].load(SeqCst);
            std::iter::from_fn(move || {
                let bit = (live != 0).then(|| live.trailing_zeros() as usize)?;
                live &= live - 1;
                Some(&self.slots.shared[index * 64 + bit])
            })
        })
    }

    /// Whether a process that is not known to have ended holds a shared allocation.
    pub(crate) fn is_held_by_living(&self, line: &SharedLine) -> bool {
        let is_live = |slot: usize| self.state_of(slot) == Some(ProcessState::Live);
        let holders = line.holders.each_ref().map(|word| word.load(SeqCst));
        holder(line.owner.load(SeqCst), &holders, is_live).is_some()
    }

    /// The slot that a shared allocation is shown with: its exporter's while that one holds it, then its lowest holder's.
    pub(crate) fn holder(&self, line: &SharedLine) -> Option<usize> {
        let is_there = |slot: usize| {
            let state = state::of(self.slots.slots[slot].state.load(SeqCst));
            matches!(state, state::LIVE | state::DEAD)
        };
        let holders = line.holders.each_ref().map(|word| word.load(SeqCst));
        holder(line.owner.load(SeqCst), &holders, is_there)
    }

    /// Runs a change of the table alone. `None` when another process has been at it for too long.
    fn changing<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        // Locks of one open file do not exclude its own threads.
        let _turn = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.lock.descriptor()?;
        let patience = BoundedWait::default();
        while !lock::try_lock(file, lock::SHARED).ok()? {
            if !patience.pause(|| {}) {
                return None;
            }
        }
        let result = change();
        lock::unlock(file, lock::SHARED);
        Some(result)
    }

    fn find(&self, gpu: usize, key: u64) -> Option<usize> {
        self.slots.shared.iter().position(|line| {
            line.key.load(SeqCst) == key
                && line.gpu.load(SeqCst) == gpu as u64
                && self.holder(line).is_some()
        })
    }

    /// Whether a line has no key and counts against no GPU. A process that is killed while it begins or ends a line may leave
    /// bytes in such a line, which count for nothing.
    fn is_unused(&self, at: usize) -> bool {
        let counts =
            |live: &[AtomicU64; SHARED_WORDS]| live[at / 64].load(SeqCst) >> (at % 64) & 1 == 1;
        self.slots.shared[at].key.load(SeqCst) == 0 && !self.slots.shared_live.iter().any(counts)
    }

    fn shared(&self, line: usize) -> SharedAllocation {
        let claim = self.slots.shared[line].claim.load(SeqCst);
        SharedAllocation { line, claim }
    }

    fn hold_line(&self, line: usize) {
        self.slots.shared[line].holders[self.index / 64].fetch_or(1 << (self.index % 64), SeqCst);
    }

    fn change(&self, line: usize, change: impl Fn(Word) -> Word) {
        let used = &self.slots.shared[line].used;
        used.store(change(Word(used.load(SeqCst))).0, SeqCst);
    }

    /// Takes an unused line. The key comes last: a line with a key is whole.
    fn begin(&self, at: usize, gpu: usize, key: u64, bytes: u64) {
        let line = &self.slots.shared[at];
        line.holders.iter().for_each(|word| word.store(0, SeqCst));
        line.gpu.store(gpu as u64, SeqCst);
        line.owner.store(self.index as u64, SeqCst);
        line.claim.fetch_add(1, SeqCst);
        self.hold_line(at);
        self.change(at, |word| {
            let empty = word.empty();
            empty.publish(bytes).unwrap_or(empty.force(bytes))
        });
        self.slots.shared_live[gpu][at / 64].fetch_or(1 << (at % 64), order::JOIN);
        line.key.store(key, SeqCst);
    }

    /// Gives a line back. The key goes first.
    fn end(&self, at: usize) {
        let line = &self.slots.shared[at];
        line.key.store(0, SeqCst);
        for live in &self.slots.shared_live {
            live[at / 64].fetch_and(!(1 << (at % 64)), SeqCst);
        }
        self.change(at, Word::empty);
    }
}

/// 0 marks a line that is not in use.
fn valid(key: u64) -> u64 {
    key.max(1)
}

/// The exporter while it holds the allocation, then the lowest holder.
pub(crate) fn holder(
    owner: u64,
    holders: &[u64; LIVE_WORDS],
    is_there: impl Fn(usize) -> bool,
) -> Option<usize> {
    let holds = |slot: &usize| holders[slot / 64] >> (slot % 64) & 1 == 1 && is_there(*slot);
    let owner = usize::try_from(owner).ok();
    let lowest = || {
        (0..LIVE_WORDS)
            .filter(|index| holders[*index] != 0)
            .flat_map(|index| index * 64..(index + 1) * 64)
            .find(holds)
    };
    owner
        .filter(|slot| slot / 64 < LIVE_WORDS && holds(slot))
        .or_else(lowest)
}

/// Frees the lines without a holder, and finishes those whose exporter died half way. It skips the table while a process
/// changes it. Returns how many lines without a holder are left.
pub(crate) fn sweep(file: SlotsAccess<'_>) -> io::Result<usize> {
    let live = Live::read(file)?;
    if live.lines().next().is_none() {
        return Ok(0);
    }
    if !lock::try_lock(file.descriptor(), lock::SHARED)? {
        let mut left = 0;
        for line in live.lines() {
            left += usize::from(!LineBytes::read(file, line)?.is_held(file));
        }
        return Ok(left);
    }
    let result = sweep_alone(file);
    lock::unlock(file.descriptor(), lock::SHARED);
    result.map(|()| 0)
}

/// Whether the process of a slot holds anything that is shared.
pub(crate) fn holds_any(file: SlotsAccess<'_>, slot: usize) -> io::Result<bool> {
    for line in Live::read(file)?.lines() {
        let mut word = [0; 8];
        let at = line_at(line) + offset_of!(SharedLine, holders) + slot / 64 * 8;
        file.read(&mut word, at)?;
        if u64::from_ne_bytes(word) >> (slot % 64) & 1 == 1 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Which lines count against which GPU.
struct Live([u64; GPUS * SHARED_WORDS]);

impl Live {
    const AT: usize = offset_of!(SlotsFile, shared_live);

    fn read(file: SlotsAccess<'_>) -> io::Result<Self> {
        let mut bytes = [0; GPUS * SHARED_WORDS * 8];
        file.read(&mut bytes, Self::AT)?;
        Ok(Self(std::array::from_fn(|at| word(&bytes, at * 8))))
    }

    fn lines(&self) -> impl Iterator<Item = usize> {
        (0..SHARED).filter(|line| {
            let of_gpus = self.0.iter().skip(line / 64).step_by(SHARED_WORDS);
            of_gpus.fold(0, |any, word| any | word) >> (line % 64) & 1 == 1
        })
    }
}

fn sweep_alone(file: SlotsAccess<'_>) -> io::Result<()> {
    let live = Live::read(file)?;
    let mut gone = [0; SHARED_WORDS];
    for line in live.lines() {
        if !keep(file, line)? {
            gone[line / 64] |= 1 << (line % 64);
        }
    }
    if gone == [0; SHARED_WORDS] {
        return Ok(());
    }
    let left = |at: usize| live.0[at] & !gone[at % SHARED_WORDS];
    let bytes: Vec<u8> = (0..live.0.len())
        .flat_map(|at| left(at).to_ne_bytes())
        .collect();
    file.write(&bytes, Live::AT)?;
    (0..SHARED)
        .filter(|line| gone[line / 64] >> (line % 64) & 1 == 1)
        .try_for_each(|line| empty(file, line))
}

fn empty(file: SlotsAccess<'_>, at: usize) -> io::Result<()> {
    let offset = line_at(at) + offset_of!(SharedLine, used);
    let mut used = [0; 8];
    file.read(&mut used, offset)?;
    let empty = Word(u64::from_ne_bytes(used)).empty();
    file.write(&empty.0.to_ne_bytes(), offset)
}

/// Frees a line without a holder, and decides a line with one. Returns whether it has a holder.
fn keep(file: SlotsAccess<'_>, at: usize) -> io::Result<bool> {
    let line = LineBytes::read(file, at)?;
    let write = |offset: usize, value: u64| file.write(&value.to_ne_bytes(), line_at(at) + offset);
    let used = Word(word(&line.0, offset_of!(SharedLine, used)));
    if line.is_held(file) {
        if used.undecided() > 0 {
            write(offset_of!(SharedLine, used), used.firm().0)?;
        }
        return Ok(true);
    }
    write(offset_of!(SharedLine, key), 0)?;
    Ok(false)
}

/// A line as it lies in the file.
struct LineBytes([u8; size_of::<SharedLine>()]);

impl LineBytes {
    fn read(file: SlotsAccess<'_>, at: usize) -> io::Result<Self> {
        let mut line = [0; size_of::<SharedLine>()];
        file.read(&mut line, line_at(at))?;
        Ok(Self(line))
    }

    /// Whether it is whole and has a holder.
    fn is_held(&self, file: SlotsAccess<'_>) -> bool {
        let is_there = |slot: usize| {
            let mut bytes = [0; 8];
            let at = offset_of!(SlotsFile, slots) + slot * size_of::<SlotLines>();
            file.read(&mut bytes, at + offset_of!(SlotLines, state))
                .is_ok_and(|()| {
                    let state = state::of(u64::from_ne_bytes(bytes));
                    matches!(state, state::LIVE | state::DEAD)
                })
        };
        let owner = word(&self.0, offset_of!(SharedLine, owner));
        let is_whole = word(&self.0, offset_of!(SharedLine, key)) != 0;
        is_whole && holder(owner, &holders(&self.0), is_there).is_some()
    }
}

pub(crate) fn holders(line: &[u8]) -> [u64; LIVE_WORDS] {
    std::array::from_fn(|index| word(line, offset_of!(SharedLine, holders) + index * 8))
}

pub(crate) fn line_at(at: usize) -> usize {
    offset_of!(SlotsFile, shared) + at * size_of::<SharedLine>()
}
