//! Idle parking: which jobs can be parked without a command, and which of them make room for a job that needs it. The
//! choice of victims is [`divvy_core::resize::park`].

use std::collections::BTreeSet;
use std::time::Duration;

use divvy_api::daemon::ParkWhen;
use divvy_api::v1::IdleAction;
use divvy_core::job::Outcome;
use divvy_core::resize::memory::MemoryResidency;
use divvy_core::resize::park::{ParkInput, Parkable};
use divvy_core::{Bytes, JobId, JobState, ParkRule, Plan, Reason, Snapshot};
use jiff::SignedDuration;

use crate::checkpoint::{Direction, ENDED_IN_LOCK};
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{idle, offload, park, planner_input};
use crate::controller::runtime::ActiveJob;
use crate::controller::state::mig::is_divided;
use crate::controller::state::{Jobs, State};
use crate::host::clock::{Instant, now};
use crate::journal::StoreError;
use crate::model::cause::format_duration;
use crate::model::gpu_memory::{GpuMemoryState, OffloadKind};
use crate::model::job::Job;
use crate::model::park_record::ParkOff;

/// So many parks in a row that failed switch idle parking off for a job (P12). One may be an accident, and each costs
/// the program a pause.
const MOST_FAILURES: u8 = 3;

/// Within this time after its last process has died in the driver's lock the end of a job is known. The supervisor reports
/// it within a second; a busy host takes longer.
const DEATH_KNOWN: SignedDuration = SignedDuration::from_secs(10);

/// So many wakes without a launch double the idle time (P2): of ten minutes it becomes two days. More would be for ever.
const MOST_DOUBLINGS: u8 = 8;

/// Whether the job is parked without a command, once it is idle.
fn has_rule(io: &Io, job: &Job) -> bool {
    idle::idle_rule(io, job).is_some_and(|rule| rule.action == IdleAction::Park)
}

/// Why a job with the idle action `park` is never parked; the driver aside.
fn rule_obstacle(job: &Job) -> Option<String> {
    let failures = job.run_state.park.failures;
    if job.spec.container.is_some() || job.claim().is_some() {
        Some("Divvy does not control its processes".to_owned())
    } else if is_divided(job.state.grants()) {
        Some(offload::OF_INSTANCES.to_owned())
    } else if failures >= MOST_FAILURES {
        Some(format!("{failures} parks in a row have failed"))
    } else {
        None
    }
}

/// The bytes that a job would have in host memory.
///
/// # Errors
/// Why it is not parked when it is idle.
pub(super) fn check(state: &State, io: &Io, active: &ActiveJob) -> Result<Bytes, String> {
    if let Some(why) = rule_obstacle(&active.job) {
        return Err(why);
    }
    park::check(state, io, active).map_err(|obstacle| obstacle.why)
}

/// The promises to parked jobs, for the planner. Nothing is promised to a job that was parked by command only, or its
/// room would be of use to few.
pub(super) fn park_rule(state: &State, io: &Io) -> ParkRule {
    let Some(bound) = io.config.park.wake else {
        return ParkRule::default();
    };
    let jobs = || state.jobs.active.values().map(|active| &active.job);
    if !jobs().any(|job| has_rule(io, job)) {
        return ParkRule::default();
    }
    let works = park::is_driver_trusted(state, io);
    let gives_way = |job: &&Job| {
        let ends = job.spec.policy.time_limit_s.map(Duration::from_secs);
        ends.is_some_and(|ends| ends <= bound)
            || works && has_rule(io, job) && rule_obstacle(job).is_none()
    };
    let is_promised = |job: &&Job| {
        let aside = &job.run_state.aside;
        let is_offloaded = aside.is_parked() && aside.memory == MemoryResidency::Offloaded;
        is_offloaded && has_rule(io, job) && matches!(job.state, JobState::Running { .. })
    };
    ParkRule {
        promised: (jobs().filter(is_promised))
            .map(|job| (job.id, job.state.grants().to_vec()))
            .collect(),
        gives_way: jobs().filter(gives_way).map(|job| job.id).collect(),
    }
}

/// The jobs that have been idle for as long as their rule says, and can be parked.
fn parkable(state: &State, io: &Io) -> Vec<Parkable> {
    let of_job = |active: &ActiveJob| {
        let idle = active.idle_for()?;
        if !active.activity.idle_reported || !has_rule(io, &active.job) || !active.is_memory_idle()
        {
            return None;
        }
        let bytes = check(state, io, active).ok()?;
        Some(Parkable {
            job: active.job.id,
            idle,
            bytes,
            awake: active.activity.woken.map(|woken| woken.at.elapsed()),
            stays: park::stays_awake(&state.jobs.copy_rates, io, &active.job, bytes),
        })
    };
    let jobs = state.jobs.active.values();
    jobs.filter_map(|active| of_job(active)).collect()
}

