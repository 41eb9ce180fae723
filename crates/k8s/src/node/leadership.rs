//! Leader election among the drivers of one node, by a file lock.
//!
//! ```text
//!   old pod   serves, leads ── SIGTERM ── no longer leads ── waits for a successor ── finishes its calls ── ends
//!   new pod        serves ── registered ── waits for the lock ──► leads: publishes, reconciles, reports incidents
//! ```
//! In a rolling update two pods of a node serve kubelet for a moment. Both answer calls; only the leader writes: two
//! publishers of different versions would undo each other's ResourceSlices. The kernel frees the lock of a driver that
//! is killed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Between two tries to take the lock, and between two looks for a successor.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// The lock cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock {path}")]
pub struct LockError {
    path: PathBuf,
    source: io::Error,
}

/// The lock file of the drivers of a node: `lock` in the folder of the driver's socket.
#[derive(Clone, Debug)]
pub struct Leadership(PathBuf);

impl Leadership {
    /// For drivers that are served in this folder.
    pub fn of(folder: &Path) -> Self {
        Self(folder.join("lock"))
    }

    /// Waits until no other driver of this node leads, and leads until the file is dropped.
    ///
    /// # Errors
    /// The file cannot be created or locked.
    pub async fn take(&self) -> Result<File, LockError> {
        let mut logged = false;
        loop {
            if let Some(folder) = self.0.parent() {
                fs::create_dir_all(folder).map_err(|source| self.failed(source))?;
            }
            if let Some(file) = self.attempt(true)? {
                return Ok(file);
            }
            if !logged {
                logged = true;
                tracing::info!("another driver of this node leads; waiting until it ends");
            }
            sleep(TRY_AGAIN).await;
        }
    }

    /// Whether no driver of this node leads now. It creates no file.
    pub fn is_vacant(&self) -> bool {
        match self.attempt(false) {
            Ok(lock) => lock.is_some(),
            Err(LockError { source, .. }) => source.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Waits until another driver leads, at most for `patience`; whether one does. It creates no file: an uninstall may
    /// have removed it.
    ///
    /// # Errors
    /// The file cannot be created or locked.
    pub async fn succeeded(&self, patience: Duration) -> Result<bool, LockError> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            match self.attempt(false) {
                Ok(None) => return Ok(true),
                Ok(Some(_)) => {}
                Err(LockError { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            sleep(TRY_AGAIN).await;
        }
        Ok(false)
    }

    fn attempt(&self, create: bool) -> Result<Option<File>, LockError> {
        let file = File::options()
            .write(true)
            .create(create)
            .truncate(false)
            .open(&self.0);
        let file = file.map_err(|source| self.failed(source))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(self.failed(error)),
        }
    }

    fn failed(&self, source: io::Error) -> LockError {
        LockError {
            path: self.0.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn one_driver_leads_and_the_next_one_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let leadership = Leadership::of(&folder.path().join("plugins"));
        assert!(leadership.is_vacant());
        let first = leadership.take().await.unwrap();
        assert!(leadership.take().now_or_never().is_none());
        assert!(!leadership.is_vacant());
        assert!(
            leadership
                .succeeded(Duration::from_millis(20))
                .await
                .unwrap()
        );
        drop(first);
        assert!(leadership.is_vacant());
        assert!(
            !leadership
                .succeeded(Duration::from_millis(20))
                .await
                .unwrap()
        );
        let _second = leadership.take().await.unwrap();
    }
}
