//! GPU modes: changing the mode of a GPU, and collecting idle MIG instances.
//!
//! ```text
//! request ─► blockers? ─► journal (pending) ─► idle instances destroyed, driver set ─► journal ─► reply
//! ```
//! A change stops no job: the reply names the blockers, and the administrator drains the GPU first. Divvy never resets
//! a GPU.

use divvy_api::v1::{self, Error, ErrorCode, GpuChange, GpuChanged, MigGc};
use divvy_core::mig::UnallocatedState;
use divvy_core::{GpuUuid, Mode, show_labels};
use divvy_driver::nvml::mig::{Activation, MigMode};

use super::reconcile::is_deserted;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::mig::{commands, geometry, reconcile, view};
use crate::controller::request::Reply;
use crate::controller::state::mig::{DestroyReason, MigManager, ModeChange};
use crate::controller::state::{GpuState, State};
use crate::gpu::Device;
use crate::gpu::mig::{MigOpError, MigTask};
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::gpu_mode::{RequestedMode, effective_mode, pending_switch};
use crate::model::mig_instance::{ManagedInstance, MigSlot};

/// Changes a GPU's mode, or lists the steps of a dry run.
pub(in crate::controller) fn change_mode(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    gpu: &str,
    change: &GpuChange,
    reply: Reply<GpuChanged>,
) -> Result<(), StoreError> {
    let (uuid, changed) = match would_change(state, io, gpu, change) {
        Ok(would) => would,
        Err(error) => {
            let _ = reply.send(Err(error));
            return Ok(());
        }
    };
    if change.dry_run {
        let _ = reply.send(Ok(changed));
        return Ok(());
    }
    if !changed.blockers.is_empty() {
        let what = format!(
            "GPU {} is in use: {}",
            changed.gpu_index,
            changed.blockers.join("; ")
        );
        let error = Error::new(ErrorCode::Conflict, what)
                .hint("wait until they end, or cancel them; with `--mode unmanaged` no new job starts there")
                .details(serde_json::json!({ "blockers": changed.blockers }));
        let _ = reply.send(Err(error));
        return Ok(());
    }
    switch(
        &mut state.mig,
        &mut state.gpus,
        fx,
        io,
        &uuid,
        change.mode.into(),
        Some((reply, changed)),
    )
}

/// The steps of a change, and its blockers.
fn would_change(
    state: &State,
    io: &Io,
    gpu: &str,
    change: &GpuChange,
) -> Result<(GpuUuid, GpuChanged), Error> {
    let device = state.gpus.managed(gpu)?;
    let to: Mode = change.mode.into();
    let index = device.gpu.index;
    let of_gpu = state.mig.gpus.get(&device.gpu.uuid);
    if of_gpu.is_some_and(|of_gpu| of_gpu.switch.is_some()) {
        let what = format!("the mode of GPU {index} is being changed");
        return Err(Error::new(ErrorCode::Conflict, what).hint("try again in a few seconds"));
    }
    if to == Mode::Mig && device.mode.mig.is_none() {
        let what = format!("GPU {index} ({}) does not support MIG", device.gpu.model);
        return Err(
            Error::new(ErrorCode::Usage, what).hint("use --mode shared or --mode exclusive")
        );
    }
    let turn = turn(to, device.mode.mig);
    let mut steps = Vec::new();
    if turn == Some(false) {
        let idle = idle_on(&state.mig, &device.gpu.uuid);
        let label =
            |slot: &MigSlot| reconcile::label(&state.gpus, &device.gpu.uuid, slot.placement);
        steps.extend(
            idle.iter()
                .map(|slot| format!("destroy the idle {}", label(slot))),
        );
    }
    let now = takes_effect(turn, device.mode.mig);
    steps.extend(turn.map(|on| {
        let setting = if on { "on" } else { "off" };
        match now {
            true => format!("turn MIG mode {setting}"),
            false => format!("keep MIG mode {setting} after the next reset"),
        }
    }));
    if now && waits_for_reset(&device.gpu.model) {
        steps.push(reset(index));
    }
    match to {
        to if to == device.mode.assigned => {}
        Mode::Unmanaged => steps.push("start no more jobs on it; running jobs continue".to_owned()),
        to => steps.push(format!("make it available to jobs as {to}")),
    }
    let changed = GpuChanged {
        gpu_uuid: device.gpu.uuid.to_string(),
        gpu_index: index,
        from: device.mode.assigned.into(),
        mode: change.mode,
        dry_run: change.dry_run,
        steps,
        blockers: self::blockers(state, io, device, to, turn),
        remaining_steps: None,
    };
    Ok((device.gpu.uuid.clone(), changed))
}

