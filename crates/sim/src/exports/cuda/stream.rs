//! Streams, events, host functions.

use super::context::from_handle as context_handle;
use super::out;
use crate::engine::objects::graph::node::Operation;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::host_call::HostCall;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Destination, Event, Stream, Target};
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUhostFn, CUresult, CUstream, CUstreamCallback,
};
use std::ffi::c_void;
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuStreamCreate: (stream, flags) => create;
    cuStreamCreateWithPriority: (stream, flags, priority) => create_with_priority;
    cuStreamDestroy: (stream) => destroy;
    cuStreamDestroy_v2: (stream) => destroy;
    cuStreamSynchronize, cuStreamSynchronize_ptsz: (stream) => synchronize;
    cuStreamQuery, cuStreamQuery_ptsz: (stream) => query;
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz: (stream, event, flags) => wait_event;
    cuStreamAddCallback, cuStreamAddCallback_ptsz: (stream, callback, data, flags) => add_callback;
    cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz: (stream, address, length, flags) => attach_memory;
    cuStreamGetPriority, cuStreamGetPriority_ptsz: (stream, priority) => priority;
    cuStreamGetFlags, cuStreamGetFlags_ptsz: (stream, flags) => flags;
    cuStreamGetId, cuStreamGetId_ptsz: (stream, id) => id;
    cuStreamGetCtx, cuStreamGetCtx_ptsz: (stream, context) => context;
    cuStreamGetDevice, cuStreamGetDevice_ptsz: (stream, device) => device;
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz: (stream, function, data) => host_function;
    cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz: (stream, function, data, mode) => host_function_v2;
    cuEventCreate: (event, flags) => create_event;
    cuEventDestroy: (event) => destroy_event;
    cuEventDestroy_v2: (event) => destroy_event;
    cuEventRecord, cuEventRecord_ptsz: (event, stream) => record;
    cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz: (event, stream, flags) => record_with_flags;
    cuEventQuery: (event) => query_event;
    cuEventSynchronize: (event) => synchronize_event;
    cuEventElapsedTime: (milliseconds, start, end) => elapsed;
    cuEventElapsedTime_v2: (milliseconds, start, end) => elapsed;
} }

pub(super) fn event_handle(event: CUevent) -> Handle<Event> {
    Handle::from_value(event.addr())
}

fn create(stream: *mut CUstream, flags: u32) -> Done {
    create_with_priority(stream, flags, 0)
}

/// Priorities outside the range are clamped to it, as CUDA documents.
fn create_with_priority(stream: *mut CUstream, flags: u32, priority: i32) -> Done {
    let (process, stream) = (process()?, out(stream)?);
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    stream.set(without_provenance_mut(
        process.create_stream(flags, priority.clamp(-5, 0))?.value(),
    ))
}

fn destroy(stream: CUstream) -> Done {
    process()?.destroy_stream(Handle::from_value(stream.addr()))
}

fn synchronize(stream: CUstream) -> Done {
    let process = process()?;
    let (target, current) = process.uncaptured(stream.addr())?;
    process.synchronize_stream(current.gpu, target)
}

fn query(stream: CUstream) -> Done {
    let process = process()?;
    let (target, current) = process.uncaptured(stream.addr())?;
    process.query_stream(current.gpu, target)
}

/// `CU_EVENT_WAIT_EXTERNAL` and `CU_EVENT_RECORD_EXTERNAL`: a node in a captured stream, and nothing else.
const EXTERNAL: u32 = 1;

