//! The files of the registry: where they lie, which count, and how they are written.
//!
//! All users can make files in the folder, so nothing that a reader finds there is trusted but the file's owner and its
//! write lock, which no other user can take ([`divvy_ledger::ofd`]). A name with a nonce cannot be taken beforehand, and
//! in a sticky folder no other user can remove or replace the file.
//!
//! The folders can have very many other files, so a daemon lists each of them once ([`Place::watch`]). After that the
//! kernel reports each new name: a file gets its name by a rename, and the rename returns after inotify has queued the
//! name. So a daemon whose file another reader does not know yet has not read the others' entries either.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use divvy_api::home::machine;
use divvy_ledger::ofd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fchmod, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::registry::entry::{Entry, FILE, Writer};

/// The variable that names another folder.
const VARIABLE: &str = "DIVVY_REGISTRY";

/// Folders of root's that every user can write to. systemd removes a user's files from /dev/shm at the last logout
/// (RemoveIPC), so that one comes second; on some systems only root can write to /run/lock.
const FOLDERS: [&str; 3] = ["/run/lock", "/dev/shm", "/tmp"];

const ENTRY: &str = "divvy";
const HOLD: &str = "divvy-hold";
const NEW: &str = "divvy-new";

/// Files of one user that a reader looks at. A daemon has one, and one for each of its fork servers with jobs. So a
/// user cannot hold up others' daemons by a folder of a million files.
const FILES_OF_USER: usize = 1024;

/// Names in one folder that a reader looks at. More of them may hide an entry, so then no GPU counts as free.
const NAMES: usize = 4096;

/// How often a reader reads a file that is being written. A write takes microseconds, so more than once is rare; a
/// writer that was stopped must not hold up the reader.
const READS: u32 = 16;

/// How long what a user's daemon keeps counts without a process. What the system's daemon keeps counts until the
/// machine starts again. So a daemon that restarts within ten minutes finds its GPUs held.
const KEPT: Duration = Duration::from_secs(600);

/// A daemon: its user, and the device and inode of its home as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub uid: u32,
    home: u64,
}

impl Owner {
    /// The daemon of this home. It belongs to this process's user.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn of(home: &Path) -> std::io::Result<Self> {
        let meta = std::fs::metadata(instance(home))?;
        let mut hash = super::entry::Fnv::default();
        hash.write_u64(meta.dev());
        hash.write_u64(meta.ino());
        Ok(Self {
            uid: geteuid().as_raw(),
            home: hash.finish(),
        })
    }
}

/// The folder that stands for an instance: of a user's machine the one above, which held the state in earlier versions, so
/// that jobs of these count as the daemon's own.
fn instance(home: &Path) -> &Path {
    let name = home.file_name().and_then(|name| name.to_str());
    let above = home.parent().filter(|above| above.ends_with("divvy"));
    match (name, above) {
        (Some(name), Some(above)) if machine::is_folder(name) => above,
        _ => home,
    }
}

/// A file's name: `divvy.1000.0123456789abcdef.fedcba9876543210`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    kind: &'static str,
    owner: Owner,
    nonce: u64,
}

impl Name {
    fn new(kind: &'static str, owner: Owner) -> Self {
        // Seeded by the kernel's random numbers.
        let nonce = RandomState::new().build_hasher().finish();
        Self { kind, owner, nonce }
    }

    fn parse(name: &CStr) -> Option<Self> {
        let mut words = name.to_str().ok()?.split('.');
        let kind = words.next()?;
        let kind = [ENTRY, HOLD, NEW]
            .into_iter()
            .find(|known| *known == kind)?;
        let uid = words.next()?.parse().ok()?;
        let mut hex = || u64::from_str_radix(words.next()?, 16).ok();
        let (home, nonce) = (hex()?, hex()?);
        let owner = Owner { uid, home };
        words
            .next()
            .is_none()
            .then_some(Self { kind, owner, nonce })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, owner, nonce } = self;
        write!(out, "{kind}.{}.{:016x}.{nonce:016x}", owner.uid, owner.home)
    }
}

