//! Claims: devices that another scheduler (Kubernetes) allocates here by name, held until that scheduler releases them.
//!
//! ```text
//! PUT ──► placed or refused ──► journal ──► MIG instances ──► slice, files, CDI device ──► journal: lent ──► reply
//! DELETE, or its end ──► journal: stopping ──► slice closed ──► driver asked: no process left? ──► journal: ended
//!                                                              ──► device, slice and instances go
//! ```
//! A claim is a job without a program and a supervisor. The client gets its reply only once the claim is lent. A
//! restarted daemon therefore takes back a claim that an earlier daemon only began, and the client asks again. A lent
//! claim ends when the client releases it, or when the machine has rebooted since. A slice of `divvy slice` ends also
//! with its process or control group ([`crate::model::claim::end`]). No other event of a job's life applies to it.

mod ends;
pub(in crate::controller) mod entries;
pub(in crate::controller) mod files;
mod place;
pub(in crate::controller) mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_api::v1::{self, Error, ErrorCode, Runner};
use divvy_core::job::{Event, ProgramExit, StopReason};
use divvy_core::{GpuUuid, JobId, JobState, QueueName, Request};

use super::lifecycle::start::{overheads, slice_layout};
use crate::auth::{Caller, JobRelation, Verb};
use crate::container::cdi;
use crate::controller::actuators::Actuators;
use crate::controller::admission::text_budget;
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::{cancel, confirm, end, orphans, resize, start_failure};
use crate::controller::observe::{reconcile, usage};
use crate::controller::state::mig::{MigManager, is_divided};
use crate::controller::state::{GpuState, Jobs, State};
use crate::controller::{active_set, mig};
use crate::gpu::slice::HeldSlice;
use crate::gpu::watched_jobs::MOST_RELEASED;
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::job_dir::RunOutcome;
use crate::journal::StoreError;
use crate::model::cause::Cause;
use crate::model::claim::end::End;
use crate::model::claim::{self, Claim, ClaimRequest};
use crate::model::job::{Credentials, Job, JobSpec, NewJob};
use crate::model::policy::JobPolicy;
use crate::model::validate::budget;

/// A warning that the memory limit is below a CUDA context, so no CUDA program can start. The claim is valid all the
/// same.
fn below_context(gpus: &GpuState, job: &Job) -> Option<String> {
    job.state.grants().iter().find_map(|grant| {
        let mut gpus = gpus.devices.iter().map(|device| &device.gpu);
        let context = gpus.find(|gpu| gpu.uuid == grant.gpu)?.context;
        let is_small = grant.mig.is_none() && grant.memory < context;
        is_small.then(|| {
            let (limit, context, index) = (grant.memory.human(), context.human(), grant.index);
            format!("its limit is {limit}, but a CUDA context alone takes {context} of GPU {index}")
        })
    })
}

/// The users that a new claim concerns.
#[derive(Clone, Copy)]
pub(super) struct Holder<'a> {
    /// The caller, with the account of the claim's owner.
    pub owner: &'a Caller,
    /// The caller's uid, where the owner is another user.
    pub maker: Option<u32>,
}

