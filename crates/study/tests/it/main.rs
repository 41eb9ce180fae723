//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod learned;
#[path = "../../../core/tests/it/node.rs"]
mod node;
mod packing;
mod patterns;
mod tables;
mod waits;
