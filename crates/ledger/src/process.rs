//! Process identity: the pid and start time of this process, liveness of another one, and the clock. Nothing here
//! allocates.

use std::mem::MaybeUninit;

use crate::syscall::clock;

/// Nanoseconds of CLOCK_BOOTTIME: the same clock for every process of the machine, running on in sleep. No preload can
/// freeze or shift it.
pub fn boot_time_ns() -> u64 {
    clock(libc::CLOCK_BOOTTIME)
}

/// A process, told apart from all that had or will have its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProcessIdentity {
    /// As seen in its own PID namespace.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat: clock ticks since boot; 0 when it could not be found out.
    pub start_time: u64,
    /// Inode of its PID namespace (/proc/PID/ns/pid); 0 when it could not be found out.
    pub pid_namespace: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Liveness {
    Alive,
    /// Alive, and stopped by a signal: none of its threads gets on.
    Stopped,
    Gone,
    /// Of another PID namespace, or not readable: this process cannot know.
    Unknown,
}

impl ProcessIdentity {
    /// This process.
    pub fn current() -> Self {
        // SAFETY: getpid has no preconditions.
        let pid = unsafe { libc::getpid() } as u32;
        let stat = Stat::of(pid);
        Self {
            pid,
            start_time: stat.map_or(0, |stat| stat.start_time),
            pid_namespace: my_pid_namespace(),
        }
    }

    /// Whether the process lives, as far as this one can tell.
    pub(crate) fn liveness(&self) -> Liveness {
        if self.pid == 0 || self.pid > i32::MAX as u32 || self.pid_namespace != my_pid_namespace() {
            return Liveness::Unknown;
        }
        if self.pid_namespace == 0 || self.start_time == 0 {
            return Liveness::Unknown;
        }
        // SAFETY: signal 0 only asks.
        if unsafe { libc::kill(self.pid as libc::pid_t, 0) } != 0 {
            let missing = std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            return if missing {
                Liveness::Gone
            } else {
                Liveness::Alive
            };
        }
        // /proc may be mounted for another namespace than ours; then its numbers mean others.
        if !proc_is_ours() {
            return Liveness::Unknown;
        }
        match Stat::of(self.pid) {
            Some(stat) if stat.start_time != self.start_time || stat.finished => Liveness::Gone,
            Some(stat) if stat.stopped => Liveness::Stopped,
            _ => Liveness::Alive,
        }
    }
}

/// The fields of /proc/PID/stat that are needed here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    start_time: u64,
    /// A zombie without other threads: its files are closed, only its parent's wait is missing.
    finished: bool,
    /// By a signal (proc(5): `T`; `t`, a debugger's, comes and goes with every system call that is traced).
    stopped: bool,
}

impl Stat {
    /// Of a process, of this one by its first thread, which began with it. QEMU makes up what its program reads of itself, with
    /// a later time (linux-user/syscall.c, open_self_stat). Where /proc is of another namespace, the thread has another number.
    fn of(pid: u32) -> Option<Self> {
        let mut path = [0; 32];
        // SAFETY: getpid has no preconditions.
        if pid != unsafe { libc::getpid() } as u32 {
            return Self::read(proc_path(pid, "stat", &mut path));
        }
        Self::read(own_path(pid, &mut path)).or_else(|| Self::read(c"/proc/self/stat"))
    }

    fn read(path: &std::ffi::CStr) -> Option<Self> {
        let mut buffer = [0; 1024];
        Self::parse(read(path, &mut buffer)?)
    }

