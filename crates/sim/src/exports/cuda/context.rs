//! Contexts: primary and created ones, the current one, their flags and limits.

use super::{out, set_if_wanted};
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::current;
use crate::engine::process::{Process, process};
use divvy_driver::sys::cuda::{
    CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUfunc_cache, CUlimit, CUresult,
};
use std::ptr::{null_mut, without_provenance_mut};

exports! { cuda {
    cuDevicePrimaryCtxRetain: (context, device) => primary_retain;
    cuDevicePrimaryCtxRelease: (device) => primary_release;
    cuDevicePrimaryCtxRelease_v2: (device) => primary_release;
    cuDevicePrimaryCtxReset: (device) => primary_reset;
    cuDevicePrimaryCtxReset_v2: (device) => primary_reset;
    cuDevicePrimaryCtxSetFlags: (device, flags) => primary_set_flags;
    cuDevicePrimaryCtxSetFlags_v2: (device, flags) => primary_set_flags;
    cuDevicePrimaryCtxGetState: (device, flags, active) => primary_state;
    cuCtxCreate: (context, flags, device) => create;
    cuCtxCreate_v2: (context, flags, device) => create;
    cuCtxCreate_v3: (context, affinity, count, flags, device) => create_v3;
    cuCtxCreate_v4: (context, parameters, flags, device) => create_v4;
    cuCtxDestroy: (context) => destroy;
    cuCtxDestroy_v2: (context) => destroy;
    cuCtxAttach: (context, flags) => attach;
    cuCtxDetach: (context) => detach;
    cuCtxPushCurrent: (context) => push;
    cuCtxPushCurrent_v2: (context) => push;
    cuCtxPopCurrent: (context) => pop;
    cuCtxPopCurrent_v2: (context) => pop;
    cuCtxSetCurrent: (context) => set_current;
    cuCtxGetCurrent: (context) => get_current;
    cuCtxGetDevice: (device) => device;
    cuCtxGetDevice_v2: (device, context) => device_of;
    cuCtxGetFlags: (flags) => flags;
    cuCtxSetFlags: (flags) => set_flags;
    cuCtxSynchronize: () => synchronize;
    cuCtxSynchronize_v2: (context) => synchronize_context;
    cuCtxSetLimit: (limit, value) => set_limit;
    cuCtxGetLimit: (value, limit) => get_limit;
    cuCtxGetCacheConfig: (config) => cache_config;
    cuCtxSetCacheConfig: (config) => set_cache_config;
    cuCtxGetApiVersion: (context, version) => api_version;
    cuCtxGetStreamPriorityRange: (least, greatest) => priority_range;
    cuCtxEnablePeerAccess: (peer, flags) => enable_peer;
    cuCtxDisablePeerAccess: (peer) => disable_peer;
} }

pub(super) fn to_handle(context: CUcontext) -> Handle<Context> {
    Handle::from_value(context.addr())
}

pub(super) fn from_handle(context: Handle<Context>) -> CUcontext {
    without_provenance_mut(context.value())
}

/// The named context, or the current one where the API lets the caller leave it out.
fn named_or_current(process: &Process, context: CUcontext) -> Done<Handle<Context>> {
    let objects = process.objects();
    if context.is_null() {
        return Ok(process.current(&objects)?.context);
    }
    let named = to_handle(context);
    Ok(objects.context(named)?.home.unwrap_or(named))
}

fn primary_retain(context: *mut CUcontext, device: CUdevice) -> Done {
    let process = process()?;
    let (context, gpu) = (out(context)?, process.gpu(device)?);
    context.set(from_handle(process.retain_primary(gpu)?))
}

fn primary_release(device: CUdevice) -> Done {
    let process = process()?;
    process.release_primary(process.gpu(device)?)
}

fn primary_reset(device: CUdevice) -> Done {
    let process = process()?;
    process.reset_primary(process.gpu(device)?)
}

fn primary_set_flags(device: CUdevice, flags: u32) -> Done {
    let process = process()?;
    let gpu = process.gpu(device)?;
    process.objects().primary[gpu].flags = flags;
    Ok(())
}

fn primary_state(device: CUdevice, flags: *mut u32, active: *mut i32) -> Done {
    let process = process()?;
    let gpu = process.gpu(device)?;
    let objects = process.objects();
    set_if_wanted(flags, objects.primary[gpu].flags);
    set_if_wanted(active, i32::from(objects.primary[gpu].context.is_some()));
    Ok(())
}

/// Makes a context and pushes it on the caller's stack.
fn create(context: *mut CUcontext, flags: u32, device: CUdevice) -> Done {
    let process = process()?;
    let (place, gpu) = (out(context)?, process.gpu(device)?);
    let context = process.create_context(&mut process.objects(), gpu, flags, false)?;
    current::push(context);
    place.set(from_handle(context))
}

/// Affinity to a number of multiprocessors needs MPS, which is not simulated.
fn create_v3(
    context: *mut CUcontext,
    _affinity: *mut CUexecAffinityParam,
    count: i32,
    flags: u32,
    device: CUdevice,
) -> Done {
    if count != 0 {
        Err(CUresult::UNSUPPORTED_EXEC_AFFINITY)
    } else {
        create(context, flags, device)
    }
}

