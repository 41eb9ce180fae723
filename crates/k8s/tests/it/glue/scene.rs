//! A ClearML server, a cluster with one node, and a glue between them, which can be killed.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use divvy_clearml_stub::{Status, Stub};
use divvy_testkit::Bounded as _;
use serde_json::Value;

use super::apiserver::ApiServer;
use super::kubelet::{Kubelet, Node};

/// The namespace of the fake server's kubeconfig.
pub const NAMESPACE: &str = "divvy-system";

pub struct Scene {
    pub stub: Arc<Stub>,
    pub api: Arc<ApiServer>,
    pub node: Node,
    _kubelet: Kubelet,
    folder: tempfile::TempDir,
}

/// A glue that runs; it is killed when this goes.
pub struct Glue(Child);

impl Scene {
    /// `values`: of queues, which are made.
    pub fn new(values: &str) -> Self {
        let (stub, api) = (Arc::new(Stub::start()), Arc::new(ApiServer::start()));
        let node = Node(Arc::new(Mutex::new(BTreeMap::new())));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("values.yaml"), values).unwrap();
        std::fs::write(folder.path().join("clearml.conf"), stub.conf()).unwrap();
        Self {
            _kubelet: Kubelet::start(Arc::clone(&api), Arc::clone(&stub), node.clone()),
            stub,
            api,
            node,
            folder,
        }
    }

    /// Other values, for the next glue.
    pub fn serve(&self, values: &str) {
        std::fs::write(self.folder.path().join("values.yaml"), values).unwrap();
    }

    pub fn glue(&self) -> Glue {
        let folder = self.folder.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
        command
            .args(["glue", "--create-queue", "--worker-id", "glue", "--values"])
            .arg(folder.join("values.yaml"))
            .env("KUBECONFIG", self.api.kubeconfig(folder))
            .env("CLEARML_CONFIG_FILE", folder.join("clearml.conf"))
            .env("CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", "0.05")
            .env("CLEARML_AGENT__API__HTTP__RETRIES__BACKOFF_FACTOR", "0.01")
            .env("HOME", folder)
            .env_remove("CLEARML_WORKER_ID")
            .stdin(Stdio::null());
        if std::env::var_os("DIVVY_LOG").is_none() {
            command.stderr(Stdio::null());
        }
        Glue(command.spawn().unwrap())
    }

    pub fn status(&self, task: &str) -> &'static str {
        self.stub.status(task).map_or("gone", Status::name)
    }

    /// Waits for a status.
    pub fn becomes(&self, task: &str, status: &str) {
        until(
            format!("{task} is {status}; it is {}", self.status(task)),
            || (self.status(task) == status).then_some(()),
        );
    }

    pub fn pods(&self) -> Vec<Value> {
        self.api.look(|view| view.all("pods"))
    }

    pub fn pod_of(&self, task: &str) -> Option<Value> {
        self.pods()
            .into_iter()
            .find(|pod| pod["metadata"]["annotations"]["glue.divvy.dev/task"] == task)
    }

    /// Nothing of it is left in the cluster.
    pub fn is_clean(&self) {
        until("no pod and no Secret is left", || {
            let left = self
                .api
                .look(|view| view.all("pods").len() + view.all("secrets").len());
            (left == 0).then_some(())
        });
    }

    /// What the task's page says of it.
    pub fn said(&self, task: &str, field: &str) -> String {
        self.stub.task_fields(task)[field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub fn must(&self, endpoint: &str, body: Value) {
        self.stub.must(endpoint, body);
    }
}

impl Glue {
    /// `kill -9`.
    pub fn crash(mut self) {
        self.0.kill().unwrap();
        self.0.wait_bounded().unwrap();
    }

    /// SIGTERM; with what it ends.
    pub fn terminate(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait_bounded().unwrap().code()
    }
}

impl Drop for Glue {
    fn drop(&mut self) {
        // Err says that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait_bounded();
    }
}

pub use divvy_testkit::until;
