//! A cluster with a node and the chart's objects, and replicas of the controller beside it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use divvy_k8s::controller::Registration;
use divvy_testkit::{Bounded as _, PATIENCE};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::apiserver::{ApiServer, View};

pub const NAMESPACE: &str = "divvy-system";
pub const HOST: &str = "divvy-webhook.divvy-system.svc";

pub struct Cluster {
    pub server: ApiServer,
    folder: TempDir,
}

impl Cluster {
    /// With a namespace `team` that has opted in, and a node with one shared GPU of 80 GiB and a place for 1g.10gb.
    pub fn new() -> Self {
        let server = ApiServer::start();
        for (name, labels) in [
            ("team", json!({ "divvy.dev/inject": "enabled" })),
            ("elsewhere", json!({})),
        ] {
            server.create(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } }));
        }
        server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "node-a-0" },
            "spec": {
                "driver": "gpu.divvy.dev", "nodeName": "node-a",
                "pool": { "name": "node-a", "generation": 1, "resourceSliceCount": 1 },
                "devices": [
                    {
                        "name": "gpu-0", "allowMultipleAllocations": true,
                        "attributes": { "type": { "string": "fraction" }, "uuid": { "string": "GPU-0" } },
                        "capacity": { "memory": { "value": "80Gi" } },
                    },
                    {
                        "name": "gpu-1-mig-1g-10gb-0",
                        "attributes": {
                            "type": { "string": "mig" }, "uuid": { "string": "GPU-1" }, "profile": { "string": "1g.10gb" },
                        },
                        "capacity": { "memory": { "value": "9728Mi" } },
                    },
                ],
            },
        }));
        let cluster = Self {
            server,
            folder: tempfile::tempdir().unwrap(),
        };
        cluster.register();
        cluster
    }

    /// The webhook's configuration, as the chart has it.
    pub fn register(&self) {
        let registration = Registration {
            name: "divvy",
            namespace: NAMESPACE,
            service: "divvy-webhook",
            all_namespaces: false,
            schedulers: &[],
        };
        self.server.create(registration.object());
    }

    pub fn client(&self) -> kube::Client {
        self.server.client()
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), "team")
    }

    pub async fn create(&self, pod: &Pod) -> Result<Pod, kube::Error> {
        self.pods().create(&PostParams::default(), pod).await
    }

    /// Whom the API server was told to trust.
    pub fn bundle(&self) -> String {
        let bundles = self.server.look(|view| {
            let webhooks = webhooks(view).into_iter();
            webhooks
                .map(|webhook| webhook["clientConfig"]["caBundle"].clone())
                .collect::<Vec<_>>()
        });
        assert!(
            bundles.windows(2).all(|two| two[0] == two[1]),
            "all webhooks have one bundle"
        );
        let bundle: ByteString = serde_json::from_value(bundles[0].clone()).unwrap();
        String::from_utf8(bundle.0).unwrap()
    }

    /// Somebody of `team` has so much of a GPU.
    pub fn hold(&self, device: &str, memory: &str) {
        self.server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": "big-claim", "namespace": "team" }, "spec": {},
            "status": {
                "reservedFor": [{ "resource": "pods", "name": "big", "uid": "b" }],
                "allocation": { "devices": { "results": [{
                    "driver": "gpu.divvy.dev", "pool": "node-a", "device": device, "request": "r",
                    "consumedCapacity": { "memory": memory },
                }] } },
            },
        }));
    }

    /// Lets a replica start, and a pod be made, until it is held at a write; `false` where it never was.
    pub fn runs_until_held(&self, replica: &Replica) -> bool {
        let held = || self.server.look(|view| view.held().is_some());
        replica.hears(|line| line.ends_with(" ready"), held);
        if held() {
            return true;
        }
        let kubeconfig = self.server.kubeconfig(self.folder.path());
        // In a thread of its own: who is held gets no answer, until it is killed.
        std::thread::spawn(move || make_a_pod(&kubeconfig));
        // Held at the template, or through with everything that it has to do at its start.
        let whole = |view: &View<'_>| {
            view.get("pods", "team", "before")?;
            view.get("deviceclasses", "", "fraction.gpu.divvy.dev")?;
            view.get("deviceclasses", "", "mig-1g-10gb.gpu.divvy.dev")?;
            let lease = view.get("leases", NAMESPACE, "divvy-controller")?;
            (lease["spec"]["holderIdentity"] == "a").then_some(())
        };
        self.server.until("the end, or a hold", |view| {
            let held = view.held().map(|()| true);
            held.or_else(|| whole(view).map(|()| false))
        })
    }
}

