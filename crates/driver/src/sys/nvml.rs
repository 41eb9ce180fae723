//! NVML: handles, structures, constants; enumerations and function signatures are in the submodules.

mod enums;
pub mod pfn;

pub use enums::*;
use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulong, c_ulonglong, c_ushort};

/// One of the `NVML_DEVICE_ARCH_*` values.
pub type nvmlDeviceArchitecture_t = c_uint;
pub type nvmlProcessInfo_t = nvmlProcessInfo_v2_t;
pub type nvmlProcessDetailList_t = nvmlProcessDetailList_v1_t;
pub type nvmlProcessesUtilizationInfo_t = nvmlProcessesUtilizationInfo_v1_t;
pub type nvmlTemperature_t = nvmlTemperature_v1_t;

handles! {
    nvmlDevice_t = nvmlDevice_st;
    nvmlEventSet_t = nvmlEventSet_st;
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
