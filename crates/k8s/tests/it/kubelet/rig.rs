//! A node of a cluster: kubelet, an API server, and on the node's machine a daemon and the driver between them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitStatus;

use divvy_k8s::base::claim::DRIVER;
use divvy_k8s::node::protocol::dra::Claim;
use divvy_testkit::until_async as until;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::kubelet::apiserver::ApiServer;
use crate::kubelet::fake::{Driver, Kubelet};
use crate::kubelet::machine::{Machine, NODE, Program};

const NAMESPACE: &str = "team";

pub struct Node {
    driver: Option<Program>,
    daemon: Option<Program>,
    pub api: ApiServer,
    pub kubelet: Kubelet,
    gpus: &'static str,
    pub machine: Machine,
}

impl Node {
    /// With these GPUs, and nothing running yet.
    pub fn new(gpus: &'static str) -> Self {
        let machine = Machine::new();
        let api = ApiServer::start();
        api.create(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": NODE, "labels": { "divvy.dev/dynamic-mig": "true" } },
        }));
        api.create(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        }));
        let kubelet = Kubelet::new(&machine.kubelet_dir());
        fs::write(machine.path().join("sim.toml"), "").unwrap();
        Self {
            driver: None,
            daemon: None,
            api,
            kubelet,
            gpus,
            machine,
        }
    }

    /// The same, of which this one is in MIG mode from the beginning.
    pub fn divided(gpus: &'static str, gpu: u32) -> Self {
        Self::simulated(gpus, &format!("[mig]\nenabled = [{gpu}]\n"))
    }

    /// The same, with this configuration of the simulator.
    pub fn simulated(gpus: &'static str, config: &str) -> Self {
        let node = Self::new(gpus);
        fs::write(node.machine.path().join("sim.toml"), config).unwrap();
        node
    }

    /// With a daemon and a driver that is registered.
    pub async fn served(gpus: &'static str) -> (Self, Driver) {
        Self::new(gpus).serve().await
    }

    pub async fn serve(self) -> (Self, Driver) {
        let mut node = self;
        node.start_daemon(&[]).await;
        node.start_driver(&node.machine.agent_socket());
        let driver = node.kubelet.driver().await;
        (node, driver)
    }

    /// Starts the daemon, with these variables besides; returns once it answers.
    pub async fn start_daemon(&mut self, env: &[(&str, &str)]) {
        let config = self.machine.path().join("sim.toml");
        let config = ("DIVVY_SIM_CONFIG", config.to_str().unwrap());
        let env = [env, &[config]].concat();
        self.daemon = Some(self.machine.daemon(self.gpus, &env).await);
    }

    /// Starts the driver, which finds the agent there. It need not be there.
    pub fn start_driver(&mut self, agent: &Path) {
        self.driver = Some(self.machine.node(&[], agent, &self.api));
    }

    /// Starts the driver with these flags besides.
    pub fn start_driver_with(&mut self, flags: &[&str]) {
        let agent = self.machine.agent_socket();
        self.driver = Some(self.machine.node(flags, &agent, &self.api));
    }

    /// SIGKILL, at once.
    pub fn kill_daemon(&mut self) {
        drop(self.daemon.take().unwrap());
    }

    /// SIGSTOP.
    pub fn stop_daemon(&self) {
        self.daemon.as_ref().unwrap().signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn continue_daemon(&self) {
        self.daemon.as_ref().unwrap().signal(Signal::CONT);
    }

    /// SIGKILL, at once.
    pub fn kill_driver(&mut self) {
        drop(self.driver.take().unwrap());
    }

    /// SIGTERM, and its end.
    pub async fn stop_driver(&mut self) -> ExitStatus {
        let mut driver = self.driver.take().unwrap();
        driver.terminate();
        until("the driver ends", async || driver.end()).await
    }

    /// Both, and what a GPU forgets when the machine is started again.
    pub fn power_off(&mut self) {
        self.kill_driver();
        self.kill_daemon();
        fs::remove_file(self.machine.path().join("home/sim/state")).unwrap();
        fs::remove_dir_all(self.machine.cdi_dir()).unwrap();
    }

    /// Waits until the daemon has died by itself.
    pub async fn daemon_dies(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        until("the daemon dies", async || daemon.end()).await;
    }

    /// The CDI files there are, by name, and what is in them.
    pub fn cdi(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.machine.cdi_dir()).into_iter().flatten();
        let mut files: Vec<_> = entries
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(&path).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    /// Devices that the driver has published, in order, once there are any.
    pub async fn devices(&self) -> Vec<Value> {
        until("devices are published", async || {
            let slices = self.api.look(|view| view.all("resourceslices"));
            let mut devices = Vec::new();
            for slice in slices {
                assert_eq!(slice["spec"]["nodeName"], NODE);
                let of_slice = slice["spec"]["devices"].as_array();
                devices.extend(of_slice.into_iter().flatten().cloned());
            }
            (!devices.is_empty()).then_some(devices)
        })
        .await
    }

    /// The device of a GPU, by the GPU's number.
    pub async fn gpu(&self, index: u32) -> String {
        let devices = self.devices().await;
        let of_gpu = devices
            .iter()
            .find(|device| device["attributes"]["index"]["int"] == index)
            .unwrap();
        of_gpu["name"].as_str().unwrap().to_owned()
    }

    /// The place of an instance.
    pub async fn place(&self, profile: &str, start: u32) -> String {
        until("the place is published", async || {
            let devices = self.devices().await;
            let place = devices.into_iter().find(|device| {
                let attributes = &device["attributes"];
                attributes["profile"]["string"] == profile && attributes["start"]["int"] == start
            })?;
            Some(place["name"].as_str().unwrap().to_owned())
        })
        .await
    }

    /// As the scheduler has it: a claim that was given these devices, each with so much memory where it is a part.
    pub fn allocate(&self, name: &str, devices: &[(&str, Option<&str>)]) -> Claim {
        self.allocate_with(name, devices, &json!([]))
    }

    pub fn allocate_with(
        &self,
        name: &str,
        devices: &[(&str, Option<&str>)],
        config: &Value,
    ) -> Claim {
        let result = |(at, (device, memory)): (usize, &(&str, Option<&str>))| {
            let mut result = json!({
                "request": format!("gpu-{at}"), "driver": DRIVER, "pool": NODE, "device": device,
            });
            if let Some(memory) = memory {
                result["consumedCapacity"] = json!({ "memory": memory });
                result["shareID"] = json!(format!("share-{name}-{at}"));
            }
            result
        };
        let results: Vec<Value> = devices.iter().enumerate().map(result).collect();
        let claim = self.api.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "namespace": NAMESPACE, "name": name },
            "spec": {},
            "status": {
                "allocation": { "devices": { "results": results, "config": config } },
                "reservedFor": [{ "resource": "pods", "name": name, "uid": format!("pod-{name}") }],
            },
        }));
        Claim {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            uid: claim["metadata"]["uid"].as_str().unwrap().to_owned(),
        }
    }

    /// The claim goes, pod and all.
    pub fn forget(&self, claim: &Claim) {
        self.api.remove("resourceclaims", NAMESPACE, &claim.name);
    }

    /// What no law allows: a device given twice, a slice or a file of a claim that is not held, or none of one that is.
    pub async fn is_sound(&self, held: &[&Claim]) {
        let wanted: BTreeSet<&str> = held.iter().map(|claim| claim.uid.as_str()).collect();
        let claims = self.machine.held().await;
        let is: BTreeSet<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        assert_eq!(is, wanted, "{claims:#?}");
        assert_eq!(self.cdi().len(), held.len(), "{:?}", self.cdi());
        // Instances need no limiter, so there is no slice's folder of a claim that has nothing else.
        let limited = claims
            .iter()
            .filter(|claim| claim.devices.iter().any(|one| one.mig.is_none()));
        let slices = fs::read_dir(self.machine.path().join("home/slices"));
        assert_eq!(slices.into_iter().flatten().count(), limited.count());
        for gpu in self.machine.gpus().await {
            assert!(
                gpu.memory_allocated_bytes <= gpu.memory_usable_bytes,
                "{gpu:#?}"
            );
            let of_gpu = claims.iter().flat_map(|claim| &claim.devices);
            let parts = of_gpu.filter(|device| device.gpu == gpu.uuid && device.mig.is_none());
            let sum: u64 = parts
                .map(|device| device.memory_bytes.unwrap_or(gpu.memory_usable_bytes))
                .sum();
            assert!(sum <= gpu.memory_usable_bytes, "{sum} on {gpu:#?}");
            if held.is_empty() {
                assert_eq!(gpu.memory_allocated_bytes, 0, "{gpu:#?}");
            }
        }
    }
}
