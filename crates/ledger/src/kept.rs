//! The descriptors of a slice's files that its job's supervisor keeps. They lead to the files when their names are gone.
//!
//! The slices of a user's own daemon lie below `/run/user/UID` or `/dev/shm`. systemd-logind empties both at the user's
//! last logout, while the job runs on. Processes that have joined keep their mappings. A process that starts later finds
//! no name, and opens the files through `/proc/SUPERVISOR/fd`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::layout::{CONTROL_NAME, SLOTS_NAME};

/// A slice's files, open. Programs do not inherit them.
#[derive(Debug)]
pub struct KeptFiles {
    _files: [File; 2],
}

impl KeptFiles {
    /// Opens the files of the slice in `dir`.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn of(dir: &Path) -> io::Result<Self> {
        let open = |name: &str| {
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
                .open(dir.join(name))
        };
        Ok(Self {
            _files: [open(CONTROL_NAME)?, open(SLOTS_NAME)?],
        })
    }
}

/// What stands for the folder of a slice with this id: the descriptors that its job's supervisor keeps.
pub fn folder(supervisor: u32, id: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{supervisor}/fd/{id}"))
}

/// Whether this stands for the folder of a slice.
pub fn is_of_descriptors(dir: &Path) -> bool {
    dir.parent().is_some_and(holds_descriptors)
}

/// The path of a slice's file in its folder, or the descriptor that leads to it.
pub(crate) fn file_in(dir: &Path, name: &str) -> PathBuf {
    let file = dir.join(name);
    if is_of_descriptors(dir) {
        descriptor(dir, name).unwrap_or(file)
    } else {
        file
    }
}

/// Whether the file is a descriptor of another process: a link that the kernel follows to the file itself.
pub(crate) fn is_descriptor(path: &Path) -> bool {
    path.parent().is_some_and(holds_descriptors)
}

fn holds_descriptors(dir: &Path) -> bool {
    dir.starts_with("/proc") && dir.ends_with("fd")
}

/// The descriptor of the file with this name in the folder of the slice. The kernel shows the path of an open file as it
/// was, without the folder of a mount that has gone, and with a note once the name has gone (proc(5)).
fn descriptor(dir: &Path, name: &str) -> Option<PathBuf> {
    let end = Path::new(dir.file_name()?).join(name);
    let descriptors = fs::read_dir(dir.parent()?).ok()?;
    descriptors
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let target = fs::read_link(path).unwrap_or_default();
            let target = target.to_string_lossy();
            Path::new(target.trim_end_matches(" (deleted)")).ends_with(&end)
        })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::slice::Slice;
    use crate::{Control, GpuSpec, OpenError, Reader, SliceSpec};

    /// A slice, its files kept by this process, and its names gone.
    fn without_names() -> (tempfile::TempDir, Control, Reader, KeptFiles) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        let spec = SliceSpec {
            id: "a".into(),
            generation: 1,
            gpus: vec![GpuSpec {
                limit: 1 << 30,
                ..GpuSpec::default()
            }],
            ..SliceSpec::default()
        };
        let control = Control::create(&dir, &spec).unwrap();
        let reader = Reader::open(&dir).unwrap();
        let kept = KeptFiles::of(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        (root, control, reader, kept)
    }

    #[test]
    fn a_slice_without_names_is_found_by_the_supervisors_descriptors() {
        let (root, control, reader, kept) = without_names();
        let me = std::process::id();
        let slice = Slice::open(&folder(me, "a")).unwrap();
        assert_eq!(slice.spec().id, "a");
        let slot = slice.join().unwrap();
        // For longer than the interval of looks, 4 ms.
        let joined = Instant::now();
        while joined.elapsed() < Duration::from_millis(10) {
            assert_eq!(slot.check(), Ok(()));
        }
        assert!(Slice::open(&folder(me, "b")).is_err());
        let dir = root.path().join("a");
        assert_eq!(Slice::find_folder(&dir, me, "a"), folder(me, "a"));
        assert_eq!(Slice::find_folder(&dir, me, "b"), dir, "it is another's");
        // One ledger: readers from before, by name or by descriptor, see the process.
        assert_eq!(reader.read().unwrap().processes().len(), 1);
        assert!(matches!(
            reader.slice().read(),
            Err(OpenError::Missing { .. })
        ));
        reader.slice().set_supervisor(me);
        assert_eq!(reader.slice().read().unwrap().processes().len(), 1);
        assert!(reader.slice().join().is_ok());
        // A daemon that starts now changes the same limit.
        Control::open_writable(&folder(me, "a"))
            .unwrap()
            .set_limit(0, 5);
        assert_eq!(reader.read().unwrap().usage(0).limit, 5);
        assert!(control.lies_in(&folder(me, "a")));
        drop((kept, reader, control, slot));
        let gone = Slice::open(&folder(me, "a"));
        assert!(matches!(gone, Err(OpenError::Missing { .. })), "{gone:?}");
    }
}
