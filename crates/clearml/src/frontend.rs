//! The front end itself: looks at the server's queues, keeps the agent's jobs in step with them, and drives what is claimed.
//!
//! ```text
//!  poll ──► entries, tags ──► mirror (pure) ──► submit, cancel
//!                                   │ head has its slice
//!                                   ▼
//!                             drive ◄── life (pure): look, pop, start, confirm, watch, tell
//!  beat ──► machine and slots        pump ──► the task's log
//! ```
//! Decisions are in `mirror`, `life`, `watch`, `back`, `gate` and `log`, which are pure; the others do what those say. What of
//! them holds for any front end is public: Kubernetes' has the same server before it.

mod context;
mod coordinator;
mod heartbeat;
pub mod log;
mod log_forwarder;
mod poll;
pub mod pull_schedule;
mod queue;
mod queue_mirror;
mod record;
pub mod requeue;
mod setup;
mod task_runner;
pub mod task_state;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use coordinator::Coordinator;

use crate::projects::Projects;
use crate::{Error, Options, StopSignal};

/// How long a worker stays on the server's list unheard, seconds: the stock agent's.
const TIMEOUT: u64 = 600;

/// How long taking the worker off the list may take.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Serves until told to stop.
pub(crate) async fn serve(options: Options, stop: StopSignal) -> Result<(), Error> {
    let (hand, queues, gate) = tokio::select! {
        ready = setup::set_up(&options) => ready?,
        () = stop.requested() => return Ok(()),
    };
    let projects = Projects::open(&options.project_by)?;
    let hand = Arc::new(hand);
    let register = async || {
        let (worker, tags) = (&hand.daemon, &hand.settings.worker_tags);
        hand.server
            .register(worker, &hand.queues, TIMEOUT, tags)
            .await
    };
    tokio::select! {
        registered = register() => registered?,
        () = stop.requested() => return Ok(()),
    }
    tracing::info!(worker = %hand.daemon, queues = queues.len(), "serving queues of the ClearML server");
    let beating = tokio::task::spawn_local(heartbeat::send_heartbeats(Arc::clone(&hand)));
    let mut desk = Coordinator::new(
        Arc::clone(&hand),
        queues,
        gate,
        projects,
        stop,
        options.keep_children,
    );
    let served = desk.serve().await;
    beating.abort();
    let unregistering = tokio::time::timeout(LAST_WORD, hand.server.unregister(&hand.daemon));
    if !matches!(unregistering.await, Ok(Ok(()))) {
        tracing::warn!(worker = %hand.daemon, "cannot unregister the worker; the server lists it until its registration expires");
    }
    served
}
