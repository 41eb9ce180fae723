//! Following a submission: why its pod waits, then its log, then its exit code.
//!
//! Output is read with its times, by which a stream that broke off goes on where it was, no line twice.

use std::process::ExitCode;
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode};
use futures_util::{AsyncBufReadExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, LogParams};
use kube::runtime::{WatchStreamExt as _, watcher};

use super::object::{CONTAINER, Kind};
use super::stage::{Stage, stage};
use crate::base::error_output;

/// Between two looks at a pod whose output ended and whose state does not say so yet; the kubelet tells once a second.
const STATUS_LAG: Duration = Duration::from_secs(1);

/// Shows a pod, or the pod of a Job, until it ends; with its program's code.
///
/// # Errors
/// It never ran, it was taken away, or the cluster does not answer any more.
pub async fn follow(
    client: &Client,
    kind: Kind,
    namespace: &str,
    name: &str,
) -> Result<ExitCode, Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let config = match kind {
        Kind::Pod => watcher::Config::default().fields(&format!("metadata.name={name}")),
        // The label that the Job controller gives its pods since 1.27.
        Kind::Job => {
            watcher::Config::default().labels(&format!("batch.kubernetes.io/job-name={name}"))
        }
    };
    let mut events = std::pin::pin!(watcher(pods.clone(), config).default_backoff());
    let mut told = String::new();
    let mut last = None;
    while let Some(event) = events.next().await {
        let pod = match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => pod,
            Ok(watcher::Event::Delete(pod)) => {
                let name = pod.metadata.name.unwrap_or_default();
                return Err(lost(format!("the pod {name} was deleted before it ended")));
            }
            Ok(watcher::Event::Init | watcher::Event::InitDone) => continue,
            Err(error) => {
                error_output::say(&format!("lost the watch of the pod, retrying: {error}"));
                continue;
            }
        };
        match stage(&pod) {
            Stage::Waits(why) if why != told => {
                error_output::say(&format!("waits: {why}"));
                told = why;
            }
            Stage::Waits(_) => {}
            Stage::Runs => while_it_runs(&pods, &pod, &mut last).await?,
            Stage::Ended(code) => {
                output(&pods, &pod, &mut last, false).await?;
                return Ok(ExitCode::from(code));
            }
            Stage::Lost(why) => return Err(lost(why)),
        }
    }
    Err(lost("the watch of the pod ended before the pod".to_owned()))
}

fn lost(why: String) -> Error {
    Error::new(ErrorCode::LaunchFailed, why).hint("`kubectl describe pod` shows the pod's events")
}

/// Shows the output until the pod is not running any more.
async fn while_it_runs(
    pods: &Api<Pod>,
    pod: &Pod,
    last: &mut Option<Timestamp>,
) -> Result<(), Error> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    loop {
        output(pods, pod, last, true).await?;
        match pods.get(name).await {
            Ok(pod) if stage(&pod) == Stage::Runs => tokio::time::sleep(STATUS_LAG).await,
            // The events show its present state, and whether its log can be read.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}

/// The pod's output after `last`, which becomes the time of its last line.
async fn output(
    pods: &Api<Pod>,
    pod: &Pod,
    last: &mut Option<Timestamp>,
    follow: bool,
) -> Result<(), Error> {
    let params = LogParams {
        container: Some(CONTAINER.to_owned()),
        follow,
        since_time: *last,
        timestamps: true,
        ..LogParams::default()
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let stream = match pods.log_stream(name, &params).await {
        Ok(stream) => stream,
        Err(error) => {
            // Its exit code counts whether its output can be read or not.
            error_output::say(
                &error_output::of_kube(error, &format!("read the output of {name}")).message,
            );
            return Ok(());
        }
    };
    let mut stream = std::pin::pin!(stream);
    let before = *last;
    let mut line = Vec::new();
    loop {
        line.clear();
        match stream.read_until(b'\n', &mut line).await {
            Ok(0) => return Ok(()),
            Ok(_) => {
                if let Some(text) = unseen(&line, before, last) {
                    error_output::print_bytes(text)?;
                }
            }
            Err(error) => {
                error_output::say(&format!(
                    "the output was interrupted, reading it again: {error}"
                ));
                return Ok(());
            }
        }
    }
}

/// The line without its time, which becomes the last; `None` if it is not later than what was shown `before` this stream. A
/// line without a time is what it is.
fn unseen<'a>(
    line: &'a [u8],
    before: Option<Timestamp>,
    last: &mut Option<Timestamp>,
) -> Option<&'a [u8]> {
    let end = line.iter().position(|byte| *byte == b' ');
    let time = end
        .and_then(|end| std::str::from_utf8(&line[..end]).ok())
        .and_then(|text| text.parse::<Timestamp>().ok());
    let (Some(end), Some(time)) = (end, time) else {
        return Some(line);
    };
    if before.is_some_and(|before| time <= before) {
        return None;
    }
    *last = Some(time);
    Some(&line[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_once_however_often_it_is_read() {
        let mut last = None;
        let first = b"2026-11-21T10:00:00.000000001Z one two\n";
        assert_eq!(unseen(first, None, &mut last), Some(&b"one two\n"[..]));
        let before = last;
        assert_eq!(unseen(first, before, &mut last), None, "in another stream");
        let next = b"2026-11-21T10:00:00.000000002Z \n";
        assert_eq!(unseen(next, before, &mut last), Some(&b"\n"[..]));
        assert_eq!(
            unseen(next, before, &mut last),
            Some(&b"\n"[..]),
            "two at once"
        );
        let odd = b"unable to retrieve container logs\n";
        assert_eq!(unseen(odd, last, &mut last.clone()), Some(&odd[..]));
    }
}
