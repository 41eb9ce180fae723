//! Virtual memory management: physical memory by handle, reserved addresses, mappings between them.
//!
//! Physical memory is a piece of a memfd, so that it can be mapped at several places and sent to other processes. It
//! exists, and is charged, while it has a handle reference (`cuMemCreate`, retain, import) or a mapping. Memory made
//! exportable has a memfd of its own; the rest share one, so that thousands of handles do not need thousands of
//! descriptors.

use crate::engine::machine::group::GroupId;
use crate::engine::objects::addresses::Addresses;
use crate::engine::objects::memory::LARGE;
use crate::engine::objects::memory::backing::memfd;
use crate::engine::objects::multicast::MulticastObject;
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{CUdeviceptr, CUmemLocation, CUmemLocationType, CUresult};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Identifies physical memory in the API; counted up, never reused.
pub type PhysicalId = u64;

#[derive(Default)]
pub struct VirtualMemory {
    pub physical: BTreeMap<PhysicalId, Physical>,
    /// Reserved ranges by their start.
    pub reserved: BTreeMap<CUdeviceptr, u64>,
    /// Mappings by their start.
    pub mapped: BTreeMap<CUdeviceptr, Mapping>,
    pub common: Option<Common>,
}

/// Where physical memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Gpu(usize),
    /// The host, on this NUMA node if it was asked for one. It takes nothing of any GPU.
    Host(Option<i32>),
}

impl Place {
    /// The GPU; `None` for the host's.
    pub fn gpu(self) -> Option<usize> {
        match self {
            Place::Gpu(gpu) => Some(gpu),
            Place::Host(_) => None,
        }
    }

    /// The host's, as properties name it.
    pub fn host_location(node: Option<i32>) -> CUmemLocation {
        let (type_, id) = match node {
            Some(node) => (CUmemLocationType::HOST_NUMA, node),
            None => (CUmemLocationType::HOST, 0),
        };
        CUmemLocation { type_, id }
    }
}

pub struct Physical {
    pub place: Place,
    pub size: u64,
    pub handle_types: u32,
    /// Made to be bound to arrays.
    pub is_tile_pool: bool,
    /// References by handle.
    pub references: u32,
    pub mappings: u32,
    pub backing: Arc<File>,
    pub offset: u64,
    /// Inode of the memfd, once other processes may hold the memory too.
    pub shared: Option<u64>,
    /// The control group that it is charged to, while it is not shared.
    pub group: GroupId,
    /// What it is instead of memory of a GPU.
    pub team: Option<MulticastObject>,
}

impl Physical {
    pub fn is_team(&self) -> bool {
        self.team.is_some()
    }
}

#[derive(Clone, Copy)]
pub struct Mapping {
    pub size: u64,
    pub physical: PhysicalId,
    /// What `cuMemSetAccess` has said, as in CUmemAccess_flags.
    pub access: u32,
}

/// The memfd of all memory that cannot be exported.
pub struct Common {
    pub file: Arc<File>,
    pub offsets: Addresses,
}

const COMMON_SIZE: u64 = 1 << 43;

impl Common {
    pub fn new() -> io::Result<Common> {
        Ok(Common {
            file: Arc::new(memfd(c"divvy-sim", COMMON_SIZE)?),
            offsets: Addresses::new(0, COMMON_SIZE),
        })
    }
}

/// Maps `length` bytes at `address` with nothing behind them.
pub fn map_nothing(address: u64, length: u64, fixed: libc::c_int) -> Option<u64> {
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

    pub fn physical_mut(&mut self, id: PhysicalId) -> Done<&mut Physical> {
        let known = self.physical.get_mut(&id);
        known.ok_or(CUresult::INVALID_VALUE)
    }

    /// The mapping that contains `address`, with its start and size.
    pub fn mapping(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, u64, &Physical)> {
        let (start, mapping) = self.mapping_at(address)?;
        Some((start, mapping.size, self.physical.get(&mapping.physical)?))
    }

    pub fn mapping_at(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, &Mapping)> {
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

    pub fn reservation(&self, start: CUdeviceptr, length: u64) -> Done<CUdeviceptr> {
        let found = self.reserved.range(..=start).next_back();
        let (base, _) = found
            .filter(|(base, size)| start - **base <= **size && length <= **size - (start - **base))
            .ok_or(CUresult::INVALID_VALUE)?;
        Ok(*base)
    }

    /// Starts of the mappings that cover exactly the range.
    pub fn mappings_in(&self, start: CUdeviceptr, length: u64) -> Done<Vec<CUdeviceptr>> {
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

pub fn is_multiple(value: u64) -> bool {
    value.is_multiple_of(LARGE)
}
