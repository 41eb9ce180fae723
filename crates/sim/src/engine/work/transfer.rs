//! Copies and memory sets: which bytes, whether the program may touch them, moving them, and how long that takes.
//!
//! Whatever function a copy came by, it is the driver's own three-dimensional description of it, which is also what a
//! node of a graph keeps. The bytes move when the work is issued; only the time goes through the queue.

use crate::engine::objects::Objects;
use crate::engine::objects::context::Current;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Destination, Target};
use crate::engine::objects::transfer::{End, Extent, Move, Side};
use crate::engine::process::Process;
use crate::engine::time::Work;
use divvy_driver::sys::cuda::{
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUarray, CUmemorytype, CUresult,
};

/// Whether the caller waits for it.
#[derive(Clone, Copy)]
pub enum When {
    /// In a default stream, and the call returns when it is done.
    Now,
    /// In the stream of this value.
    InStream(usize),
}

/// A description of a copy of `size` bytes in a row.
pub fn row(to: (CUmemorytype, u64), from: (CUmemorytype, u64), size: usize) -> Move {
    let host = |(kind, at): (CUmemorytype, u64)| match kind {
        CUmemorytype::HOST => std::ptr::with_exposed_provenance_mut(at as usize),
        _ => std::ptr::null_mut(),
    };
    let device = |(kind, at): (CUmemorytype, u64)| match kind {
        CUmemorytype::HOST => 0,
        _ => at,
    };
    Move::Copy(CUDA_MEMCPY3D {
        srcMemoryType: from.0,
        srcHost: host(from),
        srcDevice: device(from),
        dstMemoryType: to.0,
        dstHost: host(to),
        dstDevice: device(to),
        WidthInBytes: size,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    })
}

/// What is to be done, found out from a [`Move`].
pub struct Transfer {
    to: End,
    source: Source,
    extent: Extent,
}

enum Source {
    From(End),
    /// A value, and its size: 1, 2 or 4 bytes.
    Value(u32, u32),
}

/// An end that an array names.
fn array_end(objects: &Objects, array: CUarray, corner: [usize; 3], extent: Extent) -> Done<End> {
    let array = Handle::from_value(array.addr());
    objects.arrays.end(array, corner, extent)
}

/// The end in linear memory that begins `corner` (bytes, rows, layers) behind `base`.
fn linear_end(side: Side, base: u64, pitch: usize, height: usize, corner: [usize; 3]) -> Done<End> {
    let [x, y, z] = corner;
    let start = z
        .checked_mul(height)
        .and_then(|rows| rows.checked_add(y)?.checked_mul(pitch)?.checked_add(x))
        .and_then(|offset| base.checked_add(offset as u64));
    Ok(End {
        side,
        start: start.ok_or(CUresult::INVALID_VALUE)?,
        pitch: pitch as u64,
        layer: pitch.checked_mul(height).ok_or(CUresult::INVALID_VALUE)? as u64,
    })
}