/// The folders of this machine's registry. Entries are written to the first, and read from all.
pub struct Place {
    folders: Vec<Folder>,
}

struct Folder {
    path: PathBuf,
    fd: OwnedFd,
    watch: Option<NameWatch>,
}

/// The names of a folder, and the kernel's reports of new ones.
struct NameWatch {
    inotify: OwnedFd,
    names: Names,
    /// The folder has been listed, and no report was lost since.
    is_complete: bool,
}

/// Names that have the form of the registry's.
#[derive(Clone, Default)]
struct Names {
    of_files: BTreeMap<CString, Name>,
    /// The owner of the first file beyond [`NAMES`] of them.
    flooded_by: Option<u32>,
}

/// What an entry of another daemon comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    Holds(Entry),
    /// Its daemon lives, and what it says cannot be read.
    Unreadable,
}

/// Another daemon's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub owner: Owner,
    pub position: Position,
}

/// A file of this process, whose write lock lasts as long as it is open.
pub struct Published {
    name: String,
    file: File,
}

impl Published {
    /// Writes the next copy of an entry.
    ///
    /// # Errors
    /// In words; the entry of before stays whole.
    pub fn write(&self, entry: &mut Entry) -> Result<(), String> {
        write(&self.file, entry)
    }
}

/// The mark of living supervisors.
pub struct Hold(Published);

impl Hold {
    /// Removes the mark of a process without copies. The marks of others are removed by their daemon.
    pub fn release(self) {
        if let Ok(place) = Place::find() {
            place.remove(&self.0);
        }
    }
}

/// Has a child with another environment use the same registry.
pub fn forward_to(command: &mut Command) {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        command.env(VARIABLE, folder);
    }
}

/// One daemon's files in one folder.
#[derive(Default)]
struct Found {
    entries: Vec<(CString, File)>,
    holds: Vec<(CString, File)>,
}

