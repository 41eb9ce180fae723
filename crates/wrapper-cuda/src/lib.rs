//! The form of the limiter that lies where `libcuda.so.1` lay: the CUDA driver's hooks, and the driver itself as a dependency.
//! A program that looks up anything else in it, or is linked to it, finds the driver's own function there.

divvy_shim::export!(cuda);