unsafe fn create_v4(
    context: *mut CUcontext,
    parameters: *mut CUctxCreateParams,
    flags: u32,
    device: CUdevice,
) -> Done {
    // SAFETY: null or the caller's structure.
    let affinities =
        unsafe { parameters.as_ref() }.map_or(0, |parameters| parameters.numExecAffinityParams);
    create_v3(context, null_mut(), affinities, flags, device)
}

fn destroy(context: CUcontext) -> Done {
    let process = process()?;
    let (mut objects, handle) = (process.objects(), to_handle(context));
    if objects.context(handle)?.is_primary {
        return Err(CUresult::INVALID_CONTEXT);
    }
    process.destroy_context(&mut objects, handle)?;
    if current::top() == Some(handle) {
        current::pop();
    }
    Ok(())
}

fn attach(context: *mut CUcontext, flags: u32) -> Done {
    let place = out(context)?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    change_current(|context| context.attached += 1)?;
    place.set(current::top().map_or(null_mut(), from_handle))
}

/// One use of the current context less; without any it is destroyed.
fn detach(context: CUcontext) -> Done {
    let process = process()?;
    let current = process.current(&process.objects())?.context;
    if current != to_handle(context) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    if process.objects().context(current)?.attached == 0 {
        return destroy(context);
    }
    change_current(|context| context.attached -= 1)
}

fn push(context: CUcontext) -> Done {
    process()?.objects().context(to_handle(context))?;
    current::push(to_handle(context));
    Ok(())
}

fn pop(context: *mut CUcontext) -> Done {
    process()?;
    let popped = current::pop().ok_or(CUresult::INVALID_CONTEXT)?;
    set_if_wanted(context, from_handle(popped));
    Ok(())
}

fn set_current(context: CUcontext) -> Done {
    let process = process()?;
    if context.is_null() {
        current::set_top(None);
        return Ok(());
    }
    process.objects().context(to_handle(context))?;
    current::set_top(Some(to_handle(context)));
    Ok(())
}

fn get_current(context: *mut CUcontext) -> Done {
    process()?;
    out(context)?.set(current::top().map_or(null_mut(), from_handle))
}

fn device(device: *mut CUdevice) -> Done {
    device_of(device, null_mut())
}

fn device_of(device: *mut CUdevice, context: CUcontext) -> Done {
    let process = process()?;
    let (device, context) = (out(device)?, named_or_current(process, context)?);
    let gpu = process.objects().context(context)?.gpu;
    device.set(process.device(gpu))
}

fn flags(flags: *mut u32) -> Done {
    let process = process()?;
    let context = named_or_current(process, null_mut())?;
    out(flags)?.set(process.objects().context(context)?.flags)
}

fn set_flags(flags: u32) -> Done {
    change_current(|context| context.flags = flags)
}

fn change_current(change: impl FnOnce(&mut Context)) -> Done {
    let process = process()?;
    let context = named_or_current(process, null_mut())?;
    change(
        process
            .objects()
            .contexts
            .get_mut(context)
            .ok_or(CUresult::INVALID_CONTEXT)?,
    );
    Ok(())
}

fn synchronize() -> Done {
    synchronize_context(null_mut())
}

fn synchronize_context(context: CUcontext) -> Done {
    let process = process()?;
    let context = named_or_current(process, context)?;
    let gpu = process.objects().context(context)?.gpu;
    process.check_unsafe()?;
    process.synchronize(gpu)?;
    process
        .objects()
        .context(context)?
        .broken
        .map_or(Ok(()), Err)
}

fn set_limit(limit: CUlimit, value: usize) -> Done {
    let process = process()?;
    process.set_limit(named_or_current(process, null_mut())?, limit, value)
}

fn get_limit(value: *mut usize, limit: CUlimit) -> Done {
    let (process, value) = (process()?, out(value)?);
    let context = named_or_current(process, null_mut())?;
    let objects = process.objects();
    let context = objects.context(context)?;
    value.set(context.limits.get(process.model(context.gpu), limit)?)
}

fn cache_config(config: *mut CUfunc_cache) -> Done {
    let process = process()?;
    let context = named_or_current(process, null_mut())?;
    out(config)?.set(CUfunc_cache(
        process.objects().context(context)?.cache_config,
    ))
}

fn set_cache_config(config: CUfunc_cache) -> Done {
    change_current(|context| context.cache_config = config.0)
}

fn api_version(context: CUcontext, version: *mut u32) -> Done {
    named_or_current(process()?, context)?;
    out(version)?.set(3020)
}

fn priority_range(least: *mut i32, greatest: *mut i32) -> Done {
    named_or_current(process()?, null_mut())?;
    set_if_wanted(least, 0);
    set_if_wanted(greatest, -5);
    Ok(())
}

fn enable_peer(peer: CUcontext, flags: u32) -> Done {
    let process = process()?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    process.enable_peer(to_handle(peer))
}

fn disable_peer(peer: CUcontext) -> Done {
    process()?.disable_peer(to_handle(peer))
}
