//! Self-diagnosis for administrators: `divvy doctor` and `divvy selftest`.

pub mod doctor;
pub mod selftest;
