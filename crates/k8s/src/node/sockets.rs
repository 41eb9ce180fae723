//! Sockets in kubelet's folders, bound again when their file disappears.
//!
//! Kubelet's folders are cleaned by people, by kubelet's own restarts and by upgrades of a node. A socket without its
//! file cannot be reached, and its listener gets no error. So the file is checked once a second, and bound again.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tonic::service::Routes;
use tonic::transport::Server;

/// How often a socket's file is looked at: a look is one call, and kubelet is to find a plugin again within 5 s.
const LOOK: Duration = Duration::from_secs(1);
/// The time for calls that run at SIGTERM. kubelet kills a pod after 30 s by default, so a third of that leaves room
/// for the rest of the shutdown.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// Removes the sockets of a folder that no process listens on, as a driver leaves them that was killed with SIGKILL.
/// `is_ours` says by its name whether a file is one of this driver's.
pub fn remove_stale(folder: &Path, is_ours: fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(is_ours);
        let path = entry.path();
        // A full backlog is another error, of a process that lives.
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let is_dead = || StdStream::connect(&path).is_err_and(is_refused);
        if is_ours && is_dead() && fs::remove_file(&path).is_ok() {
            tracing::info!("removed {}, which an earlier driver left", path.display());
        }
    }
}

/// A socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {path}")]
pub struct SocketError {
    path: PathBuf,
    source: io::Error,
}

/// Which file it is: device and inode. A listening socket keeps its inode, so no other file gets the number.
type Identity = (u64, u64);

/// Serves on `path` until told to stop, on a new socket whenever the file is not the one that was made.
///
/// `there` is told each time that the socket is there.
///
/// # Errors
/// The socket cannot be made, at first or again.
pub async fn serve(
    path: &Path,
    routes: Routes,
    there: impl Fn(),
    mut stop: watch::Receiver<bool>,
) -> Result<(), SocketError> {
    loop {
        let (listener, identity) = listen(path).map_err(|source| SocketError {
            path: path.to_owned(),
            source,
        })?;
        there();
        let (end, ended) = oneshot::channel::<()>();
        let serving = Server::builder().serve_with_incoming_shutdown(
            routes.clone().prepare(),
            connections(listener),
            async { ended.await.unwrap_or_default() },
        );
        let serving = tokio::spawn(serving);
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {
                if identity_of(path) == Some(identity) {
                    let _ = fs::remove_file(path);
                }
                drop(end);
                let _ = tokio::time::timeout(LAST_CALLS, serving).await;
                return Ok(());
            }
            () = lost(path, identity) => {
                // Open connections are served to the end.
                drop(end);
                tracing::warn!("{} was removed; creating it again", path.display());
            }
        }
    }
}

fn listen(path: &Path) -> io::Result<(UnixListener, Identity)> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let metadata = fs::symlink_metadata(path)?;
    Ok((listener, (metadata.dev(), metadata.ino())))
}

async fn lost(path: &Path, identity: Identity) {
    while identity_of(path) == Some(identity) {
        tokio::time::sleep(LOOK).await;
    }
}

fn identity_of(path: &Path) -> Option<Identity> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::node::registration::is_registration_socket;

    #[test]
    fn sockets_of_dead_drivers_go_and_those_of_living_and_of_other_drivers_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let living = UnixListener::bind(path("gpu.divvy.dev-b@reg.sock")).unwrap();
        for dead in ["gpu.divvy.dev-a@reg.sock", "other-reg.sock"] {
            drop(UnixListener::bind(path(dead)).unwrap());
        }
        remove_stale(folder.path(), is_registration_socket);
        let names = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["gpu.divvy.dev-b@reg.sock", "other-reg.sock"]);
        drop(living);
    }
}
