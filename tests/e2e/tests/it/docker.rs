//! Jobs in containers, under a real Docker daemon: the scenes that Podman plays as well, and those that one engine is enough for.

mod claim;
mod down;
mod fixed;
#[allow(
    clippy::duplicate_mod,
    reason = "the scenes are played under both engines"
)]
mod scenes;
mod stock;
mod submitter;

use divvy_e2e::engine::Kind;

pub use scenes::lay_way_past;
use scenes::{cancel, got, reports, scene, submit};

/// The engine of these tests.
pub const ENGINE: Kind = Kind::Docker;
