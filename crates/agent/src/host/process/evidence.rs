//! Evidence about a process from `/proc`: its mapped and open files, its name, its pid in its own PID namespace.
//!
//! A process can hide its files (`prctl(PR_SET_DUMPABLE, 0)`, a set-user-id program). Only the kernel's own entries are
//! beyond its control. So the absence of evidence proves nothing. A process lives on after its first thread has ended,
//! and `/proc/PID` then shows no file of it: its other threads do (`/proc/PID/task`).

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use divvy_core::reconcile::Limiter;
use divvy_ledger::MOUNTED;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{mounts, of_any_thread, proc_path, threads};
use crate::host::device_nodes;

/// Files that are evidence when a process maps or opens them.
#[derive(Clone, Debug, Default)]
pub struct KnownFiles {
    /// The limiter's.
    pub limiters: Vec<KnownFile>,
    /// The simulated driver's state; the real driver's devices are known by their numbers.
    pub driver: Option<KnownFile>,
}

/// A file that a process may map under another name: in another mount namespace its path is its mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownFile {
    path: PathBuf,
    /// Device (major, minor) and inode.
    id: Option<(u32, u32, u64)>,
}

impl KnownFile {
    pub fn of(path: &Path) -> Self {
        Self::open(path).unwrap_or_else(|_| Self {
            path: path.to_owned(),
            id: None,
        })
    }

    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = fs::File::from(openat(CWD, path, flags, Mode::empty())?);
        Ok(Self {
            // As the kernel has it in `maps`: links are followed.
            path: fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?,
            id: Some(file_id(&file.metadata()?)),
        })
    }

    fn is(&self, mapping: &Mapping<'_>) -> bool {
        mapping.name == self.path.as_os_str().as_bytes() || self.id == Some(mapping.id)
    }
}

/// Names of the real driver's device files begin so. A mapping has no device number, and its name counts against the
/// process only: a process may bind `/dev` elsewhere in a mount namespace of its own.
const DEVICES: &[u8] = b"/dev/nvidia";

/// The node behind whose descriptors the driver keeps exported memory (inferred): `/dev/nvidiactl` (Linux' devices.txt).
const CONTROL: (u32, u32) = (device_nodes::NVIDIA, 255);

/// Names of the simulated driver's exported memory begin so: a UUID follows.
const SIMULATED: &[u8] = b"/memfd:divvy-sim GPU-";

/// The observer looks at so many descriptors of a process: all of one with the usual limit (RLIMIT_NOFILE, 1,024). A
/// process may have a million, which would take the observer seconds.
const MOST_DESCRIPTORS: usize = 1024;

/// The kill-switch, as it stands in an environment.
const OFF: &[u8] = b"DIVVY_SHIM=off";

/// Finds the limiter in a process.
pub fn find_limiter(pid: u32, marks: &KnownFiles) -> Limiter {
    match maps(pid) {
        None => Limiter::Hidden,
        Some(maps) if !mappings(&maps).any(|mapping| is_limiter(&mapping, marks)) => {
            Limiter::NotLoaded
        }
        Some(_) if is_off(pid) => Limiter::Off,
        Some(_) => Limiter::Loaded,
    }
}

/// Whether a process has the driver open; `None` where that cannot be seen.
pub fn has_driver(pid: u32, marks: &KnownFiles) -> Option<bool> {
    has_opened_driver(pid, marks.driver.as_ref(), &device_nodes::driver_majors())
}

/// The same of a simulated driver with this state, and of devices with these major numbers.
fn has_opened_driver(pid: u32, state: Option<&KnownFile>, majors: &[u32]) -> Option<bool> {
    let is_driver = |mapping: Mapping<'_>| {
        mapping.name.starts_with(DEVICES) || state.is_some_and(|state| state.is(&mapping))
    };
    let mapped = maps(pid).map(|maps| mappings(&maps).any(is_driver));
    if mapped == Some(true) {
        return mapped;
    }
    let is_opened = |file: &fs::Metadata| {
        let is_device = file.file_type().is_char_device();
        let is_state = state.is_some_and(|state| state.id == Some(file_id(file)));
        is_state || (is_device && majors.contains(&rustix::fs::major(file.rdev())))
    };
    match has_open(pid, is_opened) {
        Some(false) => mapped,
        opened => opened,
    }
}

