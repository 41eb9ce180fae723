//! The front end to ClearML: tasks of a server's queues in slices of this node's GPUs.
//!
//! The server is the stand-in of `tests/clearml-stub`; `real` has what also runs against a real one.

mod containers;
mod crash;
mod flags;
mod life;
mod peers;
mod people;
mod placement;
mod real;
mod weak;
mod withdrawn;
