//! Files behind parts of the reservation, so that other processes can map the same bytes.
//!
//! Linear memory begins as anonymous memory, which is fast. What is exported gets a file behind it, in blocks of 2 MiB
//! with everything else in them: as on a GPU, where a block of several small allocations is shared as a whole (CUDA
//! programming guide, "Interprocess Communication"). One sparse memfd a process holds all of them, at the offset that
//! their address has in the reservation.

use crate::engine::objects::memory::{LARGE, Memory};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// The kernel's page on x86-64.
const PAGE: u64 = 4096;

const PAGES: usize = (LARGE / PAGE) as usize;

/// The file, and the blocks it is behind.
pub struct Backing {
    file: File,
    blocks: BTreeSet<u64>,
}

/// Where others find bytes of this process: in the file of this inode, which has this descriptor here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackingLocation {
    pub descriptor: i32,
    pub inode: u64,
    pub offset: u64,
}

/// A file in memory; `name` appears in listings of descriptors.
pub fn memfd(name: &std::ffi::CStr, size: u64) -> io::Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: a valid name; the descriptor is owned by the result.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: made above, with no other owner.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(size)?;
    Ok(file)
}

/// Maps a part of a file over addresses of ours.
///
/// # Safety
/// The range belongs to the caller, and what was there is not in use.
pub unsafe fn map_file(address: u64, length: u64, file: &File, offset: u64) -> io::Result<()> {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
    );
    let descriptor = file.as_raw_fd();
    // SAFETY: by contract.
    unsafe { map(address, length, access, flags, descriptor, offset) }
}

/// Maps fresh anonymous memory over addresses of ours.
///
/// # Safety
/// As for [`map_file`].
pub unsafe fn map_anonymous(address: u64, length: u64) -> io::Result<()> {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
    );
    // SAFETY: by contract.
    unsafe { map(address, length, access, flags, -1, 0) }
}

unsafe fn map(
    address: u64,
    length: u64,
    access: i32,
    flags: i32,
    descriptor: i32,
    offset: u64,
) -> io::Result<()> {
    let (at, length, offset) = (address as *mut _, length as usize, offset as libc::off_t);
    // SAFETY: by the callers' contract.
    let map = unsafe { libc::mmap(at, length, access, flags, descriptor, offset) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made; a core dump of a simulated GPU is of no use.
    unsafe { libc::madvise(map, length, libc::MADV_DONTDUMP) };
    Ok(())
}

impl Memory {
    /// Puts the file behind everything in the blocks that a range lies in. The bytes stay as they are; no thread may
    /// write meanwhile.
    pub fn back_with_file(&mut self, start: u64, length: u64) -> io::Result<BackingLocation> {
        let range = self.range.clone().ok_or(io::ErrorKind::NotFound)?;
        let origin = *range.start();
        let backing = match &mut self.backing {
            Some(backing) => backing,
            none => none.insert(Backing {
                file: memfd(c"divvy-sim linear memory", range.end() - origin + 1)?,
                blocks: BTreeSet::new(),
            }),
        };
        let first = start & !(LARGE - 1);
        for block in (first..start + length).step_by(LARGE as usize) {
            if !backing.blocks.contains(&block) {
                copy_pages(&backing.file, block, block - origin)?;
                // SAFETY: whole blocks of the reservation; the bytes were copied, and the caller keeps writers away.
                unsafe { map_file(block, LARGE, &backing.file, block - origin) }?;
                backing.blocks.insert(block);
            }
        }
        Ok(BackingLocation {
            descriptor: backing.file.as_raw_fd(),
            inode: backing.file.metadata()?.ino(),
            offset: start - origin,
        })
    }

    /// Gives the pages of a range back to the system, whatever is behind them.
    pub fn discard(&self, first: u64, last: u64) {
        let advise = |from: u64, to: u64, advice| {
            // SAFETY: whole pages of the reservation that belong to a piece that is no longer in use.
            unsafe { libc::madvise(from as *mut _, (to - from) as usize, advice) };
        };
        advise(first, last, libc::MADV_DONTNEED);
        let Some(backing) = &self.backing else {
            return;
        };
        for block in backing.blocks.range(first & !(LARGE - 1)..last) {
            advise(
                first.max(*block),
                last.min(block + LARGE),
                libc::MADV_REMOVE,
            );
        }
    }
}

/// Copies one block, page by page, except untouched ones.
fn copy_pages(file: &File, block: u64, offset: u64) -> io::Result<()> {
    for page in touched_pages(block) {
        let at = page as u64 * PAGE;
        // SAFETY: a page of the reservation, which is readable.
        let bytes = unsafe { std::slice::from_raw_parts((block + at) as *const u8, PAGE as usize) };
        file.write_all_at(bytes, offset + at)?;
    }
    Ok(())
}

/// Pages of a block that are in memory or swapped out, by the kernel's account (proc(5), pagemap); all of them where
/// there is none.
fn touched_pages(block: u64) -> Vec<usize> {
    let mut entries = [0; PAGES * 8];
    let pages = File::open("/proc/self/pagemap");
    let read = pages.and_then(|pages| pages.read_exact_at(&mut entries, block / PAGE * 8));
    let is_there = |page: &usize| {
        let entry = entries[page * 8..].first_chunk().copied();
        read.is_err() || entry.is_none_or(|entry| u64::from_ne_bytes(entry) >> 62 != 0)
    };
    (0..PAGES).filter(is_there).collect()
}