fn blockers(state: &State, io: &Io, device: &Device, to: Mode, turn: Option<bool>) -> Vec<String> {
    let uuid = &device.gpu.uuid;
    let changes_use = device.mode.assigned != to && to != Mode::Unmanaged;
    let turns = takes_effect(turn, device.mode.mig);
    if !turns && !changes_use {
        return Vec::new();
    }
    let mut blockers = Vec::new();
    for active in state.jobs.active.values() {
        let held = active.job.state.grants().iter();
        let labels = held.filter(|grant| grant.gpu == *uuid);
        let what = match active.job.holds() {
            true => "holds",
            false => "is suspended, and resumes on",
        };
        let id = active.job.id;
        let shown = labels.map(|grant| show_labels([&*grant.label]));
        blockers.extend(shown.map(|label| format!("#{id} {what} {label}")));
    }
    if !turns {
        return blockers;
    }
    if device.gpu.away || io.sensors.is_unresponsive() {
        blockers.push("it does not respond, so its processes cannot be listed".to_owned());
    }
    let unmanaged = device.unmanaged.iter();
    blockers.extend(unmanaged.map(|pid| format!("pid {pid}, which belongs to no job, uses it")));
    let elsewhere = device.gpu.elsewhere.iter();
    blockers.extend(elsewhere.map(|held| format!("{} holds a part of it", held.holder)));
    let ours = state.mig.instances.values();
    for instance in ours.filter(|one| one.slot.gpu == *uuid && one.job.is_none()) {
        let label = instance.label();
        blockers.extend(match state.mig.standing(instance) {
            UnallocatedState::Idle | UnallocatedState::Foreign => None,
            // The mode change is enqueued after the destruction.
            UnallocatedState::Leaving if state.mig.busy_slots.contains(&instance.slot) => None,
            UnallocatedState::Coming => Some(format!("{label} is being created")),
            UnallocatedState::Leaving => Some(format!("{label} is being destroyed")),
            UnallocatedState::Quarantined => Some(format!(
                "{label} is quarantined: {}",
                instance.reason.as_deref().unwrap_or("no reason recorded")
            )),
        });
    }
    let foreign = state.mig.gpus.get(uuid).into_iter();
    for (placement, _) in foreign.flat_map(|of_gpu| &of_gpu.unmanaged) {
        let label = reconcile::label(&state.gpus, uuid, *placement);
        blockers.push(format!("{label} was created outside Divvy"));
    }
    blockers
}

fn idle_on(mig: &MigManager, uuid: &GpuUuid) -> Vec<MigSlot> {
    let ours = mig.instances.values();
    let idle = ours.filter(|one| one.slot.gpu == *uuid && mig.is_idle(one));
    idle.map(|instance| instance.slot.clone()).collect()
}

/// Journals the requested mode, and lets the worker set the driver's MIG mode if that has to change.
fn switch(
    mig: &mut MigManager,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    uuid: &GpuUuid,
    to: Mode,
    request: Option<(Reply<GpuChanged>, GpuChanged)>,
) -> Result<(), StoreError> {
    let Some(device) = gpus.device_mut(uuid) else {
        return Ok(());
    };
    let turn = turn(to, device.mode.mig);
    let wanted = RequestedMode {
        mode: to,
        is_pending: turn.is_some(),
    };
    let before = device.mode.requested.replace(wanted);
    device.mode.is_switching = turn.is_some();
    io.store.set_mode(uuid, Some(wanted))?;
    fx.replan = true;
    let Some(on) = turn else {
        assign(gpus, fx, io, uuid)?;
        if let Some((reply, changed)) = request {
            fx.replies.gpu_modes.push((reply, Ok(changed)));
        }
        return Ok(());
    };
    assign(gpus, fx, io, uuid)?;
    if !on {
        for slot in idle_on(mig, uuid) {
            commands::destroy(mig, fx, io, &slot, DestroyReason::Mode)?;
        }
    }
    mig.gpu(uuid).switch = Some(ModeChange { request, before });
    commands::enqueue_command(mig, fx, uuid, MigTask::SetMode { on });
    Ok(())
}

