//! What the extender does beside answers: it counts requests, trains tables, and saves the history.

use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::{debug, error, info, warn};

use super::Extender;
use super::chooser::Verdict;
use super::store::Store;
use super::trainer::Lesson;
use crate::extender::metrics::METRICS;

/// How often the extender counts requests, and starts a training that is due. A training is due after hours, so seconds
/// do not matter; shorter would only wake the process.
const TICK: Duration = Duration::from_secs(5);
/// How often the history is written, if it changed. A crash loses a minute of a history of weeks; a write each second
/// would load the API server.
const SAVES: Duration = Duration::from_secs(60);
/// As `nice -n 5`: behind the answers, but not without end where the node is busy.
const LOW_PRIORITY: i32 = 5;

/// Counts, trains and saves, for as long as the process lives.
pub async fn keep(extender: Arc<Extender>, store: Option<Arc<Store>>) {
    let (mut saved_at, mut saved) = (Instant::now(), None);
    loop {
        sleep(TICK).await;
        if !extender.is_ready() {
            continue;
        }
        let lesson = extender.state().lesson(Instant::now());
        if let Some(lesson) = lesson {
            let begun = Instant::now();
            // After a panic there the policy stays as it was.
            match trained(lesson).await {
                Some(verdict) => adopt(&extender, verdict, begun.elapsed()),
                None => error!("the training ended without a table"),
            }
        }
        METRICS.policy(extender.state().chooser.reason());
        let status = extender.status();
        if saved_at.elapsed() >= SAVES && saved.as_ref() != Some(&status) {
            if let Some(store) = &store {
                save(&extender, store).await;
            }
            (saved_at, saved) = (Instant::now(), Some(status));
        }
    }
}

/// Trains in a thread of lower priority than the answers: the scheduler waits for each of them.
async fn trained(lesson: Lesson) -> Option<Verdict> {
    let (send, verdict) = oneshot::channel();
    let train = move || {
        // Of the calling thread alone, as Linux counts niceness by threads.
        if let Err(error) = setpriority_process(None, LOW_PRIORITY) {
            debug!(%error, "the training keeps its priority");
        }
        let _ = send.send(lesson.learn());
    };
    let started = Builder::new().name("training".to_owned()).spawn(train);
    if let Err(error) = started {
        warn!(%error, "cannot start a thread for the training");
    }
    verdict.await.ok()
}

fn adopt(extender: &Extender, verdict: Verdict, took: Duration) {
    let seconds = took.as_secs_f64();
    match &verdict {
        Verdict::Use(table) => info!(
            seconds,
            requests = table.learned.requests(),
            "the learned table chooses nodes"
        ),
        Verdict::BestFit(reason) => warn!(seconds, %reason, "best fit chooses nodes"),
    }
    extender.state().chooser.adopt(verdict);
}

/// Writes the history and the status.
pub async fn save(extender: &Extender, store: &Store) {
    let (history, status) = {
        let state = extender.state();
        (state.history.to_json(), state.status())
    };
    store.save(&history, &status).await;
}
