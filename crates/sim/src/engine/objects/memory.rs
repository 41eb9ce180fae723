//! Linear memory of one process: device, managed and pinned host allocations, and module variables.
//!
//! Device addresses are host addresses in one large reservation without swap space, so a 141 GB GPU "fits": only
//! touched pages cost anything. What an allocation takes from the GPU is a model of the driver's granularity: multiples
//! of 2 MiB from 1 MiB on, multiples of 512 B below.

pub mod backing;

use crate::engine::machine::group::GroupId;
use crate::engine::objects::addresses::Addresses;
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::backing::Backing;
use crate::engine::objects::pool::Pool;
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const MIB: u64 = 1 << 20;

/// Granularity of allocations of 1 MiB and more, and of physical memory. What `cuMemGetAllocationGranularity` answers
/// on all current GPUs (CUDA).
pub const LARGE: u64 = 2 * MIB;

/// Granularity and alignment of smaller ones.
pub const SMALL: u64 = 512;

/// Pages of allocations at least this large are given back to the system when they are freed. A smaller one would cost
/// a call of the kernel for each free, for a few pages.
const GIVE_BACK_FROM: u64 = 64 * 1024;

/// Bytes of the GPU that an allocation of `size` bytes takes.
pub fn charged(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(if size >= MIB { LARGE } else { SMALL })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AllocationKind {
    Device,
    Managed,
    /// Pinned host memory from `cuMemHostAlloc`; the flags it was made with.
    Host(u32),
    /// The program's own memory, registered; the flags.
    Registered(u32),
    /// A variable of a module or library.
    Variable,
    /// Taken from a memory pool, which has the bytes.
    Pooled(Handle<Pool>),
    /// Allocated by a graph; the memory of graphs has the bytes.
    Graph,
    /// What an array lies in; no address that the program knows.
    Array,
    /// Another process's, opened by its handle.
    Opened,
    /// Another interface's.
    External,
    /// Out of another process's pool.
    PoolPointer,
}

#[derive(Clone, Copy)]
pub struct Allocation {
    pub base: CUdeviceptr,
    pub size: u64,
    pub kind: AllocationKind,
    pub gpu: usize,
    /// The context it dies with; None for libraries' variables.
    pub context: Option<Handle<Context>>,
    pub id: u64,
    /// Bytes taken from the GPU for it.
    pub charged: u64,
    /// The control group that they are charged to.
    pub group: GroupId,
}

/// Bytes that an object has taken from its GPU piece by piece, each with the control group that is charged for it.
#[derive(Default)]
pub struct Charges(pub Vec<(u64, GroupId)>);

impl Allocation {
    pub fn is_host(&self) -> bool {
        matches!(
            self.kind,
            AllocationKind::Host(_) | AllocationKind::Registered(_)
        )
    }
}

#[derive(Default)]
pub struct Memory {
    reservation: Option<Addresses>,
    /// First and last address of the reservation.
    range: Option<RangeInclusive<CUdeviceptr>>,
    allocations: BTreeMap<CUdeviceptr, Allocation>,
    /// The file behind what was exported.
    backing: Option<Backing>,
}

impl Memory {
    /// Takes addresses for an allocation of `size` bytes.
    pub fn take_addresses(&mut self, size: u64) -> Done<CUdeviceptr> {
        let reservation = match &mut self.reservation {
            Some(reservation) => reservation,
            none => {
                let (start, size) = reserve().ok_or(CUresult::OPERATING_SYSTEM)?;
                self.range = Some(start..=start + (size - 1));
                none.insert(Addresses::new(start, size))
            }
        };
        let length = charged(size).ok_or(CUresult::OUT_OF_MEMORY)?;
        reservation
            .take(length, if size >= MIB { LARGE } else { SMALL })
            .ok_or(CUresult::OUT_OF_MEMORY)
    }

    /// Whether an address is one of the GPUs', allocated or not.
    pub fn reserves(&self, address: CUdeviceptr) -> bool {
        let range = self.range.as_ref();
        range.is_some_and(|range| range.contains(&address))
    }

    pub fn give_addresses(&mut self, base: CUdeviceptr, size: u64) {
        let length = charged(size).expect("it was taken with this size");
        if length >= GIVE_BACK_FROM {
            // The pages at the ends may be shared with neighbours.
            let (first, last) = (base.next_multiple_of(4096), (base + length) & !4095);
            self.discard(first, last);
        }
        if let Some(reservation) = &mut self.reservation {
            reservation.give(base, length);
        }
    }

    pub fn insert(&mut self, allocation: Allocation) {
        self.allocations.insert(allocation.base, allocation);
    }

    /// The allocation that begins at `base`.
    pub fn at(&self, base: CUdeviceptr) -> Option<&Allocation> {
        self.allocations.get(&base)
    }

    /// The allocation that contains `address`.
    pub fn containing(&self, address: CUdeviceptr) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address - allocation.base < allocation.size).then_some(allocation)
    }

    /// Whether any allocation has an address of the range, which does not end beyond the last one.
    pub fn overlaps(&self, start: CUdeviceptr, length: u64) -> bool {
        let before = self.allocations.range(..start + length).next_back();
        before.is_some_and(|(base, allocation)| base + allocation.size > start)
    }

    pub fn remove(&mut self, base: CUdeviceptr) -> Option<Allocation> {
        self.allocations.remove(&base)
    }

    pub fn find(&self, wanted: impl Fn(&Allocation) -> bool) -> Vec<CUdeviceptr> {
        self.allocations
            .values()
            .filter(|allocation| wanted(allocation))
            .map(|allocation| allocation.base)
            .collect()
    }
}

/// Reserves addresses, as many as the process may have, up to far more than any GPU's memory so that fragments do not
/// matter.
fn reserve() -> Option<(u64, u64)> {
    let sizes = (32..=43).rev().map(|exponent| 1usize << exponent);
    sizes.into_iter().find_map(|size| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, chosen by the kernel.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping just made; a core dump of a simulated GPU is of no use.
        unsafe { libc::madvise(map, size, libc::MADV_DONTDUMP) };
        Some((map as u64, size as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_charged_in_the_modelled_granularity() {
        assert_eq!(
            [1, 512, 513, MIB - 1, MIB, 2 * MIB, 2 * MIB + 1].map(charged),
            [512, 512, 1024, MIB, LARGE, LARGE, 2 * LARGE].map(Some)
        );
        assert_eq!(charged(u64::MAX), None);
    }
}
