//! `gpus` and `ps` as people type them, against an API server with many objects, and with nodes and rights that fail.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use divvy_k8s::base::claim::DRIVER;
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

use crate::apiserver::ApiServer;
use crate::apiserver::exec::Ran;

struct Cluster {
    server: ApiServer,
    folder: tempfile::TempDir,
}

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Cluster {
    fn start() -> Self {
        Self {
            server: ApiServer::start(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
        let config = self.server.kubeconfig(self.folder.path());
        command.args(words).env("KUBECONFIG", config);
        command
    }

    fn run(&self, words: &[&str]) -> Said {
        said(&mut self.command(words))
    }

    /// A node with one GPU, and its pod of Divvy.
    fn node(&self, name: &str) {
        self.server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": { "name": format!("{name}-0") },
            "spec": {
                "driver": DRIVER, "nodeName": name,
                "pool": { "name": name, "generation": 1, "resourceSliceCount": 1 },
                "devices": [{
                    "name": "gpu-0", "allowMultipleAllocations": true,
                    "attributes": {
                        "type": { "string": "fraction" }, "uuid": { "string": format!("GPU-{name}") },
                        "model": { "string": "NVIDIA L4" }, "index": { "int": 0 },
                    },
                    "capacity": { "memory": { "value": "23034Mi" } },
                }],
            },
        }));
        self.server.create(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("divvy-{name}"), "namespace": "divvy-system", "labels": {
                "app.kubernetes.io/name": "divvy", "app.kubernetes.io/component": "node",
            } },
            "spec": { "nodeName": name, "containers": [] },
            "status": { "containerStatuses": [{
                "name": "plugin", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": { "running": {} },
            }] },
        }));
    }

    /// A pod with a claim on a node, or one that waits.
    fn pod(&self, namespace: &str, name: &str, node: Option<&str>) {
        let status = match node {
            Some(node) => json!({
                "allocation": { "devices": { "results": [{
                    "request": "r", "driver": DRIVER, "pool": node, "device": "gpu-0",
                    "consumedCapacity": { "memory": "5758Mi" },
                }] } },
                "reservedFor": [{ "resource": "pods", "name": name, "uid": name }],
            }),
            None => json!({}),
        };
        self.server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "namespace": namespace, "name": name },
            "spec": { "devices": { "requests": [
                { "name": "r", "exactly": { "deviceClassName": "fraction.gpu.divvy.dev" } },
            ] } },
            "status": status,
        }));
        self.server.create(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "annotations": { "divvy.dev/gpus": "0.250" } },
            "spec": { "nodeName": node, "containers": [], "resourceClaims": [
                { "name": "fraction-gpu", "resourceClaimName": name },
            ] },
            "status": match node {
                Some(_) => json!({ "phase": "Running" }),
                None => json!({ "phase": "Pending", "conditions": [{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/1 nodes are available: cannot allocate all claims",
                }] }),
            },
        }));
    }
}

