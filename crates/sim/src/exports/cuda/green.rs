//! Parts of a GPU, and green contexts made from them.
//!
//! Where a resource came from is kept in the bytes of `CUdevResource` that are the driver's own.

use super::context::{from_handle as context_handle, to_handle as to_context};
use super::out;
use crate::engine::objects::green::split::{BadSplit, Rules};
use crate::engine::objects::green::{GreenContext, SmResource};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::{Process, process};
use divvy_driver::sys::cuda::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUcontext, CUdevResource, CUdevResourceDesc,
    CUdevResourceType, CUdevSmResourceGroup_flags as GroupFlags,
    CUdevSmResourceSplitByCount_flags as SplitFlags, CUdevice, CUgreenCtx, CUgreenCtxCreate_flags,
    CUresult, CUstream, CUstream_flags,
};
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuDeviceGetDevResource: (device, resource, kind) => of_device;
    cuCtxGetDevResource: (context, resource, kind) => of_context;
    cuGreenCtxGetDevResource: (green, resource, kind) => of_green;
    cuDevSmResourceSplitByCount: (result, count, input, remainder, flags, least) => split_by_count;
    cuDevSmResourceSplit: (result, count, input, remainder, flags, groups) => split;
    cuDevResourceGenerateDesc: (described, resources, count) => describe;
    cuGreenCtxCreate: (green, described, device, flags) => create;
    cuGreenCtxDestroy: (green) => destroy;
    cuGreenCtxStreamCreate: (stream, green, flags, priority) => create_stream;
    cuCtxFromGreenCtx: (context, green) => context;
} }

fn to_green(green: CUgreenCtx) -> Handle<GreenContext> {
    Handle::from_value(green.addr())
}

fn from_green(green: Handle<GreenContext>) -> CUgreenCtx {
    without_provenance_mut(green.value())
}

/// Multiprocessors as they travel in a `CUdevResource`.
#[derive(Clone, Copy)]
struct Resource {
    part: SmResource,
    rules: Rules,
    /// Which split made it; 0 for what was asked for, which alone can be split.
    split: u64,
}

const MARK: [u8; 8] = *b"divvysim";

impl Resource {
    fn to_c(self) -> CUdevResource {
        let mut resource = CUdevResource {
            type_: CUdevResourceType::SM,
            ..Default::default()
        };
        let own = &mut resource._internal_padding;
        own[..8].copy_from_slice(&MARK);
        own[8..16].copy_from_slice(&self.split.to_ne_bytes());
        own[16..24].copy_from_slice(&(self.part.gpu as u64).to_ne_bytes());
        let sm = [self.part.multiprocessors, self.rules.least, self.rules.step];
        resource._oversize[..3].copy_from_slice(&sm);
        resource
    }

