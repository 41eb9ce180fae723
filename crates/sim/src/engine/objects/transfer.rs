//! Copies and memory sets as values: ends, extents, and the description that a program gives or a graph keeps.

use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUresult};

/// Where one end of a copy is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Must be memory CUDA knows.
    Device,
    /// The program's own memory, whatever it is.
    Host,
    /// Found out from the address.
    Any,
}

/// One end: its first byte, and how far it is from row to row and from layer to layer.
#[derive(Clone, Copy)]
pub struct End {
    pub side: Side,
    pub start: u64,
    pub pitch: u64,
    pub layer: u64,
}

/// Bytes in a row, rows in a layer, layers.
#[derive(Clone, Copy)]
pub struct Extent {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Extent {
    pub fn bytes(self) -> u64 {
        self.width
            .saturating_mul(self.height)
            .saturating_mul(self.depth)
    }

    /// Bytes from the first to the last one that an end touches.
    pub fn span(self, end: End) -> Done<u64> {
        if self.bytes() == 0 {
            return Ok(0);
        }
        let from_first = |step: u64, count: u64, length: u64| {
            if count > 1 && step < length {
                return None;
            }
            step.checked_mul(count - 1)?.checked_add(length)
        };
        let layer = from_first(end.pitch, self.height, self.width);
        let span = layer.and_then(|layer| from_first(end.layer, self.depth, layer));
        span.ok_or(CUresult::INVALID_VALUE)
    }

    /// The offset of each row from the first byte of an end.
    pub fn rows(self, end: End) -> impl Iterator<Item = u64> {
        (0..self.depth).flat_map(move |layer| {
            (0..self.height).map(move |row| layer * end.layer + row * end.pitch)
        })
    }
}

/// A copy or a memory set as the program describes it.
#[derive(Clone, Copy)]
pub enum Move {
    Copy(CUDA_MEMCPY3D),
    Fill(CUDA_MEMSET_NODE_PARAMS),
}

// SAFETY: the addresses in it are the program's; they are followed only to move bytes, as the API's contract allows
// from any thread.
unsafe impl Send for Move {}

// SAFETY: as above.
unsafe impl Sync for Move {}
