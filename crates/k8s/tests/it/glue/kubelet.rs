//! A node: it starts pods, prints what they print, and ends them, as the test says; and the task's own agent in each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use divvy_clearml_stub::Stub;
use divvy_testkit::{join, let_pass};
use serde_json::{Value, json};

use super::apiserver::ApiServer;
use super::scene::NAMESPACE;

/// Between two looks of the kubelet.
const LOOK: Duration = Duration::from_millis(5);

/// What becomes of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Its task runs, says that it is completed, and ends.
    #[default]
    Completes,
    /// No node has room for it, in the scheduler's words.
    Waits(&'static str),
    /// Its container runs and installs things; its task's agent has not begun.
    Installs,
    /// Its task's agent runs it, and goes on.
    Runs,
    /// It runs and ends so, without a word to the server.
    Exits(i32),
    OutOfMemory,
    Evicted,
    NoImage,
    /// Its agent tells the server that it failed, and is not over yet: it uploads what is left.
    Lingers,
    /// Kueue holds it back.
    Gated,
    /// Kueue takes its quota back: it is marked and deleted.
    Preempted,
}

/// What the test tells the node, and what the node tells the test.
#[derive(Clone)]
pub struct Node(pub Arc<Mutex<BTreeMap<String, Told>>>);

#[derive(Default)]
pub struct Told {
    fate: Fate,
    /// How often its program began.
    runs: usize,
    /// What its container was given.
    files: Vec<String>,
}

impl Node {
    /// What becomes of a task's pod from now on.
    pub fn set(&self, task: &str, fate: Fate) {
        self.0
            .lock()
            .unwrap()
            .entry(task.to_owned())
            .or_default()
            .fate = fate;
    }

    pub fn runs(&self, task: &str) -> usize {
        self.0.lock().unwrap().get(task).map_or(0, |told| told.runs)
    }

    /// What its container was given: the files of its Secret.
    pub fn files(&self, task: &str) -> Vec<String> {
        self.0
            .lock()
            .unwrap()
            .get(task)
            .map(|told| told.files.clone())
            .unwrap_or_default()
    }

    fn fate(&self, task: &str) -> Fate {
        self.0
            .lock()
            .unwrap()
            .get(task)
            .map(|told| told.fate.clone())
            .unwrap_or_default()
    }

    fn begins(&self, task: &str, files: Vec<String>) {
        let mut all = self.0.lock().unwrap();
        let told = all.entry(task.to_owned()).or_default();
        told.runs += 1;
        told.files = files;
    }
}

pub struct Kubelet {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kubelet {
    pub fn start(api: Arc<ApiServer>, stub: Arc<Stub>, node: Node) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut worker = Worker {
            api,
            stub,
            node,
            begun: BTreeSet::new(),
            lines: 0,
        };
        let flag = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                worker.look();
                let_pass(LOOK);
            }
        });
        Self {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            join("the kubelet", thread);
        }
    }
}

struct Worker {
    api: Arc<ApiServer>,
    stub: Arc<Stub>,
    node: Node,
    /// Pods whose task's agent has begun, by uid.
    begun: BTreeSet<String>,
    lines: usize,
}

impl Worker {
    fn look(&mut self) {
        for pod in self.api.look(|view| view.all("pods")) {
            self.lead(&pod);
        }
    }

