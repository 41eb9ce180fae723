//! The verbs of people and administrators: they read the cluster, and change what they are told to.

pub mod admin;
pub mod doctor;
pub mod submit;
pub mod uninstall;
pub mod views;
pub mod why;
