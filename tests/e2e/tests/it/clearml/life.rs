//! What happens to tasks between queue and end: aborts, resets, deletions, programs that fail or are killed, several daemons.

use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_api::v1::EndReason;
use divvy_e2e::clearml::{Agent, Scene, Server, Task};
use divvy_e2e::{Home, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const HALVES: [&str; 1] = ["half_gpu=0.5"];

/// The process that runs a task, once the agent knows it: the task's program may have begun before.
#[track_caller]
fn process(scene: &Scene, task: &Task<'_>) -> Pid {
    let job = task.jobs().pop().expect("it runs");
    let pid = scene.home.running(&job.id).pid.expect("it runs");
    Pid::from_raw(pid.cast_signed()).expect("a pid")
}

/// A program that fails.
pub fn a_failed_program_frees_its_slot(scene: &Scene) {
    scene.open("bad");
    let bad = scene
        .draft("bad", &scene.program("bad", 3), &json!({}))
        .enqueue("single_gpu");
    let next = scene.enqueued("single_gpu", "next");
    let _daemon = scene.daemon("0", &["single_gpu=1"], &[]);
    let fields = bad.becomes("failed");
    assert_eq!(fields["status_reason"], "worker execution exit code 3");
    let message = fields["status_message"].as_str().unwrap_or_default();
    assert!(message.starts_with("Changed by "), "{message}");
    assert_eq!(next.runs_on(), "gpu0");
    let job = bad.job();
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Failed), Some(3))
    );
    let log = bad.log();
    assert!(!log.contains("User aborted"), "{log}");
}

#[test]
fn a_program_that_fails_makes_a_failed_task_and_a_free_slot() {
    let scene = Scene::new("a100-80gb:1");
    a_failed_program_frees_its_slot(&scene);
    scene.assert_no_complaints();
}

/// A user aborts what runs.
pub fn an_abort_stops_the_program(scene: &Scene) {
    let (task, next) = (
        scene.enqueued("single_gpu", "task"),
        scene.enqueued("single_gpu", "next"),
    );
    let _daemon = scene.daemon("0", &["single_gpu=1"], &[]);
    assert_eq!(task.runs_on(), "gpu0");
    scene
        .server
        .must("tasks.stop", json!({ "task": task.id() }));
    task.becomes("stopped");
    assert_eq!(next.runs_on(), "gpu0");
    assert_eq!(task.status(), "stopped");
    assert_eq!(
        task.notes().len(),
        1,
        "it never came to its end: {:?}",
        task.notes()
    );
}

#[test]
fn an_abort_stops_what_runs_and_frees_its_slot() {
    let scene = Scene::new("a100-80gb:1");
    an_abort_stops_the_program(&scene);
    scene.assert_no_complaints();
}

