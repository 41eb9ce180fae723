//! A node of a cluster: kubelet, an API server, a daemon over simulated GPUs, and the driver between them. Daemon and driver are
//! processes of the built programs, which may be killed: `cargo build -p divvy -p divvy-sim -p divvy-preload`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use divvy_api::client::Client;
use divvy_api::v1::{Gpu, HeldClaim};
use divvy_k8s::claim::DRIVER;
use divvy_k8s::node::protocol::dra::Claim;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::apiserver::ApiServer;
use crate::fake::{Driver, Kubelet};
use crate::patience::until;

pub const NODE: &str = "node-a";
const NAMESPACE: &str = "team";

/// Variables of whoever runs the test that would leak into what is tested.
const FOREIGN: [&str; 7] = [
    "CUDA_VISIBLE_DEVICES",
    "DIVVY_SIM",
    "DIVVY_SIM_STATE",
    "DIVVY_SLICE",
    "LD_PRELOAD",
    "NVIDIA_VISIBLE_DEVICES",
    "XDG_RUNTIME_DIR",
];

pub struct Node {
    pub dir: TempDir,
    pub api: ApiServer,
    pub kubelet: Kubelet,
    gpus: &'static str,
    daemon: Option<Child>,
    driver: Option<Child>,
}

impl Node {
    /// With these GPUs, and nothing running yet.
    pub fn new(gpus: &'static str) -> Self {
        // Paths of sockets are short: 108 bytes at most.
        let dir = TempDir::with_prefix_in("k", "/tmp").unwrap();
        let api = ApiServer::start();
        api.create(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": NODE, "labels": { "divvy.dev/dynamic-mig": "true" } },
        }));
        api.create(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        }));
        let kubelet = Kubelet::new(&dir.path().join("kubelet"));
        fs::write(dir.path().join("sim.toml"), "").unwrap();
        Self {
            api,
            kubelet,
            dir,
            gpus,
            daemon: None,
            driver: None,
        }
    }

    /// The same, of which this one is in MIG mode from the beginning.
    pub fn divided(gpus: &'static str, gpu: u32) -> Self {
        Self::simulated(gpus, &format!("[mig]\nenabled = [{gpu}]\n"))
    }

    /// The same, with this configuration of the simulator.
    pub fn simulated(gpus: &'static str, config: &str) -> Self {
        let node = Self::new(gpus);
        fs::write(node.path().join("sim.toml"), config).unwrap();
        node
    }

    /// With a daemon and a driver that is registered.
    pub async fn served(gpus: &'static str) -> (Self, Driver) {
        Self::new(gpus).serve().await
    }

    pub async fn serve(self) -> (Self, Driver) {
        let mut node = self;
        node.start_daemon(&[]).await;
        node.start_driver(&node.agent_socket());
        let driver = node.kubelet.driver().await;
        (node, driver)
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.path().join("home/divvy.sock")
    }

    pub fn agent(&self) -> Client {
        Client::new(self.agent_socket())
    }

    /// Starts the daemon, with these variables besides; returns once it answers.
    pub async fn start_daemon(&mut self, env: &[(&str, &str)]) {
        let home = self.path().join("home");
        fs::create_dir_all(&home).unwrap();
        let mut command = Command::new(beside("divvy"));
        command
            .args(["daemon", "--sim", self.gpus, "--cdi-dir"])
            .arg(self.cdi_dir())
            .env("DIVVY_HOME", &home)
            .env("DIVVY_SIM_CONFIG", self.path().join("sim.toml"))
            .envs(env.iter().copied());
        self.daemon = Some(self.spawn(command, "daemon.log"));
        let socket = self.agent_socket();
        let daemon = self.daemon.as_mut().unwrap();
        until("the daemon takes connections", async || {
            let ended = daemon.try_wait().unwrap();
            assert_eq!(ended, None, "the daemon ended");
            UnixStream::connect(&socket).await.ok()
        })
        .await;
    }

    /// Starts the driver, which finds the agent there. It need not be there.
    pub fn start_driver(&mut self, agent: &Path) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
        command
            .args(["node", "--node-name", NODE, "--kubelet-dir"])
            .arg(self.path().join("kubelet"))
            .arg("--agent")
            .arg(agent)
            .env("KUBECONFIG", self.api.kubeconfig(self.path()));
        self.driver = Some(self.spawn(command, "driver.log"));
    }

    fn spawn(&self, mut command: Command, log: &str) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path().join(log))
            .unwrap();
        for name in FOREIGN {
            command.env_remove(name);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        child.spawn().unwrap()
    }

    /// SIGKILL, at once.
    pub fn kill_daemon(&mut self) {
        kill(self.daemon.take().unwrap());
    }

    /// SIGKILL, at once.
    pub fn kill_driver(&mut self) {
        kill(self.driver.take().unwrap());
    }

    /// SIGTERM, and its end.
    pub async fn stop_driver(&mut self) -> ExitStatus {
        let mut driver = self.driver.take().unwrap();
        kill_process(Pid::from_child(&driver), Signal::TERM).unwrap();
        until("the driver ends", async || driver.try_wait().unwrap()).await
    }

    /// Both, and what a GPU forgets when the machine is started again.
    pub fn power_off(&mut self) {
        self.kill_driver();
        self.kill_daemon();
        fs::remove_file(self.path().join("home/sim/state")).unwrap();
        fs::remove_dir_all(self.cdi_dir()).unwrap();
    }

    /// Waits until the daemon has died by itself.
    pub async fn daemon_dies(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        until("the daemon dies", async || daemon.try_wait().unwrap()).await;
    }

    fn cdi_dir(&self) -> PathBuf {
        self.path().join("cdi")
    }

    /// The CDI files there are, by name, and what is in them.
    pub fn cdi(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.cdi_dir()).into_iter().flatten();
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

    /// Claims that the agent holds.
    pub async fn held(&self) -> Vec<HeldClaim> {
        self.agent().claims().await.unwrap()
    }

    pub async fn gpus(&self) -> Vec<Gpu> {
        self.agent().gpus().await.unwrap()
    }

    /// What no law allows: a device given twice, a slice or a file of a claim that is not held, or none of one that is.
    pub async fn is_sound(&self, held: &[&Claim]) {
        let wanted: BTreeSet<&str> = held.iter().map(|claim| claim.uid.as_str()).collect();
        let claims = self.held().await;
        let is: BTreeSet<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        assert_eq!(is, wanted, "{claims:#?}");
        assert_eq!(self.cdi().len(), held.len(), "{:?}", self.cdi());
        // Instances need no limiter, so there is no slice's folder of a claim that has nothing else.
        let limited = claims
            .iter()
            .filter(|claim| claim.devices.iter().any(|one| one.mig.is_none()));
        let slices = fs::read_dir(self.path().join("home/slices"));
        assert_eq!(slices.into_iter().flatten().count(), limited.count());
        for gpu in self.gpus().await {
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

impl Drop for Node {
    fn drop(&mut self) {
        for child in [self.driver.take(), self.daemon.take()] {
            child.into_iter().for_each(kill);
        }
        if std::thread::panicking() {
            for log in ["daemon.log", "driver.log"] {
                let text = fs::read_to_string(self.path().join(log)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(40)..].join("\n");
                eprintln!("the end of {log}:\n{last}");
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
