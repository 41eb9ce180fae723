//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod best_fit;
mod learned;
