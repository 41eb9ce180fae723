//! The Linux host without any of Divvy's terms: processes, clocks, files, limits, users.

pub mod account;
pub mod cgroup;
pub mod child_timeout;
pub mod clock;
pub mod disk;
pub mod failpoint;
pub mod log_trim;
pub mod process;
pub mod rlimits;
pub mod run_as;
pub mod user;
