//! Application of effects: the one place where a round becomes durable and then acts on the machine.
//!
//! | phase | what happens |
//! |---|---|
//! | 1. plan | dependents of ended jobs are released; the planner runs if something changed |
//! | 2. commit | the journal takes the round with one sync; before it, nothing outside the journal has changed |
//! | 3. take away | freed slices and files, secrets, MIG commands, limits, job records, kills, suspensions, offloads |
//! | 4. report | threads that wait for the journal go on; clients get events |
//! | 5. give | claims and client jobs get their slices, then the replies go out, then supervisors start |
//! | 6. stop | supervisors of stopping jobs get their signal |
//! | 7. read | notifications start; queries read the state after the round |
//!
//! A client must find its slice when the reply says that its job starts; a supervisor starts after the replies, as its
//! start takes longer.

use std::sync::Arc;
use std::time::Duration;

use divvy_core::JobId;

use crate::controller::actuators::Actuators;
use crate::controller::admission::{dependencies, submit};
use crate::controller::effects::{Effects, MachineEffects};
use crate::controller::io::Io;
use crate::controller::lifecycle::{
    cancel, driver_limit, job_sync, notifications, offload, pause, planner_input, release, resize,
    schedule, start,
};
use crate::controller::mig::commands;
use crate::controller::observe::reconcile;
use crate::controller::state::estimate::FullSnapshot;
use crate::controller::state::{Jobs, State, TICK};
use crate::controller::{active_set, claims, sharing, waiters};
use crate::gpu::IDLE_INTERVAL;
use crate::host::cgroup::Cgroup;
use crate::host::clock::Instant;
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::supervisor::handle::SupervisorHandle;

/// Carries out the phases above.
///
/// # Errors
/// When the journal fails; then the round has no effect.
pub(super) fn commit_and_apply(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) -> Result<(), StoreError> {
    dependencies::release_dependents(&mut state.jobs, fx, io)?;
    if std::mem::take(&mut fx.replan) {
        let began = Instant::now();
        schedule::replan(state, fx, io)?;
        fx.counters.plans.add(began.elapsed());
    }
    let began = Instant::now();
    io.store.commit()?;
    fx.counters.add_commit(io.store.changes(), began.elapsed());
    for id in std::mem::take(&mut fx.jobs.roots) {
        job_sync::register_process_roots(&state.jobs, io, actuators, id);
    }
    watch_launches(fx, io, actuators);
    act_on_machine(&mut fx.machine, actuators);
    // Before other daemons learn of the room, and before a job that was requeued gets a slice of the same name.
    release::release(&mut state.jobs, fx, io, actuators);
    sharing::settle(state, io);
    submit::remove_expired_secrets(&state.jobs, fx, io);
    commands::dispatch_mig_commands(fx, actuators);
    for id in std::mem::take(&mut fx.jobs.reopened) {
        actuators.compute_scheduler.remove_slice(id);
        resize::apply_limits(&mut state.jobs, io, actuators, id);
    }
    resize::apply_resizes(state, fx, io, actuators)?;
    let State { jobs, children, .. } = state;
    start::replace_supervisors(jobs, children, fx, io, actuators)?;
    job_sync::watch_supervisors(jobs, fx, io, actuators);
    start::write_replicas(&state.jobs, fx, io)?;
    check(state, io);
    reconcile::kill_processes(&state.jobs, fx, io);
    for id in std::mem::take(&mut fx.jobs.pauses) {
        let began = Instant::now();
        pause::stop_all_processes(&state.jobs, io, id);
        fx.counters.suspends.add(began.elapsed());
    }
    offload::run_memory_ops(&mut state.jobs, fx, io, actuators);
    for journaled in std::mem::take(&mut fx.replies.commits) {
        // The thread waits here, unless it has timed out.
        let _ = journaled.try_send(());
    }
    for event in fx.events.drain(..) {
        // A stream without clients is no error.
        let _ = actuators.events.send(Arc::new(event));
    }
    let (claims, starts): (Vec<JobId>, Vec<_>) = std::mem::take(&mut fx.jobs.starts)
        .into_iter()
        .partition(|id| state.jobs.is_claim(*id));
    let (clients, supervised): (Vec<JobId>, _) = starts
        .into_iter()
        .partition(|id| state.jobs.runs_on_client(*id));
    claims::repair_claims(state, fx, io, actuators);
    for id in claims {
        claims::bind_claim(state, fx, io, actuators, id);
    }
    for id in clients {
        start::prepare(state, fx, io, actuators, id);
        // The reply to its client waits for the limit.
        driver_limit::begin(state, io, actuators, id);
    }
    waiters::send_replies(state, fx, io);
    reach("round.answered");
    for id in supervised {
        start::prepare(state, fx, io, actuators, id);
        reach("start.prepared");
        if !driver_limit::begin(state, io, actuators, id) {
            start::spawn(&mut state.jobs, &mut state.children, fx, io, actuators, id);
        }
    }
    driver_limit::go_on(state, fx, io, actuators);
    for id in std::mem::take(&mut fx.jobs.stops) {
        cancel::stop(&state.jobs, &state.children, fx, io, id);
    }
    notifications::start_notifications(&mut state.jobs, &mut state.children, io);
    for read in std::mem::take(&mut fx.replies.queries) {
        read(state, io, fx);
    }
    actuators.observer.set_busy(!state.jobs.active.is_empty());
    Ok(())
}

