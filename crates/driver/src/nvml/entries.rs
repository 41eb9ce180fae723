//! Buffers for NVML's process lists, whose entries have another size (stride) with some drivers.
//!
//! Drivers 535.43 to 535.98 write 32 bytes for each entry of `nvmlDeviceGet…RunningProcesses_v3`, and other drivers 24
//! (public reports; not verified on hardware). Only what a driver has written tells. So each entry has room for the
//! widest layout, and the bytes before the call are a pattern.

use std::marker::PhantomData;

/// Bytes of the widest entry of a process list: today's widest, with memory that is protected, has 32. Room for one
/// more word, so that a wider layout is found as unknown and not read as two entries.
pub const WIDEST: usize = 40;

/// No pid, size or instance that a driver writes.
const UNWRITTEN: u64 = 0x5aa5_5aa5_5aa5_5aa5;

/// Room for entries that begin with an `E`.
pub struct Entries<E> {
    words: Vec<u64>,
    entry: PhantomData<E>,
}

impl<E: Copy> Entries<E> {
    const WIDTH: usize = if size_of::<E>() > WIDEST {
        size_of::<E>()
    } else {
        WIDEST
    };

    pub fn with_room(room: usize) -> Self {
        const { assert!(align_of::<E>() <= align_of::<u64>()) };
        Self {
            words: vec![UNWRITTEN; (room * Self::WIDTH).div_ceil(size_of::<u64>())],
            entry: PhantomData,
        }
    }

    pub fn as_mut_ptr(&mut self) -> *mut E {
        self.words.as_mut_ptr().cast()
    }

    /// How wide the driver's entries are, of which it has written `count`.
    pub fn stride(&self, count: usize) -> usize {
        let bytes = |word: &u64| word.to_ne_bytes();
        let pattern = bytes(&UNWRITTEN);
        let last = self.words.iter().rposition(|word| *word != UNWRITTEN);
        let written = last.map_or(0, |at| {
            let word = bytes(&self.words[at]);
            let last = (0..word.len())
                .rev()
                .find(|byte| word[*byte] != pattern[*byte]);
            at * word.len() + last.map_or(0, |last| last + 1)
        });
        let own = size_of::<E>();
        let mut wider = (own..=WIDEST).step_by(align_of::<u64>());
        // A driver that wrote more than it tells of has said nothing of its entries.
        wider
            .find(|stride| count * stride >= written)
            .unwrap_or(own)
    }

    /// The beginning of each of `count` entries, and the rest of it, padded with zeros.
    ///
    /// # Safety
    /// Any bytes are a valid `E`.
    pub unsafe fn read(&self, count: usize, stride: usize) -> Vec<(E, [u8; WIDEST])> {
        let bytes = self.words.as_ptr().cast::<u8>();
        let count = count.min(self.words.len() * size_of::<u64>() / stride.max(1));
        let rest = stride.saturating_sub(size_of::<E>()).min(WIDEST);
        let read = |at: usize| {
            let mut tail = [0; WIDEST];
            // SAFETY: within the words, as was asked above; any bytes are an `E`.
            unsafe {
                let entry = bytes.add(at * stride);
                let from = entry.add(size_of::<E>());
                tail.as_mut_ptr().copy_from_nonoverlapping(from, rest);
                (entry.cast::<E>().read_unaligned(), tail)
            }
        };
        (0..count).map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::nvml::{NO_INSTANCE, nvmlProcessInfo_t};

    /// What a driver with entries of `stride` bytes writes of `count` processes.
    fn written(stride: usize, count: u32) -> Entries<nvmlProcessInfo_t> {
        let mut entries = Entries::<nvmlProcessInfo_t>::with_room(64);
        let start = entries.as_mut_ptr().cast::<u8>();
        for at in 0..count {
            let entry = nvmlProcessInfo_t {
                pid: 100 + at,
                usedGpuMemory: 7,
                gpuInstanceId: NO_INSTANCE,
                computeInstanceId: NO_INSTANCE,
            };
            // SAFETY: there is room for 64 entries of the widest layout.
            unsafe {
                let place = start.add(at as usize * stride);
                place.write_bytes(0x41, stride);
                place.cast::<nvmlProcessInfo_t>().write_unaligned(entry);
            }
        }
        entries
    }

    #[test]
    fn the_stride_of_a_drivers_process_list_is_found_by_what_it_wrote() {
        for stride in [24, 32, 40] {
            for count in [1, 2, 3, 40, 64] {
                let entries = written(stride, count);
                let found = entries.stride(count as usize);
                assert_eq!(found, stride, "{count} processes");
                // SAFETY: integers only.
                let read = unsafe { entries.read(count as usize, found) };
                let pids: Vec<u32> = read.iter().map(|(entry, _)| entry.pid).collect();
                assert_eq!(pids, (100..100 + count).collect::<Vec<u32>>());
                let rest = stride - size_of::<nvmlProcessInfo_t>();
                let whole = |tail: &[u8]| tail[..rest].iter().all(|byte| *byte == 0x41);
                assert!(read.iter().all(|(_, tail)| whole(tail)), "{stride}");
            }
        }
    }

    #[test]
    fn a_process_list_that_tells_nothing_of_its_stride_is_read_as_declared() {
        let own = size_of::<nvmlProcessInfo_t>();
        assert_eq!(written(32, 0).stride(0), own);
        // It wrote more entries than it tells of.
        assert_eq!(written(24, 9).stride(2), own);
    }
}
