//! Reference-counted charges: bytes that several holders in this process keep charged, such as a handle and its
//! mappings, or an import and its mappings. Bytes that several processes of the slice share end with the last holder of
//! all (`divvy_ledger::Shared`).
//!
//! ```text
//! own, charged to this process ── export ──► a line that the slice counts, of which this process is one holder
//! import: one more holder of such a line, for nothing; where there is none, own bytes, which become one
//! import without a mark: one more holder of every line that it may be, until its size is known
//! ```
//! The ledger knows of one hold a process and line; how many things hold on to it here is counted in [`Shares`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_ledger::{Denied, SharedAllocation};

use crate::account::GpuAccount;

/// Given back when it is dropped.
pub struct MemoryCharge {
    place: GpuAccount,
    origin: Origin,
    has: Mutex<Has>,
    /// Holders of the lines that it may be, while it is not known which it is.
    candidates: Mutex<Vec<Arc<MemoryCharge>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Made,
    /// From another process, which may share it under that key.
    Imported(Option<u64>),
    /// A line that an import without a mark may be.
    Candidate,
}

#[derive(Clone, Copy, Default)]
struct Has {
    /// Charged to this process alone, in bytes.
    own: u64,
    /// Pinned host memory, in bytes.
    pinned: u64,
    /// The line that the slice shares, and its bytes.
    shared: Option<(u64, u64)>,
}

impl Has {
    fn bytes(self) -> u64 {
        self.own + self.shared.map_or(0, |(_, bytes)| bytes)
    }
}

/// The lines that this process holds, by GPU and key.
#[derive(Default)]
pub struct Shares(Mutex<HashMap<(usize, u64), HeldLine>>);

type Held<'a> = MutexGuard<'a, HashMap<(usize, u64), HeldLine>>;

struct HeldLine {
    line: SharedAllocation,
    /// How many things in this process hold it.
    here: u32,
    /// How many of them only may be it.
    candidates: u32,
}

impl HeldLine {
    fn new(line: SharedAllocation) -> Self {
        Self {
            line,
            here: 1,
            candidates: 0,
        }
    }
}

