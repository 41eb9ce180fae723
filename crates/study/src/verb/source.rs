//! Files of simulations: bounded reading, and jobs in one form.

use std::io::Read as _;
use std::path::Path;

use divvy_api::v1::{Error, ErrorCode};

use divvy_core::queue::{QueueError, QueueSpec};

use super::input::{self, Format, Jobs, MOST_BYTES, Reading};
use super::{name, packing};
use divvy_cli::args;
use divvy_cli::error_output::{Result, usage};

/// The bytes of a file, or of standard input.
///
/// # Errors
/// A file that cannot be read, or has more than [`MOST_BYTES`].
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    bounded(path, MOST_BYTES)
}

fn bounded(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(most + 1)
            .read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
    };
    let read = read.map_err(|error| {
        let what = format!("cannot read {}: {error}", name(path));
        Error::new(ErrorCode::Usage, what).hint("name a file, or - for stdin")
    })?;
    if read as u64 > most {
        let what = format!("{}: more than {} MiB", name(path), most >> 20);
        return Err(usage(what, "select a shorter time, or fewer jobs"));
    }
    Ok(bytes)
}

/// The jobs of a file, in the format that `--input` names or that the content has.
///
/// # Errors
/// A file that cannot be read, has no known format, or has a line that is no job.
pub fn jobs(args: &args::Simulate, path: &Path) -> Result<Jobs> {
    // A wrong word is refused before the file is read.
    let queues = args.queues.iter().map(|text| queue(text));
    let queues: Vec<QueueSpec> = queues.collect::<Result<_>>()?;
    let bytes = bytes(path)?;
    if bytes.trim_ascii().is_empty() {
        let hint = "check the command that writes the list";
        return Err(usage(format!("{}: the list is empty", name(path)), hint));
    }
    let named = args.input.as_deref().map(|text| {
        text.parse::<Format>()
            .map_err(|hint| usage(format!("--input {text}: unknown format"), hint))
    });
    let format = match named.transpose()? {
        Some(format) => format,
        None => Format::of(&bytes).ok_or_else(|| {
            usage(
                format!("{}: unknown format", name(path)),
                "add --input openb, history, sacct or clearml",
            )
        })?,
    };
    let reading = Reading {
        shards: args.shards,
    };
    let mut jobs = input::jobs(&bytes, format, reading)
        .map_err(|error| usage(format!("{}: {error}", name(path)), &error.hint))?;
    if jobs.jobs.is_empty() {
        packing::report_skipped(&jobs);
        return Err(usage(
            format!("{}: no jobs found ({format})", name(path)),
            "check the file, and --input",
        ));
    }
    give_amounts(&queues, &mut jobs);
    Ok(jobs)
}

/// Gives the jobs of a queue the amount that `--queues NAME=AMOUNT` names.
fn give_amounts(specs: &[QueueSpec], jobs: &mut Jobs) {
    for job in &mut jobs.jobs {
        let named = specs
            .iter()
            .find(|spec| Some(spec.name.as_str()) == job.queue.as_deref());
        if let Some(amount) = named.and_then(|spec| spec.amount) {
            job.amount = Some(amount);
            jobs.assumed_whole -= usize::from(std::mem::take(&mut job.is_assumed));
        }
    }
}

/// A word of `--queues`: a name, or a name with the amount of each of its jobs.
///
/// # Errors
/// A word that is neither.
pub fn queue(text: &str) -> Result<QueueSpec> {
    let read = if text.contains('=') {
        text.parse()
    } else {
        text.parse().map(QueueSpec::open).map_err(QueueError::Name)
    };
    read.map_err(|error: QueueError| usage(format!("--queues {text}: {error}"), error.hint()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beyond_the_bound_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.csv");
        std::fs::write(&path, vec![b'x'; (2 << 20) + 1]).unwrap();
        let error = bounded(&path, 2 << 20).unwrap_err();
        assert!(
            error.message.ends_with("jobs.csv: more than 2 MiB"),
            "{}",
            error.message
        );
        assert_eq!(bounded(&path, 3 << 20).unwrap().len(), (2 << 20) + 1);
    }
}
