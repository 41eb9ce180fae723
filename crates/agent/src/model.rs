//! Plain data of jobs, claims and GPUs, and pure rules over it: no file, no driver.
//!
//! May use: `host`, `auth`.
//! Used by: `gpu`, `job_dir`, `config`, `journal`, `supervisor`, `container`, `controller`, `http`, `daemon`,
//! `standalone`.

pub mod bypass;
pub mod cause;
pub mod claim;
pub mod counters;
pub mod event;
pub mod gpu_memory;
pub mod gpu_mode;
pub mod idle;
pub mod job;
pub mod job_filter;
pub mod known_gpu;
pub mod mig_instance;
pub mod oom;
pub mod out_of_service;
pub mod park_record;
pub mod policy;
pub mod recommend;
pub mod retention;
pub mod run_signature;
pub mod simulated_gpus;
pub mod usage;
pub mod validate;
