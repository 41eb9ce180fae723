//! Sharing memory pools with other processes: pools by descriptor, allocations by pointer data.

use crate::engine::machine::group::GroupId;
use crate::engine::memory::sharing::Piece;
use crate::engine::objects::Objects;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::AllocationKind;
use crate::engine::objects::pool::shared::{FILE_SIZE, Imported};
use crate::engine::objects::pool::{Pool, PoolKind};
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUmemPoolPtrExportData, CUresult};
use std::fs::File;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

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

impl Process {
    /// A descriptor by which other processes import the pool.
    pub fn export_pool(&self, handle: Handle<Pool>) -> Done<RawFd> {
        let mut objects = self.objects();
        let pool = objects.pools.get_mut(handle)?;
        let gpu = pool.gpu;
        let segments: Vec<_> = pool
            .segments
            .iter()
            .map(|one| (one.size, one.group))
            .collect();
        let PoolKind::Shareable(home) = &mut pool.home else {
            return Err(CUresult::INVALID_VALUE);
        };
        let (file, key, is_new) = (home.file.clone(), home.key, !home.exported);
        home.exported = true;
        if is_new
            && self
                .add_share(&mut objects, gpu, 0, key, GroupId::NONE)
                .is_err()
        {
            if let PoolKind::Shareable(home) = &mut objects.pools.get_mut(handle)?.home {
                home.exported = false;
            }
            return Err(CUresult::OUT_OF_MEMORY);
        }
        for (size, group) in segments.into_iter().filter(|_| is_new) {
            let locked = self.state().lock();
            locked.change_share(self.slot, key, size, 0, group);
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
    pub fn account_for_pool(&self, pool: &Pool, more: u64, less: u64, group: GroupId) {
        match &pool.home {
            PoolKind::Shareable(home) if home.exported => {
                let locked = self.state().lock();
                locked.change_share(self.slot, home.key, more, less, group);
            }
            _ if less > 0 => self.return_bytes(pool.gpu, less, group),
            _ => {}
        }
    }

    /// The pool is no more: what it held of a share is let go of.
    pub fn leave_pool(&self, objects: &mut Objects, pool: &Pool) {
        match &pool.home {
            PoolKind::Shareable(home) if home.exported => self.release_share(objects, home.key),
            PoolKind::Imported(home) => self.release_share(objects, home.key),
            _ => {}
        }
    }
}