#[test]
fn an_abort_has_one_ending_in_the_tasks_log() {
    // Its own agent sees the abort too late to say anything.
    let home = Home::new("a100-80gb:1").variable("QUICK_AGENT_BLIND", "1");
    let scene = Scene::around(Arc::new(Server::stub()), home, "node1", Agent::Quick);
    let task = scene.enqueued("single_gpu", "task");
    let _daemon = scene.daemon("0", &["single_gpu=1"], &["--set", "grace=1s"]);
    task.runs_on();
    scene
        .server
        .must("tasks.stop", json!({ "task": task.id() }));
    task.becomes("stopped");
    let log = task.log();
    for line in ["User aborted: stopping task", "Process aborted by user"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
    assert_eq!(task.job().end_reason, Some(EndReason::Cancelled));
}

#[test]
fn what_is_stopped_between_claim_and_start_never_starts() {
    for held in ["queues.get_next_task", "tasks.started"] {
        let scene = Scene::new("a100-80gb:1");
        let hold = scene.stub().hold_after(held);
        let task = scene.enqueued("single_gpu", "task");
        let _daemon = scene.daemon("0", &["single_gpu=1"], &[]);
        until("the task is claimed", || hold.is_reached().then_some(()));
        scene
            .server
            .must("tasks.stop", json!({ "task": task.id() }));
        hold.release();
        let next = scene.enqueued("single_gpu", "next");
        assert_eq!(next.runs_on(), "gpu0", "{held}");
        assert_eq!(
            (task.status().as_str(), task.runs()),
            ("stopped", 0),
            "{held}"
        );
        assert_eq!(
            scene.stub().waiting("single_gpu"),
            [] as [String; 0],
            "{held}"
        );
    }
}

#[test]
fn what_is_deleted_or_reset_gives_its_slot_back_wherever_it_was() {
    for wish in ["tasks.delete", "tasks.reset"] {
        let scene = Scene::new("a100-80gb:1");
        let undo = |task: &str| {
            scene
                .server
                .must(wish, json!({ "task": task, "force": true }));
        };
        let running = scene.enqueued("single_gpu", "running");
        let _daemon = scene.daemon("0", &["single_gpu=1"], &[]);
        assert_eq!(running.runs_on(), "gpu0");
        let waiting = scene.enqueued("single_gpu", "waiting");
        waiting.waits();
        undo(&waiting.id());
        until("nobody waits for it any more", || {
            waiting.jobs().is_empty().then_some(())
        });

        let hold = scene.stub().hold_after("queues.get_next_task");
        let claimed = scene.enqueued("single_gpu", "claimed");
        claimed.waits();
        undo(&running.id());
        until("the next one is claimed", || {
            hold.is_reached().then_some(())
        });
        undo(&claimed.id());
        hold.release();
        let last = scene.enqueued("single_gpu", "last");
        assert_eq!(last.runs_on(), "gpu0", "{wish}");
        for task in [waiting, claimed] {
            assert_eq!(task.runs(), 0, "{wish}");
        }
        assert_eq!(
            running.notes().len(),
            1,
            "{wish}: it was ended: {:?}",
            running.notes()
        );
        assert_eq!(
            running.status(),
            if wish == "tasks.reset" { "created" } else { "" }
        );
    }
}

#[test]
fn a_slot_whose_processes_are_killed_is_free_and_its_task_failed() {
    let scene = Scene::new("a100-80gb:1");
    let (task, next) = (
        scene.enqueued("single_gpu", "task"),
        scene.enqueued("single_gpu", "next"),
    );
    let _daemon = scene.daemon("0", &["single_gpu=1"], &[]);
    assert_eq!(task.runs_on(), "gpu0");
    let pid = process(&scene, &task);
    // The agent inside dies and says nothing to the server.
    kill_process(pid, Signal::KILL).expect("it lives");
    let fields = task.becomes("failed");
    assert!(
        fields["status_reason"]
            .as_str()
            .is_some_and(|reason| !reason.is_empty()),
        "{fields}"
    );
    assert_eq!(next.runs_on(), "gpu0");
    until(
        "its worker is unregistered, and registered anew for the next",
        || {
            let workers = scene.stub().workers();
            let slots: Vec<_> = workers
                .iter()
                .filter(|worker| worker.id == "node1:gpu0")
                .collect();
            (slots.len() == 1 && slots[0].task.as_deref() == Some(&next.id())).then_some(())
        },
    );
}

#[test]
fn a_daemon_that_is_killed_and_started_again_knows_its_slots() {
    a_killed_daemon_knows_its_slots(&Scene::new("a100-80gb:1"));
}

/// The daemon is killed and started again while its children run.
pub fn a_killed_daemon_knows_its_slots(scene: &Scene) {
    let first = scene.enqueued("half_gpu", "first");
    let daemon = scene.daemon("0", &HALVES, &[]);
    assert_eq!(first.runs_on(), "gpu0.5a");
    daemon.crash();
    let others = ["second", "third"].map(|name| scene.enqueued("half_gpu", name));
    let _daemon = scene.daemon("0", &HALVES, &[]);
    assert_eq!(others[0].runs_on(), "gpu0.5b");
    others[1].waits();
    first.completes("first");
    assert_eq!(others[1].runs_on(), "gpu0.5a");
    assert_eq!(first.runs(), 1);
}

#[test]
fn a_task_that_ends_while_the_daemon_is_gone_is_settled_when_it_is_back() {
    let scene = Scene::new("a100-80gb:1");
    let tasks = ["ends", "dies"].map(|name| scene.enqueued("half_gpu", name));
    let daemon = scene.daemon("0", &HALVES, &[]);
    let processes = tasks.map(|task| {
        task.runs_on();
        process(&scene, &task)
    });
    daemon.crash();
    kill_process(processes[1], Signal::KILL).expect("it lives");
    tasks[0].completes("ends");
    assert_eq!(tasks[1].status(), "in_progress");
    let _daemon = scene.daemon("0", &HALVES, &[]);
    tasks[1].becomes("failed");
    until("no slot is left registered", || {
        let workers = scene.stub().workers();
        workers
            .iter()
            .all(|worker| worker.id == "node1:dgpu0")
            .then_some(())
    });
}

#[test]
fn two_daemons_on_one_queue_run_every_task_once() {
    let scene = Scene::new("a100-80gb:1");
    let other = Scene::around(
        Arc::clone(&scene.server),
        Home::new("a100-80gb:1"),
        "node2",
        Agent::Quick,
    );
    let tasks: Vec<_> = (0..24)
        .map(|number| {
            scene.open(&format!("t{number}"));
            scene.enqueued("quarter_gpu", &format!("t{number}"))
        })
        .collect();
    let _daemons = [&scene, &other].map(|scene| scene.daemon("0", &["quarter_gpu=0.25"], &[]));
    for task in &tasks {
        task.becomes("completed");
        assert_eq!(task.runs(), 1);
    }
}

#[test]
fn quarters_that_start_slowly_are_never_more_than_four_a_gpu() {
    are_never_more_than_four_a_gpu(24);
}

mod exhaustive {
    #[test]
    fn a_hundred_quarters_that_start_slowly_are_never_more_than_four_a_gpu() {
        super::are_never_more_than_four_a_gpu(100);
    }
}

fn are_never_more_than_four_a_gpu(count: usize) {
    let home = Home::new("a100-80gb:2").variable("QUICK_AGENT_DELAY", "0.3");
    let server = Arc::new(Server::stub());
    let scene = Scene::around(server, home, "node1", Agent::Quick);
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            scene.open(&format!("t{number}"));
            scene.enqueued("quarter_gpu", &format!("t{number}"))
        })
        .collect();
    let _daemon = scene.daemon("0-1", &["quarter_gpu=0.25"], &[]);
    // What the agent holds for jobs, from the claim on, is what must never be more than there is; it checks that itself in
    // debug builds. What is checked here is the server's side of it: at most four tasks a GPU between claim and end.
    let mut most = 0;
    for task in &tasks {
        until("the next one has run", || {
            let jobs = scene.home.call(scene.home.client().jobs(false)).ok()?;
            let mut held = BTreeMap::<u32, usize>::new();
            for slice in jobs.iter().flat_map(|job| &job.slices) {
                *held.entry(slice.gpu_index).or_default() += 1;
            }
            for (gpu, count) in held {
                assert!(count <= 4, "{count} slices on GPU {gpu}");
                most = most.max(count);
            }
            let status = scene.stub().status(&task.id());
            status
                .is_some_and(|status| status.is_terminal())
                .then_some(())
        });
    }
    assert!(most > 0, "some were seen");
    let mut moments = Vec::new();
    for task in &tasks {
        assert_eq!((task.status().as_str(), task.runs()), ("completed", 1));
        let notes = task.notes();
        let words = |note: &str| note.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (begin, end) = (words(&notes[0]), words(&notes[1]));
        let slot = begin[2]
            .strip_prefix("node1:gpu")
            .expect("a slot")
            .to_owned();
        let (gpu, part) = slot.split_once('.').expect("a part");
        assert!(["25a", "25b", "25c", "25d"].contains(&part), "{slot}");
        moments.push((begin[1].parse::<f64>().expect("a time"), 1, gpu.to_owned()));
        moments.push((end[1].parse::<f64>().expect("a time"), -1, gpu.to_owned()));
    }
    moments.sort_by(|one, other| one.partial_cmp(other).expect("times have an order"));
    let mut running = BTreeMap::<String, i32>::new();
    for (_, change, gpu) in moments {
        let count = running.entry(gpu.clone()).or_default();
        *count += change;
        assert!(*count <= 4, "{count} at once on GPU {gpu}");
    }
    scene.assert_no_complaints();
}
