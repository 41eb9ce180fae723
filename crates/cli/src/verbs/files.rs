//! Output files of a job: `submit` requests them, and `logs` reads them with the caller's own rights.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use divvy_api::client::{Client, LogStart, WaitFor};
use divvy_api::last_lines::last_lines;
use divvy_api::v1::{EndReason, Error, ErrorCode, Job, JobState, Output, Submit};

use jiff::Timestamp;

use super::reconnect::Reconnect;
use crate::args;
use crate::args::OpenMode;
use crate::error_output::usage;
use crate::output::{Stop, print as put, say};

/// The interval at which the client polls a file that grows. A tenth of a second is as fast as a reader sees; a shorter
/// one would wake the process for nothing new.
const LOOK: Duration = Duration::from_millis(100);

/// How long one question for the job's end may take.
const POLL: Duration = Duration::from_secs(20);

/// Bytes that are read at once. As large as a pipe of Linux (pipe(7)): smaller pieces need more calls, and larger ones
/// do not leave at once.
const PIECE: usize = 64 << 10;

/// Adds the job's script, and the files that its output goes to.
pub(super) fn add(args: &args::Submit, submit: &mut Submit) {
    if let Some(file) = &args.file {
        let typed = |name: &str| {
            let words = args.job.terms.env.iter();
            words
                .filter_map(|word| word.split('=').next())
                .any(|typed| typed == name)
        };
        for (name, value) in file.env.iter().filter(|(name, _)| !typed(name)) {
            submit.env.insert(name.clone(), value.clone());
        }
        submit.script = Some(file.script.clone());
    }
    let stdout = args.stdout().map(str::to_owned);
    let stderr = args.stderr.clone();
    for file in [&stdout, &stderr].into_iter().flatten() {
        warn_of_missing(Path::new(&submit.cwd), file);
    }
    if stdout.is_some() || stderr.is_some() {
        submit.output = Some(Output {
            stdout,
            stderr,
            append: args.open_mode == Some(OpenMode::Append),
        });
    }
}

/// Says that a folder is not there in which the job is to write. It may be by the time the job starts.
fn warn_of_missing(cwd: &Path, file: &str) {
    let folder = cwd.join(file);
    let Some(folder) = folder.parent() else {
        return;
    };
    let is_plain = !folder.to_string_lossy().contains('%');
    if is_plain && !folder.exists() {
        let shown = folder.display();
        say(&format!(
            "the folder {shown} does not exist; create it before the job starts"
        ));
    }
}

/// Says where a job's output goes that is not in its log.
pub(super) fn report_output_files(job: &Job) {
    let output = job.output.as_ref();
    if let Some(stdout) = output.and_then(|output| output.stdout.as_deref()) {
        say(&format!(
            "#{} writes its output to {stdout}",
            job.reference()
        ));
    }
}

/// Prints the file of a job's output, where it has one: true. The daemon reads no file that a user names.
///
/// # Errors
/// When the file cannot be read.
pub(super) async fn print(
    client: &Client,
    job: &Job,
    follow: bool,
    start: LogStart,
) -> Result<bool, Stop> {
    let Some(Output { stdout, stderr, .. }) = &job.output else {
        return Ok(false);
    };
    // Divvy's own log says why.
    if job.end_reason == Some(EndReason::LaunchFailed) {
        return Ok(false);
    }
    let Some(stdout) = stdout else {
        if let Some(stderr) = stderr {
            say(&format!(
                "#{} writes its errors to {stderr}",
                job.reference()
            ));
        }
        return Ok(false);
    };
    if let Some(stderr) = stderr
        && stderr != stdout
    {
        say(&format!(
            "#{} writes its errors to {stderr}",
            job.reference()
        ));
    }
    let path = Path::new(stdout);
    let mut file = None;
    let mut job = job.clone();
    let mut away = Reconnect::default();
    loop {
        // What it wrote before it ended is there when its end is known.
        let is_over = job.state == JobState::Ended;
        if file.is_none() {
            file = open(path, &job)?;
            if let Some(file) = &mut file {
                skip_to(file, &job, start)?;
            }
        }
        if let Some(file) = &mut file {
            copy(file, path)?;
        }
        if is_over || !follow {
            return Ok(true);
        }
        match tokio::time::timeout(LOOK, client.wait(&job.reference(), WaitFor::Ended, POLL)).await
        {
            Ok(Ok(now)) => {
                away.back();
                job = now;
            }
            Ok(Err(error)) => away.retry_or_fail(error).await?,
            Err(_) => {}
        }
    }
}

/// The file, if the job has begun it.
fn open(path: &Path, job: &Job) -> Result<Option<File>, Error> {
    let failed = |why: String| {
        let id = job.reference();
        let shown = path.display();
        Error::new(
            ErrorCode::NotFound,
            format!("#{id} writes its output to {shown}, which {why}"),
        )
        .hint(format!("divvy describe {id}"))
    };
    if job.started_at.is_none() {
        return Ok(None);
    }
    // A FIFO keeps no reader waiting, and is refused.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| failed(format!("cannot be read: {error}")))?;
    match file.metadata() {
        Ok(meta) if meta.is_file() => Ok(Some(file)),
        _ => Err(failed("is not a regular file".to_owned())),
    }
}

/// Goes on to where the output is to begin.
fn skip_to(file: &mut File, job: &Job, LogStart { tail, since }: LogStart) -> Result<(), Error> {
    let failed = |error: io::Error| {
        let id = job.reference();
        Error::new(
            ErrorCode::Internal,
            format!("the output of #{id} cannot be read: {error}"),
        )
    };
    let meta = file.metadata().map_err(failed)?;
    let end = meta.len();
    let mut begin = 0;
    if let Some(since) = since {
        let written = meta.modified().map_err(failed)?;
        // The file may have output of earlier jobs, too.
        if Timestamp::try_from(written).is_ok_and(|written| written < since) {
            begin = end;
        } else if since > job.submitted_at {
            let id = job.reference();
            return Err(usage(
                format!(
                    "#{id} writes its output to a file of its own, which has no time marks for --since"
                ),
                format!("for the last 100 lines: divvy logs -n 100 {id}"),
            ));
        }
    }
    if let Some(lines) = tail {
        begin = last_lines(|piece, from| file.read_at(piece, from), (begin, end), lines)
            .map_err(failed)?;
    }
    file.seek(SeekFrom::Start(begin)).map_err(failed)?;
    Ok(())
}

/// Prints what is in it beyond what was printed.
fn copy(file: &mut File, path: &Path) -> Result<(), Stop> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = file.read(&mut piece).map_err(|error| {
            let why = format!("{} cannot be read: {error}", path.display());
            Error::new(ErrorCode::Internal, why)
        })?;
        match read {
            0 => return Ok(()),
            read => put(&piece[..read])?,
        }
    }
}
