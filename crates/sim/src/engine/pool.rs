//! Stream-ordered memory: pools that keep what was freed.
//!
//! A pool takes the GPU's memory in segments of 32 MiB or what is asked for, and hands out pieces. Frees take effect at once, since all work of a
//! process runs in issue order. Whole segments go back at a synchronisation, as far as the pool then holds more than its release threshold, and when
//! the program trims. The segment size is a guess; the rest follows the CUDA programming guide.

mod shared;

use self::shared::{Imported, Shareable};
use super::addresses::Addresses;
use super::context::Current;
use super::handles::{Handle, Handles};
use super::memory::{Allocation, AllocationKind, LARGE, SMALL};
use super::process::{Done, Objects, Process};
use super::seat::MAX_PARTITIONS;
use divvy_driver::sys::cuda::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemAllocationType, CUmemPool_attribute, CUresult,
};

const SEGMENT: u64 = 32 << 20;

pub struct Pools {
    pools: Handles<Pool>,
    /// Each GPU's default pool, once someone has asked for it, and the one `cuMemAllocAsync` uses.
    default: [Option<Handle<Pool>>; MAX_PARTITIONS],
    current: [Option<Handle<Pool>>; MAX_PARTITIONS],
}

impl Default for Pools {
    fn default() -> Self {
        Pools {
            pools: Handles::new(0x57),
            default: [None; MAX_PARTITIONS],
            current: [None; MAX_PARTITIONS],
        }
    }
}

pub struct Pool {
    pub gpu: usize,
    /// 0 is no limit.
    max_size: u64,
    threshold: u64,
    reserved: Level,
    used: Level,
    /// Whether each of the three kinds of reuse is wished; kept, without effect.
    reuse: [i32; 3],
    segments: Vec<Segment>,
    home: PoolKind,
    /// Destroyed by the program, but pieces of it are still in use.
    ending: bool,
}

/// What the memory of a pool is.
enum PoolKind {
    /// Of this process alone.
    Own,
    /// The same, managed: at home on the GPU that the program names, or with no preference. It counts on the GPU either way, as all managed
    /// memory does here.
    Managed {
        located: bool,
    },
    Shareable(Shareable),
    /// Another process's.
    Imported(Imported),
}

/// A figure and the highest it has been.
#[derive(Default)]
pub struct Level {
    pub now: u64,
    pub high: u64,
}

impl Level {
    pub fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }
}

struct Segment {
    base: CUdeviceptr,
    size: u64,
    free: Addresses,
    /// Where it is in the pool's file, if it has one.
    place: Option<u64>,
}

impl Segment {
    fn contains(&self, base: CUdeviceptr) -> bool {
        (self.base..self.base + self.size).contains(&base)
    }
}

/// Bytes of a pool that an allocation of `size` bytes takes.
fn piece(size: u64) -> Done<u64> {
    size.checked_next_multiple_of(SMALL)
        .ok_or(CUresult::OUT_OF_MEMORY)
}

impl Pool {
    fn new(gpu: usize, max_size: u64, home: PoolKind) -> Pool {
        let (reserved, used) = (Level::default(), Level::default());
        Pool {
            gpu,
            max_size,
            threshold: 0,
            reserved,
            used,
            reuse: [1; 3],
            segments: Vec::new(),
            home,
            ending: false,
        }
    }

    /// How it can be sent to other processes.
    pub fn handle_types(&self) -> CUmemAllocationHandleType {
        match self.home {
            PoolKind::Own | PoolKind::Managed { .. } => CUmemAllocationHandleType::NONE,
            _ => CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
        }
    }

    pub fn allocation_type(&self) -> CUmemAllocationType {
        match self.home {
            PoolKind::Managed { .. } => CUmemAllocationType::MANAGED,
            _ => CUmemAllocationType::PINNED,
        }
    }

    /// Where its memory is to be; `None` for a managed pool without a preference.
    pub fn location(&self) -> Option<usize> {
        (!matches!(self.home, PoolKind::Managed { located: false })).then_some(self.gpu)
    }

    fn is_imported(&self) -> bool {
        matches!(self.home, PoolKind::Imported(_))
    }

    /// Where an address of a piece is in the pool's file.
    fn place_of(&self, base: CUdeviceptr) -> Option<u64> {
        let mut segments = self.segments.iter();
        let home = segments.find(|segment| segment.contains(base))?;
        Some(home.place? + (base - home.base))
    }

    fn take(&mut self, size: u64) -> Option<CUdeviceptr> {
        let base = self
            .segments
            .iter_mut()
            .find_map(|segment| segment.free.take(size, SMALL))?;
        self.used.add(size);
        Some(base)
    }

    /// Destroyed, and nothing of it is in use: only then the driver gives it up (`cuda.h`, `cuMemPoolDestroy`).
    fn is_over(&self) -> bool {
        self.ending && self.used.now == 0
    }

