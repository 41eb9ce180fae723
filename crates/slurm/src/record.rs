//! The record of a job on a node: what Prolog decided, for the plugin that enters the slice in each task.
//!
//! ```text
//! /run/divvy-slurm   0700, root's
//!   JOB.json         what becomes of the job's tasks; whole or not there
//!   JOB.told         lines that the job's output already has
//! ```

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where the records lie, unless the plugin's argument or `DIVVY_SLURM_RECORDS` names another folder.
pub const FOLDER: &str = "/run/divvy-slurm";

/// Form of the file. The plugin refuses a record of another version.
pub const VERSION: u32 = 1;

/// Bytes of a record at most; one of 64 GPUs has about 12 KB.
const LARGEST: u64 = 1 << 20;

/// What a job's tasks meet on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    pub job: u32,
    /// The node's name in Slurm.
    pub node: String,
    pub outcome: Outcome,
    /// `--gpu-memory` of the job in bytes: a step may ask for no other amount.
    pub gpu_memory: Option<u64>,
    /// The program that a finished step's node calls for its closing lines.
    pub helper: PathBuf,
    /// The configuration that Prolog read.
    pub config: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The job has no GPU here, or one that Divvy leaves alone.
    NoSlice,
    /// No task starts, and the job's output has this line.
    Refused(String),
    /// The tasks start without a limit, and the job's output has this line.
    Unlimited(String),
    Slice(Box<Access>),
}

/// How a task enters the slice: the answer of `divvy slice env NAME -o json`, and the GPUs by Slurm's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    pub name: String,
    pub form: String,
    pub environment: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    /// Whether the slice's processes may create no user namespace.
    #[serde(default)]
    pub refuse_user_namespaces: bool,
    /// Slurm's number of each GPU, and the UUID that the daemon has for it.
    #[serde(default)]
    pub gpus: Vec<(u32, String)>,
}

/// One mount, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// `None` for a new file system in memory.
    pub source: Option<PathBuf>,
    pub target: PathBuf,
    pub read_only: bool,
}

fn path(folder: &Path, job: u32) -> PathBuf {
    folder.join(format!("{job}.json"))
}

fn reported_path(folder: &Path, job: u32) -> PathBuf {
    folder.join(format!("{job}.told"))
}

impl Record {
    /// Writes the record, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        replace(folder, &path(folder, self.job), &serde_json::to_vec(self)?)
    }

    /// Reads the record of a job; `None` without one.
    ///
    /// # Errors
    /// Those of the file system, and for a file of another user or version.
    pub fn read(folder: &Path, job: u32) -> io::Result<Option<Self>> {
        let Some(text) = read_own(&path(folder, job))? else {
            return Ok(None);
        };
        let record: Self = serde_json::from_slice(&text)?;
        if record.version != VERSION || record.job != job {
            let why = format!(
                "the record is of job {} and version {}, not of job {job} and version {VERSION}",
                record.job, record.version
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Some(record))
    }
}

/// What the job's output already has from this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// Refusals of memory, over all GPUs of the slice.
    pub denials: u64,
    /// Processes that the daemon killed for memory past the limiter.
    #[serde(default)]
    pub bypasses: usize,
    /// The words in the job's comment.
    pub comment: String,
}

impl Reported {
    pub fn write(&self, folder: &Path, job: u32) -> io::Result<()> {
        replace(
            folder,
            &reported_path(folder, job),
            &serde_json::to_vec(self)?,
        )
    }

    /// What the output has; nothing where the file is damaged, which repeats a line at worst.
    pub fn read(folder: &Path, job: u32) -> Self {
        let text = read_own(&reported_path(folder, job)).ok().flatten();
        let told = text.and_then(|text| serde_json::from_slice(&text).ok());
        told.unwrap_or_default()
    }
}

/// Removes what a job has here.
pub fn remove(folder: &Path, job: u32) {
    for file in [path(folder, job), reported_path(folder, job)] {
        let _ = fs::remove_file(file);
    }
}

/// Numbers of the jobs that have a file here.
pub fn jobs(folder: &Path) -> Vec<u32> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |file: fs::DirEntry| {
        let name = file.file_name();
        let (number, _) = name.to_str()?.split_once('.')?;
        number.parse().ok()
    };
    let mut jobs: Vec<u32> = files.filter_map(number).collect();
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

fn replace(folder: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(text)?;
    fs::rename(&draft, path)
}

/// The content of a file of this process's user, which no other user can write.
fn read_own(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me || !meta.is_file() || meta.mode() & 0o022 != 0 || meta.len() > LARGEST {
        let why = format!("{} is not a private file of uid {me}", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    fs::read(path).map(Some)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn record(job: u32) -> Record {
        Record {
            version: VERSION,
            job,
            node: "n1".into(),
            outcome: Outcome::Refused("no daemon".into()),
            gpu_memory: Some(8 << 30),
            helper: "/usr/bin/divvy-slurm".into(),
            config: "/etc/divvy/slurm.toml".into(),
        }
    }

    #[test]
    fn a_record_is_read_back_and_removed_with_what_was_told() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("records");
        assert_eq!(Record::read(&folder, 7).unwrap(), None);
        record(7).write(&folder).unwrap();
        let told = Reported {
            denials: 3,
            bypasses: 1,
            comment: "peak".into(),
        };
        told.write(&folder, 7).unwrap();
        assert_eq!(Record::read(&folder, 7).unwrap(), Some(record(7)));
        assert_eq!(Reported::read(&folder, 7), told);
        assert_eq!(jobs(&folder), [7]);
        assert_eq!(
            fs::metadata(&folder).unwrap().permissions().mode() & 0o777,
            0o700
        );
        remove(&folder, 7);
        assert_eq!(Record::read(&folder, 7).unwrap(), None);
        assert_eq!(jobs(&folder), Vec::<u32>::new());
    }

    #[test]
    fn a_record_that_others_can_write_or_of_another_job_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        record(7).write(folder).unwrap();
        fs::rename(path(folder, 7), path(folder, 8)).unwrap();
        let error = Record::read(folder, 8).unwrap_err();
        assert!(error.to_string().contains("of job 7"), "{error}");
        let open = fs::Permissions::from_mode(0o666);
        fs::set_permissions(path(folder, 8), open).unwrap();
        let error = Record::read(folder, 8).unwrap_err();
        assert!(error.to_string().contains("not a private file"), "{error}");
        fs::write(path(folder, 9), vec![b' '; (LARGEST + 1) as usize]).unwrap();
        assert!(Record::read(folder, 9).is_err());
        std::os::unix::fs::symlink("/etc/passwd", path(folder, 10)).unwrap();
        assert!(Record::read(folder, 10).is_err());
    }
}
