//! Slurm's accounting: `sacct -a -X -P -n -o JobID,Submit,Start,End,ReqTRES,Partition,State`, with or without a header.
//!
//! With a header, columns may come in any order, and User, Account, JobName and Timelimit count too. Slurm writes times
//! of the cluster's zone without an offset, or as SLURM_TIME_FORMAT says: seconds are read too. Only differences count.

use std::num::NonZeroU32;

use divvy_core::{Amount, Share};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::table::{Row, Table};
use super::{InputError, Job, Jobs, bound};

const COLUMNS: [&str; 7] = [
    "JobID",
    "Submit",
    "Start",
    "End",
    "ReqTRES",
    "Partition",
    "State",
];

/// States of Slurm 25.05 (`sacct`, job state codes), and the short words of older versions.
const STATES: [&str; 22] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "CONFIGURING",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REVOKED",
    "RUNNING",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
    "TIMEOUT",
];

/// Texts that stand for no time.
const NO_TIME: [&str; 4] = ["", "Unknown", "None", "N/A"];

/// An hour: how far clocks are set back at the end of summer time (half an hour on Lord Howe Island).
const CLOCK_CHANGE_MS: i64 = 3_600_000;

/// Reads jobs. `shards` is the number of shards of one GPU.
///
/// # Errors
/// [`InputError`].
pub fn read(text: &[u8], shards: Option<u16>) -> Result<Jobs, InputError> {
    let mut table = Table::bars(text, &COLUMNS)?;
    let mut jobs = Jobs::default();
    while let Some(row) = table.next()? {
        bound(jobs.jobs.len(), &format!("line {}", row.line))?;
        let name = job_id(&row)?;
        // A step belongs to the job before it. -X omits steps.
        if name.contains('.') {
            continue;
        }
        check_state(&row)?;
        let request = Requested::of(&row, shards)?;
        if request.nodes > 1 {
            jobs.several_nodes += 1;
            continue;
        }
        let [submitted, started, ended] = read_times(&row)?;
        if request.several_instances {
            jobs.several_instances += 1;
            continue;
        }
        if ended < started && ended.is_some() {
            jobs.over_clock_change += 1;
            continue;
        }
        let some = |column| -> Result<Option<String>, InputError> {
            let text = row.text(column)?;
            Ok((!text.is_empty()).then(|| text.to_owned()))
        };
        jobs.jobs.push(Job {
            name,
            line: row.line,
            amount: request.amount,
            cpu_milli: request.cpu_milli,
            memory_mib: request.memory_mib,
            models: request.model.into_iter().collect(),
            // A pending job may name several partitions; the first is the one that it prefers.
            queue: some("Partition")?
                .map(|names| names.split(',').next().unwrap_or_default().to_owned()),
            project: some("Account")?,
            user: some("User")?,
            submitted,
            started,
            ended,
            limit_ms: limit(&row)?,
            ..Job::default()
        });
    }
    Ok(jobs)
}

/// `12`, `12_3`, `12_[4-9%2]`, `12+1`, and a step of these.
fn job_id(row: &Row<'_>) -> Result<String, InputError> {
    let text = row.text("JobID")?;
    let number = text.split(['_', '+', '.']).next().unwrap_or_default();
    let is_id = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if is_id {
        Ok(text.to_owned())
    } else {
        Err(row.error(
            "JobID",
            text,
            "not a job id",
            "use sacct -a -X -P -n -o JobID,Submit,Start,End,ReqTRES,Partition,State",
        ))
    }
}

fn check_state(row: &Row<'_>) -> Result<(), InputError> {
    let text = row.text("State")?;
    // `CANCELLED by 1001`
    let word = text.split([' ', '+']).next().unwrap_or_default();
    if STATES.contains(&word) {
        return Ok(());
    }
    Err(row.error(
        "State",
        text,
        "not a state of Slurm",
        "use the column State of sacct",
    ))
}

/// What a job requests, over all its nodes.
#[derive(Debug, Default)]
struct Requested {
    amount: Option<Amount>,
    model: Option<String>,
    cpu_milli: u64,
    memory_mib: u64,
    nodes: u64,
    several_instances: bool,
}

impl Requested {
    /// Reads `billing=8,cpu=8,gres/gpu:a100=2,mem=64G,node=1`.
    fn of(row: &Row<'_>, shards: Option<u16>) -> Result<Self, InputError> {
        let column = "ReqTRES";
        let mut request = Self {
            nodes: 1,
            ..Self::default()
        };
        // Slurm lists a typed GPU twice: `gres/gpu=2` and `gres/gpu:a100=2`.
        let (mut gpus, mut typed, mut parts) = (0, 0, 0);
        let mut instance = None;
        for item in row.text(column)?.split(',').filter(|item| !item.is_empty()) {
            let wrong = |why: &str, hint: &str| row.error(column, item, why, hint);
            let syntax = "write TRES as NAME=VALUE, for example cpu=8,gres/gpu=1,mem=64G";
            let (name, value) = item
                .split_once('=')
                .ok_or_else(|| wrong("no value", syntax))?;
            let count = || {
                let count = value.parse::<u64>().ok().filter(|count| *count < 1 << 40);
                count.ok_or_else(|| wrong("not a number", syntax))
            };
            match name.to_ascii_lowercase().as_str() {
                "cpu" => request.cpu_milli = count()? * 1000,
                "node" => request.nodes = count()?,
                "mem" => {
                    let memory = mebibytes(value);
                    request.memory_mib = memory.ok_or_else(|| wrong("not a size", syntax))?;
                }
                "gres/gpu" => gpus = count()?,
                "gres/shard" => parts = count()?,
                word if word.starts_with("gres/gpu:") => {
                    typed += count()?;
                    match Amount::from_slurm_type(&word["gres/gpu:".len()..]) {
                        Some(profile) => instance = Some(profile),
                        None => request.model = Some(name["gres/gpu:".len()..].to_owned()),
                    }
                }
                word if word.starts_with("gres/shard:") => {
                    parts = parts.max(count()?);
                    request.model = Some(name["gres/shard:".len()..].to_owned());
                }
                _ => {}
            }
        }
        request.several_instances = instance.is_some() && gpus.max(typed) > 1;
        let whole = u32::try_from(gpus.max(typed))
            .ok()
            .and_then(NonZeroU32::new);
        request.amount = match (whole, parts) {
            (Some(NonZeroU32::MIN), _) if instance.is_some() => instance,
            (Some(count), _) => Some(Amount::Whole(count)),
            (None, 0) => None,
            (None, parts) => Some(sharded(row, parts, shards)?),
        };
        Ok(request)
    }
}

