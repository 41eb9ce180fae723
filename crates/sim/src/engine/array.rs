//! Arrays and mipmapped arrays: memory in a layout of the driver's own, reached by copies, textures and surfaces.
//!
//! ```text
//! made ── its own memory, from the beginning          deferred, sparse ── none, until cuMemMapArrayAsync binds physical memory
//! level of a mipmapped array, plane of an array ── a look at somebody else's memory; goes with it
//! ```
//! The bytes lie in rows (see [`layout`]), in addresses of the process that the program never learns. What is bound to an array counts as mapped;
//! its bytes are not those of the array, which has host memory of its own for its contents.

mod binding;
mod format;
pub mod layout;

pub use format::plain_bytes;

use self::binding::Bound;
use self::layout::{Grid, Shape, UNIT};
use super::context::{Context, Current};
use super::handles::{Handle, Handles};
use super::memory::AllocationKind;
use super::process::{Done, Objects, Process};
use super::transfer::{End, Extent, Side};
use divvy_driver::sys::cuda::{
    CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL, CUDA_ARRAY_SPARSE_PROPERTIES,
    CUDA_ARRAY3D_DESCRIPTOR, CUdeviceptr, CUresult,
};

pub struct Arrays {
    arrays: Handles<Array>,
    mipmaps: Handles<Mipmap>,
}

impl Default for Arrays {
    fn default() -> Self {
        Arrays {
            arrays: Handles::new(0x76),
            mipmaps: Handles::new(0x77),
        }
    }
}

pub struct Array {
    pub described: CUDA_ARRAY3D_DESCRIPTOR,
    shape: Shape,
    /// Of each plane, from the beginning of the storage.
    grids: Vec<Grid>,
    memory: Memory,
    /// Planes that were looked at.
    planes: Vec<Option<Handle<Array>>>,
}

/// Whose memory an array is in.
enum Memory {
    Own(Storage),
    OfLevel(Handle<Mipmap>),
    OfPlane(Handle<Array>),
}

pub struct Mipmap {
    pub described: CUDA_ARRAY3D_DESCRIPTOR,
    shape: Shape,
    levels: Vec<Vec<Grid>>,
    storage: Storage,
    /// Levels that were looked at.
    seen: Vec<Option<Handle<Array>>>,
}

/// Memory of an array or of all levels of one.
struct Storage {
    gpu: usize,
    context: Handle<Context>,
    base: CUdeviceptr,
    size: u64,
    bound: Bound,
    /// Somebody else's memory, mapped at `base`: what has to be freed in the end.
    external: Option<CUdeviceptr>,
}

/// Size and alignment of an array that is to be mapped, in bytes.
pub struct Requirements {
    pub size: u64,
    pub alignment: u64,
}

impl Arrays {
    pub fn array(&self, handle: Handle<Array>) -> Done<&Array> {
        self.arrays.get(handle).ok_or(CUresult::INVALID_HANDLE)
    }

    fn array_mut(&mut self, handle: Handle<Array>) -> Done<&mut Array> {
        self.arrays.get_mut(handle).ok_or(CUresult::INVALID_HANDLE)
    }

    pub fn mipmap(&self, handle: Handle<Mipmap>) -> Done<&Mipmap> {
        self.mipmaps.get(handle).ok_or(CUresult::INVALID_HANDLE)
    }

    /// The storage an array is in, and the flags it was made with.
    fn storage<'a>(&'a self, array: &'a Array) -> Done<&'a Storage> {
        match &array.memory {
            Memory::Own(storage) => Ok(storage),
            Memory::OfLevel(mipmap) => Ok(&self.mipmap(*mipmap)?.storage),
            Memory::OfPlane(of) => self.storage(self.array(*of)?),
        }
    }