    fn from_c(process: &Process, resource: &CUdevResource) -> Done<Resource> {
        if resource.type_ != CUdevResourceType::SM {
            return Err(CUresult::INVALID_RESOURCE_TYPE);
        }
        let own = &resource._internal_padding;
        let word = |at: usize| {
            own[at..]
                .first_chunk()
                .map_or(0, |word| u64::from_ne_bytes(*word))
        };
        let gpu = word(16) as usize;
        if own[..8] != MARK || process.device(gpu) < 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let multiprocessors = resource._oversize[0];
        if multiprocessors > process.whole(gpu).multiprocessors {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(Resource {
            part: SmResource {
                gpu,
                multiprocessors,
            },
            rules: process.rules(gpu),
            split: word(8),
        })
    }

    fn with(self, multiprocessors: u32, split: u64) -> Resource {
        Resource {
            part: SmResource {
                multiprocessors,
                ..self.part
            },
            split,
            ..self
        }
    }
}

fn refused(bad: BadSplit) -> CUresult {
    match bad {
        BadSplit::Value => CUresult::INVALID_VALUE,
        BadSplit::Configuration => CUresult::INVALID_RESOURCE_CONFIGURATION,
    }
}

/// Work queues are not simulated.
fn write_resource(resource: *mut CUdevResource, kind: CUdevResourceType, part: SmResource) -> Done {
    let resource = out(resource)?;
    if kind != CUdevResourceType::SM {
        return Err(CUresult::INVALID_RESOURCE_TYPE);
    }
    let rules = process()?.rules(part.gpu);
    let split = 0;
    resource.set(Resource { part, rules, split }.to_c())
}

fn of_device(device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType) -> Done {
    let process = process()?;
    write_resource(resource, kind, process.whole(process.gpu(device)?))
}

fn of_context(context: CUcontext, resource: *mut CUdevResource, kind: CUdevResourceType) -> Done {
    write_resource(resource, kind, process()?.part_of(to_context(context))?)
}

fn of_green(green: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType) -> Done {
    let part = process()?.objects().greens.green(to_green(green))?.part;
    write_resource(resource, kind, part)
}

/// What there is to split.
///
/// # Safety
/// `input` is null or the caller's structure.
unsafe fn splittable(process: &Process, input: *const CUdevResource) -> Done<Resource> {
    // SAFETY: by contract.
    let input = unsafe { input.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    let whole = Resource::from_c(process, input)?;
    match whole.split {
        0 => Ok(whole),
        _ => Err(CUresult::INVALID_RESOURCE_CONFIGURATION),
    }
}

/// What is left over; nothing is an invalid resource.
fn tell_rest(place: *mut CUdevResource, rest: Resource) {
    let rest = match rest.part.multiprocessors {
        0 => CUdevResource::default(),
        _ => rest.to_c(),
    };
    super::set_if_wanted(place, rest);
}

unsafe fn split_by_count(
    result: *mut CUdevResource,
    count: *mut u32,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: u32,
    least: u32,
) -> Done {
    let process = process()?;
    out(count)?;
    // SAFETY: the caller's structure.
    let whole = unsafe { splittable(process, input) }?;
    let rules = match SplitFlags(flags) {
        SplitFlags(0) => whole.rules,
        SplitFlags::IGNORE_SM_COSCHEDULING => whole.rules.unscheduled(),
        SplitFlags::MAX_POTENTIAL_CLUSTER_SIZE if whole.rules.step >= 8 => {
            whole.rules.for_clusters()
        }
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let have = whole.part.multiprocessors;
    let (size, groups) = rules.by_count(have, least).map_err(refused)?;
    if result.is_null() {
        // SAFETY: not null; the caller's place.
        unsafe { count.write(groups) };
        return Ok(());
    }
    // SAFETY: as above.
    let groups = groups.min(unsafe { count.read() });
    let split = process.next_id();
    for at in 0..groups as usize {
        // SAFETY: the caller's array has as many places as `count` said.
        unsafe { result.add(at).write(whole.with(size, split).to_c()) };
    }
    // SAFETY: as above.
    unsafe { count.write(groups) };
    tell_rest(remainder, whole.with(have - groups * size, split));
    Ok(())
}

unsafe fn split(
    result: *mut CUdevResource,
    count: u32,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: u32,
    groups: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS,
) -> Done {
    let process = process()?;
    out(groups)?;
    // SAFETY: the caller's structure.
    let whole = unsafe { splittable(process, input) }?;
    if flags != 0 || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let split = process.next_id();
    let mut left = whole.part.multiprocessors;
    let mut taken = Vec::new();
    for at in 0..count as usize {
        // SAFETY: the caller's array of `count` groups.
        let group = unsafe { &*groups.add(at) };
        let backfill = group.flags == GroupFlags::BACKFILL.0;
        if group.flags != 0 && !backfill {
            // Localities are not simulated.
            return Err(CUresult::NOT_SUPPORTED);
        }
        let together = group.coscheduledSmCount;
        let size = whole
            .rules
            .take(left, group.smCount, together, backfill)
            .map_err(refused)?;
        if size == 0 && !result.is_null() {
            return Err(CUresult::INVALID_RESOURCE_CONFIGURATION);
        }
        left -= size;
        taken.push(size);
    }
    for (at, size) in taken.into_iter().enumerate() {
        // SAFETY: as above; the result has as many places.
        unsafe {
            (*groups.add(at)).smCount = size;
            if !result.is_null() {
                result.add(at).write(whole.with(size, split).to_c());
            }
        }
    }
    tell_rest(remainder, whole.with(left, split));
    Ok(())
}

/// Several parts must come from one split.
unsafe fn describe(
    described: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    count: u32,
) -> Done {
    let (process, described) = (process()?, out(described)?);
    out(resources)?;
    let mut whole: Option<Resource> = None;
    for at in 0..count as usize {
        // SAFETY: the caller's array of `count` resources.
        let next = Resource::from_c(process, unsafe { &*resources.add(at) })?;
        let more = next.part.multiprocessors;
        whole = match whole {
            None => Some(next),
            Some(before) => {
                let fits = before.part.gpu == next.part.gpu
                    && before.split == next.split
                    && next.split != 0;
                let together = before.part.multiprocessors + more;
                if !fits || together > process.whole(next.part.gpu).multiprocessors {
                    return Err(CUresult::INVALID_RESOURCE_CONFIGURATION);
                }
                Some(before.with(together, before.split))
            }
        };
    }
    let part = whole.ok_or(CUresult::INVALID_VALUE)?.part;
    let made = process.objects().greens.describe(part);
    described.set(without_provenance_mut(made.value()))
}

fn create(
    green: *mut CUgreenCtx,
    described: CUdevResourceDesc,
    device: CUdevice,
    flags: u32,
) -> Done {
    let (process, green) = (process()?, out(green)?);
    let gpu = process.gpu(device)?;
    if flags & !CUgreenCtxCreate_flags::DEFAULT_STREAM.0 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let described = Handle::from_value(described.addr());
    green.set(from_green(process.create_green(described, gpu)?))
}

fn destroy(green: CUgreenCtx) -> Done {
    process()?.destroy_green(to_green(green))
}

fn create_stream(stream: *mut CUstream, green: CUgreenCtx, flags: u32, priority: i32) -> Done {
    let (process, stream) = (process()?, out(stream)?);
    if flags != CUstream_flags::NON_BLOCKING.0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let made = process.create_green_stream(to_green(green), priority.clamp(-5, 0))?;
    stream.set(without_provenance_mut(made.value()))
}

fn context(place: *mut CUcontext, green: CUgreenCtx) -> Done {
    let place = out(place)?;
    let context = process()?.objects().greens.green(to_green(green))?.context;
    place.set(context_handle(context))
}
