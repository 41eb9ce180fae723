//! The entry of a slice: a file that tells a process how to enter the slice of a claim, also while no daemon runs.
//!
//! ```text
//! claims/0/NAME.json      for root, or for the user of a user's daemon: it is that user's file
//! claims/UID/NAME.json    for the owner, where that is another user: a copy that belongs to the owner
//! ```
//! A process reads the file of its own user alone, so that no user can make root mount a file. The folders belong to
//! the daemon's user, and other users can list none of them.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use divvy_api::home::Home;
use serde::{Deserialize, Serialize};

use crate::host::run_as::Identity;
use crate::job_dir::injection::InjectionPolicy;
use crate::model::simulated_gpus::Simulated;

/// Form of the file. A program of another version refuses the file.
pub const VERSION: u32 = 1;

/// Bytes of an entry at most; a slice of 64 GPUs has about 6 KB.
const LARGEST: u64 = 1 << 20;

/// How to enter a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceEntry {
    pub version: u32,
    pub name: String,
    /// Number of the job that stands for the slice.
    pub job: String,
    /// Whose slice it is.
    pub owner: Identity,
    /// UUIDs of its GPUs, or of the MIG devices that are its parts of them.
    pub visible: Vec<String>,
    /// The slice's folder; `None` where the hardware holds it.
    pub slice: Option<PathBuf>,
    pub preload: PathBuf,
    pub simulated: Option<Simulated>,
    /// The form of the limiter; `None` where the hardware holds the slice.
    pub limiter: Option<InjectionPolicy>,
    /// A folder that is mounted for the slice's processes alone, and by which the daemon knows them.
    pub marker: PathBuf,
    pub refuse_user_namespaces: bool,
}

/// The entry of the slice with this name, for processes of a user.
pub fn path(home: &Home, uid: u32, name: &str) -> PathBuf {
    home.claims()
        .join(uid.to_string())
        .join(format!("{name}.json"))
}

impl SliceEntry {
    /// Writes the entry for a user, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, home: &Home, user: &Identity) -> io::Result<()> {
        let path = path(home, user.uid, &self.name);
        let folder = path.parent().unwrap_or(&path);
        match DirBuilder::new().mode(0o711).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let draft = folder.join(format!(".{}.new", self.name));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        if user.uid != rustix::process::geteuid().as_raw() {
            fchown(&file, Some(user.uid), Some(user.gid))?;
        }
        fs::rename(&draft, &path)
    }

    /// Reads the entry of a slice for this process's user; `None` without one.
    ///
    /// # Errors
    /// Those of the file system, and for a file of another user or of another version.
    pub fn read(home: &Home, name: &str) -> io::Result<Option<Self>> {
        let me = rustix::process::geteuid().as_raw();
        let path = path(home, me, name);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let meta = file.metadata()?;
        if meta.uid() != me || !meta.is_file() || meta.len() > LARGEST {
            let why = format!("{} is not a file of uid {me}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let entry: Self = serde_json::from_reader(file)?;
        if entry.version != VERSION {
            let (found, why) = (entry.version, "another version of Divvy wrote the entry");
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{why}: {found} instead of {VERSION}"),
            ));
        }
        Ok(Some(entry))
    }
}

/// Removes the entries of a slice, for every user.
pub fn remove(home: &Home, name: &str) {
    for folder in folders(home) {
        let _ = fs::remove_file(folder.join(format!("{name}.json")));
    }
}

/// Removes the entries that `stays` does not name, and unfinished ones.
pub fn remove_others(home: &Home, stays: impl Fn(&str) -> bool) {
    for folder in folders(home) {
        for file in fs::read_dir(folder).into_iter().flatten().flatten() {
            let file_name = file.file_name();
            let name = file_name
                .to_str()
                .and_then(|name| name.strip_suffix(".json"));
            if !name.is_some_and(&stays) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

fn folders(home: &Home) -> impl Iterator<Item = PathBuf> {
    let folders = fs::read_dir(home.claims()).into_iter().flatten().flatten();
    folders.map(|folder| folder.path())
}

/// Whether the slice's ledger is there.
pub fn has_ledger(slice: &Path) -> bool {
    slice.join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> SliceEntry {
        SliceEntry {
            version: VERSION,
            name: name.to_owned(),
            job: "7".into(),
            owner: me(),
            visible: vec!["GPU-1".into()],
            slice: Some("/run/divvy/slices/7".into()),
            preload: "/lib/libdivvy_preload.so".into(),
            simulated: None,
            limiter: Some(InjectionPolicy::Preload {
                because: "a test".into(),
            }),
            marker: "/var/lib/divvy/jobs/7/container/mounts".into(),
            refuse_user_namespaces: false,
        }
    }

    fn me() -> Identity {
        Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: None,
            account: None,
        }
    }

    fn home(folder: &Path) -> Home {
        let home = Home::under(folder).unwrap();
        home.create().unwrap();
        home
    }

    #[test]
    fn an_entry_is_read_by_its_user_and_removed_with_its_slice() {
        let folder = tempfile::tempdir().unwrap();
        let home = home(folder.path());
        assert_eq!(SliceEntry::read(&home, "a").unwrap(), None);
        for name in ["a", "b"] {
            entry(name).write(&home, &me()).unwrap();
            assert_eq!(SliceEntry::read(&home, name).unwrap(), Some(entry(name)));
        }
        remove(&home, "a");
        assert_eq!(SliceEntry::read(&home, "a").unwrap(), None);
        fs::write(path(&home, me().uid, ".c.new"), "draft").unwrap();
        remove_others(&home, |name| name == "b");
        assert!(SliceEntry::read(&home, "b").unwrap().is_some());
        assert!(!path(&home, me().uid, ".c.new").exists());
        remove_others(&home, |_| false);
        assert_eq!(SliceEntry::read(&home, "b").unwrap(), None);
    }

    #[test]
    fn root_does_not_read_the_entry_that_another_user_could_write() {
        let folder = tempfile::tempdir().unwrap();
        let home = home(folder.path());
        if me().uid != 0 {
            eprintln!("skipped: only root can give a file away");
            return;
        }
        entry("a").write(&home, &me()).unwrap();
        let file = path(&home, 0, "a");
        std::os::unix::fs::chown(&file, Some(60_105), None).unwrap();
        let error = SliceEntry::read(&home, "a").unwrap_err();
        assert!(error.to_string().contains("not a file of uid 0"), "{error}");
    }

    #[test]
    fn an_entry_of_another_version_or_size_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let home = home(folder.path());
        let later = SliceEntry {
            version: VERSION + 1,
            ..entry("a")
        };
        later.write(&home, &me()).unwrap();
        assert!(SliceEntry::read(&home, "a").is_err());
        let large = usize::try_from(LARGEST).unwrap() + 1;
        fs::write(path(&home, me().uid, "a"), vec![b' '; large]).unwrap();
        let error = SliceEntry::read(&home, "a").unwrap_err();
        assert!(error.to_string().contains("is not a file of"), "{error}");
    }
}