/// Holds the devices that a claim names, or refuses the claim. A repeated claim gets the job that already holds it.
pub(super) fn hold_claim(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    uid: &str,
    body: v1::Claim,
    Holder { owner: by, maker }: Holder<'_>,
) -> Result<JobId, Halt> {
    let devices = &state.gpus.devices;
    let uuid_of = |index| {
        let mut gpus = devices.iter().map(|device| &device.gpu);
        let gpu = gpus.find(|gpu| gpu.index == index)?;
        Some(gpu.uuid.clone())
    };
    let asked = claim::parse(uid, body, &state.mig.boot, uuid_of)?;
    if let Some(id) = state.jobs.find_claim(uid) {
        return hold_existing(state, fx, io, id, &asked, by);
    }
    let prepared = ends::begin(&state.jobs, asked)
        .and_then(|asked| place::place_beside_others(state, io, asked));
    let (asked, placed) = prepared?;
    let ClaimRequest {
        mut claim,
        amount,
        compute,
    } = asked;
    claim.maker = maker;
    let request = Request {
        compute,
        ..amount.into()
    };
    let new = NewJob {
        spec: JobSpec {
            name: claim.label(),
            user: by.account.name.clone(),
            credentials: Credentials {
                uid: by.account.uid,
                gid: by.account.gid,
            },
            project: None,
            queue: QueueName::default_queue(),
            request,
            runner: Runner::Claim,
            command: Vec::new(),
            container: None,
            cwd: "/".to_owned(),
            policy: JobPolicy {
                claim: Some(Box::new(claim)),
                ..JobPolicy::default()
            },
            secrets: Vec::new(),
        },
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        key: None,
        at: now(),
        hold: None,
    };
    let mut job = io.store.insert(&new)?;
    let id = job.id;
    job.place(placed.grants);
    job.enforce(&state.gpus);
    io.store.save_allocations(&job)?;
    io.store.save(&job)?;
    let mut text = format!("{}: {}", new.spec.name, job.grant_labels());
    if let Some(warning) = below_context(&state.gpus, &job) {
        tracing::warn!(job = %id, "{warning}");
        text = format!("{text}; {warning}");
    }
    text_budget::add_job(&mut state.jobs, job, budget::new_job_size(&new));
    fx.record_event(io, Some(id), "allocated", &text)?;
    reach("claim.intent");
    fx.failpoints.push("claim.kept");
    if mig::claim::claim_instances(state, fx, io, id, &placed.reclaim)? {
        confirm::ready(&mut state.jobs, fx, io, id)?;
    }
    fx.replan = true;
    Ok(id)
}

/// Handles a claim that is already held: creates its missing files again.
fn hold_existing(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    asked: &ClaimRequest,
    by: &Caller,
) -> Result<JobId, Halt> {
    let Some(active) = state.jobs.active.get_mut(&id) else {
        return Ok(id);
    };
    let job = &mut active.job;
    let Some(claim) = job.claim() else {
        return Ok(id);
    };
    let uid = &claim.uid;
    if matches!(job.state, JobState::Stopping { .. }) {
        let (what, hint) = match claim.is_slice() {
            true => (
                "slice",
                "try again, or wait for it: divvy slice create --wait 10s",
            ),
            false => ("claim", "try again in a moment"),
        };
        let why = format!("an earlier {what} {uid} is still being released");
        return Err(Error::new(ErrorCode::WouldWait, why).hint(hint).into());
    }
    let is_slice = claim.is_slice();
    let is_others = is_slice && job.spec.credentials.uid != by.account.uid;
    if !asked.claim.is_met_by(claim) || job.spec.request.compute != asked.compute || is_others {
        let what = if is_slice { "slice" } else { "claim" };
        let why = format!("{what} {uid} is already allocated, with other devices or settings");
        let hint = match is_slice {
            true => {
                format!("compare with `divvy slice ls`, or release it first: divvy slice rm {uid}")
            }
            false => format!("release it first: DELETE /v1/claims/{uid}"),
        };
        return Err(Error::new(ErrorCode::Conflict, why).hint(&hint).into());
    }
    if claim.pods != asked.claim.pods {
        let changed = Claim {
            pods: asked.claim.pods.clone(),
            ..claim.clone()
        };
        let ask = Arc::make_mut(&mut job.spec);
        ask.policy.claim = Some(Box::new(changed));
        let job = job.clone();
        io.store.save_amended(&job, &BTreeMap::new())?;
        fx.jobs.changed.insert(id);
    }
    let is_bound = state
        .jobs
        .active
        .get(&id)
        .is_some_and(|one| matches!(one.job.state, JobState::Bound { .. }));
    if is_bound {
        fx.jobs.claim_files.push(id);
    }
    Ok(id)
}

/// The refusal for the owner of a slice that an engine holds. The engine counts the slice until its task ends, so a
/// release in between would let two tasks have the same memory.
fn refuse_for_owner(claim: &Claim, maker: u32) -> Error {
    let name = &claim.uid;
    let maker = match maker {
        0 => "root".to_owned(),
        uid => format!("uid {uid}"),
    };
    let why = format!(
        "the slice {name} was created by {maker} for a task of another scheduler, which releases it at the task's end"
    );
    Error::new(ErrorCode::NotAllowed, why).hint(
        "end the task in that scheduler, such as `scancel`; operators can release the slice too",
    )
}

