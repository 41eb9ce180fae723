//! `divvy-k8s glue` between the cluster and a ClearML server of its owner: a task becomes a pod once, whatever becomes of the glue.
//!
//! `DIVVY_TEST_CLEARML_API_HOST`, `…_ACCESS_KEY` and `…_SECRET_KEY` name the server. With `--task-image`, tasks also run, on nodes
//! of the cluster that have a kubelet; the pods must reach the server. Queues, tasks and pods of the run are deleted.

use std::cell::{OnceCell, RefCell};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use divvy_e2e::clearml::Server;
use serde_json::{Value, json};

use crate::cluster::until;
use crate::report::{CaseOutcome, Report};
use crate::stage::{Process, RUN, Stage, file};

/// How long a task may take on a real node: its image is pulled, and the agent installs itself.
const LONG: Duration = Duration::from_secs(600);

/// The cases; without a server each is not checked.
pub fn all(report: &mut Report, stage: &Stage, image: Option<&str>) {
    let scene = OnceCell::new();
    let with = |check: &dyn Fn(&Scene<'_>) -> Result<CaseOutcome>| {
        match scene.get_or_init(|| Scene::new(stage)) {
        Ok(Some(scene)) => check(scene),
        Ok(None) => Ok(CaseOutcome::NotChecked(
            "no ClearML server: set DIVVY_TEST_CLEARML_API_HOST, DIVVY_TEST_CLEARML_ACCESS_KEY and \
             DIVVY_TEST_CLEARML_SECRET_KEY"
                .to_owned(),
        )),
        Err(error) => bail!("{error:#}"),
    }
    };
    report.case(
        "glue.pods",
        "a pod with a claim for each task of a queue, up to maxPods; kill -9 between",
        || with(&pods),
    );
    report.case(
        "glue.stop",
        "a task that its user stops has no pod any more",
        || with(&stopped),
    );
    report.case(
        "glue.run",
        "tasks on nodes with a kubelet end on the server as they should",
        || match image {
            Some(image) => with(&|scene| ran(scene, image)),
            None => Ok(CaseOutcome::NotChecked(
                "no image: --task-image names one with Python, pip and clearml-agent".to_owned(),
            )),
        },
    );
}

struct Scene<'a> {
    stage: &'a Stage,
    server: Server,
    /// Of the suite's simulated nodes, two pods at once; and of nodes with a kubelet.
    queues: [String; 2],
    made: RefCell<Vec<String>>,
    config: std::path::PathBuf,
}

impl<'a> Scene<'a> {
    fn new(stage: &'a Stage) -> Result<Option<Self>> {
        let Some(server) = Server::real() else {
            return Ok(None);
        };
        rights(stage)?;
        let config = stage.account("glue", None)?;
        let queues = ["half", "cpu"].map(|kind| format!("{}-{kind}", stage.release));
        for queue in &queues {
            call(&server, "queues.create", &json!({ "name": queue }))?;
        }
        Ok(Some(Self {
            stage,
            server,
            queues,
            made: RefCell::default(),
            config,
        }))
    }

    fn queue(&self, at: usize) -> Result<String> {
        let name = format!("^{}$", self.queues[at]);
        let found = call(&self.server, "queues.get_all", &json!({ "name": name }))?;
        let id = found["queues"][0]["id"].as_str();
        id.map(str::to_owned).context("the queue is there")
    }

    fn task(&self, at: usize, code: &str) -> Result<String> {
        let name = format!("{} {}", self.stage.release, self.made.borrow().len());
        let script = json!({ "binary": "python3", "repository": "", "entry_point": "main.py", "working_dir": ".",
            "diff": code, "requirements": { "pip": "" } });
        let body = json!({ "name": name, "type": "training", "script": script });
        let made = call(&self.server, "tasks.create", &body)?;
        let task = made["id"].as_str().context("a task has an id")?.to_owned();
        self.made.borrow_mut().push(task.clone());
        let body = json!({ "task": task, "queue": self.queue(at)? });
        call(&self.server, "tasks.enqueue", &body)?;
        Ok(task)
    }

    /// The task's fields on the server.
    fn fields(&self, task: &str) -> Result<Value> {
        let only = ["id", "status", "status_reason", "status_message"];
        let body = json!({ "id": [task], "only_fields": only, "search_hidden": true });
        let mut found = call(&self.server, "tasks.get_all", &body)?;
        Ok(found["tasks"][0].take())
    }

    fn pod(&self, task: &str) -> Result<Option<Value>> {
        let name = format!("clearml-id-{task}");
        self.stage.cluster.get("pod", &self.stage.pods, &name)
    }