impl Place {
    /// The folders that all users of this machine share.
    ///
    /// # Errors
    /// In words, when there is none.
    pub fn find() -> Result<Self, String> {
        let named = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty());
        Self::at(named.as_deref().map(Path::new))
    }

    fn at(named: Option<&Path>) -> Result<Self, String> {
        let folders = match named {
            Some(folder) => vec![Folder::open(folder, true)?],
            None => FOLDERS
                .iter()
                .filter_map(|folder| Folder::open(Path::new(folder), false).ok())
                .collect(),
        };
        if folders.is_empty() {
            let all = FOLDERS.join(", ");
            return Err(format!(
                "none of {all} is a folder of root's that every user can write to, with the sticky bit"
            ));
        }
        Ok(Self { folders })
    }

    /// Lists the folders now, and has the kernel report new names from now on.
    pub fn watch(&mut self) {
        for folder in &mut self.folders {
            // Without one, each look lists the folder: the user's inotify instances may be used up.
            folder.watch = NameWatch::new(&folder.fd).ok();
        }
    }

    /// Ends the reports, of which a user can have few.
    pub fn unwatch(&mut self) {
        for folder in &mut self.folders {
            folder.watch = None;
        }
    }

    /// Writes an entry and returns its file.
    ///
    /// # Errors
    /// In words, when no folder takes it.
    pub fn publish(&self, owner: Owner, entry: &mut Entry) -> Result<Published, String> {
        self.create(Name::new(ENTRY, owner), |file| {
            // Both copies are written, so that no later write needs more of the disk.
            write(file, entry)?;
            write(file, entry)
        })
    }

    /// A locked hold file of this daemon; `None` when no folder takes it.
    pub fn hold(&self, owner: Owner) -> Option<Hold> {
        self.create(Name::new(HOLD, owner), |_| Ok(()))
            .ok()
            .map(Hold)
    }

    /// Creates a file that no reader sees before it is locked and whole.
    fn create(
        &self,
        name: Name,
        mut fill: impl FnMut(&File) -> Result<(), String>,
    ) -> Result<Published, String> {
        let mut why = String::new();
        for folder in &self.folders {
            match folder.create(name, &mut fill) {
                Ok(file) => {
                    let name = name.to_string();
                    return Ok(Published { name, file });
                }
                Err(error) => why = format!("{}: {error}", folder.path.display()),
            }
        }
        Err(why)
    }

    /// The entries of this daemon's earlier processes that still count.
    pub fn own(&mut self, owner: Owner) -> Vec<Entry> {
        let listed = self.listed(|found| found == owner);
        let entries = listed.into_iter().filter_map(|one| match one.position {
            Position::Holds(entry) => Some(entry),
            Position::Unreadable => None,
        });
        entries.collect()
    }

    /// The entries of all other daemons that count.
    pub fn others(&mut self, owner: Owner) -> Vec<Listing> {
        let (found, floods) = self.found(|found| found != owner);
        let floods = floods.into_iter().map(|uid| Listing {
            owner: Owner { uid, home: 0 },
            position: Position::Unreadable,
        });
        positions_of(found).chain(floods).collect()
    }

    /// The entries that count of the daemons that `wanted` names.
    pub fn listed(&mut self, wanted: impl Fn(Owner) -> bool) -> Vec<Listing> {
        positions_of(self.found(wanted).0).collect()
    }

    /// Removes a file of this process.
    pub fn remove(&self, its: &Published) {
        for folder in &self.folders {
            // It lies in one of the folders.
            let _ = unlinkat(&folder.fd, &its.name, AtFlags::empty());
        }
    }

    /// The files of the daemons that `wanted` names, from all folders, and the users that have flooded a folder.
    fn found(&mut self, wanted: impl Fn(Owner) -> bool) -> (BTreeMap<Owner, Found>, Vec<u32>) {
        let (mut all, mut floods) = (BTreeMap::new(), Vec::new());
        let mut seen: BTreeMap<(u32, &str), usize> = BTreeMap::new();
        for folder in &mut self.folders {
            let names = folder.names();
            floods.extend(names.flooded_by);
            for (text, name) in names.of_files {
                if name.kind == NEW || !wanted(name.owner) {
                    continue;
                }
                // Counted once the file has proved whose it is.
                let file = match folder.open_of(&text, name.owner.uid) {
                    Opened::Its(file) => file,
                    Opened::Never => {
                        folder.forget(&text);
                        continue;
                    }
                    Opened::NotNow => continue,
                };
                let count = seen.entry((name.owner.uid, name.kind)).or_default();
                *count += 1;
                if *count > FILES_OF_USER {
                    continue;
                }
                let found: &mut Found = all.entry(name.owner).or_default();
                match name.kind {
                    ENTRY => found.entries.push((text, file)),
                    _ => found.holds.push((text, file)),
                }
            }
        }
        (all, floods)
    }

    /// Removes this user's files that count no more, but for the entry of `owner` that is in use.
    pub fn remove_dead(&mut self, owner: Owner, takes_over: bool) {
        let me = geteuid().as_raw();
        for folder in &mut self.folders {
            let mut dead = Vec::new();
            let mut daemons: BTreeMap<Owner, Found> = BTreeMap::new();
            for (text, name) in folder.names().of_files {
                let Opened::Its(file) = folder.open_of(&text, me) else {
                    continue;
                };
                let found = daemons.entry(name.owner).or_default();
                match name.kind {
                    ENTRY => found.entries.push((text, file)),
                    HOLD => found.holds.push((text, file)),
                    _ if is_free(&file) && is_older(&file, KEPT) => dead.push(text),
                    _ => {}
                }
            }
            for (whose, found) in daemons {
                let counts = whose == owner || !found.positions(whose).is_empty();
                let files = found.entries.into_iter().map(|file| (file, !counts));
                // The new entry of a daemon has taken over what its entry of before says.
                let is_replaced = takes_over && whose == owner;
                let files = files.map(|((text, file), dead)| (text, file, dead || is_replaced));
                let holds = found
                    .holds
                    .into_iter()
                    .map(|(text, file)| (text, file, true));
                let free = files
                    .chain(holds)
                    .filter(|(_, file, dead)| *dead && is_free(file));
                dead.extend(free.map(|(text, ..)| text));
            }
            for text in dead {
                // Another process of this user may have removed it.
                let _ = unlinkat(&folder.fd, &text, AtFlags::empty());
            }
        }
    }
}

