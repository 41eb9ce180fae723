//! The wrapper form of the limiter for `libcuda.so.1`: the CUDA driver's hooks, with the driver itself as a dependency.
//! A program that looks up another function in it, or is linked to it, finds the driver's own function there, or a stub
//! that wakes a parked job and jumps to it.

divvy_shim::export!(cuda);
divvy_shim::export_touches!();
