//! Secret environment variables of jobs that have not ended: one file each, with mode 0600, outside the journal.
//!
//! The journal is a database that people copy, query and attach to bug reports; a file of mode 0600 that goes with its
//! job is not. It is on disk before the submit is answered.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use divvy_core::JobId;

/// The folder of them.
#[derive(Clone, Debug)]
pub struct Secrets(PathBuf);

/// The secrets of a job could not be kept or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path}")]
pub struct SecretsError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Secrets {
    /// Below the state of one home.
    pub fn below(state: &Path) -> Self {
        Self(state.join("secrets"))
    }

    fn file(&self, job: JobId) -> PathBuf {
        self.0.join(format!("{job}.json"))
    }

    /// On disk when this returns.
    pub fn keep(&self, job: JobId, secrets: &BTreeMap<String, String>) -> Result<(), SecretsError> {
        let path = self.file(job);
        let write = || -> io::Result<()> {
            let mut folder = fs::DirBuilder::new();
            folder.recursive(true).mode(0o700).create(&self.0)?;
            // One of a daemon that was killed before the submit was answered means nothing.
            let _ = fs::remove_file(&path);
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all(&serde_json::to_vec(secrets)?)?;
            file.sync_all()?;
            File::open(&self.0)?.sync_all()
        };
        write().map_err(|source| SecretsError {
            verb: "write",
            path: path.clone(),
            source,
        })
    }

    /// Bytes of a job's secrets; 0 where it has none.
    pub fn size(&self, job: JobId) -> u64 {
        fs::metadata(self.file(job)).map_or(0, |file| file.len())
    }

    pub fn of(&self, job: JobId) -> Result<BTreeMap<String, String>, SecretsError> {
        let path = self.file(job);
        let read = || -> io::Result<_> { Ok(serde_json::from_slice(&fs::read(&path)?)?) };
        read().map_err(|source| SecretsError {
            verb: "read",
            path: path.clone(),
            source,
        })
    }

    pub fn forget(&self, job: JobId) -> Result<(), SecretsError> {
        let path = self.file(job);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(SecretsError {
                verb: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }

    /// Forgets those of jobs that have none, or are no more.
    pub fn sweep(&self, lives: impl Fn(JobId) -> bool) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let job = name.to_str().and_then(|name| name.strip_suffix(".json"));
            let lives = job.and_then(|job| job.parse().ok()).is_some_and(&lives);
            if !lives && let Err(error) = fs::remove_file(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "cannot remove secrets of an ended job");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_lie_in_a_file_of_ones_own_until_they_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let secrets = Secrets::below(root.path());
        let token = BTreeMap::from([("TOKEN".to_owned(), "s3cret".to_owned())]);
        secrets.keep(JobId(7), &token).unwrap();
        secrets.keep(JobId(7), &token).expect("again after a crash");
        secrets.keep(JobId(8), &token).unwrap();
        assert_eq!(secrets.of(JobId(7)).unwrap(), token);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&root.path().join("secrets/7.json")), 0o600);
        assert_eq!(mode(&root.path().join("secrets")), 0o700);

        secrets.forget(JobId(7)).unwrap();
        secrets
            .forget(JobId(7))
            .expect("a second time changes nothing");
        assert!(secrets.of(JobId(7)).is_err());
        secrets.sweep(|job| job == JobId(8));
        assert_eq!(secrets.of(JobId(8)).unwrap(), token);
        secrets.sweep(|_| false);
        assert!(secrets.of(JobId(8)).is_err());
    }
}
