//! IPC handles of linear memory: 64 bytes with the key of the share, and the exporter's file that has its bytes.
//!
//! The importer opens the exporter's file through `/proc`, so the exporter must be alive when a handle is opened, as
//! with the real driver; what is open stays when it is gone. Inferred: a handle of an address inside an allocation is
//! one of the whole allocation.

use crate::engine::machine::pids::Own;
use crate::engine::memory::sharing::Piece;
use crate::engine::objects::Objects;
use crate::engine::objects::memory::AllocationKind;
use crate::engine::objects::memory::backing::BackingLocation;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CU_IPC_HANDLE_SIZE, CUdeviceptr, CUipcMemHandle, CUresult};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;

/// What the 64 bytes are.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemHandle {
    /// Beginning of the UUID of the machine's first GPU: handles of other machines are none.
    machine: [u8; 8],
    key: u64,
    pid: u32,
    descriptor: i32,
    start_time: u64,
    inode: u64,
    offset: u64,
    size: u64,
    namespace: u64,
}

const _: () = assert!(size_of::<MemHandle>() == CU_IPC_HANDLE_SIZE);

impl MemHandle {
    fn to_bytes(self) -> CUipcMemHandle {
        // SAFETY: both are 64 bytes without padding, and any bits are a value of either.
        unsafe { std::mem::transmute::<MemHandle, CUipcMemHandle>(self) }
    }

    fn from_bytes(bytes: CUipcMemHandle) -> MemHandle {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<CUipcMemHandle, MemHandle>(bytes) }
    }

    /// The exporter's file, if the exporter is there and it is that file.
    fn file(&self) -> Option<File> {
        let exporter = Own {
            pid: self.pid,
            start_time: self.start_time,
            namespace: self.namespace,
        };
        let pid = exporter.pid_here()?;
        let path = format!("/proc/{pid}/fd/{}", self.descriptor);
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        (file.metadata().ok()?.ino() == self.inode).then_some(file)
    }
}

impl Process {
    /// What tells handles of this machine from others'.
    pub fn machine_mark(&self) -> [u8; 8] {
        let uuid = self.state().gpus()[0].uuid();
        uuid.first_chunk().copied().unwrap_or_default()
    }

    /// A handle of the allocation that `address` lies in, which has to be from `cuMemAlloc`.
    pub fn export_allocation(&self, address: CUdeviceptr) -> Done<CUipcMemHandle> {
        let mut objects = self.objects();
        self.current(&objects)?;
        let found = objects.memory.containing(address);
        let found = found.filter(|allocation| allocation.kind == AllocationKind::Device);
        let allocation = *found.ok_or(CUresult::INVALID_VALUE)?;
        self.collect_ended(&mut objects);
        let file = objects
            .memory
            .back_with_file(allocation.base, allocation.size);
        let file = file.map_err(|_| CUresult::OPERATING_SYSTEM)?;
        let key = match objects.sharing.exported.get(&allocation.base) {
            Some(key) => *key,
            None => {
                let key = self.state().next_key();
                let (gpu, bytes) = (allocation.gpu, allocation.charged);
                self.add_share(&mut objects, gpu, bytes, key, allocation.group)?;
                objects.sharing.exported.insert(allocation.base, key);
                key
            }
        };
        let BackingLocation {
            descriptor,
            inode,
            offset,
        } = file;
        let Own {
            pid,
            start_time,
            namespace,
        } = Own::of_this_process();
        let handle = MemHandle {
            machine: self.machine_mark(),
            key,
            pid,
            descriptor,
            start_time,
            inode,
            offset,
            size: allocation.size,
            namespace,
        };
        Ok(handle.to_bytes())
    }

    /// Memory of another process's, under an address of ours. Opened once more it has the same address.
    pub fn open_memory(&self, handle: CUipcMemHandle) -> Done<CUdeviceptr> {
        let handle = MemHandle::from_bytes(handle);
        let mut objects = self.objects();
        let current = self.current(&objects)?;
        if handle.machine != self.machine_mark() {
            return Err(CUresult::INVALID_HANDLE);
        }
        if objects
            .sharing
            .exported
            .values()
            .any(|key| *key == handle.key)
        {
            return Err(CUresult::INVALID_CONTEXT);
        }
        if let Some((pointer, count)) = objects.sharing.opened.get_mut(&handle.key) {
            *count += 1;
            return Ok(*pointer);
        }
        let (gpu, _) = self
            .hold_share(&mut objects, handle.key)
            .ok_or(CUresult::INVALID_HANDLE)?;
        let opened = self.open_held(&mut objects, &handle, gpu, current);
        match opened {
            Ok(pointer) => {
                objects.sharing.opened.insert(handle.key, (pointer, 1));
            }
            Err(_) => self.release_share(&mut objects, handle.key),
        }
        opened
    }

    fn open_held(
        &self,
        objects: &mut Objects,
        handle: &MemHandle,
        gpu: usize,
        current: crate::engine::objects::context::Current,
    ) -> Done<CUdeviceptr> {
        if gpu != current.gpu && !self.reaches(current.gpu, gpu) {
            return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
        }
        let file = handle.file().ok_or(CUresult::INVALID_HANDLE)?;
        let piece = Piece {
            file: &file,
            offset: handle.offset,
            size: handle.size,
            key: handle.key,
            gpu,
        };
        self.map_piece(
            objects,
            &piece,
            Some(current.context),
            AllocationKind::Opened,
        )
    }

    /// Closes what was opened at `pointer`, once.
    pub fn close_memory(&self, pointer: CUdeviceptr) -> Done {
        let mut objects = self.objects();
        self.current(&objects)?;
        let mut opened = objects.sharing.opened.values_mut();
        let (_, count) = opened
            .find(|(opened, _)| *opened == pointer)
            .ok_or(CUresult::INVALID_VALUE)?;
        *count -= 1;
        if *count == 0 {
            self.free_allocation(&mut objects, pointer);
        }
        Ok(())
    }
}
