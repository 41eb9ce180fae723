//! `admin`, `submit` and `doctor` as people type them, against an API server.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::apiserver;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::{DRIVER, FRACTION_CLASS, Inventory, MEMORY_CLASS};
use divvy_k8s::base::inject::inject;
use divvy_k8s::base::pod_request::Steps;
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

use apiserver::ApiServer;

/// A cluster, and commands that mean it.
struct Cluster {
    server: ApiServer,
    folder: tempfile::TempDir,
}

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
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
        command
            .args(words)
            .env("KUBECONFIG", self.server.kubeconfig(self.folder.path()));
        command
    }

    fn run(&self, words: &[&str]) -> Said {
        self.command(words).output_bounded().unwrap().into()
    }

    fn node(&self, name: &str, labels: &Value) {
        self.server.create(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": labels },
            "status": {
                "allocatable": { "cpu": "8" },
                "conditions": [{ "type": "Ready", "status": "True" }],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
                    "operatingSystem": "linux", "osImage": "", "systemUUID": "", "kubeletVersion": "v1.36.2",
                    "containerRuntimeVersion": "containerd://2.1.0",
                },
            },
        }));
    }

    fn slice(&self, node: &str, gpus: usize) {
        let devices: Vec<Value> = (0..gpus)
            .map(|at| {
                json!({
                    "name": format!("gpu-{at}"),
                    "allowMultipleAllocations": true,
                    "attributes": { "type": { "string": "fraction" }, "uuid": { "string": format!("GPU-{node}-{at}") } },
                    "capacity": { "memory": { "value": "80Gi" } },
                })
            })
            .collect();
        self.server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": { "name": format!("{node}-0") },
            "spec": {
                "driver": DRIVER, "nodeName": node, "devices": devices,
                "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
            },
        }));
    }

    /// Stands for the webhook: it injects, as the real one does.
    fn webhook(&self) {
        self.server.on_create(|kind, object| {
            let inventory = Inventory {
                sizes: [Bytes::gib(80)].into(),
                ..Inventory::default()
            };
            if kind == "Pod" {
                match inject(object, &inventory, Steps::Any) {
                    Ok(Ok(injection)) => *object = injection.pod,
                    Ok(Err(_)) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            Ok(())
        });
    }

    fn labels(&self, node: &str) -> BTreeMap<String, String> {
        let node = self
            .server
            .look(|view| view.get("nodes", "", node))
            .unwrap();
        serde_json::from_value(node["metadata"]["labels"].clone()).unwrap_or_default()
    }
}

#[test]
fn a_role_is_set_and_taken_by_name_and_twice_is_once() {
    let cluster = Cluster::start();
    cluster.node("a", &json!({}));
    cluster.node("b", &json!({ "cdmo.clear.ml/gpu-partitioning": "mig" }));
    let set = ["admin", "set", "node-role", "--dynamic-mig-enabled", "a"];
    let said = cluster.run(&set);
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(0), "node/a dynamic-mig (changed)\n"),
        "{}",
        said.err
    );
    assert_eq!(cluster.labels("a")["divvy.dev/dynamic-mig"], "true");
    let writes = cluster.server.look(|view| view.writes());
    let said = cluster.run(&set);
    assert_eq!(said.out, "node/a dynamic-mig (unchanged)\n");
    assert_eq!(
        cluster.server.look(|view| view.writes()),
        writes,
        "nothing was written"
    );

    let said = cluster.run(&[
        "admin",
        "remove",
        "node-role",
        "--dynamic-mig-enabled",
        "a",
        "-o",
        "json",
    ]);
    assert_eq!(said.json()["kind"], "NodeRoleList");
    assert_eq!(
        said.json()["items"][0],
        json!({ "node": "a", "role": "fractions", "role_labels": [], "changed": true })
    );
    assert!(!cluster.labels("a").contains_key("divvy.dev/dynamic-mig"));

    let said = cluster.run(&["admin", "remove", "node-role", "--dynamic-mig-enabled", "b"]);
    assert_eq!(said.code, Some(8), "another product's label gives the role");
    assert!(
        said.err
            .contains("kubectl label node b cdmo.clear.ml/gpu-partitioning-"),
        "{}",
        said.err
    );
    let said = cluster.run(&[
        "admin",
        "remove",
        "node-role",
        "--dynamic-mig-enabled",
        "--all-labels",
        "b",
    ]);
    assert_eq!(
        (said.code, cluster.labels("b").len()),
        (Some(0), 0),
        "{}",
        said.err
    );
}

