//! One GPU: calls by name, and what NVML says meanwhile.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use divvy_driver::load::{CUDA, Library};
use divvy_driver::nvml::{Device, Nvml};
use divvy_driver::sys::cuda::*;
use divvy_driver::{Error, Uuid};
use serde_json::{Value, json};

use crate::Answer;

pub type Failure = Box<dyn std::error::Error>;

/// Calls a function of the driver by its name; anything but success is an error that says which.
macro_rules! cu {
    ($gpu:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let function: divvy_driver::sys::cuda::pfn::$name = $crate::gpu::cu!($gpu, $name);
        // SAFETY: the declaration is the header's, and each argument is what it asks for.
        let code = unsafe { function($($argument),*) };
        $crate::gpu::check(stringify!($name), code)
    }};
    ($gpu:expr, $name:ident) => {{
        let address = $gpu.address(concat!(stringify!($name), "\0"))?;
        // SAFETY: an exported function of that name has that signature (tests/headers.rs), and its library stays open.
        unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, divvy_driver::sys::cuda::pfn::$name>(address)
        }
    }};
}
pub(crate) use cu;

/// This driver, or this GPU, or this moment does not allow to find it out.
#[derive(Debug)]
pub struct NotAvailable(pub String);

impl fmt::Display for NotAvailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotAvailable {}

pub fn check(function: &str, code: CUresult) -> Result<(), Failure> {
    match code {
        CUresult::SUCCESS => Ok(()),
        CUresult::NOT_SUPPORTED => Err(NotAvailable(format!("{function}: {code:?}")).into()),
        _ => Err(format!("{function}: {code:?}").into()),
    }
}

/// The first GPU that CUDA shows.
pub struct Gpu {
    library: Library,
    nvml: Nvml,
    pub device: CUdevice,
    pub uuid: Uuid,
}

/// What is in use at a moment, in bytes.
#[derive(Clone, Copy)]
pub struct Used {
    /// On the whole GPU, by NVML.
    pub device: i64,
    /// By this process, by NVML; `None` where it is not listed.
    pub process: Option<i64>,
}

impl Gpu {
    /// Initialises the driver; makes no context.
    pub fn open() -> Result<Self, Failure> {
        let library = Library::open(None, CUDA)?;
        let nvml = Nvml::load(None)?;
        let mut gpu = Self {
            library,
            nvml,
            device: 0,
            uuid: Uuid([0; 16]),
        };
        cu!(gpu, cuInit(0))?;
        cu!(gpu, cuDeviceGet(&raw mut gpu.device, 0))?;
        let mut uuid = CUuuid::default();
        cu!(gpu, cuDeviceGetUuid_v2(&raw mut uuid, gpu.device))?;
        gpu.uuid = Uuid(uuid.bytes);
        Ok(gpu)
    }

    /// The same GPU by the functions of another library, which is initialised already and has this thread's context.
    pub fn behind(other: &Self, library: &Path) -> Result<Self, Failure> {
        Ok(Self {
            library: Library::open(Some(library), CUDA)?,
            nvml: Nvml::load(None)?,
            device: other.device,
            uuid: other.uuid,
        })
    }

    /// The same, with its primary context current.
    pub fn with_context() -> Result<Self, Failure> {
        let gpu = Self::open()?;
        gpu.retain()?;
        Ok(gpu)
    }

    /// Makes the primary context and makes it current. It goes with the process.
    pub fn retain(&self) -> Result<CUcontext, Failure> {
        let mut context = std::ptr::null_mut();
        cu!(
            self,
            cuDevicePrimaryCtxRetain(&raw mut context, self.device)
        )?;
        cu!(self, cuCtxSetCurrent(context))?;
        Ok(context)
    }

    pub fn address(&self, name: &'static str) -> Result<*mut std::ffi::c_void, Failure> {
        let name = CStr::from_bytes_with_nul(name.as_bytes())?;
        let missing = || NotAvailable(format!("this driver has no {}", name.to_string_lossy()));
        Ok(self.library.address(name).ok_or_else(missing)?)
    }

