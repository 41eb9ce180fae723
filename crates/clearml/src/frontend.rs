//! The ClearML front end: it polls the server's queues, mirrors their tasks as jobs of the agent, and runs the claimed
//! tasks.
//!
//! ```text
//!  poll ──► entries, tags ──► queue_mirror (pure) ──► submit, cancel
//!                                   │ head has its slice
//!                                   ▼
//!                             task_runner ◄── task_state (pure): look, pop, start, confirm, watch, report
//!  heartbeat ──► machine and slots   log_forwarder ──► the task's log
//! ```
//! Decisions are in `queue_mirror`, `task_state`, `watch`, `requeue`, `pull_schedule` and `log`, which are pure; the other
//! modules carry them out. The parts that suit any front end are public: the Kubernetes glue uses the same server.

mod attribution;
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
use crate::{Error, Options, StopSignal, Ties};

/// How long a worker stays on the server's list unheard, seconds: the stock agent's. A shorter one would lose workers
/// that the server's users see as alive.
const TIMEOUT: u64 = 600;

/// How long taking the worker off the list may take.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Serves until told to stop.
pub(crate) async fn serve(options: Options, stop: StopSignal, ties: Ties) -> Result<(), Error> {
    let (context, queues, gate) = tokio::select! {
        ready = setup::set_up(&options) => ready?,
        () = stop.requested() => return Ok(()),
    };
    let projects = Projects::open(&options.project_by)?;
    let context = Arc::new(context);
    let register = async || {
        let (worker, tags) = (&context.daemon, &context.settings.worker_tags);
        context
            .server
            .register(worker, &context.queues, TIMEOUT, tags)
            .await
    };
    tokio::select! {
        registered = register() => registered?,
        () = stop.requested() => return Ok(()),
    }
    tracing::info!(worker = %context.daemon, queues = queues.len(), "serving queues of the ClearML server");
    let beating = tokio::task::spawn_local(heartbeat::send_heartbeats(Arc::clone(&context)));
    let mut coordinator = Coordinator::new(
        Arc::clone(&context),
        (queues, gate),
        projects,
        (stop, options.keep_children),
        ties,
    );
    let served = tokio::select! {
        served = coordinator.serve() => served,
        // Its jobs are not this front end's, though their numbers may be the same.
        other = context.client.replaced() => Err(Error::Agent(other)),
    };
    beating.abort();
    let unregistering = tokio::time::timeout(LAST_WORD, context.server.unregister(&context.daemon));
    if !matches!(unregistering.await, Ok(Ok(()))) {
        tracing::warn!(worker = %context.daemon, "cannot unregister the worker; the server lists it until its registration expires");
    }
    served
}
