//! The integration tests of this crate, in one program: one link, and one pool of tests.

mod clearml;
mod surface;