    /// Free memory by `cuMemGetInfo`.
    pub fn free(&self) -> Result<i64, Failure> {
        let (mut free, mut total) = (0, 0);
        cu!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok(free as i64)
    }

    pub fn nvml_device(&self) -> Result<Device<'_>, Error> {
        self.nvml.device_by_uuid(self.uuid)
    }

    pub fn used(&self) -> Result<Used, Error> {
        self.used_by(std::process::id())
    }

    pub fn used_by(&self, pid: u32) -> Result<Used, Error> {
        let device = self.nvml.device_by_uuid(self.uuid)?;
        let processes = device.processes()?;
        let own = processes.iter().find(|process| process.pid == pid);
        Ok(Used {
            device: device.memory()?.used.cast_signed(),
            process: own.and_then(|process| process.used).map(u64::cast_signed),
        })
    }

    /// Processes that NVML lists on it besides this one.
    pub fn others(&self) -> Result<usize, Error> {
        let device = self.nvml.device_by_uuid(self.uuid)?;
        let me = std::process::id();
        let others = device.processes()?;
        Ok(others.iter().filter(|process| process.pid != me).count())
    }

    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i64, Failure> {
        let mut value: c_int = 0;
        cu!(
            self,
            cuDeviceGetAttribute(&raw mut value, attribute, self.device)
        )?;
        Ok(value.into())
    }

    pub fn alloc(&self, bytes: usize) -> Result<CUdeviceptr, Failure> {
        let mut address = 0;
        cu!(self, cuMemAlloc_v2(&raw mut address, bytes))?;
        Ok(address)
    }

    pub fn release(&self, address: CUdeviceptr) -> Result<(), Failure> {
        cu!(self, cuMemFree_v2(address))
    }

    pub fn synchronize(&self) -> Result<(), Failure> {
        cu!(self, cuCtxSynchronize())
    }

    /// A kernel that does nothing, its module loaded for as long as the process lives.
    pub fn kernel(&self) -> Result<CUfunction, Failure> {
        const PTX: &CStr =
            c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n";
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        cu!(self, cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()))?;
        cu!(
            self,
            cuModuleGetFunction(&raw mut kernel, module, c"nothing".as_ptr())
        )?;
        Ok(kernel)
    }

    pub fn launch(&self, kernel: CUfunction) -> Result<(), Failure> {
        let none = std::ptr::null_mut();
        cu!(
            self,
            cuLaunchKernel(
                kernel,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                std::ptr::null_mut(),
                none,
                none.cast()
            )
        )
    }
}

/// The driver, the GPU, the time.
pub fn machine() -> Answer {
    let gpu = Gpu::open()?;
    let device = gpu.nvml.device_by_uuid(gpu.uuid)?;
    let identity = device.identity()?;
    let memory = device.memory()?;
    let modes = device.modes()?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let attribute = |attribute| gpu.attribute(attribute);
    Ok(json!({
        "driver_version": gpu.nvml.driver_version()?,
        "cuda_version": gpu.nvml.cuda_version()?.to_string(),
        "uuid": identity.uuid,
        "model": identity.name,
        "total_bytes": memory.total,
        "reserved_bytes": memory.reserved,
        "used_bytes": memory.used,
        "mig": modes.mig,
        "persistence": modes.persistence,
        "multiprocessors": attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT)?,
        "threads_per_multiprocessor": attribute(CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?,
        "compute_capability": [
            attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR)?,
        ],
        "other_processes": gpu.others()?,
        "unix_seconds": seconds,
    }))
}

/// A difference of two looks, for people to read.
pub fn grew(before: Used, after: Used) -> Value {
    json!({
        "device": after.device - before.device,
        "process": after.process.map(|after| after - before.process.unwrap_or(0)),
    })
}