/// How many descriptors of a process can hold GPU memory without an allocation. Every CUDA process has some on a real
/// driver, and they tell no size.
pub fn memory_descriptors(pid: u32, marks: &KnownFiles) -> usize {
    let is_it = |file: &Path| match marks.driver {
        Some(_) => {
            fs::read_link(file).is_ok_and(|name| name.as_os_str().as_bytes().starts_with(SIMULATED))
        }
        None => fs::metadata(file).is_ok_and(|node| {
            let number = (
                rustix::fs::major(node.rdev()),
                rustix::fs::minor(node.rdev()),
            );
            node.file_type().is_char_device() && number == CONTROL
        }),
    };
    let count = |folder: PathBuf| {
        let files = fs::read_dir(folder.join("fd")).ok()?;
        let mut files = files.flatten().take(MOST_DESCRIPTORS).peekable();
        files.peek()?;
        Some(files.filter(|file| is_it(&file.path())).count())
    };
    of_any_thread(pid, count).unwrap_or_default()
}

/// Whether a process has a file mapped.
pub fn has_mapped(pid: u32, file: &KnownFile) -> bool {
    maps(pid).is_some_and(|maps| mappings(&maps).any(|mapping| file.is(&mapping)))
}

/// Whether a process is known to map files, and not this one. A process that is ending maps none.
pub fn maps_other_files(pid: u32, file: &KnownFile) -> bool {
    maps(pid).is_some_and(|maps| {
        let mut any = mappings(&maps).peekable();
        any.peek().is_some() && !any.any(|mapping| file.is(&mapping))
    })
}

/// The program's name; empty when the process is gone. At most 15 bytes, and whatever the process likes it to be.
pub fn name(pid: u32) -> String {
    let comm = fs::read(proc_path(pid, "comm")).unwrap_or_default();
    String::from_utf8_lossy(&comm)
        .trim_end_matches('\n')
        .to_owned()
}

/// A pid as the process itself knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespacedPid {
    pub pid: u32,
    /// Inode of its PID namespace; `None` where that cannot be seen.
    pub namespace: Option<u64>,
}

/// The pid that a process has in its own namespace: `NSpid` of proc(5) lists one for each namespace it is in.
pub fn namespaced_pid(pid: u32) -> NamespacedPid {
    let status = fs::read_to_string(proc_path(pid, "status")).unwrap_or_default();
    let own = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|pids| pids.split_ascii_whitespace().next_back())
        .and_then(|innermost| innermost.parse().ok());
    NamespacedPid {
        pid: own.unwrap_or(pid),
        namespace: pid_namespace(pid),
    }
}

/// Inode of a process's PID namespace; `None` where that cannot be seen.
pub fn pid_namespace(pid: u32) -> Option<u64> {
    let link = fs::read_link(proc_path(pid, "ns/pid")).ok()?;
    // `pid:[4026531836]`
    let number = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// Its mappings; `None` where they are not to be seen.
fn maps(pid: u32) -> Option<Vec<u8>> {
    let read = |folder: PathBuf| fs::read(folder.join("maps")).ok();
    of_any_thread(pid, |folder| read(folder).filter(|maps| !maps.is_empty()))
}

/// Device (major, minor) and inode, as `maps` has them.
fn file_id(file: &fs::Metadata) -> (u32, u32, u64) {
    let device = file.dev();
    (
        rustix::fs::major(device),
        rustix::fs::minor(device),
        file.ino(),
    )
}

/// A mapped file.
struct Mapping<'a> {
    name: &'a [u8],
    id: (u32, u32, u64),
}

/// The mapped files among the lines of `/proc/PID/maps`: `from-to mode offset major:minor inode   name`.
fn mappings(maps: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    let mapping = |line| {
        let mut rest: &[u8] = line;
        let mut fields: [&[u8]; 5] = [b""; 5];
        for field in &mut fields {
            let end = rest.iter().position(|byte| *byte == b' ')?;
            (*field, rest) = rest.split_at(end);
            let start = rest.iter().position(|byte| *byte != b' ')?;
            rest = rest.get(start..)?;
        }
        let (device, inode) = (
            std::str::from_utf8(fields[3]).ok()?,
            std::str::from_utf8(fields[4]).ok()?,
        );
        let (major, minor) = device.split_once(':')?;
        let hex = |digits| u32::from_str_radix(digits, 16).ok();
        rest.starts_with(b"/").then_some(Mapping {
            name: rest,
            id: (hex(major)?, hex(minor)?, inode.parse().ok()?),
        })
    };
    maps.split(|byte| *byte == b'\n').filter_map(mapping)
}

