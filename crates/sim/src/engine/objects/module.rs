//! Modules, libraries and functions as objects.

use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::image::{BadImage, Image, Kernel};
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};
use std::ffi::CString;
use std::sync::Arc;

/// Code loaded into one context.
pub struct Module {
    pub context: Handle<Context>,
    pub image: Arc<Image>,
    pub variables: Vec<Variable>,
}

/// Code loaded for all contexts. Each context gets a module of it when it first needs one.
pub struct Library {
    pub image: Arc<Image>,
    pub modules: Vec<Handle<Module>>,
}

pub struct Variable {
    pub name: String,
    pub address: CUdeviceptr,
    pub bytes: u64,
}

/// Where a function came from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CodeOrigin {
    Module(Handle<Module>),
    Library(Handle<Library>),
}

/// A CUfunction or a CUkernel; both are launched the same way.
pub struct Function {
    pub home: CodeOrigin,
    pub kernel: Kernel,
    /// The name as a C string; lives as long as the function.
    pub c_name: CString,
    /// The largest dynamic shared memory that was asked for.
    pub dynamic_shared: i32,
    pub state: LaunchState,
}

/// What the launches of CUDA 3 and before take from the function.
#[derive(Clone)]
pub struct LaunchState {
    pub block: [u32; 3],
    pub shared: u32,
    pub parameters: Vec<u8>,
}

impl Default for LaunchState {
    fn default() -> Self {
        LaunchState {
            block: [1; 3],
            shared: 0,
            parameters: Vec::new(),
        }
    }
}

impl From<BadImage> for CUresult {
    fn from(bad: BadImage) -> CUresult {
        match bad {
            BadImage::Format => CUresult::INVALID_IMAGE,
            BadImage::Ptx => CUresult::INVALID_PTX,
        }
    }
}