/// Applies the driver's result.
pub(super) fn mode_set(
    mig: &mut MigManager,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    uuid: &GpuUuid,
    on: bool,
    result: Result<(Activation, Option<MigMode>), MigOpError>,
) -> Result<(), StoreError> {
    reach("mig.mode.done");
    fx.failpoints.push("mig.mode.kept");
    let switch = mig.gpu(uuid).switch.take();
    let Some(device) = gpus.device_mut(uuid) else {
        return Ok(());
    };
    let index = device.gpu.index;
    device.mode.is_switching = false;
    if let Ok((_, mode)) = &result {
        device.mode.mig = *mode;
    }
    let refused = match &result {
        Ok((Activation::Done, _)) => Ok(None),
        Ok((Activation::ResetRequired, _)) => Ok(Some(reset(index))),
        Ok((Activation::InUse, _)) => Err(format!(
            "a program that the driver does not list uses GPU {index}: DCGM, nvidia-persistenced, or a process in a container"
        )),
        Ok((other, _)) => Err(format!("the driver returned {other:?}")),
        Err(failure) => Err(failure.to_string()),
    };
    let turned = if on { "on" } else { "off" };
    let (wanted, text) = match &refused {
        Ok(left) => {
            let wanted = device.mode.requested.map(RequestedMode::confirmed);
            let text = match left {
                Some(left) => {
                    format!("MIG mode of GPU {index} will be {turned} after a reset: {left}")
                }
                None => format!("MIG mode of GPU {index} is {turned}"),
            };
            (wanted, text)
        }
        Err(why) => {
            // If a restarted daemon finishes a change, `before` is the same request. It is marked as done, so that no
            // later start tries it again.
            let before = switch.as_ref().and_then(|switch| switch.before);
            (
                before.map(RequestedMode::confirmed),
                format!("MIG mode of GPU {index} cannot be turned {turned}: {why}"),
            )
        }
    };
    device.mode.requested = wanted;
    io.store.set_mode(uuid, wanted)?;
    tracing::info!("{text}");
    fx.record_event(io, None, "gpu_mode", &text)?;
    assign(gpus, fx, io, uuid)?;
    if let Some((reply, changed)) = switch.and_then(|switch| switch.request) {
        let answer = match refused {
            Ok(left) => {
                // Divvy resets no GPU: the reset remains to be done, or the driver did not need it.
                let mut steps = changed.steps;
                steps.retain(|step| *step != reset(index));
                Ok(GpuChanged {
                    remaining_steps: left,
                    steps,
                    ..changed
                })
            }
            Err(_) => Err(Error::new(ErrorCode::Conflict, text).hint(
                "at most idle instances were destroyed; `--dry-run` lists what blocks the change",
            )),
        };
        fx.replies.gpu_modes.push((reply, answer));
    }
    Ok(())
}

/// Applies the mode that a GPU has to have now.
pub(in crate::controller) fn assign(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    uuid: &GpuUuid,
) -> Result<(), StoreError> {
    let Some(device) = gpus.device_mut(uuid) else {
        return Ok(());
    };
    let mode = match device.is_managed && !device.mode.is_switching {
        true => effective_mode(
            device.mode.requested.map(|wanted| wanted.mode),
            device.mode.mig,
        ),
        false => Mode::Unmanaged,
    };
    if std::mem::replace(&mut device.mode.assigned, mode) == mode {
        return Ok(());
    }
    device.apply_mode();
    fx.replan = true;
    let text = format!("GPU {} is {mode}", device.gpu.index);
    tracing::info!("{text}");
    fx.record_event(io, None, "gpu_mode", &text)
}

/// After a start, and for GPUs that respond again: finishes the changes that an earlier daemon began, once, and only on
/// unused GPUs, and turns on MIG mode that was lost. A change that is blocked is dropped, as the administrator would not
/// expect it at a later start.
pub(in crate::controller) fn finish_switches(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    concerns: impl Fn(&GpuUuid) -> bool,
) -> Result<(), StoreError> {
    let mut due = Vec::new();
    let is_idle = |device: &&Device| {
        device.is_managed && !device.mode.is_switching && concerns(&device.gpu.uuid)
    };
    for device in state.gpus.devices.iter().filter(is_idle) {
        let (Some(wanted), Some(_)) = (device.mode.requested, device.mode.mig) else {
            continue;
        };
        let on = pending_switch(Some(wanted), device.mode.mig);
        let blockers = on.map_or_else(Vec::new, |on| {
            self::blockers(state, io, device, wanted.mode, Some(on))
        });
        due.push((device.gpu.uuid.clone(), wanted, on, blockers));
    }
    for (uuid, wanted, on, blockers) in due {
        match on {
            Some(_) if blockers.is_empty() => switch(
                &mut state.mig,
                &mut state.gpus,
                fx,
                io,
                &uuid,
                wanted.mode,
                None,
            )?,
            Some(on) => {
                drop_pending_mode(&mut state.gpus, io, &uuid, wanted)?;
                let text = format!(
                    "MIG mode of GPU {} was not turned {}: {}",
                    geometry::index(&state.gpus, &uuid),
                    if on { "on" } else { "off" },
                    blockers.join("; ")
                );
                tracing::warn!("{text}");
                fx.record_event(io, None, "gpu_mode", &text)?;
            }
            None if wanted.is_pending => drop_pending_mode(&mut state.gpus, io, &uuid, wanted)?,
            None => {}
        }
    }
    Ok(())
}

