//! Launches: what a kernel is given, whether it may run, and running the few that do something.

use super::context::Context;
use super::handles::Handle;
use super::kernel::{self, Geometry, Parameters, Reader};
use super::module::{CodeOrigin, Function};
use super::process::{Done, Objects, Process};
use super::time::Work;
use divvy_driver::sys::cuda::CUresult;

/// A function and how many of its threads run.
#[derive(Clone, Copy)]
pub struct Shape {
    pub function: Handle<Function>,
    pub geometry: Geometry,
    /// Dynamic shared memory per block, in bytes.
    pub shared: u32,
    /// All blocks must be on the GPU at once.
    pub cooperative: bool,
}

/// A launch that is kept for later, as a node of a graph: it owns its arguments.
pub struct Launch {
    pub shape: Shape,
    pub context: Handle<Context>,
    pub arguments: Arguments,
}

/// Copies of a launch's arguments.
#[derive(Clone)]
pub struct Arguments {
    buffer: Box<[u64]>,
    bytes: usize,
}

impl Arguments {
    /// Copies the arguments. Where the code does not tell its parameters, pointers to them say nothing and are not kept.
    ///
    /// # Safety
    /// The parameters are those of a kernel with this layout of `(offset, bytes)`.
    pub unsafe fn copy_of(parameters: &Parameters, layout: Option<&[(usize, usize)]>) -> Self {
        let layout = layout.unwrap_or_default();
        let end = layout.iter().map(|(offset, size)| offset + size).max();
        let bytes = match parameters {
            Parameters::Pointers(_) => end.unwrap_or(0),
            Parameters::Buffer(_, length) => *length,
            Parameters::None => 0,
        };
        let mut buffer = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let base = buffer.as_mut_ptr().cast::<u8>();
        match parameters {
            Parameters::Pointers(list) => {
                for (index, (offset, size)) in layout.iter().enumerate() {
                    // SAFETY: the caller vouches for a pointer to `size` bytes in each place; the buffer holds the whole layout.
                    unsafe {
                        let from = (*list.add(index)).cast::<u8>();
                        if !from.is_null() {
                            std::ptr::copy_nonoverlapping(from, base.add(*offset), *size);
                        }
                    }
                }
            }
            // SAFETY: the caller vouches for `length` bytes; the buffer has as many.
            Parameters::Buffer(from, length) if !from.is_null() => unsafe {
                std::ptr::copy_nonoverlapping(*from, base, *length)
            },
            Parameters::Buffer(..) | Parameters::None => {}
        }
        Arguments { buffer, bytes }
    }

    fn reader(&self) -> Reader {
        let start = self.buffer.as_ptr().cast();
        Reader::new(Parameters::Buffer(start, self.bytes))
    }
}

/// Where a function's parameters lie: from its code, or, of a kernel the simulator carries out, from what it is.
pub fn layout(function: &Function) -> Option<Vec<(usize, usize)>> {
    let told = function.kernel.parameters.clone();
    told.or_else(|| kernel::layout(&function.kernel.name))
}

/// The context a function belongs to; None for a library's, which belongs to whichever it is launched in.
pub fn home(objects: &Objects, function: &Function) -> Option<Handle<Context>> {
    match function.home {
        CodeOrigin::Module(module) => objects.modules.get(module).map(|module| module.context),
        CodeOrigin::Library(_) => None,
    }
}

impl Process {
    /// How long the launch takes, if it can be made.
    pub fn check_launch(&self, objects: &Objects, gpu: usize, shape: &Shape) -> Done<Work> {
        let function = objects.functions.get(shape.function);
        let function = function.ok_or(CUresult::INVALID_HANDLE)?;
        if !shape.geometry.is_valid() {
            return Err(CUresult::INVALID_VALUE);
        }
        let model = self.model(gpu);
        if shape.cooperative {
            let threads = shape.geometry.block.iter().product::<u32>();
            let at_once = kernel::blocks_at_once(model, threads, shape.shared as usize);
            let room = u64::from(at_once) * model.multiprocessors as u64;
            if shape.geometry.blocks() > room {
                return Err(CUresult::COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        let name = &function.kernel.name;
        let config = &self.machine.config;
        Ok(kernel::duration(config, model, name, &shape.geometry))
    }

    /// Carries a known kernel out. As on a GPU a wild one breaks its context, and its launch succeeds.
    ///
    /// # Safety
    /// The parameters are those of the function.
    pub unsafe fn run(
        &self,
        shape: &Shape,
        context: Handle<Context>,
        parameters: &mut Reader,
    ) -> Done {
        let mut objects = self.objects();
        let function = objects.functions.get(shape.function);
        let Some(effect) = function.and_then(|function| kernel::effect(&function.kernel.name))
        else {
            return Ok(());
        };
        // SAFETY: by contract.
        match unsafe { effect(self, &objects, &shape.geometry, parameters) } {
            Err(CUresult::ILLEGAL_ADDRESS) => {
                break_context(&mut objects, context);
                Ok(())
            }
            other => other,
        }
    }

    /// The same for a launch that was kept.
    pub fn run_kept(&self, launch: &Launch, context: Handle<Context>) {
        // SAFETY: the arguments were copied by the function's own layout. Where there are too few, the effect finds out and nothing happens.
        let _ = unsafe { self.run(&launch.shape, context, &mut launch.arguments.reader()) };
    }
}

/// Every later call in this context fails.
pub fn break_context(objects: &mut Objects, context: Handle<Context>) {
    if let Some(context) = objects.contexts.get_mut(context) {
        context.broken = Some(CUresult::ILLEGAL_ADDRESS);
    }
}
