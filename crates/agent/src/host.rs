//! The Linux host without Divvy's terms: processes, clocks, disks, control groups, limits, users, errors as text.
//!
//! May use: no other room.
//! Used by: `registry`, `auth`, `compute`, `history`, `model`, `gpu`, `job_dir`, `checkpoint`, `config`, `exec`, `journal`,
//! `supervisor`, `container`, `controller`, `http`, `daemon`, `diagnostics`, `standalone`.

pub mod account;
pub mod cgroup;
pub mod child_timeout;
pub mod clock;
pub mod device_nodes;
pub mod disk;
pub mod error;
pub mod failpoint;
pub mod limiter_copies;
pub mod live;
pub mod lock_file;
pub mod log_times;
pub mod log_trim;
pub mod machine;
pub mod mig_device_nodes;
pub mod node_pods;
pub mod process;
pub mod rlimits;
pub mod run_as;
pub mod task_limits;
pub mod user;
pub mod user_names;
pub mod user_permits;
