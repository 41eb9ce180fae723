//! A cluster with one node in carrier mode, and what a scheduler and a kubelet do in it, done by the test.

use divvy_k8s::carrier::share::definition;
use divvy_k8s::carrier::{GATE, LABEL, NAMESPACE, RESOURCE};
use divvy_testkit::until_async as until;
use serde_json::{Value, json};

use crate::carrier::kubelet::Kubelet;
use crate::carrier::machine::{Machine, NODE, Program};
use crate::carrier::replica::Cluster;

pub const IMAGE: &str = "registry.example/divvy:test";
/// The GPU of the node that the test plays itself.
const PLAYED: &str = "GPU-played";

pub struct Rig {
    node: Option<Program>,
    daemon: Option<Program>,
    pub cluster: Cluster,
    pub kubelet: Kubelet,
    pub machine: Machine,
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
        rig.daemon = Some(rig.machine.daemon(gpus, &[]).await);
        rig
    }

    /// With a node that the test plays, and no daemon.
    pub async fn without_node() -> Self {
        let machine = Machine::new();
        let cluster = Cluster::new();
        cluster
            .server
            .create(serde_json::to_value(definition()).unwrap());
        cluster
            .server
            .create(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }));
        Self {
            node: None,
            daemon: None,
            cluster,
            kubelet: Kubelet::start(&machine.kubelet_dir()),
            machine,
        }
    }

    /// Starts the node part; returns once kubelet knows of it and its GPUs have records.
    pub async fn start_node(&mut self) {
        let registered = self.kubelet.registrations();
        let agent = self.machine.agent_socket();
        let node = self
            .machine
            .node(&["--carrier"], &agent, &self.cluster.server);
        self.node = Some(node);
        let gpus = self.machine.gpus().await.len();
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
        drop(self.node.take().unwrap());
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
        let gpus = self.machine.uuids().await;
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