/// Releases a claim; `None` if no job holds it. A slice may be released by the user that created it and by operators,
/// any other claim by admins.
pub(super) fn release_claim(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    uid: &str,
    by: &Caller,
) -> Result<Option<JobId>, Halt> {
    let Some(id) = jobs.find_claim(uid) else {
        return Ok(None);
    };
    let job = jobs.active.get(&id).map(|active| &active.job);
    let slice = job.filter(|job| job.claim().is_some_and(Claim::is_slice));
    let allowed = match slice {
        Some(job) => {
            let maker = job.claim().and_then(|claim| Some((claim, claim.maker?)));
            let owner = job.spec.credentials.uid;
            let whose = by.whose(maker.map_or(owner, |(_, maker)| maker));
            let refused = maker.filter(|_| by.account.uid == owner);
            by.authorize(Verb::Change, whose).map_err(|error| {
                refused.map_or(error, |(claim, maker)| refuse_for_owner(claim, maker))
            })
        }
        None => by.authorize(Verb::Administer, JobRelation::None),
    };
    allowed?;
    let cause = match slice.is_some() {
        true => Cause::requested_by("released", by),
        false => "released".into(),
    };
    end(jobs, fx, io, id, StopReason::Release, cause)?;
    fx.failpoints.push("claim.released");
    Ok(Some(id))
}

/// Lets no more programs into a claim, and releases it once its processes are gone. The entry goes before the journal
/// has the stop: the check for processes may follow in the same round. After a crash startup writes it again.
fn end(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    how: StopReason,
    cause: impl Into<Cause>,
) -> Result<(), StoreError> {
    entries::remove(jobs, io, id);
    cancel::stop_job(jobs, fx, io, id, how, cause)
}

/// Creates the missing files of lent claims. A failure is the reply to the call that asked for the claim again.
pub(super) fn repair_claims(state: &mut State, fx: &mut Effects, io: &Io, actuators: &Actuators) {
    for id in std::mem::take(&mut fx.jobs.claim_files) {
        let Err(error) = files::create_claim_files(state, io, actuators, id) else {
            continue;
        };
        let why = format!(
            "cannot create the claim's files again: {}",
            error_chain(&error)
        );
        tracing::error!(job = %id, "{why}");
        let replies = fx.replies.claims.iter_mut();
        for (_, result) in replies.filter(|(_, result)| result.as_ref().is_ok_and(|of| *of == id)) {
            *result = Err(Error::new(ErrorCode::LaunchFailed, why.clone()));
        }
    }
}

/// Creates the slice, files and CDI device of a claim that has its grants; the next round journals the result.
pub(super) fn bind_claim(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) {
    match files::create_claim_files(state, io, actuators, id) {
        Ok(()) => {
            if let Some(placed) = (state.jobs.active.get_mut(&id)).and_then(|one| one.placed_mut())
            {
                placed.start.has_claim_files = true;
            }
            fx.jobs.recheck.push(id);
        }
        Err(error) => start_failure::give_up_claim(&mut state.jobs, fx, id, &error_chain(&error)),
    }
}

