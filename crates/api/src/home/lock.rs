//! The daemon's lock file: the process that serves an instance, its machine, and its socket. A reader does not try the
//! lock, since a successful attempt would take it.
//!
//! ```text
//! 4711                                   pid
//! 88123                                  its start time, in clock ticks since boot
//! lab1                                   host name
//! 9f0c3a44-…                             the kernel's boot id
//! /run/user/1000/divvy/divvy.sock        where it listens
//! ```
//! Earlier versions wrote the first two lines.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::{Home, machine};
use crate::proc;

/// The process that wrote its name into a daemon's lock, and lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    /// Clock ticks since boot, so that a recycled pid is another process.
    pub start_time: u64,
}

impl Holder {
    /// The process that has this pid now.
    pub fn of(pid: u32) -> Option<Self> {
        let start_time = start_time(pid)?;
        Some(Self { pid, start_time })
    }

    /// Whether the process with this pid is still the one that wrote the lock.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// What a daemon has written into its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockFile {
    pub holder: Holder,
    /// The name of its host; empty where an earlier version wrote the file.
    pub host: String,
    boot: String,
    pub socket: PathBuf,
}

impl LockFile {
    /// Writes into a lock that this process holds it and listens on this socket.
    ///
    /// # Errors
    /// Those of the file system, and where `/proc` does not show this process.
    pub fn take(file: &File, socket: PathBuf) -> io::Result<()> {
        let gone = || io::Error::other("/proc does not show this process");
        let holder = Holder::of(std::process::id()).ok_or_else(gone)?;
        Self::of(holder, socket).write(file)
    }

    fn of(holder: Holder, socket: PathBuf) -> Self {
        Self {
            holder,
            host: machine::host(),
            boot: machine::boot(),
            socket,
        }
    }

    /// Parses a lock file, also one of an earlier version.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let holder = Holder {
            pid: lines.next()?.parse().ok()?,
            start_time: lines.next()?.parse().ok()?,
        };
        let mut next = || lines.next().unwrap_or_default().to_owned();
        Some(Self {
            holder,
            host: next(),
            boot: next(),
            socket: next().into(),
        })
    }

    /// Whether the process runs on this machine, so that its pid means something here. A pid of another machine is not
    /// looked up.
    pub fn is_of_this_machine(&self) -> bool {
        self.boot.is_empty() || self.boot == machine::boot()
    }

    /// Whether it names another host than this one.
    pub fn is_of_other_host(&self) -> bool {
        !self.host.is_empty() && self.host != machine::host()
    }

    /// Whether the daemon runs, on this machine.
    pub fn is_alive(&self) -> bool {
        self.is_of_this_machine() && self.holder.is_alive()
    }

    /// `pid 4711`, or `pid 4711 on lab1` where that is another host.
    pub fn describe(&self) -> String {
        let pid = self.holder.pid;
        if self.is_of_other_host() {
            format!("pid {pid} on {}", self.host)
        } else {
            format!("pid {pid}")
        }
    }

    /// Writes the file's text in its place: a reader finds the old text, the new one, or none.
    fn write(&self, file: &File) -> io::Result<()> {
        let Holder { pid, start_time } = self.holder;
        let Self {
            host, boot, socket, ..
        } = self;
        let text = format!(
            "{pid}\n{start_time}\n{host}\n{boot}\n{}\n",
            socket.display()
        );
        // A daemon writes it again once it listens, and clients read it by then.
        let mut old = vec![0; text.len() + 1];
        let read = file.read_at(&mut old, 0);
        if read.is_ok_and(|bytes| old[..bytes] == *text.as_bytes()) {
            return Ok(());
        }
        file.set_len(0)?;
        file.write_all_at(text.as_bytes(), 0)
    }
}

impl Home {
    /// What the daemon's lock says, whether its daemon runs or not.
    ///
    /// # Errors
    /// As [`Home::holder`].
    pub fn lock_file(&self) -> io::Result<Option<LockFile>> {
        match fs::read_to_string(self.daemon_lock()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text.map(|text| LockFile::parse(&text)),
        }
    }

