//! Self-diagnosis for administrators: `divvy doctor` and `divvy selftest`.
//!
//! May use: `host`, `registry`, `job_dir`, `config`, `supervisor`, `daemon`.
//! Used by: the programs, through the crate's root.

pub mod doctor;
pub mod selftest;
