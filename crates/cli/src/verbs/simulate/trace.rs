//! Trace reader of `simulate`: requests from CSV with a header, from JSON lines, or from this program's own jobs.
//!
//! ```text
//! arrival,profile,duration        {"arrival":12.5,"memory":"10G","duration":3600}        divvy ps -a -o ndjson
//! 12.5,1g,3600
//! ```
//! Times are seconds. Other fields of a line are ignored.

use divvy_api::v1;
use divvy_core::mig::{self, ProfileTable};
use divvy_core::simulate::{Arrival, MixError, ProfileSelector};
use divvy_core::units::BytesError;
use divvy_core::{Amount, Bytes, Share};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A trace, read.
#[derive(Debug, PartialEq)]
pub struct Trace {
    /// In the order of their arrival.
    pub arrivals: Vec<Arrival>,
    /// Jobs that cannot be replayed: they never ran, run still, or asked for several GPUs.
    pub left_out: usize,
}

/// Error in a trace, with its line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TraceError {
    /// From 1.
    pub line: usize,
    what: String,
    pub hint: String,
}

/// A request as its line says.
struct Request {
    at: f64,
    wanted: Wanted,
    duration: f64,
}

/// How large an instance is asked for.
enum Wanted {
    Asked(ProfileSelector),
    Size(mig::InstanceSize),
}

/// Why a line is no request, and what would be one.
struct Refusal {
    what: String,
    hint: String,
}

const HINT: &str = "each line has arrival, profile (or memory) and duration: 12.5,1g.5gb,3600";

fn refusal(what: impl Into<String>, hint: impl Into<String>) -> Refusal {
    Refusal {
        what: what.into(),
        hint: hint.into(),
    }
}

/// Reads a trace for GPUs with this table.
///
/// # Errors
/// The first line that is no request, or asks for what the GPU does not have.
pub fn read(text: &str, table: &ProfileTable) -> Result<Trace, TraceError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let said = |line: &(usize, &str)| !line.1.is_empty() && !line.1.starts_with('#');
    let lines = (1..).zip(text.lines().map(str::trim)).filter(said);
    let mut header: Option<Columns> = None;
    let mut trace = Trace {
        arrivals: Vec::new(),
        left_out: 0,
    };
    for (line, text) in lines {
        let request = match &header {
            _ if text.starts_with('{') => json(text),
            Some(columns) => columns.request(text).map(Some),
            None => match Columns::of(text) {
                Ok(columns) => {
                    header = Some(columns);
                    continue;
                }
                Err(error) => Err(error),
            },
        };
        match request.and_then(|request| request.map(|it| it.arrival(table)).transpose()) {
            Ok(Some(arrival)) => trace.arrivals.push(arrival),
            Ok(None) => trace.left_out += 1,
            Err(Refusal { what, hint }) => return Err(TraceError { line, what, hint }),
        }
    }
    trace.arrivals.sort_by(|a, b| a.at.total_cmp(&b.at));
    Ok(trace)
}

/// Columns of a CSV file.
struct Columns {
    arrival: usize,
    duration: usize,
    profile: Option<usize>,
    memory: Option<usize>,
}

impl Columns {
    fn of(header: &str) -> Result<Self, Refusal> {
        let names: Vec<String> = cells(header).map(str::to_lowercase).collect();
        let find = |name: &str| names.iter().position(|found| found == name);
        let (profile, memory) = (find("profile"), find("memory"));
        match (find("arrival"), find("duration")) {
            (Some(arrival), Some(duration)) if profile.or(memory).is_some() => Ok(Self {
                arrival,
                duration,
                profile,
                memory,
            }),
            _ => Err(refusal(
                "a column is missing in the header",
                "begin with arrival,profile,duration or arrival,memory,duration",
            )),
        }
    }