impl Folder {
    fn open(path: &Path, is_named: bool) -> Result<Self, String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let shown = path.display();
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| format!("{shown}: {error}"))?;
        let stat = fstat(&fd).map_err(|error| format!("{shown}: {error}"))?;
        let is_shared = stat.st_uid == 0 && stat.st_mode & 0o1002 == 0o1002;
        // A user may have a registry of their own, for tests.
        if is_shared || is_named && stat.st_uid == geteuid().as_raw() {
            let path = path.to_owned();
            let watch = None;
            return Ok(Self { path, fd, watch });
        }
        let what = "is no folder of root's that every user can write to, with the sticky bit";
        Err(format!("{shown} {what}"))
    }

    /// The names in it that have the form of the registry's.
    fn names(&mut self) -> Names {
        match &mut self.watch {
            Some(watch) => watch.names(&self.fd),
            None => Names::listed(&self.fd).unwrap_or_default(),
        }
    }

    /// Looks no more at a file that can become no entry, until the kernel reports its name again.
    fn forget(&mut self, text: &CStr) {
        if let Some(watch) = &mut self.watch {
            watch.names.of_files.remove(text);
        }
    }

    /// Opens a file for reading, if it is a regular file of this user under one name.
    fn open_of(&self, text: &CStr, uid: u32) -> Opened {
        // Opening a FIFO would wait, and opening a device may act.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&self.fd, text, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Opened::Never,
            Err(_) => return Opened::NotNow,
        };
        match file.metadata() {
            Ok(meta) if !meta.is_file() || meta.uid() != uid => Opened::Never,
            Ok(meta) if meta.nlink() == 1 => Opened::Its(file),
            _ => Opened::NotNow,
        }
    }

    fn create(
        &self,
        name: Name,
        mut fill: impl FnMut(&File) -> Result<(), String>,
    ) -> Result<File, String> {
        let text = |error: Errno| error.to_string();
        let new = Name { kind: NEW, ..name }.to_string();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            File::from(openat(&self.fd, &new, flags, Mode::from_raw_mode(0o600)).map_err(text)?);
        let mut finish = || {
            if !ofd::try_mark_in_use(&file).map_err(|error| error.to_string())? {
                return Err("another process holds the new file".to_owned());
            }
            fill(&file)?;
            fchmod(&file, Mode::from_raw_mode(0o644)).map_err(text)?;
            renameat(&self.fd, &new, &self.fd, name.to_string()).map_err(text)
        };
        let finished = finish();
        if finished.is_err() {
            let _ = unlinkat(&self.fd, &new, AtFlags::empty());
        }
        finished.map(|()| file)
    }
}

/// What a name of the registry's form leads to.
enum Opened {
    Its(File),
    /// Nothing, or a file of another user or kind. Only a rename can put an entry there, and the kernel reports it.
    Never,
    /// No descriptor is left, or the file has a second name for now.
    NotNow,
}

impl Names {
    /// One pass over the folder: `/tmp` can have many other names.
    fn listed(folder: &OwnedFd) -> Result<Self, Errno> {
        let mut names = Self::default();
        for entry in Dir::read_from(folder)? {
            names.add(folder, entry?.file_name());
            if names.flooded_by.is_some() {
                break;
            }
        }
        Ok(names)
    }

