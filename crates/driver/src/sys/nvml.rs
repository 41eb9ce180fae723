//! NVML: handles, structures, constants; enumerations and function signatures are in the submodules.

mod enums;
pub mod pfn;

pub use enums::*;
use std::ffi::{c_char, c_int, c_longlong, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort};

/// One of the `NVML_DEVICE_ARCH_*` values.
pub type nvmlDeviceArchitecture_t = c_uint;
pub type nvmlProcessInfo_t = nvmlProcessInfo_v2_t;
pub type nvmlProcessDetailList_t = nvmlProcessDetailList_v1_t;
pub type nvmlProcessesUtilizationInfo_t = nvmlProcessesUtilizationInfo_v1_t;
pub type nvmlTemperature_t = nvmlTemperature_v1_t;
pub type nvmlFanControlPolicy_t = c_uint;
pub type nvmlPowerScopeType_t = c_uchar;
pub type nvmlVgpuInstance_t = c_uint;

handles! {
    nvmlDevice_t = nvmlDevice_st;
    nvmlEventSet_t = nvmlEventSet_st;
    nvmlUnit_t = nvmlUnit_st;
    nvmlGpuInstance_t = nvmlGpuInstance_st;
    nvmlComputeInstance_t = nvmlComputeInstance_st;
}

opaque! {
    nvmlClockOffset_t, nvmlConfComputeSetKeyRotationThresholdInfo_t, nvmlDevicePowerMizerModes_v1_t,
    nvmlDramEncryptionInfo_t, nvmlHostname_v1_t, nvmlNvLinkPowerThres_t, nvmlNvLinkUtilizationControl_t,
    nvmlNvlinkLockRemapTable_v1_t, nvmlNvlinkSetBwMode_t, nvmlNvlinkSetBwModeAsync_v1_t, nvmlNvlinkSetNvleReady_v1_t,
    nvmlNvlinkSetupNvleEncryptionKey_v1_t, nvmlPRMTLV_v1_t, nvmlPowerSmoothingProfile_t, nvmlPowerSmoothingState_t,
    nvmlVgpuHeterogeneousMode_t, nvmlVgpuSchedulerSetState_t, nvmlVgpuSchedulerState_t, nvmlVgpuSchedulerState_v2_t,
    nvmlVgpuVersion_t, nvmlWorkloadPowerProfileRequestedProfiles_t, nvmlWorkloadPowerProfileUpdateProfiles_v1_t,
}

/// What a versioned structure carries in its `version` field: its size and, in the top byte, its number.
/// `nvmlMemory_v2_t` version 2 is `0x02000028`.
pub const fn struct_version<T>(number: u32) -> c_uint {
    size_of::<T>() as c_uint | number << 24
}

/// `usedGpuMemory` where the driver cannot tell (`NVML_VALUE_NOT_AVAILABLE` as unsigned).
pub const MEMORY_NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// `gpuInstanceId` and `computeInstanceId` of a process that is in none.
pub const NO_INSTANCE: c_uint = c_uint::MAX;

