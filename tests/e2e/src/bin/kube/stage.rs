//! Divvy in the cluster: the chart installed, its controllers and the drivers of pretended nodes as processes of this machine.
//!
//! ```text
//!   helm install ──► accounts, roles, policies, webhooks     the chart's pods are for nodes of the run alone, which run none
//!   controllers, node drivers ──► processes here, each with the token of the chart's own service account: what its role lacks, fails
//!   a node ──► a Node object that somebody keeps alive, a `divvy daemon` over simulated GPUs, and the driver that publishes them
//! ```
//! Everything goes again when it is dropped, also after a failure.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use divvy_e2e::Programs;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Answer, Cluster, until};
use crate::front::Front;
use crate::node::{Heart, Machine, Node};

/// What a pod asks for before anything is done to it, and what kubectl says of it.
pub const IMAGE: &str = "divvy.invalid/none";
/// The label of the nodes of a run, and of what is for them.
pub const RUN: &str = "divvy.dev/suite";
/// A process that has come so far that it answers.
const READY: &str = "/readyz";

/// Where everything is.
pub struct Stage {
    pub cluster: Cluster,
    /// Where pods are made; opted in.
    pub pods: String,
    /// Where pods are made that nobody looks at.
    pub aside: String,
    /// Where the chart is.
    pub system: String,
    pub release: String,
    pub run: String,
    pub scratch: TempDir,
    programs: Programs,
    extender: Option<PathBuf>,
    helm: PathBuf,
    chart: PathBuf,
    controller: RefCell<Option<Process>>,
    /// Where the API server finds the controller.
    address: String,
    port: u16,
    nodes: RefCell<Vec<Node>>,
    /// Names of those that have an object in the cluster.
    joined: RefCell<Vec<String>>,
    heart: Heart,
    /// Other nodes may run what has no place here.
    pub alone: bool,
}

/// What the caller brings.
pub struct Means {
    pub cluster: Cluster,
    pub programs: Programs,
    /// `divvy-k8s` as the extender, if it is another build.
    pub extender: Option<PathBuf>,
    pub helm: PathBuf,
    pub chart: PathBuf,
    /// Where the API server finds this machine.
    pub address: String,
}

/// A process of ours that is killed when it is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it, with its output in a file of that name.
    pub fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        Ok(Self { child, log })
    }

    /// An error when it has ended, with the last it said.
    pub fn lives(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("it ended with {status}: {}", self.said());
        }
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The last lines that it wrote.
    pub fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two controllers behind one address.
pub struct Replicas {
    leader: Option<Process>,
    other: Process,
    _front: Front,
}

impl Replicas {
    /// Kills the one that holds the Lease, as a crash would.
    pub fn kill_leader(&mut self) {
        self.leader = None;
    }

    /// An error when the other has ended too.
    pub fn lives(&mut self) -> Result<()> {
        self.other.lives()
    }
}

impl Stage {
    /// Installs the chart for this run.
    pub fn set(means: Means) -> Result<Self> {
        let run = format!("{:x}", std::process::id());
        let scratch = tempfile::Builder::new().prefix("divvy-kube-").tempdir()?;
        let release = format!("divvy-{run}");
        let others = means.cluster.list("nodes", "", "")?;
        let stage = Self {
            heart: Heart::start(means.cluster.clone()),
            pods: format!("{release}-pods"),
            aside: format!("{release}-aside"),
            system: format!("{release}-system"),
            cluster: means.cluster,
            programs: means.programs,
            extender: means.extender,
            helm: means.helm,
            chart: means.chart,
            controller: RefCell::default(),
            port: free_port()?,
            address: means.address,
            nodes: RefCell::default(),
            joined: RefCell::default(),
            alone: others.is_empty(),
            release,
            run,
            scratch,
        };
        let classes =
            stage
                .cluster
                .list("deviceclasses", "", "app.kubernetes.io/managed-by=divvy")?;
        ensure!(
            classes.is_empty(),
            "Divvy is installed in this cluster: the suite wants one without"
        );
        stage.namespace(&stage.pods, &json!({ "divvy.dev/inject": "enabled" }))?;
        stage.namespace(&stage.aside, &json!({}))?;
        stage.namespace(
            &stage.system,
            &json!({ "pod-security.kubernetes.io/enforce": "privileged" }),
        )?;
        stage.install()?;
        stage.redirect()?;
        Ok(stage)
    }

    pub fn namespace(&self, name: &str, labels: &Value) -> Result<()> {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        self.cluster.apply(&object)?.object().map(drop)
    }