    fn add(&mut self, folder: &OwnedFd, text: &CStr) {
        let Some(name) = Name::parse(text) else {
            return;
        };
        if self.of_files.len() < NAMES {
            self.of_files.insert(text.to_owned(), name);
        } else if !self.of_files.contains_key(text) {
            let stat = statat(folder, text, AtFlags::SYMLINK_NOFOLLOW);
            self.flooded_by = Some(stat.map_or(0, |stat| stat.st_uid));
        }
    }
}

impl NameWatch {
    fn new(folder: &OwnedFd) -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // The descriptor's own link: the folder's path may lead elsewhere by now.
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        inotify::add_watch(&inotify, path, WatchFlags::MOVED_TO | WatchFlags::ONLYDIR)?;
        let mut watch = Self {
            inotify,
            names: Names::default(),
            is_complete: false,
        };
        watch.names(folder);
        Ok(watch)
    }

    fn names(&mut self, folder: &OwnedFd) -> Names {
        if self.is_complete {
            self.is_complete = self.take_reports(folder).is_ok();
        }
        // While there are too many, no GPU counts as free, and each look finds out whether there still are.
        if !self.is_complete || self.names.flooded_by.is_some() {
            // Lists after the watch has begun, so no name is in neither.
            let listed = Names::listed(folder);
            self.is_complete = listed.is_ok();
            if let Ok(names) = listed {
                self.names = names;
            }
        }
        self.names.clone()
    }

    /// # Errors
    /// When reports were lost: the kernel keeps the newest 16,384 (`fs.inotify.max_queued_events`).
    fn take_reports(&mut self, folder: &OwnedFd) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::MOVED_TO) => {
                    if let Some(text) = event.file_name() {
                        self.names.add(folder, text);
                    }
                }
                Ok(_) => return Err(Errno::OVERFLOW),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// What the daemons hold whose files were found.
fn positions_of(found: BTreeMap<Owner, Found>) -> impl Iterator<Item = Listing> {
    found.into_iter().flat_map(|(owner, found)| {
        let positions = found.positions(owner).into_iter();
        positions.map(move |position| Listing { owner, position })
    })
}

impl Found {
    /// What this daemon holds, if it or a supervisor of it lives, or if it keeps something. Each run without a daemon
    /// has an entry of its own.
    fn positions(&self, owner: Owner) -> Vec<Position> {
        let (free, living): (Vec<_>, Vec<_>) =
            self.entries.iter().partition(|(_, file)| is_free(file));
        let living = living.into_iter();
        let mut positions: Vec<Position> = living
            .map(|(_, file)| read(file).map_or(Position::Unreadable, Position::Holds))
            .collect();
        let is_run = |position: &Position| match position {
            Position::Holds(entry) => entry.writer == Writer::Run,
            Position::Unreadable => false,
        };
        // A daemon that has started again has a new entry, which has taken over what the old one says.
        if positions.iter().all(is_run) {
            positions.extend(self.position_of_dead(owner, free.into_iter().map(|(_, file)| file)));
        }
        positions
    }

    fn position_of_dead<'a>(
        &self,
        owner: Owner,
        entries: impl Iterator<Item = &'a File>,
    ) -> Option<Position> {
        let has_supervisor = self.holds.iter().any(|(_, hold)| !is_free(hold));
        let mut entries: Vec<(SystemTime, &File)> =
            entries.map(|file| (modified(file), file)).collect();
        entries.sort_by_key(|(modified, _)| *modified);
        let mut newest_first = entries.into_iter().rev();
        let is_of_daemon = |(_, file): (SystemTime, &'a File)| match read(file) {
            Some(entry) if entry.writer == Writer::Run => None,
            read => Some((file, read)),
        };
        let (file, entry) = newest_first.find_map(is_of_daemon)?;
        let entry = match entry {
            Some(entry) => entry,
            None if has_supervisor => return Some(Position::Unreadable),
            None => return None,
        };
        if !entry.is_of_this_boot() {
            return None;
        }
        if has_supervisor {
            return Some(Position::Holds(entry));
        }
        let entry = entry.without_processes();
        let is_system = entry.writer == Writer::SystemDaemon && owner.uid == 0;
        let keeps = is_system || !is_older(file, KEPT);
        (keeps && entry.records().next().is_some()).then_some(Position::Holds(entry))
    }
}

