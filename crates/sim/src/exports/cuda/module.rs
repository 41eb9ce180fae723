//! Modules, libraries, kernels.

use super::function::{parameter, parameter_count};
use super::{name, out, set_if_wanted};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::image::Image;
use crate::engine::objects::module::{CodeOrigin, Function, Library, Module};
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule, CUmoduleLoadingMode, CUresult,
};
use std::ffi::{c_char, c_void};
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuModuleLoad: (module, file) => { set_module(module, || read_file(file)) };
    cuModuleLoadData: (module, image) => { set_module(module, || read_data(image)) };
    cuModuleLoadDataEx: (module, image, count, options, values) => { set_module(module, || read_data(image)) };
    cuModuleLoadFatBinary: (module, image) => { set_module(module, || read_data(image)) };
    cuModuleUnload: (module) => unload;
    cuModuleGetLoadingMode: (mode) => loading_mode;
    cuModuleGetFunction: (function, module, text) => function;
    cuModuleGetGlobal_v2: (address, size, module, text) => global;
    cuLibraryLoadData: (library, code, jit_options, jit_values, jit_count, options, values, count) => { set_library(library, || read_data(code)) };
    cuLibraryLoadFromFile: (library, file, jit_options, jit_values, jit_count, options, values, count) => { set_library(library, || read_file(file)) };
    cuLibraryUnload: (library) => unload_library;
    cuLibraryGetKernel: (kernel, library, text) => kernel;
    cuLibraryGetModule: (module, library) => module_of;
    cuLibraryGetGlobal: (address, size, library, text) => library_global;
    cuKernelGetFunction: (function, kernel) => kernel_function;
    cuKernelGetLibrary: (library, kernel) => kernel_library;
    cuKernelGetName: (text, kernel) => kernel_name;
    cuKernelGetParamInfo: (kernel, index, offset, size) => kernel_parameter;
    cuKernelGetParamCount: (kernel, count) => kernel_parameter_count;
} }

pub(super) fn function_handle(function: CUfunction) -> Handle<Function> {
    Handle::from_value(function.addr())
}

fn module_handle(module: CUmodule) -> Handle<Module> {
    Handle::from_value(module.addr())
}

fn library_handle(library: CUlibrary) -> Handle<Library> {
    Handle::from_value(library.addr())
}

fn read_file(file: *const c_char) -> Done<Image> {
    let bytes = std::fs::read(name(file)?).map_err(|_| CUresult::FILE_NOT_FOUND)?;
    Ok(Image::from_bytes(&bytes)?)
}

unsafe fn read_data(image: *const c_void) -> Done<Image> {
    out(image.cast_mut())?;
    // SAFETY: the caller's image.
    Ok(unsafe { Image::read(image.cast()) }?)
}

fn set_module(module: *mut CUmodule, read: impl FnOnce() -> Done<Image>) -> Done {
    let (process, image) = (process()?, read()?);
    let module = out(module)?;
    module.set(without_provenance_mut(process.load_module(image)?.value()))
}

fn unload(module: CUmodule) -> Done {
    process()?.unload_module(module_handle(module))
}

fn loading_mode(mode: *mut CUmoduleLoadingMode) -> Done {
    out(mode)?.set(CUmoduleLoadingMode::LAZY_LOADING)
}

fn function(function: *mut CUfunction, module: CUmodule, text: *const c_char) -> Done {
    let function = out(function)?;
    function.set(without_provenance_mut(
        process()?
            .function(CodeOrigin::Module(module_handle(module)), name(text)?)?
            .value(),
    ))
}

fn global(
    address: *mut CUdeviceptr,
    size: *mut usize,
    module: CUmodule,
    text: *const c_char,
) -> Done {
    let (base, bytes) = process()?.variable(module_handle(module), name(text)?)?;
    set_if_wanted(address, base);
    set_if_wanted(size, bytes as usize);
    Ok(())
}

fn set_library(library: *mut CUlibrary, read: impl FnOnce() -> Done<Image>) -> Done {
    let (process, image) = (process()?, read()?);
    let library = out(library)?;
    library.set(without_provenance_mut(process.load_library(image).value()))
}

fn unload_library(library: CUlibrary) -> Done {
    process()?.unload_library(library_handle(library))
}

fn kernel(kernel: *mut CUkernel, library: CUlibrary, text: *const c_char) -> Done {
    let kernel = out(kernel)?;
    kernel.set(without_provenance_mut(
        process()?
            .function(CodeOrigin::Library(library_handle(library)), name(text)?)?
            .value(),
    ))
}

fn module_of(module: *mut CUmodule, library: CUlibrary) -> Done {
    let module = out(module)?;
    module.set(without_provenance_mut(
        process()?.module_of(library_handle(library))?.value(),
    ))
}

fn library_global(
    address: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    text: *const c_char,
) -> Done {
    let process = process()?;
    let module = process.module_of(library_handle(library))?;
    global(address, size, without_provenance_mut(module.value()), text)
}

fn home_of(kernel: CUkernel) -> Done<CodeOrigin> {
    let objects = process()?.objects();
    objects
        .functions
        .get(function_handle(kernel.cast()))
        .map(|function| function.home)
        .ok_or(CUresult::INVALID_HANDLE)
}

/// The context-dependent function of a kernel: the same handle, after making sure that the current context has the
/// code.
fn kernel_function(function: *mut CUfunction, kernel: CUkernel) -> Done {
    let function = out(function)?;
    if let CodeOrigin::Library(library) = home_of(kernel)? {
        process()?.module_of(library)?;
    }
    function.set(kernel.cast())
}

fn kernel_library(library: *mut CUlibrary, kernel: CUkernel) -> Done {
    match home_of(kernel)? {
        CodeOrigin::Library(found) => out(library)?.set(without_provenance_mut(found.value())),
        CodeOrigin::Module(_) => Err(CUresult::INVALID_HANDLE),
    }
}

fn kernel_name(text: *mut *const c_char, kernel: CUkernel) -> Done {
    let objects = process()?.objects();
    let found = objects
        .functions
        .get(function_handle(kernel.cast()))
        .ok_or(CUresult::INVALID_HANDLE)?;
    out(text)?.set(found.c_name.as_ptr())
}

fn kernel_parameter(kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize) -> Done {
    parameter(kernel.cast(), index, offset, size)
}

fn kernel_parameter_count(kernel: CUkernel, count: *mut usize) -> Done {
    parameter_count(kernel.cast(), count)
}
