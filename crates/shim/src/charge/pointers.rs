//! The table of charged allocations by device address, or by handle for memory without an address ([`key`]). It is
//! sharded, so that allocating threads rarely contend.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_ledger::AllocationKind;

use crate::charge::breakdown::Breakdown;
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::pool::Pool;

/// More than the threads that allocate at one time on common machines, so that two seldom wait for one lock.
const SHARDS: usize = 64;

/// The context of what dies with none.
pub const NO_CONTEXT: usize = 0;

/// One charged allocation.
#[derive(Clone)]
pub struct Allocation {
    /// The GPU's place in the slice.
    pub gpu: usize,
    /// The bytes that this process alone was charged for it.
    pub bytes: u64,
    /// The context it was made in (`CUcontext`, or any other number for its GPU's primary one): the memory dies with it.
    pub context: usize,
    /// See [`Pointers::era`].
    pub era: u64,
    pub backing: AllocationBacking,
}

/// The kind of an allocation, with the charges that its end releases beyond [`Allocation::bytes`].
#[derive(Clone)]
pub enum AllocationBacking {
    Linear,
    Managed,
    Array,
    /// The part of a context limit beyond the given default.
    Limit(u64),
    /// Host memory, of so many bytes.
    Pinned(u64),
    /// From a pool, which is charged and not its parts.
    Pooled(Arc<Pool>),
    /// From a pool, and shared with other processes.
    Lent(Arc<Pool>, Arc<MemoryCharge>),
    /// Shared with other processes, or imported.
    Held(Arc<MemoryCharge>),
    /// Opened by a handle of another process's, so often.
    Opened(Arc<MemoryCharge>, u32),
    /// A part of something that is held.
    Part(#[allow(dead_code, reason = "it is held")] Arc<MemoryCharge>),
}

impl AllocationBacking {
    /// As what, and with how many bytes, it is named in the record of a refusal.
    fn named(&self, bytes: u64) -> (AllocationKind, u64) {
        match self {
            AllocationBacking::Linear => (AllocationKind::Linear, bytes),
            AllocationBacking::Managed => (AllocationKind::Managed, bytes),
            AllocationBacking::Array => (AllocationKind::Array, bytes),
            AllocationBacking::Limit(_) => (AllocationKind::Context, bytes),
            AllocationBacking::Pinned(_) => (AllocationKind::Other, bytes),
            AllocationBacking::Held(holding)
            | AllocationBacking::Opened(holding, _)
            | AllocationBacking::Lent(_, holding) => (AllocationKind::Imported, holding.bytes()),
            // Named with the pool, or with what they are a part of.
            AllocationBacking::Pooled(_) | AllocationBacking::Part(_) => (AllocationKind::Other, 0),
        }
    }
}

/// Keys of what has no device address. Neither addresses nor handles, which are the host's addresses, come near 2^56.
pub mod key {
    use divvy_driver::sys::cuda::{
        CUarray, CUexternalMemory, CUlimit, CUmemGenericAllocationHandle, CUmipmappedArray,
    };

    const fn tagged(tag: u64, handle: u64) -> u64 {
        (0x80 + tag) << 56 | handle & ((1 << 56) - 1)
    }

    pub fn array(array: CUarray) -> u64 {
        tagged(0, array as u64)
    }

    pub fn mipmapped_array(array: CUmipmappedArray) -> u64 {
        tagged(1, array as u64)
    }

    pub fn external(memory: CUexternalMemory) -> u64 {
        tagged(2, memory as u64)
    }

    pub fn pinned(address: u64) -> u64 {
        tagged(3, address)
    }

    pub fn multicast(object: CUmemGenericAllocationHandle) -> u64 {
        tagged(4, object)
    }

    pub fn limit(context: usize, limit: CUlimit) -> u64 {
        tagged(16 + u64::from(limit.0 & 15), context as u64)
    }
}

pub struct Pointers {
    shards: [Shard; SHARDS],
    era: AtomicU64,
}

type Map = HashMap<u64, Allocation, BuildHasherDefault<AddressHasher>>;

/// On a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Shard {
    map: Mutex<Map>,
    /// How many allocations the map has. The call that made one has set it before it returns, so a thread that frees
    /// one finds it here. A free of a default pool's memory mostly finds none, and takes no lock.
    len: AtomicUsize,
}

