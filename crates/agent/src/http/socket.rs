//! The daemon's unix socket file: bound under a temporary name and renamed, watched, and bound again if it is removed
//! or replaced.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{fs, mem};

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

/// The file through which clients find the daemon.
#[derive(Clone, Debug)]
pub struct Socket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    mode: u32,
    /// The lock of the daemon's home: while it is the file that this daemon locked, no other daemon has the socket.
    lock: (PathBuf, FileId),
    /// The file that this daemon listens on.
    bound: Mutex<FileId>,
}

impl Socket {
    /// Listens on `path`, with this mode, for the daemon that holds `lock`.
    ///
    /// # Errors
    /// Those of the file system and of bind(2).
    pub fn bind(path: &Path, mode: u32, lock: &Path) -> io::Result<(Self, UnixListener)> {
        let locked = FileId::of(lock)?;
        let (listener, bound) = bind(path, mode)?;
        let socket = Self(Arc::new(Inner {
            path: path.to_owned(),
            mode,
            lock: (lock.to_owned(), locked),
            bound: Mutex::new(bound),
        }));
        Ok((socket, listener))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Binds again where the file is not the one that this daemon listens on; `None` where it is.
    ///
    /// # Errors
    /// As [`Socket::bind`], and where the home's lock is not this daemon's any more.
    fn renew(&self) -> io::Result<Option<UnixListener>> {
        let Inner {
            path,
            mode,
            lock: (lock, locked),
            ..
        } = &*self.0;
        if self.is_ours()? {
            return Ok(None);
        }
        // A home that was removed and made again may be another daemon's.
        if FileId::of(lock)? != *locked {
            let why = format!("{} is not the file that this daemon locked", lock.display());
            return Err(io::Error::other(why));
        }
        let (listener, bound) = bind(path, *mode)?;
        *self.bound() = bound;
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
            let socket = self.path().display();
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
        match FileId::of(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // The listener holds the inode, so that no other file has its number.
            there => Ok(there? == *self.bound()),
        }
    }

    fn bound(&self) -> MutexGuard<'_, FileId> {
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

    #[test]
    fn a_socket_that_was_removed_or_replaced_is_bound_again_with_its_mode() {
        let (dir, path, lock) = home();
        // What an earlier daemon has left.
        drop(UnixListener::bind(&path).unwrap());
        let (socket, first) = Socket::bind(&path, 0o600, &lock).unwrap();
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
        let (socket, _listener) = Socket::bind(&path, 0o600, &lock).unwrap();
        let other = dir.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &lock).unwrap();
        let (theirs, _listener) = Socket::bind(&path, 0o600, &lock).unwrap();
        socket.renew().unwrap_err();
        socket.remove();
        assert!(theirs.renew().unwrap().is_none(), "it is where it was");
        fs::remove_file(&lock).unwrap();
        socket.renew().unwrap_err();
    }
}
