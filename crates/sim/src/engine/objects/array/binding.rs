//! Tiles of deferred and sparse arrays: which of them `cuMemMapArrayAsync` names, and the physical memory that is bound
//! to them.

use crate::engine::objects::Objects;
use crate::engine::objects::array::layout::{Shape, UNIT};
use crate::engine::objects::array::{
    Array, Memory, Mipmap, Storage, layout, tail_level, tail_size,
};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{
    CUarrayMapInfo, CUarrayMiptail, CUarraySparseLevel, CUarraySparseSubresourceType,
    CUresourcetype, CUresult,
};
use std::collections::BTreeMap;

/// What a tile is a part of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subresource {
    /// All of a deferred array.
    Whole,
    /// Mip level and layer.
    Level(u32, u32),
    /// Layer.
    Tail(u32),
}

/// Physical memory by part and tile.
#[derive(Default)]
pub struct Bound(pub BTreeMap<(Subresource, u64), u64>);

impl Bound {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Physical memory once for each tile.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.0.values().copied()
    }
}

pub enum Resource {
    Array(Handle<Array>),
    Mipmap(Handle<Mipmap>),
}

impl Resource {
    pub fn of(info: &CUarrayMapInfo) -> Done<Resource> {
        match info.resourceType {
            CUresourcetype::ARRAY => Ok(Resource::Array(Handle::from_value(info.resource.addr()))),
            CUresourcetype::MIPMAPPED_ARRAY => {
                Ok(Resource::Mipmap(Handle::from_value(info.resource.addr())))
            }
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    pub fn storage<'a>(&self, objects: &'a mut Objects) -> Done<(&'a Shape, &'a mut Storage)> {
        match self {
            Resource::Array(handle) => {
                let array = objects.arrays.array_mut(*handle)?;
                match &mut array.memory {
                    Memory::Own(storage) => Ok((&array.shape, storage)),
                    _ => Err(CUresult::INVALID_VALUE),
                }
            }
            Resource::Mipmap(handle) => {
                let mipmap = objects.arrays.mipmaps.get_mut(*handle);
                let mipmap = mipmap.ok_or(CUresult::INVALID_HANDLE)?;
                Ok((&mipmap.shape, &mut mipmap.storage))
            }
        }
    }

    /// Tiles that an operation is about.
    pub fn tiles(&self, objects: &Objects, info: &CUarrayMapInfo) -> Done<(Subresource, Vec<u64>)> {
        let (shape, levels) = match self {
            Resource::Array(handle) => (&objects.arrays.array(*handle)?.shape, 1),
            Resource::Mipmap(handle) => {
                let mipmap = objects.arrays.mipmap(*handle)?;
                (&mipmap.shape, mipmap.levels.len())
            }
        };
        if shape.is_deferred() {
            return Ok((Subresource::Whole, vec![0]));
        }
        if !shape.is_sparse() {
            return Err(CUresult::INVALID_VALUE);
        }
        match info.subresourceType {
            CUarraySparseSubresourceType::SPARSE_LEVEL => tiles_of_level(shape, levels, info),
            CUarraySparseSubresourceType::MIPTAIL => {
                let grids = match self {
                    Resource::Array(handle) => {
                        std::slice::from_ref(&objects.arrays.array(*handle)?.grids)
                    }
                    Resource::Mipmap(handle) => &objects.arrays.mipmap(*handle)?.levels[..],
                };
                let size = tail_size(grids, tail_level(shape, levels));
                tiles_of_tail(shape, size, info)
            }
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

fn sparse_level(info: &CUarrayMapInfo) -> CUarraySparseLevel {
    // SAFETY: the union is as large, and any bits are a value of these integers.
    unsafe {
        (&raw const info.subresource)
            .cast::<CUarraySparseLevel>()
            .read()
    }
}

fn miptail(info: &CUarrayMapInfo) -> CUarrayMiptail {
    // SAFETY: the union is larger and as aligned, and any bits are a value of these integers.
    unsafe {
        (&raw const info.subresource)
            .cast::<CUarrayMiptail>()
            .read()
    }
}

fn layers(shape: &Shape) -> u64 {
    if shape.is_layered() {
        shape.extent[2]
    } else {
        1
    }
}

fn tiles_of_level(
    shape: &Shape,
    levels: usize,
    info: &CUarrayMapInfo,
) -> Done<(Subresource, Vec<u64>)> {
    let region = sparse_level(info);
    let tile = layout::tile(shape);
    let flat = shape.is_layered() || shape.extent[2] == 0;
    let valid = (region.level as usize) < levels
        && region.level < tail_level(shape, levels)
        && u64::from(region.layer) < layers(shape)
        && (!flat || region.offsetZ == 0 && region.extentDepth == 1);
    if !valid {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut extent = shape.level(region.level).extent;
    if flat {
        extent[2] = 1;
    }
    let offsets = [region.offsetX, region.offsetY, region.offsetZ].map(u64::from);
    let sizes = [region.extentWidth, region.extentHeight, region.extentDepth].map(u64::from);
    let mut first = [0; 3];
    let mut last = [0; 3];
    for at in 0..3 {
        let end = offsets[at] + sizes[at];
        // The last tile may hang over the edge.
        let ends_well = end.is_multiple_of(tile[at]) || end == extent[at];
        let fits = end <= extent[at].next_multiple_of(tile[at]) && sizes[at] > 0;
        if !offsets[at].is_multiple_of(tile[at]) || !ends_well || !fits {
            return Err(CUresult::INVALID_VALUE);
        }
        first[at] = offsets[at] / tile[at];
        last[at] = end.div_ceil(tile[at]);
    }
    let counts = [0, 1, 2].map(|at| extent[at].div_ceil(tile[at]));
    let mut tiles = Vec::new();
    for z in first[2]..last[2] {
        for y in first[1]..last[1] {
            tiles.extend((first[0]..last[0]).map(|x| (z * counts[1] + y) * counts[0] + x));
        }
    }
    Ok((Subresource::Level(region.level, region.layer), tiles))
}

fn tiles_of_tail(shape: &Shape, size: u64, info: &CUarrayMapInfo) -> Done<(Subresource, Vec<u64>)> {
    let tail = miptail(info);
    let end = tail.offset.checked_add(tail.size);
    let fits = end.is_some_and(|end| end <= size) && tail.size > 0;
    let aligned = tail.offset.is_multiple_of(UNIT) && tail.size.is_multiple_of(UNIT);
    if !fits || !aligned || u64::from(tail.layer) >= layers(shape) {
        return Err(CUresult::INVALID_VALUE);
    }
    let first = tail.offset / UNIT;
    let tiles = first..first + tail.size / UNIT;
    Ok((Subresource::Tail(tail.layer), tiles.collect()))
}
