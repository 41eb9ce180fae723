//! The computed size of an array in bytes, for arrays that the driver cannot be asked about.
//!
//! Sizes of elements follow the descriptions of `CUarray_format` in cuda.h. The layout is inferred: rows are multiples of 64 bytes in
//! groups of 8, which are the tiles (GOBs) that Mesa's drivers for the same hardware describe, and an array as a whole is a multiple of
//! 64 KiB.

use std::ffi::c_uint;

use divvy_driver::sys::cuda::{
    CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED, CUarray_format as Format,
};

/// The inferred layout, as described above (docs/hardware.md).
const ROW: u64 = 64;
const ROWS: u64 = 8;
const WHOLE: u64 = 64 << 10;

/// Elements that lie together: `across` x `down` of them in `bytes`.
struct Block {
    across: u64,
    down: u64,
    bytes: u64,
}

/// Bytes of an array with so many mip levels; `None` for more than there can be.
pub fn bytes(of: &CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> Option<u64> {
    let block = block(of.Format, of.NumChannels.into());
    let is_layered = of.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let [width, height, depth] = [of.Width, of.Height, of.Depth].map(|size| size as u64);
    // Behind the last that differs there is nothing to halve.
    let levels = levels.clamp(1, u64::BITS);
    let sizes = (0..levels).map(|level| {
        let half = |size: u64| (size >> level).max(1);
        let depth = if is_layered {
            depth.max(1)
        } else {
            half(depth)
        };
        let row = half(width).div_ceil(block.across);
        let row = row
            .checked_mul(block.bytes)?
            .checked_next_multiple_of(ROW)?;
        let rows = half(height).div_ceil(block.down);
        let rows = if rows == 1 {
            1
        } else {
            rows.checked_next_multiple_of(ROWS)?
        };
        row.checked_mul(rows)?.checked_mul(depth)
    });
    sizes
        .into_iter()
        .try_fold(0u64, |sum, size| sum.checked_add(size?))?
        .checked_next_multiple_of(WHOLE)
}

/// All planes of a format are counted as one with as many bytes. An unknown format is taken for the largest there is.
fn block(format: Format, channels: u64) -> Block {
    let (across, down, bytes) = match format {
        Format::UNSIGNED_INT8 | Format::SIGNED_INT8 => (1, 1, channels),
        Format::UNSIGNED_INT16 | Format::SIGNED_INT16 | Format::HALF => (1, 1, 2 * channels),
        Format::UNSIGNED_INT32 | Format::SIGNED_INT32 | Format::FLOAT => (1, 1, 4 * channels),
        Format::UNORM_INT8X1 | Format::SNORM_INT8X1 => (1, 1, 1),
        Format::UNORM_INT8X2
        | Format::SNORM_INT8X2
        | Format::UNORM_INT16X1
        | Format::SNORM_INT16X1
        // Two planes, or pairs of elements that share their colours.
        | Format::NV12
        | Format::NV16
        | Format::YUY2
        | Format::UINT8_PACKED_422
        | Format::UINT8_SEMIPLANAR_420
        | Format::UINT8_SEMIPLANAR_422
        | Format::UINT8_PLANAR_420
        | Format::UINT8_PLANAR_422 => (1, 1, 2),
        Format::YUV444_8bit_SemiPlanar
        | Format::Y444_PLANAR8
        | Format::UINT8_SEMIPLANAR_444
        | Format::UINT8_PLANAR_444 => (1, 1, 3),
        Format::UNORM_INT8X4
        | Format::SNORM_INT8X4
        | Format::UNORM_INT16X2
        | Format::SNORM_INT16X2
        | Format::UNORM_INT_101010_2
        | Format::AYUV
        | Format::Y410
        | Format::UINT8_PACKED_444
        | Format::P010
        | Format::P016
        | Format::P210
        | Format::P216
        | Format::Y210
        | Format::Y216
        | Format::UINT16_SEMIPLANAR_420
        | Format::UINT16_SEMIPLANAR_422
        | Format::UINT16_PLANAR_420
        | Format::UINT16_PLANAR_422 => (1, 1, 4),
        Format::YUV444_16bit_SemiPlanar
        | Format::Y444_PLANAR10
        | Format::UINT16_SEMIPLANAR_444
        | Format::UINT16_PLANAR_444 => (1, 1, 6),
        Format::UNORM_INT16X4 | Format::SNORM_INT16X4 | Format::Y416 => (1, 1, 8),
        Format::BC1_UNORM | Format::BC1_UNORM_SRGB | Format::BC4_UNORM | Format::BC4_SNORM => {
            (4, 4, 8)
        }
        Format::BC2_UNORM
        | Format::BC2_UNORM_SRGB
        | Format::BC3_UNORM
        | Format::BC3_UNORM_SRGB
        | Format::BC5_UNORM
        | Format::BC5_SNORM
        | Format::BC6H_UF16
        | Format::BC6H_SF16
        | Format::BC7_UNORM
        | Format::BC7_UNORM_SRGB => (4, 4, 16),
        _ => (1, 1, 16),
    };
    Block {
        across,
        down,
        bytes: bytes.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(
        extent: [usize; 3],
        format: Format,
        channels: u32,
        flags: u32,
    ) -> CUDA_ARRAY3D_DESCRIPTOR {
        let [width, height, depth] = extent;
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: format,
            NumChannels: channels,
            Flags: flags,
        }
    }

    #[test]
    fn elements_are_counted_in_bytes_and_missing_dimensions_as_one() {
        let floats = |extent| bytes(&of(extent, Format::FLOAT, 1, 0), 1);
        assert_eq!(floats([1 << 20, 0, 0]), Some(4 * MIB));
        assert_eq!(floats([1024, 1024, 0]), Some(4 * MIB));
        assert_eq!(floats([256, 256, 64]), Some(16 * MIB));
        assert_eq!(floats([1, 0, 0]), Some(WHOLE));
        let wide = of([1024, 1024, 0], Format::HALF, 4, 0);
        assert_eq!(bytes(&wide, 1), Some(8 * MIB));
    }

    #[test]
    fn blocks_and_planes_take_what_their_formats_say() {
        let flat = |format| bytes(&of([4096, 4096, 0], format, 4, 0), 1);
        assert_eq!(flat(Format::BC1_UNORM), Some(8 * MIB));
        assert_eq!(flat(Format::BC7_UNORM), Some(16 * MIB));
        assert!(flat(Format::NV12) >= Some(24 * MIB), "one and a half bytes");
        assert_eq!(flat(Format(0x7f)), Some(256 * MIB), "never too little");
    }

    #[test]
    fn levels_and_layers_add_up() {
        let flat = of([1024, 1024, 0], Format::FLOAT, 1, 0);
        let levels = bytes(&flat, 11);
        assert!(levels > Some(4 * MIB * 5 / 4) && levels < Some(4 * MIB * 3 / 2));
        assert_eq!(bytes(&flat, 0), bytes(&flat, 1));
        let layers = of([1024, 1024, 6], Format::FLOAT, 1, CUDA_ARRAY3D_LAYERED);
        assert_eq!(bytes(&layers, 1), Some(24 * MIB));
        let layered = bytes(&layers, 2);
        assert_eq!(layered, Some(30 * MIB), "layers do not get fewer");
    }

    #[test]
    fn nothing_overflows() {
        let most = usize::MAX;
        for extent in [
            [most, 0, 0],
            [most, most, 0],
            [most, most, most],
            [1, most, 2],
        ] {
            for levels in [0, 1, u32::MAX] {
                assert_eq!(bytes(&of(extent, Format::FLOAT, 4, 0), levels), None);
            }
        }
    }
}
