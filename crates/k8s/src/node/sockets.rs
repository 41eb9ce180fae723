//! Sockets in kubelet's folders, bound again when their file disappears.
//!
//! Kubelet's folders are cleaned by people, by kubelet's own restarts and by upgrades of a node. A socket without its
//! file cannot be reached, and its listener gets no error. So the file is checked once a second, and bound again.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
/// For calls that are on their way when the program is told to stop; a pod has 30 s by default before it is killed.
const LAST_CALLS: Duration = Duration::from_secs(10);

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
