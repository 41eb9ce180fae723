//! Virtual memory management: physical memory by handle, reserved addresses, mappings between them.
//!
//! Physical memory is a piece of a memfd, so that it can be mapped at several places and sent to other processes. It exists, and is charged, while it
//! has a handle reference (`cuMemCreate`, retain, import) or a mapping. Memory made exportable has a memfd of its own; the rest share one, so that
//! thousands of handles do not need thousands of descriptors.

use super::addresses::Addresses;
use super::memory::LARGE;
use super::memory::backing::memfd;
use super::multicast::MulticastObject;
use super::process::{Done, Objects, Process};
use divvy_driver::sys::cuda::{CUdeviceptr, CUmemAllocationHandleType, CUresult};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Identifies physical memory in the API; counted up, never reused.
pub type PhysicalId = u64;

#[derive(Default)]
pub struct VirtualMemory {
    physical: BTreeMap<PhysicalId, Physical>,
    /// Reserved ranges by their start.
    reserved: BTreeMap<CUdeviceptr, u64>,
    /// Mappings by their start.
    mapped: BTreeMap<CUdeviceptr, Mapping>,
    common: Option<Common>,
}

pub struct Physical {
    pub gpu: usize,
    pub size: u64,
    pub handle_types: u32,
    /// Made to be bound to arrays.
    pub is_tile_pool: bool,
    /// References by handle.
    references: u32,
    mappings: u32,
    backing: Arc<File>,
    offset: u64,
    /// Inode of the memfd, once other processes may hold the memory too.
    shared: Option<u64>,
    /// What it is instead of memory of a GPU.
    team: Option<MulticastObject>,
}

impl Physical {
    pub fn is_team(&self) -> bool {
        self.team.is_some()
    }
}

#[derive(Clone, Copy)]
struct Mapping {
    size: u64,
    physical: PhysicalId,
    /// What `cuMemSetAccess` has said, as in CUmemAccess_flags.
    access: u32,
}

/// The memfd of all memory that cannot be exported.
struct Common {
    file: Arc<File>,
    offsets: Addresses,
}

const COMMON_SIZE: u64 = 1 << 43;

impl Common {
    fn new() -> io::Result<Common> {
        Ok(Common {
            file: Arc::new(memfd(c"divvy-sim", COMMON_SIZE)?),
            offsets: Addresses::new(0, COMMON_SIZE),
        })
    }
}

