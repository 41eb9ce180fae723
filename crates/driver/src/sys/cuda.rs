//! The CUDA driver API: handles, structures, constants; enumerations and function signatures are in the submodules.

mod enums;
pub mod pfn;

pub use enums::*;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

pub type cuuint64_t = u64;
/// Ordinal of a device as `cuDeviceGet` numbers it, after `CUDA_VISIBLE_DEVICES`.
pub type CUdevice = c_int;
/// Address in the unified virtual address space.
pub type CUdeviceptr = c_ulonglong;
/// Address in the 32-bit functions of CUDA 3.1 and before.
pub type CUdeviceptr_v1 = c_uint;
pub type CUmemGenericAllocationHandle = c_ulonglong;

pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: c_int) -> usize>;

handles! {
    CUcontext = CUctx_st;
    CUmodule = CUmod_st;
    CUfunction = CUfunc_st;
    CUlibrary = CUlib_st;
    CUkernel = CUkern_st;
    CUevent = CUevent_st;
    CUstream = CUstream_st;
    CUmemoryPool = CUmemPoolHandle_st;
    CUarray = CUarray_st;
    CUlinkState = CUlinkState_st;
}

/// The stream that `NULL` means, where the per-thread default stream is in use.
pub const CU_STREAM_LEGACY: CUstream = std::ptr::without_provenance_mut(1);
/// The calling thread's own default stream.
pub const CU_STREAM_PER_THREAD: CUstream = std::ptr::without_provenance_mut(2);

defines! {
    CUDA_VERSION: c_int = 13050;
    CU_DEVICE_CPU: CUdevice = -1;
    CU_DEVICE_INVALID: CUdevice = -2;
    CU_IPC_HANDLE_SIZE: usize = 64;
    CU_MEMHOSTALLOC_PORTABLE: c_uint = 0x01;
    CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 0x02;
    CU_MEMHOSTALLOC_WRITECOMBINED: c_uint = 0x04;
    CU_MEMHOSTREGISTER_PORTABLE: c_uint = 0x01;
    CU_MEMHOSTREGISTER_DEVICEMAP: c_uint = 0x02;
    CU_MEMHOSTREGISTER_IOMEMORY: c_uint = 0x04;
    CU_MEMHOSTREGISTER_READ_ONLY: c_uint = 0x08;
    CU_LAUNCH_PARAM_END_AS_INT: usize = 0;
    CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT: usize = 1;
    CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT: usize = 2;
}

structs! {
    CUuuid {
        bytes: [c_uchar; 16],
    }
    CUipcMemHandle {
        reserved: [c_char; CU_IPC_HANDLE_SIZE],
    }
    /// Where memory lives; with `CUmemLocationType::DEVICE`, `id` is the device's ordinal.
    CUmemLocation {
        type_: CUmemLocationType,
        id: c_int,
    }
    CUmemAllocationFlags as "__typeof__(((CUmemAllocationProp *)0)->allocFlags)" {
        compressionType: c_uchar,
        gpuDirectRDMACapable: c_uchar,
        usage: c_ushort,
        reserved: [c_uchar; 4],
    }
    CUmemAllocationProp {
        type_: CUmemAllocationType,
        requestedHandleTypes: CUmemAllocationHandleType,
        location: CUmemLocation,
        win32HandleMetaData: *mut c_void,
        allocFlags: CUmemAllocationFlags,
    }
    CUmemAccessDesc {
        location: CUmemLocation,
        flags: CUmemAccess_flags,
    }
    CUmemPoolProps {
        allocType: CUmemAllocationType,
        handleTypes: CUmemAllocationHandleType,
        location: CUmemLocation,
        win32SecurityAttributes: *mut c_void,
        maxSize: usize,
        usage: c_ushort,
        gpuDirectRDMACapable: c_uchar,
        reserved: [c_uchar; 53],
    }
    CUexecAffinityParam {
        type_: CUexecAffinityType,
        /// A union of one member: the number of multiprocessors.
        param: c_uint,
    }
    CUctxCreateParams {
        execAffinityParams: *mut CUexecAffinityParam,
        numExecAffinityParams: c_int,
        cigParams: *mut c_void,
    }
    /// A rectangle of bytes and both ends of its copy; which of host, device and array counts is said by the memory type.
    CUDA_MEMCPY2D {
        srcXInBytes: usize,
        srcY: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        srcPitch: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        dstPitch: usize,
        WidthInBytes: usize,
        Height: usize,
    }
    /// `value` is a union of 64 bytes; which member counts is said by `id`.
    CUlaunchAttribute {
        id: CUlaunchAttributeID,
        pad: [c_char; 4],
        value: [u64; 8],
    }
    CUlaunchConfig {
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        hStream: CUstream,
        attrs: *mut CUlaunchAttribute,
        numAttrs: c_uint,
    }
}
