//! Array formats: the bytes that an element takes, and the number of planes.
//!
//! Sizes follow the descriptions of `CUarray_format` in cuda.h; the 4:2:0 and 4:2:2 planes are as the formats of those
//! names are known everywhere.

use divvy_driver::sys::cuda::CUarray_format as Format;

/// One plane of an array: it has an element for every `across` × `down` elements of the array, each with a piece of
/// `bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    pub across: u64,
    pub down: u64,
    pub bytes: u64,
    /// What the plane is called when it is looked at alone.
    pub format: Format,
    pub channels: u32,
}

impl Plane {
    const fn new(divisor: (u64, u64), channels: u32, bytes: u64) -> Plane {
        let format = if bytes == 1 {
            Format::UNSIGNED_INT8
        } else {
            Format::UNSIGNED_INT16
        };
        Plane {
            across: divisor.0,
            down: divisor.1,
            bytes: channels as u64 * bytes,
            format,
            channels,
        }
    }
}

const FULL: (u64, u64) = (1, 1);

const HALF_WIDTH: (u64, u64) = (2, 1);

const HALF: (u64, u64) = (2, 2);

/// A plane of luminance, and one of both colours.
const fn semiplanar(colours: (u64, u64), bytes: u64) -> [Plane; 2] {
    [Plane::new(FULL, 1, bytes), Plane::new(colours, 2, bytes)]
}

/// A plane of luminance, and one of each colour.
const fn planar(colours: (u64, u64), bytes: u64) -> [Plane; 3] {
    let colour = Plane::new(colours, 1, bytes);
    [Plane::new(FULL, 1, bytes), colour, colour]
}

/// The planes of an array of this format; `None` for a format or a number of channels that there is not.
pub fn planes(format: Format, channels: u32) -> Option<Vec<Plane>> {
    if !matches!(channels, 1 | 2 | 4) && !is_multiplanar(format) {
        return None;
    }
    // `across` × `down` elements in one piece of `bytes`.
    let single = |across, down, bytes| {
        Some(vec![Plane {
            across,
            down,
            bytes,
            format,
            channels,
        }])
    };
    let each = u64::from(channels);
    match format {
        Format::UNSIGNED_INT8 | Format::SIGNED_INT8 => single(1, 1, each),
        Format::UNSIGNED_INT16 | Format::SIGNED_INT16 | Format::HALF => single(1, 1, 2 * each),
        Format::UNSIGNED_INT32 | Format::SIGNED_INT32 | Format::FLOAT => single(1, 1, 4 * each),
        Format::UNORM_INT8X1 | Format::SNORM_INT8X1 => single(1, 1, 1),
        Format::UNORM_INT8X2 | Format::SNORM_INT8X2 => single(1, 1, 2),
        Format::UNORM_INT16X1 | Format::SNORM_INT16X1 => single(1, 1, 2),
        Format::UNORM_INT8X4 | Format::SNORM_INT8X4 => single(1, 1, 4),
        Format::UNORM_INT16X2 | Format::SNORM_INT16X2 => single(1, 1, 4),
        Format::UNORM_INT16X4 | Format::SNORM_INT16X4 => single(1, 1, 8),
        Format::UNORM_INT_101010_2 | Format::AYUV | Format::Y410 | Format::UINT8_PACKED_444 => {
            single(1, 1, 4)
        }
        Format::Y416 => single(1, 1, 8),
        // Two elements share their colours.
        Format::YUY2 | Format::UINT8_PACKED_422 => single(2, 1, 4),
        Format::Y210 | Format::Y216 => single(2, 1, 8),
        // Blocks of 4 × 4 elements.
        Format::BC1_UNORM | Format::BC1_UNORM_SRGB | Format::BC4_UNORM | Format::BC4_SNORM => {
            single(4, 4, 8)
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
        | Format::BC7_UNORM_SRGB => single(4, 4, 16),
        _ => multiplanar(format),
    }
}

pub fn is_multiplanar(format: Format) -> bool {
    multiplanar(format).is_some()
}

fn multiplanar(format: Format) -> Option<Vec<Plane>> {
    Some(match format {
        Format::NV12 | Format::UINT8_SEMIPLANAR_420 => semiplanar(HALF, 1).to_vec(),
        Format::P010 | Format::P016 | Format::UINT16_SEMIPLANAR_420 => semiplanar(HALF, 2).to_vec(),
        Format::NV16 | Format::UINT8_SEMIPLANAR_422 => semiplanar(HALF_WIDTH, 1).to_vec(),
        Format::P210 | Format::P216 | Format::UINT16_SEMIPLANAR_422 => {
            semiplanar(HALF_WIDTH, 2).to_vec()
        }
        Format::YUV444_8bit_SemiPlanar | Format::UINT8_SEMIPLANAR_444 => {
            semiplanar(FULL, 1).to_vec()
        }
        Format::YUV444_16bit_SemiPlanar | Format::UINT16_SEMIPLANAR_444 => {
            semiplanar(FULL, 2).to_vec()
        }
        Format::UINT8_PLANAR_420 => planar(HALF, 1).to_vec(),
        Format::UINT16_PLANAR_420 => planar(HALF, 2).to_vec(),
        Format::UINT8_PLANAR_422 => planar(HALF_WIDTH, 1).to_vec(),
        Format::UINT16_PLANAR_422 => planar(HALF_WIDTH, 2).to_vec(),
        Format::Y444_PLANAR8 | Format::UINT8_PLANAR_444 => planar(FULL, 1).to_vec(),
        Format::Y444_PLANAR10 | Format::UINT16_PLANAR_444 => planar(FULL, 2).to_vec(),
        _ => return None,
    })
}

/// Bytes of an element of a format that linear memory can be read in as a texture.
pub fn plain_bytes(format: Format, channels: u32) -> Option<u64> {
    let is_plain = format <= Format::FLOAT;
    let planes = planes(format, channels).filter(|_| is_plain)?;
    planes.first().map(|plane| plane.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(format: Format, channels: u32) -> Option<Vec<u64>> {
        let planes = planes(format, channels)?;
        Some(planes.iter().map(|plane| plane.bytes).collect())
    }

    #[test]
    fn elements_have_the_bytes_of_their_channels() {
        assert_eq!(bytes(Format::UNSIGNED_INT8, 1), Some(vec![1]));
        assert_eq!(bytes(Format::HALF, 4), Some(vec![8]));
        assert_eq!(bytes(Format::FLOAT, 4), Some(vec![16]));
        assert_eq!(bytes(Format::FLOAT, 3), None, "channels are 1, 2 or 4");
        assert_eq!(bytes(Format(0x7f), 1), None, "no such format");
    }

    #[test]
    fn formats_of_video_have_planes_and_blocks_cover_sixteen_elements() {
        let nv12 = planes(Format::NV12, 3).expect("known");
        assert_eq!((nv12[0].bytes, nv12[1].bytes), (1, 2));
        assert_eq!((nv12[1].across, nv12[1].down), (2, 2));
        let block = planes(Format::BC7_UNORM, 4).expect("known")[0];
        assert_eq!((block.across, block.down, block.bytes), (4, 4, 16));
        assert_eq!(
            planes(Format::Y444_PLANAR10, 1).map(|planes| planes.len()),
            Some(3)
        );
    }

    #[test]
    fn textures_of_linear_memory_have_plain_formats() {
        assert_eq!(plain_bytes(Format::FLOAT, 2), Some(8));
        assert_eq!(plain_bytes(Format::NV12, 1), None);
        assert_eq!(plain_bytes(Format::BC1_UNORM, 1), None);
    }
}
