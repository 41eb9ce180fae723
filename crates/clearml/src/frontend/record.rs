//! Task records: one small file for each task that is ours or may be, so that a restarted front end continues.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::task_state::ClaimPhase;
use crate::Error;

/// A task that is ours, or may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub task: String,
    pub queue_id: String,
    pub queue_name: String,
    /// The agent's job.
    pub job: String,
    /// The worker that the task runs as.
    pub worker: String,
    pub mark: ClaimPhase,
}

/// How much of a job's log is on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    pub bytes: u64,
    /// The task's own agent sends the rest.
    pub handed_over: bool,
}

/// The folder of records.
#[derive(Clone, Debug)]
pub struct Records {
    folder: PathBuf,
}

impl Records {
    /// # Errors
    /// A folder that cannot be made.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(|source| failed("make", folder, source))?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// All of them; a file that holds none is set aside, and said.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn all(&self) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        let files =
            fs::read_dir(&self.folder).map_err(|source| failed("read", &self.folder, source))?;
        for file in files {
            let path = file
                .map_err(|source| failed("read", &self.folder, source))?
                .path();
            if path.extension().is_none_or(|kind| kind != "json") {
                continue;
            }
            let text = fs::read(&path).map_err(|source| failed("read", &path, source))?;
            match serde_json::from_slice(&text) {
                Ok(record) => records.push(record),
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "cannot read this record of a ClearML task; renaming it to *.broken");
                    let aside = path.with_extension("broken");
                    fs::rename(&path, &aside).map_err(|source| failed("rename", &path, source))?;
                }
            }
        }
        records.sort_by(|one: &Record, other| one.task.cmp(&other.task));
        Ok(records)
    }

    /// Writes it; on disk when this returns.
    ///
    /// # Errors
    /// A disk that is full, a folder that is gone.
    pub fn save(&self, record: &Record) -> Result<(), Error> {
        let path = self.path(&record.task, "json");
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.write(&path, &text)
            .map_err(|source| failed("write", &path, source))
    }

    /// Forgets a task. It is no error that nothing was known of it.
    pub fn remove(&self, task: &str) {
        for kind in ["json", "sent"] {
            let _ = fs::remove_file(self.path(task, kind));
        }
    }

    pub fn sent(&self, task: &str) -> Sent {
        let text = fs::read(self.path(task, "sent")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// A crash between sending and this sends some of it twice, and nothing too little.
    pub fn save_sent(&self, task: &str, sent: Sent) {
        let path = self.path(task, "sent");
        let text = serde_json::to_vec(&sent).unwrap_or_default();
        if let Err(error) = self.write(&path, &text) {
            tracing::warn!(path = %path.display(), %error, "cannot save how much of the log was sent");
        }
    }

    fn write(&self, path: &Path, text: &[u8]) -> std::io::Result<()> {
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Ids are hexadecimal; any other id that a server uses stays one name in this folder.
    fn path(&self, task: &str, kind: &str) -> PathBuf {
        let safe = |letter: char| {
            let keep = letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
            if keep {
                letter.to_string()
            } else {
                format!("%{:x}", u32::from(letter))
            }
        };
        self.folder.join(format!(
            "{}.{kind}",
            task.chars().map(safe).collect::<String>()
        ))
    }
}

fn failed(what: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(task: &str) -> Record {
        Record {
            task: task.into(),
            queue_id: "q".into(),
            queue_name: "half gpu".into(),
            job: "7".into(),
            worker: "node1:gpu0.5a".into(),
            mark: ClaimPhase::Ours,
        }
    }

    #[test]
    fn records_come_back_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(&folder.path().join("clearml")).unwrap();
        records.save(&record("b")).unwrap();
        records.save(&record("../a")).unwrap();
        let later = Record {
            mark: ClaimPhase::Confirmed,
            ..record("b")
        };
        records.save(&later).unwrap();
        records.save_sent(
            "b",
            Sent {
                bytes: 12,
                handed_over: true,
            },
        );
        assert_eq!(records.all().unwrap(), [record("../a"), later]);
        assert_eq!(records.sent("b").bytes, 12);
        records.remove("b");
        records.remove("b");
        assert_eq!(records.all().unwrap(), [record("../a")]);
        assert_eq!(records.sent("b"), Sent::default());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_no_record_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path()).unwrap();
        fs::write(folder.path().join("x.json"), "{").unwrap();
        assert_eq!(records.all().unwrap(), []);
        assert!(folder.path().join("x.broken").exists());
    }
}
