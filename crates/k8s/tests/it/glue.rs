//! `divvy-k8s glue` between a ClearML server and a cluster: every task runs once and ends, whatever becomes of the glue.
#![allow(clippy::unwrap_used)]

use crate::apiserver;
mod crash;
pub mod kubelet;
mod live;
pub mod scene;

use divvy_clearml_stub::{Fault, SECRET_KEY};
use serde_json::{Value, json};

use kubelet::Fate;
use scene::{Scene, until};

const VALUES: &str = r#"
agentk8sglue:
  basePodTemplate:
    labels: {team: a}
  queues:
    half:
      templateOverrides:
        labels: {clearml-injector/fraction: "0.500"}
        resources: {limits: {nvidia.com/gpu: 1, clear.ml/fraction-1: "0.5"}}
      queueSettings: {maxPods: 2}
    whole:
      templateOverrides:
        resources: {limits: {nvidia.com/gpu: 1}}
"#;

#[test]
fn a_task_of_a_queue_is_a_pod_and_ends_as_the_pod_does() {
    let scene = Scene::new(VALUES);
    let container = json!({ "container": { "image": "mine:1", "arguments": "-e A=b --ipc=host", "setup_shell_script": "echo hello" } });
    let task = scene.stub.enqueued("half", "task", container);
    scene.node.set(&task, Fate::Runs);
    let _glue = scene.glue();
    scene.becomes(&task, "in_progress");
    let pod = scene.pod_of(&task).unwrap();
    assert_eq!(pod["metadata"]["name"], format!("clearml-id-{task}"));
    assert_eq!(
        pod["metadata"]["labels"]["clearml-injector/fraction"],
        "0.500"
    );
    assert_eq!(pod["metadata"]["labels"]["team"], "a");
    let own = &pod["spec"]["containers"][0];
    assert_eq!(
        (
            &own["image"],
            &own["resources"]["limits"]["clear.ml/fraction-1"]
        ),
        (&json!("mine:1"), &json!("0.5"))
    );
    let env = own["env"].as_array().unwrap();
    assert!(
        env.contains(&json!({ "name": "A", "value": "b" })),
        "{env:?}"
    );
    assert!(
        env.contains(&json!({ "name": "CLEARML_WORKER_ID", "value": format!("glue:{task}") })),
        "{env:?}"
    );
    assert!(
        !pod.to_string().contains(SECRET_KEY),
        "no secret is in a listing of pods"
    );

    until("its program begins", || {
        (scene.node.runs(&task) == 1).then_some(())
    });
    let files = scene.node.files(&task).concat();
    assert!(
        files.contains(SECRET_KEY) && files.contains("echo hello"),
        "{files}"
    );
    assert!(
        files.contains(&format!(
            "execute --full-monitoring --require-queue --id {task}"
        )),
        "{files}"
    );

    until("its log is there up to where its own agent goes on", || {
        scene
            .stub
            .log(&task)
            .contains("Running task '")
            .then_some(())
    });
    let log = scene.stub.log(&task);
    assert!(log.contains("Collecting clearml-agent\n"), "{log}");
    assert!(
        log.contains("(a pod supports only -e and --env): --ipc=host"),
        "{log}"
    );
    assert!(!log.contains("this its own agent sends"), "{log}");

    scene.node.set(&task, Fate::Completes);
    scene.becomes(&task, "completed");
    scene.is_clean();
    assert_eq!(scene.node.runs(&task), 1);
    assert_eq!(scene.stub.complaints(), [] as [String; 0]);
}