#[test]
fn an_unknown_node_a_missing_flag_and_a_missing_cluster_have_their_own_exit_codes() {
    let cluster = Cluster::start();
    cluster.node("a", &json!({}));
    let said = cluster.run(&[
        "admin",
        "set",
        "node-role",
        "--dynamic-mig-enabled",
        "a",
        "ghost",
        "-o",
        "json",
    ]);
    assert_eq!((said.code, said.out.as_str()), (Some(3), ""));
    let error: Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    assert_eq!(error["error"]["hint"], "the nodes are a");
    assert!(cluster.labels("a").is_empty(), "nothing was changed");

    assert_eq!(
        cluster.run(&["admin", "set", "node-role", "a"]).code,
        Some(2)
    );
    let said = cluster.run(&["admin", "set", "node-role", "a", "-o", "json"]);
    let error: Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!(error["error"]["code"], "usage");
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("--dynamic-mig-enabled")
    );

    let nobody = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args(["admin", "nodes"])
        .env("KUBECONFIG", cluster.folder.path().join("none"))
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output_bounded()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(7));
    cluster.server.fail("GET", "/api/v1/nodes", 500, 9);
    assert_eq!(cluster.run(&["admin", "nodes"]).code, Some(1));
}

#[test]
fn nodes_are_listed_with_their_role_and_what_they_publish() {
    let cluster = Cluster::start();
    cluster.node(
        "a",
        &json!({ "node-role.kubernetes.io/runai-mig-enabled": "true" }),
    );
    cluster.node("b", &json!({}));
    cluster.slice("b", 2);
    let said = cluster.run(&["admin", "nodes"]);
    assert_eq!(
        said.out,
        "NODE  ROLE         SHARING  GPUS  MODE      PUBLISHED                      REASON\n\
         a     dynamic-mig  -        0     -         nothing\n\
         b     fractions    claims   2     2 shared  2 devices in 1 ResourceSlices\n"
    );
    let json = cluster.run(&["admin", "nodes", "-o", "json"]).json();
    assert_eq!(
        json["items"][0]["role_labels"],
        json!(["node-role.kubernetes.io/runai-mig-enabled"])
    );
    assert_eq!(json["items"][1]["gpus"], json!(["GPU-b-0", "GPU-b-1"]));
}

