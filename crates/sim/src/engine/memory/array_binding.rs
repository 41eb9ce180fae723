//! Binding physical memory to deferred and sparse arrays, as `cuMemMapArrayAsync` describes it.
//!
//! What is bound counts as a mapping of its physical memory: it lives as long. Operations take effect at once, in the
//! order of the list; when one of them is refused, those before it stand.

use crate::engine::objects::Objects;
use crate::engine::objects::array::binding::{Resource, Subresource};
use crate::engine::objects::array::layout::UNIT;
use crate::engine::objects::result::Done;
use crate::engine::objects::vmm::Place;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUarrayMapInfo, CUmemHandleType, CUmemOperationType, CUresult};

impl Process {
    /// One operation of `cuMemMapArrayAsync`, on the GPU of the stream.
    pub fn bind(&self, gpu: usize, info: &CUarrayMapInfo) -> Done {
        let device = u32::try_from(self.device(gpu)).map_err(|_| CUresult::INVALID_VALUE)?;
        let unused = info.flags == 0 && info.reserved == [0; 2];
        if !unused || 1u32.checked_shl(device) != Some(info.deviceBitMask) {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut objects = self.objects();
        let resource = Resource::of(info)?;
        if resource.storage(&mut objects)?.1.gpu != gpu {
            return Err(CUresult::INVALID_VALUE);
        }
        let (part, tiles) = resource.tiles(&objects, info)?;
        match info.memOperationType {
            CUmemOperationType::MAP => self.bind_tiles(&mut objects, &resource, info, part, &tiles),
            CUmemOperationType::UNMAP if info.memHandle == 0 => {
                self.unbind_tiles(&mut objects, &resource, part, &tiles)
            }
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    fn bind_tiles(
        &self,
        objects: &mut Objects,
        resource: &Resource,
        info: &CUarrayMapInfo,
        part: Subresource,
        tiles: &[u64],
    ) -> Done {
        let (_, storage) = resource.storage(objects)?;
        let (gpu, size) = (storage.gpu, storage.size);
        let needed = match part {
            Subresource::Whole => size,
            _ => tiles.len() as u64 * UNIT,
        };
        let physical = objects.virtual_memory.physical(info.memHandle)?;
        let end = info.offset.checked_add(needed);
        let fits = end.is_some_and(|end| end <= physical.size) && info.offset.is_multiple_of(UNIT);
        let right = physical.place == Place::Gpu(gpu) && physical.is_tile_pool;
        if info.memHandleType != CUmemHandleType::GENERIC || !fits || !right {
            return Err(CUresult::INVALID_VALUE);
        }
        for tile in tiles {
            self.bind_physical(objects, info.memHandle)?;
            let (_, storage) = resource.storage(objects)?;
            let before = storage.bound.0.insert((part, *tile), info.memHandle);
            if let Some(before) = before {
                self.unbind_physical(objects, before);
            }
        }
        Ok(())
    }

    fn unbind_tiles(
        &self,
        objects: &mut Objects,
        resource: &Resource,
        part: Subresource,
        tiles: &[u64],
    ) -> Done {
        for tile in tiles {
            let (_, storage) = resource.storage(objects)?;
            if let Some(physical) = storage.bound.0.remove(&(part, *tile)) {
                self.unbind_physical(objects, physical);
            }
        }
        Ok(())
    }
}
