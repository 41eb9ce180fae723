//! External memory: memory of another interface, by file descriptor. A memfd stands for it, or a descriptor from
//! `cuMemExportToShareableHandle`.
//!
//! Inferred: the memory is the GPU's of the current context, and is counted once, however often and in however many
//! processes it is imported; it lives while an import or a mapping of one does, and mappings, arrays too, end with the
//! context of the import. In the process list it is shown for the first that imported it, since the interface that
//! really made it (Vulkan, say) is not simulated. As cuda.h says, the descriptor is the driver's after a successful
//! import, and stays the program's after any other.

use crate::engine::memory::sharing::Piece;
use crate::engine::objects::Objects;
use crate::engine::objects::array::Mipmap;
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::external::External;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::AllocationKind;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUDA_ARRAY3D_DESCRIPTOR, CUdeviceptr, CUresult};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

impl Process {
    /// Imports `size` bytes behind a descriptor, which is the driver's from then on.
    pub fn import_external(&self, descriptor: RawFd, size: u64) -> Done<Handle<External>> {
        if descriptor < 0 || size == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut objects = self.objects();
        let current = self.current(&objects)?;
        // SAFETY: the caller's descriptor, not closed here unless the import succeeds; one that is not open fails to be
        // examined.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        let found = file.metadata().map_err(|_| CUresult::INVALID_HANDLE)?;
        if !found.is_file() || found.size() < size {
            return Err(CUresult::INVALID_HANDLE);
        }
        let key = found.ino();
        let held = self.hold_share(&mut objects, key);
        let gpu = match held {
            Some((gpu, _)) => gpu,
            None => {
                let group = self.take_bytes(current.gpu, size)?;
                self.add_share(&mut objects, current.gpu, size, key, group)
                    .inspect_err(|_| self.return_bytes(current.gpu, size, group))?;
                current.gpu
            }
        };
        Ok(objects.externals.0.insert(External {
            file: Arc::new(ManuallyDrop::into_inner(file)),
            size,
            key,
            gpu,
            context: current.context,
        }))
    }

    /// A pointer to a part of imported memory, which has to be freed by itself.
    pub fn map_external(
        &self,
        handle: Handle<External>,
        offset: u64,
        size: u64,
    ) -> Done<CUdeviceptr> {
        let mut objects = self.objects();
        self.map_part(&mut objects, handle, offset, size)
    }

    fn map_part(
        &self,
        objects: &mut Objects,
        handle: Handle<External>,
        offset: u64,
        size: u64,
    ) -> Done<CUdeviceptr> {
        let external = objects.externals.0.get(handle);
        let external = external.ok_or(CUresult::INVALID_HANDLE)?;
        let end = offset.checked_add(size);
        if size == 0 || end.is_none_or(|end| end > external.size) {
            return Err(CUresult::INVALID_VALUE);
        }
        let (file, key) = (external.file.clone(), external.key);
        let (gpu, context) = (external.gpu, external.context);
        self.hold_share(objects, key)
            .ok_or(CUresult::INVALID_HANDLE)?;
        let piece = Piece {
            file: &file,
            offset,
            size,
            key,
            gpu,
        };
        let mapped = self.map_piece(objects, &piece, Some(context), AllocationKind::External);
        mapped.inspect_err(|_| self.release_share(objects, key))
    }

    /// A mipmapped array in imported memory.
    pub fn map_external_mipmap(
        &self,
        handle: Handle<External>,
        offset: u64,
        described: &CUDA_ARRAY3D_DESCRIPTOR,
        levels: u32,
    ) -> Done<Handle<Mipmap>> {
        let mut objects = self.objects();
        let found = objects.externals.0.get(handle);
        let found = found.ok_or(CUresult::INVALID_HANDLE)?;
        let room = found.size;
        // Where its memory is mapped: with another context, the array would outlive the mapping that it stands on.
        let home = Current {
            context: found.context,
            gpu: found.gpu,
        };
        self.place_mipmap(&mut objects, described, levels, home, |objects, size| {
            // The other interface may lay the levels out more tightly: what is there is enough.
            let size = size.min(room.saturating_sub(offset));
            self.map_part(objects, handle, offset, size)
        })
    }

    pub fn destroy_external(&self, handle: Handle<External>) -> Done {
        let mut objects = self.objects();
        let gone = objects.externals.0.remove(handle);
        let gone = gone.ok_or(CUresult::INVALID_HANDLE)?;
        self.release_share(&mut objects, gone.key);
        Ok(())
    }

    pub fn destroy_externals_of(&self, objects: &mut Objects, context: Handle<Context>) {
        for handle in objects
            .externals
            .0
            .find(|external| external.context == context)
        {
            if let Some(gone) = objects.externals.0.remove(handle) {
                self.release_share(objects, gone.key);
            }
        }
    }
}
