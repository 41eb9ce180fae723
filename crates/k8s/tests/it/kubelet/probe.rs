//! The agent's liveness probe, and what becomes of an agent that hangs.

use std::process::{Command, Output};

use divvy_testkit::Bounded as _;

use crate::kubelet::rig::Node;

fn probe(node: &Node) -> Output {
    Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args(["probe", "--seconds", "1", "--agent"])
        .arg(node.machine.agent_socket())
        .output_bounded()
        .unwrap()
}

#[track_caller]
fn fails(node: &Node, why: &str) {
    let output = probe(node);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(why), "{said}");
}

#[tokio::test(flavor = "current_thread")]
async fn an_agent_that_is_stopped_fails_its_probe_and_one_that_goes_on_passes() {
    let mut node = Node::new("a100-80gb:1");
    fails(&node, "no daemon listens on");
    node.start_daemon(&[]).await;
    assert!(probe(&node).status.success());
    node.stop_daemon();
    fails(&node, "did not respond within 1 s");
    node.continue_daemon();
    assert!(probe(&node).status.success());
}