fn act_on_machine(fx: &mut MachineEffects, actuators: &Actuators) {
    let MachineEffects {
        sample_soon,
        probes,
        utilization,
        samples,
        forgotten,
        groups,
    } = std::mem::take(fx);
    for group in groups {
        Cgroup::at(group).remove();
    }
    if sample_soon {
        actuators.observer.sample_soon();
    }
    for gpu in probes {
        actuators.prober.start(gpu);
    }
    if let Some(utilization) = utilization {
        actuators.compute_scheduler.report_utilization(&utilization);
    }
    if let Some(history) = &actuators.history {
        samples
            .into_iter()
            .for_each(|sample| history.record(sample));
        if !forgotten.is_empty() {
            history.forget(forgotten.iter().map(ToString::to_string).collect());
        }
    }
}

fn watch_launches(fx: &mut Effects, io: &Io, actuators: &Actuators) {
    for (id, is_watched) in std::mem::take(&mut fx.jobs.launch_watches) {
        let folder = io.config.home.slice(&id.to_string());
        match is_watched {
            true => actuators.compute_scheduler.watch(id, &folder),
            false => actuators.compute_scheduler.unwatch(id, &folder),
        }
    }
}

/// Checks in debug builds the conditions that hold after every round.
fn check(state: &State, io: &Io) {
    if cfg!(debug_assertions) {
        let snapshot = planner_input::snapshot(state, io);
        let broken = divvy_core::invariants::check(&snapshot);
        assert!(broken.is_ok(), "an invariant does not hold: {broken:?}");
        // Its other parts have the present time in them.
        let estimated = FullSnapshot::of(state, io).planned().queues;
        let planned = snapshot.queues;
        assert_eq!(estimated, planned, "estimates and plans have the same jobs");
        active_set::check_active_set(&state.jobs, io);
        for active in state.jobs.active.values() {
            let (id, state) = (active.job.id, &active.job.state);
            assert!(
                active.is_consistent(),
                "job {id} is {state:?} in another runtime state"
            );
        }
    }
}

/// The time between two ticks.
pub(super) fn tick_interval(jobs: &Jobs, children: &[SupervisorHandle]) -> Duration {
    match jobs.active.is_empty() && children.is_empty() && jobs.unjournaled.is_empty() {
        true => IDLE_INTERVAL,
        false => TICK,
    }
}
