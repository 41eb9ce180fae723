//! Texture and surface objects: views of memory for kernels, which do not compute here, so that the view is checked and
//! not kept.
//!
//! They cost no device memory (inferred). What they describe must be there when they are made and may go before them,
//! as with the real driver.

use crate::engine::objects::context::Context;
use crate::engine::objects::handles::{Handle, Handles};

pub struct Texture {
    pub context: Handle<Context>,
}

pub struct Surface {
    pub context: Handle<Context>,
}

pub struct Textures {
    pub textures: Handles<Texture>,
    pub surfaces: Handles<Surface>,
}

impl Default for Textures {
    fn default() -> Self {
        Textures {
            textures: Handles::new(0x78),
            surfaces: Handles::new(0x79),
        }
    }
}