fn wait_event(stream: CUstream, event: CUevent, flags: u32) -> Done {
    match flags {
        0 => process()?.wait_event(event_handle(event), stream.addr()),
        EXTERNAL => add_event_node(stream, event, Operation::Wait),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn add_event_node(
    stream: CUstream,
    event: CUevent,
    operation: impl FnOnce(Handle<Event>) -> Operation,
) -> Done {
    let process = process()?;
    let Destination::Capture(stream) = process.destination(stream.addr())? else {
        return Err(CUresult::INVALID_VALUE);
    };
    let (mut objects, event) = (process.objects(), event_handle(event));
    objects.events.get(event).ok_or(CUresult::INVALID_HANDLE)?;
    objects.capture(stream, operation(event)).map(drop)
}

/// A pointer of the caller's that travels to the thread its function runs on.
struct Data(*mut c_void);

// SAFETY: the API hands it to a function on another thread by contract.
unsafe impl Send for Data {}

impl Data {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

fn add_callback(
    stream: CUstream,
    callback: CUstreamCallback,
    data: *mut c_void,
    flags: u32,
) -> Done {
    let process = process()?;
    let (target, current) = process.uncaptured(stream.addr())?;
    let callback = callback
        .filter(|_| flags == 0)
        .ok_or(CUresult::INVALID_VALUE)?;
    let (data, stream) = (Data(data), Data(stream.cast()));
    // SAFETY: the caller's function, called as the API promises.
    process.issue_host_function(current.gpu, target, move || unsafe {
        callback(stream.get().cast(), CUresult::SUCCESS, data.get())
    })
}

fn host_function(stream: CUstream, function: CUhostFn, data: *mut c_void) -> Done {
    let process = process()?;
    let function = function.ok_or(CUresult::INVALID_VALUE)?;
    let call = HostCall { function, data };
    match process.destination(stream.addr())? {
        Destination::Issue(target, current) => {
            process.issue_host_function(current.gpu, target, move || call.call())
        }
        Destination::Capture(stream) => {
            let captured = process.objects().capture(stream, Operation::Host(call));
            captured.map(drop)
        }
    }
}

fn host_function_v2(stream: CUstream, function: CUhostFn, data: *mut c_void, _mode: u32) -> Done {
    host_function(stream, function, data)
}

fn attach_memory(stream: CUstream, _address: CUdeviceptr, _length: usize, _flags: u32) -> Done {
    process()?.target(stream.addr()).map(drop)
}

/// A figure of a stream; the default streams have flags and priority 0 and an id of their own.
fn figure(stream: CUstream, of: impl Fn(&Stream) -> u64) -> Done<u64> {
    let process = process()?;
    let (target, _) = process.target(stream.addr())?;
    match target {
        Target::Default => Ok(0),
        Target::Own(handle) => process
            .objects()
            .streams
            .get(handle)
            .map(of)
            .ok_or(CUresult::INVALID_HANDLE),
    }
}

fn priority(stream: CUstream, priority: *mut i32) -> Done {
    out(priority)?.set(figure(stream, |stream| stream.priority as u64)? as i32)
}

fn flags(stream: CUstream, flags: *mut u32) -> Done {
    out(flags)?.set(figure(stream, |stream| u64::from(stream.flags))? as u32)
}

fn id(stream: CUstream, id: *mut u64) -> Done {
    let own = figure(stream, |stream| stream.id)?;
    out(id)?.set(if stream.addr() <= 2 {
        stream.addr() as u64
    } else {
        own
    })
}

fn context(stream: CUstream, context: *mut CUcontext) -> Done {
    let (_, current) = process()?.target(stream.addr())?;
    out(context)?.set(context_handle(current.context))
}

fn device(stream: CUstream, device: *mut CUdevice) -> Done {
    let process = process()?;
    let (_, current) = process.target(stream.addr())?;
    out(device)?.set(process.device(current.gpu))
}

fn create_event(event: *mut CUevent, flags: u32) -> Done {
    let (process, event) = (process()?, out(event)?);
    // An interprocess event must be without timing, as cuda.h says.
    let timed_between = flags & 6 == 4;
    if flags > 7 || timed_between {
        return Err(CUresult::INVALID_VALUE);
    }
    event.set(without_provenance_mut(process.create_event(flags)?.value()))
}

fn destroy_event(event: CUevent) -> Done {
    let process = process()?;
    process.end_event(&mut process.objects(), event_handle(event))
}

pub(super) fn record(event: CUevent, stream: CUstream) -> Done {
    let (process, event) = (process()?, event_handle(event));
    match process.destination(stream.addr())? {
        Destination::Issue(target, current) => process.issue_record(event, target, current.gpu),
        Destination::Capture(stream) => process.capture_record(event, stream),
    }
}

fn record_with_flags(event: CUevent, stream: CUstream, flags: u32) -> Done {
    match flags {
        0 => record(event, stream),
        EXTERNAL => add_event_node(stream, event, Operation::Record),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn query_event(event: CUevent) -> Done {
    process()?.query_event(event_handle(event))
}

fn synchronize_event(event: CUevent) -> Done {
    process()?.synchronize_event(event_handle(event))
}

fn elapsed(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Done {
    let milliseconds = out(milliseconds)?;
    milliseconds.set(process()?.elapsed(event_handle(start), event_handle(end))?)
}
