//! The log forwarder: copies a job's output to the task's log on the server, until the task's own agent does so itself.

use std::sync::Arc;

use tokio::time::{MissedTickBehavior, interval};

use super::context::Context;
use super::log::{Lines, events};
use super::record::Sent;
use crate::server::now_ms;

/// Bytes that are not kept back for the next beat.
const MUCH: usize = 1 << 20;

/// Returns once the job has ended and all of its output is on the server, or once that is no longer ours to do.
pub async fn forward_log(context: Arc<Context>, task: String, job: String, worker: String) {
    let mut sent = context.records.sent(&task);
    let mut beat = interval(context.poll);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !sent.handed_over {
        let stream = context
            .agent(async |client| client.log(&job, sent.bytes, true).await)
            .await;
        // A job that the agent no longer knows has no output.
        let Ok(mut stream) = stream else { return };
        let mut lines = Lines::new(&task, sent.bytes, true);
        let mut text = String::new();
        let is_over = loop {
            let over = tokio::select! {
                piece = stream.next() => match piece {
                    Ok(Some(bytes)) => {
                        text.push_str(&lines.push(&bytes));
                        if text.len() < MUCH && !lines.is_handed_over() {
                            continue;
                        }
                        None
                    }
                    Ok(None) => {
                        text.push_str(&lines.end());
                        Some(true)
                    }
                    // The agent went away, and comes back.
                    Err(_) => Some(false),
                },
                _ = beat.tick() => None,
            };
            if !text.is_empty() {
                let events = events(&task, &worker, "DEBUG", &text, now_ms());
                if let Err(error) = context
                    .server
                    .retry(async |server| server.add_events(&events).await)
                    .await
                {
                    tracing::warn!(task, %error, "lost a part of the task's log");
                }
                text.clear();
            }
            let now = Sent {
                bytes: lines.dealt_with(),
                handed_over: lines.is_handed_over(),
            };
            if now != sent {
                sent = now;
                context.records.save_sent(&task, sent);
            }
            if sent.handed_over {
                return;
            }
            if let Some(over) = over {
                break over;
            }
        };
        if is_over {
            return;
        }
    }
}
