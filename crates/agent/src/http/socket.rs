//! The daemon's unix socket file: bound under a temporary name and renamed, watched, and bound again if it is removed
//! or replaced.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{fs, mem};

use divvy_api::home::{LockFile, private_dir};
use divvy_api::sync::lock;

/// Interval of checking the file: one stat(2).
const LOOK: Duration = Duration::from_secs(1);

/// The name under which a socket is made. As long as the socket's own, which may be as long as an address can be.
const MAKING: &str = "divvy.bind";

/// The identity of the file, under any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::symlink_metadata(path)?;
        Ok(Self {
            device: meta.dev(),
            inode: meta.ino(),
        })
    }
}

/// Where a daemon listens.
#[derive(Debug)]
pub struct SocketPlace {
    pub path: PathBuf,
    /// The path while the folder of the first cannot be: a logout takes it.
    pub without_session: Option<PathBuf>,
    pub mode: u32,
    /// The lock of the daemon's home: while it is the file that this daemon locked, no other daemon has the socket.
    pub lock: PathBuf,
}

impl SocketPlace {
    /// The path to listen on now, in a folder that is there or can be made.
    fn path(&self) -> &Path {
        let session = self.path.parent().and_then(Path::parent);
        match &self.without_session {
            Some(other) if !session.is_some_and(Path::is_dir) => other,
            _ => &self.path,
        }
    }
}

/// The file through which clients find the daemon.
#[derive(Clone, Debug)]
pub struct Socket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    place: SocketPlace,
    /// The open lock, which tells clients the path.
    lock: File,
    locked: FileId,
    /// The file that this daemon listens on.
    bound: Mutex<(PathBuf, FileId)>,
}

impl Socket {
    /// Listens there, for the daemon that holds `lock`, and writes the path into the lock.
    ///
    /// # Errors
    /// Those of the file system and of bind(2).
    pub fn bind(place: SocketPlace, lock: File) -> io::Result<(Self, UnixListener)> {
        let locked = FileId::of(&place.lock)?;
        let path = place.path().to_owned();
        let (listener, bound) = bind(&path, place.mode)?;
        LockFile::take(&lock, path.clone())?;
        let socket = Self(Arc::new(Inner {
            place,
            lock,
            locked,
            bound: Mutex::new((path, bound)),
        }));
        Ok((socket, listener))
    }

    pub fn path(&self) -> PathBuf {
        self.bound().0.clone()
    }

    /// Binds again where the file is not the one that this daemon listens on; `None` where it is.
    ///
    /// # Errors
    /// As [`Socket::bind`], and where the home's lock is not this daemon's any more.
    fn renew(&self) -> io::Result<Option<UnixListener>> {
        let Inner {
            place,
            lock,
            locked,
            ..
        } = &*self.0;
        let path = place.path();
        if self.path() == path && self.is_ours()? {
            return Ok(None);
        }
        // A home that was removed and made again may be another daemon's.
        if FileId::of(&place.lock)? != *locked {
            let why = format!(
                "{} is not the file that this daemon locked",
                place.lock.display()
            );
            return Err(io::Error::other(why));
        }
        if place.without_session.is_some() {
            let folder = path.parent().unwrap_or(path);
            private_dir(folder).map_err(io::Error::other)?;
        }
        let (listener, bound) = bind(path, place.mode)?;
        self.remove();
        *self.bound() = (path.to_owned(), bound);
        LockFile::take(lock, path.to_owned())?;
        Ok(Some(listener))
    }

    /// Returns a new listener once the file was removed or replaced.
    pub async fn renewed(&self) -> tokio::net::UnixListener {
        let mut has_failed = false;
        loop {
            tokio::time::sleep(LOOK).await;
            let socket = self.clone();
            let renewed = tokio::task::spawn_blocking(move || socket.renew()).await;
            let renewed = renewed
                .map_err(io::Error::other)
                .and_then(|renewed| renewed);
            let listener = renewed
                .and_then(|listener| listener.map(tokio::net::UnixListener::from_std).transpose());
            let path = self.path();
            let socket = path.display();
            match listener {
                Ok(None) => has_failed = false,
                Ok(Some(listener)) => {
                    tracing::warn!(%socket, "bound the socket again, because it had been removed or replaced");
                    return listener;
                }
                Err(error) => {
                    if !mem::replace(&mut has_failed, true) {
                        tracing::error!(%socket, %error, "the socket was removed or replaced, and the daemon cannot \
                            bind it again");
                    }
                }
            }
        }
    }

