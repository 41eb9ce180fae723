//! Allocating and freeing linear memory: device, managed and pinned host allocations, and module variables.

use crate::engine::objects::Objects;
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::{Allocation, AllocationKind, charged};
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};

impl Process {
    /// Allocates in the current context. Nothing changes when it fails.
    pub fn allocate(&self, size: u64, kind: AllocationKind) -> Done<CUdeviceptr> {
        self.check_unsafe()?;
        let mut objects = self.objects();
        let Current { context, gpu } = self.current(&objects)?;
        self.allocate_in(&mut objects, Some(context), gpu, size, kind)
    }

    pub fn allocate_in(
        &self,
        objects: &mut Objects,
        context: Option<Handle<Context>>,
        gpu: usize,
        size: u64,
        kind: AllocationKind,
    ) -> Done<CUdeviceptr> {
        if size == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let charged = match kind {
            AllocationKind::Managed
                if self.machine.config.oversubscribes && size > self.model(gpu).memory_usable() =>
            {
                0
            }
            AllocationKind::Device | AllocationKind::Managed | AllocationKind::Variable => {
                charged(size).ok_or(CUresult::OUT_OF_MEMORY)?
            }
            // An integrated GPU has no other memory than the host's (inferred to be counted as the device's).
            AllocationKind::Host(_) if self.machine.config.integrated => {
                charged(size).ok_or(CUresult::OUT_OF_MEMORY)?
            }
            _ => 0,
        };
        self.allocate_exactly(objects, context, gpu, size, charged, kind)
    }

    /// The same, for bytes of the GPU that are known.
    pub fn allocate_exactly(
        &self,
        objects: &mut Objects,
        context: Option<Handle<Context>>,
        gpu: usize,
        size: u64,
        charged: u64,
        kind: AllocationKind,
    ) -> Done<CUdeviceptr> {
        let group = if kind == AllocationKind::Managed {
            self.take_bytes_in(None, gpu, charged)?
        } else {
            self.take_bytes(gpu, charged)?
        };
        let base = objects
            .memory
            .take_addresses(size)
            .inspect_err(|_| self.return_bytes(gpu, charged, group))?;
        objects.memory.insert(Allocation {
            base,
            size,
            kind,
            gpu,
            context,
            id: self.next_id(),
            charged,
            group,
        });
        if kind == AllocationKind::Managed {
            self.checkpoint_state().add_managed();
            self.change_unlisted(gpu, charged, 0);
        }
        Ok(base)
    }

    /// Frees what begins at `base` if `wanted` agrees to its kind; anything else is an invalid value.
    pub fn free(&self, base: CUdeviceptr, wanted: impl Fn(AllocationKind) -> bool) -> Done {
        let mut objects = self.objects();
        if objects.memory.at(base).is_none() && objects.graphs.memory.holds(base, 1) {
            // A launch that allocates it may be waiting behind a host function.
            let gpu = self.current(&objects)?.gpu;
            drop(objects);
            self.after_host_functions(gpu);
            objects = self.objects();
        }
        let found = objects
            .memory
            .at(base)
            .filter(|allocation| wanted(allocation.kind))
            .ok_or(CUresult::INVALID_VALUE)?;
        self.check_gpu(found.gpu)?;
        if found.kind == AllocationKind::Graph {
            return self.free_graph_allocation(&mut objects, base);
        }
        self.free_allocation(&mut objects, base);
        Ok(())
    }

    fn change_unlisted(&self, gpu: usize, more: u64, less: u64) {
        if self.machine.config.hide_managed_memory {
            let state = self.state().lock();
            state.slots()[self.slot].change_unlisted(gpu, more, less);
        }
    }

    pub fn free_allocation(&self, objects: &mut Objects, base: CUdeviceptr) {
        let Some(allocation) = objects.memory.remove(base) else {
            return;
        };
        if allocation.kind == AllocationKind::Managed {
            self.checkpoint_state().remove_managed();
            self.change_unlisted(allocation.gpu, 0, allocation.charged);
        }
        match allocation.kind {
            AllocationKind::Registered(_) => {}
            AllocationKind::Pooled(pool) => self.give_back_piece(objects, pool, &allocation),
            AllocationKind::Opened | AllocationKind::External | AllocationKind::PoolPointer => {
                self.unmap_piece(objects, base)
            }
            _ => match objects.sharing.exported.remove(&base) {
                // The bytes are the share's.
                Some(key) => return self.end_exported(objects, key, &allocation),
                None => objects.memory.give_addresses(base, allocation.size),
            },
        }
        if allocation.charged > 0 {
            self.return_bytes(allocation.gpu, allocation.charged, allocation.group);
        }
    }

    pub fn free_memory_of(&self, objects: &mut Objects, context: Handle<Context>) {
        // Pooled memory belongs to the device's pool and outlives the context.
        let doomed = |allocation: &Allocation| {
            allocation.context == Some(context)
                && !matches!(
                    allocation.kind,
                    AllocationKind::Pooled(_) | AllocationKind::PoolPointer
                )
        };
        for base in objects.memory.find(doomed) {
            self.free_allocation(objects, base);
        }
    }

    /// Fails unless all of the range is memory that the GPU can reach: one allocation, or mapped virtual memory.
    pub fn check_range(&self, objects: &Objects, start: CUdeviceptr, length: u64) -> Done {
        if length == 0 {
            return Ok(());
        }
        let fits = |base: u64, size: u64| length <= size - (start - base);
        let linear = objects
            .memory
            .containing(start)
            .is_some_and(|allocation| fits(allocation.base, allocation.size));
        if linear || objects.virtual_memory.is_mapped(start, length) {
            Ok(())
        } else {
            Err(CUresult::INVALID_VALUE)
        }
    }
}
