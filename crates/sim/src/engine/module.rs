//! The module room: loading and unloading modules and libraries, and finding the functions and variables in them.
//!
//! It may use `memory` (variables take device memory), `process` and `objects`. `context` unloads the modules of a
//! context.
//!
//! May use: `objects`, `process`.

use crate::engine::objects::Objects;
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::image::{Image, Kernel};
use crate::engine::objects::memory::AllocationKind;
use crate::engine::objects::module::{
    CodeOrigin, Function, LaunchState, Library, Module, Variable,
};
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};
use std::ffi::CString;
use std::sync::Arc;

impl Process {
    /// Loads code into the current context; its variables take device memory.
    pub fn load_module(&self, image: Image) -> Done<Handle<Module>> {
        self.check_unsafe()?;
        let mut objects = self.objects();
        let current = self.current(&objects)?;
        self.load_into(&mut objects, current, Arc::new(image))
    }

    fn load_into(
        &self,
        objects: &mut Objects,
        current: Current,
        image: Arc<Image>,
    ) -> Done<Handle<Module>> {
        let mut variables = Vec::new();
        for global in &image.globals {
            let made = self.allocate_in(
                objects,
                Some(current.context),
                current.gpu,
                global.bytes,
                AllocationKind::Variable,
            );
            let address = made.inspect_err(|_| self.free_variables(objects, &variables))?;
            variables.push(Variable {
                name: global.name.clone(),
                address,
                bytes: global.bytes,
            });
        }
        Ok(objects.modules.insert(Module {
            context: current.context,
            image,
            variables,
        }))
    }

    fn free_variables(&self, objects: &mut Objects, variables: &[Variable]) {
        for variable in variables {
            self.free_allocation(objects, variable.address);
        }
    }

    pub fn unload_module(&self, handle: Handle<Module>) -> Done {
        let mut objects = self.objects();
        self.end_module(&mut objects, handle)
            .ok_or(CUresult::INVALID_HANDLE)
    }

    fn end_module(&self, objects: &mut Objects, handle: Handle<Module>) -> Option<()> {
        let module = objects.modules.remove(handle)?;
        self.free_variables(objects, &module.variables);
        end_functions(objects, CodeOrigin::Module(handle));
        Some(())
    }

    pub fn unload_modules_of(&self, objects: &mut Objects, context: Handle<Context>) {
        for module in objects.modules.find(|module| module.context == context) {
            self.end_module(objects, module);
        }
    }

    pub fn load_library(&self, image: Image) -> Handle<Library> {
        self.objects().libraries.insert(Library {
            image: Arc::new(image),
            modules: Vec::new(),
        })
    }

    pub fn unload_library(&self, handle: Handle<Library>) -> Done {
        let mut objects = self.objects();
        let library = objects
            .libraries
            .remove(handle)
            .ok_or(CUresult::INVALID_HANDLE)?;
        for module in library.modules {
            self.end_module(&mut objects, module);
        }
        end_functions(&mut objects, CodeOrigin::Library(handle));
        Ok(())
    }

    /// The library's module in the current context.
    pub fn module_of(&self, handle: Handle<Library>) -> Done<Handle<Module>> {
        let mut objects = self.objects();
        let current = self.current(&objects)?;
        let library = objects
            .libraries
            .get(handle)
            .ok_or(CUresult::INVALID_HANDLE)?;
        let here = |module: &&Handle<Module>| {
            objects
                .modules
                .get(**module)
                .is_some_and(|module| module.context == current.context)
        };
        if let Some(module) = library.modules.iter().find(here) {
            return Ok(*module);
        }
        let image = library.image.clone();
        let module = self.load_into(&mut objects, current, image)?;
        if let Some(library) = objects.libraries.get_mut(handle) {
            library.modules.push(module);
        }
        Ok(module)
    }

    /// A function by name; asked twice, the same handle.
    pub fn function(&self, home: CodeOrigin, name: &str) -> Done<Handle<Function>> {
        let mut objects = self.objects();
        let image = image_of(&objects, home)?;
        let kernel = image.kernel(name).ok_or(CUresult::NOT_FOUND)?;
        Ok(function_for(&mut objects, home, kernel))
    }

    pub fn variable(&self, handle: Handle<Module>, name: &str) -> Done<(CUdeviceptr, u64)> {
        let objects = self.objects();
        let module = objects
            .modules
            .get(handle)
            .ok_or(CUresult::INVALID_HANDLE)?;
        let variable = module
            .variables
            .iter()
            .find(|variable| variable.name == name)
            .ok_or(CUresult::NOT_FOUND)?;
        Ok((variable.address, variable.bytes))
    }
}

fn image_of(objects: &Objects, home: CodeOrigin) -> Done<Arc<Image>> {
    let image = match home {
        CodeOrigin::Module(module) => objects
            .modules
            .get(module)
            .map(|module| module.image.clone()),
        CodeOrigin::Library(library) => objects
            .libraries
            .get(library)
            .map(|library| library.image.clone()),
    };
    image.ok_or(CUresult::INVALID_HANDLE)
}

fn function_for(objects: &mut Objects, home: CodeOrigin, kernel: Kernel) -> Handle<Function> {
    let known = objects
        .functions
        .iter()
        .find(|(_, function)| function.home == home && function.kernel.name == kernel.name)
        .map(|(handle, _)| handle);
    known.unwrap_or_else(|| {
        let c_name = CString::new(kernel.name.as_str()).unwrap_or_default();
        objects.functions.insert(Function {
            home,
            kernel,
            c_name,
            dynamic_shared: 0,
            state: LaunchState::default(),
        })
    })
}

fn end_functions(objects: &mut Objects, home: CodeOrigin) {
    for function in objects.functions.find(|function| function.home == home) {
        objects.functions.remove(function);
    }
}