struct Locked<'a> {
    map: MutexGuard<'a, Map>,
    len: &'a AtomicUsize,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.len.store(self.map.len(), Relaxed);
    }
}

impl Pointers {
    pub fn new() -> Self {
        Pointers {
            shards: std::array::from_fn(|_| Shard::default()),
            era: AtomicU64::new(0),
        }
    }

    /// Remembers an allocation. Called after the driver has made it.
    pub fn insert(&self, address: u64, allocation: Allocation) {
        self.shard(address).lock().map.insert(address, allocation);
    }

    /// Remembers an allocation, unless there is one already that `known` is content with. Returns the one that is not needed.
    pub fn insert_unless(
        &self,
        address: u64,
        allocation: Allocation,
        known: impl FnOnce(&mut Allocation) -> bool,
    ) -> Option<Allocation> {
        let mut shard = self.shard(address).lock();
        if shard.map.get_mut(&address).is_some_and(known) {
            return Some(allocation);
        }
        shard.map.insert(address, allocation)
    }

    /// Takes an allocation out, if it is known. Called before the driver frees it: afterwards the address may be another's.
    #[inline(always)]
    pub fn take(&self, address: u64) -> Option<Allocation> {
        let shard = self.shard(address);
        if shard.len.load(Relaxed) == 0 {
            return None;
        }
        shard.take(address)
    }

    /// The record of an allocation.
    pub fn get(&self, address: u64) -> Option<Allocation> {
        self.shard(address).lock().map.get(&address).cloned()
    }

    /// Changes what is known of an allocation; `None` when nothing is.
    pub fn change<T>(&self, address: u64, change: impl FnOnce(&mut Allocation) -> T) -> Option<T> {
        let mut shard = self.shard(address).lock();
        shard.map.get_mut(&address).map(change)
    }

    /// The current era. Contexts end between eras, so that an end takes only what was there when it began.
    pub fn era(&self) -> u64 {
        self.era.load(SeqCst)
    }

    /// Ends the current era and returns it. Called before the driver is asked to end a context.
    pub fn end_era(&self) -> u64 {
        self.era.fetch_add(1, SeqCst)
    }

    /// Takes out all allocations that `dead` names and returns them.
    pub fn take_all(&self, dead: impl Fn(&Allocation) -> bool) -> Vec<Allocation> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            shard.lock().map.retain(|_, allocation| {
                let dies = dead(allocation);
                if dies {
                    taken.push(allocation.clone());
                }
                !dies
            });
        }
        taken
    }

    /// Says which allocations there are on a GPU.
    pub fn add_to_breakdown(&self, gpu: usize, tally: &mut Breakdown) {
        for shard in &self.shards {
            let here = |allocation: &&Allocation| allocation.gpu == gpu;
            for allocation in shard.lock().map.values().filter(here) {
                let (kind, bytes) = allocation.backing.named(allocation.bytes);
                tally.add(kind, bytes);
            }
        }
    }

    fn shard(&self, address: u64) -> &Shard {
        &self.shards[mix(address) as usize % SHARDS]
    }
}

impl Shard {
    /// A panic elsewhere leaves the map whole: it is changed by single calls only.
    fn lock(&self) -> Locked<'_> {
        Locked {
            map: self.map.lock().unwrap_or_else(PoisonError::into_inner),
            len: &self.len,
        }
    }

    /// Out of line: most frees of a pool's memory do without its frame.
    #[inline(never)]
    fn take(&self, address: u64) -> Option<Allocation> {
        self.lock().map.remove(&address)
    }
}

/// Device addresses are multiples of 256 at least; the product's high bits spread them.
fn mix(address: u64) -> u64 {
    (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// A hasher for addresses: keys are not chosen by an adversary, so one multiplication suffices.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_made_while_a_context_ends_is_of_a_later_era() {
        let pointers = Pointers::new();
        let made_before = pointers.era();
        let ended = pointers.end_era();
        assert!(made_before <= ended && ended < pointers.era());
    }
}