/// Maps `length` bytes at `address` with nothing behind them.
fn map_nothing(address: u64, length: u64, fixed: libc::c_int) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: without MAP_FIXED a new mapping; with it, the caller owns the range.
    let map = unsafe {
        libc::mmap(
            address as *mut _,
            length as usize,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
    (map != libc::MAP_FAILED).then_some(map as u64)
}

impl VirtualMemory {
    pub fn physical(&self, id: PhysicalId) -> Done<&Physical> {
        self.physical
            .get(&id)
            .filter(|physical| physical.references > 0)
            .ok_or(CUresult::INVALID_VALUE)
    }

    /// Whatever holds on to it.
    pub fn known(&self, id: PhysicalId) -> Done<&Physical> {
        self.physical.get(&id).ok_or(CUresult::INVALID_VALUE)
    }

    /// What makes it a multicast object, which it has to be.
    pub fn team(&mut self, id: PhysicalId) -> Done<&mut MulticastObject> {
        self.physical(id)?;
        let team = self.physical_mut(id)?.team.as_mut();
        team.ok_or(CUresult::INVALID_VALUE)
    }

    /// Something of the process's holds on to it, as a mapping does.
    pub fn keep(&mut self, id: PhysicalId) {
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.mappings += 1;
        }
    }

    /// The start of the mapping that contains an address, and what is mapped there.
    pub fn mapped_at(&self, address: CUdeviceptr) -> Done<(CUdeviceptr, PhysicalId)> {
        let (start, mapping) = self.mapping_at(address).ok_or(CUresult::INVALID_VALUE)?;
        Ok((start, mapping.physical))
    }

    fn physical_mut(&mut self, id: PhysicalId) -> Done<&mut Physical> {
        let known = self.physical.get_mut(&id);
        known.ok_or(CUresult::INVALID_VALUE)
    }

    /// The mapping that contains `address`, with its start and size.
    pub fn mapping(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, u64, &Physical)> {
        let (start, mapping) = self.mapping_at(address)?;
        Some((start, mapping.size, self.physical.get(&mapping.physical)?))
    }

    fn mapping_at(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, &Mapping)> {
        let (start, mapping) = self.mapped.range(..=address).next_back()?;
        (address - start < mapping.size).then_some((*start, mapping))
    }

    /// Access flags of the mapping that contains `address`.
    pub fn access(&self, address: CUdeviceptr) -> Option<u32> {
        self.mapping_at(address).map(|(_, mapping)| mapping.access)
    }

    /// Whether all of the range is mapped and accessible; neighbouring mappings count as one.
    pub fn is_mapped(&self, start: CUdeviceptr, length: u64) -> bool {
        let Some(end) = start.checked_add(length) else {
            return false;
        };
        let mut at = start;
        while at < end {
            match self.mapping_at(at) {
                Some((base, mapping)) if mapping.access != 0 => at = base + mapping.size,
                _ => return false,
            }
        }
        true
    }

    fn reservation(&self, start: CUdeviceptr, length: u64) -> Done<CUdeviceptr> {
        let found = self.reserved.range(..=start).next_back();
        let (base, _) = found
            .filter(|(base, size)| start - **base <= **size && length <= **size - (start - **base))
            .ok_or(CUresult::INVALID_VALUE)?;
        Ok(*base)
    }

    /// Starts of the mappings that cover exactly the range.
    fn mappings_in(&self, start: CUdeviceptr, length: u64) -> Done<Vec<CUdeviceptr>> {
        let end = start.checked_add(length).ok_or(CUresult::INVALID_VALUE)?;
        let mut at = start;
        let mut starts = Vec::new();
        for (base, mapping) in self.mapped.range(start..end) {
            if *base != at {
                return Err(CUresult::INVALID_VALUE);
            }
            starts.push(*base);
            at += mapping.size;
        }
        if at == end && !starts.is_empty() {
            Ok(starts)
        } else {
            Err(CUresult::INVALID_VALUE)
        }
    }
}

fn is_multiple(value: u64) -> bool {
    value.is_multiple_of(LARGE)
}