/// Journals that the driver's MIG mode will not be changed for a request.
fn drop_pending_mode(
    gpus: &mut GpuState,
    io: &Io,
    uuid: &GpuUuid,
    wanted: RequestedMode,
) -> Result<(), StoreError> {
    let wanted = Some(wanted.confirmed());
    if let Some(device) = gpus.device_mut(uuid) {
        device.mode.requested = wanted;
    }
    io.store.set_mode(uuid, wanted)
}

/// Destroys idle instances, and quarantined ones that have no process and are not divided.
pub(in crate::controller) fn collect(
    mig: &mut MigManager,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    gc: &MigGc,
) -> Result<Vec<v1::MigInstance>, StoreError> {
    let chosen = |index: u32| gc.gpus_on.is_empty() || gc.gpus_on.contains(&index);
    let can_go = |instance: &ManagedInstance| match mig.standing(instance) {
        UnallocatedState::Idle => true,
        UnallocatedState::Quarantined => {
            let of_gpu = mig.gpus.get(&instance.slot.gpu);
            let mut found = of_gpu.into_iter().flat_map(|of_gpu| &of_gpu.observed);
            let found = found.find(|found| found.placement == instance.slot.placement);
            found.is_none_or(is_deserted)
        }
        UnallocatedState::Coming | UnallocatedState::Leaving | UnallocatedState::Foreign => false,
    };
    let slots: Vec<MigSlot> = mig
        .instances
        .values()
        .filter(|instance| {
            let index = geometry::index(gpus, &instance.slot.gpu);
            instance.job.is_none() && can_go(instance) && chosen(index)
        })
        .map(|instance| instance.slot.clone())
        .collect();
    if !gc.dry_run {
        for slot in &slots {
            commands::destroy(mig, fx, io, slot, DestroyReason::Collected)?;
        }
        fx.replan |= !slots.is_empty();
    }
    let all = view::mig_instances(mig, gpus).into_iter();
    let gone = |shown: &v1::MigInstance| {
        let is = |slot: &MigSlot| {
            shown.gpu_uuid == slot.gpu.as_str()
                && shown.start == slot.placement.start
                && shown.state != v1::MigState::Unmanaged
                && mig
                    .instances
                    .get(slot)
                    .is_some_and(|one| one.profile.to_string() == shown.profile)
        };
        slots.iter().any(is)
    };
    Ok(all.filter(gone).collect())
}

/// The MIG mode to set in the driver, if it has to change. That is also so if the present mode is right, but the next
/// reset would change it.
fn turn(to: Mode, mig: Option<MigMode>) -> Option<bool> {
    let mig = mig?;
    match to {
        Mode::Mig => (!mig.current || !mig.pending).then_some(true),
        Mode::Shared | Mode::Exclusive => (mig.current || mig.pending).then_some(false),
        Mode::Unmanaged => None,
    }
}

/// The reset step for the administrator; until it is done, no job gets the GPU.
fn reset(index: u32) -> String {
    format!("reset GPU {index} with `nvidia-smi --gpu-reset -i {index}`, or restart the machine")
}

/// Whether the model's MIG mode changes only at a reset. That is so for the Ampere architecture (NVIDIA's MIG User
/// Guide, "Enable MIG Mode"; Hopper and later need no reset). The driver's result decides.
fn waits_for_reset(model: &str) -> bool {
    let mut words = model.split(|one: char| !one.is_ascii_alphanumeric());
    words.any(|word| matches!(word, "A100" | "A100X" | "A30" | "A30X" | "A800"))
}

/// Whether the change takes effect before a reset.
fn takes_effect(turn: Option<bool>, mig: Option<MigMode>) -> bool {
    mig.is_some_and(|mig| turn.is_some_and(|on| on != mig.current))
}