/// No process holds its write lock.
fn is_free(file: &File) -> bool {
    matches!(ofd::is_in_use(file), Ok(false))
}

fn modified(file: &File) -> SystemTime {
    let meta = file.metadata();
    meta.and_then(|meta| meta.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

fn is_older(file: &File, age: Duration) -> bool {
    // A time in the future is no age.
    modified(file).elapsed().is_ok_and(|since| since > age)
}

/// The newest whole copy of an entry; `None` for a file that is no entry, or changes too often to be read.
fn read(file: &File) -> Option<Entry> {
    let mut before: Option<[u8; FILE]> = None;
    for _ in 0..READS {
        let mut bytes = [0; FILE];
        file.read_exact_at(&mut bytes, 0).ok()?;
        match Entry::decode(&bytes) {
            Ok(entry) => return Some(entry),
            // The writer was killed in the middle of the other copy.
            Err(one) if before == Some(bytes) => return one,
            Err(_) => before = Some(bytes),
        }
    }
    None
}

/// Writes the next copy of an entry; the entry of before stays whole if it fails.
fn write(file: &File, entry: &mut Entry) -> Result<(), String> {
    let (copy, at) = entry.next_copy();
    file.write_all_at(&copy, at)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Instant;

    use tempfile::TempDir;

    use super::*;
    use crate::registry::entry::{Amount, Driver};
    use crate::registry::{Held, entry};

    fn place(folder: &TempDir) -> Place {
        Place::at(Some(folder.path())).unwrap()
    }

    /// An owner of this process's user.
    fn owner(home: u64) -> Owner {
        let uid = geteuid().as_raw();
        Owner { uid, home }
    }

    fn half() -> Entry {
        let mut entry = Entry::new(Writer::Daemon, Driver::of(None));
        let amount = Amount {
            share: 500,
            memory: divvy_core::Bytes::gib(40),
        };
        let held = Held {
            amount,
            ..Held::default()
        };
        let gpu = divvy_core::GpuUuid::from_bytes([1; 16]);
        entry.set(&std::iter::once((gpu, held)).collect());
        entry
    }

    fn names(folder: &TempDir) -> Vec<String> {
        let names = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn an_entry_counts_while_its_daemon_or_a_supervisor_lives() {
        let folder = TempDir::new().unwrap();
        let mut place = place(&folder);
        let mut entry = half();
        let file = place.publish(owner(1), &mut entry).unwrap();
        let expected = vec![Listing {
            owner: owner(1),
            position: Position::Holds(entry.clone()),
        }];
        assert_eq!(place.others(owner(2)), expected);
        assert_eq!(place.others(owner(1)), []);
        let hold = place.hold(owner(1)).unwrap();
        drop(file);
        assert_eq!(place.others(owner(2)), expected, "a supervisor lives");
        assert_eq!(place.own(owner(1)), [entry]);
        drop(hold);
        assert_eq!(place.others(owner(2)), []);
        place.remove_dead(owner(2), true);
        assert_eq!(names(&folder), Vec::<String>::new());
    }

    #[test]
    fn the_entry_of_a_killed_run_counts_no_more() {
        let folder = TempDir::new().unwrap();
        let mut place = place(&folder);
        let mut run = half();
        run.writer = Writer::Run;
        let file = place.publish(owner(1), &mut run).unwrap();
        let hold = place.hold(owner(1));
        assert_eq!(place.others(owner(2)).len(), 1);
        // The program that it has left behind holds no lock, and a daemon's supervisor is none of the run's.
        drop(file);
        assert_eq!(place.others(owner(2)), []);
        drop(hold);
    }

    #[test]
    fn a_reader_takes_nothing_that_another_user_made_up() {
        let folder = TempDir::new().unwrap();
        let mut place = place(&folder);
        let file = place.publish(owner(1), &mut half()).unwrap();
        let real = folder.path().join(&names(&folder)[0]);
        let named = |kind, home, nonce| {
            let owner = owner(home);
            folder.path().join(Name { kind, owner, nonce }.to_string())
        };
        symlink(&real, named(ENTRY, 2, 0)).unwrap();
        std::fs::create_dir(named(ENTRY, 3, 0)).unwrap();
        let fifo = named(ENTRY, 4, 0);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        // Another uid's name over a file of this user.
        let uid = owner(5).uid + 1;
        let forged = Name {
            kind: ENTRY,
            owner: Owner { uid, home: 5 },
            nonce: 0,
        };
        std::fs::copy(&real, folder.path().join(forged.to_string())).unwrap();
        for text in [
            "divvy",
            "divvy.1",
            "divvy.x.1.1",
            "divvy.1.1.1.1",
            "divvy.-1.1.1",
        ] {
            std::fs::write(folder.path().join(text), "").unwrap();
        }
        let others = place.others(owner(9));
        let owners: Vec<Owner> = others.iter().map(|listing| listing.owner).collect();
        assert_eq!(owners, [owner(1)]);
        // A second name of the file would be a second entry.
        std::fs::hard_link(&real, named(ENTRY, 6, 0)).unwrap();
        assert_eq!(place.others(owner(9)), []);
        drop(file);
    }

    #[test]
    fn a_live_entry_that_cannot_be_read_is_reported_and_a_dead_one_is_not() {
        let folder = TempDir::new().unwrap();
        let mut place = place(&folder);
        let file = place.publish(owner(1), &mut half()).unwrap();
        file.file.write_all_at(&[0xa5; FILE], 0).unwrap();
        let unreadable = [Listing {
            owner: owner(1),
            position: Position::Unreadable,
        }];
        assert_eq!(place.others(owner(2)), unreadable);
        file.file.set_len(10).unwrap();
        assert_eq!(place.others(owner(2)), unreadable);
        drop(file);
        assert_eq!(place.others(owner(2)), []);
    }

    #[test]
    fn more_files_than_a_reader_looks_at_hide_no_entry() {
        let folder = TempDir::new().unwrap();
        let mut place = place(&folder);
        for nonce in 0..=NAMES as u64 {
            let owner = owner(1);
            let name = Name {
                kind: ENTRY,
                owner,
                nonce,
            };
            std::fs::write(folder.path().join(name.to_string()), "").unwrap();
        }
        let begun = Instant::now();
        let others = place.others(owner(2));
        assert_eq!(others.len(), 1, "the flood is reported: {others:?}");
        assert_eq!(others[0].position, Position::Unreadable);
        assert!(begun.elapsed() < Duration::from_secs(2));
        place.watch();
        assert_eq!(place.others(owner(2)), others);
        for name in names(&folder) {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert_eq!(place.others(owner(2)), [], "the flood is over");
    }

    #[test]
    fn a_watching_daemon_lists_a_folder_once_and_finds_each_new_entry() {
        let folder = TempDir::new().unwrap();
        let [mut watching, other] = [place(&folder), place(&folder)];
        let homes = |place: &mut Place| {
            let others = place.others(owner(0)).into_iter();
            others
                .map(|listing| listing.owner.home)
                .collect::<Vec<u64>>()
        };
        let before = other.publish(owner(1), &mut half()).unwrap();
        watching.watch();
        // No daemon makes a file under its final name, so a reader that finds this one has listed the folder again.
        let name = Name::new(ENTRY, owner(2)).to_string();
        let unreported = File::create(folder.path().join(name)).unwrap();
        assert!(ofd::try_mark_in_use(&unreported).unwrap());
        let after = other.publish(owner(3), &mut half()).unwrap();
        assert_eq!(homes(&mut watching), [1, 3]);
        other.remove(&before);
        assert_eq!(homes(&mut watching), [3]);
        // The name is free now, and a rename may give it to an entry again.
        let moved = |from: &Published, to: &Published| {
            let path = |published: &Published| folder.path().join(&published.name);
            std::fs::rename(path(from), path(to)).unwrap();
        };
        moved(&after, &before);
        assert_eq!(homes(&mut watching), [1]);
        drop(unreported);
    }

    #[test]
    fn a_daemon_lists_the_registry_again_when_the_kernel_has_lost_reports() {
        let folder = TempDir::new().unwrap();
        let [mut watching, other] = [place(&folder), place(&folder)];
        watching.watch();
        let queued = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let queued: u32 = queued.trim().parse().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&one, "").unwrap();
        // Two in a row with one name would be one report.
        for _ in 0..=queued / 2 {
            std::fs::rename(&one, &two).unwrap();
            std::fs::rename(&two, &one).unwrap();
        }
        let file = other.publish(owner(1), &mut half()).unwrap();
        assert_eq!(watching.others(owner(2)).len(), 1);
        drop(file);
        assert_eq!(watching.others(owner(2)), []);
    }

    #[test]
    fn what_a_daemon_keeps_counts_without_a_process_for_a_while() {
        let folder = TempDir::new().unwrap();
        let mut place = place(&folder);
        let mut entry = half();
        let gpu = divvy_core::GpuUuid::from_bytes([2; 16]);
        let more = Amount {
            share: 1000,
            memory: divvy_core::Bytes::gib(80),
        };
        entry.intend(&gpu, more).unwrap();
        let file = place.publish(owner(1), &mut entry).unwrap();
        drop(file);
        let listed = place.others(owner(2));
        let [
            Listing {
                position: Position::Holds(kept),
                ..
            },
        ] = &listed[..]
        else {
            panic!("{listed:?}");
        };
        let held: Vec<_> = kept
            .records()
            .map(|(gpu, record)| (gpu, record.held))
            .collect();
        assert_eq!(
            held,
            [(gpu, more)],
            "the intent, and not what a supervisor would hold"
        );
        let path = folder.path().join(&names(&folder)[0]);
        let long_ago = SystemTime::now() - KEPT - Duration::from_secs(1);
        let set = std::fs::File::options().write(true).open(&path).unwrap();
        set.set_modified(long_ago).unwrap();
        assert_eq!(place.others(owner(2)), []);
    }

    #[test]
    fn a_folder_that_its_users_do_not_share_is_no_place() {
        let folder = TempDir::new().unwrap();
        let refused = Folder::open(folder.path(), false);
        assert!(refused.err().unwrap().contains("sticky bit"));
        let shared = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(folder.path(), shared).unwrap();
        let opened = Folder::open(folder.path(), false).is_ok();
        assert_eq!(opened, geteuid().is_root(), "only root's folder counts");
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert!(Folder::open(&link, true).is_err());
    }

    #[test]
    fn twenty_entries_are_read_within_the_time_of_a_round() {
        let folder = TempDir::new().unwrap();
        let mut place = place(&folder);
        let mut files = Vec::new();
        for home in 0..20 {
            files.push(place.publish(owner(home), &mut half()).unwrap());
        }
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(place.others(owner(99)).len(), 20);
        }
        let each = begun.elapsed() / 100;
        eprintln!("20 entries of {} bytes: {each:?}", entry::FILE);
        // A debug build on a busy machine takes about ten times as long as a release.
        assert!(each < Duration::from_millis(20), "{each:?}");
    }
}
