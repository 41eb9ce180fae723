//! Arrays and mipmapped arrays: memory in a layout of the driver's own, reached by copies, textures and surfaces.
//!
//! ```text
//! made ── its own memory, from the beginning
//! deferred, sparse ── none, until cuMemMapArrayAsync binds physical memory
//! level of a mipmapped array, plane of an array ── a view of another array's memory; goes with it
//! ```
//! The bytes lie in rows (see [`layout`]), in addresses of the process that the program never learns. What is bound to
//! an array counts as mapped; its bytes are not those of the array, which has host memory of its own for its contents.

pub mod binding;
pub mod format;
pub mod layout;

use crate::engine::objects::array::binding::Bound;
use crate::engine::objects::array::layout::{Grid, Shape, UNIT};
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::result::Done;
use crate::engine::objects::transfer::{End, Extent, Side};
use divvy_driver::sys::cuda::{
    CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL, CUDA_ARRAY_SPARSE_PROPERTIES,
    CUDA_ARRAY3D_DESCRIPTOR, CUdeviceptr, CUresult,
};

pub struct Arrays {
    pub arrays: Handles<Array>,
    pub mipmaps: Handles<Mipmap>,
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
    pub shape: Shape,
    /// Of each plane, from the beginning of the storage.
    pub grids: Vec<Grid>,
    pub memory: Memory,
    /// Planes that were looked at.
    pub planes: Vec<Option<Handle<Array>>>,
}

/// The memory that an array is in.
pub enum Memory {
    Own(Storage),
    OfLevel(Handle<Mipmap>),
    OfPlane(Handle<Array>),
}

pub struct Mipmap {
    pub described: CUDA_ARRAY3D_DESCRIPTOR,
    pub shape: Shape,
    pub levels: Vec<Vec<Grid>>,
    pub storage: Storage,
    /// Levels that were looked at.
    pub seen: Vec<Option<Handle<Array>>>,
}

/// Memory of an array or of all levels of one.
pub struct Storage {
    pub gpu: usize,
    pub context: Handle<Context>,
    pub base: CUdeviceptr,
    pub size: u64,
    pub bound: Bound,
    /// External memory, mapped at `base`: what has to be freed in the end.
    pub external: Option<CUdeviceptr>,
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
    pub fn remove(&mut self, handle: Handle<Array>) -> Option<Array> {
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

/// If the only level of an array is smaller than a tile, the array is all tail.
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
