//! Array layouts: kinds of arrays, the extents they may have, and the bytes they take.
//!
//! Kinds and extents are cuda.h's (`cuArray3DCreate`), the largest extents those of the CUDA programming guide's table
//! for compute capability 6.0 and later. The layout is inferred: rows are multiples of 64 bytes and, where there is
//! more than one, come in groups of 8, which are the tiles (GOBs) that Mesa's drivers for the same hardware describe;
//! an array as a whole is a multiple of 64 KiB.

use crate::engine::objects::array::format;
use crate::engine::objects::array::format::Plane;
use divvy_driver::sys::cuda::{
    CUDA_ARRAY3D_COLOR_ATTACHMENT, CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DEFERRED_MAPPING,
    CUDA_ARRAY3D_DEPTH_TEXTURE, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SPARSE,
    CUDA_ARRAY3D_SURFACE_LDST, CUDA_ARRAY3D_TEXTURE_GATHER, CUDA_ARRAY3D_VIDEO_ENCODE_DECODE,
};

/// Arrays take multiples of this, and are mapped at multiples of it.
pub const UNIT: u64 = 64 << 10;

/// Bytes of a row in a tile (GOB), as in `divvy_shim`'s `extent.rs` (inferred).
const ROW: u64 = 64;

/// Rows of a tile (inferred).
const ROWS: u64 = 8;

const FLAGS: u32 = CUDA_ARRAY3D_LAYERED
    | CUDA_ARRAY3D_SURFACE_LDST
    | CUDA_ARRAY3D_CUBEMAP
    | CUDA_ARRAY3D_TEXTURE_GATHER
    | CUDA_ARRAY3D_DEPTH_TEXTURE
    | CUDA_ARRAY3D_COLOR_ATTACHMENT
    | CUDA_ARRAY3D_SPARSE
    | CUDA_ARRAY3D_DEFERRED_MAPPING
    | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;

/// Width, height, depth and largest number of layers; 0 is "must be 0".
type Most = (u64, u64, u64);

const LINE: Most = (131_072, 0, 0);

const PLANE: Most = (131_072, 65_536, 0);

const GATHERED: Most = (32_768, 32_768, 0);

const VOLUME: Most = (16_384, 16_384, 16_384);

const LINES: Most = (32_768, 0, 2048);

const PLANES: Most = (32_768, 32_768, 2048);

const CUBE: Most = (32_768, 32_768, 6);

const CUBES: Most = (32_768, 32_768, 2046);

/// With mip levels.
const MIPMAPPED_LINE: Most = (32_768, 0, 0);

const MIPMAPPED_PLANE: Most = (32_768, 32_768, 0);

/// An array or the base level of a mipmapped one, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// As the program gave them: 0 where there is no such dimension.
    pub extent: [u64; 3],
    pub planes: Vec<Plane>,
    pub flags: u32,
}

/// Where the rows of one plane or level are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Bytes from the beginning of the array.
    pub offset: u64,
    /// Bytes of a row that hold elements.
    pub width: u64,
    pub rows: u64,
    pub layers: u64,
    /// Bytes from row to row, and from layer to layer.
    pub pitch: u64,
    pub layer: u64,
}

impl Grid {
    fn end(&self) -> u64 {
        self.offset + self.layer * self.layers
    }
}