/// Shards as a part of one GPU. Slurm gives the shards of a job on one GPU if it can.
fn sharded(row: &Row<'_>, parts: u64, shards: Option<u16>) -> Result<Amount, InputError> {
    let text = format!("gres/shard={parts}");
    let wrong = |why: &str, hint: &str| row.error("ReqTRES", &text, why, hint);
    let Some(shards) = shards else {
        return Err(wrong(
            "the number of shards of a GPU is unknown",
            "add --shards COUNT, the shards of one GPU in gres.conf",
        ));
    };
    let thousandths = (parts * 1000).div_ceil(u64::from(shards.max(1)));
    let share = u16::try_from(thousandths)
        .ok()
        .and_then(Share::from_thousandths);
    let share = share.ok_or_else(|| {
        let why = format!("more than the {shards} shards of a GPU");
        wrong(
            &why,
            "check --shards COUNT, the shards of one GPU in gres.conf",
        )
    })?;
    Ok(Amount::Share(share).plain())
}

/// `64G`, `4000M`, `1.5T`, `1024`: MiB, rounded up. A number alone is in MiB.
fn mebibytes(text: &str) -> Option<u64> {
    let (number, kib) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 1.0),
        'M' => (&text[..text.len() - 1], 1024.0),
        'G' => (&text[..text.len() - 1], 1024.0 * 1024.0),
        'T' => (&text[..text.len() - 1], 1024.0 * 1024.0 * 1024.0),
        _ => (text, 1024.0),
    };
    let number: f64 = number.parse().ok()?;
    let mib = number * kib / 1024.0;
    (mib.is_finite() && (0.0..1e12).contains(&mib)).then(|| mib.ceil() as u64)
}

fn read_times(row: &Row<'_>) -> Result<[Option<i64>; 3], InputError> {
    let time = |column| -> Result<Option<i64>, InputError> {
        let text = row.text(column)?;
        if NO_TIME.contains(&text) {
            return Ok(None);
        }
        let zoned = match text.parse::<DateTime>() {
            Ok(time) => TimeZone::UTC.to_timestamp(time).ok(),
            // SLURM_TIME_FORMAT=%s
            Err(_) => (text.parse().ok()).and_then(|seconds| Timestamp::from_second(seconds).ok()),
        };
        let hint = "use Slurm's format, 2026-03-04T12:00:00, or seconds: SLURM_TIME_FORMAT=%s";
        let time = zoned.ok_or_else(|| row.error(column, text, "not a time", hint))?;
        Ok(Some(time.as_millisecond()))
    };
    let (submitted, started, ended) = (time("Submit")?, time("Start")?, time("End")?);
    let hint = "check the accounting of this job";
    let is_before = |later: i64, earlier: i64| later < earlier - CLOCK_CHANGE_MS;
    if let (Some(submitted), Some(started)) = (submitted, started)
        && is_before(started, submitted)
    {
        return Err(row.error("Start", row.text("Start")?, "before Submit", hint));
    }
    if let (Some(started), Some(ended)) = (started, ended)
        && is_before(ended, started)
    {
        return Err(row.error("End", row.text("End")?, "before Start", hint));
    }
    // A job whose wait spans the change has waited for an unknown time of at most an hour.
    let submitted = submitted.map(|at| started.map_or(at, |started| at.min(started)));
    Ok([submitted, started, started.and(ended)])
}

/// `1-12:00:00`, `12:00:00`, `30:00`; other words mean no limit.
fn limit(row: &Row<'_>) -> Result<Option<u64>, InputError> {
    let text = row.text("Timelimit")?;
    let words = ["UNLIMITED", "Partition_Limit", "INVALID"];
    if NO_TIME.contains(&text) || words.contains(&text) {
        return Ok(None);
    }
    let read = || {
        let (days, rest) = match text.split_once('-') {
            Some((days, rest)) => (days.parse::<u64>().ok()?, rest),
            None => (0, text),
        };
        let parts: Vec<u64> = rest
            .split(':')
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        let seconds = match (parts.as_slice(), text.contains('-')) {
            ([hours, minutes, seconds], _) => hours * 3600 + minutes * 60 + seconds,
            ([hours, minutes], true) => hours * 3600 + minutes * 60,
            ([hours], true) => hours * 3600,
            ([minutes, seconds], false) => minutes * 60 + seconds,
            ([minutes], false) => minutes * 60,
            _ => return None,
        };
        days.checked_mul(86_400)?
            .checked_add(seconds)?
            .checked_mul(1000)
    };
    let hint = "write days-hours:minutes:seconds, for example 1-12:00:00";
    read()
        .map(Some)
        .ok_or_else(|| row.error("Timelimit", text, "not a time limit", hint))
}
