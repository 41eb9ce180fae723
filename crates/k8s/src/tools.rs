//! Command-line verbs for users and administrators: they list the cluster's jobs and GPUs, submit, and change nodes.

pub mod admin;
pub mod doctor;
pub mod submit;
pub mod uninstall;
pub mod views;
pub mod why;
