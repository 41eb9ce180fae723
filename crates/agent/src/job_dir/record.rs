//! The record of a job: an append-only file of lines, each a JSON object of one member, behind the line of the launch
//! spec.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::{FallocateFlags, fallocate};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{LaunchSpec, RECORD};
use crate::host::cgroup::CgroupStatus;
use crate::host::clock::{boot_ns, now};
use crate::host::failpoint;
use crate::host::process::Process;
use crate::job_dir::injection::InjectedLimiter;

/// Version of the record: its lines and the launch spec. A reader skips lines of a later version, and fields that it does
/// not know.
pub const RECORD_VERSION: u32 = 1;

/// Less than a block of most file systems leaves no hole.
const BLOCK: usize = 4096;

/// `launch` (the supervisor) and `started` (the program).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRecord {
    #[serde(flatten)]
    pub process: Process,
    pub at: Timestamp,
    /// The same moment of CLOCK_BOOTTIME, in nanoseconds; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_ns: Option<u64>,
}

impl StartRecord {
    /// A process that has just been started.
    pub fn now(process: Process) -> Self {
        Self {
            process,
            at: now(),
            boot_ns: Some(boot_ns()),
        }
    }
}

/// `container`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub name: String,
    /// The engine's own name for it.
    pub id: String,
    /// Bytes of the job's log that are not the container's.
    pub log_from: u64,
}

/// `exit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    #[serde(flatten)]
    pub outcome: RunOutcome,
    pub at: Timestamp,
}

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordLine {
    Launch(StartRecord),
    Started(StartRecord),
    Limiter(InjectedLimiter),
    Held(CgroupStatus),
    Container(ContainerRecord),
    Exit(ExitRecord),
}

/// All that was done, as far as it is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub launch: Option<StartRecord>,
    pub started: Option<StartRecord>,
    pub limiter: Option<InjectedLimiter>,
    pub held: Option<CgroupStatus>,
    pub container: Option<ContainerRecord>,
    pub exit: Option<ExitRecord>,
}

impl Record {
    fn apply(&mut self, line: RecordLine) {
        match line {
            RecordLine::Launch(begun) => self.launch = Some(begun),
            RecordLine::Started(begun) => self.started = Some(begun),
            RecordLine::Limiter(limiter) => self.limiter = Some(limiter),
            RecordLine::Held(held) => self.held = Some(held),
            RecordLine::Container(placed) => self.container = Some(placed),
            RecordLine::Exit(exit) => self.exit = Some(exit),
        }
    }

    /// What the lines behind the first say.
    pub(super) fn parse(text: &[u8]) -> serde_json::Result<Self> {
        let mut record = Self::default();
        for line in complete_lines(text).split(|byte| *byte == b'\n').skip(1) {
            if !line.is_empty() {
                match serde_json::from_slice(line) {
                    Ok(line) => record.apply(line),
                    Err(_) if is_of_later_version(line) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(record)
    }
}

/// Whether a line has another member than those of this version: a supervisor of a later version wrote it.
fn is_of_later_version(line: &[u8]) -> bool {
    const KNOWN: [&str; 6] = ["launch", "started", "limiter", "held", "container", "exit"];
    let members = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(line);
    members.is_ok_and(|members| members.keys().all(|name| !KNOWN.contains(&name.as_str())))
}

/// What is left of a spec that was forgotten: blanks, or a hole.
fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | 0))
}

/// The lines that have an end.
fn complete_lines(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte == b'\n');
    &text[..end.map_or(0, |end| end + 1)]
}

/// How a program ended, or why there was none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RunOutcome {
    /// It could not be started; the code is what a shell would say (126, 127, or 125 for our own failure).
    Launch {
        launch_error: String,
        exit_code: i32,
    },
    /// The agent withdrew it before it was started.
    Withdrawn {
        withdrawn: String,
    },
    /// Its container is gone, and its exit code is unknown.
    Lost {
        lost: String,
    },
    Exited {
        exit_code: i32,
    },
    Signaled {
        signal: i32,
    },
}

impl RunOutcome {
    /// The code a shell reports: 128+N for signal N; none when there was no program.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Launch { exit_code, .. } | Self::Exited { exit_code } => Some(*exit_code),
            Self::Signaled { signal } => Some(128 + signal),
            Self::Withdrawn { .. } | Self::Lost { .. } => None,
        }
    }
}

/// Returns the launch spec in the first line; `None` once it is blank.
pub(super) fn parse_spec(text: &[u8]) -> serde_json::Result<Option<LaunchSpec>> {
    let mut lines = complete_lines(text).split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    match is_blank(first) {
        true => Ok(None),
        false => serde_json::from_slice(first).map(Some),
    }
}