/// Jobs whose memory is on its way to host memory.
fn leaving(jobs: &Jobs) -> BTreeSet<JobId> {
    let jobs = jobs.active.values().map(|active| &active.job);
    let jobs = jobs.filter(|job| job.run_state.aside.memory == MemoryResidency::Leaving);
    jobs.map(|job| job.id).collect()
}

/// Jobs that are promised their room once they are parked.
fn promised(state: &State, io: &Io) -> BTreeSet<JobId> {
    let jobs = state.jobs.active.values().map(|active| &active.job);
    let jobs = jobs.filter(|job| io.config.park.wake.is_some() && has_rule(io, job));
    jobs.map(|job| job.id).collect()
}

/// How many jobs are parked, and the bytes that they have in host memory.
pub(in crate::controller) fn parked(jobs: &Jobs) -> (u64, u64) {
    let jobs = jobs
        .active
        .values()
        .map(|active| &active.job.run_state.aside);
    let parked = jobs.filter(|aside| aside.is_parked() && !aside.memory.holds_gpus());
    parked.fold((0, 0), |(count, bytes), aside| {
        (count + 1, bytes + aside.bytes.get())
    })
}

/// Parks idle jobs for the first job that waits for room. Whether their room will be enough: then no job has to be
/// preempted.
pub(super) fn make_room_for_start(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    plan: &Plan,
) -> Result<bool, StoreError> {
    let waits_for_room =
        |reason: &Reason| matches!(reason, Reason::Short(_) | Reason::Preempting(_));
    let mut waits = plan.waits.iter();
    let Some(head) = waits
        .find(|wait| waits_for_room(&wait.reason))
        .map(|wait| wait.job)
    else {
        return Ok(false);
    };
    let (leaving, candidates) = (leaving(&state.jobs), parkable(state, io));
    if leaving.is_empty() && candidates.is_empty() {
        return Ok(false);
    }
    let input = ParkInput {
        snapshot: &planner_input::snapshot(state, io),
        leaving: &leaving,
        candidates: &candidates,
        promised: &promised(state, io),
    };
    let Some(victims) = input.victims_for_start(head) else {
        return Ok(false);
    };
    park_for(state, fx, io, head, &victims)?;
    Ok(true)
}

/// Parks idle jobs for one whose memory is to return and has no room.
pub(super) fn make_room_for_resume(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    job: JobId,
    (snapshot, uses): (&Snapshot, &[Bytes]),
) -> Result<(), StoreError> {
    let (leaving, candidates) = (leaving(&state.jobs), parkable(state, io));
    if leaving.is_empty() && candidates.is_empty() {
        return Ok(());
    }
    let input = ParkInput {
        snapshot,
        leaving: &leaving,
        candidates: &candidates,
        promised: &promised(state, io),
    };
    let Some(victims) = input.victims_for_resume(job, uses) else {
        return Ok(());
    };
    let parking = match victims.is_empty() {
        true => leaving.into_iter().collect(),
        false => victims.clone(),
    };
    if let Some(active) = state.jobs.active.get_mut(&job) {
        active.memory_op.parking = parking;
    }
    park_for(state, fx, io, job, &victims)
}

fn park_for(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    by: JobId,
    victims: &[JobId],
) -> Result<(), StoreError> {
    for id in victims {
        let Some(active) = state.jobs.active.get(id) else {
            continue;
        };
        // The first ones may have used up the budget.
        let Ok(bytes) = check(state, io, active) else {
            continue;
        };
        park::start(&mut state.jobs, fx, io, *id, bytes)?;
        if let Some(active) = state.jobs.active.get_mut(id) {
            active.memory_op.parked_for = Some(by);
        }
    }
    Ok(())
}

/// A job with the action `park` has been idle for its whole time.
pub(super) fn on_idle(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    words: &str,
) -> Result<(), StoreError> {
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    match (check(state, io, active), io.config.park.when) {
        (Err(why), _) => {
            let words = format!("{words}; it cannot be parked: {why}");
            fx.record_event(io, Some(id), "idle", &words)
        }
        (Ok(_), ParkWhen::Need) => {
            fx.replan = true;
            let words = format!("{words}; it is parked when another job needs its room");
            fx.record_event(io, Some(id), "idle", &words)
        }
        (Ok(bytes), ParkWhen::Idle) => {
            fx.record_event(io, Some(id), "idle", words)?;
            park::start(&mut state.jobs, fx, io, id, bytes)
        }
    }
}

/// Counts the result of a park.
pub(super) fn count_park(active: &mut ActiveJob, fx: &mut Effects, failed: bool) {
    let failures = &mut active.job.run_state.park.failures;
    *failures = if failed {
        failures.saturating_add(1)
    } else {
        0
    };
    if failed {
        // It has to be idle for its whole time again, or the next round would try it at once.
        active.activity.mark_active(Instant::now());
        fx.replan = true;
    }
}

