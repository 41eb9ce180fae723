//! Message dispatch: the handler for each message of the mailbox.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::JobId;

use crate::controller::admission::submit::SubmitOutcome;
use crate::controller::admission::{file_projects, projects, submit};
use crate::controller::effects::{Effects, JobReply};
use crate::controller::halt::{Halt, answer};
use crate::controller::io::Io;
use crate::controller::lifecycle::{
    cancel, change, confirm, forget, hold, job_sync, offload, park, pause, resize, selection,
};
use crate::controller::mailbox::Message;
use crate::controller::mig::{mode, report};
use crate::controller::reference;
use crate::controller::service::{self, faults};
use crate::controller::state::State;
use crate::controller::{claims, disk_full, observe, sharing, waiters};
use crate::journal::StoreError;
use crate::supervisor::watch::WatchEvent;

/// Passes one message to its handler.
pub(super) fn handle(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    message: Message,
) -> Result<(), StoreError> {
    let message = match disk_full::disk_full_error(&state.disk, io) {
        Some(error) => message.refuse_new_work(error),
        None => Some(message),
    };
    let Some(message) = message else {
        return Ok(());
    };
    fx.by = message.governor();
    dispatch(state, fx, io, message)?;
    fx.by = None;
    Ok(())
}

fn dispatch(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    message: Message,
) -> Result<(), StoreError> {
    match message {
        Message::Submit {
            submit,
            by,
            named,
            turn,
            client,
            reply,
        } => {
            let whose = submit::SubmitContext {
                by: &by,
                named: named.as_deref(),
                client,
            };
            match submit::submit(state, fx, io, *submit, whose) {
                Ok(SubmitOutcome::Job { id, warning }) => fx.replies.jobs.push(JobReply {
                    reply,
                    result: Ok(id),
                    warning,
                }),
                Err(Halt::Refused(error)) => fx.replies.job(reply, Err(error)),
                Err(Halt::Journal(error)) => return Err(error),
                // A dry run changes nothing, so its reply need not wait for the commit.
                Ok(SubmitOutcome::DryRun(mut job, estimator)) => {
                    // The estimate takes longer than a round should. If no thread can be started, the client gets no
                    // reply.
                    let thread = std::thread::Builder::new().name("foresee".into());
                    let _ = thread.spawn(move || {
                        let _turn = turn;
                        estimator.estimate_start(&mut job);
                        let _ = reply.send(Ok(*job));
                    });
                }
            }
        }
        Message::Pause {
            reference,
            suspend,
            reply,
        } => {
            let result = on_job(state, fx, io, &reference, |state, fx, id| {
                pause::pause_job(&mut state.jobs, fx, io, id, suspend)
            });
            let refused = |error: &Error| suspend && error.code == ErrorCode::Conflict;
            answer(result, |result| {
                fx.counters.failed_suspends += u64::from(result.as_ref().is_err_and(refused));
                fx.replies.job(reply, result);
            })?;
        }
        Message::Offload { reference, reply } => {
            offload::offload(&mut state.jobs, fx, io, &reference, reply)?
        }
        Message::Park {
            reference,
            wake: false,
            reply,
        } => park::park(state, fx, io, &reference, reply)?,
        Message::Park {
            reference,
            wake: true,
            reply,
        } => {
            let result = park::wake(&mut state.jobs, fx, io, &reference);
            answer(result, |result| fx.replies.job(reply, result))?;
        }
        Message::Requeue {
            reference,
            by,
            reply,
        } => {
            let result = on_job(state, fx, io, &reference, |state, fx, id| {
                cancel::requeue_job(&mut state.jobs, fx, io, id, &by)
            });
            answer(result, |result| fx.replies.job(reply, result))?;
        }
        Message::Act {
            selection,
            act,
            by,
            reply,
        } => {
            let result = selection::act(state, fx, io, &selection, &act, &by);
            answer(result, |result| fx.replies.acts.push((reply, result)))?;
        }
        Message::DefineProjects => file_projects::define(state, fx, io)?,
        // The controller applies it itself, since it changes the configuration.
        Message::Reload { .. } => {}
        Message::Project { name, act, reply } => {
            let result = projects::apply_project_act(state, fx, io, &name, &act);
            answer(result, |result| fx.replies.projects.push((reply, result)))?;
        }
        Message::Cancel {
            reference,
            how,
            by,
            reply,
        } => {
            let result = on_job(state, fx, io, &reference, |state, fx, id| {
                cancel::cancel_job(&mut state.jobs, fx, io, id, &how, &by)
            });
            answer(result, |result| fx.replies.job(reply, result))?;
        }
        Message::Confirm {
            reference,
            confirm,
            by,
            reply,
        } => {
            let result = confirm::confirm(&mut state.jobs, fx, io, &reference, &confirm, &by);
            answer(result, |result| fx.replies.job(reply, result))?;
        }
        Message::HoldClaim {
            uid,
            claim,
            by,
            maker,
            reply,
        } => {
            let whose = claims::Holder { owner: &by, maker };
            let result = claims::hold_claim(state, fx, io, &uid, *claim, whose);
            answer(result, |result| fx.replies.claims.push((reply, result)))?;
        }
        Message::ReleaseClaim { uid, by, reply } => {
            let result = claims::release_claim(&mut state.jobs, fx, io, &uid, &by);
            answer(result, |result| {
                fx.replies.claim_releases.push((reply, result))
            })?;
        }
        Message::Resize {
            reference,
            resize,
            reply,
        } => resize::resize(state, fx, io, &reference, resize, reply)?,
        Message::Change {
            reference,
            change,
            by,
            reply,
        } => {
            let result = on_job(state, fx, io, &reference, |state, fx, id| {
                change::change_job(state, fx, io, id, &change, &by)
            });
            answer(result, |result| fx.replies.job(reply, result))?;
        }
        Message::Hold {
            reference,
            hold,
            by,
            reply,
        } => {
            let result = on_job(state, fx, io, &reference, |state, fx, id| match hold {
                true => hold::hold_job(&mut state.jobs, fx, io, id, &by),
                false => hold::unhold_job(&mut state.jobs, fx, io, id, &by),
            });
            answer(result, |result| fx.replies.job(reply, result))?;
        }
        Message::Wait {
            reference,
            milestone,
            reply,
        } => waiters::wait(&mut state.jobs, fx, io, &reference, milestone, reply)?,
        Message::RecordEvent {
            job, kind, text, ..
        } => fx.record_event(io, Some(job), kind, &text)?,
        Message::Watch(WatchEvent::Record(id)) => job_sync::check_records(state, fx, io, id)?,
        Message::Watch(WatchEvent::SupervisorEnded(id)) => job_sync::sync_job(state, fx, io, id)?,
        Message::Watch(WatchEvent::EventsLost) => {
            for id in state.jobs.active.keys().copied().collect::<Vec<_>>() {
                job_sync::check_records(state, fx, io, id)?;
            }
        }
        Message::GpuMode { gpu, change, reply } => {
            mode::change_mode(state, fx, io, &gpu, &change, reply)?
        }
        Message::Drain { drain, by, reply } => {
            let drained = service::drain(&mut state.gpus, fx, io, &drain, &by);
            answer(drained, |drained| fx.replies.gpus.push((reply, drained)))?;
        }
        Message::Undrain { gpus, by, reply } => {
            let returned = service::undrain(&mut state.gpus, fx, io, &gpus, &by);
            answer(returned, |returned| fx.replies.gpus.push((reply, returned)))?;
        }
        Message::GpuProbed(outcome) => faults::probed(&mut state.gpus, fx, io, outcome)?,
        Message::MigGc { gc, reply } => {
            let gone = mode::collect(&mut state.mig, &state.gpus, fx, io, &gc)?;
            fx.replies.mig_gcs.push((reply, gone));
        }
        Message::MigReport(report) => report::apply_mig_report(state, fx, io, *report)?,
        Message::CheckpointReport(report) => {
            offload::apply_checkpoint_report(&mut state.jobs, fx, io, *report)?
        }
        Message::WakeWanted { job, call } => {
            park::wake_for_call(&mut state.jobs, fx, io, job, &call)?;
        }
        Message::WorkerHolds(holds) => {
            state.gpus.worker_holds = holds;
            fx.replan |= sharing::take_over(&mut state.gpus, io);
        }
        Message::Sampled(sample) => observe::apply_sample(state, fx, io, &sample)?,
        Message::ObservationFailed(why) => {
            observe::observation_failed(&mut state.jobs, &mut state.gpus, fx, io, why)?
        }
        Message::Prune { past, done } => forget::prune(&mut state.jobs, fx, io, past, done)?,
        Message::Stop => fx.stop = true,
    }
    Ok(())
}

/// Resolves a reference to one job, and does something to that job.
fn on_job(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    act: impl FnOnce(&mut State, &mut Effects, JobId) -> Result<JobId, Halt>,
) -> Result<JobId, Halt> {
    let id = reference::find(&state.jobs, io, reference)?;
    act(state, fx, id)
}