    /// A glue, with the rights of the chart's.
    fn glue(&self, image: &str) -> Result<Process> {
        let scratch = self.stage.scratch.path();
        let aside = json!({ "nodeSelector": { RUN: self.stage.run }, "tolerations": [{ "key": RUN, "operator": "Exists" }],
            "labels": { "clearml-injector/fraction": "0.500" }, "resources": { "limits": { "nvidia.com/gpu": 1 } } });
        let values = json!({ "agentk8sglue": { "defaultContainerImage": image, "queues": {
            (&self.queues[0]): { "templateOverrides": aside, "queueSettings": { "maxPods": 2 } },
            (&self.queues[1]): { "templateOverrides": {} },
        } } });
        let mut command = Command::new(self.stage.program());
        command
            .args(["glue", "--namespace", &self.stage.pods, "--worker-id"])
            .arg(&self.stage.release)
            .arg("--values")
            .arg(file(scratch, "glue.yaml", &values.to_string())?)
            .arg("--config-file")
            .arg(file(scratch, "clearml.conf", &self.server.conf(""))?)
            .env("KUBECONFIG", &self.config)
            .env("CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", "1");
        Process::start(&mut command, scratch.join("glue.log"))
    }

    /// Pods of this run's tasks.
    fn of_tasks(&self) -> Result<Vec<Value>> {
        let selector = "app.kubernetes.io/managed-by=divvy,clearml-task-id";
        self.stage.cluster.list("pods", &self.stage.pods, selector)
    }

    /// Waits for a status longer than for what the cluster alone does.
    fn becomes(&self, task: &str, status: &str, glue: &mut Process) -> Result<Value> {
        let began = Instant::now();
        loop {
            let fields = self.fields(task)?;
            if fields["status"] == status {
                return Ok(fields);
            }
            glue.lives()?;
            if began.elapsed() > LONG {
                bail!("{task} is not {status}: {fields}\n{}", glue.said());
            }
            thread::sleep(Duration::from_secs(1));
        }
    }

    fn log(&self, task: &str) -> Result<String> {
        let body = json!({ "task": task, "batch_size": 1000, "order": "asc" });
        let found = call(&self.server, "events.get_task_log", &body)?;
        let lines = found["events"].as_array().into_iter().flatten();
        Ok(lines.filter_map(|event| event["msg"].as_str()).collect())
    }

    /// Everything of a run's tasks goes, on the server and in the cluster.
    fn clear(&self, glue: &mut Process) -> Result<()> {
        for task in self.made.take() {
            let body = json!({ "task": task, "force": true });
            call(&self.server, "tasks.delete", &body)?;
        }
        until(
            "the glue has deleted all pods and Secrets of its tasks",
            || {
                glue.lives()?;
                for pod in self.of_tasks()? {
                    // A simulated node ends no pod.
                    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                    if !pod["metadata"]["deletionTimestamp"].is_null() {
                        self.stage.cluster.delete("pod", &self.stage.pods, name)?;
                    }
                }
                let selector = "app.kubernetes.io/managed-by=divvy,clearml-task-id";
                let left = self
                    .stage
                    .cluster
                    .list("pods,secrets", &self.stage.pods, selector)?;
                Ok(left.is_empty().then_some(()))
            },
        )
        .with_context(|| glue.said())
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        for task in self.made.take() {
            let _ = call(
                &self.server,
                "tasks.delete",
                &json!({ "task": task, "force": true }),
            );
        }
        for at in 0..self.queues.len() {
            if let Ok(queue) = self.queue(at) {
                let body = json!({ "queue": queue, "force": true });
                let _ = call(&self.server, "queues.delete", &body);
            }
        }
    }
}

fn call(server: &Server, endpoint: &str, body: &Value) -> Result<Value> {
    let answer = server.call(endpoint, body);
    answer.map_err(|why| anyhow::anyhow!("{endpoint}: {why}"))
}

/// The chart's account and role for a glue whose pods are in the suite's namespace.
fn rights(stage: &Stage) -> Result<()> {
    let set = format!(
        "glue.enabled=true,glue.credentialsSecret=none,glue.namespace={}",
        stage.pods
    );
    let text = stage.template(&["--show-only", "templates/glue.yaml", "--set", &set])?;
    let words = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
    let answer = stage.cluster.call(&words, &text)?;
    ensure!(answer.done, "{}", answer.stderr);
    let objects = serde_json::Deserializer::from_str(&answer.stdout).into_iter::<Value>();
    for object in objects {
        let object = object.context("kubectl -o json prints JSON")?;
        let all = object["items"].as_array().cloned().unwrap_or(vec![object]);
        let kinds = ["ServiceAccount", "Role", "RoleBinding"];
        for one in all
            .iter()
            .filter(|one| kinds.iter().any(|kind| one["kind"] == *kind))
        {
            stage.cluster.apply(one)?.object()?;
        }
    }
    Ok(())
}