#[test]
fn a_submission_is_a_pod_with_its_claim_and_json_says_which() {
    let cluster = Cluster::start();
    cluster.webhook();
    let said = cluster.run(&[
        "submit", "--gpu", "0.25", "--name", "train", "-n", "team", "--env", "A=1", "-o", "json",
        "image:1", "--", "python", "x.py",
    ]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(said.json()["items"][0]["name"], "train");
    assert_eq!(said.json()["items"][0]["asks"], "0.250 of a GPU");
    let pod = cluster
        .server
        .look(|view| view.get("pods", "team", "train"))
        .unwrap();
    assert_eq!(pod["spec"]["resourceClaims"][0]["name"], "fraction-gpu");
    assert_eq!(
        pod["spec"]["containers"][0]["command"],
        json!(["python", "x.py"])
    );
    assert_eq!(
        cluster.server.look(|view| view.all("pods").len()),
        1,
        "the trial was none"
    );

    let again = cluster.run(&[
        "submit", "--gpu", "0.25", "--name", "train", "-n", "team", "image:1",
    ]);
    assert_eq!(again.code, Some(8), "{}", again.err);
    let job = cluster.run(&[
        "submit",
        "--mig-profile",
        "1g.10gb",
        "--job",
        "-n",
        "team",
        "registry.example/me/net:2",
    ]);
    assert_eq!(job.code, Some(0), "{}", job.err);
    assert!(job.out.starts_with("job/net-"), "{}", job.out);
    let made = cluster.server.look(|view| view.all("jobs").pop()).unwrap();
    let container = &made["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["resources"]["limits"]["nvidia.com/mig-1g.10gb"],
        "1"
    );
}

#[test]
fn what_would_run_without_its_limit_is_not_made() {
    let cluster = Cluster::start();
    let said = cluster.run(&["submit", "--gpu-memory", "4G", "-n", "team", "image:1"]);
    assert_eq!(said.code, Some(4));
    assert!(
        said.err
            .contains("kubectl label namespace team divvy.dev/inject=enabled"),
        "{}",
        said.err
    );
    assert_eq!(cluster.server.look(|view| view.all("pods").len()), 0);
}

#[test]
fn what_no_gpu_has_and_what_is_no_size_are_told_apart() {
    let cluster = Cluster::start();
    cluster.slice("a", 1);
    cluster.webhook();
    let submit = |words: &[&str]| {
        let mut all = vec!["submit"];
        all.extend(words);
        all.extend(["-o", "json", "image:1"]);
        let said = cluster.run(&all);
        let error: Value = serde_json::from_str(&said.err).unwrap();
        (
            said.code.unwrap(),
            error["error"]["code"].as_str().unwrap().to_owned(),
            error,
        )
    };
    let (code, word, error) = submit(&["--gpu-memory", "90G"]);
    assert_eq!((code, word.as_str()), (5, "never_fits"), "{error}");
    let (code, _, error) = submit(&["--mig-profile", "1g.10gb"]);
    assert_eq!(code, 5, "{error}");
    assert!(
        error["error"]["hint"]
            .as_str()
            .unwrap()
            .contains("admin set node-role")
    );
    for words in [
        &["--gpu-memory", "90"][..],
        &["--gpu", "1.5"],
        &["--gpu", "0.2", "--gpu-memory", "4G"],
        &[],
        &["--gpu", "0.2", "--name", "Not_A_Name"],
    ] {
        let (code, word, error) = submit(words);
        assert_eq!((code, word.as_str()), (2, "usage"), "{error}");
    }
    assert_eq!(cluster.server.look(|view| view.all("pods").len()), 0);
}

#[test]
fn a_dry_run_shows_what_the_webhook_would_make_of_it_without_a_cluster() {
    let output = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args([
            "submit",
            "--gpu-memory",
            "4G",
            "--name",
            "train",
            "--dry-run",
            "--gpu-size",
            "80GiB",
            "image:1",
        ])
        .args(["--", "python", "x.py"])
        .env("KUBECONFIG", "/nowhere/at/all")
        .output_bounded()
        .unwrap();
    let said = Said::from(output);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let expected = r#"---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
"#;
    assert!(said.out.starts_with(expected), "{}", said.out);
    for line in [
        "              memory: 4096Mi",
        "kind: Pod",
        "    gpu-memory: '4096'",
        "  - name: fraction-gpu",
        "    runAsNonRoot: true",
        "    - python",
    ] {
        assert!(
            said.out.lines().any(|shown| shown == line),
            "{line}: {}",
            said.out
        );
    }
    let cluster = Cluster::start();
    cluster.slice("a", 1);
    let said = cluster.run(&[
        "submit",
        "--gpu",
        "0.5",
        "--job",
        "--dry-run",
        "-o",
        "json",
        "image:1",
    ]);
    let kinds: Vec<Value> = said.json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["kind"].clone())
        .collect();
    assert_eq!(kinds, ["ResourceClaimTemplate", "Job"]);
    assert_eq!(cluster.server.look(|view| view.writes()), 0);
}

/// A submission that is followed.
struct Followed {
    child: Child,
    err: BufReader<std::process::ChildStderr>,
}

impl Followed {
    fn of(cluster: &Cluster) -> Self {
        let mut child = cluster
            .command(&[
                "submit", "--gpu", "0.25", "--name", "train", "-n", "team", "--follow", "image:1",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, err }
    }

    /// Reads what it says until a line has this.
    fn until(&mut self, part: &str) {
        let mut all = String::new();
        loop {
            let before = all.len();
            self.err.read_line(&mut all).unwrap();
            assert!(all.len() > before, "it ended without `{part}`: {all}");
            if all[before..].contains(part) {
                return;
            }
        }
    }

    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        self.err.read_to_string(&mut err).unwrap();
        (self.child.wait_bounded().unwrap().code(), out, err)
    }
}

fn container(state: &Value, phase: &str) -> Value {
    json!({ "status": { "phase": phase, "containerStatuses": [
        { "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state },
    ] } })
}

#[test]
fn a_client_that_follows_a_pod_gets_the_reason_the_output_and_the_exit_code() {
    let cluster = Cluster::start();
    cluster.webhook();
    let mut followed = Followed::of(&cluster);
    cluster
        .server
        .until("the pod", |view| view.get("pods", "team", "train"));
    let said = "0/3 nodes are available: 3 cannot allocate all claims.";
    cluster.server.merge(
        "pods",
        "team",
        "train",
        &json!({ "status": { "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said },
    ] } }),
    );
    followed.until(said);
    cluster
        .server
        .print("team", "train", "2026-11-21T10:00:00.000000001Z epoch 1\n");
    cluster.server.merge(
        "pods",
        "team",
        "train",
        &container(&json!({ "running": {} }), "Running"),
    );
    cluster
        .server
        .until("somebody who reads its output", |view| {
            view.calls()
                .iter()
                .any(|call| call.path.ends_with("/log"))
                .then_some(())
        });
    cluster
        .server
        .print("team", "train", "2026-11-21T10:00:01.000000001Z epoch 2\n");
    let ended = container(&json!({ "terminated": { "exitCode": 3 } }), "Failed");
    cluster.server.merge("pods", "team", "train", &ended);
    let (code, out, err) = followed.end();
    assert_eq!(
        (code, out.as_str()),
        (Some(3), "epoch 1\nepoch 2\n"),
        "{err}"
    );
}

