//! A server and a private instance of Divvy that serves its queues.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use divvy_api::v1::{Job, JobState};
use divvy_clearml_stub::{Status, Stub};
use serde_json::{Value, json};

use super::Server;
use crate::{Daemon, Home, client_script, python, write_program};
use divvy_testkit::until;

/// How often the front end looks at its queues, in seconds; tests do not want the stock agent's 5.
const POLL: &str = "0.1";
/// How often it reports, in seconds.
const REPORT: &str = "0.5";

/// What runs a task inside its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// PyPI's `clearml-agent execute`.
    Stock,
    /// `clients/quick_agent.py`, which makes the same calls.
    Quick,
}

/// A server and a private instance beside it. What was made on a real server is deleted when this is dropped.
pub struct Scene {
    pub server: Arc<Server>,
    pub home: Home,
    /// Name of this node, before the colon of a worker's id.
    pub node: String,
    /// In the names of everything made; empty for a stand-in, which is the test's own.
    mark: String,
    queues: RefCell<BTreeMap<String, String>>,
    tasks: RefCell<Vec<String>>,
}

/// A task that a scene has made.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    scene: &'a Scene,
    /// Its place among the scene's tasks.
    index: usize,
}

impl Scene {
    /// Over a stand-in, with the quick agent; `sim` names the GPUs.
    #[must_use]
    pub fn new(sim: &str) -> Self {
        Self::with(Arc::new(Server::stub()), sim, Agent::Quick)
    }

    /// Over a given server.
    ///
    /// # Panics
    /// When its folder cannot be written.
    #[must_use]
    pub fn with(server: Arc<Server>, sim: &str, agent: Agent) -> Self {
        Self::around(server, Home::new(sim), "node1", agent)
    }

    /// Around a given instance, on a node called `node`.
    ///
    /// # Panics
    /// When its folder cannot be written.
    #[must_use]
    pub fn around(server: Arc<Server>, home: Home, node: &str, agent: Agent) -> Self {
        let mark = match server.as_stub() {
            Some(_) => String::new(),
            None => format!("-divvy-{}-{}", std::process::id(), moment()),
        };
        let folder = home.scratch().to_owned();
        for name in ["bin", "runs"] {
            fs::create_dir(folder.join(name)).expect("the folder is new");
        }
        let (python, script) = (python(), client_script("quick_agent.py"));
        let beside = python.parent().expect("a program lies in a folder");
        let program = match agent {
            Agent::Stock => format!("exec {} -m clearml_agent \"$@\"", python.display()),
            Agent::Quick => format!("exec {} {script} \"$@\"", python.display()),
        };
        let path = folder.join("bin/clearml-agent");
        write_program(&path, format!("#!/bin/sh\n{program}\n"));
        let search = format!(
            "{}:{}:{}",
            folder.join("bin").display(),
            beside.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let home = home
            .variable("HOME", folder.to_str().expect("a readable name"))
            .variable("PATH", &search)
            .variable("CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", POLL)
            .variable("CLEARML_AGENT_STATUS_REPORT_FREQ_SEC", REPORT)
            // The task's interpreter is the agent's own: no network, nothing to install.
            .variable("CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL", "1");
        let scene = Self {
            server,
            home,
            node: format!("{node}{mark}"),
            mark,
            queues: RefCell::default(),
            tasks: RefCell::default(),
        };
        scene.configure("");
        scene
    }

    /// Writes the instance's `clearml.conf` anew; `more` is HOCON that follows what is needed.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn configure(&self, more: &str) {
        let name = format!("agent {{ worker_name: \"{}\" }}\n", self.node);
        let text = self.server.conf(&format!("{name}{more}"));
        fs::write(self.conf(), text).expect("the folder is ours");
    }

