//! Scheduling: the daemon runs the planner on a snapshot, and journals its decisions.

use std::time::Duration;

use divvy_core::job::StopReason;
use divvy_core::{Bytes, HeldElsewhere, Plan, Preempt};

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{
    cancel, confirm, job_sync, offload, park_policy, planner_input, start_failure,
};
use crate::controller::mig::claim;
use crate::controller::sharing;
use crate::controller::state::State;
use crate::host::clock::{Instant, now};
use crate::host::error::error_chain;
use crate::journal::StoreError;
use crate::registry::Contended;

/// How often one round plans anew because another daemon was faster.
const ROUNDS_WITH_OTHERS: u32 = 4;

/// Runs the planner, and journals every start; the round applies them at its end.
pub(in crate::controller) fn replan(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    if state.disk.full.is_some() {
        state.jobs.waits.clear();
        return Ok(());
    }
    sharing::refresh(&mut state.gpus, io);
    offload::resume_offloaded(state, fx, io)?;
    let mut plan = plan_beside_others(state, io);
    if park_policy::make_room_for_start(state, fx, io, &plan)? {
        // Parked jobs lose nothing, so no job is stopped where they are enough.
        plan.preempts.clear();
    }
    if plan.cursor != state.queues.cursor {
        state.queues.cursor = plan.cursor;
        io.store.set_setting("cursor", &plan.cursor.to_string())?;
    }
    if plan.head != state.queues.head {
        state.queues.head = plan.head;
        let head = plan.head.map_or(String::new(), |job| job.to_string());
        io.store.set_setting("head", &head)?;
        // A job that yielded to the former head may start beside the new one.
        fx.replan = true;
    }
    state.jobs.waits = plan
        .waits
        .into_iter()
        .map(|wait| (wait.job, wait))
        .collect();
    let again = plan.replan_in_s.map(Duration::from_secs);
    state.queues.replan_at = again.map(|after| Instant::now() + after);
    for start in plan.starts {
        let Some(active) = state.jobs.active.get_mut(&start.job) else {
            continue;
        };
        active.place(start.grants);
        active.job.enforce(&state.gpus);
        let waited = Duration::try_from(now().duration_since(active.job.waits_since()));
        let queue = active.job.spec.queue.to_string();
        let waits = fx.counters.waits.entry(queue).or_default();
        waits.add(waited.unwrap_or_default());
        let job = active.job.clone();
        if let Err(error) = io.store.save_allocations(&job) {
            if !error.is_constraint() {
                return Err(error);
            }
            // A bug of Divvy's: it costs this job, and not the daemon.
            start_failure::fail_start(&mut state.jobs, fx, io, job.id, &error_chain(&error));
            job_sync::sync_job(state, fx, io, job.id)?;
            continue;
        }
        io.store.save(&job)?;
        fx.record_event(io, Some(job.id), "starting", &job.grant_labels())?;
        if claim::claim_instances(state, fx, io, job.id, &start.reclaim)? {
            confirm::ready(&mut state.jobs, fx, io, job.id)?;
        }
    }
    for Preempt { job, preemptor: by } in plan.preempts {
        fx.counters.preempted += 1;
        let words =
            format!("preempted: it is over quota, and #{by} is within the quota of its project");
        cancel::stop_job(&mut state.jobs, fx, io, job, StopReason::Preempt, words)?;
    }
    Ok(())
}

/// Plans until the starts fit beside what other daemons of the machine hold and intend.
fn plan_beside_others(state: &mut State, io: &Io) -> Plan {
    for _ in 0..ROUNDS_WITH_OTHERS {
        let plan = divvy_core::plan(&planner_input::snapshot(state, io));
        let grants = plan.starts.iter().flat_map(|start| &start.grants);
        match sharing::acquire(state, io, grants, &[]) {
            Ok(()) => return plan,
            Err(Contended) => tracing::debug!("another daemon was faster to take a GPU"),
        }
    }
    // Nothing starts this time.
    state.queues.is_contended = true;
    let mut full = planner_input::snapshot(state, io);
    for gpu in &mut full.gpus {
        gpu.elsewhere.push(HeldElsewhere {
            holder: "another daemon, which is taking it now".to_owned(),
            share: 1000,
            memory: gpu.usable(),
            used: Bytes::ZERO,
        });
    }
    divvy_core::plan(&full)
}
