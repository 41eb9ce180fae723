//! Drain and service of GPUs: those that get no jobs for a time, because an administrator drains them or for a fault.
//!
//! ```text
//! divvy admin drain ──────────────┐                            ┌─► no job starts there; running jobs continue
//! contexts fail, probe fails too ─┼─► journal, device, event ──┤
//! driver's errors ────────────────┘                            └─► undrain, --until, or a probe that succeeds
//! ```
//! [`faults`] finds the faults.

pub(in crate::controller) mod faults;

use divvy_api::v1::{Drain, Error, ErrorCode};
use divvy_core::GpuUuid;

use crate::auth::Caller;
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::state::GpuState;
use crate::gpu::Device;
use crate::host::clock::now;
use crate::journal::StoreError;
use crate::model::out_of_service::OutOfService;

/// Takes GPUs out of service; the GPUs, or why none was.
///
/// # Errors
/// When the journal fails.
pub(super) fn drain(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    drain: &Drain,
    by: &Caller,
) -> Result<Vec<GpuUuid>, Halt> {
    let chosen = checked(drain).and_then(|()| chosen(gpus, &drain.gpus))?;
    let out = OutOfService {
        by: Some(by.account.name.clone()),
        since: now(),
        until: drain.until,
        reason: drain.reason.trim().to_owned(),
    };
    for gpu in &chosen {
        take_out(gpus, fx, io, gpu, out.clone())?;
    }
    Ok(chosen)
}

/// Returns GPUs to service, also those with a fault; the GPUs, or why none was.
///
/// # Errors
/// When the journal fails.
pub(super) fn undrain(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    named: &[String],
    by: &Caller,
) -> Result<Vec<GpuUuid>, Halt> {
    let chosen = chosen(gpus, named)?;
    for gpu in &chosen {
        faults::accept(gpus, io, gpu)?;
        bring_back(gpus, fx, io, gpu, &format!("by {}", by.account.name))?;
    }
    Ok(chosen)
}

/// Returns GPUs whose time is over to service.
///
/// # Errors
/// When the journal fails.
pub(super) fn expire(gpus: &mut GpuState, fx: &mut Effects, io: &Io) -> Result<(), StoreError> {
    let is_over = |device: &&Device| {
        let until = device.out.as_ref().and_then(|out| out.until);
        until.is_some_and(|until| until <= now())
    };
    let over = gpus.devices.iter().filter(is_over);
    let over: Vec<GpuUuid> = over.map(|device| device.gpu.uuid.clone()).collect();
    for gpu in over {
        bring_back(gpus, fx, io, &gpu, "as planned")?;
    }
    Ok(())
}

fn take_out(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    gpu: &GpuUuid,
    out: OutOfService,
) -> Result<(), StoreError> {
    let Some(device) = gpus.device_mut(gpu) else {
        return Ok(());
    };
    io.store.set_out_of_service(gpu, Some(&out))?;
    let text = format!("GPU {} ({gpu}) is {}", device.gpu.index, out.describe());
    device.out = Some(out);
    device.apply_mode();
    fx.replan = true;
    tracing::warn!("{text}");
    fx.record_event(io, None, "gpu_out_of_service", &text)
}

/// `how`: `by root`. Nothing happens to a GPU that is in service.
fn bring_back(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    gpu: &GpuUuid,
    how: &str,
) -> Result<(), StoreError> {
    let Some(device) = gpus.device_mut(gpu) else {
        return Ok(());
    };
    if device.out.take().is_none() {
        return Ok(());
    }
    device.apply_mode();
    fx.replan = true;
    let text = format!("GPU {} ({gpu}) is back in service, {how}", device.gpu.index);
    faults::forget(gpus, gpu);
    io.store.set_out_of_service(gpu, None)?;
    tracing::info!("{text}");
    fx.record_event(io, None, "gpu_in_service", &text)
}

fn checked(drain: &Drain) -> Result<(), Error> {
    let refused = |what: String, hint: &str| Err(Error::new(ErrorCode::Usage, what).hint(hint));
    if drain.reason.trim().is_empty() {
        return refused(
            "the reason is empty".to_owned(),
            "say why in a few words: --reason \"driver update\"",
        );
    }
    if drain.reason.trim().chars().any(char::is_control) {
        return refused(
            "the reason has a line break or another control character".to_owned(),
            "write it in one line",
        );
    }
    match drain.until.filter(|until| *until <= now()) {
        Some(until) => refused(
            format!("the time until which the GPUs are out of service, {until}, is over"),
            "name a time to come, or leave it out",
        ),
        None => Ok(()),
    }
}

/// The managed GPUs that these indices and UUIDs name; all of them for an empty list.
fn chosen(gpus: &GpuState, named: &[String]) -> Result<Vec<GpuUuid>, Error> {
    let uuid = |device: &Device| device.gpu.uuid.clone();
    if named.is_empty() {
        let managed = gpus.devices.iter().filter(|device| device.is_managed);
        return Ok(managed.map(uuid).collect());
    }
    let mut chosen = Vec::new();
    for name in named {
        let gpu = uuid(gpus.managed(name)?);
        if !chosen.contains(&gpu) {
            chosen.push(gpu);
        }
    }
    Ok(chosen)
}
