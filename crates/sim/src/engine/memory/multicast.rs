//! Calls on multicast objects: creating them, adding devices, binding and unbinding memory.

use crate::engine::mig::partition::instance_of;
use crate::engine::objects::Objects;
use crate::engine::objects::memory::LARGE;
use crate::engine::objects::multicast::{Bound, MulticastObject};
use crate::engine::objects::result::Done;
use crate::engine::objects::vmm::{PhysicalId, Place};
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};

fn check_multiples(sizes: &[u64]) -> Done {
    let are = sizes.iter().all(|size| size.is_multiple_of(LARGE));
    are.then_some(()).ok_or(CUresult::INVALID_VALUE)
}

/// What is to be bound, and where.
#[derive(Clone, Copy)]
pub struct Binding {
    pub object: PhysicalId,
    pub offset: u64,
    pub memory: PhysicalId,
    pub memory_offset: u64,
    pub size: u64,
}

impl Process {
    /// Hopper's GPUs of one machine are taken to be linked as multicast needs it (inferred); instances of GPUs have no
    /// links (MIG user guide).
    pub fn has_multicast(&self, gpu: usize) -> bool {
        let model = self.model(gpu);
        instance_of(gpu).is_none() && model.compute_capability >= (9, 0) && !model.display
    }

    pub fn create_multicast(&self, gpus: u32, size: u64) -> Done<PhysicalId> {
        if !(0..self.device_count())
            .any(|at| self.gpu(at as i32).is_ok_and(|gpu| self.has_multicast(gpu)))
        {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let team = MulticastObject {
            size: gpus as usize,
            gpus: Vec::new(),
            bound: Vec::new(),
        };
        check_multiples(&[size])?;
        if size == 0 || !(1..=self.device_count()).contains(&team.size) {
            return Err(CUresult::INVALID_VALUE);
        }
        self.create_team(size, team)
    }

    pub fn add_to_multicast(&self, object: PhysicalId, gpu: usize) -> Done {
        if !self.has_multicast(gpu) {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let mut objects = self.objects();
        let team = objects.virtual_memory.team(object)?;
        if team.is_complete() || team.gpus.contains(&gpu) {
            return Err(CUresult::INVALID_VALUE);
        }
        team.gpus.push(gpu);
        Ok(())
    }

    /// Binds physical memory; `gpu` is where it must be, if the caller says.
    pub fn bind_multicast(&self, binding: Binding, gpu: Option<usize>) -> Done {
        let mut objects = self.objects();
        self.bind_held(&mut objects, binding, gpu)
    }

    fn bind_held(&self, objects: &mut Objects, binding: Binding, gpu: Option<usize>) -> Done {
        let Binding {
            object,
            offset,
            memory,
            memory_offset,
            size,
        } = binding;
        check_multiples(&[offset, memory_offset, size])?;
        let within = |offset: u64, most: u64| {
            size > 0 && offset.checked_add(size).is_some_and(|end| end <= most)
        };
        let physical = objects.virtual_memory.known(memory)?;
        let Place::Gpu(at) = physical.place else {
            return Err(CUresult::INVALID_VALUE);
        };
        if !within(memory_offset, physical.size)
            || physical.is_team()
            || gpu.is_some_and(|gpu| gpu != at)
        {
            return Err(CUresult::INVALID_VALUE);
        }
        let room = objects.virtual_memory.known(object)?.size;
        let team = objects.virtual_memory.team(object)?;
        if !team.is_complete() {
            return Err(CUresult::ILLEGAL_STATE);
        }
        let overlaps = |bound: &Bound| {
            bound.gpu == at && bound.offset < offset + size && offset < bound.offset + bound.size
        };
        if !within(offset, room) || !team.gpus.contains(&at) || team.bound.iter().any(overlaps) {
            return Err(CUresult::INVALID_VALUE);
        }
        team.bound.push(Bound {
            gpu: at,
            offset,
            size,
            physical: memory,
        });
        objects.virtual_memory.keep(memory);
        Ok(())
    }

    /// The same for what is mapped at an address.
    pub fn bind_multicast_address(
        &self,
        object: PhysicalId,
        offset: u64,
        address: CUdeviceptr,
        size: u64,
        gpu: Option<usize>,
    ) -> Done {
        let mut objects = self.objects();
        let (start, memory) = objects.virtual_memory.mapped_at(address)?;
        let binding = Binding {
            object,
            offset,
            memory,
            memory_offset: address - start,
            size,
        };
        self.bind_held(&mut objects, binding, gpu)
    }

    pub fn unbind_multicast(&self, object: PhysicalId, gpu: usize, offset: u64, size: u64) -> Done {
        let mut objects = self.objects();
        let team = objects.virtual_memory.team(object)?;
        let is_it =
            |bound: &Bound| bound.gpu == gpu && bound.offset == offset && bound.size == size;
        let at = team.bound.iter().position(is_it);
        let gone = team.bound.remove(at.ok_or(CUresult::INVALID_VALUE)?);
        self.unbind_physical(&mut objects, gone.physical);
        Ok(())
    }
}