    /// Removes the file, unless it is another's.
    pub fn remove(&self) {
        if self.is_ours().unwrap_or(false) {
            let _ = fs::remove_file(self.path());
        }
    }

    fn is_ours(&self) -> io::Result<bool> {
        let (path, bound) = self.bound().clone();
        match FileId::of(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // The listener holds the inode, so that no other file has its number.
            there => Ok(there? == bound),
        }
    }

    fn bound(&self) -> MutexGuard<'_, (PathBuf, FileId)> {
        lock(&self.0.bound)
    }
}

/// Clients find no file or one that answers them, with its mode.
fn bind(path: &Path, mode: u32) -> io::Result<(UnixListener, FileId)> {
    let making = path.with_file_name(MAKING);
    match fs::remove_file(&making) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&making)?;
    fs::set_permissions(&making, fs::Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    let bound = FileId::of(&making)?;
    fs::rename(&making, path)?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn home() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (path, lock) = (dir.path().join("divvy.sock"), dir.path().join("lock"));
        fs::write(&lock, "").unwrap();
        (dir, path, lock)
    }

    fn bound(path: &Path, lock: &Path, without_session: Option<PathBuf>) -> (Socket, UnixListener) {
        let place = SocketPlace {
            path: path.to_owned(),
            without_session,
            mode: 0o600,
            lock: lock.to_owned(),
        };
        let lock = File::options().write(true).open(lock).unwrap();
        Socket::bind(place, lock).unwrap()
    }

    /// As at a user's last logout, and at the next login.
    #[test]
    fn a_socket_without_its_session_folder_is_bound_elsewhere_and_the_lock_tells_where() {
        let dir = tempfile::tempdir().unwrap();
        let (session, lock) = (dir.path().join("session"), dir.path().join("lock"));
        let path = session.join("divvy/divvy.sock");
        let other = dir.path().join("other/divvy.sock");
        fs::write(&lock, "").unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let told = || LockFile::parse(&fs::read_to_string(&lock).unwrap()).unwrap();
        let (socket, _first) = bound(&path, &lock, Some(other.clone()));
        assert_eq!(told().socket, path);
        fs::remove_dir_all(&session).unwrap();
        let _second = socket.renew().unwrap().expect("it is bound again");
        assert_eq!(
            (told().socket, socket.path()),
            (other.clone(), other.clone())
        );
        assert!(told().is_alive());
        UnixStream::connect(&other).unwrap();
        assert!(socket.renew().unwrap().is_none());
        fs::create_dir(&session).unwrap();
        let _third = socket
            .renew()
            .unwrap()
            .expect("it is bound where it was first");
        assert_eq!(told().socket, path);
        UnixStream::connect(&path).unwrap();
        assert!(!other.exists());
        let mode = fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o700);
    }

    #[test]
    fn a_socket_that_was_removed_or_replaced_is_bound_again_with_its_mode() {
        let (dir, path, lock) = home();
        // What an earlier daemon has left.
        drop(UnixListener::bind(&path).unwrap());
        let (socket, first) = bound(&path, &lock, None);
        assert!(socket.renew().unwrap().is_none());
        let mut listeners = vec![first];
        for replace in [
            (|_| {}) as fn(&Path),
            |path| fs::write(path, "mine").unwrap(),
            |path| drop(UnixListener::bind(path).unwrap()),
        ] {
            fs::remove_file(&path).unwrap();
            replace(&path);
            listeners.push(socket.renew().unwrap().expect("it is bound again"));
            assert!(socket.renew().unwrap().is_none());
            let client = UnixStream::connect(&path).unwrap();
            listeners.last().unwrap().accept().unwrap();
            drop(client);
            let mode = fs::metadata(&path).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o600);
        }
        socket.remove();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "the lock alone: {left:?}");
    }

    #[test]
    fn a_daemon_that_has_lost_its_home_takes_no_other_daemons_socket() {
        let (dir, path, lock) = home();
        let (socket, _listener) = bound(&path, &lock, None);
        let other = dir.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &lock).unwrap();
        let (theirs, _listener) = bound(&path, &lock, None);
        socket.renew().unwrap_err();
        socket.remove();
        assert!(theirs.renew().unwrap().is_none(), "it is where it was");
        fs::remove_file(&lock).unwrap();
        socket.renew().unwrap_err();
    }
}
