//! Launches as values: a function with its geometry, and a launch that a graph keeps with copies of its arguments.

use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::kernel::{Geometry, Parameters, Reader};
use crate::engine::objects::module::Function;

/// A function and how many of its threads run.
#[derive(Clone, Copy)]
pub struct Shape {
    pub function: Handle<Function>,
    pub geometry: Geometry,
    /// Dynamic shared memory per block, in bytes.
    pub shared: u32,
    /// All blocks must be on the GPU at once.
    pub cooperative: bool,
}

/// A launch that is kept for later, as a node of a graph: it owns its arguments.
pub struct Launch {
    pub shape: Shape,
    pub context: Handle<Context>,
    pub arguments: Arguments,
}

/// Copies of a launch's arguments.
#[derive(Clone)]
pub struct Arguments {
    buffer: Box<[u64]>,
    bytes: usize,
}

impl Arguments {
    /// Copies the arguments. Where the code does not tell its parameters, pointers to them say nothing and are not
    /// kept.
    ///
    /// # Safety
    /// The parameters are those of a kernel with this layout of `(offset, bytes)`.
    pub unsafe fn copy_of(parameters: &Parameters, layout: Option<&[(usize, usize)]>) -> Self {
        let layout = layout.unwrap_or_default();
        let end = layout.iter().map(|(offset, size)| offset + size).max();
        let bytes = match parameters {
            Parameters::Pointers(_) => end.unwrap_or(0),
            Parameters::Buffer(_, length) => *length,
            Parameters::None => 0,
        };
        let mut buffer = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let base = buffer.as_mut_ptr().cast::<u8>();
        match parameters {
            Parameters::Pointers(list) => {
                for (index, (offset, size)) in layout.iter().enumerate() {
                    // SAFETY: the caller vouches for a pointer to `size` bytes in each place; the buffer holds the
                    // whole layout.
                    unsafe {
                        let from = (*list.add(index)).cast::<u8>();
                        if !from.is_null() {
                            std::ptr::copy_nonoverlapping(from, base.add(*offset), *size);
                        }
                    }
                }
            }
            // SAFETY: the caller vouches for `length` bytes; the buffer has as many.
            Parameters::Buffer(from, length) if !from.is_null() => unsafe {
                std::ptr::copy_nonoverlapping(*from, base, *length)
            },
            Parameters::Buffer(..) | Parameters::None => {}
        }
        Arguments { buffer, bytes }
    }

    pub fn reader(&self) -> Reader {
        let start = self.buffer.as_ptr().cast();
        Reader::new(Parameters::Buffer(start, self.bytes))
    }
}
