//! Creating texture and surface objects: checks that what they view is there.

use crate::engine::objects::Objects;
use crate::engine::objects::array::format::plain_bytes;
use crate::engine::objects::array::{Array, Mipmap};
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::texture::{Surface, Texture, Textures};
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{
    CUDA_ARRAY3D_SURFACE_LDST, CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC, CUresourceLinear,
    CUresourcePitch2D, CUresourcetype, CUresult,
};

/// Alignment of linear memory read as a texture, and of the rows of pitched memory: what the device attributes say.
/// `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT` on all current GPUs (CUDA).
pub const ALIGNMENT: u64 = 512;

/// `CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT` on all current GPUs (CUDA).
pub const PITCH_ALIGNMENT: u64 = 32;

/// The most elements of a texture of linear memory; CUDA programming guide, compute capability 7.0 and later.
pub const LINEAR_WIDTH: u64 = 1 << 28;

/// The same of pitched memory: width, height in elements, pitch in bytes.
pub const PITCHED: [u64; 3] = [131_072, 65_000, 2_097_120];

/// The member of the union that the resource's type names.
enum Resource {
    Array(Handle<Array>),
    Mipmap(Handle<Mipmap>),
    Linear(CUresourceLinear),
    Pitched(CUresourcePitch2D),
}

impl Resource {
    fn of(described: &CUDA_RESOURCE_DESC) -> Done<Resource> {
        let handle = described.res[0] as usize;
        let union = &raw const described.res;
        // SAFETY: the union is as large as its largest member and as aligned, and any bits are a value of these
        // integers.
        let (linear, pitched) = unsafe {
            (
                union.cast::<CUresourceLinear>().read(),
                union.cast::<CUresourcePitch2D>().read(),
            )
        };
        match described.resType {
            _ if described.flags != 0 => Err(CUresult::INVALID_VALUE),
            CUresourcetype::ARRAY => Ok(Resource::Array(Handle::from_value(handle))),
            CUresourcetype::MIPMAPPED_ARRAY => Ok(Resource::Mipmap(Handle::from_value(handle))),
            CUresourcetype::LINEAR => Ok(Resource::Linear(linear)),
            CUresourcetype::PITCH2D => Ok(Resource::Pitched(pitched)),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

fn invalid<E>(_: E) -> CUresult {
    CUresult::INVALID_VALUE
}

impl Process {
    pub fn create_texture(
        &self,
        resource: &CUDA_RESOURCE_DESC,
        texture: &CUDA_TEXTURE_DESC,
        has_view: bool,
    ) -> Done<Handle<Texture>> {
        let mut objects = self.objects();
        let context = self.current(&objects)?.context;
        let modes = texture.addressMode.iter().all(|mode| mode.0 <= 3);
        let filters = texture.filterMode.0 <= 1 && texture.mipmapFilterMode.0 <= 1;
        if !modes || !filters {
            return Err(CUresult::INVALID_VALUE);
        }
        match Resource::of(resource)? {
            Resource::Array(array) => drop(objects.arrays.array(array).map_err(invalid)?),
            Resource::Mipmap(mipmap) => drop(objects.arrays.mipmap(mipmap).map_err(invalid)?),
            // Views are of arrays.
            _ if has_view => return Err(CUresult::INVALID_VALUE),
            Resource::Linear(linear) => self.check_linear(&objects, &linear)?,
            Resource::Pitched(pitched) => self.check_pitched(&objects, &pitched)?,
        }
        Ok(objects.textures.textures.insert(Texture { context }))
    }

    fn check_linear(&self, objects: &Objects, linear: &CUresourceLinear) -> Done {
        let element = plain_bytes(linear.format, linear.numChannels);
        let element = element.ok_or(CUresult::INVALID_VALUE)?;
        let size = linear.sizeInBytes as u64;
        let fits = (1..=LINEAR_WIDTH).contains(&(size / element));
        if !fits || !linear.devPtr.is_multiple_of(ALIGNMENT) {
            return Err(CUresult::INVALID_VALUE);
        }
        self.check_range(objects, linear.devPtr, size)
    }

    fn check_pitched(&self, objects: &Objects, pitched: &CUresourcePitch2D) -> Done {
        let element = plain_bytes(pitched.format, pitched.numChannels);
        let element = element.ok_or(CUresult::INVALID_VALUE)?;
        let [width, height, pitch] =
            [pitched.width, pitched.height, pitched.pitchInBytes].map(|size| size as u64);
        let fits = (1..=PITCHED[0]).contains(&width)
            && (1..=PITCHED[1]).contains(&height)
            && pitch <= PITCHED[2]
            && width * element <= pitch;
        let aligned =
            pitch.is_multiple_of(PITCH_ALIGNMENT) && pitched.devPtr.is_multiple_of(ALIGNMENT);
        if !fits || !aligned {
            return Err(CUresult::INVALID_VALUE);
        }
        self.check_range(
            objects,
            pitched.devPtr,
            pitch * (height - 1) + width * element,
        )
    }

    pub fn create_surface(&self, resource: &CUDA_RESOURCE_DESC) -> Done<Handle<Surface>> {
        let mut objects = self.objects();
        let context = self.current(&objects)?.context;
        let Resource::Array(array) = Resource::of(resource)? else {
            return Err(CUresult::INVALID_VALUE);
        };
        let array = objects.arrays.array(array).map_err(invalid)?;
        if array.described.Flags & CUDA_ARRAY3D_SURFACE_LDST == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(objects.textures.surfaces.insert(Surface { context }))
    }

    pub fn destroy_textures_of(&self, objects: &mut Objects, context: Handle<Context>) {
        let Textures { textures, surfaces } = &mut objects.textures;
        for texture in textures.find(|texture| texture.context == context) {
            textures.remove(texture);
        }
        for surface in surfaces.find(|surface| surface.context == context) {
            surfaces.remove(surface);
        }
    }
}