impl Shape {
    /// `None` for what is not an array.
    pub fn of(described: &CUDA_ARRAY3D_DESCRIPTOR, mipmapped: bool) -> Option<Shape> {
        let planes = format::planes(described.Format, described.NumChannels)?;
        let extent = [described.Width, described.Height, described.Depth].map(|size| size as u64);
        let shape = Shape {
            extent,
            planes,
            flags: described.Flags,
        };
        (shape.flags & !FLAGS == 0 && shape.fits(shape.most(mipmapped)?)).then_some(shape)
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    pub fn is_layered(&self) -> bool {
        self.has(CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)
    }

    pub fn is_deferred(&self) -> bool {
        self.has(CUDA_ARRAY3D_DEFERRED_MAPPING)
    }

    pub fn is_sparse(&self) -> bool {
        self.has(CUDA_ARRAY3D_SPARSE)
    }

    /// Whether it has memory of its own from the beginning.
    pub fn is_backed(&self) -> bool {
        !self.is_deferred() && !self.is_sparse()
    }

    /// The largest extents of its kind; `None` when the flags contradict the extents.
    fn most(&self, mipmapped: bool) -> Option<Most> {
        let [width, height, depth] = self.extent;
        let (layered, cube) = (
            self.has(CUDA_ARRAY3D_LAYERED),
            self.has(CUDA_ARRAY3D_CUBEMAP),
        );
        let gathered = self.has(CUDA_ARRAY3D_TEXTURE_GATHER);
        let most = match (layered, cube, height, depth) {
            (false, true, ..) if width == height && depth == 6 => CUBE,
            (true, true, ..) if width == height && depth > 0 && depth.is_multiple_of(6) => CUBES,
            (_, true, ..) => return None,
            (true, false, _, 0) => return None,
            (true, false, 0, _) => LINES,
            (true, false, ..) => PLANES,
            (false, false, 0, 0) if mipmapped => MIPMAPPED_LINE,
            (false, false, 0, 0) => LINE,
            (false, false, _, 0) if gathered => GATHERED,
            (false, false, _, 0) if mipmapped => MIPMAPPED_PLANE,
            (false, false, _, 0) => PLANE,
            (false, false, 0, _) => return None,
            (false, false, ..) => VOLUME,
        };
        // Gathering, sparse memory and several planes are for flat arrays, sparse memory for volumes too.
        let flat = height > 0 && (depth == 0 || layered && !cube);
        let wants_flat = gathered && depth > 0 || self.planes.len() > 1 && !flat;
        let sparse = self.is_sparse() && !(flat || height > 0 && depth > 0 && !cube);
        let contradicts = wants_flat || sparse || gathered && height == 0;
        (!contradicts).then_some(most)
    }

    fn fits(&self, most: Most) -> bool {
        let within = |size: u64, most: u64| {
            if most == 0 {
                size == 0
            } else {
                (1..=most).contains(&size)
            }
        };
        let [width, height, depth] = self.extent;
        let divides = |plane: &Plane| width >= plane.across || plane.across == 4;
        within(width, most.0)
            && within(height, most.1)
            && within(depth, most.2)
            && self.planes.iter().all(divides)
    }

    /// How many mip levels there are when so many are asked for.
    pub fn levels(&self, asked: u32) -> u32 {
        let [width, height, depth] = self.extent;
        let longest = width
            .max(height)
            .max(if self.is_layered() { 0 } else { depth });
        asked.clamp(1, longest.max(1).ilog2() + 1)
    }

    /// The extent of a mip level, 0 where there is no such dimension. Layers do not get fewer.
    pub fn level(&self, level: u32) -> Shape {
        let half = |size: u64| if size == 0 { 0 } else { (size >> level).max(1) };
        let [width, height, depth] = self.extent;
        let depth = if self.is_layered() {
            depth
        } else {
            half(depth)
        };
        Shape {
            extent: [half(width), half(height), depth],
            ..self.clone()
        }
    }

    /// The grids of its planes, from `offset` on.
    pub fn grids(&self, mut offset: u64) -> Vec<Grid> {
        let grid = |plane: &Plane| {
            let [width, height, depth] = self.extent;
            let row = width.div_ceil(plane.across) * plane.bytes;
            let rows = height.div_ceil(plane.down).max(1);
            let pitch = row.next_multiple_of(ROW);
            let padded = if rows == 1 {
                1
            } else {
                rows.next_multiple_of(ROWS)
            };
            let grid = Grid {
                offset,
                width: row,
                rows,
                layers: depth.max(1),
                pitch,
                layer: pitch * padded,
            };
            offset = grid.end();
            grid
        };
        self.planes.iter().map(grid).collect()
    }

    /// The shape of one plane, looked at as an array of its own.
    pub fn plane(&self, index: usize) -> Option<Shape> {
        let plane = *self.planes.get(index)?;
        let [width, height, depth] = self.extent;
        Some(Shape {
            extent: [
                width.div_ceil(plane.across),
                height.div_ceil(plane.down),
                depth,
            ],
            planes: vec![Plane {
                across: 1,
                down: 1,
                ..plane
            }],
            flags: self.flags,
        })
    }
}

/// Bytes that grids take together.
pub fn size(grids: &[Grid]) -> u64 {
    let end = grids.iter().map(Grid::end).max().unwrap_or(0);
    end.next_multiple_of(UNIT)
}

/// Width, height and depth of a tile of 64 KiB in elements: those of Vulkan's standard sparse image blocks (inferred to
/// be CUDA's).
pub fn tile(shape: &Shape) -> [u64; 3] {
    let plane = shape.planes[0];
    let volume = shape.extent[2] > 0 && !shape.is_layered();
    let [width, height, depth] = match (volume, plane.bytes) {
        (false, 1) => [256, 256, 1],
        (false, 2) => [256, 128, 1],
        (false, 4) => [128, 128, 1],
        (false, 8) => [128, 64, 1],
        (false, _) => [64, 64, 1],
        (true, 1) => [64, 32, 32],
        (true, 2) => [32, 32, 32],
        (true, 4) => [32, 32, 16],
        (true, 8) => [32, 16, 16],
        (true, _) => [16, 16, 16],
    };
    [width * plane.across, height * plane.down, depth]
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_driver::sys::cuda::CUarray_format as Format;

    fn described(extent: [usize; 3], format: Format, channels: u32, flags: u32) -> Option<Shape> {
        let [width, height, depth] = extent;
        let described = CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: format,
            NumChannels: channels,
            Flags: flags,
        };
        Shape::of(&described, false)
    }