/// Whether any thread has such a file open; `None` where that cannot be seen. Each thread may have descriptors of its own
/// (`unshare(CLONE_FILES)`).
fn has_open(pid: u32, is_it: impl Fn(&fs::Metadata) -> bool) -> Option<bool> {
    let mut sees_all = true;
    for thread in threads(pid).ok()? {
        match fs::read_dir(thread.join("fd")) {
            // The descriptors are links to the files themselves, whatever leads to them in this mount namespace.
            Ok(files) => {
                let mut files = files.flatten().flat_map(|file| fs::metadata(file.path()));
                if files.any(|file| is_it(&file)) {
                    return Some(true);
                }
            }
            Err(error) => sees_all &= error.kind() == io::ErrorKind::NotFound,
        }
    }
    sees_all.then_some(false)
}

fn is_limiter(mapping: &Mapping<'_>, marks: &KnownFiles) -> bool {
    marks.limiters.iter().any(|file| file.is(mapping))
}

/// Whether its limiter obeys `DIVVY_SHIM=off`: it does only where the limits are the process's own user's, and not
/// mounted for it. The limits are this daemon's user's.
fn is_off(pid: u32) -> bool {
    is_off_in_environ(pid)
        && effective_user(pid) == Some(rustix::process::geteuid().as_raw())
        && !mounts::has_mount_below(pid, Path::new(MOUNTED))
}

/// The kernel gives a program no more than this of arguments and environment (`_STK_LIM / 4 * 3`, fs/exec.c). A process
/// may move the bounds of its environment to as much memory as it likes (`PR_SET_MM`).
const MOST_ENVIRONMENT: u64 = 6 << 20;

/// Whether it was started with `DIVVY_SHIM=off`; what it sets itself later is not to be seen.
fn is_off_in_environ(pid: u32) -> bool {
    let environ = of_any_thread(pid, |folder| fs::File::open(folder.join("environ")).ok());
    environ.is_some_and(says_off)
}

/// Whether an environment has the switch.
fn says_off(source: impl io::Read) -> bool {
    let mut environ = Vec::new();
    // Of a process that ends meanwhile, what was read.
    let _ = source.take(MOST_ENVIRONMENT).read_to_end(&mut environ);
    environ.split(|byte| *byte == 0).any(|entry| entry == OFF)
}