/// Advances a claim by one step, if its files exist, its start failed or its processes are gone.
pub(super) fn check_claim(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    let start = active.placed().map(|placed| &placed.start);
    let has_files = start.is_some_and(|start| start.has_claim_files);
    let failed = start
        .and_then(|start| start.failure.as_ref())
        .map(|exit| match &exit.outcome {
            RunOutcome::Withdrawn { withdrawn } => withdrawn.clone(),
            other => format!("{other:?}"),
        });
    match (&active.job.state, failed) {
        (JobState::Starting { .. }, Some(why)) => {
            let gone = Event::Exited(ProgramExit::LaunchFailed(why.clone()));
            end_claim(&mut state.jobs, &mut state.mig, fx, io, id, gone, &why)
        }
        (JobState::Starting { .. }, None) if has_files => mark_bound(&mut state.jobs, fx, io, id),
        (JobState::Stopping { .. }, _) => {
            match !is_observed_since_close(&mut state.jobs, &state.gpus, fx, id)
                || state.jobs.is_unobserved(&state.gpus, id)
                || orphans::has_orphans(&mut state.jobs, &state.gpus, fx, io, id)?
                || was_listed(&state.jobs, fx, id)
            {
                true => {
                    fx.replies.milestones.push(id);
                    Ok(())
                }
                false => end_claim(
                    &mut state.jobs,
                    &mut state.mig,
                    fx,
                    io,
                    id,
                    Event::Exited(ProgramExit::Exited(0)),
                    "",
                ),
            }
        }
        (JobState::Bound { .. }, _) => ends::check(state, fx, io, id),
        (JobState::Queued | JobState::Starting { .. } | JobState::Running { .. }, _)
        | (JobState::Ended { .. }, _) => Ok(()),
    }
}

/// Closes a claim's slice, and tells whether the driver was asked for processes since. The programs of a claim have PID
/// namespaces of their own, so the ledger alone does not show them.
fn is_observed_since_close(jobs: &mut Jobs, gpus: &GpuState, fx: &mut Effects, id: JobId) -> bool {
    let active = jobs.active.get_mut(&id);
    let Some(placed) = active.and_then(|active| active.placed_mut()) else {
        return true;
    };
    placed.close();
    reach("claim.closed");
    let is_observed = placed
        .closed_at
        .is_none_or(|closed| closed < gpus.observed_at);
    if !is_observed {
        fx.machine.sample_soon = true;
    }
    is_observed
}

/// Whether the driver listed a process of a claim at the last observation. Its memory may not have come back yet, also
/// where it has been killed since.
fn was_listed(jobs: &Jobs, fx: &mut Effects, id: JobId) -> bool {
    let active = jobs.active.get(&id);
    let was_listed = active.is_some_and(|active| !active.members().is_empty());
    if was_listed {
        fx.machine.sample_soon = true;
    }
    was_listed
}

/// Marks a claim as lent: everything that it needs exists, and the other scheduler may use it.
fn mark_bound(jobs: &mut Jobs, fx: &mut Effects, io: &Io, id: JobId) -> Result<(), StoreError> {
    let device = files::device_of(jobs, io, id).map(|name| cdi::device(&name));
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.job.apply_event(Event::Bound);
    active.job.started_at = Some(now());
    let job = active.job.clone();
    io.store.save(&job)?;
    fx.jobs.changed.insert(id);
    fx.replies.milestones.push(id);
    fx.failpoints.push("claim.lent");
    let device = device.unwrap_or_default();
    let text = format!("CDI device {device}: {}", job.grant_labels());
    fx.record_event(io, Some(id), "running", &text)
}

/// Frees a claim's device, slice and instances, and journals its end.
fn end_claim(
    jobs: &mut Jobs,
    mig: &mut MigManager,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    event: Event,
    why: &str,
) -> Result<(), StoreError> {
    let last = end::last_snapshot(jobs, id);
    end::save_allocation_stats(jobs, fx, io, id, last.as_ref())?;
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.job.reason = Some(why.to_owned()).filter(|why| !why.is_empty());
    active.job.ended_at = Some(now());
    active.job.apply_event(event);
    if let Some(placed) = active.placed_mut() {
        placed.start.pending_instances.clear();
    }
    usage::journal_metered(jobs, io, id)?;
    end::free_slice(jobs, fx, id);
    mig::release::release_instances(mig, io, id)?;
    reconcile::close_bypasses(jobs, io, id)?;
    end::journal_end(jobs, fx, io, id)
}