    fn room(&self, size: u64) -> bool {
        self.max_size == 0 || self.reserved.now.saturating_add(size) <= self.max_size
    }
}

impl Pools {
    pub fn get(&self, pool: Handle<Pool>) -> Done<&Pool> {
        self.pools
            .get(pool)
            .filter(|pool| !pool.ending)
            .ok_or(CUresult::INVALID_VALUE)
    }

    fn get_mut(&mut self, pool: Handle<Pool>) -> Done<&mut Pool> {
        self.pools
            .get_mut(pool)
            .filter(|pool| !pool.ending)
            .ok_or(CUresult::INVALID_VALUE)
    }

    pub fn create(&mut self, gpu: usize, max_size: u64, shareable: bool) -> Done<Handle<Pool>> {
        let home = if shareable {
            PoolKind::Shareable(Shareable::new()?)
        } else {
            PoolKind::Own
        };
        Ok(self.pools.insert(Pool::new(gpu, max_size, home)))
    }

    pub fn create_managed(&mut self, gpu: usize, located: bool) -> Handle<Pool> {
        self.pools
            .insert(Pool::new(gpu, 0, PoolKind::Managed { located }))
    }

    pub fn default_of(&mut self, gpu: usize) -> Handle<Pool> {
        match self.default[gpu] {
            Some(pool) => pool,
            None => {
                let pool = self.pools.insert(Pool::new(gpu, 0, PoolKind::Own));
                self.default[gpu] = Some(pool);
                pool
            }
        }
    }

    pub fn current_of(&mut self, gpu: usize) -> Handle<Pool> {
        self.current[gpu].unwrap_or_else(|| self.default_of(gpu))
    }

    pub fn set_current(&mut self, gpu: usize, pool: Handle<Pool>) -> Done {
        let found = self.get(pool)?;
        if found.gpu != gpu || found.is_imported() {
            return Err(CUresult::INVALID_VALUE);
        }
        self.current[gpu] = Some(pool);
        Ok(())
    }

    /// Takes back a piece; its segment stays with the pool.
    fn give_back(&mut self, pool: Handle<Pool>, allocation: &Allocation) {
        let Some(pool) = self.pools.get_mut(pool) else {
            return;
        };
        let size = piece(allocation.size).expect("it was taken with this size");
        let home = pool
            .segments
            .iter_mut()
            .find(|segment| segment.contains(allocation.base));
        if let Some(segment) = home {
            segment.free.give(allocation.base, size);
            pool.used.now -= size;
        }
    }

    pub fn attribute(&self, pool: Handle<Pool>, attribute: CUmemPool_attribute) -> Done<u64> {
        let pool = self.get(pool)?;
        Ok(match attribute {
            CUmemPool_attribute::RELEASE_THRESHOLD => pool.threshold,
            CUmemPool_attribute::RESERVED_MEM_CURRENT => pool.reserved.now,
            CUmemPool_attribute::RESERVED_MEM_HIGH => pool.reserved.high,
            CUmemPool_attribute::USED_MEM_CURRENT => pool.used.now,
            CUmemPool_attribute::USED_MEM_HIGH => pool.used.high,
            CUmemPool_attribute(which @ 1..=3) => pool.reuse[which as usize - 1] as u64,
            _ => return Err(CUresult::INVALID_VALUE),
        })
    }

    pub fn set_attribute(
        &mut self,
        pool: Handle<Pool>,
        attribute: CUmemPool_attribute,
        value: u64,
    ) -> Done {
        let pool = self.get_mut(pool)?;
        match (attribute, value) {
            (CUmemPool_attribute::RELEASE_THRESHOLD, _) => pool.threshold = value,
            (CUmemPool_attribute::RESERVED_MEM_HIGH, 0) => pool.reserved.high = pool.reserved.now,
            (CUmemPool_attribute::USED_MEM_HIGH, 0) => pool.used.high = pool.used.now,
            (CUmemPool_attribute(which @ 1..=3), _) => {
                pool.reuse[which as usize - 1] = value as i32
            }
            _ => return Err(CUresult::INVALID_VALUE),
        }
        Ok(())
    }
}

impl Process {
    /// Allocates from a pool, or from the one that is current on the stream's GPU (`cuda.h`, `cuMemAllocAsync`).
    pub fn allocate_pooled(
        &self,
        stream: Current,
        size: u64,
        pool: Option<Handle<Pool>>,
    ) -> Done<CUdeviceptr> {
        let mut objects = self.objects();
        let Current { context, .. } = self.current(&objects)?;
        if size == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let pool = pool.unwrap_or_else(|| objects.pools.current_of(stream.gpu));
        let found = objects.pools.get(pool)?;
        let gpu = found.gpu;
        if found.is_imported() {
            return Err(CUresult::INVALID_VALUE);
        }
        let piece = piece(size)?;
        let base = match objects.pools.get_mut(pool)?.take(piece) {
            Some(base) => base,
            None => {
                self.grow(&mut objects, pool, piece)?;
                objects
                    .pools
                    .get_mut(pool)?
                    .take(piece)
                    .ok_or(CUresult::OUT_OF_MEMORY)?
            }
        };
        let id = self.next_id();
        objects.memory.insert(Allocation {
            base,
            size,
            kind: AllocationKind::Pooled(pool),
            gpu,
            context: Some(context),
            id,
            charged: 0,
        });
        Ok(base)
    }