/// `Uid:` of proc_pid_status(5): real, effective, saved, of the file system.
fn effective_user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(proc_path(pid, "status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn names_are_what_follows_the_fifth_field() {
        let maps = b"7f0-7f1 r-xp 00000000 00:1b 12345                      /a b/c.so\n\
            7f1-7f2 rw-p 00000000 00:00 0 \n7f2-7f3 rw-p 00000000 00:00 0     [heap]\n\
            7f3-7f4 rw-s 00000000 00:1c 9 /dev/shm/x (deleted)\ncut";
        let found: Vec<_> = mappings(maps)
            .map(|mapping| (mapping.name, mapping.id))
            .collect();
        let expected = [
            (&b"/a b/c.so"[..], (0, 0x1b, 12345)),
            (b"/dev/shm/x (deleted)", (0, 0x1c, 9)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_process_shows_what_it_has_mapped_and_opened() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().canonicalize().unwrap().join("state");
        fs::write(&state, "x").unwrap();
        let this = std::env::current_exe().unwrap();
        let me = std::process::id();
        let marks = |limiters: &[&Path]| KnownFiles {
            limiters: limiters.iter().map(|path| KnownFile::of(path)).collect(),
            driver: Some(KnownFile::of(&state)),
        };
        let seen = |marks: &KnownFiles| (find_limiter(me, marks), has_driver(me, marks));
        assert_eq!(seen(&marks(&[])), (Limiter::NotLoaded, Some(false)));
        let _open = fs::File::open(&state).unwrap();
        assert_eq!(seen(&marks(&[&this])), (Limiter::Loaded, Some(true)));
        assert!(has_mapped(me, &KnownFile::of(&this)) && !has_mapped(me, &KnownFile::of(&state)));
    }

    /// Opens a file in a second thread, with `unshare` under descriptors of its own; with `exit` the first thread ends.
    const LATER_THREADS: &str = "import ctypes, os, sys, threading
def second():
    if 'unshare' in sys.argv:
        assert ctypes.CDLL(None).unshare(0x400) == 0
    os.open(sys.argv[1], os.O_RDONLY)
    os.write(1, b'x')
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=second).start()
if 'exit' in sys.argv:
    ctypes.CDLL(None).pthread_exit(None)
threading.Event().wait()
";

    #[test]
    fn a_process_whose_first_thread_has_ended_shows_what_its_other_threads_have() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().canonicalize().unwrap().join("state");
        fs::write(&state, "x").unwrap();
        let node = Path::new("/dev/zero");
        for (file, words) in [
            (state.as_path(), "exit"),
            (&state, "unshare"),
            (node, "exit unshare"),
        ] {
            let mut child = Command::new("/usr/bin/python3")
                .args(["-c", LATER_THREADS])
                .arg(file)
                .args(words.split(' '))
                .env("DIVVY_SHIM", "off")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let answer = child.stdout.as_mut().unwrap();
            answer.read_exact(&mut [0]).unwrap();
            let pid = child.id();
            let is_zombie = || {
                let status = fs::read_to_string(proc_path(pid, "status")).ok()?;
                status.contains("State:\tZ").then_some(())
            };
            if words.contains("exit") {
                divvy_testkit::until("the first thread has ended", is_zombie);
            }
            let program = KnownFile::of(&fs::canonicalize("/usr/bin/python3").unwrap());
            // `/dev/zero` has the major number 1 (Linux' devices.txt), under any name.
            let (its, majors) = (KnownFile::of(&state), [195, 1]);
            let majors = if file == node {
                &majors[..]
            } else {
                &majors[..1]
            };
            assert_eq!(has_opened_driver(pid, None, &[195]), Some(false), "{words}");
            assert_eq!(
                has_opened_driver(pid, Some(&its), majors),
                Some(true),
                "{words}"
            );
            let marks = KnownFiles {
                limiters: vec![program.clone()],
                driver: None,
            };
            assert_eq!(find_limiter(pid, &marks), Limiter::Off, "{words}");
            assert!(has_mapped(pid, &program), "{words}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn the_kill_switch_is_seen_in_what_a_program_was_started_with() {
        let start = |value| {
            Command::new("cat")
                .env("DIVVY_SHIM", value)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        for (value, off) in [("off", true), ("on", false)] {
            let mut child = start(value);
            // The kernel sets the environment up some time after `spawn` returns; a process that answers has one.
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            assert_eq!(is_off_in_environ(child.id()), off);
            assert_eq!(
                is_off(child.id()),
                off,
                "it has this process's user and mounts"
            );
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_whose_limits_are_another_users_or_mounted_for_it_is_not_switched_off() {
        let slice = tempfile::tempdir().unwrap();
        let slice = slice.path().display();
        let mounted = format!(
            "mount -t tmpfs none /run && mkdir -p {MOUNTED} && mount --bind {slice} {MOUNTED} && exec cat"
        );
        let mounted = ["unshare", "-rm", "sh", "-c", &mounted];
        let another = ["setpriv", "--reuid=65534", "--clear-groups", "cat"];
        for words in [&mounted[..], &another] {
            let mut child = Command::new(words[0])
                .args(&words[1..])
                .env("DIVVY_SHIM", "off")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let answers = |child: &mut std::process::Child| {
                child.stdin.as_mut().unwrap().write_all(b"x")?;
                child.stdout.as_mut().unwrap().read_exact(&mut [0])
            };
            if answers(&mut child).is_err() {
                eprintln!("SKIPPED: {} cannot do its work here", words[0]);
            } else {
                assert!(is_off_in_environ(child.id()), "{words:?}");
                assert!(!is_off(child.id()), "{words:?}");
            }
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn an_environment_without_end_is_read_as_far_as_a_program_can_be_given_one() {
        assert!(!says_off(io::repeat(b'x')));
        let off = [b"A=1\0".as_slice(), OFF].concat();
        assert!(says_off(off.chain(io::repeat(0))));
    }

    #[test]
    fn a_process_of_this_namespace_has_one_pid() {
        let me = std::process::id();
        let own = namespaced_pid(me);
        assert_eq!(own.pid, me);
        assert_eq!(
            own.namespace,
            Some(divvy_ledger::ProcessIdentity::current().pid_namespace)
        );
        assert!(!name(me).is_empty());
    }
}
