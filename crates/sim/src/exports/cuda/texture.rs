//! Texture and surface objects.

use super::out;
use crate::engine::array::plain_bytes;
use crate::engine::handles::Handle;
use crate::engine::process::{Done, process};
use crate::engine::texture::{LINEAR_WIDTH, Surface, Texture};
use divvy_driver::sys::cuda::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray_format, CUdevice,
    CUresult, CUsurfObject, CUtexObject,
};

exports! { cuda {
    cuTexObjectCreate: (object, resource, texture, view) => create;
    cuTexObjectDestroy: (object) => destroy;
    cuTexObjectGetResourceDesc: (resource, object) => resource;
    cuTexObjectGetTextureDesc: (texture, object) => texture;
    cuTexObjectGetResourceViewDesc: (view, object) => view;
    cuSurfObjectCreate: (object, resource) => create_surface;
    cuSurfObjectDestroy: (object) => destroy_surface;
    cuSurfObjectGetResourceDesc: (resource, object) => resource_of_surface;
    cuDeviceGetTexture1DLinearMaxWidth: (width, format, channels, device) => linear_width;
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
    let made = process.create_texture(resource, texture, view.copied())?;
    object.set(made.value() as CUtexObject)
}

fn destroy(object: CUtexObject) -> Done {
    let mut objects = process()?.objects();
    let gone = objects.textures.textures.remove(to_texture(object));
    gone.map(drop).ok_or(CUresult::INVALID_VALUE)
}

fn described<T>(object: CUtexObject, of: impl FnOnce(&Texture) -> Option<T>) -> Done<T> {
    let objects = process()?.objects();
    let texture = objects.textures.textures.get(to_texture(object));
    texture.and_then(of).ok_or(CUresult::INVALID_VALUE)
}

fn resource(place: *mut CUDA_RESOURCE_DESC, object: CUtexObject) -> Done {
    let place = out(place)?;
    place.set(described(object, |texture| Some(texture.resource))?)
}

fn texture(place: *mut CUDA_TEXTURE_DESC, object: CUtexObject) -> Done {
    let place = out(place)?;
    place.set(described(object, |texture| Some(texture.texture))?)
}

fn view(place: *mut CUDA_RESOURCE_VIEW_DESC, object: CUtexObject) -> Done {
    let place = out(place)?;
    place.set(described(object, |texture| texture.view)?)
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

fn resource_of_surface(place: *mut CUDA_RESOURCE_DESC, object: CUsurfObject) -> Done {
    let place = out(place)?;
    let objects = process()?.objects();
    let surface = objects.textures.surfaces.get(to_surface(object));
    place.set(surface.ok_or(CUresult::INVALID_VALUE)?.resource)
}

fn linear_width(
    width: *mut usize,
    format: CUarray_format,
    channels: u32,
    device: CUdevice,
) -> Done {
    let width = out(width)?;
    process()?.gpu(device)?;
    plain_bytes(format, channels).ok_or(CUresult::INVALID_VALUE)?;
    width.set(LINEAR_WIDTH as usize)
}