fn said(command: &mut Command) -> Said {
    let output = command.output_bounded().unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn board(node: &str) -> Ran {
    let board = json!({ "schema": "divvy/v1", "kind": "Board", "items": [{
        "hostname": node, "version": "0.1.0", "changed_at": "2026-11-26T12:00:00Z", "last_event": 1,
        "gpus": [{ "index": 0, "model": "L4", "mode": "shared", "usable_bytes": 23_034u64 << 20, "used_bytes": 1u64 << 30,
                   "allocated_bytes": 0, "share": 0, "utilization_percent": 7 }],
        "jobs": [], "waiting": { "count": 0 }, "queues": [],
    }] });
    Ran::printed(board.to_string())
}

#[test]
fn a_node_that_hangs_is_named_and_does_not_hold_the_others() {
    let cluster = Cluster::start();
    for node in ["a", "b", "c"] {
        cluster.node(node);
    }
    cluster.server.on_exec(|pod, _| match pod {
        "divvy-b" => Ran {
            hangs: true,
            ..Ran::default()
        },
        "divvy-c" => Ran {
            code: 7,
            stderr: "{\"error\":{\"code\":\"no_daemon\",\"message\":\"no divvy daemon answers\"}}"
                .to_owned(),
            ..Ran::default()
        },
        pod => board(pod),
    });
    let begun = Instant::now();
    let said = cluster.run(&["gpus", "--timeout", "1"]);
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(said.code, Some(0), "{}", said.err);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(
        lines[1].starts_with("a ") && lines[1].contains(" 7%"),
        "{}",
        said.out
    );
    for (line, why) in [
        (lines[2], "had no answer within 1 s"),
        (lines[3], "no divvy daemon answers"),
    ] {
        assert!(line.contains(why), "{line}");
        assert!(said.err.contains(why), "{}", said.err);
    }
}

#[test]
fn without_the_right_to_run_commands_the_views_say_so_and_show_the_claims() {
    let cluster = Cluster::start();
    cluster.node("a");
    cluster.pod("team", "train", Some("a"));
    cluster.server.forbid("create", "pods");
    let said = cluster.run(&["gpus"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        said.out.contains(" 0.25 ") && said.out.contains("team/train 0.25"),
        "{}",
        said.out
    );
    assert_eq!(
        said.err,
        "divvy-k8s: you may not create pods/exec in namespace divvy-system, so memory in use and utilisation are unknown\n"
    );
}

#[test]
fn a_user_of_a_namespace_sees_the_own_pods_and_is_told_the_missing_right() {
    let cluster = Cluster::start();
    cluster.node("a");
    cluster.pod("team", "train", Some("a"));
    cluster.pod("other", "secret", Some("a"));
    cluster.pod("team", "eval", None);
    cluster.server.deny("list", "resourceslices");
    cluster.server.forbid("create", "pods");
    let said = cluster.run(&["ps", "-n", "team"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(!said.out.contains("secret"), "{}", said.out);
    assert!(
        said.out.contains("train") && said.out.contains("0.25"),
        "{}",
        said.out
    );
    assert!(
        said.out.contains("cannot allocate all claims"),
        "{}",
        said.out
    );
    assert!(
        said.err.contains("you may not list ResourceSlices"),
        "{}",
        said.err
    );
    let said = cluster.run(&["gpus"]);
    assert_eq!((said.code, said.out.as_str()), (Some(4), ""));
    assert!(said.err.contains("hint: "), "{}", said.err);
}

#[test]
fn claims_come_page_by_page() {
    let cluster = Cluster::start();
    cluster.node("a");
    for claim in 0..1_201 {
        cluster.server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "namespace": "team", "name": format!("c{claim}") }, "spec": {},
            "status": { "allocation": { "devices": { "results": [{
                "request": "r", "driver": DRIVER, "pool": "a", "device": "gpu-0",
                "consumedCapacity": { "memory": "2Mi" },
            }] } } },
        }));
    }
    cluster.server.on_exec(|pod, _| board(pod));
    let said = cluster.run(&["gpus", "-o", "json"]);
    let list: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(list["items"][0]["allocated_bytes"], 1_201u64 * (2 << 20));
    let pages = cluster.server.look(|view| {
        let calls = view.calls().iter();
        let of_claims = calls.filter(|call| call.path.ends_with("/resourceclaims"));
        of_claims
            .map(|call| call.query["limit"].clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(pages, ["500", "500", "500"]);
    // A table names some of the holders, and counts the others.
    assert!(cluster.run(&["gpus"]).out.contains("1197 more"));
}

#[test]
fn tables_fit_a_narrow_terminal_and_a_closed_pipe_ends_the_command() {
    let cluster = Cluster::start();
    cluster.node("a-node-with-a-long-name.example.internal");
    let node = Some("a-node-with-a-long-name.example.internal");
    let long = "x".repeat(120);
    cluster.pod("team", &long, node);
    cluster.pod("team", "eval", None);
    cluster.server.on_exec(|pod, _| board(pod));
    for words in [&["gpus"][..], &["ps", "-A"]] {
        let said = said(cluster.command(words).env("COLUMNS", "60"));
        assert_eq!(said.code, Some(0), "{}", said.err);
        for line in said.out.lines() {
            assert!(line.chars().count() <= 60, "{words:?}: {line}");
        }
    }
    let mut command = cluster.command(&["ps", "-A"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.output_bounded().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn no_cluster_and_an_expired_login_have_their_exit_codes() {
    let cluster = Cluster::start();
    for words in [&["gpus"][..], &["ps"]] {
        let mut away = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
        away.args(words).env("KUBECONFIG", "/nonexistent");
        let said = said(away.env("HOME", "/nonexistent"));
        assert_eq!(said.code, Some(7), "{words:?}: {}", said.err);
    }
    cluster.server.fail("GET", "/", 401, usize::MAX);
    cluster.server.fail("POST", "/", 401, usize::MAX);
    for words in [&["gpus"][..], &["ps"]] {
        let said = cluster.run(words);
        assert_eq!(said.code, Some(4), "{words:?}: {}", said.err);
    }
}
