//! The front end to ClearML: tasks of a server's queues in slices of this node's GPUs.
//!
//! The server is the stand-in of `tests/clearml-stub`; `real` has what also runs against a real one.

#[path = "clearml/life.rs"]
mod life;
#[path = "clearml/peers.rs"]
mod peers;
#[path = "clearml/placement.rs"]
mod placement;
