//! The integration tests of this crate, in one program. All of them belong to the second tier.

#![warn(clippy::disallowed_methods)]

mod page;
