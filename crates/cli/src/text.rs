//! Formatting of sizes, durations, amounts and job states for people.

use std::borrow::Cow;

use divvy_api::v1::{
    Amount, Brief, ComputeTime, EndReason, Job, JobState, Joules, LatencyCause, LatencyTime,
};
use divvy_core::{Bytes, escape};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::colour::Tone;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `4.0 GiB`.
pub fn memory(bytes: u64) -> String {
    Bytes::new(bytes).human()
}

/// `3.9/4.0 GiB`: several figures in the unit of the largest.
pub fn memories(figures: &[u64]) -> String {
    let (unit, name) = if figures.iter().max().is_some_and(|most| *most >= GIB) {
        (GIB, "GiB")
    } else {
        (MIB, "MiB")
    };
    let tenths = |bytes: u64| (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    let figures: Vec<String> = figures
        .iter()
        .map(|bytes| tenths(*bytes))
        .map(|t| format!("{}.{}", t / 10, t % 10))
        .collect();
    format!("{} {name}", figures.join("/"))
}

/// `0.25` from 250 thousandths, `1` from 1000.
pub fn share(thousandths: u16) -> String {
    divvy_core::units::gpus(u64::from(thousandths)).to_string()
}

/// Labels of slices: `gpu2,3` for two whole GPUs, `gpu1:0.25c` for the slice `gpu1.25c`.
pub fn labels<'a>(labels: impl IntoIterator<Item = &'a str>) -> String {
    clean(&divvy_core::show_labels(labels))
}

/// Enforcement of a memory limit, in the glossary's words: `limiter`, `driver`, `mig`.
pub fn enforcement(name: &str) -> Cow<'_, str> {
    match name {
        "interposer" => "limiter".into(),
        other => cleaned(other),
    }
}

/// As [`enforcement`], after "enforced by".
pub fn enforcer(name: &str) -> String {
    match name {
        "mig" => "the driver (a MIG instance)".to_owned(),
        "driver" => "the driver (its own limit), with the limiter on top".to_owned(),
        other => format!("the {}", enforcement(other)),
    }
}

/// Compute time of a slice: `share 0.25 · 0.24 used over 10 s · waited 3.2 s`.
pub fn compute_time(time: &ComputeTime) -> String {
    let mut parts = vec![format!("share {}", share(time.share_asked))];
    parts.extend(
        time.share_used
            .map(|used| format!("{} used over 10 s", share(used))),
    );
    if time.throttled_ms > 0 {
        let tenths = time.throttled_ms.div_ceil(100);
        parts.push(format!("waited {}.{} s", tenths / 10, tenths % 10));
    }
    parts.join(" · ")
}

/// Requests with a latency goal: `goal 20 ms, not promised · 240 requests in a minute, 3 later · at the gate 0.1 (99 %:
/// 2.1) ms · working 9.0 (99 %: 11.2) ms · later: …`.
pub fn latency(time: &LatencyTime) -> String {
    let mut parts = vec![format!(
        "goal {} ms, not promised",
        milliseconds(time.goal_us)
    )];
    if time.requests == 0 {
        parts.push("no request waited for others in the last minute".to_owned());
    } else {
        let pair = |half, most| {
            let [half, most] = [half, most].map(milliseconds);
            format!("{half} ms (99 %: {most} ms)")
        };
        parts.push(format!(
            "{} requests in a minute, {} later",
            time.requests, time.missed
        ));
        parts.push(format!("gate {}", pair(time.wait_p50_us, time.wait_p99_us)));
        parts.push(format!("work {}", pair(time.work_p50_us, time.work_p99_us)));
    }
    parts.extend(time.cause.map(latency_cause));
    if time.over_share {
        parts.push(
            "latency:over_share: it waits like other jobs until its share is back".to_owned(),
        );
    }
    parts.join(" · ")
}

fn latency_cause(cause: LatencyCause) -> String {
    let why = match cause {
        LatencyCause::OverShare => "it asked for more than its share".to_owned(),
        LatencyCause::OwnWork { work_us } => format!(
            "its own work takes {} ms: the goal is not reachable",
            milliseconds(work_us)
        ),
        LatencyCause::UngatedNeighbour => {
            "a job with --compute none runs on the GPU, and does not wait".to_owned()
        }
        LatencyCause::Neighbour { job, work_us } => format!(
            "#{job} had {} ms of work on the GPU, and kernels are not interrupted",
            milliseconds(work_us)
        ),
        LatencyCause::Unknown => return "cause unknown".to_owned(),
    };
    format!("later because {why}")
}

