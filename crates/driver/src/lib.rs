//! Speaks to NVIDIA's libraries: declarations, loading, a safe NVML layer.

pub mod sys;