impl Process {
    /// `cuMemAddressReserve`. `wanted` is a hint.
    pub fn reserve_addresses(
        &self,
        size: u64,
        alignment: u64,
        wanted: CUdeviceptr,
    ) -> Done<CUdeviceptr> {
        let align = alignment.max(LARGE);
        if size == 0 || !is_multiple(size) || !align.is_power_of_two() {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut objects = self.objects();
        let hinted = (wanted != 0 && wanted.is_multiple_of(align))
            .then(|| map_nothing(wanted, size, libc::MAP_FIXED_NOREPLACE))
            .flatten();
        let start = match hinted {
            Some(start) => start,
            None => {
                // More than asked, and the ends given back, for the alignment's sake.
                let length = size.checked_add(align).ok_or(CUresult::OUT_OF_MEMORY)?;
                let map = map_nothing(0, length, 0).ok_or(CUresult::OUT_OF_MEMORY)?;
                let start = map.next_multiple_of(align);
                unmap(map, start - map);
                unmap(start + size, map + length - (start + size));
                start
            }
        };
        objects.virtual_memory.reserved.insert(start, size);
        Ok(start)
    }

    pub fn free_addresses(&self, start: CUdeviceptr, size: u64) -> Done {
        let mut objects = self.objects();
        let virtual_memory = &mut objects.virtual_memory;
        let in_use = virtual_memory
            .mapped
            .range(start..start.saturating_add(size))
            .next()
            .is_some();
        if virtual_memory.reserved.get(&start) != Some(&size) || in_use {
            return Err(CUresult::INVALID_VALUE);
        }
        virtual_memory.reserved.remove(&start);
        unmap(start, size);
        Ok(())
    }

    /// `cuMemCreate`: needs no current context.
    pub fn create_physical(
        &self,
        gpu: usize,
        size: u64,
        handle_types: u32,
        is_tile_pool: bool,
    ) -> Done<PhysicalId> {
        if size == 0 || !is_multiple(size) {
            return Err(CUresult::INVALID_VALUE);
        }
        self.check_gpu(gpu)?;
        self.take_bytes(gpu, size)?;
        let mut objects = self.objects();
        let name = format!("divvy-sim {}", self.state().name_of(gpu));
        let (backing, offset) = back(&mut objects.virtual_memory, size, handle_types, &name)
            .inspect_err(|_| self.return_bytes(gpu, size))
            .map_err(|_| CUresult::OPERATING_SYSTEM)?;
        let id = self.next_id();
        let physical = Physical {
            gpu,
            size,
            handle_types,
            is_tile_pool,
            references: 1,
            mappings: 0,
            backing,
            offset,
            shared: None,
            team: None,
        };
        objects.virtual_memory.physical.insert(id, physical);
        Ok(id)
    }

    /// A multicast object: addresses can be mapped to it, and no GPU has its bytes.
    pub fn create_team(&self, size: u64, team: MulticastObject) -> Done<PhysicalId> {
        let gpu = self.gpu(0)?;
        let mut objects = self.objects();
        let (backing, offset) = back(&mut objects.virtual_memory, size, 0, "")
            .map_err(|_| CUresult::OPERATING_SYSTEM)?;
        let id = self.next_id();
        let physical = Physical {
            gpu,
            size,
            handle_types: 0,
            is_tile_pool: false,
            references: 1,
            mappings: 0,
            backing,
            offset,
            shared: None,
            team: Some(team),
        };
        objects.virtual_memory.physical.insert(id, physical);
        Ok(id)
    }

    /// One handle reference less.
    pub fn release_physical(&self, id: PhysicalId) -> Done {
        let mut objects = self.objects();
        objects.virtual_memory.physical(id)?;
        let physical = objects.virtual_memory.physical_mut(id)?;
        physical.references -= 1;
        self.collect(&mut objects, id);
        Ok(())
    }

    /// A further handle reference to what is mapped at `address`.
    pub fn retain_physical(&self, address: CUdeviceptr) -> Done<PhysicalId> {
        let mut objects = self.objects();
        let (_, mapping) = objects
            .virtual_memory
            .mapping_at(address)
            .ok_or(CUresult::INVALID_VALUE)?;
        let id = mapping.physical;
        objects.virtual_memory.physical_mut(id)?.references += 1;
        Ok(id)
    }

    /// Holds on to the memory, as a mapping does.
    pub fn bind_physical(&self, objects: &mut Objects, id: PhysicalId) -> Done {
        objects.virtual_memory.physical(id)?;
        objects.virtual_memory.keep(id);
        Ok(())
    }

    pub fn unbind_physical(&self, objects: &mut Objects, id: PhysicalId) {
        if let Some(physical) = objects.virtual_memory.physical.get_mut(&id) {
            physical.mappings -= 1;
        }
        self.collect(objects, id);
    }

    pub fn map_physical(&self, start: CUdeviceptr, size: u64, offset: u64, id: PhysicalId) -> Done {
        let mut objects = self.objects();
        let virtual_memory = &mut objects.virtual_memory;
        virtual_memory.reservation(start, size)?;
        let overlaps = virtual_memory
            .mapped
            .range(..start + size)
            .next_back()
            .is_some_and(|(base, mapping)| base + mapping.size > start);
        // NVIDIA documents that the offset must be 0 and the size the allocation's.
        if offset != 0 || overlaps || virtual_memory.physical(id)?.size != size {
            return Err(CUresult::INVALID_VALUE);
        }
        let physical = virtual_memory.physical_mut(id)?;
        if physical
            .team
            .as_ref()
            .is_some_and(|team| !team.is_complete())
        {
            return Err(CUresult::ILLEGAL_STATE);
        }
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let at = physical.offset as libc::off_t;
        // SAFETY: replaces a part of our own reservation, which nothing is mapped in.
        let map = unsafe {
            libc::mmap(
                start as *mut _,
                size as usize,
                libc::PROT_NONE,
                flags,
                physical.backing.as_raw_fd(),
                at,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(CUresult::MAP_FAILED);
        }
        physical.mappings += 1;
        virtual_memory.mapped.insert(
            start,
            Mapping {
                size,
                physical: id,
                access: 0,
            },
        );
        Ok(())
    }

    pub fn unmap_physical(&self, start: CUdeviceptr, size: u64) -> Done {
        let mut objects = self.objects();
        for base in objects.virtual_memory.mappings_in(start, size)? {
            let Some(mapping) = objects.virtual_memory.mapped.remove(&base) else {
                continue;
            };
            map_nothing(base, mapping.size, libc::MAP_FIXED);
            if let Some(physical) = objects.virtual_memory.physical.get_mut(&mapping.physical) {
                physical.mappings -= 1;
            }
            self.collect(&mut objects, mapping.physical);
        }
        Ok(())
    }

    /// `cuMemSetAccess`: `flags` as in CUmemAccess_flags. Reading and writing are kept apart in what is answered, not in what is allowed.
    pub fn set_access(&self, start: CUdeviceptr, size: u64, flags: u32) -> Done {
        let protection = match flags {
            0 => libc::PROT_NONE,
            1 | 3 => libc::PROT_READ | libc::PROT_WRITE,
            _ => return Err(CUresult::INVALID_VALUE),
        };
        let mut objects = self.objects();
        for base in objects.virtual_memory.mappings_in(start, size)? {
            let Some(mapping) = objects.virtual_memory.mapped.get_mut(&base) else {
                continue;
            };
            mapping.access = flags;
            // SAFETY: a mapping of ours.
            unsafe { libc::mprotect(base as *mut _, mapping.size as usize, protection) };
        }
        Ok(())
    }

    /// A descriptor by which another process can import the memory. From now on it is accounted for as shared.
    pub fn export_physical(&self, id: PhysicalId) -> Done<RawFd> {
        let failed = |_| CUresult::OPERATING_SYSTEM;
        let mut objects = self.objects();
        objects.virtual_memory.physical(id)?;
        let physical = objects.virtual_memory.physical_mut(id)?;
        if physical.handle_types & CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0 == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let backing = physical.backing.clone();
        if physical.shared.is_none() {
            let inode = backing.metadata().map_err(failed)?.ino();
            let (gpu, size) = (physical.gpu, physical.size);
            physical.shared = Some(inode);
            let added = self.add_share(&mut objects, gpu, size, inode);
            if added.is_err() {
                objects.virtual_memory.physical_mut(id)?.shared = None;
                return Err(CUresult::OUT_OF_MEMORY);
            }
        }
        Ok(backing.try_clone().map_err(failed)?.into_raw_fd())
    }

    /// Memory another process exported; importing what this process already holds adds a reference.
    pub fn import_physical(&self, descriptor: RawFd) -> Done<PhysicalId> {
        if descriptor < 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: the caller's descriptor, borrowed for the call; one that is not open fails to be duplicated.
        let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
        let backing = File::from(duplicate.map_err(|_| CUresult::INVALID_VALUE)?);
        let inode = backing
            .metadata()
            .map_err(|_| CUresult::INVALID_VALUE)?
            .ino();
        let mut objects = self.objects();
        let mut held = objects.virtual_memory.physical.iter_mut();
        if let Some((id, physical)) = held.find(|(_, physical)| physical.shared == Some(inode)) {
            physical.references += 1;
            return Ok(*id);
        }
        let held = self.hold_share(&mut objects, inode);
        let (gpu, size) = match held {
            Some(held) => held,
            None => self.revive(&mut objects, &backing, inode)?,
        };
        let handle_types = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0;
        let id = self.next_id();
        let physical = Physical {
            gpu,
            size,
            handle_types,
            is_tile_pool: false,
            references: 1,
            mappings: 0,
            backing: Arc::new(backing),
            offset: 0,
            shared: Some(inode),
            team: None,
        };
        objects.virtual_memory.physical.insert(id, physical);
        Ok(id)
    }

    /// Memory that only the descriptor has kept: everybody who held it is gone. It is taken from the GPU again, which a real one would never have had
    /// back; who has a descriptor in flight cannot be known here.
    fn revive(&self, objects: &mut Objects, backing: &File, inode: u64) -> Done<(usize, u64)> {
        let gpu = self.gpu_of(backing).filter(|gpu| self.may_share(*gpu));
        let gpu = gpu.ok_or(CUresult::INVALID_VALUE)?;
        let found = backing.metadata().map_err(|_| CUresult::INVALID_VALUE)?;
        self.take_bytes(gpu, found.size())?;
        self.add_share(objects, gpu, found.size(), inode)
            .inspect_err(|_| self.return_bytes(gpu, found.size()))?;
        Ok((gpu, found.size()))
    }

    /// The GPU whose name a file in memory has.
    fn gpu_of(&self, backing: &File) -> Option<usize> {
        let path = format!("/proc/self/fd/{}", backing.as_raw_fd());
        let path = std::fs::read_link(path).ok()?;
        let path = path.to_str()?.strip_prefix("/memfd:divvy-sim ")?;
        let name = path.split(' ').next()?;
        let mut seats = self.state().partitions();
        seats.find(|seat| self.state().name_of(*seat) == name)
    }

    /// Gives physical memory back once nothing refers to it.
    fn collect(&self, objects: &mut Objects, id: PhysicalId) {
        let virtual_memory = &mut objects.virtual_memory;
        if virtual_memory
            .physical
            .get(&id)
            .is_none_or(|physical| physical.references + physical.mappings > 0)
        {
            return;
        }
        let Some(physical) = virtual_memory.physical.remove(&id) else {
            return;
        };
        if let Some(inode) = physical.shared {
            self.release_share(objects, inode);
            return;
        }
        if let Some(common) = virtual_memory
            .common
            .as_mut()
            .filter(|common| Arc::ptr_eq(&common.file, &physical.backing))
        {
            let (mode, from, length) = (
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                physical.offset,
                physical.size,
            );
            // SAFETY: a descriptor of ours; the hole is the piece just given up.
            unsafe {
                libc::fallocate(
                    common.file.as_raw_fd(),
                    mode,
                    from as libc::off_t,
                    length as libc::off_t,
                )
            };
            common.offsets.give(from, length);
        }
        match physical.team {
            Some(team) => {
                for kept in team.keeps() {
                    self.unbind_physical(objects, kept);
                }
            }
            None => self.return_bytes(physical.gpu, physical.size),
        }
    }
}

fn unmap(start: u64, length: u64) {
    if length > 0 {
        // SAFETY: callers own the range.
        unsafe { libc::munmap(start as *mut _, length as usize) };
    }
}

/// Host memory for a physical allocation: a memfd of its own if it may be exported, with a name that says whose memory it stands for, otherwise a piece
/// of the common one.
fn back(
    virtual_memory: &mut VirtualMemory,
    size: u64,
    handle_types: u32,
    name: &str,
) -> io::Result<(Arc<File>, u64)> {
    if handle_types != 0 {
        let name = CString::new(name)?;
        return Ok((Arc::new(memfd(&name, size)?), 0));
    }
    let common = match &mut virtual_memory.common {
        Some(common) => common,
        none => none.insert(Common::new()?),
    };
    let offset = common
        .offsets
        .take(size, LARGE)
        .ok_or(io::ErrorKind::StorageFull)?;
    Ok((common.file.clone(), offset))
}
