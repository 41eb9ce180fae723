//! Jobs in containers, under a real Docker daemon: the scenes that Podman plays as well, and those that one engine is enough for.

#[path = "docker/claim.rs"]
mod claim;
#[path = "docker/down.rs"]
mod down;
#[path = "docker/fixed.rs"]
mod fixed;
#[path = "docker/scenes.rs"]
mod scenes;
#[path = "docker/stock.rs"]
mod stock;

use scenes::{ENGINE, cancel, got, reports, scene, submit};