/// Decides what becomes of a claim that the journal has when the daemon starts.
pub(super) fn resume_claim(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = state.jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let boot = active.job.claim().map(|claim| claim.boot.as_str());
    let is_of_another = boot != Some(state.mig.boot.as_str());
    match &active.job.state {
        JobState::Starting { .. } => {
            let why = "the daemon was killed before the claim was ready";
            let gone = Event::Exited(ProgramExit::LaunchFailed(why.to_owned()));
            end_claim(&mut state.jobs, &mut state.mig, fx, io, id, gone, why)
        }
        JobState::Bound { .. } | JobState::Stopping { .. } if is_of_another => {
            active.job.stop(StopReason::Release);
            let why = "the machine was restarted, so no process uses the claim any longer";
            fx.record_event(io, Some(id), "stopping", why)?;
            end_claim(
                &mut state.jobs,
                &mut state.mig,
                fx,
                io,
                id,
                Event::Exited(ProgramExit::Exited(0)),
                why,
            )
        }
        JobState::Bound { .. } | JobState::Stopping { .. } => {
            if !is_divided(active.job.state.grants()) {
                let (name, job) = (id.to_string(), &active.job);
                let overheads = overheads(&state.gpus.devices, job.state.grants());
                let layout = slice_layout(&name, job, &overheads);
                match HeldSlice::adopt(&io.config.home.slice(&name), &layout, None) {
                    Ok(slice) => {
                        if let Some(placed) = active.placed_mut() {
                            placed.slice = Some(slice);
                        }
                    }
                    // The client asks for the claim again; that creates the slice anew.
                    Err(error) => {
                        tracing::warn!(job = %id, error = error_chain(&error), "cannot adopt the claim's slice");
                    }
                }
            }
            files::register_claim(&state.jobs, io, actuators, id);
            if let Err(error) = entries::write(state, io, id) {
                tracing::warn!(job = %id, %error, "cannot write the slice's entry again");
            }
            resize::apply_limits(&mut state.jobs, io, actuators, id);
            // The first observation of the driver shows which processes remain.
            fx.jobs.recheck.push(id);
            Ok(())
        }
        JobState::Queued | JobState::Running { .. } | JobState::Ended { .. } => Ok(()),
    }
}

/// Tells the observer which claims earlier daemons of this boot released: a process in a pod of such a claim may still
/// take memory.
pub(super) fn remember_released(
    state: &State,
    io: &Io,
    actuators: &Actuators,
) -> Result<(), StoreError> {
    for job in io.store.ended_claims(MOST_RELEASED)? {
        let Some(claim) = job.claim().filter(|claim| claim.boot == state.mig.boot) else {
            continue;
        };
        let cgroup = match &claim.ends {
            Some(End::Cgroup {
                folder,
                id: Some(id),
            }) => Some((folder.clone(), *id)),
            _ => None,
        };
        actuators
            .observer
            .add_released(job.id, cgroup, claim.pods.clone());
    }
    Ok(())
}

/// Records when a lent claim loses its GPUs or gets them back. The claim stays: only its pods end it.
pub(super) fn report_claims_on_lost_gpus(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    lost: &BTreeMap<GpuUuid, u32>,
) -> Result<(), StoreError> {
    let mut changes = Vec::new();
    active_set::for_each_active(jobs, io, |_, active| {
        let JobState::Bound { grants } = &active.job.state else {
            return;
        };
        let mut on = grants.iter().filter_map(|grant| lost.get(&grant.gpu));
        let trouble = on.next().map(|index| format!("GPU {index} is lost"));
        if active.job.reason != trouble {
            active.job.reason.clone_from(&trouble);
            changes.push((active.job.clone(), trouble));
        }
    });
    for (job, trouble) in changes {
        io.store.save(&job)?;
        let (kind, text) = match trouble {
            Some(trouble) => (
                "gpu_lost",
                format!("{trouble}; the claim stays allocated until it is released"),
            ),
            None => ("gpu_recovered", "its GPUs respond again".to_owned()),
        };
        fx.record_event(io, Some(job.id), kind, &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal;

    #[test]
    fn no_user_of_a_front_end_is_the_tenant_of_a_claim() {
        let mut ask = journal::tests::new(None).spec;
        for (user, tenant) in [("ana", "ana"), ("team/", "team"), ("a/b", "a/b")] {
            ask.user = user.to_owned();
            let job = Job::waiting(JobId(1), Arc::new(ask.clone()), now());
            assert_eq!(job.tenant(), tenant);
        }
    }
}
