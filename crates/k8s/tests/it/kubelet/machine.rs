//! The machine of a node: a folder with all that is on it, a daemon over simulated GPUs, and the node part of `divvy-k8s`. Both are
//! processes of the built programs, which may be killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use divvy_api::client::Client;
use divvy_api::v1::{Gpu, HeldClaim};
use divvy_testkit::{Bounded as _, programs, until_async as until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::apiserver::ApiServer;

/// The node's name.
pub const NODE: &str = "node-a";

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

const DAEMON_LOG: &str = "daemon.log";
const NODE_LOG: &str = "node.log";

/// Lines of each that a test which fails shows.
const SHOWN: usize = 40;

pub struct Machine(TempDir);

impl Machine {
    pub fn new() -> Self {
        // Paths of sockets are short: 108 bytes at most.
        Self(TempDir::with_prefix_in("k", "/tmp").unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn kubelet_dir(&self) -> PathBuf {
        self.path().join("kubelet")
    }

    pub fn cdi_dir(&self) -> PathBuf {
        self.path().join("cdi")
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.path().join("home/divvy.sock")
    }

    pub fn agent(&self) -> Client {
        Client::new(self.agent_socket())
    }

    /// Claims that the agent holds.
    pub async fn held(&self) -> Vec<HeldClaim> {
        self.agent().claims().await.unwrap()
    }

    pub async fn gpus(&self) -> Vec<Gpu> {
        self.agent().gpus().await.unwrap()
    }

    /// UUIDs of the GPUs, by index.
    pub async fn uuids(&self) -> Vec<String> {
        let gpus = self.gpus().await.into_iter();
        gpus.map(|gpu| gpu.uuid).collect()
    }

    /// Starts a daemon over these GPUs, with these variables besides; returns once it takes connections.
    pub async fn daemon(&self, gpus: &str, env: &[(&str, &str)]) -> Program {
        self.daemon_with(gpus, &[], env).await
    }

    /// The same with these flags besides.
    pub async fn daemon_with(&self, gpus: &str, flags: &[&str], env: &[(&str, &str)]) -> Program {
        let home = self.path().join("home");
        fs::create_dir_all(&home).unwrap();
        let mut command = Command::new(programs::folder().join("divvy"));
        command
            .args([
                "daemon",
                "--sim",
                gpus,
                "--set",
                "grace=1s",
                "--set",
                "on-bypass=kill",
                "--set",
            ])
            .arg(format!("containers.cdi-dir={}", self.cdi_dir().display()))
            .args(flags)
            .env("DIVVY_HOME", &home)
            .envs(env.iter().copied());
        let mut daemon = self.start(command, DAEMON_LOG);
        let socket = self.agent_socket();
        until("the daemon takes connections", async || {
            assert_eq!(daemon.end(), None, "the daemon ended");
            UnixStream::connect(&socket).await.ok()
        })
        .await;
        daemon
    }

    /// Starts the node part in this mode. It finds the agent at `agent`, which need not be there.
    pub fn node(&self, mode: &[&str], agent: &Path, server: &ApiServer) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
        command
            .arg("node")
            .args(mode)
            .args(["--node-name", NODE, "--kubelet-dir"])
            .arg(self.kubelet_dir())
            .arg("--agent")
            .arg(agent)
            .env("KUBECONFIG", server.kubeconfig(self.path()));
        self.start(command, NODE_LOG)
    }

    fn start(&self, mut command: Command, log: &str) -> Program {
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
        Program(child.spawn().unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for log in [DAEMON_LOG, NODE_LOG] {
            let text = fs::read_to_string(self.path().join(log)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
            eprintln!("the end of {log}:\n{last}");
        }
    }
}

/// A program that runs on a machine. Dropped, it is killed at once, with SIGKILL.
pub struct Program(Child);

impl Program {
    /// How it has ended, if it has.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Asks it to end, with SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_bounded();
    }
}