    /// The process that holds the daemon's lock; `None` where no living process of this machine does.
    ///
    /// # Errors
    /// When the lock cannot be read: another user's daemon has a lock of mode 0600.
    pub fn holder(&self) -> io::Result<Option<Holder>> {
        let path = self.daemon_lock();
        let lock = self.lock_file()?.filter(LockFile::is_alive);
        let holder = lock.map(|lock| lock.holder);
        // A file system with device numbers of its own (btrfs, overlay) is not found in the kernel's list, and the start time has to do.
        let is_others = |holder: &Holder| locked_by(&path).is_some_and(|pid| pid != holder.pid);
        Ok(holder.filter(|holder| !is_others(holder)))
    }
}

/// The process that holds this file exclusively by flock(2), by the kernel's word (`/proc/locks`, proc(5)). Any user may ask.
pub(super) fn locked_by(path: &Path) -> Option<u32> {
    let meta = fs::metadata(path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    holder_in(&locks, &format!("{major:02x}:{minor:02x}:{}", meta.ino()))
}

/// `place`: `fe:00:6079019`, the device in hexadecimal and the inode.
fn holder_in(locks: &str, place: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, "WRITE", pid, at, ..] if at == place => pid.parse().ok(),
            _ => None,
        }
    })
}

/// The 22nd field of `/proc/PID/stat`.
fn start_time(pid: u32) -> Option<u64> {
    let fields = proc::stat(pid)?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn this() -> Holder {
        Holder::of(std::process::id()).expect("this process lives")
    }

    fn written(home: &Home, holder: Holder) {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let file = options.open(home.daemon_lock()).unwrap();
        let lock = LockFile::of(holder, home.socket());
        lock.write(&file).unwrap();
    }

    #[test]
    fn a_lock_of_an_earlier_version_is_read_and_one_of_another_machine_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path()).unwrap();
        let Holder { pid, start_time } = this();
        fs::write(home.daemon_lock(), format!("{pid}\n{start_time}\n")).unwrap();
        let lock = home.lock_file().unwrap().unwrap();
        assert_eq!((lock.holder, lock.is_alive()), (this(), true));
        assert_eq!(lock.describe(), format!("pid {pid}"));
        written(&home, this());
        let lock = home.lock_file().unwrap().unwrap();
        assert!(lock.is_alive() && lock.socket == home.socket());
        // The same pid and start time, under another kernel.
        let text = format!("{pid}\n{start_time}\nlab2\nanother-boot\n/run/x.sock\n");
        fs::write(home.daemon_lock(), text).unwrap();
        let lock = home.lock_file().unwrap().unwrap();
        assert!(!lock.is_of_this_machine() && !lock.is_alive());
        assert_eq!(lock.describe(), format!("pid {pid} on lab2"));
        assert_eq!(home.holder().unwrap(), None);
        fs::write(home.daemon_lock(), "garbage").unwrap();
        assert_eq!(home.lock_file().unwrap(), None);
    }

    #[test]
    fn the_kernels_list_names_the_process_that_holds_a_file_exclusively() {
        let locks = "1: FLOCK  ADVISORY  WRITE 31162 fe:00:6079019 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 7 fe:00:6079019 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 29564 fe:00:10133507 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 9 fe:00:77 0 EOF\n";
        assert_eq!(holder_in(locks, "fe:00:6079019"), Some(31162));
        for other in ["fe:01:6079019", "fe:00:10133507", "fe:00:77"] {
            assert_eq!(holder_in(locks, other), None, "{other}");
        }
    }

    #[test]
    fn a_lock_names_its_holder_while_that_process_lives_and_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path()).unwrap();
        assert_eq!(home.holder().unwrap(), None, "there is no lock yet");
        written(&home, this());
        let file = File::open(home.daemon_lock()).unwrap();
        file.lock().unwrap();
        assert_eq!(home.holder().unwrap(), Some(this()));
        assert_eq!(locked_by(&home.daemon_lock()), Some(std::process::id()));
        // The pid has been given to another process since.
        let recycled = Holder {
            start_time: this().start_time + 1,
            ..this()
        };
        written(&home, recycled);
        assert_eq!(home.holder().unwrap(), None);
        // Another process wrote the file than the one that holds it.
        written(&home, Holder::of(1).unwrap());
        assert_eq!(home.holder().unwrap(), None);
    }
}
