//! MIG: what may lie where, and where the next instance goes, held against rules written down a second time, against
//! enumeration of everything there is, and against what was seen on GPUs.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

mod batch;
mod choose;
mod driver;
mod layouts;
mod place;
mod repack;
mod rules;
mod why;
