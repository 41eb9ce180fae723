//! Enumerations of the NVML.

enums! {
    /// What every function of NVML but `nvmlErrorString` answers.
    nvmlReturn_t: NVML_ {
        SUCCESS = 0,
    } NVML_ERROR_ {
        UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
        ALREADY_INITIALIZED = 5, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, INSUFFICIENT_POWER = 8,
        DRIVER_NOT_LOADED = 9, TIMEOUT = 10, IRQ_ISSUE = 11, LIBRARY_NOT_FOUND = 12,
        FUNCTION_NOT_FOUND = 13, CORRUPTED_INFOROM = 14, GPU_IS_LOST = 15, RESET_REQUIRED = 16,
        OPERATING_SYSTEM = 17, LIB_RM_VERSION_MISMATCH = 18, IN_USE = 19, MEMORY = 20, NO_DATA = 21,
        VGPU_ECC_NOT_SUPPORTED = 22, INSUFFICIENT_RESOURCES = 23, FREQ_NOT_SUPPORTED = 24,
        ARGUMENT_VERSION_MISMATCH = 25, DEPRECATED = 26, NOT_READY = 27, GPU_NOT_FOUND = 28,
        INVALID_STATE = 29, RESET_TYPE_NOT_SUPPORTED = 30, UNKNOWN = 999,
    };
    nvmlEnableState_t: NVML_FEATURE_ {
        DISABLED = 0, ENABLED = 1,
    };
    nvmlBrandType_t: NVML_BRAND_ {
        UNKNOWN = 0, QUADRO = 1, TESLA = 2, NVS = 3, GRID = 4, GEFORCE = 5, TITAN = 6,
        NVIDIA_VAPPS = 7, NVIDIA_VPC = 8, NVIDIA_VCS = 9, NVIDIA_VWS = 10, NVIDIA_CLOUD_GAMING = 11,
        QUADRO_RTX = 12, NVIDIA_RTX = 13, NVIDIA = 14, GEFORCE_RTX = 15, TITAN_RTX = 16,
        NVIDIA_DLA = 17, NVIDIA_NPU = 19, NVIDIA_VGAMEDEV = 18,
    };
    nvmlClockType_t: NVML_CLOCK_ {
        GRAPHICS = 0, SM = 1, MEM = 2, VIDEO = 3,
    };
    nvmlClockId_t: NVML_CLOCK_ID_ {
        CURRENT = 0, APP_CLOCK_TARGET = 1, APP_CLOCK_DEFAULT = 2, CUSTOMER_BOOST_MAX = 3,
    };
    nvmlPstates_t: NVML_ {
        PSTATE_0 = 0, PSTATE_1 = 1, PSTATE_2 = 2, PSTATE_3 = 3, PSTATE_4 = 4, PSTATE_5 = 5,
        PSTATE_6 = 6, PSTATE_7 = 7, PSTATE_8 = 8, PSTATE_9 = 9, PSTATE_10 = 10, PSTATE_11 = 11,
        PSTATE_12 = 12, PSTATE_13 = 13, PSTATE_14 = 14, PSTATE_15 = 15, PSTATE_UNKNOWN = 32,
    };
    nvmlTemperatureSensors_t: NVML_TEMPERATURE_ {
        GPU = 0, GPU_MAX = 1,
    };
    nvmlTemperatureThresholds_t: NVML_TEMPERATURE_THRESHOLD_ {
        SHUTDOWN = 0, SLOWDOWN = 1, MEM_MAX = 2, GPU_MAX = 3, ACOUSTIC_MIN = 4, ACOUSTIC_CURR = 5,
        ACOUSTIC_MAX = 6, GPS_CURR = 7,
    };
    nvmlComputeMode_t: NVML_COMPUTEMODE_ {
        DEFAULT = 0, EXCLUSIVE_THREAD = 1, PROHIBITED = 2, EXCLUSIVE_PROCESS = 3,
    };
    nvmlDriverModel_t: NVML_DRIVER_ {
        WDDM = 0, WDM = 1, MCDM = 2,
    };
    nvmlMemoryErrorType_t: NVML_MEMORY_ERROR_TYPE_ {
        CORRECTED = 0, UNCORRECTED = 1,
    };
    nvmlEccCounterType_t: NVML_ {
        VOLATILE_ECC = 0, AGGREGATE_ECC = 1,
    };
    nvmlPcieUtilCounter_t: NVML_PCIE_UTIL_ {
        TX_BYTES = 0, RX_BYTES = 1,
    };
    nvmlGpuTopologyLevel_t: NVML_TOPOLOGY_ {
        INTERNAL = 0, SINGLE = 10, MULTIPLE = 20, HOSTBRIDGE = 30, NODE = 40, SYSTEM = 50,
    };
    nvmlGpuVirtualizationMode_t: NVML_GPU_VIRTUALIZATION_MODE_ {
        NONE = 0, PASSTHROUGH = 1, VGPU = 2, HOST_VGPU = 3, HOST_VSGA = 4,
    };
    nvmlValueType_t: NVML_VALUE_TYPE_ {
        DOUBLE = 0, UNSIGNED_INT = 1, UNSIGNED_LONG = 2, UNSIGNED_LONG_LONG = 3,
        SIGNED_LONG_LONG = 4, SIGNED_INT = 5, UNSIGNED_SHORT = 6,
    };
    nvmlSamplingType_t: NVML_ {
        TOTAL_POWER_SAMPLES = 0, GPU_UTILIZATION_SAMPLES = 1, MEMORY_UTILIZATION_SAMPLES = 2,
        ENC_UTILIZATION_SAMPLES = 3, DEC_UTILIZATION_SAMPLES = 4, PROCESSOR_CLK_SAMPLES = 5,
        MEMORY_CLK_SAMPLES = 6, MODULE_POWER_SAMPLES = 7, JPG_UTILIZATION_SAMPLES = 8,
        OFA_UTILIZATION_SAMPLES = 9,
    };
    nvmlGpuOperationMode_t: NVML_GOM_ {
        ALL_ON = 0, COMPUTE = 1, LOW_DP = 2,
    };
    nvmlRestrictedAPI_t: NVML_RESTRICTED_API_ {
        SET_APPLICATION_CLOCKS = 0, SET_AUTO_BOOSTED_CLOCKS = 1,
    };
    nvmlEncoderType_t: NVML_ENCODER_QUERY_ {
        H264 = 0, HEVC = 1, AV1 = 2,
    };
    nvmlFBCSessionType_t: NVML_FBC_SESSION_TYPE_ {
        UNKNOWN = 0, TOSYS = 1, CUDA = 2, VID = 3, HWENC = 4,
    };
    nvmlDetachGpuState_t: NVML_DETACH_GPU_ {
        KEEP = 0, REMOVE = 1,
    };
    nvmlPcieLinkState_t: NVML_PCIE_LINK_ {
        KEEP = 0, SHUT_DOWN = 1,
    };
    nvmlLedColor_t: NVML_LED_COLOR_ {
        GREEN = 0, AMBER = 1,
    };
    nvmlDeviceVgpuCapability_t: NVML_DEVICE_VGPU_CAP_ {
        FRACTIONAL_MULTI_VGPU = 0, HETEROGENEOUS_TIMESLICE_PROFILES = 1,
        HETEROGENEOUS_TIMESLICE_SIZES = 2,
    };
}