#[test]
fn what_never_started_and_what_was_taken_away_end_with_125() {
    let cluster = Cluster::start();
    cluster.webhook();
    let followed = Followed::of(&cluster);
    cluster
        .server
        .until("the pod", |view| view.get("pods", "team", "train"));
    let waiting = json!({ "waiting": { "reason": "InvalidImageName", "message": "no such name" } });
    cluster
        .server
        .merge("pods", "team", "train", &container(&waiting, "Pending"));
    let (code, _, err) = followed.end();
    assert_eq!(code, Some(125));
    assert!(err.contains("InvalidImageName: no such name"), "{err}");

    cluster.server.remove("pods", "team", "train");
    let mut followed = Followed::of(&cluster);
    followed.until("waits: ");
    cluster.server.remove("pods", "team", "train");
    let (code, _, err) = followed.end();
    assert_eq!(code, Some(125));
    assert!(err.contains("deleted before it ended"), "{err}");
}

/// All that a sound installation has.
fn sound() -> Cluster {
    let cluster = Cluster::start();
    cluster.webhook();
    cluster.node("a", &json!({}));
    cluster.slice("a", 1);
    for object in [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team", "labels": { "divvy.dev/inject": "enabled" } } }),
        json!({ "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": FRACTION_CLASS }, "spec": {} }),
        json!({ "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": MEMORY_CLASS }, "spec": {} }),
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "divvy-node-x", "namespace": "divvy-system",
                "labels": { "app.kubernetes.io/name": "divvy", "app.kubernetes.io/component": "node" } },
            "spec": { "nodeName": "a", "containers": [] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
        json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "toolkit", "namespace": "gpu-operator" },
            "spec": { "selector": {}, "template": { "spec": { "containers": [{ "name": "c", "image": "nvcr.io/nvidia/k8s/container-toolkit:v1",
                "env": [{ "name": "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED", "value": "false" }] }] } } } }),
    ] {
        cluster.server.create(object);
    }
    cluster
}

#[test]
fn the_doctor_says_of_each_thing_what_was_read_and_fails_where_pods_would() {
    let cluster = sound();
    let said = cluster.run(&["doctor", "-o", "json"]);
    let items = said.json()["items"].as_array().unwrap().clone();
    let status = |check: &str| {
        let row = items.iter().find(|row| row["check"] == check);
        row.unwrap_or_else(|| panic!("{check}: {items:?}"))["status"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for check in [
        "server.version",
        "nodes.divvy",
        "nodes.nvidia-plugin",
        "nodes.kubelet",
        "nodes.cdi",
        "nodes.gpus-by-variable",
        "published.classes",
        "published.slices",
        "webhook.namespaces",
        "webhook.answer",
        "pods.host-pid",
        "caller.rights",
    ] {
        assert_eq!(status(check), "ok", "{check}");
    }
    assert_eq!(
        status("webhook.configuration"),
        "fail",
        "this stand-in has none"
    );
    assert_eq!(said.code, Some(1));
    assert!(
        items
            .iter()
            .all(|row| !row["read"].as_str().unwrap().is_empty())
    );
    assert_eq!(
        cluster.server.look(|view| view.all("pods").len()),
        1,
        "the trial was none"
    );
}

#[test]
fn the_doctor_names_the_way_for_an_older_cluster_and_what_it_may_not_look_at() {
    let cluster = sound();
    cluster.server.set_release("v1.35.3");
    cluster.server.forbid("patch", "nodes");
    cluster
        .server
        .fail("GET", "/apis/apps/v1/daemonsets", 403, 9);
    let said = cluster.run(&["doctor"]);
    assert_eq!(said.code, Some(1));
    for part in [
        "fail     server.version",
        "carrier mode",
        "unknown  nodes.gpus-by-variable",
        "missing rights: patch nodes (admin set)",
    ] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let nobody = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args(["doctor", "-o", "json"])
        .env("KUBECONFIG", "/nowhere/at/all")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output_bounded()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(7));
}
