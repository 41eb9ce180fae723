//! Stop reasons: one line on stderr about when and why Divvy stopped a job's program, for verbs that return its exit
//! code.

use std::convert::Infallible;
use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::v1::{EndReason, Job, JobState};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::output;

/// Between two looks whether a job went back into its queue. The message is for a person who reads it: twice as often
/// would double the calls without being seen.
const LOOK: Duration = Duration::from_secs(2);

/// Says it of a job that has ended, if Divvy stopped its program.
pub(super) fn tell_end(job: &Job) {
    // An error tells the end of a job without an exit code.
    if let Some(why) = why(job).filter(|_| job.exit_code.is_some()) {
        let at = job.stopped_at.or(job.ended_at);
        report_stop(&job.reference(), at.unwrap_or_else(Timestamp::now), &why);
    }
}

/// Says it of a job that was told to stop, whether or not it has ended.
pub(super) fn tell_stop(job: &Job) {
    match (&job.state, &job.end_detail) {
        (JobState::Stopping, Some(why)) => {
            let at = job.stopped_at.unwrap_or_else(Timestamp::now);
            report_stop(&job.reference(), at, why);
        }
        _ => tell_end(job),
    }
}

/// `stopped job 12 at 14:03:22 (local time): its time limit of 2h was reached`.
pub(super) fn report_stop(id: &str, at: Timestamp, why: &str) {
    let at = local(at, Timestamp::now(), &TimeZone::system());
    output::say(&format!("stopped job {id} at {at} (local time): {why}"));
}

/// Says each time that the job goes back into its queue; never ends.
pub(super) async fn report_requeues(client: &Client, id: &str) -> Infallible {
    // A client of its own: the caller's says when the daemon does not respond.
    let client = Client::new(client.socket());
    let mut before = None;
    loop {
        // A daemon that is away is its caller's business.
        if let Ok(job) = client.job(id).await {
            let runs = job.runs_before;
            if before.replace(runs).is_some_and(|before| before < runs) {
                output::say(&requeued(&job));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// `job 12 was stopped and is started anew: requeued by ana (uid 1001)`.
fn requeued(job: &Job) -> String {
    let id = job.reference();
    match &job.end_detail {
        Some(why) => format!("job {id} was stopped and will start again: {why}"),
        None => format!("the program of job {id} failed and will start again"),
    }
}

/// Why Divvy stopped its program; nothing where Divvy did not.
fn why(job: &Job) -> Option<String> {
    // The text for callers without the right to read the rest, and from a daemon that gives only the reason.
    let plain = match job.end_reason? {
        EndReason::TimeLimit => "its time limit was reached",
        EndReason::IdleTimeout => "its GPUs were idle",
        EndReason::GpuLost => "one of its GPUs was lost",
        EndReason::Cancelled => "cancelled",
        EndReason::Bypass => "it bypassed the limiter",
        EndReason::Completed
        | EndReason::Failed
        | EndReason::LaunchFailed
        | EndReason::SupervisorLost
        | EndReason::DependencyFailed
        | EndReason::Released => return None,
    };
    let said = match job.end_reason {
        Some(EndReason::Bypass | EndReason::GpuLost) => {
            job.end_detail.as_ref().or(job.reason.as_ref())
        }
        _ => job.end_detail.as_ref(),
    };
    Some(said.map_or_else(|| plain.to_owned(), Clone::clone))
}

/// `14:03:22`, with the date where that is another day.
fn local(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let (at, now) = (at.to_zoned(zone.clone()), now.to_zoned(zone.clone()));
    let form = if at.date() == now.date() {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M:%S"
    };
    at.strftime(form).to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn ended(end_reason: &str) -> Job {
        serde_json::from_value(serde_json::json!({
            "id": "12", "name": "train", "user": "ana", "project": null, "queue": "q", "state": "ended",
            "end_reason": end_reason, "exit_code": 143, "request": {"kind": "whole", "count": 1},
            "compute": "fair", "slices": [], "reason": "ended by signal 15", "place": null, "command": [],
            "cwd": "", "directory": "", "slice_directory": null, "runner": "client", "pid": null,
            "submitted_at": "2026-01-02T03:04:05Z", "started_at": null, "ended_at": null,
        }))
        .unwrap()
    }

    #[test]
    fn every_end_that_is_divvys_has_a_cause_and_no_other_end_has_one() {
        for (end_reason, cause) in [
            ("time_limit", Some("its time limit was reached")),
            ("idle_timeout", Some("its GPUs were idle")),
            ("gpu_lost", Some("ended by signal 15")),
            ("cancelled", Some("cancelled")),
            ("bypass", Some("ended by signal 15")),
            ("completed", None),
            ("failed", None),
            ("launch_failed", None),
            ("supervisor_lost", None),
            ("dependency_failed", None),
            ("released", None),
        ] {
            assert_eq!(why(&ended(end_reason)).as_deref(), cause, "{end_reason}");
        }
        let by_ana = Some("cancelled by ana (uid 1001)".to_owned());
        let job = Job {
            end_detail: by_ana.clone(),
            ..ended("cancelled")
        };
        assert_eq!(why(&job), by_ana);
        let redacted = Job {
            reason: None,
            ..ended("gpu_lost")
        };
        assert_eq!(why(&redacted).as_deref(), Some("one of its GPUs was lost"));
    }

    #[test]
    fn a_time_of_another_day_has_its_date() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let stopped = at("2026-01-02T22:30:05Z");
        assert_eq!(
            local(stopped, at("2026-01-03T09:00:00Z"), &zone),
            "00:30:05"
        );
        assert_eq!(
            local(stopped, at("2026-01-03T22:00:00Z"), &zone),
            "2026-01-03 00:30:05"
        );
    }
}