#[test]
fn no_more_of_a_queues_tasks_have_pods_than_it_may_have_and_a_restart_changes_nothing() {
    let scene = Scene::new(VALUES);
    let tasks: Vec<String> = (0..4)
        .map(|n| scene.stub.enqueued("half", &format!("task {n}"), json!({})))
        .collect();
    let other = scene.stub.enqueued("whole", "other", json!({}));
    for task in &tasks {
        scene.node.set(task, Fate::Runs);
    }
    scene.node.set(&other, Fate::Runs);
    let glue = scene.glue();
    for task in [&tasks[0], &tasks[1], &other] {
        scene.becomes(task, "in_progress");
    }
    glue.crash();
    let calls = scene.stub.calls_to("queues.get_by_id").len();
    let glue = scene.glue();
    until("it has looked at its queues", || {
        (scene.stub.calls_to("queues.get_by_id").len() > calls + 8).then_some(())
    });
    assert_eq!(scene.pods().len(), 3);
    assert_eq!(scene.stub.waiting("half"), tasks[2..]);
    scene.node.set(&tasks[0], Fate::Completes);
    scene.becomes(&tasks[2], "in_progress");
    assert_eq!(scene.stub.waiting("half"), tasks[3..]);
    for task in tasks.iter().chain([&other]) {
        scene.node.set(task, Fate::Completes);
    }
    for task in tasks.iter().chain([&other]) {
        scene.becomes(task, "completed");
        assert_eq!(scene.node.runs(task), 1);
    }
    scene.is_clean();
    assert_eq!(glue.terminate(), Some(0));
    assert!(
        scene.stub.workers().is_empty(),
        "it has left the server's list"
    );
}

#[test]
fn two_glues_of_one_name_run_every_task_once() {
    let scene = Scene::new(VALUES);
    let tasks: Vec<String> = (0..12)
        .map(|n| {
            scene
                .stub
                .enqueued(["half", "whole"][n % 2], &format!("task {n}"), json!({}))
        })
        .collect();
    let (_one, _other) = (scene.glue(), scene.glue());
    for task in &tasks {
        scene.becomes(task, "completed");
        assert_eq!(scene.node.runs(task), 1);
    }
    scene.is_clean();
}

#[test]
fn every_end_of_a_pod_is_said_with_its_reason() {
    let scene = Scene::new(VALUES);
    let fates = [
        (Fate::Exits(3), "failed", "exit code 3"),
        (Fate::OutOfMemory, "failed", "exit code 137 (OOMKilled)"),
        (
            Fate::Evicted,
            "failed",
            "Evicted: The node was low on resource: memory.",
        ),
        (Fate::NoImage, "failed", "ImagePullBackOff: no such image"),
        (Fate::Exits(0), "completed", "exit code 0"),
    ];
    let tasks: Vec<String> = fates
        .iter()
        .map(|(fate, ..)| {
            let task = scene.stub.enqueued("whole", "task", json!({}));
            scene.node.set(&task, fate.clone());
            task
        })
        .collect();
    let _glue = scene.glue();
    for (task, (fate, status, reason)) in tasks.iter().zip(&fates) {
        scene.becomes(task, status);
        let said = scene.said(task, "status_reason");
        assert!(said.contains(reason), "{fate:?}: {said}");
        assert_eq!(scene.said(task, "status_message"), "Changed by divvy glue");
    }
    scene.is_clean();
    assert_eq!(scene.stub.complaints(), [] as [String; 0]);
}

#[test]
fn why_a_pod_waits_is_said_and_it_is_never_failed_for_it() {
    let why = "0/3 nodes are available: 3 cannot allocate all claims.";
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("half", "task", json!({}));
    scene.node.set(&task, Fate::Waits(why));
    let glue = scene.glue();
    let line = format!("waiting in Kubernetes: Unschedulable: {why}");
    until("it is said", || {
        (scene.said(&task, "status_message") == line).then_some(())
    });
    until("it is in the log", || {
        scene.stub.log(&task).contains(&line).then_some(())
    });
    assert_eq!(scene.status(&task), "queued");
    assert_eq!(scene.stub.waiting("half"), [] as [String; 0]);
    drop(glue);
    let calls = scene.stub.calls().len();
    let _glue = scene.glue();
    until("another glue looks at it", || {
        (scene.stub.calls().len() > calls + 10).then_some(())
    });
    assert_eq!(scene.status(&task), "queued");
    scene.node.set(&task, Fate::Completes);
    scene.becomes(&task, "completed");
    scene.is_clean();
}

#[test]
fn a_task_runs_for_the_server_from_when_its_container_does() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("half", "task", json!({}));
    scene.node.set(&task, Fate::Installs);
    let _glue = scene.glue();
    scene.becomes(&task, "in_progress");
    assert_eq!(scene.stub.calls_to("tasks.started").len(), 1);
    assert_eq!(scene.node.runs(&task), 0, "its agent has not begun");
    until("its page shows its pod", || {
        let fields = scene.stub.task_fields(&task);
        (fields["runtime"]["_divvy_pod"] == format!("divvy-system/clearml-id-{task}")).then_some(())
    });
    scene.node.set(&task, Fate::Completes);
    scene.becomes(&task, "completed");
    assert_eq!(scene.stub.calls_to("tasks.started").len(), 1);
}

