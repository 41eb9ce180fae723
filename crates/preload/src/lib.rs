//! The form of the limiter that goes in front of every library, by `LD_PRELOAD` or `ld.so.preload`: all hooks, and `dlsym`,
//! by which programs would find the driver's own functions behind it.

divvy_shim::export!(all);
divvy_shim::jump!(dlsym => divvy_shim::dlsym);
