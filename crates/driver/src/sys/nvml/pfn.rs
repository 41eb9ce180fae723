//! Signatures of the NVML functions that the shim hooks, the simulator implements or we call.
//!
//! `nvmlInternalGetExportTable` is exported but in no header; its signature was observed in nvidia-smi's calls.

use super::*;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};

functions! {
=> nvmlReturn_t {
    // library
    nvmlInit: ();
    nvmlInit_v2: ();
    nvmlInitWithFlags: (flags: c_uint);
    nvmlShutdown: ();
    nvmlInternalGetExportTable: (table: *mut *const c_void, id: *const c_void);

    // system
    nvmlSystemGetDriverVersion: (version: *mut c_char, length: c_uint);
    nvmlSystemGetNVMLVersion: (version: *mut c_char, length: c_uint);
    nvmlSystemGetCudaDriverVersion: (cuda_driver_version: *mut c_int);
    nvmlSystemGetCudaDriverVersion_v2: (cuda_driver_version: *mut c_int);
    nvmlSystemGetProcessName: (pid: c_uint, name: *mut c_char, length: c_uint);

    // units
    nvmlUnitGetCount: (unit_count: *mut c_uint);

    // finding devices
    nvmlDeviceGetCount: (device_count: *mut c_uint);
    nvmlDeviceGetCount_v2: (device_count: *mut c_uint);
    nvmlDeviceGetHandleByIndex: (index: c_uint, device: *mut nvmlDevice_t);
    nvmlDeviceGetHandleByIndex_v2: (index: c_uint, device: *mut nvmlDevice_t);
    nvmlDeviceGetHandleBySerial: (serial: *const c_char, device: *mut nvmlDevice_t);
    nvmlDeviceGetHandleByUUID: (uuid: *const c_char, device: *mut nvmlDevice_t);
    nvmlDeviceGetHandleByPciBusId: (pci_bus_id: *const c_char, device: *mut nvmlDevice_t);
    nvmlDeviceGetHandleByPciBusId_v2: (pci_bus_id: *const c_char, device: *mut nvmlDevice_t);

    // identity
    nvmlDeviceGetName: (device: nvmlDevice_t, name: *mut c_char, length: c_uint);
    nvmlDeviceGetBrand: (device: nvmlDevice_t, type_: *mut nvmlBrandType_t);
    nvmlDeviceGetIndex: (device: nvmlDevice_t, index: *mut c_uint);
    nvmlDeviceGetMinorNumber: (device: nvmlDevice_t, minor_number: *mut c_uint);
    nvmlDeviceGetSerial: (device: nvmlDevice_t, serial: *mut c_char, length: c_uint);
    nvmlDeviceGetUUID: (device: nvmlDevice_t, uuid: *mut c_char, length: c_uint);
    nvmlDeviceGetBoardId: (device: nvmlDevice_t, board_id: *mut c_uint);
    nvmlDeviceGetArchitecture: (device: nvmlDevice_t, arch: *mut nvmlDeviceArchitecture_t);
    nvmlDeviceGetCudaComputeCapability: (device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int);
    nvmlDeviceGetVbiosVersion: (device: nvmlDevice_t, version: *mut c_char, length: c_uint);
    nvmlDeviceValidateInforom: (device: nvmlDevice_t);
    nvmlDeviceGetNumGpuCores: (device: nvmlDevice_t, num_cores: *mut c_uint);
    nvmlDeviceGetAttributes_v2: (device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t);

    // PCI and topology
    nvmlDeviceGetPciInfo: (device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
    nvmlDeviceGetPciInfo_v2: (device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
    nvmlDeviceGetPciInfo_v3: (device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
    nvmlDeviceGetMaxPcieLinkGeneration: (device: nvmlDevice_t, max_link_gen: *mut c_uint);
    nvmlDeviceGetGpuMaxPcieLinkGeneration: (device: nvmlDevice_t, max_link_gen_device: *mut c_uint);
    nvmlDeviceGetMaxPcieLinkWidth: (device: nvmlDevice_t, max_link_width: *mut c_uint);
    nvmlDeviceGetCurrPcieLinkGeneration: (device: nvmlDevice_t, curr_link_gen: *mut c_uint);
    nvmlDeviceGetCurrPcieLinkWidth: (device: nvmlDevice_t, curr_link_width: *mut c_uint);
    nvmlDeviceGetPcieThroughput: (device: nvmlDevice_t, counter: nvmlPcieUtilCounter_t, value: *mut c_uint);
    nvmlDeviceGetPcieReplayCounter: (device: nvmlDevice_t, value: *mut c_uint);
    nvmlDeviceGetTopologyCommonAncestor: (
        device1: nvmlDevice_t, device2: nvmlDevice_t, path_info: *mut nvmlGpuTopologyLevel_t
    );
    nvmlDeviceGetCpuAffinity: (device: nvmlDevice_t, cpu_set_size: c_uint, cpu_set: *mut c_ulong);
    nvmlDeviceGetNvLinkState: (device: nvmlDevice_t, link: c_uint, is_active: *mut nvmlEnableState_t);

    // memory
    nvmlDeviceGetMemoryInfo: (device: nvmlDevice_t, memory: *mut nvmlMemory_t);
    nvmlDeviceGetMemoryInfo_v2: (device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);
    nvmlDeviceGetBAR1MemoryInfo: (device: nvmlDevice_t, bar1_memory: *mut nvmlBAR1Memory_t);
    nvmlDeviceGetMemoryBusWidth: (device: nvmlDevice_t, bus_width: *mut c_uint);

    // processes
    nvmlDeviceGetComputeRunningProcesses: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t
    );
    nvmlDeviceGetComputeRunningProcesses_v2: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t
    );
    nvmlDeviceGetComputeRunningProcesses_v3: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t
    );
    nvmlDeviceGetGraphicsRunningProcesses: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t
    );
    nvmlDeviceGetGraphicsRunningProcesses_v2: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t
    );
    nvmlDeviceGetGraphicsRunningProcesses_v3: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t
    );
    nvmlDeviceGetMPSComputeRunningProcesses: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t
    );
    nvmlDeviceGetMPSComputeRunningProcesses_v2: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t
    );
    nvmlDeviceGetMPSComputeRunningProcesses_v3: (
        device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t
    );
    nvmlDeviceGetRunningProcessDetailList: (device: nvmlDevice_t, plist: *mut nvmlProcessDetailList_t);
    nvmlDeviceGetProcessUtilization: (
        device: nvmlDevice_t, utilization: *mut nvmlProcessUtilizationSample_t,
        process_samples_count: *mut c_uint, last_seen_time_stamp: c_ulonglong
    );
    nvmlDeviceGetProcessesUtilizationInfo: (
        device: nvmlDevice_t, proceses_util_info: *mut nvmlProcessesUtilizationInfo_t
    );

    // utilisation
    nvmlDeviceGetUtilizationRates: (device: nvmlDevice_t, utilization: *mut nvmlUtilization_t);
    nvmlDeviceGetEncoderUtilization: (
        device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint
    );
    nvmlDeviceGetDecoderUtilization: (
        device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint
    );
    nvmlDeviceGetFieldValues: (device: nvmlDevice_t, values_count: c_int, values: *mut nvmlFieldValue_t);

    // clocks and performance
    nvmlDeviceGetClockInfo: (device: nvmlDevice_t, type_: nvmlClockType_t, clock: *mut c_uint);
    nvmlDeviceGetMaxClockInfo: (device: nvmlDevice_t, type_: nvmlClockType_t, clock: *mut c_uint);
    nvmlDeviceGetClock: (
        device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_id: nvmlClockId_t, clock_mhz: *mut c_uint
    );
    nvmlDeviceGetApplicationsClock: (device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_mhz: *mut c_uint);
    nvmlDeviceGetDefaultApplicationsClock: (
        device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_mhz: *mut c_uint
    );
    nvmlDeviceGetSupportedMemoryClocks: (device: nvmlDevice_t, count: *mut c_uint, clocks_mhz: *mut c_uint);
    nvmlDeviceGetSupportedGraphicsClocks: (
        device: nvmlDevice_t, memory_clock_mhz: c_uint, count: *mut c_uint, clocks_mhz: *mut c_uint
    );
    nvmlDeviceGetPerformanceState: (device: nvmlDevice_t, p_state: *mut nvmlPstates_t);
    nvmlDeviceGetPowerState: (device: nvmlDevice_t, p_state: *mut nvmlPstates_t);
    nvmlDeviceGetCurrentClocksThrottleReasons: (device: nvmlDevice_t, clocks_throttle_reasons: *mut c_ulonglong);
    nvmlDeviceGetCurrentClocksEventReasons: (device: nvmlDevice_t, clocks_event_reasons: *mut c_ulonglong);
    nvmlDeviceGetSupportedClocksThrottleReasons: (
        device: nvmlDevice_t, supported_clocks_throttle_reasons: *mut c_ulonglong
    );
    nvmlDeviceGetSupportedClocksEventReasons: (
        device: nvmlDevice_t, supported_clocks_event_reasons: *mut c_ulonglong
    );

    // power and heat
    nvmlDeviceGetPowerUsage: (device: nvmlDevice_t, power: *mut c_uint);
    nvmlDeviceGetTotalEnergyConsumption: (device: nvmlDevice_t, energy: *mut c_ulonglong);
    nvmlDeviceGetPowerManagementMode: (device: nvmlDevice_t, mode: *mut nvmlEnableState_t);
    nvmlDeviceGetPowerManagementLimit: (device: nvmlDevice_t, limit: *mut c_uint);
    nvmlDeviceGetPowerManagementLimitConstraints: (
        device: nvmlDevice_t, min_limit: *mut c_uint, max_limit: *mut c_uint
    );
    nvmlDeviceGetPowerManagementDefaultLimit: (device: nvmlDevice_t, default_limit: *mut c_uint);
    nvmlDeviceGetEnforcedPowerLimit: (device: nvmlDevice_t, limit: *mut c_uint);
    nvmlDeviceGetTemperature: (device: nvmlDevice_t, sensor_type: nvmlTemperatureSensors_t, temp: *mut c_uint);
    nvmlDeviceGetTemperatureV: (device: nvmlDevice_t, temperature: *mut nvmlTemperature_t);
    nvmlDeviceGetTemperatureThreshold: (
        device: nvmlDevice_t, threshold_type: nvmlTemperatureThresholds_t, temp: *mut c_uint
    );
    nvmlDeviceGetFanSpeed: (device: nvmlDevice_t, speed: *mut c_uint);
    nvmlDeviceGetFanSpeed_v2: (device: nvmlDevice_t, fan: c_uint, speed: *mut c_uint);
    nvmlDeviceGetNumFans: (device: nvmlDevice_t, num_fans: *mut c_uint);

    // errors in memory
    nvmlDeviceGetEccMode: (device: nvmlDevice_t, current: *mut nvmlEnableState_t, pending: *mut nvmlEnableState_t);
    nvmlDeviceGetTotalEccErrors: (
        device: nvmlDevice_t, error_type: nvmlMemoryErrorType_t, counter_type: nvmlEccCounterType_t,
        ecc_counts: *mut c_ulonglong
    );

    // modes
    nvmlDeviceGetPersistenceMode: (device: nvmlDevice_t, mode: *mut nvmlEnableState_t);
    nvmlDeviceGetComputeMode: (device: nvmlDevice_t, mode: *mut nvmlComputeMode_t);
    nvmlDeviceGetDisplayMode: (device: nvmlDevice_t, display: *mut nvmlEnableState_t);
    nvmlDeviceGetDisplayActive: (device: nvmlDevice_t, is_active: *mut nvmlEnableState_t);
    nvmlDeviceGetDriverModel: (
        device: nvmlDevice_t, current: *mut nvmlDriverModel_t, pending: *mut nvmlDriverModel_t
    );
    nvmlDeviceGetDriverModel_v2: (
        device: nvmlDevice_t, current: *mut nvmlDriverModel_t, pending: *mut nvmlDriverModel_t
    );
    nvmlDeviceGetVirtualizationMode: (device: nvmlDevice_t, p_virtual_mode: *mut nvmlGpuVirtualizationMode_t);
    nvmlDeviceGetConfComputeMemSizeInfo: (device: nvmlDevice_t, mem_info: *mut nvmlConfComputeMemSizeInfo_t);

    // MIG
    nvmlDeviceGetMigMode: (device: nvmlDevice_t, current_mode: *mut c_uint, pending_mode: *mut c_uint);
    nvmlDeviceIsMigDeviceHandle: (device: nvmlDevice_t, is_mig_device: *mut c_uint);
    nvmlDeviceGetMaxMigDeviceCount: (device: nvmlDevice_t, count: *mut c_uint);
    nvmlDeviceGetMigDeviceHandleByIndex: (device: nvmlDevice_t, index: c_uint, mig_device: *mut nvmlDevice_t);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle: (mig_device: nvmlDevice_t, device: *mut nvmlDevice_t);
    nvmlDeviceGetGpuInstanceId: (device: nvmlDevice_t, id: *mut c_uint);
    nvmlDeviceGetComputeInstanceId: (device: nvmlDevice_t, id: *mut c_uint);

    // events
    nvmlDeviceGetSupportedEventTypes: (device: nvmlDevice_t, event_types: *mut c_ulonglong);
    nvmlDeviceRegisterEvents: (device: nvmlDevice_t, event_types: c_ulonglong, set: nvmlEventSet_t);
    nvmlEventSetCreate: (set: *mut nvmlEventSet_t);
    nvmlEventSetFree: (set: nvmlEventSet_t);
    nvmlEventSetWait_v2: (set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeoutms: c_uint);
}
=> *const c_char {
    nvmlErrorString: (result: nvmlReturn_t);
}
}
