//! A cluster with one node in carrier mode, and what a scheduler and a kubelet do in it, done by the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use divvy_api::client::Client;
use divvy_api::v1::{Gpu, HeldClaim};
use divvy_k8s::carrier::share::definition;
use divvy_k8s::carrier::{GATE, LABEL, NAMESPACE, RESOURCE};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::kubelet::Kubelet;
use crate::patience::until;
use crate::replica::Cluster;

pub const NODE: &str = "node-a";
pub const IMAGE: &str = "registry.example/divvy:test";
/// The GPU of the node that the test plays itself.
const PLAYED: &str = "GPU-played";

pub struct Rig {
    pub cluster: Cluster,
    pub kubelet: Kubelet,
    folder: TempDir,
    daemon: Option<Child>,
    node: Option<Child>,
}

/// A pod of a namespace that opted in, as the webhook makes it.
pub fn gated(name: &str, units: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "team", "labels": { (LABEL.0): LABEL.1 } },
        "spec": {
            "schedulingGates": [{ "name": GATE }],
            "containers": [{ "name": "c", "image": "x", "resources": { "limits": { (RESOURCE): units.to_string() } } }],
        },
    })
}

impl Rig {
    /// With a daemon over these GPUs.
    pub async fn new(gpus: &str) -> Self {
        let mut rig = Self::without_node().await;
        let home = rig.path().join("home");
        std::fs::create_dir_all(&home).unwrap();
        let mut command = Command::new(beside("divvy"));
        command
            .args(["daemon", "--sim", gpus, "--cdi-dir"])
            .arg(rig.path().join("cdi"));
        for name in [
            "DIVVY_SIM",
            "DIVVY_SIM_STATE",
            "DIVVY_SLICE",
            "LD_PRELOAD",
            "CUDA_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
        ] {
            command.env_remove(name);
        }
        rig.daemon = Some(rig.spawn(command.env("DIVVY_HOME", &home), "daemon.log"));
        let socket = rig.socket();
        until("the daemon answers", async || {
            UnixStream::connect(&socket).await.ok()
        })
        .await;
        rig
    }