    fn request(&self, line: &str) -> Result<Request, Refusal> {
        let cells: Vec<&str> = cells(line).collect();
        let cell = |at: usize| cells.get(at).copied().filter(|cell| !cell.is_empty());
        let seconds = |name: &str, at: usize| {
            let text = cell(at).ok_or_else(|| refusal(format!("{name} is missing"), HINT))?;
            text.parse()
                .map_err(|_| refusal(format!("{name} `{text}`: not a number of seconds"), HINT))
        };
        let memory = self.memory.and_then(cell).map(Memory::from);
        Ok(Request {
            at: seconds("arrival", self.arrival)?,
            wanted: wanted(self.profile.and_then(cell), memory)?,
            duration: seconds("duration", self.duration)?,
        })
    }
}

fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|cell| cell.trim().trim_matches('"'))
}

/// A line of JSON: a request, or a job of this program; `None` for a job that cannot be replayed.
fn json(line: &str) -> Result<Option<Request>, Refusal> {
    #[derive(Deserialize)]
    struct Kind {
        submitted_at: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Line {
        arrival: Option<f64>,
        duration: Option<f64>,
        profile: Option<String>,
        memory: Option<Memory>,
    }
    let unreadable = |error: serde_json::Error| refusal(format!("invalid JSON: {error}"), HINT);
    let kind: Kind = serde_json::from_str(line).map_err(unreadable)?;
    if kind.submitted_at.is_some() {
        let job: Job = serde_json::from_str(line).map_err(unreadable)?;
        return job.replayed();
    }
    let read: Line = serde_json::from_str(line).map_err(unreadable)?;
    let seconds = |name: &str, value: Option<f64>| {
        value.ok_or_else(|| refusal(format!("{name} is missing"), HINT))
    };
    Ok(Some(Request {
        at: seconds("arrival", read.arrival)?,
        wanted: wanted(read.profile.as_deref(), read.memory)?,
        duration: seconds("duration", read.duration)?,
    }))
}

/// The fields that a trace needs of [`v1::Job`].
#[derive(Deserialize)]
struct Job {
    id: String,
    request: v1::Amount,
    #[serde(default)]
    memory_exact: bool,
    submitted_at: Timestamp,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
}

impl Job {
    /// As a request that holds for as long as the job ran.
    fn replayed(self) -> Result<Option<Request>, Refusal> {
        let (Some(started), Some(ended)) = (self.started_at, self.ended_at) else {
            return Ok(None);
        };
        let amount = Amount::try_from(self.request)
            .map_err(|error| refusal(format!("job {}: {error}", self.id), HINT))?;
        let size = match amount {
            Amount::Share(share) => mig::InstanceSize::Share(share),
            Amount::Memory(bytes) if self.memory_exact => mig::InstanceSize::Exact(bytes),
            Amount::Memory(bytes) => mig::InstanceSize::Memory(bytes),
            Amount::Mig(profile) => mig::InstanceSize::Named(profile),
            whole if whole == Amount::ONE_GPU => mig::InstanceSize::Share(Share::FULL),
            Amount::Whole(_) | Amount::Range { .. } | Amount::Shares { .. } => return Ok(None),
        };
        Ok(Some(Request {
            at: self.submitted_at.as_duration().as_secs_f64(),
            wanted: Wanted::Size(size),
            duration: ended.duration_since(started).as_secs_f64(),
        }))
    }
}

/// Text as `--gpu-memory` takes it, or bytes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Memory {
    Bytes(u64),
    Text(String),
}

