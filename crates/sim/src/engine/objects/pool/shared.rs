//! Files behind pools that can be exported, and pools of other processes.

use crate::engine::objects::addresses::Addresses;
use crate::engine::objects::memory::LARGE;
use crate::engine::objects::memory::backing::{map_anonymous, map_file, memfd};
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Far more than any GPU has, so that the place of a segment never runs out.
pub const FILE_SIZE: u64 = 1 << 43;

/// The file of a pool that can be exported.
pub struct Shareable {
    pub file: Arc<File>,
    places: Addresses,
    /// Inode of the file.
    pub key: u64,
    pub exported: bool,
}

/// A pool of another process.
pub struct Imported {
    pub file: Arc<File>,
    pub key: u64,
}

impl Shareable {
    pub fn new() -> Done<Shareable> {
        let failed = |_| CUresult::OPERATING_SYSTEM;
        let file = memfd(c"divvy-sim pool", FILE_SIZE).map_err(failed)?;
        Ok(Shareable {
            key: file.metadata().map_err(failed)?.ino(),
            file: Arc::new(file),
            places: Addresses::new(0, FILE_SIZE),
            exported: false,
        })
    }

    /// Puts a part of the file behind a new segment; gives its place in the file.
    pub fn place(&mut self, base: CUdeviceptr, size: u64) -> Done<u64> {
        let place = self.places.take(size, LARGE);
        let place = place.ok_or(CUresult::OUT_OF_MEMORY)?;
        // SAFETY: the addresses of a segment that is not in use yet.
        if unsafe { map_file(base, size, &self.file, place) }.is_err() {
            self.places.give(place, size);
            return Err(CUresult::MAP_FAILED);
        }
        Ok(place)
    }

    /// Takes it away again. False when the addresses cannot be used again.
    pub fn leave(&mut self, base: CUdeviceptr, size: u64, place: u64) -> bool {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (from, length) = (place as libc::off_t, size as libc::off_t);
        // SAFETY: a descriptor of ours; the hole is the piece given up.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, from, length) };
        self.places.give(place, size);
        // SAFETY: a segment that is no longer in use.
        unsafe { map_anonymous(base, size) }.is_ok()
    }
}