    /// The instance's `clearml.conf`.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.home.scratch().join("clearml.conf")
    }

    /// The stand-in.
    ///
    /// # Panics
    /// When the server is a real one.
    #[must_use]
    #[track_caller]
    pub fn stub(&self) -> &Stub {
        self.server
            .as_stub()
            .expect("this test looks into its server")
    }

    /// A queue's name on the server, made there when it is asked for first.
    ///
    /// # Panics
    /// When it cannot be made.
    #[track_caller]
    pub fn queue(&self, name: &str) -> String {
        let full = format!("{name}{}", self.mark);
        let mut queues = self.queues.borrow_mut();
        if !queues.contains_key(&full) {
            // Two scenes may share a server.
            let wish = json!({ "name": format!("^{full}$"), "only_fields": ["id"] });
            let mut found = self.server.must("queues.get_all", wish);
            let id = match found["queues"].get_mut(0) {
                Some(queue) => queue["id"].take(),
                None => self.server.must("queues.create", json!({ "name": full }))["id"].take(),
            };
            queues.insert(full.clone(), text(&id));
        }
        full
    }

    /// A queue's id.
    #[track_caller]
    pub fn queue_id(&self, name: &str) -> String {
        let full = self.queue(name);
        self.queues.borrow()[&full].clone()
    }

    /// Words of `divvy daemon` that serve these queues, `half_gpu=0.5`, which are made.
    ///
    /// # Panics
    /// When a queue cannot be made.
    #[must_use]
    #[track_caller]
    pub fn words(&self, gpus: &str, queues: &[&str]) -> Vec<String> {
        let conf = self.conf().to_str().expect("a readable name").to_owned();
        let mut words = ["--clearml", "--config-file", &conf, "--dynamic-gpus"]
            .map(str::to_owned)
            .to_vec();
        words.extend(["--gpus", gpus, "--queue"].map(str::to_owned));
        for queue in queues {
            let (name, amount) = queue.rsplit_once('=').expect("a queue has an amount");
            words.push(format!("{}={amount}", self.queue(name)));
        }
        words
    }

    /// Starts a daemon that serves these queues and waits until it answers.
    ///
    /// # Panics
    /// When it ends instead.
    #[must_use]
    #[track_caller]
    pub fn daemon(&self, gpus: &str, queues: &[&str], more: &[&str]) -> Daemon {
        let words = self.words(gpus, queues);
        let words: Vec<&str> = words
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        self.home.daemon(&words)
    }

    /// Makes a draft task whose program notes that it runs, and runs until its gate opens; `name` names the gate.
    #[track_caller]
    pub fn task(&self, name: &str) -> Task<'_> {
        self.draft(name, &format!("{}\n", self.program(name, 0)), &json!({}))
    }

    /// The same, at the end of a queue.
    #[track_caller]
    pub fn enqueued(&self, queue: &str, name: &str) -> Task<'_> {
        self.task(name).enqueue(queue)
    }

    /// Makes a draft task with a script in Python. `edits` are more fields of `tasks.edit`.
    ///
    /// # Panics
    /// When it cannot be made.
    #[track_caller]
    pub fn draft(&self, name: &str, script: &str, edits: &Value) -> Task<'_> {
        let named = json!({ "name": format!("{name}{}", self.mark), "type": "training" });
        let id = text(&self.server.must("tasks.create", named)["id"]);
        let mut edit = json!({
            "task": id,
            "script": {
                "diff": script, "entry_point": "train.py", "working_dir": ".", "binary": "python3",
                "repository": "", "requirements": { "pip": "" },
            },
        });
        if let (Some(edit), Some(more)) = (edit.as_object_mut(), edits.as_object()) {
            edit.extend(more.clone());
        }
        self.server.must("tasks.edit", edit);
        let mut tasks = self.tasks.borrow_mut();
        tasks.push(id);
        Task {
            scene: self,
            index: tasks.len() - 1,
        }
    }

    /// A script that notes the beginning and the end of its run, waits for the gate of that name in between, and exits.
    #[must_use]
    pub fn program(&self, gate: &str, code: i32) -> String {
        let (runs, gate) = (self.home.scratch().join("runs"), self.home.gate(gate));
        format!(
            "import os, sys, time\n\
             run = open(f\"{}/{{os.environ['CLEARML_TASK_ID']}}\", 'a', 1)\n\
             print('begin', time.time(), os.environ.get('CLEARML_WORKER_ID'), file=run)\n\
             print('here I am', flush=True)\n\
             while not os.path.exists('{gate}'): time.sleep(0.02)\n\
             print('end', time.time(), file=run)\n\
             sys.exit({code})",
            runs.display()
        )
    }

    /// Opens the gate of a task's program.
    pub fn open(&self, gate: &str) {
        self.home.open(gate);
    }

    /// Says what was called for each task that has not ended: the last of it is where something went wrong.
    fn tell(&self, stub: &Stub) {
        let calls = stub.calls();
        let last: Vec<&str> = calls
            .iter()
            .rev()
            .take(30)
            .map(|call| call.endpoint.as_str())
            .collect();
        eprintln!("── the last of {} calls: {}", calls.len(), last.join(" "));
        for task in self.tasks.borrow().iter() {
            let status = stub.status(task);
            if matches!(status, Some(Status::Completed)) {
                continue;
            }
            let log = stub.log(task);
            let lines: Vec<&str> = log.lines().rev().take(25).collect();
            eprintln!("── task {task} is {status:?}; the end of its log:");
            for line in lines.into_iter().rev() {
                eprintln!("   {line}");
            }
            if status.is_some_and(Status::is_terminal) {
                continue;
            }
            eprintln!("── task {task} was called for:");
            let changes = calls.iter().filter(|call| call.endpoint != "tasks.get_all");
            for call in changes.filter(|call| call.body.to_string().contains(task)) {
                let text = call.body.to_string();
                let body: String = text.chars().take(300).collect();
                eprintln!(
                    "{} {} {}/{} {body}",
                    call.at, call.endpoint, call.code, call.subcode
                );
            }
        }
    }

    /// What callers did that the stand-in is strict about.
    #[track_caller]
    pub fn assert_no_complaints(&self) {
        let complaints = self.stub().complaints();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(stub) = self.server.as_stub() {
            if std::thread::panicking() {
                self.tell(stub);
            }
            return;
        }
        for task in self.tasks.take() {
            let _ = self
                .server
                .call("tasks.delete", &json!({ "task": task, "force": true }));
        }
        for (_, queue) in self.queues.take() {
            let _ = self
                .server
                .call("queues.delete", &json!({ "queue": queue, "force": true }));
        }
    }
}

