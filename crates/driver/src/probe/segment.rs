//! A range of addresses with physical memory mapped piece by piece, as in PyTorch's expandable segments, the pool of
//! llama.cpp, buffers of NCCL and the sleep mode of vLLM.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{Session, virtual_memory};
use crate::Error;
use crate::sys::cuda::*;

/// Where physical memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    #[default]
    Device,
    /// The host, on no particular NUMA node.
    Host,
    /// The host's first NUMA node.
    HostNode,
}

/// The kind of physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Physical {
    pub place: Place,
    /// Another process can import it by a descriptor.
    pub shareable: bool,
    /// The handle is released at once, so that the mapping alone keeps the memory.
    pub mapped_only: bool,
}

/// Memory that is mapped in a segment.
struct Piece {
    size: usize,
    /// `None` once it was released.
    handle: Option<CUmemGenericAllocationHandle>,
}

/// A reserved range. Memory and addresses are given back when it is dropped.
pub struct Segment<'s> {
    session: &'s Session,
    base: CUdeviceptr,
    size: usize,
    /// In the order of their addresses, without gaps.
    pieces: Vec<Piece>,
}

impl<'s> Segment<'s> {
    /// Reserves addresses, which takes no memory. `bytes` is a multiple of the driver's granularity.
    ///
    /// # Errors
    /// The driver's.
    pub fn reserve(session: &'s Session, bytes: u64) -> Result<Self, Error> {
        let size = bytes as usize;
        let mut base = 0;
        // SAFETY: writes one address; any alignment and any place will do.
        session.call(&session.functions.cuMemAddressReserve, |reserve| unsafe {
            reserve(&raw mut base, size, 0, 0, 0)
        })?;
        Ok(Self {
            session,
            base,
            size,
            pieces: Vec::new(),
        })
    }

    /// Creates memory, maps it behind the last piece and lets the GPU read and write it.
    ///
    /// # Errors
    /// The driver's; the segment is as before then.
    pub fn grow(&mut self, physical: Physical, bytes: u64) -> Result<(), Error> {
        let handle = create(self.session, physical, bytes)?;
        self.map(physical, handle, bytes)
    }

    /// Maps memory that another process has exported.
    ///
    /// # Errors
    /// As [`Segment::grow`].
    pub fn import(&mut self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<(), Error> {
        let value = descriptor.as_raw_fd();
        let shareable: *mut c_void = std::ptr::without_provenance_mut(value as usize);
        let mut handle = 0;
        let import = &self.session.functions.cuMemImportFromShareableHandle;
        // SAFETY: a descriptor is passed by its value; writes one handle.
        self.session.call(import, |import| unsafe {
            import(
                &raw mut handle,
                shareable,
                CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            )
        })?;
        self.map(Physical::default(), handle, bytes)
    }

    /// Maps a handle, which is the segment's from then on.
    fn map(
        &mut self,
        physical: Physical,
        handle: CUmemGenericAllocationHandle,
        bytes: u64,
    ) -> Result<(), Error> {
        let (session, size) = (self.session, bytes as usize);
        let at = self.base + self.mapped();
        // SAFETY: a part of our own range that nothing is mapped in, and memory of that size.
        let mapped = session.call(&session.functions.cuMemMap, |map| unsafe {
            map(at, size, 0, handle, 0)
        });
        if let Err(error) = mapped {
            virtual_memory::release(session, handle)?;
            return Err(error);
        }
        self.pieces.push(Piece {
            size,
            handle: Some(handle),
        });
        let access = CUmemAccessDesc {
            location: session.location(),
            flags: CUmemAccess_flags::PROT_READWRITE,
        };
        // SAFETY: the range just mapped; reads one description.
        let accessible = session.call(&session.functions.cuMemSetAccess, |set| unsafe {
            set(at, size, &raw const access, 1)
        });
        if let Err(error) = accessible {
            self.shrink()?;
            return Err(error);
        }
        if physical.mapped_only
            && let Some(piece) = self.pieces.last_mut()
        {
            piece.handle = None;
            virtual_memory::release(session, handle)?;
        }
        Ok(())
    }

    /// Unmaps and releases the last piece. Nothing happens where there is none.
    ///
    /// # Errors
    /// The driver's.
    pub fn shrink(&mut self) -> Result<(), Error> {
        let Some(piece) = self.pieces.pop() else {
            return Ok(());
        };
        let (session, at) = (self.session, self.base + self.mapped());
        // SAFETY: mapped by `map`, and no code uses the memory.
        let unmapped = session.call(&session.functions.cuMemUnmap, |unmap| unsafe {
            unmap(at, piece.size)
        });
        let released = piece
            .handle
            .map_or(Ok(()), |handle| virtual_memory::release(session, handle));
        unmapped.and(released)
    }

    /// Bytes that are mapped.
    pub fn mapped(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.size as u64).sum()
    }

    /// A descriptor of the last piece, by which another process can import it; `None` where there is no such piece.
    ///
    /// # Errors
    /// The driver's, also where the memory is not shareable.
    pub fn export(&self) -> Result<Option<OwnedFd>, Error> {
        let Some(handle) = self.pieces.last().and_then(|piece| piece.handle) else {
            return Ok(None);
        };
        let mut descriptor: RawFd = -1;
        let export = &self.session.functions.cuMemExportToShareableHandle;
        // SAFETY: our own handle; writes one descriptor.
        self.session.call(export, |export| unsafe {
            export(
                (&raw mut descriptor).cast(),
                handle,
                CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
                0,
            )
        })?;
        // SAFETY: the driver has just opened it for the caller.
        Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }
}

impl Drop for Segment<'_> {
    fn drop(&mut self) {
        while !self.pieces.is_empty() {
            // Memory that the driver does not give back stays until this process ends, which is soon.
            let _ = self.shrink();
        }
        let free = &self.session.functions.cuMemAddressFree;
        // SAFETY: the range reserved in `reserve`, which nothing is mapped in any more.
        let _ = self
            .session
            .call(free, |free| unsafe { free(self.base, self.size) });
    }
}

/// The least size of such memory, and what its sizes are multiples of.
///
/// # Errors
/// The driver's, also where it has no such memory.
pub fn granularity(session: &Session, physical: Physical) -> Result<u64, Error> {
    let mut granularity = 0;
    let properties = properties(session, physical);
    let get = &session.functions.cuMemGetAllocationGranularity;
    // SAFETY: reads the properties, writes one number.
    session.call(get, |get| unsafe {
        get(
            &raw mut granularity,
            &raw const properties,
            CUmemAllocationGranularity_flags::MINIMUM,
        )
    })?;
    Ok(granularity as u64)
}

fn create(
    session: &Session,
    physical: Physical,
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, Error> {
    virtual_memory::create_by(session, bytes, &properties(session, physical))
}

fn properties(session: &Session, physical: Physical) -> CUmemAllocationProp {
    let host = |type_| CUmemLocation { type_, id: 0 };
    CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        requestedHandleTypes: if physical.shareable {
            CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR
        } else {
            CUmemAllocationHandleType::NONE
        },
        location: match physical.place {
            Place::Device => session.location(),
            Place::Host => host(CUmemLocationType::HOST),
            Place::HostNode => host(CUmemLocationType::HOST_NUMA),
        },
        ..Default::default()
    }
}