    fn lead(&mut self, pod: &Value) {
        let text = |at: &str| {
            pod.pointer(at)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
        let task = text("/metadata/annotations/glue.divvy.dev~1task");
        let fate = self.node.fate(&task);
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            // Its grace period lasts until the test says so.
            if fate != Fate::Preempted {
                self.api.remove("pods", NAMESPACE, &name);
            }
            return;
        }
        match (text("/status/phase").as_str(), &fate) {
            ("Succeeded" | "Failed", _) => {}
            ("Running", Fate::Installs) => {}
            ("Running", Fate::Preempted) => {
                let mark = json!({ "type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted",
                    "message": "Preempted to accommodate a workload" });
                let leaving = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
                    "status": { "conditions": [mark] } });
                self.api.merge_if_there("pods", NAMESPACE, &name, &leaving);
            }
            ("Running", _) if !self.begun.contains(&uid) => self.begin(&name, &uid, &task),
            ("Running", fate) => self.end(&name, &task, fate),
            (_, Fate::Waits(why)) => {
                let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why });
                if pod["status"]["conditions"][0]["message"] != *why {
                    self.status(
                        &name,
                        &json!({ "phase": "Pending", "conditions": [condition] }),
                    );
                }
            }
            (_, Fate::Gated) => {
                let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates" });
                let gates = json!([{ "name": "kueue.x-k8s.io/admission" }]);
                if pod["spec"]["schedulingGates"] != gates {
                    let held = json!({ "spec": { "schedulingGates": gates },
                        "status": { "phase": "Pending", "conditions": [condition] } });
                    self.api.merge_if_there("pods", NAMESPACE, &name, &held);
                }
            }
            (_, Fate::NoImage) => {
                let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
                if pod["status"]["containerStatuses"].is_null() {
                    self.status(
                        &name,
                        &json!({ "phase": "Pending", "containerStatuses": [own(&waiting)] }),
                    );
                }
            }
            _ => {
                let running = json!({ "phase": "Running", "conditions": [], "containerStatuses": [own(&json!({ "running": {} }))] });
                self.status(&name, &running);
            }
        }
    }

    /// `clearml-agent execute --full-monitoring --require-queue`, as far as the server sees it.
    fn begin(&mut self, name: &str, uid: &str, task: &str) {
        let files = self.api.look(|view| view.get("secrets", NAMESPACE, name));
        let files = files
            .map(|secret| decoded(&secret["data"]))
            .unwrap_or_default();
        self.print(name, "Collecting clearml-agent");
        let answer = self.stub.call(
            "tasks.dequeue",
            json!({ "task": task, "new_status": "in_progress" }),
        );
        self.begun.insert(uid.to_owned());
        if !answer.is_ok_and(|answer| answer["updated"] != 0) {
            self.print(name, "Execution required enqueued task");
            self.exit(name, 1, "Error");
            return;
        }
        self.node.begins(task, files);
        let worker = format!("glue:{task}");
        let report = json!({ "worker": worker, "task": task, "timestamp": 1, "machine_stats": {} });
        // It may be deleted at this very moment.
        let _ = self.stub.call("workers.status_report", report);
        self.print(name, &format!("Running task '{task}'"));
        self.print(name, "this its own agent sends");
    }

    fn end(&self, name: &str, task: &str, fate: &Fate) {
        match fate {
            Fate::Completes => {
                // Whether the server takes it is its business.
                let _ = self.stub.call("tasks.completed", json!({ "task": task }));
                self.exit(name, 0, "Completed");
            }
            Fate::Exits(code) => self.exit(name, *code, "Error"),
            Fate::OutOfMemory => self.exit(name, 137, "OOMKilled"),
            Fate::Evicted => {
                let why = "The node was low on resource: memory.";
                self.status(
                    name,
                    &json!({ "phase": "Failed", "reason": "Evicted", "message": why }),
                );
            }
            Fate::Lingers => {
                let own = format!("Changed by clearml-agent glue:{task}");
                let failed = json!({ "task": task, "status_reason": "worker execution exit code 1", "status_message": own });
                let _ = self.stub.call("tasks.failed", failed);
            }
            _ => {}
        }
    }

    fn exit(&self, name: &str, code: i32, reason: &str) {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let state =
            json!({ "running": null, "terminated": { "exitCode": code, "reason": reason } });
        self.status(
            name,
            &json!({ "phase": phase, "containerStatuses": [own(&state)] }),
        );
    }

    fn status(&self, name: &str, status: &Value) {
        let patch = json!({ "spec": { "nodeName": "node" }, "status": status });
        let waits = status["phase"] == "Pending" && status["containerStatuses"].is_null();
        let patch = if waits {
            json!({ "status": status })
        } else {
            patch
        };
        // Whoever deleted it was faster.
        self.api.merge_if_there("pods", NAMESPACE, name, &patch);
    }

    /// A line, with its time, as the kubelet gives it.
    fn print(&mut self, name: &str, line: &str) {
        self.lines += 1;
        let time = format!(
            "2026-01-01T00:{:02}:{:02}.{:09}Z",
            self.lines / 60 % 60,
            self.lines % 60,
            self.lines
        );
        self.api.print(NAMESPACE, name, &format!("{time} {line}\n"));
    }
}

fn own(state: &Value) -> Value {
    json!({ "name": "task", "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0 })
}

fn decoded(data: &Value) -> Vec<String> {
    let texts = data.as_object().into_iter().flatten().map(|(name, text)| {
        let text: k8s_openapi::ByteString = serde_json::from_value(text.clone()).unwrap();
        format!("{name}\n{}", String::from_utf8(text.0).unwrap())
    });
    texts.collect()
}
