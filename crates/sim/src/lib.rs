//! The simulated NVIDIA driver: libcuda.so.1 and libnvidia-ml.so.1 in one library.
