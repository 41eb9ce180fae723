//! Self-diagnosis for administrators: `divvy doctor` and `divvy selftest`; and `divvy gpus` without a daemon.
//!
//! May use: `host`, `registry`, `gpu`, `job_dir`, `checkpoint`, `config`, `supervisor`, `daemon`.
//! Used by: the programs, through the crate's root.

pub mod doctor;
pub mod gpus;
pub mod selftest;
