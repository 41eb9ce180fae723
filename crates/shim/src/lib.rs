//! The limiter: hooks in front of NVIDIA's driver that hold a program to its slice. Three small libraries are made from
//! them: `divvy-preload` for `LD_PRELOAD`, `divvy-wrapper-cuda` and `divvy-wrapper-nvml` to lie where the driver's own
//! libraries lay.
//!
//! ```text
//! program ── dlsym, link or cuGetProcAddress ──► table: a hook ──► handler ──► ledger: reserve, commit, give back
//!                                                                     └─────► function: the driver's own
//! ```
//! It does nothing until a hooked function is called: no constructor, no thread, no signal handler, no output. The
//! rooms: `table` lists the hooked functions; `process` and `account` hold the process's relation to its slice;
//! `charge` accounts for memory; `park` wakes the job; `view` filters what the program sees; `visible_devices` reads the
//! job's numbers of GPUs; `route` dispatches calls. The ledger keeps limits between processes, and the daemon sets them.

mod account;
mod charge;
mod compute;
mod context;
#[cfg(test)]
mod coverage;
mod device;
mod log;
mod oom_report;
#[cfg(test)]
mod page;
mod park;
mod process;
mod route;
#[doc(hidden)]
pub mod table;
mod view;
mod visible_devices;

#[doc(hidden)]
pub use park::wakes;
#[doc(hidden)]
pub use route::lookup::dlsym;
#[doc(hidden)]
pub use route::touch::stubs;
