//! The CUDA driver API: handles, structures, constants; enumerations and function signatures are in the submodules.

mod enums;
pub mod pfn;

pub use enums::*;
use std::ffi::{c_char, c_int, c_longlong, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

pub type cuuint64_t = u64;
/// Ordinal of a device as `cuDeviceGet` numbers it, after `CUDA_VISIBLE_DEVICES`.
pub type CUdevice = c_int;
/// Address in the unified virtual address space.
pub type CUdeviceptr = c_ulonglong;
/// Address in the 32-bit functions of CUDA 3.1 and before.
pub type CUdeviceptr_v1 = c_uint;
pub type CUmemGenericAllocationHandle = c_ulonglong;
pub type CUgraphConditionalHandle = cuuint64_t;
pub type CUtexObject = c_ulonglong;
pub type CUsurfObject = c_ulonglong;
pub type CUkernelNodeAttrID = CUlaunchAttributeID;
/// A union of 64 bytes; which member counts is said by the attribute.
pub type CUkernelNodeAttrValue = [u64; 8];

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
    CUmipmappedArray = CUmipmappedArray_st;
    CUexternalMemory = CUextMemory_st;
    CUexternalSemaphore = CUextSemaphore_st;
    CUgraphicsResource = CUgraphicsResource_st;
    CUgreenCtx = CUgreenCtx_st;
    CUdevResourceDesc = CUdevResourceDesc_st;
    CUcheckpointOperationHandle = CUIcheckpointOperation_st;
    CUlinkState = CUlinkState_st;
    CUgraph = CUgraph_st;
    CUgraphNode = CUgraphNode_st;
    CUgraphExec = CUgraphExec_st;
    CUuserObject = CUuserObject_st;
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
    CU_GRAPH_COND_ASSIGN_DEFAULT: c_uint = 1;
    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC: c_uint = 1;
    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC: c_uint = 2;
    CUDA_ARRAY3D_LAYERED: c_uint = 0x01;
    CUDA_ARRAY3D_SURFACE_LDST: c_uint = 0x02;
    CUDA_ARRAY3D_CUBEMAP: c_uint = 0x04;
    CUDA_ARRAY3D_TEXTURE_GATHER: c_uint = 0x08;
    CUDA_ARRAY3D_DEPTH_TEXTURE: c_uint = 0x10;
    CUDA_ARRAY3D_COLOR_ATTACHMENT: c_uint = 0x20;
    CUDA_ARRAY3D_SPARSE: c_uint = 0x40;
    CUDA_ARRAY3D_DEFERRED_MAPPING: c_uint = 0x80;
    CUDA_ARRAY3D_VIDEO_ENCODE_DECODE: c_uint = 0x100;
    CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL: c_uint = 1;
    CU_MEM_CREATE_USAGE_TILE_POOL: c_ushort = 0x1;
    CUDA_EXTERNAL_MEMORY_DEDICATED: c_uint = 0x1;
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
    /// A box of bytes and both ends of its copy; heights are in rows.
    CUDA_MEMCPY3D {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        reserved0: *mut c_void,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        reserved1: *mut c_void,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }
    /// The same between contexts.
    CUDA_MEMCPY3D_PEER {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        srcContext: CUcontext,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        dstContext: CUcontext,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }
    CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder,
        srcLocHint: CUmemLocation,
        dstLocHint: CUmemLocation,
        flags: c_uint,
    }
    /// In elements.
    CUoffset3D {
        x: usize,
        y: usize,
        z: usize,
    }
    /// In elements.
    CUextent3D {
        width: usize,
        height: usize,
        depth: usize,
    }
    /// `CUmemcpy3DOperand::op` where the operand is a pointer: the length of a row and the height of a layer are in elements
    /// of one byte, and 0 means as large as the copy.
    CUmemcpy3DOperand_ptr as "__typeof__(((CUmemcpy3DOperand *)0)->op.ptr)" {
        ptr: CUdeviceptr,
        rowLength: usize,
        layerHeight: usize,
        locHint: CUmemLocation,
    }
    /// `CUmemcpy3DOperand::op` where the operand is an array.
    CUmemcpy3DOperand_array as "__typeof__(((CUmemcpy3DOperand *)0)->op.array)" {
        array: CUarray,
        offset: CUoffset3D,
    }
    /// `op` is a union; which member counts is said by `type_`.
    CUmemcpy3DOperand {
        type_: CUmemcpy3DOperandType,
        op: [u64; 4],
    }
    CUDA_MEMCPY3D_BATCH_OP {
        src: CUmemcpy3DOperand,
        dst: CUmemcpy3DOperand,
        extent: CUextent3D,
        srcAccessOrder: CUmemcpySrcAccessOrder,
        flags: c_uint,
    }
    CUDA_LAUNCH_PARAMS {
        function: CUfunction,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
    }
    /// What an edge of a graph says beyond its ends; all zero is an ordinary dependency.
    CUgraphEdgeData {
        from_port: c_uchar,
        to_port: c_uchar,
        /// One of [`CUgraphDependencyType`].
        type_: c_uchar,
        reserved: [c_uchar; 5],
    }
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: CUfunction,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    }
    /// Also what [`CUgraphNodeParams`] holds, as `CUDA_KERNEL_NODE_PARAMS_v3`. `kern` counts where `func` is NULL.
    CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
        kern: CUkernel,
        ctx: CUcontext,
    }
    CUDA_MEMCPY_NODE_PARAMS {
        flags: c_int,
        reserved: c_int,
        copyCtx: CUcontext,
        copyParams: CUDA_MEMCPY3D,
    }
    /// The width is in elements of 1, 2 or 4 bytes.
    CUDA_MEMSET_NODE_PARAMS {
        dst: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        elementSize: c_uint,
        width: usize,
        height: usize,
    }
    CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        elementSize: c_uint,
        width: usize,
        height: usize,
        ctx: CUcontext,
    }
    CUDA_HOST_NODE_PARAMS {
        fn_: CUhostFn,
        userData: *mut c_void,
    }
    /// `ctx` is a union with a green context.
    CUDA_HOST_NODE_PARAMS_v2 {
        fn_: CUhostFn,
        userData: *mut c_void,
        syncMode: c_uint,
        ctx: CUcontext,
    }
    CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: CUgraph,
        ownership: CUgraphChildGraphNodeOwnership,
    }
    /// `ctx` is a union with a green context.
    CUDA_EVENT_RECORD_NODE_PARAMS {
        event: CUevent,
        ctx: CUcontext,
    }
    CUDA_EVENT_WAIT_NODE_PARAMS {
        event: CUevent,
    }
    /// `dptr` is where the driver answers the address. Also `CUDA_MEM_ALLOC_NODE_PARAMS_v2`.
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps,
        accessDescs: *const CUmemAccessDesc,
        accessDescCount: usize,
        bytesize: usize,
        dptr: CUdeviceptr,
    }
    CUDA_MEM_FREE_NODE_PARAMS {
        dptr: CUdeviceptr,
    }
    /// `phGraph_out` is where the driver answers its own array of `size` graphs, the bodies.
    CUDA_CONDITIONAL_NODE_PARAMS {
        handle: CUgraphConditionalHandle,
        type_: CUgraphConditionalNodeType,
        size: c_uint,
        phGraph_out: *mut CUgraph,
        ctx: CUcontext,
    }
    /// `ctx` is a union with a green context.
    CUDA_MEMCPY_BATCH_NODE_PARAMS {
        count: usize,
        dsts: *mut CUdeviceptr,
        srcs: *mut CUdeviceptr,
        sizes: *mut usize,
        attrs: *mut CUmemcpyAttributes,
        attrsIdxs: *mut usize,
        numAttrs: usize,
        ctx: CUcontext,
    }
    /// `reserved1` is a union with the parameters of each kind of node; which member counts is said by `type_`.
    CUgraphNodeParams {
        type_: CUgraphNodeType,
        reserved0: [c_int; 3],
        reserved1: [c_longlong; 29],
        reserved2: c_longlong,
    }
    CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: cuuint64_t,
        hUploadStream: CUstream,
        hErrNode_out: CUgraphNode,
        result_out: CUgraphInstantiateResult,
    }
    CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult,
        errorNode: CUgraphNode,
        errorFromNode: CUgraphNode,
    }
    CUDA_ARRAY_DESCRIPTOR_v1 {
        Width: c_uint,
        Height: c_uint,
        Format: CUarray_format,
        NumChannels: c_uint,
    }
    CUDA_ARRAY3D_DESCRIPTOR_v1 {
        Width: c_uint,
        Height: c_uint,
        Depth: c_uint,
        Format: CUarray_format,
        NumChannels: c_uint,
        Flags: c_uint,
    }
    CUDA_ARRAY_DESCRIPTOR {
        Width: usize,
        Height: usize,
        Format: CUarray_format,
        NumChannels: c_uint,
    }
    /// Extents in elements; `Flags` are `CUDA_ARRAY3D_*`.
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: usize,
        Height: usize,
        Depth: usize,
        Format: CUarray_format,
        NumChannels: c_uint,
        Flags: c_uint,
    }
    CUDA_ARRAY_SPARSE_PROPERTIES {
        /// Width, height and depth of a tile in elements.
        tileExtent: [c_uint; 3],
        miptailFirstLevel: c_uint,
        miptailSize: c_ulonglong,
        flags: c_uint,
        reserved: [c_uint; 4],
    }
    CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: usize,
        alignment: usize,
        reserved: [c_uint; 4],
    }
    CUarraySparseLevel as "__typeof__(((CUarrayMapInfo *)0)->subresource.sparseLevel)" {
        level: c_uint,
        layer: c_uint,
        offsetX: c_uint,
        offsetY: c_uint,
        offsetZ: c_uint,
        extentWidth: c_uint,
        extentHeight: c_uint,
        extentDepth: c_uint,
    }
    CUarrayMiptail as "__typeof__(((CUarrayMapInfo *)0)->subresource.miptail)" {
        layer: c_uint,
        offset: c_ulonglong,
        size: c_ulonglong,
    }
    CUarrayMapInfo {
        resourceType: CUresourcetype,
        /// A union of `CUmipmappedArray` and `CUarray`.
        resource: *mut c_void,
        subresourceType: CUarraySparseSubresourceType,
        /// A union of `CUarraySparseLevel` and `CUarrayMiptail`.
        subresource: [u64; 4],
        memOperationType: CUmemOperationType,
        memHandleType: CUmemHandleType,
        memHandle: CUmemGenericAllocationHandle,
        offset: c_ulonglong,
        deviceBitMask: c_uint,
        flags: c_uint,
        reserved: [c_uint; 2],
    }
    CUresourceLinear as "__typeof__(((CUDA_RESOURCE_DESC *)0)->res.linear)" {
        devPtr: CUdeviceptr,
        format: CUarray_format,
        numChannels: c_uint,
        sizeInBytes: usize,
    }
    CUresourcePitch2D as "__typeof__(((CUDA_RESOURCE_DESC *)0)->res.pitch2D)" {
        devPtr: CUdeviceptr,
        format: CUarray_format,
        numChannels: c_uint,
        width: usize,
        height: usize,
        pitchInBytes: usize,
    }
    CUDA_RESOURCE_DESC {
        resType: CUresourcetype,
        /// A union of a `CUarray`, a `CUmipmappedArray`, `CUresourceLinear` and `CUresourcePitch2D`.
        res: [u64; 16],
        flags: c_uint,
    }
    CUDA_TEXTURE_DESC {
        addressMode: [CUaddress_mode; 3],
        filterMode: CUfilter_mode,
        flags: c_uint,
        maxAnisotropy: c_uint,
        mipmapFilterMode: CUfilter_mode,
        mipmapLevelBias: f32,
        minMipmapLevelClamp: f32,
        maxMipmapLevelClamp: f32,
        borderColor: [f32; 4],
        reserved: [c_int; 12],
    }
    CUDA_RESOURCE_VIEW_DESC {
        format: CUresourceViewFormat,
        width: usize,
        height: usize,
        depth: usize,
        firstMipmapLevel: c_uint,
        lastMipmapLevel: c_uint,
        firstLayer: c_uint,
        lastLayer: c_uint,
        reserved: [c_uint; 16],
    }
    CUipcEventHandle {
        reserved: [c_char; CU_IPC_HANDLE_SIZE],
    }
    CUmemPoolPtrExportData {
        reserved: [c_uchar; 64],
    }
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
        type_: CUexternalMemoryHandleType,
        /// A union: a descriptor in the low 32 bits, or pointers.
        handle: [u64; 2],
        size: c_ulonglong,
        flags: c_uint,
        reserved: [c_uint; 16],
    }
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        offset: c_ulonglong,
        size: c_ulonglong,
        flags: c_uint,
        reserved: [c_uint; 16],
    }
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
        offset: c_ulonglong,
        arrayDesc: CUDA_ARRAY3D_DESCRIPTOR,
        numLevels: c_uint,
        reserved: [c_uint; 16],
    }
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
        type_: CUexternalSemaphoreHandleType,
        /// A union: a descriptor in the low 32 bits, or pointers.
        handle: [u64; 2],
        flags: c_uint,
        reserved: [c_uint; 16],
    }
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
        /// The fence's value, an NvSciSync fence, the key of a keyed mutex, and 48 reserved bytes.
        params: [u64; 9],
        flags: c_uint,
        reserved: [c_uint; 16],
    }
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
        /// The fence's value, an NvSciSync fence, key and timeout of a keyed mutex, and 40 reserved bytes.
        params: [u64; 9],
        flags: c_uint,
        reserved: [c_uint; 16],
    }
    CUmulticastObjectProp {
        numDevices: c_uint,
        size: usize,
        handleTypes: c_ulonglong,
        flags: c_ulonglong,
    }
    CUdevSmResource {
        smCount: c_uint,
        minSmPartitionSize: c_uint,
        smCoscheduledAlignment: c_uint,
        flags: c_uint,
        localityDomainId: c_uint,
    }
    CUdevWorkqueueConfigResource {
        device: CUdevice,
        wqConcurrencyLimit: c_uint,
        sharingScope: CUdevWorkqueueConfigScope,
    }
    CUdevResource {
        type_: CUdevResourceType,
        _internal_padding: [c_uchar; 92],
        /// A union of `CUdevSmResource`, `CUdevWorkqueueConfigResource` and 40 opaque bytes.
        _oversize: [c_uint; 10],
        nextResource: *mut CUdevResource,
    }
    CU_DEV_SM_RESOURCE_GROUP_PARAMS {
        smCount: c_uint,
        coscheduledSmCount: c_uint,
        preferredCoscheduledSmCount: c_uint,
        flags: c_uint,
        localityDomainId: c_uint,
        reserved: [c_uint; 11],
    }
    CUcheckpointLockArgs {
        timeoutMs: c_uint,
        reserved0: c_uint,
        reserved1: [cuuint64_t; 7],
    }
    CUcheckpointCheckpointArgs {
        customStorageInfo_out: *mut c_void,
        reserved: [c_char; 56],
    }
    CUcheckpointGpuPair {
        oldUuid: CUuuid,
        newUuid: CUuuid,
    }
    CUcheckpointRestoreArgs {
        gpuPairs: *mut CUcheckpointGpuPair,
        gpuPairsCount: c_uint,
        padding0: c_uint,
        customStorageInfo_out: *mut c_void,
        reserved: [c_char; 40],
    }
    CUcheckpointUnlockArgs {
        reserved: [cuuint64_t; 8],
    }
}
