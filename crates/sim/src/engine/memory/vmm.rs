//! Calls of virtual memory management: reserving addresses; creating, mapping, exporting and importing physical memory.

use crate::engine::machine::group::GroupId;
use crate::engine::objects::Objects;
use crate::engine::objects::memory::LARGE;
use crate::engine::objects::memory::backing::memfd;
use crate::engine::objects::multicast::MulticastObject;
use crate::engine::objects::result::Done;
use crate::engine::objects::vmm::{
    Common, Mapping, Physical, PhysicalId, Place, VirtualMemory, is_multiple, map_nothing,
};
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUmemAllocationHandleType, CUresult};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

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
        place: Place,
        size: u64,
        handle_types: u32,
        is_tile_pool: bool,
    ) -> Done<PhysicalId> {
        if size == 0 || !is_multiple(size) {
            return Err(CUresult::INVALID_VALUE);
        }
        let (name, group) = match place {
            Place::Gpu(gpu) => {
                self.check_gpu(gpu)?;
                let group = self.take_bytes(gpu, size)?;
                (format!("divvy-sim {}", self.state().name_of(gpu)), group)
            }
            Place::Host(node) => (format!("{HOST} {}", node.unwrap_or(0)), GroupId::NONE),
        };
        let mut objects = self.objects();
        let (backing, offset) = back(&mut objects.virtual_memory, size, handle_types, &name)
            .inspect_err(|_| self.return_physical(place, size, group))
            .map_err(|_| CUresult::OPERATING_SYSTEM)?;
        let id = self.next_id();
        let physical = Physical {
            place,
            size,
            handle_types,
            is_tile_pool,
            references: 1,
            mappings: 0,
            backing,
            offset,
            shared: None,
            group,
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
            place: Place::Gpu(gpu),
            size,
            handle_types: 0,
            is_tile_pool: false,
            references: 1,
            mappings: 0,
            backing,
            offset,
            shared: None,
            group: GroupId::NONE,
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

    /// `cuMemSetAccess`: `flags` as in CUmemAccess_flags. Reading and writing are kept apart in what is answered, not
    /// in what is allowed.
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
            let (place, size, group) = (physical.place, physical.size, physical.group);
            physical.shared = Some(inode);
            let added = place.gpu().map_or(Ok(()), |gpu| {
                self.add_share(&mut objects, gpu, size, inode, group)
            });
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
        let (place, size) = match (held, host_memory(&backing)) {
            (Some((gpu, size)), _) => (Place::Gpu(gpu), size),
            (None, Some(host)) => host,
            (None, None) => self.revive(&mut objects, &backing, inode)?,
        };
        let handle_types = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0;
        let id = self.next_id();
        let physical = Physical {
            place,
            size,
            handle_types,
            is_tile_pool: false,
            references: 1,
            mappings: 0,
            backing: Arc::new(backing),
            offset: 0,
            shared: Some(inode),
            group: GroupId::NONE,
            team: None,
        };
        objects.virtual_memory.physical.insert(id, physical);
        Ok(id)
    }

    /// Memory that only the descriptor has kept: all its holders are gone. It is taken from the GPU again, though a
    /// real GPU would never have had it back: a descriptor in flight is invisible here.
    fn revive(&self, objects: &mut Objects, backing: &File, inode: u64) -> Done<(Place, u64)> {
        let gpu = self.gpu_of(backing).filter(|gpu| self.may_share(*gpu));
        let gpu = gpu.ok_or(CUresult::INVALID_VALUE)?;
        let found = backing.metadata().map_err(|_| CUresult::INVALID_VALUE)?;
        let group = self.take_bytes(gpu, found.size())?;
        self.add_share(objects, gpu, found.size(), inode, group)
            .inspect_err(|_| self.return_bytes(gpu, found.size(), group))?;
        Ok((Place::Gpu(gpu), found.size()))
    }

    /// What physical memory has taken is there again.
    fn return_physical(&self, place: Place, size: u64, group: GroupId) {
        if let Place::Gpu(gpu) = place {
            self.return_bytes(gpu, size, group);
        }
    }

    /// The GPU that the name of a file in memory gives.
    fn gpu_of(&self, backing: &File) -> Option<usize> {
        let name = name_of(backing)?;
        let name = name.strip_prefix("divvy-sim ")?.split(' ').next()?;
        let mut partitions = self.state().partitions();
        partitions.find(|partition| self.state().name_of(*partition) == name)
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
            None => self.return_physical(physical.place, physical.size, physical.group),
        }
    }
}

/// Name of files that back exportable memory of the host.
const HOST: &str = "divvy-sim-host";

/// The name that a file in memory was made with, and what the system adds behind it.
fn name_of(backing: &File) -> Option<String> {
    let path = format!("/proc/self/fd/{}", backing.as_raw_fd());
    let path = std::fs::read_link(path).ok()?;
    Some(path.to_str()?.strip_prefix("/memfd:")?.to_owned())
}

/// Place and size of a file that backs memory of the host.
fn host_memory(backing: &File) -> Option<(Place, u64)> {
    let name = name_of(backing)?;
    let node = name.strip_prefix(HOST)?.split_whitespace().next()?;
    let size = backing.metadata().ok()?.size();
    Some((Place::Host(Some(node.parse().ok()?)), size))
}

fn unmap(start: u64, length: u64) {
    if length > 0 {
        // SAFETY: callers own the range.
        unsafe { libc::munmap(start as *mut _, length as usize) };
    }
}

/// Host memory for a physical allocation: a memfd of its own if it may be exported, with a name that says which GPU's
/// memory it stands for, otherwise a piece of the common one.
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