/// Whether a signal ended the job while the driver locked it. The end of the operation may be known before the job's.
fn died_in_lock(aside: &GpuMemoryState, outcome: Option<&Outcome>) -> bool {
    let is_recent = |since| now().duration_since(since) < DEATH_KNOWN;
    let has_ended = aside.because.as_deref() == Some(ENDED_IN_LOCK)
        && aside.kind == OffloadKind::Parked
        && aside.since.is_some_and(is_recent);
    let was_killed = match outcome {
        Some(Outcome::Signaled(_)) => true,
        // A shell's word for a program that a signal ended.
        Some(Outcome::Exited(code)) => *code > 128,
        _ => false,
    };
    was_killed && (has_ended || aside.is_being_parked())
}

/// A program that a signal ended while the driver locked it switches parking off for the driver (P12).
pub(super) fn note_end(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    job: &Job,
) -> Result<(), StoreError> {
    // The simulated driver is Divvy's own.
    let died = died_in_lock(&job.run_state.aside, job.state.outcome());
    if !died || io.config.node.simulated.is_some() {
        return Ok(());
    }
    let off = ParkOff {
        driver_version: io.config.node.driver_version.clone(),
        job: job.id,
        at: now(),
    };
    let words = format!("{off}, so no further job is parked");
    tracing::warn!(job = %job.id, "{words}");
    io.store.set_setting(ParkOff::SETTING, &off.to_setting())?;
    jobs.park_off = Some(off);
    fx.record_event(io, Some(job.id), "park_failed", &words)
}

/// A woken job that has not `launched` anything has its idle time doubled.
pub(super) fn judge_wake(
    active: &mut ActiveJob,
    fx: &mut Effects,
    io: &Io,
    launched: bool,
) -> Result<(), StoreError> {
    let Some(rule) = idle::idle_rule(io, &active.job) else {
        return Ok(());
    };
    let vain = &mut active.job.run_state.park.vain_wakes;
    if launched || rule.action != IdleAction::Park || *vain >= MOST_DOUBLINGS {
        return Ok(());
    }
    *vain += 1;
    let id = active.job.id;
    let after = active.job.run_state.park.idle_time(rule.after_s);
    io.store.save(&active.job)?;
    let words = format!(
        "woken without a launch within 5 s: its idle time is {} now",
        format_duration(after)
    );
    fx.record_event(io, Some(id), "idle", &words)
}

/// What a job waits for while others are parked for it: `parking job 12 (18 GiB), then copying, about 9 s`. The time is
/// that of measured rates, or none.
pub(super) fn parking_in_words(jobs: &Jobs, job: &Job, parking: &[JobId], bytes: Bytes) -> String {
    let others = parking.iter().filter_map(|id| jobs.active.get(id));
    let others: Vec<&Job> = others.map(|active| &active.job).collect();
    let name = |other: &&Job| {
        let bytes = other.run_state.aside.bytes.human();
        format!("job {} ({bytes})", other.reference())
    };
    let names: Vec<String> = others.iter().map(name).collect();
    let rates = &jobs.copy_rates;
    let out = others.iter().map(|other| {
        let bytes = other.run_state.aside.bytes;
        rates.predict(other, Direction::Offload, bytes)
    });
    let out: Option<Vec<Duration>> = out.collect();
    let back = rates.predict(job, Direction::Restore, bytes);
    let about = match (out.and_then(|out| out.into_iter().max()), back) {
        (Some(out), Some(back)) => format!(", about {} s", (out + back).as_secs().max(1)),
        _ => String::new(),
    };
    let names = names.join(", ");
    format!("waits for its memory to return: parking {names}, then copying{about}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_ends_a_job_in_the_drivers_lock_counts_against_the_driver() {
        let aside = |memory, because: Option<&str>, ago| GpuMemoryState {
            kind: OffloadKind::Parked,
            memory,
            because: because.map(str::to_owned),
            since: Some(now() - SignedDuration::from_secs(ago)),
            ..GpuMemoryState::default()
        };
        let killed = Outcome::Signaled(11);
        let leaving = aside(MemoryResidency::Leaving, None, 0);
        assert!(died_in_lock(&leaving, Some(&killed)));
        assert!(died_in_lock(&leaving, Some(&Outcome::Exited(139))));
        let ended = |ago| aside(MemoryResidency::Kept, Some(ENDED_IN_LOCK), ago);
        assert!(died_in_lock(&ended(1), Some(&killed)));
        for (aside, outcome) in [
            (&leaving, Outcome::Exited(1)),
            (&leaving, Outcome::Cancelled),
            (&ended(3600), killed.clone()),
            (
                &aside(MemoryResidency::Kept, Some("a timeout"), 1),
                killed.clone(),
            ),
            (&aside(MemoryResidency::Offloaded, None, 1), killed),
        ] {
            assert!(
                !died_in_lock(aside, Some(&outcome)),
                "{aside:?} {outcome:?}"
            );
        }
    }
}
