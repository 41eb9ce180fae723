//! Output files of a job: patterns in its submission, paths once it has a number, opened with its user's rights.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_api::home::machine;
use divvy_api::v1::{Error, Output, Runner, Submit};
use divvy_core::{FileFacts, FilePattern, FilePatternError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::job_dir::OutputFiles;
use crate::model::job::Job;
use crate::model::validate::usage;
use crate::supervisor::resolve_program::LaunchError;

/// What the umask leaves of it (open(2)).
const MODE: Mode = Mode::from_raw_mode(0o666);

/// Refuses files that no job can write to; `contained`: the job is to be in a container.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage).
pub fn check(submit: &Submit, contained: bool) -> Result<(), Error> {
    let Some(output) = &submit.output else {
        return Ok(());
    };
    if contained {
        return Err(usage(
            "-o and -e are not supported for containers: their output goes to the job's log",
        )
        .hint("leave out -o and -e, and read the output with `divvy logs JOB`"));
    }
    if submit.runner == Runner::Client {
        return Err(
            usage("-o and -e are not supported for a foreground job: it writes to the terminal of its client")
                .hint("redirect the output in the shell, or use `divvy submit`"),
        );
    }
    for (flag, pattern) in [("-o", &output.stdout), ("-e", &output.stderr)] {
        let Some(pattern) = pattern else { continue };
        let read = pattern.parse::<FilePattern>();
        read.map_err(|error: FilePatternError| {
            usage(format!("{flag} {pattern}: {error}")).hint(error.hint())
        })?;
    }
    Ok(())
}

/// The files of a job's output; `None` where that goes to its log.
pub fn output_of(job: &Job) -> Option<Output> {
    let output = job.spec.policy.output.as_ref()?;
    let node = machine::host();
    let task = job.spec.policy.array;
    let index = task.map(|task| format!("[{}]", task.index));
    let name = index.and_then(|index| job.spec.name.strip_suffix(&index));
    let facts = FileFacts {
        job: job.id,
        task: task.map(|task| (task.array.unwrap_or(job.id), task.index)),
        name: name.unwrap_or(&job.spec.name),
        user: &job.spec.user,
        node: node.split('.').next().unwrap_or_default(),
    };
    let path = |pattern: &Option<String>| {
        let pattern: FilePattern = pattern.as_deref()?.parse().ok()?;
        let path = Path::new(&job.spec.cwd).join(pattern.expand(&facts));
        // Without the `.` of `./logs/out`.
        let path: PathBuf = path.components().collect();
        Some(path.to_string_lossy().into_owned())
    };
    let stdout = path(&output.stdout);
    Some(Output {
        stderr: path(&output.stderr).or_else(|| stdout.clone()),
        stdout,
        append: output.append,
    })
}

impl OutputFiles {
    /// Of a job's next run.
    pub fn next_run_of(job: &Job) -> Option<Self> {
        let Output {
            stdout,
            stderr,
            append,
        } = output_of(job)?;
        Some(Self {
            stdout: stdout.map(PathBuf::from),
            stderr: stderr.map(PathBuf::from),
            truncate: !append && job.run_state.runs == 0,
        })
    }

    /// Opens them. The calling thread has the job's user's rights, and none but theirs.
    ///
    /// # Errors
    /// Which file cannot be opened, and why.
    pub fn open(&self) -> Result<OpenOutput, LaunchError> {
        let stdout = match &self.stdout {
            Some(path) => Some(self.open_one(path)?),
            None => None,
        };
        let stderr = match &self.stderr {
            // One file is begun anew once.
            Some(_) if self.stdout == self.stderr => None,
            Some(path) => Some(self.open_one(path)?),
            None => None,
        };
        Ok(OpenOutput {
            is_shared: self.stdout.is_some() && self.stdout == self.stderr,
            stdout,
            stderr,
        })
    }

    fn open_one(&self, path: &Path) -> Result<File, LaunchError> {
        // Without O_NONBLOCK a FIFO that no process reads would hold the supervisor up, and a cancel with it.
        let mut flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
        flags.set(OFlags::TRUNC, self.truncate);
        let open = || -> rustix::io::Result<File> {
            let file = rustix::fs::open(path, flags | OFlags::NONBLOCK, MODE)?;
            // The program's output is as it would be without.
            rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
            Ok(file.into())
        };
        open().map_err(|errno| LaunchError {
            code: 125,
            message: format!(
                "cannot write the job's output to {}: {}",
                path.display(),
                reason(path, errno)
            ),
        })
    }
}

/// Why a file cannot be opened, in words.
fn reason(path: &Path, errno: Errno) -> String {
    match (errno, path.parent()) {
        (Errno::NOENT, Some(folder)) if !folder.exists() => {
            format!("the folder {} does not exist", folder.display())
        }
        (Errno::NXIO, _) => "no process reads from this FIFO".to_owned(),
        _ => io::Error::from(errno).to_string(),
    }
}

/// The open files of a job's output.
#[derive(Debug)]
pub struct OpenOutput {
    stdout: Option<File>,
    stderr: Option<File>,
    /// Both are the one.
    is_shared: bool,
}

impl OpenOutput {
    /// Has a program write to them.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn redirect(&self, command: &mut Command) -> io::Result<()> {
        if let Some(file) = &self.stdout {
            command.stdout(file.try_clone()?);
        }
        let errors = match self.is_shared {
            true => &self.stdout,
            false => &self.stderr,
        };
        if let Some(file) = errors {
            command.stderr(file.try_clone()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::host::run_as::Identity;

    fn files(stdout: Option<&Path>, stderr: Option<&Path>, truncate: bool) -> OutputFiles {
        OutputFiles {
            stdout: stdout.map(Path::to_owned),
            stderr: stderr.map(Path::to_owned),
            truncate,
        }
    }

    fn say(files: &OutputFiles, words: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", words]);
        files.open().unwrap().redirect(&mut command).unwrap();
        assert!(command.status().unwrap().success());
    }

    #[test]
    fn both_streams_go_to_one_file_in_their_order_and_the_first_run_begins_it_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "of an earlier job\n").unwrap();
        let one = files(Some(&path), Some(&path), true);
        say(&one, "echo a; echo b >&2; echo c");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\nc\n");
        say(&files(Some(&path), Some(&path), false), "echo d");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\nc\nd\n");

        let errors = dir.path().join("err");
        say(&files(None, Some(&errors), true), "echo only >&2");
        assert_eq!(fs::read_to_string(errors).unwrap(), "only\n");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named_with_the_reason_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let missing = dir.path().join("logs/out");
        for (path, why) in [
            (
                missing.as_path(),
                format!(
                    "the folder {} does not exist",
                    dir.path().join("logs").display()
                ),
            ),
            (dir.path(), "Is a directory".to_owned()),
            (&fifo, "no process reads from this FIFO".to_owned()),
        ] {
            let error = files(Some(path), None, true).open().unwrap_err();
            assert_eq!(error.code, 125);
            let begins = format!("cannot write the job's output to {}: {why}", path.display());
            assert!(error.message.starts_with(&begins), "{}", error.message);
        }
    }

    #[test]
    fn a_file_is_opened_with_the_users_rights_and_is_the_users() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can become another user");
            return;
        }
        let user = Identity {
            uid: 65_534,
            gid: 65_533,
            groups: Some(Vec::new()),
            account: None,
        };
        let dir = tempfile::tempdir().unwrap();
        let open_to_all = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        open_to_all(dir.path(), 0o1777);
        let roots = dir.path().join("roots");
        fs::write(&roots, "root's").unwrap();
        open_to_all(&roots, 0o600);
        let own = dir.path().join("own");
        let opened = |path: &Path| {
            let files = files(Some(path), None, true);
            user.run(|| files.open().map(drop)).unwrap()
        };
        assert!(opened(&roots).unwrap_err().message.contains("ermission"));
        assert_eq!(fs::read_to_string(&roots).unwrap(), "root's");
        opened(&own).unwrap();
        let meta = fs::metadata(&own).unwrap();
        let owner = |meta: &fs::Metadata| {
            use std::os::unix::fs::MetadataExt as _;
            (meta.uid(), meta.gid())
        };
        assert_eq!(owner(&meta), (65_534, 65_533));
    }
}
