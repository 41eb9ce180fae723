//! Nodes that are none: a Node object, kept alive, with a `divvy daemon` over simulated GPUs and the driver that publishes them.

use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use divvy_e2e::{Daemon, Home, Programs};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};
use crate::stage::{Process, RUN, Stage, file};

/// A node's heart beats faster than the 40 s after which Kubernetes gives it up.
const BEAT: Duration = Duration::from_secs(10);

/// The label of nodes whose GPUs may be carved.
pub const DYNAMIC_MIG: &str = "divvy.dev/dynamic-mig";

/// What a node is to have.
#[derive(Clone, Debug)]
pub struct Machine {
    pub name: &'static str,
    /// Simulated GPUs: `a100-80gb:2`.
    pub gpus: &'static str,
    /// GPU 0 is in MIG mode.
    pub carved: bool,
    pub labels: Value,
}

/// A node of the run.
pub struct Node {
    pub name: String,
    home: Home,
    _daemon: Daemon,
    driver: Process,
}

impl Node {
    /// Makes the object, then what would run there, and waits until its GPUs are published.
    pub fn join(
        stage: &Stage,
        programs: &Programs,
        machine: &Machine,
        heart: &Heart,
    ) -> Result<Self> {
        let name = format!("{}-{}", stage.release, machine.name);
        let mut labels = machine.labels.clone();
        labels[RUN] = json!(stage.run);
        labels["divvy.dev/suite-node"] = json!(machine.name);
        labels["kubernetes.io/os"] = json!("linux");
        labels["kubernetes.io/hostname"] = json!(name);
        // Nobody else's pods, where there are others.
        let taints = if stage.alone {
            json!([])
        } else {
            json!([{ "key": RUN, "effect": "NoSchedule" }])
        };
        let object = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels }, "spec": { "taints": taints },
        });
        stage.cluster.apply(&object)?.object()?;
        heart.beat_for(&name);
        let status = json!({ "status": {
            "capacity": { "cpu": "64", "memory": "256Gi", "pods": "110" },
            "allocatable": { "cpu": "64", "memory": "256Gi", "pods": "110" },
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Suite", "message": "kept alive by the suite" }],
        } });
        let set = [
            "patch",
            "node",
            &name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status.to_string(),
        ];
        let answer = stage.cluster.call(&set, "")?;
        anyhow::ensure!(answer.done, "{}", answer.stderr);
        // A new node is tainted until somebody has seen it ready.
        until(&format!("the node {name} is ready"), || {
            let node = stage.cluster.get("node", "", &name)?.unwrap_or_default();
            let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
            Ok((!taints.any(|taint| taint["key"] == "node.kubernetes.io/not-ready")).then_some(()))
        })?;

        let mut home = Home::with(programs.clone(), Some(machine.gpus));
        if machine.carved {
            let config = file(home.scratch(), "sim.toml", "[mig]\nenabled = [0]\n")?;
            home = home.variable(
                "DIVVY_SIM_CONFIG",
                config.to_str().context("a readable name")?,
            );
        }
        let cdi = home.scratch().join("cdi");
        let daemon = home.daemon(&["--set", &format!("containers.cdi-dir={}", cdi.display())]);
        let driver = drive(stage, programs, &name, &home)?;
        let mut node = Self {
            name,
            home,
            _daemon: daemon,
            driver,
        };
        // A GPU in MIG mode on a node that may not be carved is offered to nobody.
        if !machine.carved || machine.labels.get(DYNAMIC_MIG).is_some() {
            node.published(stage)?;
        }
        Ok(node)
    }

    /// Waits until its GPUs are in the cluster.
    fn published(&mut self, stage: &Stage) -> Result<()> {
        let name = self.name.clone();
        let published = until(&format!("the GPUs of {name} are published"), || {
            self.driver.lives()?;
            Ok(slices(&stage.cluster, &name)?
                .into_iter()
                .find(|slice| slice["spec"]["devices"].is_array()))
        });
        published.map(drop).with_context(|| self.driver.said())
    }

    /// Kills the driver and starts another.
    pub fn restart(&mut self, stage: &Stage, programs: &Programs) -> Result<()> {
        self.driver = drive(stage, programs, &self.name, &self.home)?;
        self.driver.lives()
    }
}

/// The driver, with the rights of the chart's pod on that node.
fn drive(stage: &Stage, programs: &Programs, name: &str, home: &Home) -> Result<Process> {
    let kubelet = home.scratch().join("kubelet");
    std::fs::create_dir_all(kubelet.join("plugins_registry"))?;
    let config = stage.account("node", Some(&stage.node_pod(name)?))?;
    let mut command = Command::new(programs.path("divvy-k8s"));
    command
        .args(["node", "--node-name", name, "--kubelet-dir"])
        .arg(&kubelet)
        .arg("--agent")
        .arg(home.path().join("divvy.sock"))
        .env("KUBECONFIG", config);
    Process::start(
        &mut command,
        stage.scratch.path().join(format!("{name}.log")),
    )
}

/// What a node publishes.
pub fn slices(cluster: &Cluster, node: &str) -> Result<Vec<Value>> {
    let all = cluster.list("resourceslices", "", "")?;
    let ours = |slice: &Value| {
        slice["spec"]["driver"] == "gpu.divvy.dev" && slice["spec"]["nodeName"] == node
    };
    Ok(all.into_iter().filter(ours).collect())
}

/// Renews the leases of nodes, as their kubelets would.
pub struct Heart {
    say: Sender<Say>,
    thread: Option<JoinHandle<()>>,
}

enum Say {
    Begin(String),
    End(String),
}

impl Heart {
    pub fn start(cluster: Cluster) -> Self {
        let (say, said) = channel();
        let thread = std::thread::spawn(move || {
            let mut nodes: Vec<String> = Vec::new();
            loop {
                match said.recv_timeout(BEAT) {
                    Ok(Say::Begin(node)) => {
                        renew(&cluster, &node);
                        nodes.push(node);
                    }
                    Ok(Say::End(node)) => nodes.retain(|other| *other != node),
                    Err(RecvTimeoutError::Timeout) => {
                        nodes.iter().for_each(|node| renew(&cluster, node))
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Self {
            say,
            thread: Some(thread),
        }
    }

    pub fn beat_for(&self, node: &str) {
        let _ = self.say.send(Say::Begin(node.to_owned()));
    }

    pub fn stop_for(&self, node: &str) {
        let _ = self.say.send(Say::End(node.to_owned()));
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        // Without a sender the thread ends.
        self.say = channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn renew(cluster: &Cluster, node: &str) {
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": node, "namespace": "kube-node-lease" },
        "spec": { "holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now },
    });
    // The next beat tries again.
    let _ = cluster.apply(&lease);
}
