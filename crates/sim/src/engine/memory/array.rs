//! Creating and destroying arrays and mipmapped arrays.

use crate::engine::objects::Objects;
use crate::engine::objects::array::binding::Bound;
use crate::engine::objects::array::layout::{self, Grid, Shape};
use crate::engine::objects::array::{Array, Memory, Mipmap, Storage};
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::AllocationKind;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUDA_ARRAY3D_DESCRIPTOR, CUdeviceptr, CUresult};

impl Process {
    fn storage(&self, objects: &mut Objects, size: u64, backed: bool) -> Done<Storage> {
        let Current { context, gpu } = self.current(objects)?;
        let charged = if backed { size } else { 0 };
        let base = self.allocate_exactly(
            objects,
            Some(context),
            gpu,
            size,
            charged,
            AllocationKind::Array,
        )?;
        Ok(Storage {
            gpu,
            context,
            base,
            size,
            bound: Bound::default(),
            external: None,
        })
    }

    pub fn create_array(&self, described: &CUDA_ARRAY3D_DESCRIPTOR) -> Done<Handle<Array>> {
        self.check_unsafe()?;
        let mut objects = self.objects();
        self.current(&objects)?;
        let shape = Shape::of(described, false).ok_or(CUresult::INVALID_VALUE)?;
        let grids = shape.grids(0);
        let storage = self.storage(&mut objects, layout::size(&grids), shape.is_backed())?;
        Ok(objects.arrays.arrays.insert(Array {
            described: *described,
            planes: vec![None; grids.len()],
            shape,
            grids,
            memory: Memory::Own(storage),
        }))
    }

    pub fn create_mipmap(
        &self,
        described: &CUDA_ARRAY3D_DESCRIPTOR,
        levels: u32,
    ) -> Done<Handle<Mipmap>> {
        self.check_unsafe()?;
        let mut objects = self.objects();
        self.current(&objects)?;
        let (shape, levels) = levels_of(described, levels)?;
        let size = size_of_levels(&levels);
        let storage = self.storage(&mut objects, size, shape.is_backed())?;
        Ok(insert_mipmap(
            &mut objects,
            described,
            shape,
            levels,
            storage,
        ))
    }

    /// A mipmapped array in memory that is mapped at `base` and is let go of with it.
    pub fn place_mipmap(
        &self,
        objects: &mut Objects,
        described: &CUDA_ARRAY3D_DESCRIPTOR,
        levels: u32,
        home: Current,
        at: impl FnOnce(&mut Objects, u64) -> Done<CUdeviceptr>,
    ) -> Done<Handle<Mipmap>> {
        self.current(objects)?;
        let Current { context, gpu } = home;
        let (shape, levels) = levels_of(described, levels)?;
        if !shape.is_backed() {
            return Err(CUresult::INVALID_VALUE);
        }
        let size = size_of_levels(&levels);
        let base = at(objects, size)?;
        let storage = Storage {
            gpu,
            context,
            base,
            size,
            bound: Bound::default(),
            external: Some(base),
        };
        Ok(insert_mipmap(objects, described, shape, levels, storage))
    }

    /// Looks at levels and planes cannot be destroyed; they go with what they look at.
    pub fn destroy_array(&self, handle: Handle<Array>) -> Done {
        let mut objects = self.objects();
        match objects.arrays.array(handle)?.memory {
            Memory::Own(_) => self.end_array(&mut objects, handle),
            _ => return Err(CUresult::INVALID_HANDLE),
        }
        Ok(())
    }

    pub fn destroy_mipmap(&self, handle: Handle<Mipmap>) -> Done {
        let mut objects = self.objects();
        objects.arrays.mipmap(handle)?;
        self.end_mipmap(&mut objects, handle);
        Ok(())
    }

    fn end_array(&self, objects: &mut Objects, handle: Handle<Array>) {
        if let Some(array) = objects.arrays.remove(handle)
            && let Memory::Own(storage) = array.memory
        {
            self.end_storage(objects, storage);
        }
    }

    fn end_mipmap(&self, objects: &mut Objects, handle: Handle<Mipmap>) {
        let Some(mipmap) = objects.arrays.mipmaps.remove(handle) else {
            return;
        };
        for level in mipmap.seen.iter().flatten() {
            objects.arrays.remove(*level);
        }
        self.end_storage(objects, mipmap.storage);
    }

    fn end_storage(&self, objects: &mut Objects, storage: Storage) {
        for physical in storage.bound.all() {
            self.unbind_physical(objects, physical);
        }
        self.free_allocation(objects, storage.external.unwrap_or(storage.base));
    }

    pub fn destroy_arrays_of(&self, objects: &mut Objects, context: Handle<Context>) {
        let of_context = |array: &Array| match &array.memory {
            Memory::Own(storage) => storage.context == context,
            _ => false,
        };
        for handle in objects.arrays.arrays.find(of_context) {
            self.end_array(objects, handle);
        }
        let mipmaps = &objects.arrays.mipmaps;
        for handle in mipmaps.find(|mipmap| mipmap.storage.context == context) {
            self.end_mipmap(objects, handle);
        }
    }
}

type Levels = Vec<Vec<Grid>>;

fn levels_of(described: &CUDA_ARRAY3D_DESCRIPTOR, asked: u32) -> Done<(Shape, Levels)> {
    let shape = Shape::of(described, true).ok_or(CUresult::INVALID_VALUE)?;
    let mut levels: Levels = Vec::new();
    for level in 0..shape.levels(asked) {
        let last = levels.last().and_then(|grids| grids.last());
        let offset = last.map_or(0, |grid| grid.offset + grid.layer * grid.layers);
        levels.push(shape.level(level).grids(offset));
    }
    Ok((shape, levels))
}

fn size_of_levels(levels: &Levels) -> u64 {
    levels.last().map_or(0, |grids| layout::size(grids))
}

fn insert_mipmap(
    objects: &mut Objects,
    described: &CUDA_ARRAY3D_DESCRIPTOR,
    shape: Shape,
    levels: Levels,
    storage: Storage,
) -> Handle<Mipmap> {
    objects.arrays.mipmaps.insert(Mipmap {
        described: *described,
        seen: vec![None; levels.len()],
        shape,
        levels,
        storage,
    })
}
