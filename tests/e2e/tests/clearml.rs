//! The front end to ClearML: tasks of a server's queues in slices of this node's GPUs.
//!
//! The server is the stand-in of `tests/clearml-stub`; `real` has what also runs against a real one.

#[path = "clearml/containers.rs"]
mod containers;
#[path = "clearml/crash.rs"]
mod crash;
#[path = "clearml/flags.rs"]
mod flags;
#[path = "clearml/life.rs"]
mod life;
#[path = "clearml/peers.rs"]
mod peers;
#[path = "clearml/placement.rs"]
mod placement;
#[path = "clearml/real.rs"]
mod real;
#[path = "clearml/weak.rs"]
mod weak;
