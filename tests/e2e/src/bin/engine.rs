//! Serves a container engine with the images of the tests until its standard input ends, so that the processes of one test run share it.
//!
//! `engine docker` prints the folder of the engine, for the variable of `Kind::variable`; it prints nothing where there can be no engine.
#![allow(
    clippy::print_stdout,
    reason = "the folder is what the caller asks for"
)]

use std::io::Read as _;

use divvy_e2e::engine::{Engine, Kind};

fn main() {
    let kind = match std::env::args().nth(1).as_deref() {
        Some("podman") => Kind::Podman,
        _ => Kind::Docker,
    };
    let Some(engine) = Engine::alone(kind) else {
        return;
    };
    println!("{}", engine.folder().display());
    // An error ends it as well.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
