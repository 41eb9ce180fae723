//! A reader that polls a slice: it keeps the ledger files open from one observation to the next.
//!
//! Opening a file costs several times what reading it does. Files that are open are believed no more than others: before each read it
//! is seen that what lies under their names is still what was opened, and what they hold is checked as if they had just been.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::map::{self, FileIdentity, OpenError};
use crate::slice::{Slice, Snapshot};

/// A slice, with its two files open as long as they are in place.
#[derive(Debug)]
pub struct Reader {
    slice: Slice,
    files: Mutex<Option<Files>>,
}

#[derive(Debug)]
struct Files {
    control: File,
    slots: File,
    /// The identities of both files when they were opened.
    were: [FileIdentity; 2],
}

impl Reader {
    /// Opens the slice in `dir`.
    ///
    /// # Errors
    /// As [`Slice::open`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let (slice, control) = Slice::open_control(dir)?;
        // The reader reaps dead processes, so it has to be able to write this file.
        let files = Files::open(&slice, Some(control), true)?;
        Ok(Self {
            slice,
            files: Mutex::new(Some(files)),
        })
    }

    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// As [`Slice::read`]: two looks at names and three reads, and a read more for each process (about a third of what it is
    /// with the files opened anew).
    ///
    /// # Errors
    /// As [`Slice::read`].
    pub fn read(&self) -> Result<Snapshot, OpenError> {
        let mut kept = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = match kept.take().filter(|files| files.are_in_place(&self.slice)) {
            Some(files) => files,
            None => Files::open(&self.slice, None, false)?,
        };
        // A file that cannot be read is opened anew the next time.
        let snapshot = self.slice.read_from(&files.control, &files.slots)?;
        *kept = Some(files);
        Ok(snapshot)
    }
}

impl Files {
    fn open(
        slice: &Slice,
        control: Option<(File, FileIdentity)>,
        write: bool,
    ) -> Result<Self, OpenError> {
        let (control, one) = match control {
            Some(control) => control,
            None => slice.open_file(map::CONTROL, false)?,
        };
        let (slots, other) = slice.open_file(map::SLOTS, write)?;
        Ok(Self {
            control,
            slots,
            were: [one, other],
        })
    }

    /// Also where a name is gone: a logout takes the names of a user's slices, and the job runs on.
    fn are_in_place(&self, slice: &Slice) -> bool {
        let is = |path: &Path, file: &File, was| match FileIdentity::at(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let status = file.metadata();
                status.is_ok_and(|status| FileIdentity::of(&status) == was)
            }
            there => there.is_ok_and(|is| is == was),
        };
        is(&slice.control, &self.control, self.were[0])
            && is(&slice.slots, &self.slots, self.were[1])
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::PathBuf;

    use super::*;
    use crate::{Control, GpuSpec, SliceSpec};

    struct Scene {
        root: tempfile::TempDir,
        control: Control,
        reader: Reader,
    }

    impl Scene {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let control = make(&root.path().join("a"), 1);
            let reader = Reader::open(&root.path().join("a")).unwrap();
            Self {
                root,
                control,
                reader,
            }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join("a").join(name)
        }

        /// Numbers of the descriptors that are kept.
        fn kept(&self) -> Option<[i32; 2]> {
            let files = self.reader.files.lock().unwrap();
            let numbers = |files: &Files| [files.control.as_raw_fd(), files.slots.as_raw_fd()];
            files.as_ref().map(numbers)
        }

