//! The log forwarder: copies a pod's log to the task's log, until the task's own agent does so itself.
//!
//! Kubernetes gives logs by time: a later reader asks from the second of the last line that was sent, and leaves out what it has
//! had. A crash between sending and writing that down sends some of it twice, and nothing too little.

use std::rc::Rc;
use std::time::Duration;

use divvy_clearml::frontend::log::{Lines, events};
use divvy_clearml::server::now_ms;
use futures_util::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::context::GlueContext;
use super::pod_status::{PodState, pod_status};
use super::record::{Logged, Record};

/// Bytes that are not kept back for the next beat.
const MUCH: usize = 1 << 20;

/// How often the log of a pod that has ended is asked for before it is given up: its node may be gone. kubelet keeps
/// the log of an ended pod, so a failure passes within a few tries, or the node is gone.
const TRIES: u32 = 5;

/// How one reading ended.
enum Read {
    /// The task's own agent sends the rest.
    HandedOver,
    /// No more comes over this connection.
    Closed,
    Failed(String),
}

/// Returns once the container has ended and all of its output is on the server, or once that is no longer ours to do.
pub async fn forward_log(context: Rc<GlueContext>, mut record: Record, pod: Pod) {
    let (mut over, mut tries) = (false, 0);
    loop {
        let read = match record.logged {
            Logged::All => return,
            _ => read(&context, &mut record, &pod).await,
        };
        match read {
            Read::HandedOver => break,
            // It had ended before this reading began: there is no more.
            Read::Closed if over => break,
            Read::Closed => tries = 0,
            Read::Failed(why) => {
                tries += 1;
                if over && tries >= TRIES {
                    let line = format!("cannot read the rest of the pod's log: {why}\n");
                    context.append_to_log(&record.task, "WARNING", &line).await;
                    break;
                }
            }
        }
        over = match context.objects.pod(&record.task).await {
            Ok(Some(now)) => {
                now.metadata.uid != pod.metadata.uid
                    || matches!(pod_status(&now).state, PodState::Ended(_))
            }
            Ok(None) => return,
            Err(_) => false,
        };
        sleep(context.poll.min(Duration::from_secs(1))).await;
    }
    record.logged = Logged::All;
    save(&context, &record).await;
}

async fn read(context: &GlueContext, record: &mut Record, pod: &Pod) -> Read {
    let last = match &record.logged {
        Logged::UpTo(time) => time.parse::<Timestamp>().ok(),
        _ => None,
    };
    let stream = match context.objects.log(pod, last).await {
        Ok(stream) => stream,
        Err(error) => return Read::Failed(crate::base::cluster::error_message(&error)),
    };
    let mut stream = stream.lines();
    let mut lines = Lines::new(&record.task, 0, true);
    let mut beat = interval(context.poll);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut text, mut newest) = (String::new(), None);
    loop {
        let ended = tokio::select! {
            line = stream.try_next() => match line {
                Ok(Some(line)) => {
                    let (time, rest) = line.split_once(' ').unwrap_or((line.as_str(), ""));
                    let had = |last| time.parse::<Timestamp>().is_ok_and(|time| time <= last);
                    if last.is_some_and(had) {
                        continue;
                    }
                    text.push_str(&lines.push(rest.as_bytes()));
                    text.push_str(&lines.push(b"\n"));
                    newest = Some(time.to_owned());
                    if text.len() < MUCH && !lines.is_handed_over() {
                        continue;
                    }
                    None
                }
                Ok(None) => Some(Read::Closed),
                Err(error) => Some(Read::Failed(error.to_string())),
            },
            _ = beat.tick() => None,
        };
        if !text.is_empty() {
            let events = events(
                &record.task,
                &context.child(&record.task),
                "DEBUG",
                &text,
                now_ms(),
            );
            if let Err(error) = context
                .server
                .retry(async |server| server.add_events(&events).await)
                .await
            {
                tracing::warn!(task = record.task, %error, "cannot send a part of the task's log; it is lost");
            }
            text.clear();
            if let Some(time) = &newest {
                record.logged = Logged::UpTo(time.clone());
                save(context, record).await;
            }
        }
        if lines.is_handed_over() {
            return Read::HandedOver;
        }
        if let Some(ended) = ended {
            return ended;
        }
    }
}

/// Writes down how much was sent. That it cannot be is no reason to stop: it would be sent again.
async fn save(context: &GlueContext, record: &Record) {
    if let Err(error) = context.objects.write_logged(record).await {
        tracing::debug!(task = record.task, %error, "cannot record how much of the log was sent");
    }
}