defines! {
    NVML_INIT_FLAG_NO_GPUS: c_uint = 1;
    NVML_INIT_FLAG_NO_ATTACH: c_uint = 2;
    NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE: usize = 32;
    NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE: usize = 16;
    NVML_DEVICE_UUID_V2_BUFFER_SIZE: usize = 96;
    NVML_DEVICE_NAME_V2_BUFFER_SIZE: usize = 96;
    NVML_DEVICE_SERIAL_BUFFER_SIZE: usize = 30;
    NVML_DEVICE_VBIOS_VERSION_BUFFER_SIZE: usize = 32;
    NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE: usize = 80;
    NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE: usize = 80;
    NVML_DEVICE_MIG_DISABLE: c_uint = 0;
    NVML_DEVICE_MIG_ENABLE: c_uint = 1;
    NVML_DEVICE_MEMORY_LIMIT_MAX: c_ulonglong = 0xffff_ffff_ffff_ffff;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE: c_uint = 0x0;
    NVML_GPU_INSTANCE_PROFILE_2_SLICE: c_uint = 0x1;
    NVML_GPU_INSTANCE_PROFILE_3_SLICE: c_uint = 0x2;
    NVML_GPU_INSTANCE_PROFILE_4_SLICE: c_uint = 0x3;
    NVML_GPU_INSTANCE_PROFILE_7_SLICE: c_uint = 0x4;
    NVML_GPU_INSTANCE_PROFILE_8_SLICE: c_uint = 0x5;
    NVML_GPU_INSTANCE_PROFILE_6_SLICE: c_uint = 0x6;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: c_uint = 0x7;
    NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: c_uint = 0x8;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2: c_uint = 0x9;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: c_uint = 0x0a;
    NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: c_uint = 0x0b;
    NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: c_uint = 0x0c;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: c_uint = 0x0d;
    NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: c_uint = 0x0e;
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: c_uint = 0x0f;
    NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: c_uint = 0x10;
    NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: c_uint = 0x11;
    NVML_GPU_INSTANCE_PROFILE_COUNT: c_uint = 0x12;
    NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE: c_uint = 0x0;
    NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE: c_uint = 0x1;
    NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE: c_uint = 0x2;
    NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE: c_uint = 0x3;
    NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE: c_uint = 0x4;
    NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE: c_uint = 0x5;
    NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE: c_uint = 0x6;
    NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: c_uint = 0x7;
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT: c_uint = 0x9;
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED: c_uint = 0x0;
    NVML_DEVICE_ARCH_KEPLER: nvmlDeviceArchitecture_t = 2;
    NVML_DEVICE_ARCH_MAXWELL: nvmlDeviceArchitecture_t = 3;
    NVML_DEVICE_ARCH_PASCAL: nvmlDeviceArchitecture_t = 4;
    NVML_DEVICE_ARCH_VOLTA: nvmlDeviceArchitecture_t = 5;
    NVML_DEVICE_ARCH_TURING: nvmlDeviceArchitecture_t = 6;
    NVML_DEVICE_ARCH_AMPERE: nvmlDeviceArchitecture_t = 7;
    NVML_DEVICE_ARCH_ADA: nvmlDeviceArchitecture_t = 8;
    NVML_DEVICE_ARCH_HOPPER: nvmlDeviceArchitecture_t = 9;
    NVML_DEVICE_ARCH_BLACKWELL: nvmlDeviceArchitecture_t = 10;
    NVML_DEVICE_ARCH_UNKNOWN: nvmlDeviceArchitecture_t = 0xffff_ffff;
    NVML_FI_DEV_MEMORY_TEMP: c_uint = 82;
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: c_uint = 83;
    NVML_FI_DEV_NVLINK_LINK_COUNT: c_uint = 91;
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: c_uint = 138;
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: c_uint = 139;
    NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX: c_uint = 140;
    NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX: c_uint = 141;
    NVML_FI_DEV_POWER_AVERAGE: c_uint = 185;
    NVML_FI_DEV_POWER_INSTANT: c_uint = 186;
    nvmlEventTypeSingleBitEccError: c_ulonglong = 0x1;
    nvmlEventTypeDoubleBitEccError: c_ulonglong = 0x2;
    nvmlEventTypePState: c_ulonglong = 0x4;
    nvmlEventTypeXidCriticalError: c_ulonglong = 0x8;
    nvmlEventTypeClock: c_ulonglong = 0x10;
    nvmlEventMigConfigChange: c_ulonglong = 0x100;
    nvmlClocksEventReasonGpuIdle: c_ulonglong = 0x1;
    nvmlClocksEventReasonSwPowerCap: c_ulonglong = 0x4;
}

