//! The context room: the lifetime of contexts and green contexts, their limits and their peers.
//!
//! Destroying a context ends everything in it, so this is the highest room: it may use all others, and none of them may
//! use it.
//!
//! May use: `objects`, `process`.

pub mod green;
pub mod lifetime;
pub mod limit;
pub mod peer;
