//! Jobs that stand for tasks which wait on the server: what a user of this machine does to them is what the server does,
//! and they leave a record only where the task ran here.

use std::process::Output;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use divvy_api::v1::{EndReason, Job, JobState};
use divvy_e2e::clearml::{Agent, Scene, Server};
use divvy_e2e::{Home, until};
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

const SINGLE: [&str; 1] = ["single_gpu=1"];

fn record(scene: &Scene) -> Vec<Job> {
    let home = &scene.home;
    let mut jobs = home
        .call(home.client().jobs(true))
        .expect("the daemon answers");
    jobs.retain(|job| job.state == JobState::Ended);
    jobs
}

/// The output of `divvy cancel`, which runs beside the test.
fn cancel_meanwhile(scene: &Scene, job: &str) -> Receiver<Output> {
    let mut command = scene.home.divvy_command(&["cancel", job]);
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let output = command.output_bounded().expect("divvy starts");
        let _ = tell.send(output);
    });
    told
}

fn event_texts(scene: &Scene) -> Vec<String> {
    let events = scene.home.divvy(&["events", "-o", "ndjson"]).ok().stdout;
    let events = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    events
        .map(|event| event["text"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn a_waiting_task_that_is_cancelled_leaves_its_queue_before_divvy_says_so() {
    let scene = Scene::new("a100-80gb:1");
    let _daemon = scene.daemon("0", &SINGLE, &[]);
    let first = scene.enqueued("single_gpu", "first");
    first.runs_on();
    let second = scene.enqueued("single_gpu", "second");
    let job = second.waits();
    let said = scene.home.divvy(&["cancel", &job.id]).ok();
    assert!(said.stderr.contains("cancelled"), "{said:?}");
    // What Divvy has said is so at this moment.
    assert_eq!(second.status(), "stopped");
    assert_eq!(scene.stub().waiting("single_gpu"), [] as [String; 0]);
    let fields = second.fields();
    let reason = fields["status_reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("cancelled by "), "{fields}");
    assert!(
        second.log().contains("Process aborted: cancelled by "),
        "{}",
        second.log()
    );
    let third = scene.enqueued("single_gpu", "third");
    scene.open("third");
    first.completes("first");
    third.becomes("completed");
    assert_eq!(second.runs(), 0);
    let job = second.job();
    assert_eq!(job.end_reason, Some(EndReason::Cancelled));
    assert!(
        job.end_detail
            .is_some_and(|words| words.starts_with("cancelled by "))
    );
    scene.assert_no_complaints();
}

#[test]
fn a_waiting_task_that_another_worker_has_taken_is_not_said_to_be_cancelled() {
    let scene = Scene::new("a100-80gb:1");
    let _daemon = scene.daemon("0", &SINGLE, &[]);
    let first = scene.enqueued("single_gpu", "first");
    first.runs_on();
    let hold = scene.stub().hold_before("queues.remove_task");
    let second = scene.enqueued("single_gpu", "second");
    let job = second.waits();
    let cancelled = cancel_meanwhile(&scene, &job.id);
    until("it is on its way", || hold.is_reached().then_some(()));
    let queue = scene.queue_id("single_gpu");
    scene
        .stub()
        .must("queues.get_next_task", json!({ "queue": queue }));
    hold.release();
    let output = until("the cancel has ended", || cancelled.try_recv().ok());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("another worker was quicker"), "{said}");
    assert_eq!(second.status(), "queued");
    until("no job stands for it", || {
        second.jobs().is_empty().then_some(())
    });
    assert!(record(&scene).is_empty(), "{:?}", record(&scene));
    let words = "taken from its queue by another worker";
    let texts = event_texts(&scene);
    assert!(texts.iter().any(|text| text.contains(words)), "{texts:?}");
}

#[test]
fn a_job_that_is_cancelled_while_its_task_is_claimed_ends_the_task() {
    for held in ["queues.get_next_task", "tasks.started"] {
        let scene = Scene::new("a100-80gb:1");
        let hold = scene.stub().hold_after(held);
        let task = scene.enqueued("single_gpu", "task");
        let _daemon = scene.daemon("0", &SINGLE, &[]);
        until("the task is claimed", || hold.is_reached().then_some(()));
        let job = task.jobs().pop().expect("a job stands for it");
        let cancelled = cancel_meanwhile(&scene, &job.id);
        if held == "tasks.started" {
            // It is past its claim, so the cancel waits for nothing.
            let output = until("the cancel has ended", || cancelled.try_recv().ok());
            assert!(output.status.success(), "{held}: {output:?}");
            hold.release();
        } else {
            hold.release();
            let output = until("the cancel has ended", || cancelled.try_recv().ok());
            assert!(output.status.success(), "{held}: {output:?}");
        }
        let fields = task.becomes("stopped");
        let reason = fields["status_reason"].as_str().unwrap_or_default();
        assert!(reason.contains("cancelled by"), "{held}: {fields}");
        let next = scene.enqueued("single_gpu", "next");
        assert_eq!(next.runs_on(), "gpu0", "{held}");
        assert_eq!(
            (task.status().as_str(), task.runs()),
            ("stopped", 0),
            "{held}"
        );
    }
}

/// What Divvy says of a verb, and what the server has then.
#[test]
fn each_verb_on_a_waiting_task_does_what_it_says_or_is_refused_with_exit_code_8() {
    let scene = Scene::new("a100-80gb:1");
    let _daemon = scene.daemon("0", &SINGLE, &[]);
    let first = scene.enqueued("single_gpu", "first");
    first.runs_on();
    let others = ["second", "third"].map(|name| scene.enqueued("single_gpu", name));
    let order = || scene.stub().waiting("single_gpu");
    let before = order();
    let [second, _] = &others;
    let id = second.waits().id;
    for words in [
        vec!["hold", &id],
        vec!["release", &id],
        vec!["move", &id, "--top"],
        vec!["requeue", &id],
        vec!["suspend", &id],
        vec!["resume", &id],
    ] {
        let said = scene.home.divvy(&words);
        assert_eq!(said.code, 8, "{words:?}: {said:?}");
        assert_eq!(order(), before, "{words:?}");
        assert_eq!(second.status(), "queued", "{words:?}");
        assert_eq!(second.waits().id, id, "{words:?}");
    }
    // The server alone can queue a running one again: its own agent would tell that it was aborted.
    let running = first.jobs().pop().expect("it runs").id;
    let said = scene.home.divvy(&["requeue", &running]);
    assert_eq!(said.code, 8, "{said:?}");
    assert_eq!(first.status(), "in_progress");
    // A selection leaves such jobs alone, and says so.
    let said = scene
        .home
        .divvy(&["cancel", "--me", "--state", "queued", "--yes"]);
    assert_eq!(said.code, 8, "{said:?}");
    assert_eq!(order(), before);
}

#[test]
fn a_waiting_task_keeps_its_job_over_restarts_and_leaves_no_record_unless_it_ran() {
    let scene = Scene::new("a100-80gb:1");
    let running = scene.enqueued("single_gpu", "running");
    let mut daemon = scene.daemon("0", &SINGLE, &["--set", "clearml.keep-children=true"]);
    running.runs_on();
    let waiting = ["one", "two"].map(|name| scene.enqueued("single_gpu", name));
    let ids = || waiting.each_ref().map(|task| task.waits().id);
    let before = ids();
    for round in 0..3 {
        match round {
            0 => assert_eq!(daemon.stop(), 0),
            _ => daemon.crash(),
        }
        daemon = scene.daemon("0", &SINGLE, &["--set", "clearml.keep-children=true"]);
        assert_eq!(ids(), before, "restart {round}");
    }
    // Its user takes one back, and one runs.
    scene
        .server
        .must("tasks.dequeue", json!({ "task": waiting[0].id() }));
    until("no job stands for it", || {
        waiting[0].jobs().is_empty().then_some(())
    });
    scene.open("two");
    running.completes("running");
    waiting[1].becomes("completed");
    until("its job has ended", || {
        waiting[1].jobs().is_empty().then_some(())
    });
    let kept: Vec<String> = record(&scene).into_iter().map(|job| job.id).collect();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(!kept.contains(&before[0]), "{kept:?}");
    let texts = event_texts(&scene);
    let words = "dequeued on the ClearML server";
    assert!(texts.iter().any(|text| text.contains(words)), "{texts:?}");
    let usage = scene
        .home
        .divvy(&["usage", "--by", "user", "-o", "json"])
        .json();
    let jobs: u64 = usage["items"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["jobs"].as_u64())
        .sum();
    assert_eq!(jobs, 2, "{usage}");
}

#[test]
fn a_daemon_without_the_server_has_no_jobs_that_stand_for_its_tasks() {
    let scene = Scene::new("a100-80gb:1");
    let running = scene.enqueued("single_gpu", "running");
    let daemon = scene.daemon("0", &SINGLE, &["--set", "clearml.keep-children=true"]);
    running.runs_on();
    let waiting = scene.enqueued("single_gpu", "waiting");
    let id = waiting.waits().id;
    daemon.crash();
    let _daemon = scene.home.daemon(&[]);
    assert!(waiting.jobs().is_empty());
    assert_eq!(scene.home.divvy(&["describe", &id]).code, 3);
    assert_eq!(waiting.status(), "queued");
    scene.open("running");
    until("the running one goes on to its end", || {
        running.jobs().is_empty().then_some(())
    });
}

#[test]
fn a_running_task_says_which_user_of_the_server_ended_it() {
    for (wish, words) in [
        ("tasks.stop", "stopped on the ClearML server by Ana Ruiz"),
        ("tasks.reset", "reset on the ClearML server by Ana Ruiz"),
        ("tasks.delete", "deleted on the ClearML server"),
    ] {
        let home = Home::new("a100-80gb:1").variable("QUICK_AGENT_BLIND", "1");
        let scene = Scene::around(Arc::new(Server::stub()), home, "node1", Agent::Quick);
        scene
            .stub()
            .with(|world| world.users.insert("ana".into(), "Ana Ruiz".into()));
        let task = scene.enqueued("single_gpu", "task");
        let _daemon = scene.daemon("0", &SINGLE, &["--set", "grace=1s"]);
        task.runs_on();
        let id = task.jobs().pop().expect("it runs").id;
        scene
            .server
            .must(wish, json!({ "task": task.id(), "force": true }));
        let job = scene.home.ended(&id);
        assert_eq!(job.end_reason, Some(EndReason::Cancelled), "{wish}");
        let reason = job.reason.unwrap_or_default();
        assert!(reason.starts_with(words), "{wish}: {reason}");
        assert_eq!(job.ended_by.map(|user| user.name), None, "{wish}");
    }
}

/// The user stops the task, resets it and puts it into its queue again within a moment.
#[test]
fn a_task_that_is_stopped_reset_and_queued_at_once_runs_again() {
    let scene = Scene::new("a100-80gb:1");
    let _daemon = scene.daemon("0", &SINGLE, &[]);
    let task = scene.enqueued("single_gpu", "task");
    task.runs_on();
    let of = json!({ "task": task.id(), "force": true });
    scene
        .server
        .must("tasks.stop", json!({ "task": task.id() }));
    scene.server.must("tasks.reset", of);
    let queue = scene.queue_id("single_gpu");
    scene.server.must(
        "tasks.enqueue",
        json!({ "task": task.id(), "queue": queue }),
    );
    until("it runs again", || (task.runs() == 2).then_some(()));
    scene.open("task");
    task.becomes("completed");
    assert_eq!(task.runs(), 2);
}

/// As the server has it when a report was under way at a slot's end: ten minutes long.
fn list(scene: &Scene, worker: &str, task: Option<&str>) {
    let report = json!({ "worker": worker, "task": task, "timestamp": 1, "is_daemon": false });
    match task {
        Some(_) => drop(scene.stub().must("workers.status_report", report)),
        None => drop(scene.stub().must(
            "workers.register",
            json!({ "worker": worker, "queues": [], "timeout": 600 }),
        )),
    }
}

#[test]
fn an_old_slot_on_the_servers_list_takes_no_gpu_away() {
    let scene = Scene::new("a100-80gb:3");
    let first = scene.enqueued("single_gpu", "first");
    let daemon = scene.daemon("0-2", &SINGLE, &[]);
    let slot = first.runs_on();
    first.completes("first");
    daemon.crash();
    // Its own old slot with the task that has ended, and one that only was registered.
    list(&scene, &format!("node1:{slot}"), Some(&first.id()));
    list(&scene, "node1:gpu2.5b", None);
    let tasks = ["a", "b", "c"].map(|name| scene.enqueued("single_gpu", name));
    let _daemon = scene.daemon("0-2", &SINGLE, &[]);
    let mut gpus = tasks.each_ref().map(|task| task.runs_on());
    gpus.sort();
    assert_eq!(gpus, ["gpu0", "gpu1", "gpu2"]);
}

#[test]
fn a_worker_of_another_daemon_keeps_its_part_and_is_named() {
    let scene = Scene::new("a100-80gb:2");
    let theirs = scene.draft("theirs", "pass", &json!({}));
    scene
        .stub()
        .must("tasks.started", json!({ "task": theirs.id() }));
    list(&scene, "node1:gpu1.5a", Some(&theirs.id()));
    let _daemon = scene.daemon("0-1", &["single_gpu=1", "half_gpu=0.5"], &[]);
    let first = scene.enqueued("single_gpu", "first");
    assert_eq!(first.runs_on(), "gpu0");
    let second = scene.enqueued("single_gpu", "second");
    let id = second.waits().id;
    let named = "the ClearML worker node1:gpu1.5a with task theirs, last heard of at ";
    for words in [vec!["why", &id], vec!["gpus", "-o", "json"], vec!["gpus"]] {
        let said = until("the worker is named", || {
            let said = scene.home.divvy(&words).ok().stdout;
            said.contains("node1:gpu1.5a").then_some(said)
        });
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words == ["gpus"] || said.contains(named),
            "{words:?}: {said}"
        );
    }
    // The other half is free for a task that fits there.
    scene
        .server
        .must("tasks.dequeue", json!({ "task": second.id() }));
    let half = scene.enqueued("half_gpu", "half");
    assert!(half.runs_on().starts_with("gpu1.5"), "{}", half.runs_on());
    // Its worker is gone, and so is its claim to the GPU.
    scene
        .stub()
        .must("workers.unregister", json!({ "worker": "node1:gpu1.5a" }));
    scene.open("half");
    half.becomes("completed");
    let third = scene.enqueued("single_gpu", "third");
    assert_eq!(third.runs_on(), "gpu1");
}

/// The server is slow, and tasks end while a report of their slots is under way.
#[test]
fn no_report_of_a_slot_is_under_way_when_it_is_unregistered() {
    let scene = Scene::new("a100-80gb:1");
    let task = scene.enqueued("single_gpu", "task");
    let hold = scene.stub().hold_before("workers.status_report");
    let _daemon = scene.daemon("0", &SINGLE, &[]);
    until("a report is under way", || hold.is_reached().then_some(()));
    hold.release();
    task.runs_on();
    task.completes("task");
    until("its slot is off the list", || {
        let workers = scene.stub().workers();
        let slots = workers.iter().filter(|worker| worker.id == "node1:gpu0");
        (slots.count() == 0).then_some(())
    });
}

/// The state folder is removed under a running daemon, and another daemon serves at that path.
#[test]
fn a_front_end_ends_when_another_daemon_answers_at_its_path() {
    let scene = Scene::new("a100-80gb:1");
    let mut first = scene.daemon("0", &SINGLE, &[]);
    let socket = scene.home.socket();
    std::fs::rename(&socket, socket.with_extension("old")).expect("the folder is ours");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("the path is free");
    let _other = std::thread::spawn(move || listener.incoming().for_each(drop));
    // Both are this test's children, so the listener is another process than the daemon.
    let code = until("the front end has seen it", || first.ended());
    assert_ne!(code, 0);
    let said = scene.home.daemon_said();
    assert!(
        said.contains("belongs to the daemon with process"),
        "{said}"
    );
}
