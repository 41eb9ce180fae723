//! Allocating from memory pools: growing, trimming and destroying them.

use crate::engine::machine::group::GroupId;
use crate::engine::objects::Objects;
use crate::engine::objects::addresses::Addresses;
use crate::engine::objects::context::Current;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::{Allocation, AllocationKind, LARGE};
use crate::engine::objects::pool::{Pool, PoolKind, SEGMENT, Segment, piece};
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};

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
            group: GroupId::NONE,
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
        let is_managed = matches!(pool.home, PoolKind::Managed { .. });
        let take = |size| match is_managed {
            true => self.take_bytes_in(None, gpu, size),
            false => self.take_bytes(gpu, size),
        };
        let (size, group) = sizes
            .into_iter()
            .find_map(|size| Some((size, take(size).ok()?)))
            .ok_or(CUresult::OUT_OF_MEMORY)?;
        let base = objects
            .memory
            .take_addresses(size)
            .inspect_err(|_| self.return_bytes(gpu, size, group))?;
        let pool = objects.pools.get_mut(handle)?;
        let place = match &mut pool.home {
            PoolKind::Shareable(home) => match home.place(base, size) {
                Ok(place) => Some(place),
                Err(error) => {
                    objects.memory.give_addresses(base, size);
                    self.return_bytes(gpu, size, group);
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
            group,
        });
        pool.reserved.add(size);
        if is_managed {
            self.checkpoint_state().add_managed();
        }
        self.account_for_pool(pool, size, 0, group);
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
                given.push((segment.base, segment.size, segment.place, segment.group));
            }
            !goes
        });
        for (base, size, place, group) in given {
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
            self.account_for_pool(pool, 0, size, group);
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
        if pool.is_over() {
            self.trim_pool(&mut objects, handle, 0)
        } else {
            Ok(())
        }
    }
}