impl<'a> Task<'a> {
    /// Its id on the server.
    #[must_use]
    pub fn id(&self) -> String {
        self.scene.tasks.borrow()[self.index].clone()
    }

    /// Puts it at the end of a queue.
    ///
    /// # Panics
    /// When it is refused.
    #[track_caller]
    pub fn enqueue(self, queue: &str) -> Self {
        let queue = self.scene.queue_id(queue);
        self.scene.server.must(
            "tasks.enqueue",
            json!({ "task": self.id(), "queue": queue }),
        );
        self
    }

    /// Its fields; null when it was deleted.
    #[must_use]
    pub fn fields(&self) -> Value {
        let wish = json!({ "id": [self.id()], "search_hidden": true });
        let mut found = self.scene.server.must("tasks.get_all", wish);
        found["tasks"]
            .get_mut(0)
            .map(Value::take)
            .unwrap_or_default()
    }

    /// The server's word for its state; empty when it was deleted.
    #[must_use]
    pub fn status(&self) -> String {
        self.fields()["status"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// What its runs have noted so far, a line each: `begin TIME WORKER`, `end TIME`.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let path = self.scene.home.scratch().join("runs").join(self.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How often its program was started.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.notes()
            .iter()
            .filter(|note| note.starts_with("begin"))
            .count()
    }

    /// Waits until its program runs; the slot, `gpu2.25a`.
    ///
    /// # Panics
    /// When it ends instead, or nothing comes.
    #[track_caller]
    pub fn runs_on(&self) -> String {
        until(format!("task {} runs", self.id()), || {
            let status = self.status();
            assert!(
                !["failed", "stopped", "completed"].contains(&status.as_str()),
                "{status}: {}",
                self.fields()
            );
            let notes = self.notes();
            let begun = notes.iter().rfind(|note| note.starts_with("begin"))?;
            let worker = begun.split(' ').nth(2)?;
            let slot = worker.strip_prefix(&format!("{}:", self.scene.node));
            slot.map(str::to_owned)
        })
    }

    /// Waits for a state.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn becomes(&self, status: &str) -> Value {
        until(format!("task {} is {status}", self.id()), || {
            let fields = self.fields();
            (fields["status"] == status).then_some(fields)
        })
    }

    /// The agent's jobs for this task that have not ended.
    #[must_use]
    #[track_caller]
    pub fn jobs(&self) -> Vec<Job> {
        let home = &self.scene.home;
        let jobs = home.call(home.client().jobs(false));
        let id = self.id();
        let mut jobs = jobs.expect("the daemon answers");
        jobs.retain(|job| {
            job.state != JobState::Ended && job.labels.values().any(|value| *value == id)
        });
        jobs
    }

    /// The newest job for it, ended or not.
    ///
    /// # Panics
    /// When there never was one.
    #[must_use]
    #[track_caller]
    pub fn job(&self) -> Job {
        let home = &self.scene.home;
        let found = home.call(home.client().job(&format!("clearml:{}", self.id())));
        found.expect("it had a job")
    }

    /// Waits until the agent has it waiting in a queue, and says why it waits.
    #[track_caller]
    pub fn waits(&self) -> Job {
        until(
            format!("task {} waits in the agent's queue", self.id()),
            || {
                self.jobs()
                    .into_iter()
                    .find(|job| job.state == JobState::Queued)
            },
        )
    }

    /// Opens the gate named `name` and waits until it is completed.
    #[track_caller]
    pub fn completes(&self, name: &str) -> Value {
        self.scene.open(name);
        self.becomes("completed")
    }

    /// What was logged for it.
    #[must_use]
    #[track_caller]
    pub fn log(&self) -> String {
        let log = self.scene.server.must(
            "events.get_task_log",
            json!({ "task": self.id(), "order": "asc" }),
        );
        let events = log["events"].as_array().cloned().unwrap_or_default();
        events
            .iter()
            .filter_map(|event| event["msg"].as_str())
            .collect()
    }
}

#[track_caller]
fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("no text: {value}"))
        .to_owned()
}

/// Something that no other run on the same server has.
fn moment() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("the clock is right").as_millis()
}
