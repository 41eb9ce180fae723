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
    nvmlDeviceGetConfComputeProtectedMemoryUsage: (device: nvmlDevice_t, memory: *mut nvmlMemory_t);
    nvmlDeviceGetMemoryLimits_v1: (device: nvmlDevice_t, limits: *mut nvmlGetMemoryLimits_v1_t);
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

    // accounting: statistics kept for each process, once an administrator turns them on
    nvmlDeviceGetAccountingMode: (device: nvmlDevice_t, mode: *mut nvmlEnableState_t);
    nvmlDeviceGetAccountingStats: (device: nvmlDevice_t, pid: c_uint, stats: *mut nvmlAccountingStats_t);
    nvmlDeviceGetAccountingStats_v2: (device: nvmlDevice_t, stats: *mut nvmlAccountingStats_v2_t);
    nvmlDeviceGetAccountingPids: (device: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint);
    nvmlDeviceGetAccountingBufferSize: (device: nvmlDevice_t, buffer_size: *mut c_uint);

    // sessions of the video engines
    nvmlDeviceGetEncoderSessions: (
        device: nvmlDevice_t, session_count: *mut c_uint, session_infos: *mut nvmlEncoderSessionInfo_t
    );
    nvmlDeviceGetFBCSessions: (
        device: nvmlDevice_t, session_count: *mut c_uint, session_info: *mut nvmlFBCSessionInfo_t
    );

    // utilisation
    nvmlDeviceGetUtilizationRates: (device: nvmlDevice_t, utilization: *mut nvmlUtilization_t);
    nvmlDeviceGetEncoderUtilization: (
        device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint
    );
    nvmlDeviceGetDecoderUtilization: (
        device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint
    );
    nvmlDeviceGetSamples: (
        device: nvmlDevice_t, type_: nvmlSamplingType_t, last_seen_time_stamp: c_ulonglong,
        sample_val_type: *mut nvmlValueType_t, sample_count: *mut c_uint, samples: *mut nvmlSample_t
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
    nvmlDeviceGetRemappedRows: (
        device: nvmlDevice_t, corr_rows: *mut c_uint, unc_rows: *mut c_uint, is_pending: *mut c_uint,
        failure_occurred: *mut c_uint
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
    nvmlDeviceGetGpuOperationMode: (
        device: nvmlDevice_t, current: *mut nvmlGpuOperationMode_t, pending: *mut nvmlGpuOperationMode_t
    );
    nvmlDeviceGetAPIRestriction: (
        device: nvmlDevice_t, api_type: nvmlRestrictedAPI_t, is_restricted: *mut nvmlEnableState_t
    );
    nvmlDeviceGetConfComputeMemSizeInfo: (device: nvmlDevice_t, mem_info: *mut nvmlConfComputeMemSizeInfo_t);

    // MIG
    nvmlDeviceGetMigMode: (device: nvmlDevice_t, current_mode: *mut c_uint, pending_mode: *mut c_uint);
    nvmlDeviceIsMigDeviceHandle: (device: nvmlDevice_t, is_mig_device: *mut c_uint);
    nvmlDeviceGetMaxMigDeviceCount: (device: nvmlDevice_t, count: *mut c_uint);
    nvmlDeviceGetMigDeviceHandleByIndex: (device: nvmlDevice_t, index: c_uint, mig_device: *mut nvmlDevice_t);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle: (mig_device: nvmlDevice_t, device: *mut nvmlDevice_t);
    nvmlDeviceGetGpuInstanceId: (device: nvmlDevice_t, id: *mut c_uint);
    nvmlDeviceGetComputeInstanceId: (device: nvmlDevice_t, id: *mut c_uint);

    // MIG: instances
    nvmlComputeInstanceDestroy: (compute_instance: nvmlComputeInstance_t);
    nvmlComputeInstanceGetInfo: (compute_instance: nvmlComputeInstance_t, info: *mut nvmlComputeInstanceInfo_t);
    nvmlComputeInstanceGetInfo_v2: (compute_instance: nvmlComputeInstance_t, info: *mut nvmlComputeInstanceInfo_t);
    nvmlDeviceCreateGpuInstance: (device: nvmlDevice_t, profile_id: c_uint, gpu_instance: *mut nvmlGpuInstance_t);
    nvmlDeviceCreateGpuInstanceWithPlacement: (
        device: nvmlDevice_t, profile_id: c_uint, placement: *const nvmlGpuInstancePlacement_t,
        gpu_instance: *mut nvmlGpuInstance_t
    );
    nvmlDeviceGetGpuInstanceById: (device: nvmlDevice_t, id: c_uint, gpu_instance: *mut nvmlGpuInstance_t);
    nvmlDeviceGetGpuInstancePossiblePlacements: (
        device: nvmlDevice_t, profile_id: c_uint, placements: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint
    );
    nvmlDeviceGetGpuInstancePossiblePlacements_v2: (
        device: nvmlDevice_t, profile_id: c_uint, placements: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint
    );
    nvmlDeviceGetGpuInstanceProfileInfo: (
        device: nvmlDevice_t, profile: c_uint, info: *mut nvmlGpuInstanceProfileInfo_t
    );
    nvmlDeviceGetGpuInstanceProfileInfoByIdV: (
        device: nvmlDevice_t, profile_id: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t
    );
    nvmlDeviceGetGpuInstanceProfileInfoV: (
        device: nvmlDevice_t, profile: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t
    );
    nvmlDeviceGetGpuInstanceRemainingCapacity: (device: nvmlDevice_t, profile_id: c_uint, count: *mut c_uint);
    nvmlDeviceGetGpuInstances: (
        device: nvmlDevice_t, profile_id: c_uint, gpu_instances: *mut nvmlGpuInstance_t, count: *mut c_uint
    );
    nvmlGpuInstanceCreateComputeInstance: (
        gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, compute_instance: *mut nvmlComputeInstance_t
    );
    nvmlGpuInstanceCreateComputeInstanceWithPlacement: (
        gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, placement: *const nvmlComputeInstancePlacement_t,
        compute_instance: *mut nvmlComputeInstance_t
    );
    nvmlGpuInstanceDestroy: (gpu_instance: nvmlGpuInstance_t);
    nvmlGpuInstanceGetComputeInstanceById: (
        gpu_instance: nvmlGpuInstance_t, id: c_uint, compute_instance: *mut nvmlComputeInstance_t
    );
    nvmlGpuInstanceGetComputeInstancePossiblePlacements: (
        gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, placements: *mut nvmlComputeInstancePlacement_t,
        count: *mut c_uint
    );
    nvmlGpuInstanceGetComputeInstanceProfileInfo: (
        gpu_instance: nvmlGpuInstance_t, profile: c_uint, eng_profile: c_uint,
        info: *mut nvmlComputeInstanceProfileInfo_t
    );
    nvmlGpuInstanceGetComputeInstanceProfileInfoV: (
        gpu_instance: nvmlGpuInstance_t, profile: c_uint, eng_profile: c_uint,
        info: *mut nvmlComputeInstanceProfileInfo_v2_t
    );
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity: (
        gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, count: *mut c_uint
    );
    nvmlGpuInstanceGetComputeInstances: (
        gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, compute_instances: *mut nvmlComputeInstance_t,
        count: *mut c_uint
    );
    nvmlGpuInstanceGetInfo: (gpu_instance: nvmlGpuInstance_t, info: *mut nvmlGpuInstanceInfo_t);

    // setting modes
    nvmlDeviceSetAPIRestriction: (
        device: nvmlDevice_t, api_type: nvmlRestrictedAPI_t, is_restricted: nvmlEnableState_t
    );
    nvmlDeviceSetComputeMode: (device: nvmlDevice_t, mode: nvmlComputeMode_t);
    nvmlDeviceSetDriverModel: (device: nvmlDevice_t, driver_model: nvmlDriverModel_t, flags: c_uint);
    nvmlDeviceSetEccMode: (device: nvmlDevice_t, ecc: nvmlEnableState_t);
    nvmlDeviceSetGpuOperationMode: (device: nvmlDevice_t, mode: nvmlGpuOperationMode_t);
    nvmlDeviceSetMigMode: (device: nvmlDevice_t, mode: c_uint, activation_status: *mut nvmlReturn_t);
    nvmlDeviceSetPersistenceMode: (device: nvmlDevice_t, mode: nvmlEnableState_t);

    // setting what memory there is
    nvmlDeviceSetConfComputeUnprotectedMemSize: (device: nvmlDevice_t, size_kib: c_ulonglong);
    nvmlDeviceSetDramEncryptionMode: (device: nvmlDevice_t, dram_encryption: *const nvmlDramEncryptionInfo_t);
    nvmlDeviceSetMemoryLimits_v1: (device: nvmlDevice_t, limits: *mut nvmlSetMemoryLimits_v1_t);
    nvmlSystemSetConfComputeGpusReadyState: (is_accepting_work: c_uint);
    nvmlSystemSetConfComputeKeyRotationThresholdInfo: (threshold: *mut nvmlConfComputeSetKeyRotationThresholdInfo_t);

    // setting clocks
    nvmlDeviceResetApplicationsClocks: (device: nvmlDevice_t);
    nvmlDeviceResetGpuLockedClocks: (device: nvmlDevice_t);
    nvmlDeviceResetMemoryLockedClocks: (device: nvmlDevice_t);
    nvmlDeviceSetApplicationsClocks: (device: nvmlDevice_t, mem_clock_mhz: c_uint, graphics_clock_mhz: c_uint);
    nvmlDeviceSetAutoBoostedClocksEnabled: (device: nvmlDevice_t, enabled: nvmlEnableState_t);
    nvmlDeviceSetClockOffsets: (device: nvmlDevice_t, info: *mut nvmlClockOffset_t);
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled: (device: nvmlDevice_t, enabled: nvmlEnableState_t, flags: c_uint);
    nvmlDeviceSetGpcClkVfOffset: (device: nvmlDevice_t, offset: c_int);
    nvmlDeviceSetGpuLockedClocks: (device: nvmlDevice_t, min_gpu_clock_mhz: c_uint, max_gpu_clock_mhz: c_uint);
    nvmlDeviceSetMemClkVfOffset: (device: nvmlDevice_t, offset: c_int);
    nvmlDeviceSetMemoryLockedClocks: (device: nvmlDevice_t, min_mem_clock_mhz: c_uint, max_mem_clock_mhz: c_uint);

    // setting power, fans and temperatures
    nvmlDevicePowerSmoothingActivatePresetProfile: (device: nvmlDevice_t, profile: *mut nvmlPowerSmoothingProfile_t);
    nvmlDevicePowerSmoothingSetState: (device: nvmlDevice_t, state: *mut nvmlPowerSmoothingState_t);
    nvmlDevicePowerSmoothingUpdatePresetProfileParam: (device: nvmlDevice_t, profile: *mut nvmlPowerSmoothingProfile_t);
    nvmlDeviceSetAdaptiveTgpMode_v1: (device: nvmlDevice_t, mode: nvmlEnableState_t);
    nvmlDeviceSetDefaultFanSpeed_v2: (device: nvmlDevice_t, fan: c_uint);
    nvmlDeviceSetFanControlPolicy: (device: nvmlDevice_t, fan: c_uint, policy: nvmlFanControlPolicy_t);
    nvmlDeviceSetFanSpeed_v2: (device: nvmlDevice_t, fan: c_uint, speed: c_uint);
    nvmlDeviceSetPowerManagementLimit: (device: nvmlDevice_t, limit: c_uint);
    nvmlDeviceSetPowerManagementLimit_v2: (device: nvmlDevice_t, power_value: *mut nvmlPowerValue_v2_t);
    nvmlDeviceSetPowerMizerMode_v1: (device: nvmlDevice_t, power_mizer_mode: *mut nvmlDevicePowerMizerModes_v1_t);
    nvmlDeviceSetTemperatureThreshold: (
        device: nvmlDevice_t, threshold_type: nvmlTemperatureThresholds_t, temp: *mut c_int
    );
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles: (
        device: nvmlDevice_t, requested_profiles: *mut nvmlWorkloadPowerProfileRequestedProfiles_t
    );
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles: (
        device: nvmlDevice_t, requested_profiles: *mut nvmlWorkloadPowerProfileRequestedProfiles_t
    );
    nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1: (
        device: nvmlDevice_t, update_profiles: *mut nvmlWorkloadPowerProfileUpdateProfiles_v1_t
    );

    // setting counters back
    nvmlDeviceClearAccountingPids: (device: nvmlDevice_t);
    nvmlDeviceClearEccErrorCounts: (device: nvmlDevice_t, counter_type: nvmlEccCounterType_t);
    nvmlDeviceClearFieldValues: (device: nvmlDevice_t, values_count: c_int, values: *mut nvmlFieldValue_t);
    nvmlDeviceSetAccountingMode: (device: nvmlDevice_t, mode: nvmlEnableState_t);

    // setting NVLink
    nvmlDeviceFreezeNvLinkUtilizationCounter: (
        device: nvmlDevice_t, link: c_uint, counter: c_uint, freeze: nvmlEnableState_t
    );
    nvmlDeviceLockNvlinkRemapTable_v1: (
        device: nvmlDevice_t, remap_table_lock_info: *mut nvmlNvlinkLockRemapTable_v1_t
    );
    nvmlDeviceResetNvLinkErrorCounters: (device: nvmlDevice_t, link: c_uint);
    nvmlDeviceResetNvLinkUtilizationCounter: (device: nvmlDevice_t, link: c_uint, counter: c_uint);
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold: (device: nvmlDevice_t, info: *mut nvmlNvLinkPowerThres_t);
    nvmlDeviceSetNvLinkUtilizationControl: (
        device: nvmlDevice_t, link: c_uint, counter: c_uint, control: *mut nvmlNvLinkUtilizationControl_t,
        reset: c_uint
    );
    nvmlDeviceSetNvlinkBwMode: (device: nvmlDevice_t, set_bw_mode: *mut nvmlNvlinkSetBwMode_t);
    nvmlDeviceSetNvlinkBwModeAsync_v1: (device: nvmlDevice_t, set_bw_mode_async: *mut nvmlNvlinkSetBwModeAsync_v1_t);
    nvmlDeviceSetNvlinkNvleReady_v1: (device: nvmlDevice_t, set_nvle_ready: *mut nvmlNvlinkSetNvleReady_v1_t);
    nvmlDeviceSetupNvlinkNvleEncryptionKey_v1: (
        device: nvmlDevice_t, encryption_key: *mut nvmlNvlinkSetupNvleEncryptionKey_v1_t
    );
    nvmlSystemSetNvlinkBwMode: (nvlink_bw_mode: c_uint);

    // setting up virtual GPUs
    nvmlDeviceSetVgpuCapabilities: (
        device: nvmlDevice_t, capability: nvmlDeviceVgpuCapability_t, state: nvmlEnableState_t
    );
    nvmlDeviceSetVgpuHeterogeneousMode: (device: nvmlDevice_t, heterogeneous_mode: *const nvmlVgpuHeterogeneousMode_t);
    nvmlDeviceSetVgpuSchedulerState: (device: nvmlDevice_t, scheduler_state: *mut nvmlVgpuSchedulerSetState_t);
    nvmlDeviceSetVgpuSchedulerState_v2: (device: nvmlDevice_t, scheduler_state: *mut nvmlVgpuSchedulerState_v2_t);
    nvmlDeviceSetVirtualizationMode: (device: nvmlDevice_t, virtual_mode: nvmlGpuVirtualizationMode_t);
    nvmlDeviceVgpuForceGspUnload: (device: nvmlDevice_t);
    nvmlGpuInstanceSetVgpuHeterogeneousMode: (
        gpu_instance: nvmlGpuInstance_t, heterogeneous_mode: *const nvmlVgpuHeterogeneousMode_t
    );
    nvmlGpuInstanceSetVgpuSchedulerState: (gpu_instance: nvmlGpuInstance_t, scheduler: *mut nvmlVgpuSchedulerState_t);
    nvmlGpuInstanceSetVgpuSchedulerState_v2: (
        gpu_instance: nvmlGpuInstance_t, scheduler_state: *mut nvmlVgpuSchedulerState_v2_t
    );
    nvmlSetVgpuVersion: (vgpu_version: *mut nvmlVgpuVersion_t);

    // taking devices away, and reaching into them
    nvmlDeviceDiscoverGpus: (pci_info: *mut nvmlPciInfo_t);
    nvmlDeviceModifyDrainState: (pci_info: *mut nvmlPciInfo_t, new_state: nvmlEnableState_t);
    nvmlDeviceReadWritePRM_v1: (device: nvmlDevice_t, buffer: *mut nvmlPRMTLV_v1_t);
    nvmlDeviceRemoveGpu: (pci_info: *mut nvmlPciInfo_t);
    nvmlDeviceRemoveGpu_v2: (
        pci_info: *mut nvmlPciInfo_t, gpu_state: nvmlDetachGpuState_t, link_state: nvmlPcieLinkState_t
    );
    nvmlDeviceSetHostname_v1: (device: nvmlDevice_t, hostname: *mut nvmlHostname_v1_t);
    nvmlGpmSetStreamingEnabled: (device: nvmlDevice_t, state: c_uint);
    nvmlUnitSetLedState: (unit: nvmlUnit_t, color: nvmlLedColor_t);

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