impl Shares {
    fn held(&self) -> Held<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryCharge {
    fn of(place: GpuAccount, origin: Origin, has: Has) -> Self {
        MemoryCharge {
            place,
            origin,
            has: Mutex::new(has),
            candidates: Mutex::default(),
        }
    }

    /// Bytes that this process was charged, and of host memory.
    pub fn new(place: GpuAccount, own: u64, pinned: u64) -> Arc<Self> {
        let has = Has {
            own,
            pinned,
            shared: None,
        };
        Arc::new(Self::of(place, Origin::Made, has))
    }

    /// Of something that has no memory of its own.
    pub fn nothing(place: GpuAccount) -> Arc<Self> {
        Self::new(place, 0, 0)
    }

    /// Memory that is there already, of so many bytes (0: how many is not known yet): for nothing where a process of the
    /// slice shares it under that key, charged otherwise, and then shared under the key.
    ///
    /// # Errors
    /// It is to be charged and does not fit.
    pub fn import(place: GpuAccount, key: Option<u64>, bytes: u64) -> Result<Arc<Self>, Denied> {
        let holding = Self::of(place, Origin::Imported(key), Has::default());
        if !key.is_some_and(|key| holding.join(key, bytes)) {
            holding.grow(bytes)?;
        }
        Ok(Arc::new(holding))
    }

    /// One more holder of the line under that key, if there is one, for an import that may be it.
    pub fn candidate(place: GpuAccount, key: u64) -> Option<Arc<Self>> {
        let holding = Self::of(place, Origin::Candidate, Has::default());
        holding.join(key, 0).then(|| Arc::new(holding))
    }

    /// Whether the slice counts it by now.
    pub fn is_counted(&self) -> bool {
        let has = self.has();
        has.own > 0 || has.shared.is_some()
    }

    pub fn is_imported(&self) -> bool {
        self.origin != Origin::Made
    }

    /// It is of so many bytes at least, as is known now.
    ///
    /// # Errors
    /// They are to be charged and do not fit.
    pub fn grow(&self, bytes: u64) -> Result<(), Denied> {
        let has = *self.has();
        if let Some((key, 0)) = has.shared {
            // The exporter was charged for all of it.
            self.has().shared = Some((key, bytes));
            return Ok(());
        }
        let known = has.bytes();
        let joins = |key| known == 0 && self.join(key, bytes);
        if bytes <= known || self.key_of_origin().is_some_and(joins) {
            return Ok(());
        }
        if !self.adopt(bytes) {
            self.place.reserve(bytes - known)?.commit();
            self.has().own += bytes - known;
        }
        // It counts by itself now.
        drop(std::mem::take(&mut *self.candidates()));
        if let Some(key) = self.key_of_origin() {
            self.share(key);
        }
        Ok(())
    }

    /// It may be any of these, which it keeps counted until its size is known.
    pub fn may_be(&self, candidates: Vec<Arc<Self>>) {
        *self.candidates() = candidates;
    }

    fn candidates(&self) -> MutexGuard<'_, Vec<Arc<Self>>> {
        self.candidates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the line of a candidate of this size that nothing else holds any more, here or in another process.
    fn adopt(&self, bytes: u64) -> bool {
        let GpuAccount { account, slot, gpu } = self.place;
        let candidates = self.candidates();
        let mut held = account.shares.held();
        for key in candidates.iter().filter_map(|candidate| candidate.key()) {
            if let Some(known) = held.get_mut(&(gpu, key))
                && known.here == known.candidates
                && slot.bytes_held_alone(known.line) == Some(bytes)
            {
                known.here += 1;
                self.has().shared = Some((key, bytes));
                return true;
            }
        }
        false
    }

    fn key_of_origin(&self) -> Option<u64> {
        match self.origin {
            Origin::Imported(key) => key,
            Origin::Made | Origin::Candidate => None,
        }
    }

    /// Becomes one more holder of what is shared under that key, if something is.
    fn join(&self, key: u64, bytes: u64) -> bool {
        let GpuAccount { account, slot, gpu } = self.place;
        let mut held = account.shares.held();
        if let Some(known) = held.get_mut(&(gpu, key)) {
            known.here += 1;
        } else if let Some(line) = slot.import(gpu, key) {
            held.insert((gpu, key), HeldLine::new(line));
        } else {
            return false;
        }
        if self.origin == Origin::Candidate
            && let Some(known) = held.get_mut(&(gpu, key))
        {
            known.candidates += 1;
        }
        self.has().shared = Some((key, bytes));
        true
    }

    /// Makes memory of this process importable under that key; importers in the slice are then counted once. If it is
    /// shared under another key, or the key names another allocation, each importer is charged.
    pub fn export(&self, key: u64) {
        let GpuAccount { account, slot, gpu } = self.place;
        let has = *self.has();
        if has.own == 0 || has.shared.is_some() || account.shares.held().contains_key(&(gpu, key)) {
            return;
        }
        // The key belonged to another allocation, which a process still holds.
        if let Some(other) = slot.import(gpu, key) {
            slot.release_shared(other);
            return;
        }
        self.share(key);
    }

    /// Hands the own bytes over to a line of the slice's, if it has one left.
    fn share(&self, key: u64) {
        let GpuAccount { account, slot, gpu } = self.place;
        let mut held = account.shares.held();
        let mut has = self.has();
        let bytes = has.own;
        if bytes == 0 || has.shared.is_some() {
            return;
        }
        if let Some(known) = held.get_mut(&(gpu, key)) {
            // Another thread has imported the same meanwhile.
            known.here += 1;
            slot.release(gpu, bytes);
        } else if let Some(line) = slot.export(gpu, key, bytes) {
            held.insert((gpu, key), HeldLine::new(line));
        } else {
            return;
        }
        has.own = 0;
        has.shared = Some((key, bytes));
    }

    /// Under which key the slice's processes find it.
    pub fn key(&self) -> Option<u64> {
        self.has().shared.map(|(key, _)| key)
    }

    /// The size, regardless of which process is charged.
    pub fn bytes(&self) -> u64 {
        self.has().bytes()
    }

    pub fn place(&self) -> &GpuAccount {
        &self.place
    }

    fn has(&self) -> MutexGuard<'_, Has> {
        self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        let GpuAccount { account, slot, gpu } = self.place;
        let has = *self.has.get_mut().unwrap_or_else(PoisonError::into_inner);
        if has.own > 0 {
            slot.release(gpu, has.own);
        }
        if has.pinned > 0 {
            slot.note_host(gpu, -(has.pinned as i64));
        }
        let Some((key, _)) = has.shared else { return };
        let mut held = account.shares.held();
        let Some(known) = held.get_mut(&(gpu, key)) else {
            return;
        };
        known.here -= 1;
        known.candidates -= u32::from(self.origin == Origin::Candidate);
        if known.here == 0 {
            slot.release_shared(known.line);
            held.remove(&(gpu, key));
        }
    }
}