    /// With a node that the test plays, and no daemon.
    pub async fn without_node() -> Self {
        // Paths of sockets are short: 108 bytes at most.
        let folder = TempDir::with_prefix_in("c", "/tmp").unwrap();
        let cluster = Cluster::new();
        cluster
            .server
            .create(serde_json::to_value(definition()).unwrap());
        cluster
            .server
            .create(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }));
        Self {
            kubelet: Kubelet::start(&folder.path().join("kubelet")),
            cluster,
            folder,
            daemon: None,
            node: None,
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn socket(&self) -> PathBuf {
        self.path().join("home/divvy.sock")
    }

    pub fn agent(&self) -> Client {
        Client::new(self.socket())
    }

    pub async fn held(&self) -> Vec<HeldClaim> {
        self.agent().claims().await.unwrap()
    }

    pub async fn gpus(&self) -> Vec<Gpu> {
        self.agent().gpus().await.unwrap()
    }

    /// Starts the node part; returns once kubelet knows of it and its GPUs have records.
    pub async fn start_node(&mut self) {
        let registered = self.kubelet.registrations();
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
        command
            .args(["node", "--carrier", "--node-name", NODE, "--kubelet-dir"])
            .arg(self.path().join("kubelet"))
            .arg("--agent")
            .arg(self.socket())
            .env("KUBECONFIG", self.cluster.server.kubeconfig(self.path()));
        self.node = Some(self.spawn(&mut command, "node.log"));
        let gpus = self.gpus().await.len();
        until("the node part is known", async || {
            let told = self
                .shares()
                .iter()
                .filter(|share| share["status"]["memoryBytes"].is_u64())
                .count();
            (self.kubelet.registrations() > registered && told == gpus).then_some(())
        })
        .await;
    }

    /// SIGKILL, at once.
    pub fn kill_node(&mut self) {
        kill(self.node.take().unwrap());
    }

    fn spawn(&self, command: &mut Command, log: &str) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path().join(log))
            .unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        child.spawn().unwrap()
    }

    pub fn pods(&self, namespace: &str) -> Vec<Value> {
        let mut pods = self.cluster.server.look(|view| view.all("pods"));
        pods.retain(|pod| pod["metadata"]["namespace"] == namespace);
        pods
    }

    pub fn pod(&self, name: &str) -> Value {
        self.cluster
            .server
            .look(|view| view.get("pods", "team", name))
            .unwrap()
    }

    pub fn shares(&self) -> Vec<Value> {
        self.cluster.server.look(|view| view.all("gpushares"))
    }

    fn bind(&self, namespace: &str, pod: &str) {
        let bound = json!({ "spec": { "nodeName": NODE }, "status": { "phase": "Running" } });
        self.cluster.server.merge("pods", namespace, pod, &bound);
    }

    /// What scheduler, NVIDIA's plugin and kubelet do for carriers.
    async fn carries(&self) {
        let gpus: Vec<String> = self.gpus().await.into_iter().map(|gpu| gpu.uuid).collect();
        for carrier in self.pods(NAMESPACE) {
            let given = self.kubelet.given();
            let free = gpus.iter().find(|gpu| !given.contains(gpu));
            if let (None, Some(gpu)) = (carrier["spec"]["nodeName"].as_str(), free) {
                let name = carrier["metadata"]["name"].as_str().unwrap();
                self.kubelet.give_gpu(name, gpu);
                self.bind(NAMESPACE, name);
            }
        }
    }

    /// Lets a pod run, once it may: its CDI device.
    pub async fn runs(&self, name: &str) -> String {
        until("its gate is lifted", async || {
            self.carries().await;
            self.pod(name)["spec"]["schedulingGates"]
                .as_array()
                .is_none_or(Vec::is_empty)
                .then_some(())
        })
        .await;
        let units =
            self.pod(name)["spec"]["containers"][0]["resources"]["limits"][RESOURCE].clone();
        let units: usize = units.as_str().unwrap().parse().unwrap();
        // The scheduler waits until the node has so many.
        until("the node offers sixteenths", async || {
            (self.kubelet.devices().len() >= units).then_some(())
        })
        .await;
        self.bind("team", name);
        self.kubelet.admit("team", name, units).await.unwrap()
    }

    /// Its containers have ended, and the API server knows.
    pub fn ends(&self, name: &str) {
        self.kubelet.ends("team", name);
        self.cluster.server.merge(
            "pods",
            "team",
            name,
            &json!({ "status": { "phase": "Succeeded" } }),
        );
    }

    /// A node part for tests of the controller alone: it has one GPU, and says which carrier has it.
    pub fn plays_node(&self) {
        let server = &self.cluster.server;
        if self.shares().is_empty() {
            server.create(json!({
                "apiVersion": "divvy.dev/v1alpha1", "kind": "GpuShare",
                "metadata": { "name": PLAYED.to_lowercase(), "namespace": NAMESPACE },
                "spec": { "node": NODE, "gpu": PLAYED },
                "status": { "memoryBytes": 80_u64 << 30, "carrier": null, "held": [] },
            }));
        }
        for carrier in self.pods(NAMESPACE) {
            if carrier["spec"]["nodeName"].is_null() {
                let name = carrier["metadata"]["name"].as_str().unwrap();
                self.bind(NAMESPACE, name);
                let status = json!({ "status": { "carrier": name } });
                server.merge("gpushares", NAMESPACE, &PLAYED.to_lowercase(), &status);
            }
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in [self.node.take(), self.daemon.take()] {
            child.into_iter().for_each(kill);
        }
        if std::thread::panicking() {
            for log in ["daemon.log", "node.log"] {
                let text = std::fs::read_to_string(self.path().join(log)).unwrap_or_default();
                eprintln!("{log}:\n{text}");
            }
        }
    }
}

fn kill(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// A program that was built beside the test.
fn beside(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join(name);
    assert!(
        program.is_file(),
        "{} is not there: cargo build -p divvy -p divvy-sim -p divvy-preload",
        program.display()
    );
    program
}