fn make_a_pod(kubeconfig: &Path) {
    let config = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async move {
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await;
        let client = kube::Client::try_from(config.unwrap()).unwrap();
        let pods: Api<Pod> = Api::namespaced(client, "team");
        // Err says that whoever was asked about it is gone.
        let _ = pods.create(&PostParams::default(), &marked("before")).await;
    });
}

pub fn webhooks(view: &View<'_>) -> Vec<Value> {
    let configuration = view.get("mutatingwebhookconfigurations", "", "divvy");
    let webhooks = configuration.map(|configuration| configuration["webhooks"].clone());
    webhooks
        .and_then(|webhooks| webhooks.as_array().cloned())
        .unwrap_or_default()
}

fn pod(name: &str, labels: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "containers": [{ "name": "c", "image": "x" }] },
    }))
    .unwrap()
}

/// That asks for half a GPU.
pub fn marked(name: &str) -> Pod {
    pod(name, &json!({ "clearml-injector/fraction": "0.500" }))
}

pub fn plain(name: &str) -> Pod {
    pod(name, &json!({}))
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// A running controller, or another piece with a health port; dropped, it is killed as by `kill -9`.
pub struct Replica {
    child: Child,
    log: Arc<Log>,
    address: SocketAddr,
    health: SocketAddr,
}

impl Replica {
    pub fn start(cluster: &Cluster, identity: &str, args: &[&str]) -> Self {
        let own = ["--identity", identity];
        Self::of("controller", cluster, &[&own, args].concat())
    }

    /// The subcommand of this name, from its line `listening` on.
    pub fn of(piece: &str, cluster: &Cluster, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
            .arg(piece)
            .args(["--listen", "127.0.0.1:0"])
            .args(["--health-listen", "127.0.0.1:0"])
            .args(args)
            .env(
                "KUBECONFIG",
                cluster.server.kubeconfig(cluster.folder.path()),
            )
            .env_remove("DIVVY_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (log, stderr) = (Arc::new(Log::default()), child.stderr.take().unwrap());
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.lines.lock().unwrap().push(line);
                kept.more.notify_all();
            }
        });
        let none = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut replica = Self {
            child,
            log,
            address: none,
            health: none,
        };
        let line = replica
            .hears(
                |line| line.contains("listening") || line.contains("reconciling"),
                || false,
            )
            .unwrap();
        let said = |key: &str| {
            let (_, address) = line.split_once(key)?;
            address.split(' ').next()?.parse().ok()
        };
        // A reconciler has no webhook.
        replica.address = said("address=").unwrap_or(none);
        replica.health = said("health=").unwrap();
        replica
    }

    /// What it answers kubelet: status and text.
    pub fn told(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.health).unwrap();
        let call = format!("GET {path} HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n");
        stream.write_all(call.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, text.to_owned())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it can be asked, and has the API server ask this one.
    pub fn serves(&self, server: &ApiServer) {
        self.hears(|line| line.ends_with(" ready"), || false);
        server.set_service(NAMESPACE, "divvy-webhook", self.address);
    }

    /// Waits for a line of its log, or for something else; `None` where that came first.
    pub fn hears(&self, is: impl Fn(&str) -> bool, or: impl Fn() -> bool) -> Option<String> {
        let ends = Instant::now() + PATIENCE;
        let mut lines = self.log.lines.lock().unwrap();
        loop {
            if let Some(line) = lines.iter().find(|line| is(line)) {
                return Some(line.clone());
            }
            if or() {
                return None;
            }
            assert!(
                Instant::now() < ends,
                "it never said that:\n{}",
                lines.join("\n")
            );
            // Whatever else is waited for rings no bell here.
            lines = self
                .log
                .more
                .wait_timeout(lines, Duration::from_millis(50))
                .unwrap()
                .0;
        }
    }

    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its memory, and the most that it had, in MiB (`VmRSS`, `VmHWM`).
    pub fn memory_mib(&self) -> (u64, u64) {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let kib = |key: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let words = line.unwrap().split_whitespace();
            words.into_iter().next().unwrap().parse().unwrap()
        };
        (kib("VmRSS:") >> 10, kib("VmHWM:") >> 10)
    }

    /// Its exit code, once it has ended.
    pub fn ends(&mut self) -> Option<i32> {
        self.child.wait_bounded().unwrap().code()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Err says that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
    }
}