    fn helm(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(&self.helm)
            .args(words)
            .args(["--namespace", &self.system, "--kubeconfig"])
            .arg(self.cluster.config())
            .env("HOME", self.scratch.path())
            .output()
            .with_context(|| format!("start {}", self.helm.display()))?;
        ensure!(
            output.status.success(),
            "helm {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn install(&self) -> Result<()> {
        let chart = self
            .chart
            .to_str()
            .context("the chart's folder has a readable name")?;
        let place = json!({ RUN: self.run });
        self.helm(&[
            "install",
            &self.release,
            chart,
            // Nowhere else: nobody has the image.
            "--set-json",
            &format!("node.nodeSelector={place}"),
            "--set-json",
            &format!("controller.nodeSelector={place}"),
            "--set",
            "image.repository=divvy.invalid/kubernetes",
        ])?;
        Ok(())
    }

    /// The chart's manifests with other values.
    pub fn template(&self, words: &[&str]) -> Result<String> {
        let chart = self
            .chart
            .to_str()
            .context("the chart's folder has a readable name")?;
        let mut all = vec!["template", &self.release, chart];
        all.extend(words);
        self.helm(&all)
    }

    /// The API server finds the controller by its address, as no Service leads out of the cluster.
    fn redirect(&self) -> Result<()> {
        let url = format!("https://{}:{}/mutate", self.address, self.port);
        let webhook = self
            .cluster
            .get("mutatingwebhookconfigurations", "", &self.release)?
            .context("the chart has a webhook")?;
        let names = webhook["webhooks"]
            .as_array()
            .context("the webhook has parts")?;
        let patch: Vec<Value> = (0..names.len())
            .map(|at| json!({
                "op": "replace", "path": format!("/webhooks/{at}/clientConfig"), "value": { "url": url },
            }))
            .collect();
        let answer = self.cluster.call(
            &[
                "patch",
                "mutatingwebhookconfigurations",
                &self.release,
                "--type=json",
                "-p",
                &json!(patch).to_string(),
            ],
            "",
        )?;
        ensure!(answer.done, "{}", answer.stderr);
        Ok(())
    }

    /// A kubeconfig with a token of one of the chart's service accounts, bound to a pod where one is given.
    pub fn account(&self, piece: &str, pod: Option<&str>) -> Result<PathBuf> {
        let name = format!("{}-{piece}", self.release);
        let mut words = vec![
            "create",
            "token",
            &name,
            "-n",
            &self.system,
            "--duration=1h",
        ];
        if let Some(pod) = pod {
            words.extend(["--bound-object-kind=Pod", "--bound-object-name", pod]);
        }
        let token = self.cluster.call(&words, "")?;
        ensure!(token.done, "{}", token.stderr.trim());
        let config = self.cluster.config_for(token.stdout.trim())?;
        let path = self
            .scratch
            .path()
            .join(format!("{piece}-{}.conf", pod.unwrap_or("any")));
        fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Starts a controller, as the chart's Deployment would, and waits until it gets calls.
    pub fn serve(&self) -> Result<()> {
        *self.controller.borrow_mut() = Some(self.replica("suite", self.port)?);
        until("the webhook has its CA bundle", || {
            let webhook = self
                .cluster
                .get("mutatingwebhookconfigurations", "", &self.release)?;
            let parts = webhook
                .as_ref()
                .and_then(|webhook| webhook["webhooks"].as_array());
            let trusted = |part: &Value| part["clientConfig"]["caBundle"].is_string();
            Ok(parts
                .is_some_and(|parts| parts.iter().all(trusted))
                .then_some(()))
        })
    }

    /// Replaces the controller by two, which share its address as they share the chart's Service.
    pub fn serve_twice(&self) -> Result<Replicas> {
        self.no_controller();
        // The first has the name that is in the Lease, so it leads.
        let ports = [free_port()?, free_port()?];
        let leader = self.replica("suite", ports[0])?;
        let other = self.replica("suite-2", ports[1])?;
        Ok(Replicas {
            leader: Some(leader),
            other,
            _front: Front::open(&self.address, self.port, ports)?,
        })
    }

    /// A controller at this port that is ready.
    fn replica(&self, identity: &str, port: u16) -> Result<Process> {
        let health = free_port()?;
        let config = self.account("controller", None)?;
        let mut command = Command::new(self.programs.path("divvy-k8s"));
        command
            .arg("controller")
            .arg(format!("--listen={}:{port}", self.address))
            .arg(format!("--health-listen=127.0.0.1:{health}"))
            .arg(format!("--namespace={}", self.system))
            .arg(format!("--service={}-webhook", self.release))
            .arg(format!("--webhook={}", self.release))
            .arg(format!("--tls-secret={}-webhook-tls", self.release))
            .arg(format!("--tls-name={}", self.address))
            .arg(format!("--lease={}-controller", self.release))
            .arg(format!("--identity={identity}"))
            .arg("--nvidia-gpu")
            .env("KUBECONFIG", config);
        let log = self.scratch.path().join(format!("{identity}.log"));
        let mut process = Process::start(&mut command, log)?;
        let ready = until("the controller is ready", || {
            process.lives()?;
            Ok(answers(health, READY).then_some(()))
        });
        ready.with_context(|| process.said())?;
        Ok(process)
    }

    /// Kills the controller as a crash would.
    pub fn no_controller(&self) {
        *self.controller.borrow_mut() = None;
    }

    /// What the controller said last.
    pub fn controller_said(&self) -> String {
        self.controller
            .borrow()
            .as_ref()
            .map(Process::said)
            .unwrap_or_default()
    }

    /// A node of the run with these simulated GPUs; its driver publishes them.
    pub fn node(&self, machine: &Machine) -> Result<String> {
        let name = format!("{}-{}", self.release, machine.name);
        self.joined.borrow_mut().push(name);
        let node = Node::join(self, &self.programs, machine, &self.heart)?;
        let name = node.name.clone();
        self.nodes.borrow_mut().push(node);
        Ok(name)
    }

    /// A node's driver is killed and started again.
    pub fn restart_driver(&self, name: &str) -> Result<()> {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes
            .iter_mut()
            .find(|node| node.name == name)
            .context("such a node is there")?;
        node.restart(self, &self.programs)
    }

    /// The pod of the chart's DaemonSet on a node; its token says which node it is.
    pub fn node_pod(&self, node: &str) -> Result<String> {
        until(
            &format!("the chart's pod is bound to the node {node}"),
            || {
                let pods =
                    self.cluster
                        .list("pods", &self.system, "app.kubernetes.io/component=node")?;
                let here = pods.iter().find(|pod| pod["spec"]["nodeName"] == node);
                Ok(here
                    .and_then(|pod| pod["metadata"]["name"].as_str())
                    .map(str::to_owned))
            },
        )
    }

    /// `divvy-k8s`.
    pub fn program(&self) -> PathBuf {
        self.programs.path("divvy-k8s")
    }

    /// `divvy-k8s` as the extender.
    pub fn extender(&self) -> PathBuf {
        self.extender.clone().unwrap_or_else(|| self.program())
    }

    /// A pod with one container.
    pub fn pod(&self, name: &str, labels: &Value, annotations: &Value, limits: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": self.pods, "labels": labels, "annotations": annotations },
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": { RUN: self.run },
                "tolerations": [{ "key": RUN, "operator": "Exists" }],
                "containers": [{ "name": "main", "image": IMAGE, "resources": { "limits": limits } }],
            },
        })
    }

    /// Makes a pod that no node takes: what admission does to it is there, and it holds nothing.
    pub fn parked(&self, pod: &Value) -> Result<(Value, Answer)> {
        let mut pod = pod.clone();
        pod["spec"]["nodeSelector"] = json!({ RUN: "nowhere" });
        let answer = self.cluster.create(&pod, false)?;
        Ok((answer.object()?, answer))
    }

    /// All pods and what they left are gone.
    pub fn clear(&self) -> Result<()> {
        for namespace in [&self.pods, &self.aside] {
            let answer = self.cluster.call(
                &[
                    "delete",
                    "deployments,replicasets,jobs,pods,resourcequotas,resourceclaims",
                    "--all",
                    "-n",
                    namespace,
                    "--force",
                    "--grace-period=0",
                    "--timeout=60s",
                ],
                "",
            )?;
            ensure!(answer.done, "{}", answer.stderr);
            until("all pods and their claims are gone", || {
                let left = self.cluster.list("pods,resourceclaims", namespace, "")?;
                if !left.is_empty() {
                    let again = [
                        "delete",
                        "pods",
                        "--all",
                        "-n",
                        namespace,
                        "--force",
                        "--grace-period=0",
                    ];
                    self.cluster.call(&again, "")?;
                }
                Ok(left.is_empty().then_some(()))
            })?;
        }
        Ok(())
    }

    /// Takes the release out of the cluster as people do, with everything that runs for it; without the hooks, whose
    /// pods no kubelet would run.
    pub fn uninstall(&self) -> Result<()> {
        self.helm(&["uninstall", &self.release, "--no-hooks"])
            .map(drop)
    }

    /// Processes end and nodes go.
    pub fn strike(&self) {
        self.no_controller();
        self.nodes.borrow_mut().clear();
        for node in std::mem::take(&mut *self.joined.borrow_mut()) {
            self.heart.stop_for(&node);
            let _ = self.cluster.delete("nodes", "", &node);
            let _ = self.cluster.delete("leases", "kube-node-lease", &node);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.uninstall();
        self.strike();
        for namespace in [&self.pods, &self.aside, &self.system] {
            let _ = self.cluster.call(
                &[
                    "delete",
                    "pods",
                    "--all",
                    "-n",
                    namespace,
                    "--force",
                    "--grace-period=0",
                ],
                "",
            );
            let _ = self.cluster.delete("namespace", "", namespace);
        }
    }
}

/// A port that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether a GET is answered with 200.
pub fn answers(port: u16, path: &str) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    let _ = stream.set_read_timeout(Some(std::time::Duration::from_secs(5)));
    let mut text = String::new();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .is_ok()
        && stream.read_to_string(&mut text).is_ok()
        && text.starts_with("HTTP/1.1 200")
}

/// A file beside the others of the run.
pub fn file(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