#[test]
fn what_its_user_does_to_a_task_ends_its_pod() {
    let reset = |task: &str| ("tasks.reset", json!({ "task": task, "force": true }));
    let delete = |task: &str| ("tasks.delete", json!({ "task": task, "force": true }));
    let stop = |task: &str| ("tasks.stop", json!({ "task": task }));
    type Act<'a> = &'a dyn Fn(&str) -> (&'static str, Value);
    let acts: [(Act<'_>, &str); 3] = [(&stop, "stopped"), (&reset, "created"), (&delete, "gone")];
    for (act, status) in acts {
        for fate in [Fate::Runs, Fate::Waits("no room")] {
            let scene = Scene::new(VALUES);
            let task = scene.stub.enqueued("half", "task", json!({}));
            scene.node.set(&task, fate.clone());
            let _glue = scene.glue();
            let is_there = || match fate {
                Fate::Runs => scene.node.runs(&task) == 1,
                _ => scene.said(&task, "status_message").contains("no room"),
            };
            until("it is where it is to be", || is_there().then_some(()));
            // What was seen before is over: two queues are looked at in each look, and its steps follow.
            let looked = || scene.stub.calls_to("queues.get_by_id").len();
            let before = looked();
            until("the glue has looked again", || {
                (looked() > before + 2).then_some(())
            });
            let (endpoint, body) = act(&task);
            scene.must(endpoint, body);
            scene.is_clean();
            scene.becomes(&task, status);
            assert_eq!(scene.node.runs(&task), usize::from(fate == Fate::Runs));
        }
    }
}

#[test]
fn a_task_that_is_queued_again_while_it_waits_runs_once_more_and_no_more() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("half", "task", json!({}));
    scene.node.set(&task, Fate::Waits("no room"));
    let _glue = scene.glue();
    until("it has its pod", || scene.pod_of(&task));
    let first = scene.pod_of(&task).unwrap()["metadata"]["uid"].clone();
    scene.must("tasks.reset", json!({ "task": task, "force": true }));
    scene.must(
        "tasks.edit",
        json!({ "task": task, "container": { "image": "other:2" } }),
    );
    scene.must(
        "tasks.enqueue",
        json!({ "task": task, "queue": scene.stub.queue("half") }),
    );
    let pod = until("it has another pod", || {
        scene
            .pod_of(&task)
            .filter(|pod| pod["metadata"]["uid"] != first)
    });
    assert_eq!(pod["spec"]["containers"][0]["image"], "other:2");
    scene.node.set(&task, Fate::Completes);
    scene.becomes(&task, "completed");
    scene.is_clean();
    assert_eq!(scene.node.runs(&task), 1);
}

#[test]
fn a_pod_that_vanishes_is_told_from_one_that_ended() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("whole", "task", json!({}));
    scene.node.set(&task, Fate::Runs);
    let _glue = scene.glue();
    until("its program begins", || {
        (scene.node.runs(&task) == 1).then_some(())
    });
    scene
        .api
        .remove("pods", scene::NAMESPACE, &format!("clearml-id-{task}"));
    scene.becomes(&task, "failed");
    assert!(
        scene
            .said(&task, "status_reason")
            .contains("the task's pod is gone")
    );
    scene.is_clean();
    assert_eq!(scene.node.runs(&task), 1);
}

#[test]
fn a_pod_whose_record_was_removed_is_ours_all_the_same() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("whole", "task", json!({}));
    scene.node.set(&task, Fate::Runs);
    let glue = scene.glue();
    until("its program begins", || {
        (scene.node.runs(&task) == 1).then_some(())
    });
    glue.crash();
    scene
        .api
        .remove("secrets", scene::NAMESPACE, &format!("clearml-id-{task}"));
    let _glue = scene.glue();
    scene.node.set(&task, Fate::OutOfMemory);
    scene.becomes(&task, "failed");
    scene.is_clean();
}

