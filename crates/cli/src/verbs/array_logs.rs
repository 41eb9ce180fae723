//! `logs` of an array: the log of each job under a header, or with `-f` all of them at once, with a prefix before each
//! line.

use std::collections::VecDeque;
use std::sync::Arc;

use divvy_api::client::{Client, LogStart};
use divvy_api::v1::{Error, ErrorCode, Job, JobState};
use tokio::task::JoinSet;

use super::files;
use super::follow::Log;
use super::reconnect::Reconnect;
use crate::output::{Stop, print, say};
use crate::text;

/// Logs that are followed at once, those with the lowest indices first; each is a connection. The next follows when one
/// ends. An eighth of the 512 connections of a user, so that other commands still find one (024).
const AT_ONCE: usize = 64;

/// A line that is longer is broken, so that a program that writes no end of line takes no more memory than this.
const LONGEST_LINE: usize = 64 << 10;

/// One log after the other.
pub async fn one_by_one(client: &Client, jobs: &[Job], start: LogStart) -> Result<(), Stop> {
    let mut waits = 0;
    for (place, job) in jobs.iter().enumerate() {
        if job.started_at.is_none() {
            waits += 1;
            continue;
        }
        let before = if place > 0 { "\n" } else { "" };
        let name = text::clean(&job.name);
        print(format!("{before}==> {} {name} <==\n", job.reference()))?;
        if files::print(client, job, false, start).await? {
            continue;
        }
        match Log::from(start).copy_all(client, &job.reference()).await {
            Err(Stop::Failed(error)) if error.code == ErrorCode::Gone => say(&error.message),
            answer => answer?,
        }
    }
    match waits {
        0 => {}
        1 => say("1 job has not started"),
        waits => say(&format!("{waits} jobs have not started")),
    }
    Ok(())
}

/// All logs until all jobs have ended.
pub async fn follow(client: Client, jobs: &[Job], start: LogStart) -> Result<(), Stop> {
    let client = Arc::new(client);
    if let Some(job) = jobs.iter().find(|job| job.output.is_some()) {
        files::report_output_files(job);
    }
    let longest = jobs.iter().map(|job| job.reference().len()).max();
    let width = longest.unwrap_or_default();
    let has_output = |job: &&Job| job.state != JobState::Ended || job.started_at.is_some();
    let all = jobs.iter().filter(has_output).map(Job::reference);
    let mut next: VecDeque<String> = all.collect();
    let mut followed = JoinSet::new();
    let away = Reconnect::default();
    loop {
        while followed.len() < AT_ONCE
            && let Some(job) = next.pop_front()
        {
            let client = Arc::clone(&client);
            let lines = Lines::new(format!("{job:<width$} | "));
            let log = Log::in_lines(start, lines).reconnecting(away.clone());
            followed.spawn(async move { log.follow(&client, &job).await });
        }
        let Some(ended) = followed.join_next().await else {
            return Ok(());
        };
        match ended.map_err(|error| panicked(&error))? {
            Err(Stop::Failed(error)) if error.code == ErrorCode::Gone => say(&error.message),
            ended => ended?,
        }
    }
}

fn panicked(error: &tokio::task::JoinError) -> Error {
    Error::new(ErrorCode::Internal, format!("cannot follow a log: {error}"))
}

/// Output that comes in pieces, as whole lines with a prefix.
#[derive(Debug)]
pub struct Lines {
    prefix: String,
    /// The beginning of an unfinished line.
    begun: Vec<u8>,
}

impl Lines {
    fn new(prefix: String) -> Self {
        Self {
            prefix,
            begun: Vec::new(),
        }
    }

    /// Takes the next piece; gives what can be printed.
    pub fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            for part in part.chunks(LONGEST_LINE) {
                self.begun.extend(part);
                if self.begun.len() >= LONGEST_LINE || part.ends_with(b"\n") {
                    self.give(&mut out);
                }
            }
        }
        out
    }

    /// Gives what is left when nothing more comes.
    pub fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.begun.is_empty() {
            self.give(&mut out);
        }
        out
    }

    fn give(&mut self, out: &mut Vec<u8>) {
        out.extend(self.prefix.as_bytes());
        out.append(&mut self.begun);
        if out.last() != Some(&b'\n') {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_prefix_wherever_the_pieces_are_cut_and_long_ones_are_broken() {
        let text = b"one\n\ntwo \xff\nthree";
        for length in 1..=text.len() {
            let mut lines = Lines::new("12_0 | ".to_owned());
            let mut out = Vec::new();
            for piece in text.chunks(length) {
                out.extend(lines.take(piece));
            }
            out.extend(lines.end());
            let expected = b"12_0 | one\n12_0 | \n12_0 | two \xff\n12_0 | three\n";
            assert_eq!(out, expected, "{length}");
        }
        let mut lines = Lines::new(String::new());
        let mut out = 0;
        for _ in 0..100 {
            out += lines.take(&[b'x'; 10_000]).len();
            assert!(lines.begun.len() < LONGEST_LINE);
        }
        assert!(out > 900_000, "{out}");
    }
}
