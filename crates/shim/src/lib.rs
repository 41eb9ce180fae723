//! What holds a program to its slice: hooks in front of NVIDIA's driver. Three small libraries are made from them: `divvy-preload`
//! for `LD_PRELOAD`, `divvy-wrapper-cuda` and `divvy-wrapper-nvml` to lie where the driver's own libraries lay.
//!
//! ```text
//! program ── dlsym, link or cuGetProcAddress ──► table: a hook ──► handler ──► ledger: reserve, commit, give back
//!                                                                     └─────► function: the driver's own
//! ```
//! It does nothing until a hooked function is called: no constructor, no thread, no signal handler, no output. Which
//! functions are hooked is `table`; what a process is to its slice, `process` and `account`; what each family of functions
//! is charged, `charge`; what the program sees, `view`; how calls get here, `route`. How limits are kept between processes
//! is the ledger's business, and who gets which limit the agent's.

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
mod process;
mod route;
#[doc(hidden)]
pub mod table;
mod view;

#[doc(hidden)]
pub use route::lookup::dlsym;
