//! Waiters: clients that wait until a job reaches a milestone, and the replies of one round.

use crate::controller::effects::{Effects, JobReply};
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::{confirm, offload, park};
use crate::controller::mig::claim;
use crate::controller::query::summary;
use crate::controller::request::{ActOutcome, Milestone, Reply};
use crate::controller::runtime::Waiter;
use crate::controller::state::{Jobs, State};
use crate::controller::{active_set, query, reference};
use crate::journal::StoreError;

pub(in crate::controller) fn wait(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    milestone: Milestone,
    reply: Reply<divvy_api::v1::Job>,
) -> Result<(), StoreError> {
    match reference::find(jobs, io, reference) {
        Err(Halt::Refused(error)) => fx.replies.job(reply, Err(error)),
        Err(Halt::Journal(error)) => return Err(error),
        Ok(id) => match jobs.active.get_mut(&id) {
            Some(active) => {
                active.waiters.retain(|waiter| !waiter.reply.is_closed());
                active.waiters.push(Waiter { milestone, reply });
                fx.replies.milestones.push(id);
                confirm::clear_confirmation_expiry(jobs, fx, id);
            }
            None => fx.replies.job(reply, Ok(id)),
        },
    }
    Ok(())
}

/// Sends the replies that are due.
pub(in crate::controller) fn send_replies(state: &mut State, fx: &mut Effects, io: &Io) {
    let mut reached = std::mem::take(&mut fx.replies.milestones);
    reached.sort_unstable();
    reached.dedup();
    for id in reached {
        let Some(active) = state.jobs.active.get_mut(&id) else {
            continue;
        };
        let (job_state, has_orphans) = (
            &active.job.state,
            active
                .placed()
                .is_some_and(|one| one.orphans_since.is_some()),
        );
        // Its MIG instances or its limits may not be ready.
        let awaits_nothing = active.has_all_instances();
        let settled = offload::is_memory_settled(active);
        let arrived = |waiter: &mut Waiter| match (job_state, waiter.milestone) {
            (divvy_core::JobState::Ended { .. }, _) => true,
            (job_state, Milestone::MemorySettled | Milestone::Parked) => {
                settled || !matches!(job_state, divvy_core::JobState::Running { .. })
            }
            (divvy_core::JobState::Queued, _) | (_, Milestone::Ended) => false,
            (divvy_core::JobState::Starting { .. }, Milestone::Starting) => awaits_nothing,
            (_, Milestone::Starting) => true,
            (divvy_core::JobState::Stopping { .. }, Milestone::Released) => has_orphans,
            (job_state, Milestone::Bound) => {
                !matches!(job_state, divvy_core::JobState::Starting { .. })
            }
            (_, Milestone::Released) => false,
        };
        let waiters: Vec<Waiter> = active.waiters.extract_if(.., arrived).collect();
        for waiter in waiters {
            let result = match waiter.milestone {
                Milestone::Parked => park::result(active),
                _ => Ok(id),
            };
            fx.replies.job(waiter.reply, result);
        }
    }
    // A client that runs its job itself would start at once, so its reply waits until all MIG instances are ready.
    let answers = std::mem::take(&mut fx.replies.jobs);
    let waits = |answer: &JobReply| {
        let id = answer.result.as_ref().ok();
        id.is_some_and(|id| {
            state.jobs.runs_on_client(*id) && !claim::has_all_instances(&state.jobs, *id)
        })
    };
    let (later, now): (Vec<JobReply>, Vec<JobReply>) = answers.into_iter().partition(waits);
    fx.replies.jobs = later;
    for JobReply {
        reply,
        result,
        warning,
    } in now
    {
        if !reply.is_closed() {
            let mut job = result.and_then(|id| query::job_to_api(state, io, id));
            if let Ok(job) = &mut job {
                job.warnings.extend(warning);
            }
            let _ = reply.send(job);
        }
    }
    for (reply, result) in std::mem::take(&mut fx.replies.acts) {
        let _ = reply.send(result.map(|outcome| ActOutcome {
            done: summary::summaries_of(state, io, &outcome.done),
            refused: outcome.refused,
        }));
    }
    for (reply, result) in std::mem::take(&mut fx.replies.projects) {
        let _ = reply.send(result);
    }
    for (reply, result) in std::mem::take(&mut fx.replies.gpus) {
        let _ = reply.send(result);
    }
    for (reply, result) in std::mem::take(&mut fx.replies.gpu_modes) {
        let _ = reply.send(result);
    }
    for (reply, result) in std::mem::take(&mut fx.replies.claims) {
        let _ = reply.send(result);
    }
    for (reply, result) in std::mem::take(&mut fx.replies.claim_releases) {
        let _ = reply.send(result);
    }
    for done in std::mem::take(&mut fx.replies.prunes) {
        let _ = done.send(());
    }
    for (reply, gone) in std::mem::take(&mut fx.replies.mig_gcs) {
        let _ = reply.send(Ok(gone));
    }
    active_set::drop_ended(&mut state.jobs, io);
}