    /// The second field is the program's name in parentheses and may hold anything, also parentheses and spaces.
    fn parse(text: &[u8]) -> Option<Self> {
        let end_of_name = text.iter().rposition(|byte| *byte == b')')?;
        let mut fields = text
            .get(end_of_name + 1..)?
            .split(u8::is_ascii_whitespace)
            .filter(|field| !field.is_empty());
        let state = *fields.next()?.first()?;
        let mut number = |skip| fields.nth(skip).and_then(decimal);
        let threads = number(16)?;
        let start_time = number(1)?;
        Some(Self {
            start_time,
            finished: matches!(state, b'Z' | b'X') && threads <= 1,
            stopped: state == b'T',
        })
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// A number that this program image has and no other that the process was or will be (`execve` replaces the image and keeps
/// pid and start time): from the random bytes that the kernel gives each image (AT_RANDOM).
pub(crate) fn image() -> u64 {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u8; 8];
    // SAFETY: null, or the address of 16 bytes that the kernel put on the first stack, which stay there.
    unsafe { bytes.as_ref() }.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn my_pid_namespace() -> u64 {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a valid path and a place for the answer, read only when the call succeeded.
    unsafe {
        match libc::stat(c"/proc/self/ns/pid".as_ptr(), status.as_mut_ptr()) {
            0 => status.assume_init().st_ino,
            _ => 0,
        }
    }
}

fn proc_is_ours() -> bool {
    let mut buffer = [0u8; 16];
    // SAFETY: the buffer and its length.
    let length = unsafe {
        libc::readlink(
            c"/proc/self".as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        )
    };
    // SAFETY: getpid has no preconditions.
    let me = unsafe { libc::getpid() } as u64;
    usize::try_from(length)
        .ok()
        .and_then(|length| buffer.get(..length))
        .and_then(decimal)
        == Some(me)
}

/// `/proc/PID/NAME`.
fn proc_path<'a>(pid: u32, name: &str, buffer: &'a mut [u8; 32]) -> &'a std::ffi::CStr {
    // Longest: 6 + 10 + 5 bytes and the NUL.
    path(format_args!("/proc/{pid}/{name}"), buffer)
}

/// The file of this process's first thread.
fn own_path(pid: u32, buffer: &mut [u8; 32]) -> &std::ffi::CStr {
    // 16 + 10 + 5 bytes and the NUL.
    path(format_args!("/proc/self/task/{pid}/stat"), buffer)
}

/// Written without allocating.
fn path<'a>(text: std::fmt::Arguments<'_>, buffer: &'a mut [u8; 32]) -> &'a std::ffi::CStr {
    use std::io::Write;
    let _ = write!(&mut buffer[..], "{text}\0");
    std::ffi::CStr::from_bytes_until_nul(buffer).unwrap_or_default()
}

/// Whether a process is known not to map the file that this process has mapped at `here`. Another user's process may not
/// be seen, and one that is ending maps nothing: neither is known.
pub(crate) fn maps_other_files(pid: u32, here: *const u8) -> bool {
    let mut path = [0; 32];
    let mut file = None;
    each_mapping(c"/proc/self/maps", |[from, file_id @ ..]| {
        if from == here as u64 {
            file = Some(file_id);
        }
    });
    let mut others = 0usize;
    let seen = each_mapping(proc_path(pid, "maps", &mut path), |[_, file_id @ ..]| {
        others += usize::from(file_id != [0; 3]);
        if file == Some(file_id) {
            file = None;
        }
    });
    seen && others > 0 && file.is_some()
}

/// Reads the lines of `/proc/PID/maps`: `from-to mode offset major:minor inode name`. `false` where they cannot be read
/// to the end.
fn each_mapping(path: &std::ffi::CStr, mut each: impl FnMut([u64; 4])) -> bool {
    // SAFETY: a valid path.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return false;
    }
    let mut buffer = [0u8; 4096];
    let mut line = MappingLine::default();
    let end = loop {
        // SAFETY: the buffer and its length.
        let length = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Some(bytes) = usize::try_from(length).ok().and_then(|n| buffer.get(..n)) else {
            break false;
        };
        if bytes.is_empty() {
            break true;
        }
        for byte in bytes {
            if let Some(found) = line.add(*byte) {
                each(found);
            }
        }
    };
    // SAFETY: opened above, and closed once.
    unsafe { libc::close(file) };
    end
}

/// One line of `/proc/PID/maps`, byte by byte: a name may be longer than any buffer.
#[derive(Default)]
struct MappingLine {
    field: usize,
    /// Start, major and minor number of the device, and inode.
    numbers: [u64; 4],
}

impl MappingLine {
    /// The numbers of the line that ends with this byte.
    fn add(&mut self, byte: u8) -> Option<[u64; 4]> {
        let (at, radix) = match (byte, self.field) {
            (b'\n', _) => return Some(std::mem::take(self).numbers),
            (b'-', 0) | (b':', 4) | (b' ', 1..=3 | 5 | 6) => {
                self.field += 1;
                return None;
            }
            (_, 0) => (0, 16),
            (_, 4) => (1, 16),
            (_, 5) => (2, 16),
            (_, 6) => (3, 10),
            _ => return None,
        };
        let digit = (byte as char).to_digit(radix)?;
        self.numbers[at] = self.numbers[at]
            .wrapping_mul(radix.into())
            .wrapping_add(digit.into());
        None
    }
}