    /// The bytes of an array that a copy reaches: `corner` in bytes, rows and layers.
    pub fn end(&self, handle: Handle<Array>, corner: [usize; 3], extent: Extent) -> Done<End> {
        let array = self.array(handle)?;
        let storage = self.storage(array)?;
        let [grid] = array.grids[..] else {
            // Of several planes each is copied alone.
            return Err(CUresult::INVALID_VALUE);
        };
        if array.shape.is_deferred() && storage.bound.is_empty() {
            return Err(CUresult::INVALID_VALUE);
        }
        let [x, y, z] = corner.map(|at| at as u64);
        let within =
            |at: u64, length: u64, most: u64| at.checked_add(length).is_some_and(|end| end <= most);
        let inside = within(x, extent.width, grid.width)
            && within(y, extent.height, grid.rows)
            && within(z, extent.depth, grid.layers);
        if !inside {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(End {
            side: Side::Device,
            start: storage.base + grid.offset + z * grid.layer + y * grid.pitch + x,
            pitch: grid.pitch,
            layer: grid.layer,
        })
    }

    pub fn requirements(&self, handle: Handle<Array>) -> Done<Requirements> {
        let array = self.array(handle)?;
        match &array.memory {
            Memory::Own(storage) => requirements(&array.shape, storage),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    pub fn mipmap_requirements(&self, handle: Handle<Mipmap>) -> Done<Requirements> {
        let mipmap = self.mipmap(handle)?;
        requirements(&mipmap.shape, &mipmap.storage)
    }

    pub fn sparse_properties(&self, handle: Handle<Array>) -> Done<CUDA_ARRAY_SPARSE_PROPERTIES> {
        let array = self.array(handle)?;
        match &array.memory {
            Memory::Own(_) => sparse_properties(&array.shape, std::slice::from_ref(&array.grids)),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    pub fn sparse_properties_of_levels(
        &self,
        handle: Handle<Mipmap>,
    ) -> Done<CUDA_ARRAY_SPARSE_PROPERTIES> {
        let mipmap = self.mipmap(handle)?;
        sparse_properties(&mipmap.shape, &mipmap.levels)
    }

    /// One plane of an array that has several, as an array.
    pub fn plane(&mut self, handle: Handle<Array>, index: usize) -> Done<Handle<Array>> {
        let array = self.array(handle)?;
        if array.grids.len() < 2 || index >= array.grids.len() {
            return Err(CUresult::INVALID_VALUE);
        }
        if let Some(seen) = array.planes[index] {
            return Ok(seen);
        }
        let shape = array.shape.plane(index).ok_or(CUresult::INVALID_VALUE)?;
        let plane = shape.planes[0];
        let described = CUDA_ARRAY3D_DESCRIPTOR {
            Format: plane.format,
            NumChannels: plane.channels,
            ..described_as(&array.described, &shape)
        };
        let look = Array {
            described,
            shape,
            grids: vec![array.grids[index]],
            memory: Memory::OfPlane(handle),
            planes: vec![None],
        };
        let look = self.arrays.insert(look);
        self.array_mut(handle)?.planes[index] = Some(look);
        Ok(look)
    }

    /// One level of a mipmapped array, as an array.
    pub fn level(&mut self, handle: Handle<Mipmap>, level: u32) -> Done<Handle<Array>> {
        let mipmap = self.mipmap(handle)?;
        let index = level as usize;
        let Some(grids) = mipmap.levels.get(index) else {
            return Err(CUresult::INVALID_VALUE);
        };
        if let Some(seen) = mipmap.seen[index] {
            return Ok(seen);
        }
        let shape = mipmap.shape.level(level);
        let look = Array {
            described: described_as(&mipmap.described, &shape),
            planes: vec![None; grids.len()],
            grids: grids.clone(),
            shape,
            memory: Memory::OfLevel(handle),
        };
        let look = self.arrays.insert(look);
        let mipmap = self.mipmaps.get_mut(handle);
        mipmap.ok_or(CUresult::INVALID_HANDLE)?.seen[index] = Some(look);
        Ok(look)
    }

    /// Removes an array and the looks at its planes.
    fn remove(&mut self, handle: Handle<Array>) -> Option<Array> {
        let array = self.arrays.remove(handle)?;
        for plane in array.planes.iter().flatten() {
            self.arrays.remove(*plane);
        }
        Some(array)
    }
}

/// The description of a part of what `whole` describes.
fn described_as(whole: &CUDA_ARRAY3D_DESCRIPTOR, shape: &Shape) -> CUDA_ARRAY3D_DESCRIPTOR {
    let [width, height, depth] = shape.extent.map(|size| size as usize);
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        ..*whole
    }
}

fn requirements(shape: &Shape, storage: &Storage) -> Done<Requirements> {
    if !shape.is_deferred() {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(Requirements {
        size: storage.size,
        alignment: UNIT,
    })
}

/// The first mip level that is smaller than a tile in some dimension.
fn tail_level(shape: &Shape, levels: usize) -> u32 {
    let tile = layout::tile(shape);
    let is_small = |level: &u32| {
        let extent = shape.level(*level).extent;
        let dimensions = if shape.is_layered() { 2 } else { 3 };
        (0..dimensions).any(|at| extent[at].max(1) < tile[at])
    };
    (0..levels as u32).find(is_small).unwrap_or(levels as u32)
}

/// An array whose only level is smaller than a tile is all tail.
fn sparse_properties(shape: &Shape, levels: &[Vec<Grid>]) -> Done<CUDA_ARRAY_SPARSE_PROPERTIES> {
    if !shape.is_sparse() {
        return Err(CUresult::INVALID_VALUE);
    }
    let first = tail_level(shape, levels.len());
    let tail = tail_size(levels, first);
    let is_single = tail > 0 && !shape.is_layered();
    Ok(CUDA_ARRAY_SPARSE_PROPERTIES {
        tileExtent: layout::tile(shape).map(|size| size as u32),
        miptailFirstLevel: if levels.len() == 1 { 0 } else { first },
        miptailSize: tail,
        flags: if is_single {
            CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL
        } else {
            0
        },
        ..Default::default()
    })
}

/// Bytes of the levels from `first` on, of one layer where there are several.
fn tail_size(levels: &[Vec<Grid>], first: u32) -> u64 {
    let grids = levels.iter().skip(first as usize).flatten();
    let bytes: u64 = grids
        .map(|grid| grid.layer * if grid.layers > 1 { 1 } else { grid.layers })
        .sum();
    bytes.next_multiple_of(UNIT)
}

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
        at: impl FnOnce(&mut Objects, u64) -> Done<CUdeviceptr>,
    ) -> Done<Handle<Mipmap>> {
        let Current { context, gpu } = self.current(objects)?;
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

    pub(super) fn destroy_arrays_of(&self, objects: &mut Objects, context: Handle<Context>) {
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
