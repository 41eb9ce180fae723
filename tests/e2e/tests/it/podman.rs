//! Jobs in containers, under a real Podman: the scenes of Docker's tests, and what comes of having no daemon.

#[allow(
    clippy::duplicate_mod,
    reason = "the scenes are played under both engines"
)]
#[path = "docker/scenes.rs"]
mod scenes;

use std::path::Path;

use divvy_api::v1::EndReason;
use divvy_e2e::engine::{Engine, Kind};
use divvy_e2e::until;

use scenes::{home_with, pid_in, submit};

/// The engine of these tests.
pub const ENGINE: Kind = Kind::Podman;

#[test]
fn a_container_runs_to_its_end_while_podmans_socket_is_not_served() {
    let Some(engine) = Engine::alone(ENGINE) else {
        return;
    };
    let home = home_with(&engine, "a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let gate = home.gate("go");
    let gates = Path::new(&gate).parent().expect("it is in a folder");
    let mount = format!("-v {}:/gates", gates.display());
    let script = "echo before; until test -e /gates/go; do sleep 0.05; done; echo after; exit 5";
    let job = submit(&home, &["--docker-args", &mount], &["sh", "-c", script]);
    home.running(&job);
    until("its first line is in the log", || {
        home.log(&job).contains("before\n").then_some(())
    });
    let first = format!("/proc/{}", pid_in(&home, &job, "started"));

    engine.stop();
    assert!(Path::new(&first).exists(), "it ended with the service");
    home.open("go");
    until("the container has ended", || {
        (!Path::new(&first).exists()).then_some(())
    });
    engine.serve();

    let ended = home.ended(&job);
    let (reason, code) = (ended.end_reason, ended.exit_code);
    assert_eq!((reason, code), (Some(EndReason::Failed), Some(5)));
    assert_eq!(home.log(&job), "before\nafter\n");
    engine.is_rid_of(&job, home.path());
}