#[test]
fn a_pod_that_admission_refuses_ends_its_task_with_the_reason_and_a_full_quota_does_not() {
    let scene = Scene::new(VALUES);
    let mut quota = 3;
    scene.api.on_create(move |kind, pod| {
        if kind != "Pod" {
            return Ok(());
        }
        if pod["spec"]["containers"][0]["image"] == "bad" {
            let said = "admission webhook \"inject.gpu.divvy.dev\" denied the request: `0.3` is none of the steps";
            return Err(said.to_owned());
        }
        quota -= 1;
        if quota >= 0 {
            Err("exceeded quota: gpus".to_owned())
        } else {
            Ok(())
        }
    });
    let bad = scene
        .stub
        .enqueued("half", "bad", json!({ "container": { "image": "bad" } }));
    let good = scene.stub.enqueued("half", "good", json!({}));
    let _glue = scene.glue();
    scene.becomes(&bad, "failed");
    let said = scene.said(&bad, "status_reason");
    assert!(
        said.contains("Kubernetes rejected the task's pod") && said.contains("none of the steps"),
        "{said}"
    );
    scene.becomes(&good, "completed");
    assert!(
        scene.stub.log(&good).contains("exceeded quota"),
        "{}",
        scene.stub.log(&good)
    );
    scene.is_clean();
}

#[test]
fn a_task_that_does_not_fit_into_a_secret_fails_with_the_reason() {
    let scene = Scene::new(VALUES);
    let script = "x".repeat(1 << 20);
    let large = json!({ "container": { "setup_shell_script": script } });
    let task = scene.stub.enqueued("half", "large", large);
    let _glue = scene.glue();
    scene.becomes(&task, "failed");
    let said = scene.said(&task, "status_reason");
    assert!(said.contains("Too long"), "{said}");
    scene.is_clean();
}

#[test]
fn what_is_refused_for_one_task_holds_up_no_other() {
    let scene = Scene::new(VALUES);
    let bad = scene.stub.enqueued("half", "bad", json!({}));
    let of_bad = format!("secrets/clearml-id-{bad}");
    scene.api.fail("PATCH", &of_bad, 403, usize::MAX);
    let _glue = scene.glue();
    // One as it is claimed, the others in looks at it.
    until("it is refused at each look", || {
        let calls = scene.api.look(|view| {
            let calls = view.calls().iter();
            let of_bad = calls.filter(|call| call.method == "PATCH" && call.path.contains(&of_bad));
            of_bad.count()
        });
        (calls > 2).then_some(())
    });
    for queue in ["half", "whole"] {
        let good = scene.stub.enqueued(queue, "good", json!({}));
        scene.becomes(&good, "completed");
    }
    assert_eq!(scene.status(&bad), "queued");
}

#[test]
fn a_queue_that_is_deleted_holds_up_no_other() {
    let scene = Scene::new(VALUES);
    let first = scene.stub.enqueued("whole", "first", json!({}));
    let _glue = scene.glue();
    scene.becomes(&first, "completed");
    scene.must(
        "queues.delete",
        json!({ "queue": scene.stub.queue("half"), "force": true }),
    );
    let next = scene.stub.enqueued("whole", "next", json!({}));
    scene.becomes(&next, "completed");
}

#[test]
fn a_task_whose_queue_is_served_no_more_goes_back_to_its_front() {
    let scene = Scene::new(VALUES);
    let (task, next) = (
        scene.stub.enqueued("whole", "task", json!({})),
        scene.stub.enqueued("whole", "next", json!({})),
    );
    let (fault, hold) = Fault::hold_after("queues.get_next_task");
    scene.stub.inject(fault);
    let glue = scene.glue();
    until("it is claimed", || hold.is_reached().then_some(()));
    glue.crash();
    hold.release();
    scene.serve("agentk8sglue: {queue: half}");
    let _glue = scene.glue();
    until("it is back", || {
        (scene.stub.waiting("whole") == [task.clone(), next.clone()]).then_some(())
    });
    scene.is_clean();
    assert_eq!(scene.node.runs(&task), 0);
}

#[test]
fn a_queue_that_is_tagged_off_is_not_pulled() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("half", "task", json!({}));
    let queue = scene.stub.queue("half");
    scene.must(
        "queues.update",
        json!({ "queue": queue, "tags": ["force_workers:off"] }),
    );
    let other = scene.stub.enqueued("whole", "other", json!({}));
    let _glue = scene.glue();
    scene.becomes(&other, "completed");
    assert_eq!(scene.stub.waiting("half"), std::slice::from_ref(&task));
    scene.must("queues.update", json!({ "queue": queue, "tags": [] }));
    scene.becomes(&task, "completed");
}
