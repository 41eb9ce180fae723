//! The form of the limiter that lies where `libnvidia-ml.so.1` lay: NVML's hooks, and NVML itself as a dependency.

divvy_shim::export!(nvml);
