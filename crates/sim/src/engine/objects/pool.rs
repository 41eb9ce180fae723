//! Stream-ordered memory: pools that keep what was freed.
//!
//! A pool takes the GPU's memory in segments of 32 MiB or what is asked for, and hands out pieces. Frees take effect at
//! once, since all work of a process runs in issue order. Whole segments go back at a synchronisation, as far as the
//! pool then holds more than its release threshold, and when the program trims. The segment size is a guess; the rest
//! follows the CUDA programming guide.

pub mod shared;

use crate::engine::machine::group::GroupId;
use crate::engine::mig::partition::MAX_PARTITIONS;
use crate::engine::objects::addresses::Addresses;
use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::memory::{Allocation, SMALL};
use crate::engine::objects::pool::shared::{Imported, Shareable};
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemAllocationType, CUmemPool_attribute, CUresult,
};

/// A fresh pool reports 32 MiB reserved after a small allocation (inferred; docs/hardware.md).
pub const SEGMENT: u64 = 32 << 20;

pub struct Pools {
    pub pools: Handles<Pool>,
    /// Each GPU's default pool, once someone has asked for it, and the one `cuMemAllocAsync` uses.
    pub default: [Option<Handle<Pool>>; MAX_PARTITIONS],
    pub current: [Option<Handle<Pool>>; MAX_PARTITIONS],
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
    pub threshold: u64,
    pub reserved: Level,
    pub used: Level,
    /// Whether each of the three kinds of reuse is wished; kept, without effect.
    reuse: [i32; 3],
    pub segments: Vec<Segment>,
    pub home: PoolKind,
    /// Destroyed by the program, but pieces of it are still in use.
    pub ending: bool,
}

/// What the memory of a pool is.
pub enum PoolKind {
    /// Of this process alone.
    Own,
    /// The same, managed: at home on the GPU that the program names, or with no preference. It counts on the GPU either
    /// way, as all managed memory does here.
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

pub struct Segment {
    pub base: CUdeviceptr,
    pub size: u64,
    pub free: Addresses,
    /// Where it is in the pool's file, if it has one.
    pub place: Option<u64>,
    /// The control group that it is charged to.
    pub group: GroupId,
}

impl Segment {
    fn contains(&self, base: CUdeviceptr) -> bool {
        (self.base..self.base + self.size).contains(&base)
    }
}

/// Bytes of a pool that an allocation of `size` bytes takes.
pub fn piece(size: u64) -> Done<u64> {
    size.checked_next_multiple_of(SMALL)
        .ok_or(CUresult::OUT_OF_MEMORY)
}

impl Pool {
    pub fn new(gpu: usize, max_size: u64, home: PoolKind) -> Pool {
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

    pub fn is_imported(&self) -> bool {
        matches!(self.home, PoolKind::Imported(_))
    }

    /// Where an address of a piece is in the pool's file.
    pub fn place_of(&self, base: CUdeviceptr) -> Option<u64> {
        let mut segments = self.segments.iter();
        let home = segments.find(|segment| segment.contains(base))?;
        Some(home.place? + (base - home.base))
    }

    pub fn take(&mut self, size: u64) -> Option<CUdeviceptr> {
        let base = self
            .segments
            .iter_mut()
            .find_map(|segment| segment.free.take(size, SMALL))?;
        self.used.add(size);
        Some(base)
    }

    /// Destroyed, and nothing of it is in use: only then the driver gives it up (`cuda.h`, `cuMemPoolDestroy`).
    pub fn is_over(&self) -> bool {
        self.ending && self.used.now == 0
    }

    pub fn room(&self, size: u64) -> bool {
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

    pub fn get_mut(&mut self, pool: Handle<Pool>) -> Done<&mut Pool> {
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
    pub fn give_back(&mut self, pool: Handle<Pool>, allocation: &Allocation) {
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
