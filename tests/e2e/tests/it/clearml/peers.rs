//! The stock agent and the stock SDK against the stand-in: what it answers is what they need.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use divvy_clearml_stub::Call;
use divvy_e2e::clearml::{Agent, Scene, Server};
use divvy_e2e::{client_script, python, until};
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

/// The words that start the stock agent, with a scene's environment.
fn stock(scene: &Scene, words: &[&str]) -> Command {
    let mut command = scene.home.command(python().to_str().expect("a path"));
    command
        .args(["-m", "clearml_agent"])
        .args(words)
        .env("CLEARML_CONFIG_FILE", scene.conf());
    command
}

/// A program that is killed when the test is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_bounded();
    }
}

/// Endpoints that were called for a task or a worker, in order and without repetitions, by whom `client` names.
fn story(calls: &[Call], about: &str) -> Vec<String> {
    let about_it = calls
        .iter()
        .filter(|call| call.body.to_string().contains(about));
    let mut story: Vec<String> = about_it.map(|call| call.endpoint.clone()).collect();
    story.dedup();
    story
}

#[test]
fn the_stock_sdk_queues_a_task_and_the_stock_agent_runs_it_to_its_end() {
    let scene = Scene::with(Arc::new(Server::stub()), "a100-80gb:1", Agent::Stock);
    let stub = scene.stub();
    scene.queue("quarter_gpu");
    let script = scene.home.scratch().join("train.py");
    fs::write(&script, scene.program("train", 0)).expect("the folder is ours");
    let sdk = scene
        .home
        .command(python().to_str().expect("a path"))
        .args([&client_script("clearml_sdk.py"), "quarter_gpu", "quarter"])
        .arg(&script)
        .env("CLEARML_CONFIG_FILE", scene.conf())
        .output_bounded()
        .expect("Python starts");
    let said = String::from_utf8_lossy(&sdk.stdout);
    let made = said.lines().find(|line| line.starts_with('{'));
    let made = made.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&sdk.stderr)));
    let made: Value = serde_json::from_str(made).expect("it is JSON");
    let task = made["id"].as_str().expect("an id");
    assert_eq!(made["status"], "queued");
    assert_eq!(stub.waiting("quarter_gpu"), [task]);

    scene.open("train");
    let popped = stub.must(
        "queues.get_next_task",
        json!({ "queue": scene.queue_id("quarter_gpu"), "task": task }),
    );
    assert_eq!(popped["entry"]["task"], task);
    let worker = "node1:gpu2.25a";
    let output = stock(&scene, &["execute", "--full-monitoring", "--id", task])
        .env("CLEARML_WORKER_ID", worker)
        .output_bounded()
        .expect("Python starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let fields = stub.task_fields(task);
    assert_eq!(fields["status"], "completed", "{fields}");
    assert_eq!(fields["last_worker"], worker);
    assert!(stub.log(task).contains("here I am"), "{}", stub.log(task));
    assert_eq!(stub.workers().len(), 0, "it has unregistered");
    let notes = fs::read_to_string(scene.home.scratch().join("runs").join(task)).expect("it ran");
    assert!(notes.contains("end"), "{notes}");

    // What `quick_agent.py` does is what was seen here.
    let calls = stub.calls();
    let agents: Vec<Call> = calls
        .into_iter()
        .filter(|call| call.client.starts_with("api-"))
        .collect();
    let story = story(&agents, task);
    for endpoint in ["workers.status_report", "tasks.ping"] {
        assert!(
            story.iter().any(|called| called == endpoint),
            "no {endpoint} in {story:?}"
        );
    }
    let milestones = [
        "tasks.dequeue",
        "tasks.started",
        "events.add_batch",
        "tasks.completed",
    ];
    let mut left = story.iter();
    for milestone in milestones {
        assert!(
            left.any(|endpoint| endpoint == milestone),
            "{milestone} does not follow in {story:?}"
        );
    }
    scene.assert_no_complaints();
}

mod exhaustive {
    use super::*;

    #[test]
    fn the_stock_agent_marks_a_task_failed_whose_program_fails() {
        let scene = Scene::with(Arc::new(Server::stub()), "a100-80gb:1", Agent::Stock);
        scene.open("bad");
        let task = scene
            .draft("bad", &scene.program("bad", 3), &json!({}))
            .enqueue("quarter_gpu");
        let id = task.id();
        scene.stub().must(
            "queues.get_next_task",
            json!({ "queue": scene.queue_id("quarter_gpu") }),
        );
        let status = stock(&scene, &["execute", "--full-monitoring", "--id", &id])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .wait_bounded();
        assert!(
            status.expect("Python starts").success(),
            "the agent exits with 0 although its task failed"
        );
        let fields = task.fields();
        assert_eq!(fields["status"], "failed", "{fields}");
        assert_eq!(fields["status_reason"], "worker execution exit code 3");
        scene.assert_no_complaints();
    }

    #[test]
    fn the_stock_daemon_pulls_registers_reports_and_sees_an_abort() {
        let scene = Scene::with(Arc::new(Server::stub()), "a100-80gb:1", Agent::Stock);
        let task = scene.enqueued("quarter_gpu", "long");
        let log =
            fs::File::create(scene.home.scratch().join("stock.log")).expect("the folder is ours");
        let words = [
            "daemon",
            "--queue",
            "quarter_gpu",
            "--foreground",
            "--gpus",
            "0",
        ];
        let daemon = stock(&scene, &words)
            .stdout(log.try_clone().expect("a file can be cloned"))
            .stderr(log)
            .spawn();
        let _daemon = Running(daemon.expect("Python starts"));
        until("the task runs", || (task.runs() == 1).then_some(()));
        assert_eq!(scene.stub().waiting("quarter_gpu"), [] as [String; 0]);
        until("its worker is known by its task", || {
            let workers = scene.stub().workers();
            workers.into_iter().find(|worker| {
                worker.id == "node1:gpu0" && worker.task.as_deref() == Some(&task.id())
            })
        });
        scene
            .stub()
            .must("tasks.stop", json!({ "task": task.id() }));
        assert_eq!(task.fields()["status_message"], "stopping");
        task.becomes("stopped");
        // It asks for what open servers do not have, and lives without.
        let mut complaints = scene.stub().complaints();
        complaints.retain(|complaint| !complaint.starts_with("workers.get_runtime_properties"));
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}
