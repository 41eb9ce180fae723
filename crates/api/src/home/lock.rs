//! Reader of the daemon's lock file: the process that serves an instance. It does not try the lock, since a successful
//! attempt would take it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::Home;
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

    /// Parses a lock file: the pid, and on a second line the start time of the process.
    fn parse(text: &str) -> Option<Self> {
        let (pid, start_time) = text.trim().split_once('\n')?;
        Some(Self {
            pid: pid.parse().ok()?,
            start_time: start_time.parse().ok()?,
        })
    }

    /// Whether the process with this pid is still the one that wrote the lock.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

impl Home {
    /// The process that holds the daemon's lock; `None` where no living process does.
    ///
    /// # Errors
    /// When the lock cannot be read: another user's daemon has a lock of mode 0600.
    pub fn holder(&self) -> io::Result<Option<Holder>> {
        let path = self.daemon_lock();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let holder = Holder::parse(&text).filter(|holder| holder.is_alive());
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

    fn written(home: &Home, Holder { pid, start_time }: Holder) {
        fs::write(home.daemon_lock(), format!("{pid}\n{start_time}\n")).unwrap();
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
