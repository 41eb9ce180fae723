//! The wrapper form of the limiter for `libnvidia-ml.so.1`: NVML's hooks, with NVML itself as a dependency.

divvy_shim::export!(nvml);
