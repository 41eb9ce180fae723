//! What this process was charged for, by device address. Sharded, so that threads that allocate rarely meet.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_ledger::Kind;

use crate::charge::pool::Pool;
use crate::charge::tally::Tally;

const SHARDS: usize = 64;

/// One charged allocation.
#[derive(Clone)]
pub struct Allocation {
    /// The GPU's place in the slice.
    pub gpu: usize,
    /// What the account was charged, in bytes.
    pub bytes: u64,
    /// The context it was made in (`CUcontext`): the memory dies with it.
    pub context: usize,
    /// See [`Pointers::era`].
    pub era: u64,
    /// Whether it is managed memory.
    pub managed: bool,
    /// The pool it came from; then `bytes` is 0, for the pool is charged and not its parts.
    pub pool: Option<Arc<Pool>>,
}

pub struct Pointers {
    shards: [Shard; SHARDS],
    era: AtomicU64,
}

type Map = HashMap<u64, Allocation, BuildHasherDefault<AddressHasher>>;

/// On a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Shard(Mutex<Map>);

impl Pointers {
    pub fn new() -> Self {
        Pointers {
            shards: std::array::from_fn(|_| Shard::default()),
            era: AtomicU64::new(0),
        }
    }

    /// Remembers an allocation. Called after the driver has made it.
    pub fn insert(&self, address: u64, allocation: Allocation) {
        self.shard(address).insert(address, allocation);
    }

    /// Takes an allocation out, if it is known. Called before the driver frees it: afterwards the address may be another's.
    pub fn take(&self, address: u64) -> Option<Allocation> {
        self.shard(address).remove(&address)
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
            lock(shard).retain(|_, allocation| {
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
    pub fn tell(&self, gpu: usize, tally: &mut Tally) {
        for shard in &self.shards {
            let here = |allocation: &&Allocation| allocation.gpu == gpu;
            for allocation in lock(shard).values().filter(here) {
                let kind = if allocation.managed {
                    Kind::Managed
                } else {
                    Kind::Linear
                };
                tally.add(kind, allocation.bytes);
            }
        }
    }

    fn shard(&self, address: u64) -> MutexGuard<'_, Map> {
        lock(&self.shards[mix(address) as usize % SHARDS])
    }
}

/// A panic elsewhere leaves the map whole: it is changed by single calls only.
fn lock(shard: &Shard) -> MutexGuard<'_, Map> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Device addresses are multiples of 256 at least; the product's high bits spread them.
fn mix(address: u64) -> u64 {
    (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// For keys that are addresses: no key is chosen by an adversary who gains by collisions, so one multiplication does.
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