fn pods(scene: &Scene<'_>) -> Result<CaseOutcome> {
    let tasks = [0, 0, 0].map(|at| scene.task(at, "print(1)"));
    let tasks = tasks.into_iter().collect::<Result<Vec<_>>>()?;
    let mut kills = 0;
    let mut glue = scene.glue("registry.invalid/none:1")?;
    until("two of three tasks have a pod", || {
        if kills < 3 {
            thread::sleep(Duration::from_millis(700 * kills));
            // Its predecessor is killed as it is replaced.
            glue = scene.glue("registry.invalid/none:1")?;
            kills += 1;
            return Ok(None);
        }
        glue.lives()?;
        Ok((scene.of_tasks()?.len() == 2).then_some(()))
    })
    .with_context(|| glue.said())?;
    thread::sleep(Duration::from_secs(5));
    let made = scene.of_tasks()?;
    ensure!(
        made.len() == 2,
        "{} pods of a queue with maxPods 2",
        made.len()
    );
    let uids: Vec<&Value> = made.iter().map(|pod| &pod["metadata"]["uid"]).collect();
    for (pod, task) in made.iter().zip(&tasks) {
        let labels = &pod["metadata"]["labels"];
        ensure!(
            pod["spec"]["resourceClaims"].is_array(),
            "the webhook made no claim: {pod}"
        );
        ensure!(labels["clearml-user"].is_string(), "{labels}");
        let place = until("the pod has a node", || {
            let pod = scene.pod(task)?.or_else(|| Some(pod.clone()));
            Ok(pod.filter(|pod| pod["spec"]["nodeName"].is_string()))
        });
        place.with_context(|| glue.said())?;
    }
    let queued = scene.fields(&tasks[2])?;
    ensure!(queued["status"] == "queued", "{queued}");
    let now = scene.of_tasks()?;
    let same = now
        .iter()
        .map(|pod| &pod["metadata"]["uid"])
        .collect::<Vec<_>>()
        == uids;
    ensure!(same, "a pod was made twice: {now:?}");
    scene.clear(&mut glue)?;
    Ok(CaseOutcome::Held(json!({ "killed": kills })))
}

fn stopped(scene: &Scene<'_>) -> Result<CaseOutcome> {
    let task = scene.task(0, "print(1)")?;
    let mut glue = scene.glue("registry.invalid/none:1")?;
    until("the task has its pod", || scene.pod(&task)).with_context(|| glue.said())?;
    call(&scene.server, "tasks.stop", &json!({ "task": task }))?;
    let began = Instant::now();
    until("the glue deletes the pod", || {
        let pod = scene.pod(&task)?;
        let leaves = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
        Ok(pod.as_ref().is_none_or(leaves).then_some(()))
    })
    .with_context(|| glue.said())?;
    let seconds = began.elapsed().as_secs_f64();
    let fields = scene.fields(&task)?;
    ensure!(fields["status"] == "stopped", "{fields}");
    scene.clear(&mut glue)?;
    Ok(CaseOutcome::Held(json!({ "seconds": seconds })))
}

/// A program that leaves a mark in its log, so that a second run shows.
fn program(then: &str) -> String {
    format!("import sys, time\nprint('RUN-MARK', flush=True)\n{then}\n")
}

fn ran(scene: &Scene<'_>, image: &str) -> Result<CaseOutcome> {
    let mut glue = scene.glue(image)?;
    let good = scene.task(1, &program("time.sleep(5)"))?;
    let bad = scene.task(1, &program("sys.exit(3)"))?;
    let long = scene.task(1, &program("time.sleep(3600)"))?;
    scene.becomes(&good, "in_progress", &mut glue)?;
    // Killed in the middle, replaced, and nothing of it shows.
    glue = scene.glue(image)?;
    scene.becomes(&good, "completed", &mut glue)?;
    let failed = scene.becomes(&bad, "failed", &mut glue)?;
    ensure!(
        failed["status_reason"]
            .as_str()
            .is_some_and(|why| why.contains("exit code 3")),
        "{failed}"
    );
    scene.becomes(&long, "in_progress", &mut glue)?;
    call(&scene.server, "tasks.stop", &json!({ "task": long }))?;
    scene.becomes(&long, "stopped", &mut glue)?;
    for task in [&good, &bad] {
        let marks = scene.log(task)?.matches("RUN-MARK").count();
        ensure!(marks == 1, "{task} left {marks} marks in its log");
    }
    scene.clear(&mut glue)?;
    Ok(CaseOutcome::Held(failed["status_reason"].clone()))
}