    /// A further segment: of the usual size, or of just what is needed when that does not fit.
    fn grow(&self, objects: &mut Objects, handle: Handle<Pool>, piece: u64) -> Done {
        let pool = objects.pools.get(handle)?;
        let gpu = pool.gpu;
        let sizes = [SEGMENT, LARGE]
            .into_iter()
            .filter_map(|unit| piece.checked_next_multiple_of(unit))
            .filter(|size| pool.room(*size));
        let size = sizes
            .into_iter()
            .find(|size| self.take_bytes(gpu, *size).is_ok())
            .ok_or(CUresult::OUT_OF_MEMORY)?;
        let base = objects
            .memory
            .take_addresses(size)
            .inspect_err(|_| self.return_bytes(gpu, size))?;
        let pool = objects.pools.get_mut(handle)?;
        let place = match &mut pool.home {
            PoolKind::Shareable(home) => match home.place(base, size) {
                Ok(place) => Some(place),
                Err(error) => {
                    objects.memory.give_addresses(base, size);
                    self.return_bytes(gpu, size);
                    return Err(error);
                }
            },
            _ => None,
        };
        pool.segments.push(Segment {
            base,
            size,
            free: Addresses::new(base, size),
            place,
        });
        pool.reserved.add(size);
        if matches!(pool.home, PoolKind::Managed { .. }) {
            self.checkpoint_state().add_managed();
        }
        self.account_for_pool(pool, size, 0);
        Ok(())
    }

    /// Gives whole free segments back until the pool holds no more than `keep` bytes.
    pub fn trim_pool(&self, objects: &mut Objects, handle: Handle<Pool>, keep: u64) -> Done {
        let pool = objects
            .pools
            .pools
            .get_mut(handle)
            .ok_or(CUresult::INVALID_VALUE)?;
        let mut given = Vec::new();
        pool.segments.retain(|segment| {
            let goes =
                segment.free.is_whole(segment.base, segment.size) && pool.reserved.now > keep;
            if goes {
                pool.reserved.now -= segment.size;
                given.push((segment.base, segment.size, segment.place));
            }
            !goes
        });
        for (base, size, place) in given {
            let again = match (&mut pool.home, place) {
                (PoolKind::Shareable(home), Some(place)) => home.leave(base, size, place),
                (PoolKind::Managed { .. }, _) => {
                    self.checkpoint_state().remove_managed();
                    true
                }
                _ => true,
            };
            if again {
                objects.memory.give_addresses(base, size);
            }
            self.account_for_pool(pool, 0, size);
        }
        if pool.ending
            && pool.segments.is_empty()
            && let Some(pool) = objects.pools.pools.remove(handle)
        {
            self.leave_pool(objects, &pool);
        }
        Ok(())
    }

    /// Takes back a piece. A destroyed pool ends with its last one.
    pub fn give_back_piece(&self, objects: &mut Objects, handle: Handle<Pool>, piece: &Allocation) {
        objects.pools.give_back(handle, piece);
        let pool = objects.pools.pools.get(handle);
        if pool.is_some_and(Pool::is_over) {
            // The handle was found alive just above.
            let _ = self.trim_pool(objects, handle, 0);
        }
    }

    /// At a synchronisation: what the pools of this GPU hold beyond their thresholds goes back.
    pub fn trim_pools(&self, gpu: usize) {
        let mut objects = self.objects();
        let fat = objects.pools.pools.find(|pool| {
            pool.gpu == gpu
                && !pool.ending
                && pool.reserved.now > pool.used.now
                && pool.reserved.now > pool.threshold
        });
        for pool in fat {
            let keep = objects.pools.pools.get(pool);
            let keep = keep.map_or(0, |pool| pool.threshold);
            // The handle was found alive above, under the same lock.
            let _ = self.trim_pool(&mut objects, pool, keep);
        }
    }

    /// Ends a pool; memory still in use stays until it is freed. The default pools cannot be destroyed.
    pub fn destroy_pool(&self, handle: Handle<Pool>) -> Done {
        let mut objects = self.objects();
        let pool = objects.pools.get(handle)?;
        let gpu = pool.gpu;
        if objects.pools.default[gpu] == Some(handle) {
            return Err(CUresult::INVALID_VALUE);
        }
        if objects.pools.current[gpu] == Some(handle) {
            objects.pools.current[gpu] = None;
        }
        let pool = objects.pools.get_mut(handle)?;
        pool.ending = true;
        match pool.is_over() {
            true => self.trim_pool(&mut objects, handle, 0),
            false => Ok(()),
        }
    }
}
