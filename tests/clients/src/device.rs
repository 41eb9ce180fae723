//! One GPU through `cudarc`: its totals, blocks of its memory by several routes, and a kernel.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUfunction, CUmemAllocationProp, CUmemAllocationType, CUmemAttach_flags,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult, cuMemCreate,
    cuMemRelease,
};
use cudarc::driver::{CudaContext, DriverError, result};
use serde_json::{Value, json};

/// The smallest block the fill goes down to: what the driver maps at a time.
pub const GRANULE: u64 = 2 << 20;

const GLOBAL: CUmemAttach_flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;

/// How memory is asked for. A limit has to hold on each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Route {
    /// `cuMemAlloc_v2`
    Linear,
    /// `cuMemAllocAsync` on the default stream, what `cudarc` itself uses
    Async,
    /// `cuMemAllocManaged`
    Managed,
    /// `cuMemCreate`, the physical half of virtual memory management
    Vmm,
}

/// A piece of device memory, given back by [`Device::give_back`] or at exit.
#[derive(Debug)]
pub enum Block {
    Linear(CUdeviceptr),
    Async(CUdeviceptr),
    Vmm(CUmemGenericAllocationHandle),
}

/// An entry point of a module that stays loaded.
#[derive(Clone, Copy)]
pub struct Kernel(CUfunction);

/// A GPU with its primary context.
pub struct Device {
    context: Arc<CudaContext>,
}

impl Device {
    /// How many GPUs this process sees.
    ///
    /// # Errors
    /// The driver's.
    pub fn count() -> Result<usize, DriverError> {
        Ok(usize::try_from(CudaContext::device_count()?).unwrap_or(0))
    }

    /// Opens GPU `ordinal` and retains its primary context.
    ///
    /// # Errors
    /// The driver's.
    pub fn open(ordinal: usize) -> Result<Self, DriverError> {
        Ok(Self {
            context: CudaContext::new(ordinal)?,
        })
    }

    /// UUID, name, total and free memory, as the program sees them.
    ///
    /// # Errors
    /// The driver's.
    pub fn facts(&self) -> Result<Value, DriverError> {
        let (free, total) = self.context.mem_get_info()?;
        let uuid = self.context.uuid()?.bytes.map(|byte| byte.to_ne_bytes()[0]);
        let hex = uuid.map(|byte| format!("{byte:02x}")).concat();
        let uuid = format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        );
        Ok(json!({
            "uuid": uuid,
            "name": self.context.name()?,
            "device_total_bytes": self.context.total_mem()?,
            "total_bytes": total,
            "free_bytes": free,
        }))
    }

    /// Free memory in bytes, as `cuMemGetInfo` says.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes(&self) -> Result<u64, DriverError> {
        Ok(self.context.mem_get_info()?.0 as u64)
    }

    /// Asks for `bytes` by `route`.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_OUT_OF_MEMORY` is how a limit shows.
    pub fn take(&self, route: Route, bytes: u64) -> Result<Block, DriverError> {
        self.context.bind_to_thread()?;
        let size = usize::try_from(bytes).expect("a 64-bit machine");
        let stream = std::ptr::null_mut();
        match route {
            // SAFETY: the context is current; nothing ever reads the memory, so it need not be initialised.
            Route::Linear => unsafe { result::malloc_sync(size) }.map(Block::Linear),
            // SAFETY: as above; the null stream always exists.
            Route::Async => unsafe { result::malloc_async(stream, size) }.map(Block::Async),
            // SAFETY: as above.
            Route::Managed => unsafe { result::malloc_managed(size, GLOBAL) }.map(Block::Linear),
            Route::Vmm => self.create(size).map(Block::Vmm),
        }
    }

    fn create(&self, size: usize) -> Result<CUmemGenericAllocationHandle, DriverError> {
        // SAFETY: the structure is plain data for which all zeros is the documented default.
        let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.context.cu_device(),
        };
        let mut handle = 0;
        // SAFETY: both pointers are to locals that outlive the call.
        unsafe { cuMemCreate(&raw mut handle, size, &raw const properties, 0) }.result()?;
        Ok(handle)
    }

    /// Gives a block back. The default stream has drained when this returns, so that pools have let go of it too.
    ///
    /// # Errors
    /// The driver's.
    pub fn give_back(&self, block: Block) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        match block {
            // SAFETY: `take` allocated the address and the block is consumed, so it is freed once.
            Block::Linear(address) => unsafe { result::free_sync(address) },
            // SAFETY: as above, on the stream it was allocated on.
            Block::Async(address) => unsafe { result::free_async(address, std::ptr::null_mut()) }
                .and_then(|()| self.context.synchronize()),
            // SAFETY: as above; it was never mapped.
            Block::Vmm(handle) => unsafe { cuMemRelease(handle) }.result(),
        }
    }

    /// Loads a kernel that takes no parameters from PTX text.
    ///
    /// # Errors
    /// The driver's.
    pub fn kernel(&self, ptx: &str, name: &str) -> Result<Kernel, DriverError> {
        self.context.bind_to_thread()?;
        let text = CString::new(ptx).expect("PTX has no zero byte");
        let name = CString::new(name).expect("a kernel's name has no zero byte");
        // SAFETY: the image is zero-terminated text that outlives the call.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        // SAFETY: the module was loaded above and is never unloaded.
        unsafe { result::module::get_function(module, name) }.map(Kernel)
    }

    /// Launches `kernel` once, with one thread, on the default stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, kernel: Kernel) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let stream = std::ptr::null_mut();
        // SAFETY: the function's module is never unloaded, and it takes no parameters.
        unsafe { result::launch_kernel(kernel.0, (1, 1, 1), (1, 1, 1), 0, stream, &mut []) }
    }

    /// Waits until everything launched has finished.
    ///
    /// # Errors
    /// The driver's.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.context.synchronize()
    }
}

/// What a fill ended with.
pub struct Filled {
    pub blocks: Vec<Block>,
    pub bytes: u64,
    /// Bytes held when the first request was refused.
    pub first_refused_at: Option<u64>,
    /// The last refusal.
    pub refusal: Option<DriverError>,
}

impl Filled {
    /// True when the fill ended the way a limit ends it.
    #[must_use]
    pub fn out_of_memory(&self) -> bool {
        self.refusal
            .as_ref()
            .is_some_and(|error| error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Takes memory up to `most` bytes in steps of `step`, halving the step at each refusal for want of memory down to one
/// [`GRANULE`]; any other error ends it at once.
#[must_use]
pub fn fill(device: &Device, route: Route, step: u64, most: u64) -> Filled {
    let mut filled = Filled {
        blocks: Vec::new(),
        bytes: 0,
        first_refused_at: None,
        refusal: None,
    };
    let mut step = step.max(GRANULE);
    while filled.bytes < most {
        let bytes = step.min(most - filled.bytes);
        match device.take(route, bytes) {
            Ok(block) => {
                filled.blocks.push(block);
                filled.bytes += bytes;
            }
            Err(error) => {
                let for_want_of_memory = error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
                filled.first_refused_at.get_or_insert(filled.bytes);
                filled.refusal = Some(error);
                if !for_want_of_memory || step <= GRANULE {
                    break;
                }
                step /= 2;
            }
        }
    }
    filled
}