fn read<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: a valid path.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: the buffer and its length; the descriptor was opened above and is closed once.
    let length = unsafe {
        let length = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(file);
        length
    };
    usize::try_from(length)
        .ok()
        .and_then(|length| buffer.get(..length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_after_the_last_parenthesis() {
        let line = b"7 (a) S (b) R 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 991 1 2 3";
        assert_eq!(
            Stat::parse(line),
            Some(Stat {
                start_time: 991,
                finished: false,
                stopped: false
            })
        );
    }

    #[test]
    fn a_process_that_a_signal_has_stopped_is_told_from_one_that_is_traced() {
        let is_stopped = |state| {
            let line = format!("7 (a) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 991 1");
            Stat::parse(line.as_bytes()).map(|stat| stat.stopped)
        };
        let found = ["T", "t", "S", "R", "D", "Z"].map(is_stopped);
        assert_eq!(found[0], Some(true));
        assert_eq!(found[1..], [Some(false); 5]);
    }

    #[test]
    fn a_zombie_leader_with_other_threads_has_not_finished() {
        let line =
            |threads| format!("7 (a) Z 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 991 1");
        assert_eq!(
            Stat::parse(line(1).as_bytes()),
            Some(Stat {
                start_time: 991,
                finished: true,
                stopped: false
            })
        );
        assert_eq!(
            Stat::parse(line(2).as_bytes()),
            Some(Stat {
                start_time: 991,
                finished: false,
                stopped: false
            })
        );
    }

    #[test]
    fn a_mapping_is_read_by_its_start_and_file() {
        let text =
            b"7f00-7f10 r--p 00001000 08:1f 991      /a b-c:d 7\n7f10-7f20 rw-p 00000000 00:00 0\n";
        let mut line = MappingLine::default();
        let found: Vec<_> = text.iter().filter_map(|byte| line.add(*byte)).collect();
        assert_eq!(found, [[0x7f00, 8, 0x1f, 991], [0x7f10, 0, 0, 0]]);
    }

    #[test]
    fn a_process_maps_its_own_program_and_a_process_without_files_is_not_judged() {
        let here = std::process::id();
        let mut program = 0;
        each_mapping(c"/proc/self/maps", |[from, _, _, inode]| {
            program = if program == 0 && inode != 0 {
                from
            } else {
                program
            };
        });
        assert_ne!(program, 0);
        assert!(!maps_other_files(here, program as *const u8));
        // Nothing is mapped there, so nothing is known of its file.
        assert!(!maps_other_files(here, std::ptr::null()));
        // A kernel thread, or nothing at all where no other process is seen.
        assert!(!maps_other_files(2, program as *const u8));
    }

    #[test]
    fn half_a_stat_line_is_no_answer() {
        for line in [
            &b""[..],
            b"7",
            b"7 (a",
            b"7 (a) ",
            b"7 (a) S 1 2",
            b"7 (a) S 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 x",
        ] {
            assert_eq!(Stat::parse(line), None);
        }
    }

    #[test]
    fn this_process_is_alive_and_the_same_pid_at_another_time_is_not() {
        let me = ProcessIdentity::current();
        assert_eq!(me.liveness(), Liveness::Alive);
        assert_eq!(
            ProcessIdentity {
                start_time: me.start_time + 1,
                ..me
            }
            .liveness(),
            Liveness::Gone
        );
    }

    #[test]
    fn a_process_of_another_namespace_is_not_judged() {
        let me = ProcessIdentity::current();
        assert_eq!(
            ProcessIdentity {
                pid_namespace: me.pid_namespace + 1,
                ..me
            }
            .liveness(),
            Liveness::Unknown
        );
        assert_eq!(
            ProcessIdentity {
                pid_namespace: 0,
                ..me
            }
            .liveness(),
            Liveness::Unknown
        );
        assert_eq!(
            ProcessIdentity {
                start_time: 0,
                ..me
            }
            .liveness(),
            Liveness::Unknown
        );
    }
}