structs! {
    nvmlMemory_t {
        total: c_ulonglong,
        free: c_ulonglong,
        used: c_ulonglong,
    }
    /// `used` does not include `reserved`; in version 1 it does.
    nvmlMemory_v2_t {
        version: c_uint,
        total: c_ulonglong,
        reserved: c_ulonglong,
        free: c_ulonglong,
        used: c_ulonglong,
    }
    nvmlBAR1Memory_t {
        bar1Total: c_ulonglong,
        bar1Free: c_ulonglong,
        bar1Used: c_ulonglong,
    }
    nvmlConfComputeMemSizeInfo_t {
        protectedMemSizeKib: c_ulonglong,
        unprotectedMemSizeKib: c_ulonglong,
    }
    /// Entry of the unversioned process lists.
    nvmlProcessInfo_v1_t {
        pid: c_uint,
        usedGpuMemory: c_ulonglong,
    }
    /// Entry of the `_v2` and `_v3` process lists.
    nvmlProcessInfo_v2_t {
        pid: c_uint,
        usedGpuMemory: c_ulonglong,
        gpuInstanceId: c_uint,
        computeInstanceId: c_uint,
    }
    nvmlProcessDetail_v1_t {
        pid: c_uint,
        usedGpuMemory: c_ulonglong,
        gpuInstanceId: c_uint,
        computeInstanceId: c_uint,
        usedGpuCcProtectedMemory: c_ulonglong,
    }
    nvmlProcessDetailList_v1_t {
        version: c_uint,
        mode: c_uint,
        numProcArrayEntries: c_uint,
        procArray: *mut nvmlProcessDetail_v1_t,
    }
    nvmlProcessUtilizationSample_t {
        pid: c_uint,
        timeStamp: c_ulonglong,
        smUtil: c_uint,
        memUtil: c_uint,
        encUtil: c_uint,
        decUtil: c_uint,
    }
    nvmlProcessUtilizationInfo_v1_t {
        timeStamp: c_ulonglong,
        pid: c_uint,
        smUtil: c_uint,
        memUtil: c_uint,
        encUtil: c_uint,
        decUtil: c_uint,
        jpgUtil: c_uint,
        ofaUtil: c_uint,
    }
    nvmlProcessesUtilizationInfo_v1_t {
        version: c_uint,
        processSamplesCount: c_uint,
        lastSeenTimeStamp: c_ulonglong,
        procUtilArray: *mut nvmlProcessUtilizationInfo_v1_t,
    }
    /// Percent of the last sample period (1/6 s to 1 s) in which a kernel ran, and in which memory was read or written.
    nvmlUtilization_t {
        gpu: c_uint,
        memory: c_uint,
    }
    /// One value of a series; its type is said once for all of them. Timestamps are in microseconds.
    nvmlSample_t {
        timeStamp: c_ulonglong,
        sampleValue: nvmlValue_t,
    }
    /// What a process did on a GPU since it began: percentages of its lifetime, bytes at most, milliseconds with a context.
    nvmlAccountingStats_t {
        gpuUtilization: c_uint,
        memoryUtilization: c_uint,
        maxMemoryUsage: c_ulonglong,
        time: c_ulonglong,
        startTime: c_ulonglong,
        isRunning: c_uint,
        reserved: [c_uint; 5],
    }
    /// Version 2 carries the process in the structure.
    nvmlAccountingStats_v2_t {
        pid: c_uint,
        isRunning: c_uint,
        gpuUtilization: c_uint,
        memoryUtilization: c_uint,
        maxMemoryUsage: c_ulonglong,
        sampleCount: c_uint,
        sumGpuUtil: c_ulonglong,
        sumFbUtil: c_ulonglong,
        time: c_ulonglong,
        startTime: c_ulonglong,
    }
    nvmlEncoderSessionInfo_t {
        sessionId: c_uint,
        pid: c_uint,
        vgpuInstance: nvmlVgpuInstance_t,
        codecType: nvmlEncoderType_t,
        hResolution: c_uint,
        vResolution: c_uint,
        averageFps: c_uint,
        averageLatency: c_uint,
    }
    nvmlFBCSessionInfo_t {
        sessionId: c_uint,
        pid: c_uint,
        vgpuInstance: nvmlVgpuInstance_t,
        displayOrdinal: c_uint,
        sessionType: nvmlFBCSessionType_t,
        sessionFlags: c_uint,
        hMaxResolution: c_uint,
        vMaxResolution: c_uint,
        hResolution: c_uint,
        vResolution: c_uint,
        averageFPS: c_uint,
        averageLatency: c_uint,
    }
    /// The driver's own limit of a control group's memory on a device, in bytes.
    nvmlSetMemoryLimits_v1_t {
        nameSpace: *const c_char,
        softLimit: c_ulonglong,
        hardLimit: c_ulonglong,
    }
    nvmlGetMemoryLimits_v1_t {
        nameSpace: *const c_char,
        softLimit: c_ulonglong,
        hardLimit: c_ulonglong,
        currentUsed: c_ulonglong,
    }
    nvmlPowerValue_v2_t {
        version: c_uint,
        powerScope: nvmlPowerScopeType_t,
        powerValueMw: c_uint,
    }
    nvmlGpuInstancePlacement_t {
        start: c_uint,
        size: c_uint,
    }
    nvmlGpuInstanceProfileInfo_t {
        id: c_uint,
        isP2pSupported: c_uint,
        sliceCount: c_uint,
        instanceCount: c_uint,
        multiprocessorCount: c_uint,
        copyEngineCount: c_uint,
        decoderCount: c_uint,
        encoderCount: c_uint,
        jpegCount: c_uint,
        ofaCount: c_uint,
        memorySizeMB: c_ulonglong,
    }
    nvmlGpuInstanceProfileInfo_v2_t {
        version: c_uint,
        id: c_uint,
        isP2pSupported: c_uint,
        sliceCount: c_uint,
        instanceCount: c_uint,
        multiprocessorCount: c_uint,
        copyEngineCount: c_uint,
        decoderCount: c_uint,
        encoderCount: c_uint,
        jpegCount: c_uint,
        ofaCount: c_uint,
        memorySizeMB: c_ulonglong,
        name: [c_char; NVML_DEVICE_NAME_V2_BUFFER_SIZE],
    }
    nvmlGpuInstanceProfileInfo_v3_t {
        version: c_uint,
        id: c_uint,
        sliceCount: c_uint,
        instanceCount: c_uint,
        multiprocessorCount: c_uint,
        copyEngineCount: c_uint,
        decoderCount: c_uint,
        encoderCount: c_uint,
        jpegCount: c_uint,
        ofaCount: c_uint,
        memorySizeMB: c_ulonglong,
        name: [c_char; NVML_DEVICE_NAME_V2_BUFFER_SIZE],
        capabilities: c_uint,
    }
    nvmlGpuInstanceInfo_t {
        device: nvmlDevice_t,
        id: c_uint,
        profileId: c_uint,
        placement: nvmlGpuInstancePlacement_t,
    }
    nvmlComputeInstancePlacement_t {
        start: c_uint,
        size: c_uint,
    }
    nvmlComputeInstanceProfileInfo_t {
        id: c_uint,
        sliceCount: c_uint,
        instanceCount: c_uint,
        multiprocessorCount: c_uint,
        sharedCopyEngineCount: c_uint,
        sharedDecoderCount: c_uint,
        sharedEncoderCount: c_uint,
        sharedJpegCount: c_uint,
        sharedOfaCount: c_uint,
    }
    nvmlComputeInstanceProfileInfo_v2_t {
        version: c_uint,
        id: c_uint,
        sliceCount: c_uint,
        instanceCount: c_uint,
        multiprocessorCount: c_uint,
        sharedCopyEngineCount: c_uint,
        sharedDecoderCount: c_uint,
        sharedEncoderCount: c_uint,
        sharedJpegCount: c_uint,
        sharedOfaCount: c_uint,
        name: [c_char; NVML_DEVICE_NAME_V2_BUFFER_SIZE],
    }
    nvmlComputeInstanceProfileInfo_v3_t {
        version: c_uint,
        id: c_uint,
        sliceCount: c_uint,
        instanceCount: c_uint,
        multiprocessorCount: c_uint,
        sharedCopyEngineCount: c_uint,
        sharedDecoderCount: c_uint,
        sharedEncoderCount: c_uint,
        sharedJpegCount: c_uint,
        sharedOfaCount: c_uint,
        name: [c_char; NVML_DEVICE_NAME_V2_BUFFER_SIZE],
        capabilities: c_uint,
    }
    nvmlComputeInstanceInfo_t {
        device: nvmlDevice_t,
        gpuInstance: nvmlGpuInstance_t,
        id: c_uint,
        profileId: c_uint,
        placement: nvmlComputeInstancePlacement_t,
    }
    nvmlPciInfo_t {
        busIdLegacy: [c_char; NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE],
        domain: c_uint,
        bus: c_uint,
        device: c_uint,
        pciDeviceId: c_uint,
        pciSubSystemId: c_uint,
        busId: [c_char; NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE],
    }
    nvmlTemperature_v1_t {
        version: c_uint,
        sensorType: nvmlTemperatureSensors_t,
        temperature: c_int,
    }
    nvmlFieldValue_t {
        fieldId: c_uint,
        scopeId: c_uint,
        timestamp: c_longlong,
        latencyUsec: c_longlong,
        valueType: nvmlValueType_t,
        nvmlReturn: nvmlReturn_t,
        value: nvmlValue_t,
    }
    nvmlDeviceAttributes_t {
        multiprocessorCount: c_uint,
        sharedCopyEngineCount: c_uint,
        sharedDecoderCount: c_uint,
        sharedEncoderCount: c_uint,
        sharedJpegCount: c_uint,
        sharedOfaCount: c_uint,
        gpuInstanceSliceCount: c_uint,
        computeInstanceSliceCount: c_uint,
        memorySizeMB: c_ulonglong,
    }
    nvmlEventData_t {
        device: nvmlDevice_t,
        eventType: c_ulonglong,
        eventData: c_ulonglong,
        gpuInstanceId: c_uint,
        computeInstanceId: c_uint,
    }
}

/// Which member counts is said by [`nvmlFieldValue_t::valueType`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union nvmlValue_t {
    pub dVal: f64,
    pub siVal: c_int,
    pub uiVal: c_uint,
    pub ulVal: c_ulong,
    pub ullVal: c_ulonglong,
    pub sllVal: c_longlong,
    pub usVal: c_ushort,
}

impl std::fmt::Debug for nvmlValue_t {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nvmlValue_t")
    }
}
