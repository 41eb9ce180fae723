//! User objects: creating and releasing them, and the references that graphs own.

use super::graph_handle;
use crate::engine::objects::graph::user::{self, UserObject};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::host_call::HostCall;
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use crate::exports::cuda::out;
use divvy_driver::sys::cuda::{
    CUgraph, CUhostFn, CUresult, CUuserObject, CUuserObject_flags, CUuserObjectRetain_flags,
};
use std::ffi::c_void;
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuUserObjectCreate: (object, data, destroy, references, flags) => create;
    cuUserObjectRelease: (object, count) => release;
    cuGraphRetainUserObject: (graph, object, count, flags) => graph_retain;
    cuGraphReleaseUserObject: (graph, object, count) => graph_release;
} }

fn object_handle(object: CUuserObject) -> Handle<UserObject> {
    Handle::from_value(object.addr())
}

/// References are counted from 1 to INT_MAX.
fn counted(count: u32) -> Done<u32> {
    match count {
        1..=0x7fff_ffff => Ok(count),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn create(
    object: *mut CUuserObject,
    data: *mut c_void,
    destroy: CUhostFn,
    references: u32,
    flags: u32,
) -> Done {
    let (process, object) = (process()?, out(object)?);
    let function = destroy.ok_or(CUresult::INVALID_VALUE)?;
    if flags != CUuserObject_flags::NO_DESTRUCTOR_SYNC.0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let made = UserObject::new(HostCall { function, data }, counted(references)?);
    let made = process.objects().graphs.users.insert(made);
    object.set(without_provenance_mut(made.value()))
}

fn release(object: CUuserObject, count: u32) -> Done {
    let users = &mut process()?.objects().graphs.users;
    user::release(users, object_handle(object), counted(count)?)
}

fn graph_retain(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) -> Done {
    let mut objects = process()?.objects();
    let (graph, object, count) = (graph_handle(graph), object_handle(object), counted(count)?);
    objects.graphs.get(graph)?;
    match flags {
        0 => user::retain(&mut objects.graphs.users, object, count)?,
        flags if flags == CUuserObjectRetain_flags::MOVE.0 => {
            objects
                .graphs
                .users
                .get(object)
                .ok_or(CUresult::INVALID_VALUE)?;
        }
        _ => return Err(CUresult::INVALID_VALUE),
    }
    objects.graphs.get_mut(graph)?.users.add(object, count);
    Ok(())
}

fn graph_release(graph: CUgraph, object: CUuserObject, count: u32) -> Done {
    let mut objects = process()?.objects();
    let (graph, object, count) = (graph_handle(graph), object_handle(object), counted(count)?);
    objects.graphs.get_mut(graph)?.users.take(object, count)?;
    user::release(&mut objects.graphs.users, object, count)
}
