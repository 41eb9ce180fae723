//! The preload form of the limiter (`LD_PRELOAD` or `ld.so.preload`): all hooks, and `dlsym`, by which programs would
//! find the driver's own functions behind it.

divvy_shim::export!(all);
divvy_shim::export_touches!();
divvy_shim::jump!(dlsym => divvy_shim::dlsym);
