//! Kernel launches as values: the geometry, and where the parameters lie.

use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::CUresult;
use std::ffi::c_void;

/// Launch geometry in threads.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

impl Geometry {
    /// Whether the hardware could run it: limits of all compute capabilities since 3.0.
    pub fn is_valid(&self) -> bool {
        let within = |sizes: [u32; 3], limits: [u32; 3]| {
            sizes
                .iter()
                .zip(limits)
                .all(|(size, limit)| (1..=limit).contains(size))
        };
        within(self.grid, [0x7fff_ffff, 65535, 65535])
            && within(self.block, [1024, 1024, 64])
            && self.block.iter().product::<u32>() <= 1024
    }

    pub fn blocks(&self) -> u64 {
        product(self.grid)
    }

    pub fn threads(&self) -> u64 {
        self.blocks().saturating_mul(product(self.block))
    }
}

fn product(sizes: [u32; 3]) -> u64 {
    sizes
        .iter()
        .map(|size| u64::from(*size))
        .fold(1, u64::saturating_mul)
}

/// The parameters of one launch: where each value lies.
pub enum Parameters {
    /// `kernelParams`: one pointer per parameter.
    Pointers(*const *mut c_void),
    /// `extra`: one buffer with all parameters at their natural alignment.
    Buffer(*const u8, usize),
    /// The launch gave neither.
    None,
}

/// Reads parameters in order.
pub struct Reader {
    parameters: Parameters,
    index: usize,
    offset: usize,
}

impl Reader {
    pub fn new(parameters: Parameters) -> Reader {
        Reader {
            parameters,
            index: 0,
            offset: 0,
        }
    }

    /// # Safety
    /// The launch's parameters must be of the types asked for, in this order.
    pub unsafe fn next<T: Copy>(&mut self) -> Done<T> {
        let size = size_of::<T>();
        let offset = self.offset.next_multiple_of(size);
        let place = match self.parameters {
            // SAFETY: the caller vouches for at least this many parameters.
            Parameters::Pointers(list) => unsafe {
                (*list.add(self.index)).cast_const().cast::<T>()
            },
            // SAFETY: within the buffer, as compared just before.
            Parameters::Buffer(start, length) if offset + size <= length => unsafe {
                start.add(offset).cast::<T>()
            },
            _ => return Err(CUresult::INVALID_VALUE),
        };
        (self.index, self.offset) = (self.index + 1, offset + size);
        if place.is_null() {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller vouches for the type.
        Ok(unsafe { place.read_unaligned() })
    }
}
