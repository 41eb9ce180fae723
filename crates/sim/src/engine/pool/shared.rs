//! Pools that other processes import: their segments lie in a file, which is what the shareable handle is.
//!
//! Once exported, all that the pool has taken from the GPU is one share: it stays while the pool, an import of it or an imported pointer is there
//! (inferred). An importer maps the pieces whose place its peer tells it, and cannot allocate from the pool.

use super::{Pool, PoolKind};
use crate::engine::addresses::Addresses;
use crate::engine::handles::Handle;
use crate::engine::memory::backing::{map_anonymous, map_file, memfd};
use crate::engine::memory::{AllocationKind, LARGE};
use crate::engine::process::{Done, Objects, Process};
use crate::engine::sharing::Piece;
use divvy_driver::sys::cuda::{CUdeviceptr, CUmemPoolPtrExportData, CUresult};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Far more than any GPU has, so that the place of a segment never runs out.
const FILE_SIZE: u64 = 1 << 43;

/// The file of a pool that can be exported.
pub struct Shareable {
    file: Arc<File>,
    places: Addresses,
    /// Inode of the file.
    key: u64,
    pub exported: bool,
}

/// A pool of another process.
pub struct Imported {
    file: Arc<File>,
    pub key: u64,
}

/// What an importer is told of a pointer; the 64 bytes of `CUmemPoolPtrExportData`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PointerData {
    key: u64,
    offset: u64,
    size: u64,
    _unused: [u64; 5],
}

const _: () = assert!(size_of::<PointerData>() == size_of::<CUmemPoolPtrExportData>());

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
        // SAFETY: the addresses of a segment that nobody has used yet.
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
        // SAFETY: a segment that nobody uses any more.
        unsafe { map_anonymous(base, size) }.is_ok()
    }
}

impl Process {
    /// A descriptor by which other processes import the pool.
    pub fn export_pool(&self, handle: Handle<Pool>) -> Done<RawFd> {
        let mut objects = self.objects();
        let pool = objects.pools.get_mut(handle)?;
        let (gpu, bytes) = (pool.gpu, pool.reserved.now);
        let PoolKind::Shareable(home) = &mut pool.home else {
            return Err(CUresult::INVALID_VALUE);
        };
        let (file, key, is_new) = (home.file.clone(), home.key, !home.exported);
        home.exported = true;
        if is_new && self.add_share(&mut objects, gpu, bytes, key).is_err() {
            if let PoolKind::Shareable(home) = &mut objects.pools.get_mut(handle)?.home {
                home.exported = false;
            }
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let given = file.try_clone().map_err(|_| CUresult::OPERATING_SYSTEM)?;
        Ok(given.into_raw_fd())
    }

    /// Another process's pool. The descriptor stays the caller's.
    pub fn import_pool(&self, descriptor: RawFd) -> Done<Handle<Pool>> {
        if descriptor < 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: the caller's descriptor, borrowed for the call; one that is not open fails to be duplicated.
        let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
        let file = File::from(duplicate.map_err(|_| CUresult::INVALID_VALUE)?);
        let found = file.metadata().map_err(|_| CUresult::INVALID_VALUE)?;
        let (key, is_pool) = (found.ino(), found.size() == FILE_SIZE);
        let mut objects = self.objects();
        let held = if is_pool {
            self.hold_share(&mut objects, key)
        } else {
            None
        };
        let (gpu, _) = held.ok_or(CUresult::INVALID_VALUE)?;
        let file = Arc::new(file);
        let home = PoolKind::Imported(Imported { file, key });
        Ok(objects.pools.pools.insert(Pool::new(gpu, 0, home)))
    }

    /// Where a piece of an exported pool is, for an importer.
    pub fn export_pointer(&self, address: CUdeviceptr) -> Done<CUmemPoolPtrExportData> {
        let objects = self.objects();
        let found = objects.memory.containing(address);
        let (allocation, pool) = match found.map(|found| (found, found.kind)) {
            Some((allocation, AllocationKind::Pooled(pool))) => {
                (allocation, objects.pools.get(pool)?)
            }
            _ => return Err(CUresult::INVALID_VALUE),
        };
        let PoolKind::Shareable(home) = &pool.home else {
            return Err(CUresult::INVALID_VALUE);
        };
        let place = pool.place_of(allocation.base).filter(|_| home.exported);
        let data = PointerData {
            key: home.key,
            offset: place.ok_or(CUresult::INVALID_VALUE)?,
            size: allocation.size,
            _unused: [0; 5],
        };
        // SAFETY: both are 64 bytes without padding, and any bits are a value of either.
        Ok(unsafe { std::mem::transmute::<PointerData, CUmemPoolPtrExportData>(data) })
    }

    pub fn import_pointer(
        &self,
        handle: Handle<Pool>,
        data: CUmemPoolPtrExportData,
    ) -> Done<CUdeviceptr> {
        // SAFETY: as above.
        let data = unsafe { std::mem::transmute::<CUmemPoolPtrExportData, PointerData>(data) };
        let mut objects = self.objects();
        let pool = objects.pools.get(handle)?;
        let PoolKind::Imported(home) = &pool.home else {
            return Err(CUresult::INVALID_VALUE);
        };
        let end = data.offset.checked_add(data.size);
        let fits = data.size > 0 && end.is_some_and(|end| end <= FILE_SIZE);
        if home.key != data.key || !fits {
            return Err(CUresult::INVALID_VALUE);
        }
        let (file, gpu) = (home.file.clone(), pool.gpu);
        self.hold_share(&mut objects, data.key)
            .ok_or(CUresult::INVALID_VALUE)?;
        let piece = Piece {
            file: &file,
            offset: data.offset,
            size: data.size,
            key: data.key,
            gpu,
        };
        let mapped = self.map_piece(&mut objects, &piece, None, AllocationKind::PoolPointer);
        mapped.inspect_err(|_| self.release_share(&mut objects, data.key))
    }

    /// A pool has taken `more` bytes of the GPU, or given `less` back, which it had taken or will have to return.
    pub(super) fn account_for_pool(&self, pool: &Pool, more: u64, less: u64) {
        match &pool.home {
            PoolKind::Shareable(home) if home.exported => {
                let locked = self.state().lock();
                locked.change_share(self.slot, home.key, more, less);
            }
            _ if less > 0 => self.return_bytes(pool.gpu, less),
            _ => {}
        }
    }

    /// The pool is no more: what it held of a share is let go of.
    pub(super) fn leave_pool(&self, objects: &mut Objects, pool: &Pool) {
        match &pool.home {
            PoolKind::Shareable(home) if home.exported => self.release_share(objects, home.key),
            PoolKind::Imported(home) => self.release_share(objects, home.key),
            _ => {}
        }
    }
}