fn side(kind: CUmemorytype) -> Done<Side> {
    match kind {
        CUmemorytype::HOST => Ok(Side::Host),
        CUmemorytype::DEVICE => Ok(Side::Device),
        CUmemorytype::UNIFIED => Ok(Side::Any),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

impl Move {
    pub fn resolve(&self, objects: &Objects) -> Done<Transfer> {
        match self {
            Move::Copy(copy) => Transfer::copy(objects, copy),
            Move::Fill(fill) => Transfer::fill(fill),
        }
    }
}

impl Transfer {
    fn copy(objects: &Objects, copy: &CUDA_MEMCPY3D) -> Done<Transfer> {
        if copy.srcLOD != 0 || copy.dstLOD != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let extent = Extent {
            width: copy.WidthInBytes as u64,
            height: copy.Height as u64,
            depth: copy.Depth as u64,
        };
        let corner = [copy.dstXInBytes, copy.dstY, copy.dstZ];
        let to = match copy.dstMemoryType {
            CUmemorytype::ARRAY => array_end(objects, copy.dstArray, corner, extent)?,
            kind => {
                let base = match side(kind)? {
                    Side::Host => copy.dstHost.addr() as u64,
                    Side::Device | Side::Any => copy.dstDevice,
                };
                linear_end(side(kind)?, base, copy.dstPitch, copy.dstHeight, corner)?
            }
        };
        let corner = [copy.srcXInBytes, copy.srcY, copy.srcZ];
        let from = match copy.srcMemoryType {
            CUmemorytype::ARRAY => array_end(objects, copy.srcArray, corner, extent)?,
            kind => {
                let base = match side(kind)? {
                    Side::Host => copy.srcHost.addr() as u64,
                    Side::Device | Side::Any => copy.srcDevice,
                };
                linear_end(side(kind)?, base, copy.srcPitch, copy.srcHeight, corner)?
            }
        };
        Ok(Transfer {
            to,
            source: Source::From(from),
            extent,
        })
    }

    /// The width of a memory set is in elements.
    fn fill(fill: &CUDA_MEMSET_NODE_PARAMS) -> Done<Transfer> {
        let size = fill.elementSize;
        let is_aligned = |at: u64| matches!(size, 1 | 2 | 4) && at.is_multiple_of(u64::from(size));
        if !is_aligned(fill.dst) || !is_aligned(fill.pitch as u64) {
            return Err(CUresult::INVALID_VALUE);
        }
        let width = (fill.width as u64).checked_mul(u64::from(size));
        Ok(Transfer {
            to: linear_end(Side::Device, fill.dst, fill.pitch, 0, [0; 3])?,
            source: Source::Value(fill.value, size),
            extent: Extent {
                width: width.ok_or(CUresult::INVALID_VALUE)?,
                height: fill.height as u64,
                depth: 1,
            },
        })
    }

    fn ends(&self) -> impl Iterator<Item = End> {
        let from = match self.source {
            Source::From(end) => Some(end),
            Source::Value(..) => None,
        };
        [Some(self.to), from].into_iter().flatten()
    }

    /// Whether the GPU can reach all of it now.
    pub fn check(&self, process: &Process, objects: &Objects) -> Done {
        self.check_ends(
            |start, span| process.check_range(objects, start, span),
            objects,
        )
    }

    /// The same for a node of a graph: memory that a graph will allocate counts.
    pub fn check_in_graph(&self, process: &Process, objects: &Objects) -> Done {
        self.check_ends(
            |start, span| {
                if objects.graphs.memory.holds(start, span) {
                    Ok(())
                } else {
                    process.check_range(objects, start, span)
                }
            },
            objects,
        )
    }

    fn check_ends(&self, check: impl Fn(u64, u64) -> Done, objects: &Objects) -> Done {
        for end in self.ends() {
            let (start, span) = (end.start, self.extent.span(end)?);
            let is_known = || {
                objects.memory.containing(start).is_some()
                    || objects.memory.reserves(start)
                    || objects.virtual_memory.mapping(start).is_some()
            };
            match end.side {
                Side::Device => check(start, span)?,
                Side::Any if is_known() => check(start, span)?,
                Side::Host | Side::Any if start == 0 && span > 0 => {
                    return Err(CUresult::INVALID_VALUE);
                }
                Side::Host | Side::Any => {}
            }
        }
        Ok(())
    }

    /// Moves the bytes.
    ///
    /// # Safety
    /// [`check`](Self::check) has succeeded, and memory of the host's is what the caller says.
    pub unsafe fn carry_out(&self) {
        let width = self.extent.width as usize;
        if width == 0 {
            return;
        }
        match self.source {
            Source::From(from) => {
                let rows = self.extent.rows(self.to).zip(self.extent.rows(from));
                for (to, source) in rows {
                    let to = (self.to.start + to) as *mut u8;
                    let source = (from.start + source) as *const u8;
                    // SAFETY: by contract; device addresses are host addresses, and the rows may overlap.
                    unsafe { std::ptr::copy(source, to, width) };
                }
            }
            Source::Value(value, size) => {
                for row in self.extent.rows(self.to) {
                    let row = self.to.start + row;
                    // SAFETY: by contract; `fill` has found starts and pitches aligned to the element.
                    unsafe {
                        match size {
                            1 => fill_row(row, value as u8, width),
                            2 => fill_row(row, value as u16, width / 2),
                            _ => fill_row(row, value, width / 4),
                        }
                    }
                }
            }
        }
    }

    /// The time it takes; None for nothing to move.
    pub fn work(&self, process: &Process, gpu: usize) -> Option<Work> {
        let over_bus = self.ends().any(|end| end.side == Side::Host);
        let speed = bytes_per_us(process, gpu, over_bus);
        let bytes = self.extent.bytes();
        (bytes > 0).then(|| Work::Delay((bytes.saturating_mul(1000) / speed).max(1)))
    }
}

/// # Safety
/// `count` elements from `row` on are writable and aligned.
unsafe fn fill_row<T: Copy>(row: u64, value: T, count: usize) {
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts_mut(row as *mut T, count) }.fill(value);
}

/// Bytes per microsecond: over the bus about what pinned copies reach on PCIe generation 4 and 5, within the GPU half
/// of the memory's bandwidth.
fn bytes_per_us(process: &Process, gpu: usize, over_bus: bool) -> u64 {
    let model = process.model(gpu);
    match (over_bus, model.pcie_generation) {
        (true, 5..) => 50_000,
        (true, _) => 25_000,
        (false, _) => u64::from(model.memory_clock_mhz) * model.memory_bus_bits as u64 / 8,
    }
}

impl Process {
    /// Carries out copies or memory sets of one call, or makes nodes of them where the stream is captured.
    ///
    /// # Safety
    /// Host memory is what the descriptions say, until the work is done.
    pub unsafe fn transfer(&self, moves: &[Move], when: When) -> Done {
        let (target, current) = match when {
            When::Now => self.synchronous()?,
            When::InStream(stream) => match self.destination(stream)? {
                Destination::Issue(target, current) => (target, current),
                Destination::Capture(stream) => return self.capture_moves(stream, moves),
            },
        };
        // SAFETY: by contract.
        let ticket = unsafe { self.issue_moves(moves, target, current)? };
        match (when, ticket) {
            (When::Now, Some(ticket)) => self.wait_for(current.gpu, ticket),
            _ => Ok(()),
        }
    }

    /// Nothing is moved unless all can be.
    unsafe fn issue_moves(
        &self,
        moves: &[Move],
        target: Target,
        current: Current,
    ) -> Done<Option<u64>> {
        self.after_host_functions(current.gpu);
        let objects = self.objects();
        let transfers = moves
            .iter()
            .map(|of| of.resolve(&objects))
            .collect::<Done<Vec<_>>>()?;
        for transfer in &transfers {
            transfer.check(self, &objects)?;
        }
        for transfer in &transfers {
            // SAFETY: just checked; the rest by contract.
            unsafe { transfer.carry_out() };
        }
        drop(objects);
        let works = transfers
            .iter()
            .filter_map(|transfer| transfer.work(self, current.gpu));
        Ok(works.fold(None, |_, work| Some(self.issue(current.gpu, target, work))))
    }
}
