//! External memory as an object: the file that stands for memory of another interface.

use crate::engine::objects::context::Context;
use crate::engine::objects::handles::{Handle, Handles};
use std::fs::File;
use std::sync::Arc;

pub struct Externals(pub Handles<External>);

impl Default for Externals {
    fn default() -> Self {
        Externals(Handles::new(0x7a))
    }
}

pub struct External {
    pub file: Arc<File>,
    pub size: u64,
    pub key: u64,
    pub gpu: usize,
    pub context: Handle<Context>,
}
