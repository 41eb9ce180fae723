//! Tags on file descriptors: they identify memory that one process passes to another as a descriptor.
//!
//! The driver gives out descriptors of files that all look alike (of the same device node, inferred), so a descriptor says nothing
//! about what it stands for. But a read lock belongs to an *open file description*, which is what is sent to another process, and
//! the kernel tells the locks of a descriptor's own description (`/proc/self/fdinfo`, proc_pid_fdinfo(5)). A lock that begins at the
//! place that is the key marks it, and its length tells how much memory it is: the driver does not tell an importer. No other program
//! locks these files, and read locks exclude no process. The mark ends with the last descriptor. Where the exporter cannot set it or
//! the importer cannot read it, the importer is charged for the memory.

use std::fs;
use std::os::fd::RawFd;

/// Keys are places in a file: below 2^62, and above what any file is long.
const PLACES: u64 = 1 << 62;
const BEYOND_FILES: u64 = 1 << 56;
/// A lock's length counts pages of so many bytes, and one byte more.
const PAGE: u64 = 4096;
/// The most pages of a mark: with the greatest key its lock ends below 2^63.
const MOST_PAGES: u64 = 1 << 48;

/// Memory that goes from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorTag {
    pub key: u64,
    /// How much it is, in bytes; 0 where the mark does not tell.
    pub bytes: u64,
}

/// A key that no other process draws.
pub fn draw() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: writes at most as many bytes as there are. Of so few it always writes all, once the system has started.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes) % (PLACES - BEYOND_FILES) + BEYOND_FILES
}

/// Whether a key was drawn for a descriptor. The keys of handles are above all of these ([`of_bytes`]).
pub fn is_drawn(key: u64) -> bool {
    (BEYOND_FILES..PLACES).contains(&key)
}

/// Marks what a descriptor stands for. Returns whether it could be.
pub fn set(descriptor: RawFd, mark: DescriptorTag) -> bool {
    // SAFETY: all zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = mark.key as libc::off_t;
    lock.l_len = (mark.bytes.div_ceil(PAGE).min(MOST_PAGES) + 1) as libc::off_t;
    // SAFETY: a lock as the command wants it; a descriptor that is none is refused.
    unsafe { libc::fcntl(descriptor, libc::F_OFD_SETLK, &raw const lock) == 0 }
}

/// The mark on what a descriptor stands for.
pub fn get(descriptor: RawFd) -> Option<DescriptorTag> {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    told.lines().find_map(mark_in)
}

/// `lock:\t1: OFDLCK ADVISORY  READ -1 00:06:3 4611686018427387 4611686018427387`
fn mark_in(line: &str) -> Option<DescriptorTag> {
    let mut words = line.strip_prefix("lock:")?.split_whitespace().skip(1);
    let (kind, _, access) = (words.next()?, words.next()?, words.next()?);
    let (start, end): (u64, u64) = (words.nth(2)?.parse().ok()?, words.next()?.parse().ok()?);
    let pages = end.checked_sub(start)?;
    let is_mark = kind == "OFDLCK" && access == "READ" && pages <= MOST_PAGES;
    let mark = DescriptorTag {
        key: start,
        bytes: pages * PAGE,
    };
    (is_mark && is_drawn(start)).then_some(mark)
}

/// The key of memory that processes pass on as bytes: the driver returns the same bytes for one allocation and others
/// for the next (inferred: PyTorch, among others, identifies allocations by them).
pub fn of_bytes(bytes: &[u8]) -> u64 {
    let mixed = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |mixed: u64, byte| {
            (mixed ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    // The function above (FNV-1a) leaves the last bytes in the low bits; this spreads them.
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29) | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_mark_is_on_all_descriptors_of_one_opening_and_on_no_other() {
        for path in ["/dev/null", "/proc/self/exe"] {
            let file = File::open(path).unwrap();
            let copy = file.try_clone().unwrap();
            let other = File::open(path).unwrap();
            let mark = DescriptorTag {
                key: draw(),
                bytes: 6 << 20,
            };
            assert_eq!(get(file.as_raw_fd()), None);
            assert!(set(file.as_raw_fd(), mark));
            assert!(set(copy.as_raw_fd(), mark), "once more is no harm");
            drop(file);
            assert_eq!(get(copy.as_raw_fd()), Some(mark));
            assert_eq!(get(other.as_raw_fd()), None);
        }
        let of_unknown_size = DescriptorTag {
            key: draw(),
            bytes: 0,
        };
        assert!(!set(-1, of_unknown_size));
        assert_eq!(get(-1), None);
    }

    #[test]
    fn a_mark_tells_any_size() {
        let file = File::open("/dev/null").unwrap();
        for bytes in [0, 4096, 2 << 20, (1 << 60) - (2 << 20), 1 << 60] {
            let mark = DescriptorTag {
                key: PLACES - 1,
                bytes,
            };
            assert!(set(file.as_raw_fd(), mark), "{bytes}");
            assert_eq!(get(file.as_raw_fd()), Some(mark));
        }
    }

    #[test]
    fn locks_of_others_are_no_marks() {
        let mark =
            "lock:\t1: OFDLCK ADVISORY  READ -1 00:06:3 1311768467294899695 1311768467294899696";
        let told = DescriptorTag {
            key: 1_311_768_467_294_899_695,
            bytes: 4096,
        };
        assert_eq!(mark_in(mark), Some(told));
        for other in [
            "lock:\t1: OFDLCK ADVISORY  READ -1 00:06:3 0 EOF",
            "lock:\t1: OFDLCK ADVISORY  READ -1 00:06:3 7 7",
            "lock:\t1: OFDLCK ADVISORY  WRITE -1 00:06:3 1311768467294899695 1311768467294899695",
            "lock:\t1: POSIX ADVISORY  READ 77 00:06:3 1311768467294899695 1311768467294899695",
            "lock:\t1: FLOCK ADVISORY  READ 77 00:06:3 0 EOF",
            "flags:\t02",
            "lock:",
        ] {
            assert_eq!(mark_in(other), None, "{other}");
        }
    }

    #[test]
    fn keys_are_places_that_a_lock_can_have_and_no_file_has() {
        for _ in 0..1000 {
            assert!(is_drawn(draw()));
        }
        assert_ne!(draw(), draw());
    }

    #[test]
    fn handles_that_differ_in_one_bit_have_other_names() {
        let handle = [7u8; 64];
        let names: std::collections::HashSet<_> = (0..512)
            .map(|bit| {
                let mut other = handle;
                other[bit / 8] ^= 1 << (bit % 8);
                of_bytes(&other)
            })
            .chain([of_bytes(&handle)])
            .collect();
        assert_eq!(names.len(), 513);
        assert!(!names.into_iter().any(is_drawn));
    }
}