/// Returns how the program ended. The line is the last of a record, so no other is read.
pub(super) fn parse_exit(text: &[u8]) -> serde_json::Result<Option<ExitRecord>> {
    let mut lines = complete_lines(text)
        .trim_ascii_end()
        .rsplit(|byte| *byte == b'\n');
    match lines.next().filter(|line| line.starts_with(b"{\"exit\":")) {
        Some(line) => match serde_json::from_slice(line)? {
            RecordLine::Exit(exit) => Ok(Some(exit)),
            _ => Ok(None),
        },
        None => Ok(None),
    }
}

/// Appends lines to the record in `dir`. The caller holds the lock. Readers see a line whole or not at all.
pub(super) fn append(dir: &Path, lines: &[RecordLine], durable: bool) -> io::Result<()> {
    let mut body = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut body, line)?;
        body.push(b'\n');
    }
    failpoint::write("record.new")?;
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(dir.join(RECORD))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let (end, length) = (complete_lines(&text).len(), text.len());
    if end < length {
        file.set_len(end as u64)?;
    }
    if end == 0 {
        // Nothing is to be started any more; the first line is the spec's all the same.
        body.insert(0, b'\n');
    }
    if let Err(error) = file.write_all(&body) {
        // What the disk did not take whole it shall not keep in part.
        let _ = file.set_len(end as u64);
        return Err(error);
    }
    failpoint::reach("record.written");
    if durable {
        file.sync_data()?;
        let is_known = Record::parse(&text).is_ok_and(|record| record.launch.is_some());
        if !is_known {
            File::open(dir)?.sync_data()?;
        }
    }
    failpoint::reach("record.there");
    Ok(())
}

/// Overwrites the launch spec with blanks.
pub(super) fn blank_spec(record: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(record)?;
    let mut text = Vec::new();
    (&file).read_to_end(&mut text)?;
    let first = text.split(|byte| *byte == b'\n').next();
    let first = first.unwrap_or_default();
    // One that is not whole was never begun to be carried out, and nothing comes after it.
    match first.len() == text.len() {
        true => file.set_len(0),
        false if is_blank(first) => Ok(()),
        false => {
            file.write_all_at(&vec![b' '; first.len()], 0)?;
            if first.len() >= BLOCK {
                // A large environment need not stay as blanks; where files have no holes it does.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(&file, flags, 0, first.len() as u64);
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_later_version_are_skipped_and_broken_ones_are_not() {
        let record = |line: &str| {
            let text = format!(
                "{{}}\n{line}\n{{\"exit\":{{\"exit_code\":3,\"at\":\"2026-01-02T03:04:05Z\"}}}}\n"
            );
            Record::parse(text.as_bytes())
        };
        let later = record("{\"checkpoint\":{\"bytes\":7}}").unwrap();
        assert_eq!(
            later.exit.unwrap().outcome,
            RunOutcome::Exited { exit_code: 3 }
        );
        for broken in ["{\"launch\":7}", "{\"launch\"", "7"] {
            assert!(record(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn an_exit_record_has_one_field_for_how_it_ended() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let cases = [
            (
                RunOutcome::Exited { exit_code: 3 },
                r#"{"exit_code":3,"at":"2026-01-02T03:04:05Z"}"#,
                Some(3),
            ),
            (
                RunOutcome::Signaled { signal: 9 },
                r#"{"signal":9,"at":"2026-01-02T03:04:05Z"}"#,
                Some(137),
            ),
            (
                RunOutcome::Launch {
                    launch_error: "no".into(),
                    exit_code: 127,
                },
                r#"{"launch_error":"no","exit_code":127,"at":"2026-01-02T03:04:05Z"}"#,
                Some(127),
            ),
            (
                RunOutcome::Withdrawn {
                    withdrawn: "cancelled".into(),
                },
                r#"{"withdrawn":"cancelled","at":"2026-01-02T03:04:05Z"}"#,
                None,
            ),
            (
                RunOutcome::Lost {
                    lost: "gone".into(),
                },
                r#"{"lost":"gone","at":"2026-01-02T03:04:05Z"}"#,
                None,
            ),
        ];
        for (outcome, text, code) in cases {
            let exit = ExitRecord { outcome, at };
            assert_eq!(serde_json::to_string(&exit).unwrap(), text);
            assert_eq!(serde_json::from_str::<ExitRecord>(text).unwrap(), exit);
            assert_eq!(exit.outcome.code(), code);
        }
    }
}