impl From<&str> for Memory {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

fn wanted(profile: Option<&str>, memory: Option<Memory>) -> Result<Wanted, Refusal> {
    let size = match (profile, memory) {
        (Some(name), _) => {
            let asked: Result<ProfileSelector, MixError> = name.parse();
            return asked
                .map(Wanted::Asked)
                .map_err(|error| refusal(error.to_string(), error.hint()));
        }
        (None, Some(Memory::Bytes(bytes))) => mig::InstanceSize::Memory(Bytes::new(bytes)),
        (None, Some(Memory::Text(text))) => match text.parse() {
            Ok(bytes) => mig::InstanceSize::Memory(bytes),
            Err(error) => {
                let error: BytesError = error;
                return Err(refusal(format!("memory: {error}"), error.hint()));
            }
        },
        (None, None) => return Err(refusal("profile and memory are both missing", HINT)),
    };
    Ok(Wanted::Size(size))
}

impl Request {
    fn arrival(self, table: &ProfileTable) -> Result<Arrival, Refusal> {
        for (name, seconds) in [("arrival", self.at), ("duration", self.duration)] {
            if !seconds.is_finite() || seconds < 0.0 {
                let what = format!("{name} {seconds}: not a valid time");
                return Err(refusal(what, "use seconds, 0 or more"));
            }
        }
        let profile = match self.wanted {
            Wanted::Asked(asked) => asked.on(table),
            Wanted::Size(size) => mig::smallest(table, size),
        };
        let absent = || {
            let wanted = match self.wanted {
                Wanted::Asked(asked) => asked.to_string(),
                Wanted::Size(mig::InstanceSize::Named(name)) => name.to_string(),
                Wanted::Size(mig::InstanceSize::Share(share)) => format!("{share} of a GPU"),
                Wanted::Size(
                    mig::InstanceSize::Memory(bytes) | mig::InstanceSize::Exact(bytes),
                ) => bytes.human(),
            };
            let names: Vec<String> = table.profiles.iter().map(|p| p.name.to_string()).collect();
            refusal(
                format!("this GPU has no MIG profile for {wanted}"),
                format!("use one of {}", names.join(", ")),
            )
        };
        Ok(Arrival {
            at: self.at,
            profile: profile.ok_or_else(absent)?.id,
            holding: self.duration,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn a100() -> Arc<ProfileTable> {
        ProfileTable::of_model("a100-40gb").unwrap()
    }

    fn arrivals(text: &str) -> Vec<(f64, String, f64)> {
        let table = a100();
        let told = |arrival: Arrival| {
            let profile = table.profile(arrival.profile).unwrap();
            (arrival.at, profile.name.to_string(), arrival.holding)
        };
        let trace = read(text, &table).unwrap();
        trace.arrivals.into_iter().map(told).collect()
    }

    fn refused(text: &str) -> String {
        let error = read(text, &a100()).unwrap_err();
        format!("{error}; {}", error.hint)
    }

    #[test]
    fn columns_stand_in_any_order_and_others_are_left_alone() {
        let text = "\u{feff}# a comment\nname, Duration ,profile,arrival\n\
                    a,60,1g,12.5\r\n\nb,\"1e2\",3g.20gb,0\n";
        assert_eq!(
            arrivals(text),
            [
                (0.0, "3g.20gb".to_owned(), 100.0),
                (12.5, "1g.5gb".to_owned(), 60.0)
            ]
        );
    }

    #[test]
    fn memory_means_the_smallest_profile_whose_name_has_as_much() {
        let text = "arrival,memory,duration\n0,4G,1\n1,10G,1\n2,40960M,1\n";
        let profiles: Vec<String> = arrivals(text).into_iter().map(|told| told.1).collect();
        assert_eq!(profiles, ["1g.5gb", "1g.10gb", "7g.40gb"]);
        let both = "arrival,profile,memory,duration\n0,,4G,1\n1,2g,4G,1\n";
        let profiles: Vec<String> = arrivals(both).into_iter().map(|told| told.1).collect();
        assert_eq!(profiles, ["1g.5gb", "2g.10gb"]);
    }

    #[test]
    fn json_lines_say_the_same() {
        let text = "{\"arrival\":0,\"profile\":\"2g.10gb\",\"duration\":5}\n\
                    {\"arrival\":1.5,\"memory\":5368709120,\"duration\":6,\"user\":\"ana\"}\n\
                    {\"arrival\":2,\"memory\":\"20G\",\"duration\":7}\n";
        assert_eq!(
            arrivals(text),
            [
                (0.0, "2g.10gb".to_owned(), 5.0),
                (1.5, "1g.5gb".to_owned(), 6.0),
                (2.0, "3g.20gb".to_owned(), 7.0)
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let header = "arrival,profile,duration\n";
        for (text, said) in [
            (
                "time,profile\n",
                "line 1: a column is missing in the header; begin with arrival,profile,duration",
            ),
            (
                &format!("{header}\n# x\nsoon,1g,5\n"),
                "line 4: arrival `soon`: not a number of seconds; each line has",
            ),
            (
                &format!("{header}1,1g\n"),
                "line 2: duration is missing; each line has",
            ),
            (
                &format!("{header}1,,5\n"),
                "line 2: profile and memory are both missing; each line has",
            ),
            (
                &format!("{header}-1,1g,5\n"),
                "line 2: arrival -1: not a valid time; use seconds, 0 or more",
            ),
            (
                &format!("{header}1,1g,inf\n"),
                "line 2: duration inf: not a valid time; use seconds, 0 or more",
            ),
            (
                &format!("{header}1,1g,NaN\n"),
                "line 2: duration NaN: not a valid time; use seconds, 0 or more",
            ),
            (
                &format!("{header}1,5g,5\n"),
                "line 2: this GPU has no MIG profile for 5g; use one of 1g.5gb,",
            ),
            (
                &format!("{header}1,big,5\n"),
                "line 2: `big`: not the size of a MIG instance; write compute",
            ),
            (
                "arrival,memory,duration\n1,4,5\n",
                "line 2: memory: `4`: add a unit; write `4G`",
            ),
            (
                "arrival,memory,duration\n1,80G,5\n",
                "line 2: this GPU has no MIG profile for 80.0 GiB; use one of",
            ),
            (
                "{\"arrival\":1,\"profile\":\"1g\"}\n",
                "line 1: duration is missing; each line has",
            ),
            (
                "{\"arrival\":\"soon\",\"profile\":\"1g\",\"duration\":1}\n",
                "line 1: invalid JSON: invalid type: string \"soon\", expected f64",
            ),
            (
                "{\"arrival\":1\n",
                "line 1: invalid JSON: EOF while parsing",
            ),
        ] {
            let found = refused(text);
            assert!(found.starts_with(said), "{text:?}: {found}");
        }
    }

    /// A line of `divvy ps -a -o ndjson`.
    fn job(request: &str, ended: bool) -> String {
        let ended = if ended {
            "\"2026-03-04T12:01:30Z\""
        } else {
            "null"
        };
        let job = format!(
            r#"{{"id":"1","name":"n","request":{request},"submitted_at":"2026-03-04T12:00:00Z",
            "started_at":"2026-03-04T12:00:30Z","ended_at":{ended},"queue":"default"}}"#
        );
        job.replace('\n', "") + "\n"
    }

    #[test]
    fn ended_jobs_of_this_program_are_replayed() {
        let requests = [
            r#"{"kind":"share","thousandths":250}"#,
            r#"{"kind":"memory","bytes":21474836480}"#,
            r#"{"kind":"mig","profile":"2g.10gb"}"#,
            r#"{"kind":"whole","count":1}"#,
        ];
        let text: String = requests.iter().map(|request| job(request, true)).collect();
        let told = arrivals(&text);
        let profiles: Vec<&str> = told.iter().map(|told| told.1.as_str()).collect();
        assert_eq!(profiles, ["1g.10gb", "3g.20gb", "2g.10gb", "7g.40gb"]);
        assert!(told.iter().all(|told| told.2 == 60.0), "{told:?}");
        let left_out = [
            job(requests[0], false),
            job(r#"{"kind":"whole","count":2}"#, true),
        ];
        let trace = read(&left_out.concat(), &a100()).unwrap();
        assert_eq!((trace.arrivals.len(), trace.left_out), (0, 2));
    }
}
