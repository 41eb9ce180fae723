//! Conversion between database rows and the daemon's types.

use std::sync::Arc;

use divvy_api::v1::{Amount, Runner};
use divvy_core::isolation::IsolationError;
use divvy_core::job::{Outcome, Process, StopReason};
use divvy_core::resize::ResizeTarget;
use divvy_core::units::ComputeModeError;
use divvy_core::{Bytes, Compute, Enforcement, Grant, JobId, JobState, MigGrant, Request, Share};
use jiff::Timestamp;
use rusqlite::Row;

use super::StoreError;
use crate::model::bypass::Bypass;
use crate::model::job::{Allocation, AllocationStats, Credentials, Job, JobSpec};
use crate::model::policy::RunState;

/// Columns that `job` reads, in its order.
pub const JOB: &str = "id, name, user, project, queue, amount, compute, gpus_on, runner, command, cwd, state, attempt, \
                       pid, pid_start, submitted_at, started_at, ended_at, outcome, exit_code, reason, resized, redivided, \
                       isolation, exact, container, terms, course, secrets, uid, gid";

/// Columns that `holding` reads, in its order.
pub const HOLDING: &str = "job, gpu_uuid, gpu_index, memory, share, label, peak, denied, last_denied, mismatch_max, goal_memory, goal_share, mig, enforcement";

/// A row as it lies in the table, before it means anything.
pub struct RawJob {
    id: u64,
    texts: [String; 9],
    project: Option<String>,
    attempt: u32,
    process: Option<Process>,
    submitted_at: Timestamp,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    outcome: Option<String>,
    exit_code: Option<i32>,
    reason: Option<String>,
    resized: Option<String>,
    redivided: Option<String>,
    isolation: String,
    exact: bool,
    container: Option<String>,
    /// Its terms, its course, its secrets.
    told: [String; 3],
    by: Credentials,
}

impl RawJob {
    pub fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let text = |column| row.get::<_, String>(column);
        let process = match (row.get(13)?, row.get(14)?) {
            (Some(pid), Some(start_time)) => Some(Process { pid, start_time }),
            _ => None,
        };
        Ok(Self {
            id: row.get(0)?,
            texts: [
                text(1)?,
                text(2)?,
                text(4)?,
                text(5)?,
                text(6)?,
                text(7)?,
                text(8)?,
                text(9)?,
                text(10)?,
            ],
            project: row.get(3)?,
            attempt: row.get(12)?,
            process,
            submitted_at: time(row, 15)?,
            started_at: optional_time(row, 16)?,
            ended_at: optional_time(row, 17)?,
            outcome: row.get(18)?,
            exit_code: row.get(19)?,
            reason: row.get(20)?,
            resized: row.get(21)?,
            redivided: row.get(22)?,
            isolation: row.get(23)?,
            exact: row.get(24)?,
            container: row.get(25)?,
            told: [text(26)?, text(27)?, text(28)?],
            // Those of before there were others are the daemon's own.
            by: match (row.get(29)?, row.get(30)?) {
                (Some(uid), Some(gid)) => Credentials { uid, gid },
                _ => Credentials::current(),
            },
        })
    }

    pub fn id(&self) -> JobId {
        JobId(self.id)
    }

    /// The job that the row, its holdings and its bypasses mean.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for what only a foreign hand or a bug can have written.
    pub fn job(
        self,
        state: &str,
        holdings: Vec<Allocation>,
        bypasses: Vec<Bypass>,
    ) -> Result<Job, StoreError> {
        let id = JobId(self.id);
        let corrupt = |what: String| StoreError::Corrupt { job: id, what };
        let [
            name,
            user,
            queue,
            amount_text,
            compute,
            on,
            runner,
            command,
            cwd,
        ] = self.texts;
        let amount = |text: &str| -> Result<divvy_core::Amount, StoreError> {
            let amount: Amount = parse(text).map_err(corrupt)?;
            amount
                .try_into()
                .map_err(|error: divvy_api::v1::Error| corrupt(error.message))
        };
        let resized = self.resized.as_deref().map(amount).transpose()?;
        let compute_of = |text: &str| -> Result<Compute, StoreError> {
            text.parse()
                .map_err(|error: ComputeModeError| corrupt(error.to_string()))
        };
        let redivided = self.redivided.as_deref().map(compute_of).transpose()?;
        let request = Request {
            amount: amount(&amount_text)?,
            compute: compute_of(&compute)?,
            on: parse(&on).map_err(corrupt)?,
            isolation: self
                .isolation
                .parse()
                .map_err(|error: IsolationError| corrupt(error.to_string()))?,
            exact: self.exact,
            gives_way: false,
        };
        let grants = || {
            holdings
                .iter()
                .map(|holding| holding.grant.clone())
                .collect()
        };
        let [terms, course, secrets] = self.told;
        let course: RunState = parse(&course).map_err(corrupt)?;
        let life = match (state, self.process, self.outcome) {
            ("queued", ..) => JobState::Queued,
            ("starting", ..) => JobState::Starting { grants: grants() },
            ("running", Some(process), _) => JobState::Running {
                grants: grants(),
                process,
            },
            ("running", None, _) if runner == runner_name(Runner::Claim) => {
                JobState::Bound { grants: grants() }
            }
            ("stopping", process, _) => JobState::Stopping {
                grants: grants(),
                process,
                why: course.stop.map_or(StopReason::Cancel, |(why, _)| why),
            },
            ("ended", _, Some(outcome)) => JobState::Ended {
                outcome: parse::<Outcome>(&outcome).map_err(corrupt)?,
            },
            _ => {
                return Err(corrupt(format!(
                    "its state is {state}, but fields of this state are missing"
                )));
            }
        };
        if matches!(state, "starting" | "running" | "stopping") && holdings.is_empty() {
            return Err(corrupt(format!(
                "its state is {state}, but it has no allocation"
            )));
        }
        Ok(Job {
            id,
            spec: Arc::new(JobSpec {
                name,
                user,
                project: self.project,
                queue: queue.parse().map_err(|error| corrupt(format!("{error}")))?,
                request,
                runner: parse_runner(&runner).map_err(corrupt)?,
                command: parse(&command).map_err(corrupt)?,
                container: self
                    .container
                    .as_deref()
                    .map(parse)
                    .transpose()
                    .map_err(corrupt)?,
                cwd,
                policy: parse(&terms).map_err(corrupt)?,
                secrets: parse(&secrets).map_err(corrupt)?,
                credentials: self.by,
            }),
            run_state: course,
            resized,
            redivided,
            state: life,
            attempt: self.attempt,
            submitted_at: self.submitted_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
            exit_code: self.exit_code,
            reason: self.reason,
            // What it held before it came back is told by its events, not by what it is.
            allocations: match state {
                "queued" => Vec::new(),
                _ => holdings,
            },
            bypasses,
        })
    }
}