        /// Reads through the reader, which has to say what a slice says whose files are opened anew.
        fn read(&self) -> Result<String, String> {
            let [kept, anew] = [self.reader.read(), self.reader.slice.read()];
            let said = |read: Result<Snapshot, OpenError>| {
                read.map(|snapshot| format!("{snapshot:?}"))
                    .map_err(|error| error.to_string())
            };
            let kept = said(kept);
            assert_eq!(kept, said(anew));
            kept
        }
    }

    fn make(folder: &Path, generation: u64) -> Control {
        let limit = 1 << 30;
        let gpus = vec![GpuSpec {
            limit,
            ..GpuSpec::default()
        }];
        let spec = SliceSpec {
            id: "7".into(),
            generation,
            gpus,
            ..SliceSpec::default()
        };
        Control::create(folder, &spec).unwrap()
    }

    #[test]
    fn the_files_stay_open_and_what_is_in_them_is_read_anew() {
        let scene = Scene::new();
        let kept = scene.kept();
        assert!(kept.is_some());
        assert!(scene.reader.read().unwrap().is_empty());
        scene.control.set_limit(0, 5);
        let slot = scene.reader.slice().join().unwrap();
        slot.reserve(0, 3).unwrap().commit();
        let snapshot = scene.reader.read().unwrap();
        let usage = snapshot.usage(0);
        assert_eq!((usage.limit, usage.charged), (5, 3));
        assert!(!snapshot.is_empty());
        scene.read().unwrap();
        assert_eq!(scene.kept(), kept);
    }

    #[test]
    fn a_reader_sees_changed_files_as_a_fresh_open_does() {
        type Deed = fn(&Scene);
        let deeds: [(&str, Deed, bool); 8] = [
            (
                "cut",
                |scene| {
                    let file = File::options().write(true).open(scene.path("slots"));
                    file.unwrap().set_len(100).unwrap();
                },
                false,
            ),
            (
                "another slice's in its place",
                |scene| {
                    make(&scene.root.path().join("b"), 2);
                    fs::rename(scene.root.path().join("b/slots"), scene.path("slots")).unwrap();
                },
                false,
            ),
            (
                "a link in its place",
                |scene| {
                    fs::rename(scene.path("slots"), scene.path("away")).unwrap();
                    std::os::unix::fs::symlink("away", scene.path("slots")).unwrap();
                },
                false,
            ),
            (
                "writable by others",
                |scene| {
                    let mode = fs::Permissions::from_mode(0o666);
                    fs::set_permissions(scene.path("control"), mode).unwrap();
                },
                false,
            ),
            ("no ledger any more", |scene| scene.put("slots", 0), false),
            (
                "of another generation",
                |scene| scene.put("slots", 24),
                false,
            ),
            (
                "without a GPU",
                |scene| {
                    let at = std::mem::offset_of!(crate::layout::ControlFile, gpu_count);
                    scene.put("control", at);
                },
                false,
            ),
            (
                "the same anew",
                |scene| {
                    fs::copy(scene.path("slots"), scene.path("copy")).unwrap();
                    fs::rename(scene.path("copy"), scene.path("slots")).unwrap();
                },
                true,
            ),
        ];
        for (name, deed, is_sound) in deeds {
            let scene = Scene::new();
            deed(&scene);
            assert_eq!(scene.read().is_ok(), is_sound, "{name}");
            assert_eq!(scene.kept().is_some(), is_sound, "{name}");
        }
    }

    impl Scene {
        /// Writes eight odd bytes into a file.
        fn put(&self, name: &str, at: usize) {
            let file = File::options().write(true).open(self.path(name)).unwrap();
            file.write_all_at(&[0xee; 8], at as u64).unwrap();
        }
    }

    /// As after a logout. What is read is checked as before.
    #[test]
    fn files_whose_names_are_gone_are_read_on() {
        let scene = Scene::new();
        let kept = scene.kept();
        let file = File::options().write(true).open(scene.path("slots"));
        fs::remove_dir_all(scene.root.path().join("a")).unwrap();
        scene.control.set_limit(0, 5);
        assert_eq!(scene.reader.read().unwrap().usage(0).limit, 5);
        assert_eq!(scene.kept(), kept);
        file.unwrap().set_len(100).unwrap();
        scene.reader.read().unwrap_err();
    }

    #[test]
    fn what_was_damaged_and_is_mended_is_read_again() {
        let scene = Scene::new();
        let slots = scene.path("slots");
        let away = scene.path("away");
        fs::rename(&slots, &away).unwrap();
        fs::create_dir(&slots).unwrap();
        scene.read().unwrap_err();
        fs::remove_dir(&slots).unwrap();
        fs::rename(&away, &slots).unwrap();
        scene.read().unwrap();
        assert!(scene.kept().is_some());
    }
}
