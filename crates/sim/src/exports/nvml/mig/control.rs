//! The control function: resets, restarts, lost and sick GPUs, and holders of a GPU that are no processes of the machine.
//!
//! One function that no driver has, for tests; docs/simulator.md lists the orders that it understands.

use super::{MigInstanceId, refused};
use crate::engine::machine::health::RemappedRows;
use crate::engine::machine::opened::machine;
use crate::engine::machine::state::Locked;
use crate::exports::nvml::{Done, name};
use crate::model::Architecture;
use crate::trace;
use divvy_driver::sys::nvml::nvmlReturn_t;
use std::ffi::c_char;

/// Carries out an order such as `reset:0`, and answers as NVML's functions do. Nothing needs to be initialised.
#[unsafe(no_mangle)]
extern "C" fn divvy_sim_control(order: *const c_char) -> nvmlReturn_t {
    let handler = || obey(name(order)?);
    trace::call("divvy_sim_control", handler, |line| line.argument(order))
}

/// `0` is a GPU, `0/1/2` its GPU instance 1's compute instance 2.
fn target(text: &str) -> Option<(usize, Option<MigInstanceId>)> {
    let numbers: Option<Vec<u32>> = text.split('/').map(|part| part.parse().ok()).collect();
    match numbers?[..] {
        [gpu] => Some((gpu as usize, None)),
        [gpu, gpu_instance, compute_instance] => {
            let place = MigInstanceId {
                gpu_instance,
                compute_instance,
            };
            Some((gpu as usize, Some(place)))
        }
        _ => None,
    }
}

fn obey(order: &str) -> Done {
    let machine = machine().ok_or(nvmlReturn_t::DRIVER_NOT_LOADED)?;
    let (state, config) = (&machine.state, &machine.config.mig);
    let (verb, object) = order.split_once(':').unwrap_or((order, ""));
    if let Some((gpu, value)) = object.split_once('=') {
        let gpu = gpu.parse().ok().filter(|gpu| *gpu < state.gpu_count());
        let gpu = gpu.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
        return set_health(&state.lock(), verb, gpu, value);
    }
    let target = target(object).filter(|(gpu, _)| *gpu < state.gpu_count());
    let ampere = |gpu: usize| state.model(gpu).architecture == Architecture::Ampere;
    let kept = |gpu| config.mode_is_kept.unwrap_or_else(|| ampere(gpu));
    let locked = state.lock();
    let done = match (verb, target) {
        ("reset", Some((gpu, None))) => locked.reset(gpu),
        ("reload" | "reboot", None) if object.is_empty() => locked.restart(kept),
        ("hold", Some((gpu, place))) => locked.hold(gpu, place, true),
        ("release", Some((gpu, place))) => locked.hold(gpu, place, false),
        ("lose", Some((gpu, None))) => {
            locked.lose(gpu);
            Ok(())
        }
        _ => return Err(nvmlReturn_t::INVALID_ARGUMENT),
    };
    done.map_err(refused)
}

/// Carries out an order about the health of a GPU.
fn set_health(locked: &Locked<'_>, verb: &str, gpu: usize, value: &str) -> Done {
    let (health, invalid) = (&locked.gpus()[gpu].health, nvmlReturn_t::INVALID_ARGUMENT);
    let number = || value.parse::<u32>().map_err(|_| invalid);
    let has_ecc = !locked.model(gpu).display;
    match verb {
        "sick" => health.set_context_error(number()?),
        "xid" => locked.raise_xid(gpu, number()?.into()),
        "ecc" if has_ecc => health.set_uncorrected_ecc(number()?.into()),
        "remap" if has_ecc => {
            let (is_pending, has_failed) = match value {
                "none" => (false, false),
                "pending" => (true, false),
                "failed" => (false, true),
                _ => return Err(invalid),
            };
            health.set_remapped(RemappedRows {
                uncorrectable: u32::from(is_pending),
                is_pending,
                has_failed,
            });
        }
        "ecc" | "remap" => return Err(nvmlReturn_t::NOT_SUPPORTED),
        _ => return Err(invalid),
    }
    Ok(())
}