    fn floats(extent: [usize; 3], flags: u32) -> Option<Shape> {
        described(extent, Format::FLOAT, 1, flags)
    }

    fn bytes(shape: Option<Shape>) -> u64 {
        size(&shape.expect("an array").grids(0))
    }

    #[test]
    fn an_array_takes_its_rows_padded_and_rounded_as_a_whole() {
        assert_eq!(bytes(floats([1, 0, 0], 0)), UNIT, "never less than a unit");
        assert_eq!(bytes(floats([16384, 0, 0], 0)), UNIT);
        assert_eq!(bytes(floats([16385, 0, 0], 0)), 2 * UNIT);
        assert_eq!(bytes(floats([1024, 1024, 0], 0)), 4 << 20);
        let odd = floats([17, 9, 0], 0).expect("an array").grids(0)[0];
        assert_eq!((odd.width, odd.pitch, odd.layer), (68, 128, 128 * 16));
        assert_eq!(bytes(floats([256, 256, 64], 0)), 16 << 20);
        assert_eq!(
            bytes(floats([256, 256, 6], CUDA_ARRAY3D_CUBEMAP)),
            6 * 256 * 1024
        );
    }

    #[test]
    fn planes_and_blocks_take_what_their_formats_say() {
        assert_eq!(
            bytes(described([1920, 1088, 0], Format::NV12, 3, 0)),
            48 * UNIT
        );
        let nv12 = described([1920, 1088, 0], Format::NV12, 3, 0).expect("an array");
        assert_eq!(
            nv12.grids(0)
                .iter()
                .map(|grid| grid.rows)
                .collect::<Vec<_>>(),
            [1088, 544]
        );
        assert_eq!(
            bytes(described([4096, 4096, 0], Format::BC1_UNORM, 4, 0)),
            8 << 20
        );
        assert_eq!(
            bytes(described([4096, 4096, 0], Format::BC7_UNORM, 4, 0)),
            16 << 20
        );
    }

    #[test]
    fn what_is_no_kind_of_array_is_refused() {
        let refused = [
            ([0, 0, 0], 0),
            ([0, 4, 0], 0),
            ([4, 0, 4], 0),
            ([131_073, 0, 0], 0),
            ([usize::MAX, usize::MAX, usize::MAX], 0),
            ([16, 16, 16_385], 0),
            ([16, 16, 0], CUDA_ARRAY3D_LAYERED),
            ([16, 16, 2049], CUDA_ARRAY3D_LAYERED),
            ([16, 16, 5], CUDA_ARRAY3D_CUBEMAP),
            ([16, 8, 6], CUDA_ARRAY3D_CUBEMAP),
            ([16, 16, 13], CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED),
            ([16, 0, 0], CUDA_ARRAY3D_SPARSE),
            ([16, 16, 16], CUDA_ARRAY3D_TEXTURE_GATHER),
            ([16, 16, 0], 0x8000_0000),
        ];
        for (extent, flags) in refused {
            assert_eq!(floats(extent, flags), None, "{extent:?} {flags:#x}");
        }
        assert!(floats([16, 16, 12], CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED).is_some());
        assert!(floats([16, 0, 5], CUDA_ARRAY3D_LAYERED).is_some());
    }

    #[test]
    fn mip_levels_halve_down_to_one_and_layers_stay() {
        let volume = floats([64, 16, 4], 0).expect("an array");
        assert_eq!(
            (volume.levels(0), volume.levels(3), volume.levels(99)),
            (1, 3, 7)
        );
        assert_eq!(volume.level(3).extent, [8, 2, 1]);
        let layers = floats([64, 16, 4], CUDA_ARRAY3D_LAYERED).expect("an array");
        assert_eq!(layers.level(6).extent, [1, 1, 4]);
        assert_eq!(
            floats([64, 0, 0], 0).expect("an array").level(9).extent,
            [1, 0, 0]
        );
    }

    #[test]
    fn a_tile_is_one_unit_of_bytes() {
        for (format, channels) in [
            (Format::UNSIGNED_INT8, 1),
            (Format::HALF, 1),
            (Format::FLOAT, 4),
            (Format::BC1_UNORM, 4),
        ] {
            for extent in [[512, 512, 0], [512, 512, 64]] {
                let shape =
                    described(extent, format, channels, CUDA_ARRAY3D_SPARSE).expect("sparse");
                let [width, height, depth] = tile(&shape);
                let plane = shape.planes[0];
                assert_eq!(
                    width / plane.across * (height / plane.down) * depth * plane.bytes,
                    UNIT
                );
            }
        }
    }
}
