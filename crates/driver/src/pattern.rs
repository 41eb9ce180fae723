//! GPU memory with a pattern in it, which shows whether a checkpoint has brought all of it back.

use std::ffi::c_int;

use crate::Error;
use crate::cuda::checked;
use crate::load::{CUDA, Library, Lookup, library};
use crate::sys::cuda::*;

library! {
    struct Functions {
        cuInit,
        cuGetErrorString,
        cuDeviceGet,
        cuDevicePrimaryCtxRetain,
        cuCtxSetCurrent,
        cuMemAlloc_v2,
        cuMemcpyHtoD_v2,
        cuMemcpyDtoH_v2,
    }
}

/// Copied at once: large enough to be fast, and small beside any GPU's memory.
const PIECE: usize = 1 << 20;

/// Memory on the first GPU of this process, which keeps it until it ends.
pub struct Pattern {
    functions: Functions,
    address: CUdeviceptr,
    pieces: usize,
    words: Vec<u8>,
}

impl Pattern {
    /// Takes so many whole MiB and fills them.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fill(mib: u64) -> Result<Self, Error> {
        let functions = Functions::find(&Library::open(None, CUDA)?, Lookup::Handle);
        let text = &functions.cuGetErrorString;
        // SAFETY: takes no pointer.
        let init = |init: pfn::cuInit| unsafe { init(0) };
        checked(&functions.cuInit, init, text)?;
        let first: c_int = 0;
        let (mut device, mut context) = (CUdevice::default(), std::ptr::null_mut());
        // SAFETY: writes one ordinal.
        let get = |get: pfn::cuDeviceGet| unsafe { get(&raw mut device, first) };
        checked(&functions.cuDeviceGet, get, text)?;
        // SAFETY: a device that the driver named; writes one handle.
        let retain =
            |retain: pfn::cuDevicePrimaryCtxRetain| unsafe { retain(&raw mut context, device) };
        checked(&functions.cuDevicePrimaryCtxRetain, retain, text)?;
        // SAFETY: a context that is never released.
        let set = |set: pfn::cuCtxSetCurrent| unsafe { set(context) };
        checked(&functions.cuCtxSetCurrent, set, text)?;
        let mut address: CUdeviceptr = 0;
        let pieces = usize::try_from(mib).unwrap_or(usize::MAX);
        let bytes = pieces.saturating_mul(PIECE);
        // SAFETY: writes one address.
        let alloc = |alloc: pfn::cuMemAlloc_v2| unsafe { alloc(&raw mut address, bytes) };
        checked(&functions.cuMemAlloc_v2, alloc, text)?;
        let pattern = Self {
            functions,
            address,
            pieces,
            words: words(PIECE / 8 + pieces),
        };
        for piece in 0..pieces {
            let bytes = pattern.piece(piece);
            // SAFETY: the piece lies in the allocation, and the bytes outlive the call.
            let copy = |copy: pfn::cuMemcpyHtoD_v2| unsafe {
                copy(pattern.at(piece), bytes.as_ptr().cast(), PIECE)
            };
            let text = &pattern.functions.cuGetErrorString;
            checked(&pattern.functions.cuMemcpyHtoD_v2, copy, text)?;
        }
        Ok(pattern)
    }

    /// Whether the memory has what was put there.
    ///
    /// # Errors
    /// The driver's error.
    pub fn is_whole(&self) -> Result<bool, Error> {
        let mut found = vec![0; PIECE];
        for piece in 0..self.pieces {
            // SAFETY: the piece lies in the allocation, and the buffer has room for it.
            let copy = |copy: pfn::cuMemcpyDtoH_v2| unsafe {
                copy(found.as_mut_ptr().cast(), self.at(piece), PIECE)
            };
            let text = &self.functions.cuGetErrorString;
            checked(&self.functions.cuMemcpyDtoH_v2, copy, text)?;
            if found != self.piece(piece) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn at(&self, piece: usize) -> CUdeviceptr {
        self.address + (piece * PIECE) as u64
    }

    /// The bytes of a piece, which are no other piece's: each begins a word later.
    fn piece(&self, piece: usize) -> &[u8] {
        &self.words[piece * 8..][..PIECE]
    }
}

/// The bytes of so many words, no two of them equal.
fn words(count: usize) -> Vec<u8> {
    let words = (0..count as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}
