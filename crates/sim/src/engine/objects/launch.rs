//! Launches as values: a function with its geometry, and a launch that a graph keeps with copies of its arguments.

use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::kernel::{Geometry, Parameters, Reader};
use crate::engine::objects::module::Function;
use divvy_driver::sys::cuda::CUkernelNodeAttrValue;
use std::collections::BTreeMap;
use std::ffi::c_void;

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
    /// The program named it as a CUkernel.
    pub as_kernel: bool,
    pub arguments: Arguments,
    /// By the attribute's number.
    pub attributes: BTreeMap<u32, CUkernelNodeAttrValue>,
}

/// Copies of a launch's arguments, and what a query of the node answers: pointers to them, which live as long as the
/// node.
pub struct Arguments {
    buffer: Box<[u64]>,
    bytes: usize,
    pointers: Box<[*mut c_void]>,
}

// SAFETY: the pointers lead into the buffer, which belongs to the same value and is not written to.
unsafe impl Send for Arguments {}
// SAFETY: as above.
unsafe impl Sync for Arguments {}

impl Arguments {
    fn new(buffer: Box<[u64]>, bytes: usize, offsets: &[usize]) -> Self {
        let base = buffer.as_ptr().cast::<u8>();
        let pointers = offsets
            .iter()
            .map(|offset| base.wrapping_add(*offset).cast_mut().cast())
            .collect();
        Arguments {
            buffer,
            bytes,
            pointers,
        }
    }

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
        let fitting = layout
            .iter()
            .filter(|(offset, size)| offset + size <= bytes);
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
        let offsets: Vec<usize> = fitting.map(|(offset, _)| *offset).collect();
        Arguments::new(buffer, bytes, &offsets)
    }

    /// `kernelParams`: NULL when there are none.
    pub fn pointers(&self) -> *mut *mut c_void {
        if self.pointers.is_empty() {
            std::ptr::null_mut()
        } else {
            self.pointers.as_ptr().cast_mut()
        }
    }

    pub fn reader(&self) -> Reader {
        let start = self.buffer.as_ptr().cast();
        Reader::new(Parameters::Buffer(start, self.bytes))
    }
}
