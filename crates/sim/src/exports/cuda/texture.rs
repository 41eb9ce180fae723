//! Texture and surface objects.

use super::out;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::texture::{Surface, Texture};
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUresult, CUsurfObject,
    CUtexObject,
};

exports! { cuda {
    cuTexObjectCreate: (object, resource, texture, view) => create;
    cuTexObjectDestroy: (object) => destroy;
    cuSurfObjectCreate: (object, resource) => create_surface;
    cuSurfObjectDestroy: (object) => destroy_surface;
} }

fn to_texture(object: CUtexObject) -> Handle<Texture> {
    Handle::from_value(object as usize)
}

fn to_surface(object: CUsurfObject) -> Handle<Surface> {
    Handle::from_value(object as usize)
}

unsafe fn create(
    object: *mut CUtexObject,
    resource: *const CUDA_RESOURCE_DESC,
    texture: *const CUDA_TEXTURE_DESC,
    view: *const CUDA_RESOURCE_VIEW_DESC,
) -> Done {
    let (process, object) = (process()?, out(object)?);
    // SAFETY: null or the caller's structures.
    let (resource, texture, view) = unsafe { (resource.as_ref(), texture.as_ref(), view.as_ref()) };
    let resource = resource.ok_or(CUresult::INVALID_VALUE)?;
    let texture = texture.ok_or(CUresult::INVALID_VALUE)?;
    let made = process.create_texture(resource, texture, view.is_some())?;
    object.set(made.value() as CUtexObject)
}

fn destroy(object: CUtexObject) -> Done {
    let mut objects = process()?.objects();
    let gone = objects.textures.textures.remove(to_texture(object));
    gone.map(drop).ok_or(CUresult::INVALID_VALUE)
}

unsafe fn create_surface(object: *mut CUsurfObject, resource: *const CUDA_RESOURCE_DESC) -> Done {
    let (process, object) = (process()?, out(object)?);
    // SAFETY: null or the caller's structure.
    let resource = unsafe { resource.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    object.set(process.create_surface(resource)?.value() as CUsurfObject)
}

fn destroy_surface(object: CUsurfObject) -> Done {
    let mut objects = process()?.objects();
    let gone = objects.textures.surfaces.remove(to_surface(object));
    gone.map(drop).ok_or(CUresult::INVALID_VALUE)
}
