//! Client ties: the daemon cancels a job whose client has ended, where the job is tied to it. No handler of the client
//! takes part, so SIGKILL ends the job too.

use divvy_core::JobState;
use divvy_core::job::StopReason;

use super::{cancel, job_sync};
use crate::controller::active_set;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::State;
use crate::journal::StoreError;

pub(in crate::controller) fn cancel_without_client(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    for id in active_set::jobs_of_ended_clients(&mut state.jobs, io, &state.mig.boot) {
        // A client that ran the program on its terminal recorded the exit before it ended itself.
        job_sync::sync_job(state, fx, io, id)?;
        let Some(active) = state.jobs.active.get(&id) else {
            continue;
        };
        let is_over = match &active.job.state {
            JobState::Ended { .. } => true,
            JobState::Stopping { why, .. } => !why.requeues(),
            _ => false,
        };
        let tie = active.job.spec.policy.tie.as_ref();
        let Some(tie) = tie.filter(|_| !is_over) else {
            continue;
        };
        let why = format!("its client (process {}) has ended", tie.client.pid);
        cancel::stop_job(&mut state.jobs, fx, io, id, StopReason::Cancel, why)?;
    }
    Ok(())
}