/// A job's id and its holding on one GPU.
pub fn allocation(row: &Row<'_>) -> rusqlite::Result<(JobId, Allocation)> {
    let wrong = |column, error: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error)
    };
    let mig = row.get::<_, Option<String>>(12)?;
    let mig = mig.map(|text| parse::<MigGrant>(&text)).transpose();
    let mig = mig.map_err(|error| wrong(12, error.into()))?;
    let grant = Grant {
        gpu: row
            .get::<_, String>(1)?
            .parse()
            .map_err(|error| wrong(1, Box::new(error)))?,
        index: row.get(2)?,
        memory: Bytes::new(row.get(3)?),
        share: Share::from_thousandths(row.get(4)?)
            .ok_or_else(|| wrong(4, "not a share".into()))?,
        label: row.get(5)?,
        mig,
    };
    let last_denied = row.get::<_, Option<u64>>(8)?.map(Bytes::new);
    let traces = AllocationStats {
        peak: Bytes::new(row.get(6)?),
        denied: row.get(7)?,
        last_denied,
        mismatch_max: Bytes::new(row.get(9)?),
    };
    let goal = match (row.get(10)?, row.get::<_, Option<u16>>(11)?) {
        (Some(memory), Some(share)) => Some(ResizeTarget {
            memory: Bytes::new(memory),
            share: Share::from_thousandths(share).ok_or_else(|| wrong(11, "not a share".into()))?,
        }),
        _ => None,
    };
    let enforcement = row.get::<_, Option<String>>(13)?;
    let enforcement = match enforcement.as_deref() {
        Some(name) => {
            Enforcement::from_name(name).ok_or_else(|| wrong(13, "no enforcement".into()))?
        }
        None => Enforcement::without_driver(&grant),
    };
    let holding = Allocation {
        grant,
        stats: traces,
        goal,
        enforcement,
    };
    Ok((JobId(row.get(0)?), holding))
}

pub fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    let micros = row.get(column)?;
    Timestamp::from_microsecond(micros)
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, micros))
}

fn optional_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    row.get::<_, Option<i64>>(column)?
        .map(|_| time(row, column))
        .transpose()
}

/// A figure that may be anything, as the database's signed integers can hold it.
pub fn figure(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub fn runner_name(runner: Runner) -> &'static str {
    match runner {
        Runner::Supervisor => "supervisor",
        Runner::Client => "client",
        Runner::Claim => "claim",
    }
}

fn parse_runner(text: &str) -> Result<Runner, String> {
    [Runner::Supervisor, Runner::Client, Runner::Claim]
        .into_iter()
        .find(|runner| runner_name(*runner) == text)
        .ok_or_else(|| format!("unknown runner {text:?}"))
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("cannot parse {text:?} ({error})"))
}

pub fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}