/// With one decimal, rounded up: `2.1`.
fn milliseconds(micros: u64) -> String {
    let tenths = micros.div_ceil(100);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Requested amount as typed: `0.25`, `4GiB`, `2`, `1-4`, `8x0.5`.
pub fn amount(asked: &Amount) -> String {
    in_core(asked, |amount| amount.to_string())
}

/// Requested amount in words: `0.25 of a GPU`, `4.0 GiB on one GPU`, `2 whole GPUs`.
pub fn amount_in_words(asked: &Amount) -> String {
    in_core(asked, |amount| match amount {
        divvy_core::Amount::Memory(bytes) => format!("{} on one GPU", bytes.human()),
        amount => amount.describe().to_string(),
    })
}

/// A time in the zone of the reader, with its name: `2026-01-02 03:04:05 UTC`.
pub fn time(at: Timestamp, zone: TimeZone) -> String {
    let local = at.to_zoned(zone);
    local.strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// A time as short as it is clear, in the zone of the reader: `18:20:03` of today, `Nov 25 18:20` of this year, or
/// `2025-11-25`.
pub fn moment(at: Timestamp, now: Timestamp, zone: TimeZone) -> String {
    let (at, now) = (at.to_zoned(zone.clone()), now.to_zoned(zone));
    let format = match (at.date() == now.date(), at.year() == now.year()) {
        (true, _) => "%H:%M:%S",
        (false, true) => "%b %d %H:%M",
        (false, false) => "%Y-%m-%d",
    };
    at.strftime(format).to_string()
}

/// As [`memory`], rounded down: at least so much is there.
pub fn memory_down(bytes: u64) -> String {
    let (unit, name) = match bytes {
        GIB.. => (GIB, "GiB"),
        _ => (MIB, "MiB"),
    };
    let tenths = u128::from(bytes) * 10 / u128::from(unit);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// Energy, `12.34 Wh` or `1.25 kWh`, rounded down; something below a hundredth is not shown as nothing.
pub fn energy(energy: Joules) -> String {
    let millijoules = energy.millijoules();
    // A watt hour is 3600 J.
    let (unit, name) = match millijoules {
        3_600_000_000.. => (3_600_000_000, "kWh"),
        _ => (3_600_000, "Wh"),
    };
    let hundredths = u128::from(millijoules) * 100 / unit;
    match hundredths {
        0 if millijoules > 0 => "<0.01 Wh".to_owned(),
        _ => format!("{}.{:02} {name}", hundredths / 100, hundredths % 100),
    }
}

/// An amount that the core would not take is shown as it is: an agent newer than this program may know more.
fn in_core(asked: &Amount, text: impl FnOnce(divvy_core::Amount) -> String) -> String {
    divvy_core::Amount::try_from(asked.clone()).map_or_else(|_| format!("{asked:?}"), text)
}

/// `12s`, `3m12s`, `2h04m`, `3d04h`; a time to come counts as now.
pub fn elapsed(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `queued`, `running`, and for an ended job how: `completed`, `failed (3)`, `cancelled`.
pub fn state(job: &Job) -> String {
    state_of(&Brief::from(job)).into_owned()
}

/// The tone of a job's state.
pub fn state_tone(job: &Brief<'_>) -> Option<Tone> {
    match (job.state, job.end_reason) {
        (JobState::Running, _) if job.suspended || job.parked => None,
        (JobState::Running, _) => Some(Tone::Good),
        (
            JobState::Ended,
            Some(EndReason::Completed | EndReason::Cancelled | EndReason::Released),
        ) => Some(Tone::Faint),
        (JobState::Ended, Some(_)) => Some(Tone::Bad),
        _ => None,
    }
}

/// As [`state`], for a job in a table.
pub fn state_of(job: &Brief<'_>) -> Cow<'static, str> {
    let state = match (job.state, job.end_reason) {
        (JobState::Queued, _) => "queued",
        (JobState::Starting, _) => "starting",
        (JobState::Running, _) if job.suspended => "suspended",
        (JobState::Running, _) if job.parked => "parked",
        (JobState::Running, _) => "running",
        (JobState::Stopping, _) => "stopping",
        (JobState::Ended, None) => "ended",
        (JobState::Ended, Some(reason)) => match (end_reason(reason), job.exit_code) {
            (text, Some(code)) if reason != EndReason::Completed => {
                return format!("{text} ({code})").into();
            }
            (text, _) => text,
        },
    };
    state.into()
}

fn end_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Completed => "completed",
        EndReason::Failed => "failed",
        EndReason::Cancelled => "cancelled",
        // The reason, which follows in every view, says that it was never started.
        EndReason::LaunchFailed => "failed",
        EndReason::SupervisorLost => "lost",
        EndReason::Bypass => "killed",
        EndReason::TimeLimit => "timed out",
        EndReason::IdleTimeout => "idle",
        EndReason::DependencyFailed => "dependency failed",
        EndReason::GpuLost => "GPU lost",
        EndReason::Released => "released",
    }
}

/// A text that another user typed, as a terminal may show it: control, bidirectional and invisible characters as `\n`, `\u{202e}`.
pub fn clean(text: &str) -> String {
    cleaned(text).into_owned()
}

/// As [`clean`], without a copy of plain text.
pub fn cleaned(text: &str) -> Cow<'_, str> {
    escape::escaped(text)
}

/// Program and arguments as a shell would need them.
pub fn command_line(command: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_alphanumeric() || "-_./=:,+@%".contains(c))
    };
    let quoted = command.iter().map(|word| {
        if plain(word) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    clean(&quoted.collect::<Vec<_>>().join(" "))
}

/// A length of time as it is typed: `2h`, `1h30m`.
pub fn seconds(seconds: u64) -> String {
    let span = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    format!("{span:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_shown_as_short_as_they_are_typed() {
        for (thousandths, text) in [
            (250, "0.25"),
            (500, "0.5"),
            (1000, "1"),
            (125, "0.125"),
            (1, "0.001"),
        ] {
            assert_eq!(share(thousandths), text);
        }
    }

    #[test]
    fn elapsed_time_has_two_units_at_most() {
        let now = Timestamp::from_second(1_000_000).expect("in range");
        let ago = |seconds: i64| {
            elapsed(
                Timestamp::from_second(1_000_000 - seconds).expect("in range"),
                now,
            )
        };
        assert_eq!([ago(-5), ago(0), ago(59)], ["0s", "0s", "59s"]);
        assert_eq!([ago(60), ago(192), ago(3600)], ["1m00s", "3m12s", "1h00m"]);
        assert_eq!([ago(7440), ago(86_400 * 3 + 4 * 3600)], ["2h04m", "3d04h"]);
    }

    #[test]
    fn a_time_is_as_short_as_it_is_clear() {
        let now: Timestamp = "2026-11-26T18:20:03Z".parse().unwrap();
        let said = |at: &str| moment(at.parse().unwrap(), now, TimeZone::UTC);
        assert_eq!(said("2026-11-26T00:00:01Z"), "00:00:01");
        assert_eq!(said("2026-11-25T23:59:59Z"), "Nov 25 23:59");
        assert_eq!(said("2025-11-26T18:20:03Z"), "2025-11-26");
    }

    #[test]
    fn free_memory_is_not_rounded_up() {
        assert_eq!(memory_down(GIB * 387 / 10 + GIB * 99 / 1000), "38.7 GiB");
        assert_eq!(memory_down(GIB - 1), "1023.9 MiB");
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(clean("a\u{1b}[2Jb\nc"), r"a\u{1b}[2Jb\nc");
        assert_eq!(clean("größer"), "größer");
        assert_eq!(
            clean("gpu\u{202e}0\u{2066}x\u{200b}"),
            r"gpu\u{202e}0\u{2066}x\u{200b}"
        );
    }

    #[test]
    fn a_command_line_can_be_pasted_back() {
        let words = ["python", "a b.py", "it's", ""].map(str::to_owned);
        assert_eq!(command_line(&words), r"python 'a b.py' 'it'\''s' ''");
    }

    #[test]
    fn memories_share_the_unit_of_the_largest() {
        assert_eq!(memories(&[512 * MIB, 4 * GIB]), "0.5/4.0 GiB");
        assert_eq!(memories(&[3 * MIB, 512 * MIB]), "3.0/512.0 MiB");
    }
}
