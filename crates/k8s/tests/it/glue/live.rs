//! What a real ClearML server, a real kubelet and Kueue do that a glue has to know.

use divvy_clearml_stub::Fault;
use serde_json::{Value, json};

use super::VALUES;
use super::kubelet::Fate;
use super::scene::{NAMESPACE, Scene, until};

/// Waits for some more looks of the glue, of which each asks for both queues.
fn looks(scene: &Scene, number: usize) {
    let looked = || scene.stub.calls_to("queues.get_by_id").len();
    let before = looked();
    until("the glue has looked again", || {
        (looked() > before + 2 * number).then_some(())
    });
}

#[test]
fn more_tasks_than_the_server_has_on_a_page_are_all_watched() {
    let scene = Scene::new(VALUES);
    scene.stub.with(|world| world.page_size = Some(2));
    let tasks: Vec<String> = (0..5)
        .map(|n| {
            scene
                .stub
                .enqueued("whole", &format!("task {n}"), json!({}))
        })
        .collect();
    tasks
        .iter()
        .for_each(|task| scene.node.set(task, Fate::Runs));
    let _glue = scene.glue();
    for task in &tasks {
        scene.becomes(task, "in_progress");
    }
    looks(&scene, 4);
    let pods = scene.pods();
    let leaves = |pod: &&Value| !pod["metadata"]["deletionTimestamp"].is_null();
    assert_eq!((pods.len(), pods.iter().filter(leaves).count()), (5, 0));
    // One that is deleted is still told from one of another page.
    scene.must("tasks.delete", json!({ "task": tasks[0], "force": true }));
    until("its pod goes", || {
        scene.pod_of(&tasks[0]).is_none().then_some(())
    });
    for task in &tasks[1..] {
        scene.node.set(task, Fate::Completes);
        scene.becomes(task, "completed");
    }
    scene.is_clean();
}

#[test]
fn a_pod_that_is_refused_for_a_while_is_announced_once() {
    let scene = Scene::new(VALUES);
    let mut quota = 6;
    scene.api.on_create(move |kind, _| {
        if kind == "Pod" && quota > 0 {
            quota -= 1;
            return Err("exceeded quota: gpus".to_owned());
        }
        Ok(())
    });
    let task = scene.stub.enqueued("half", "task", json!({}));
    let _glue = scene.glue();
    scene.becomes(&task, "completed");
    let log = scene.stub.log(&task);
    for line in ["Running Task", "exceeded quota"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
}

#[test]
fn arguments_of_a_task_without_an_image_count() {
    let scene = Scene::new(VALUES);
    let own = json!({ "container": { "arguments": "-e A=b" } });
    let task = scene.stub.enqueued("half", "task", own);
    scene.node.set(&task, Fate::Runs);
    let _glue = scene.glue();
    let pod = until("it has its pod", || scene.pod_of(&task));
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    assert!(
        env.contains(&json!({ "name": "A", "value": "b" })),
        "{env:?}"
    );
}

#[test]
fn a_task_that_its_agent_has_failed_is_left_to_end() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("half", "task", json!({}));
    scene.node.set(&task, Fate::Lingers);
    let _glue = scene.glue();
    scene.becomes(&task, "failed");
    looks(&scene, 4);
    let pod = scene.pod_of(&task).expect("its agent still uploads");
    assert_eq!(pod["metadata"]["deletionTimestamp"], Value::Null);
    scene.node.set(&task, Fate::Exits(1));
    scene.is_clean();
    assert_eq!(
        scene.said(&task, "status_reason"),
        "worker execution exit code 1"
    );
}

#[test]
fn the_page_of_a_task_shows_the_warning_of_a_node_that_cannot_start_its_pod() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("half", "task", json!({}));
    scene
        .node
        .set(&task, Fate::Waits("0/1 nodes are available"));
    let _glue = scene.glue();
    let pod = until("it has its pod", || scene.pod_of(&task));
    let at = k8s_openapi::jiff::Timestamp::now().to_string();
    scene.api.create(json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "task.1", "namespace": NAMESPACE },
        "involvedObject": { "kind": "Pod", "uid": pod["metadata"]["uid"] }, "type": "Warning",
        "reason": "FailedPrepareDynamicResources", "message": "the GPU does not answer", "lastTimestamp": at,
    }));
    let line = "waiting in Kubernetes: FailedPrepareDynamicResources: the GPU does not answer";
    until("it is said", || {
        (scene.said(&task, "status_message") == line).then_some(())
    });
    scene.node.set(&task, Fate::Completes);
    scene.becomes(&task, "completed");
}

/// Kueue's definition, as far as the glue reads it.
fn kueue(scene: &Scene) {
    scene.api.create(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "workloads.kueue.x-k8s.io" },
        "spec": { "group": "kueue.x-k8s.io", "scope": "Namespaced",
            "names": { "plural": "workloads", "kind": "Workload" },
            "versions": [{ "name": "v1beta2", "served": true, "storage": true }] },
    }));
}

#[test]
fn a_pod_that_kueue_holds_waits_with_kueues_reason() {
    let scene = Scene::new(VALUES);
    kueue(&scene);
    let task = scene.stub.enqueued("half", "task", json!({}));
    scene.node.set(&task, Fate::Gated);
    let _glue = scene.glue();
    until("the gate is named", || {
        let said = scene.said(&task, "status_message");
        said.contains("SchedulingGated").then_some(())
    });
    let pod = scene.pod_of(&task).unwrap();
    let why = "couldn't assign flavors to pod set main: insufficient unused quota for gpu.memory in flavor default, 10Gi more needed";
    scene.api.create(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": { "name": "pod-task-1", "namespace": NAMESPACE, "ownerReferences": [{
            "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"] }] },
        "spec": { "queueName": "team" },
        "status": { "conditions": [{ "type": "QuotaReserved", "status": "False", "reason": "Pending", "message": why }] },
    }));
    let line = format!("waiting in Kubernetes: Kueue: {why}");
    until("Kueue's reason is said", || {
        (scene.said(&task, "status_message") == line).then_some(())
    });
    assert_eq!(scene.status(&task), "queued");
    scene.must("tasks.stop", json!({ "task": task }));
    scene.is_clean();
    assert_eq!(scene.status(&task), "stopped");
}

#[test]
fn a_task_whose_quota_kueue_takes_back_runs_again_from_the_front_of_its_queue() {
    let scene = Scene::new(VALUES);
    let task = scene.stub.enqueued("half", "task", json!({}));
    scene.node.set(&task, Fate::Runs);
    let glue = scene.glue();
    until("its program begins", || {
        (scene.node.runs(&task) == 1).then_some(())
    });
    scene.node.set(&task, Fate::Preempted);
    until("the glue writes down that it goes back", || {
        let records = scene.api.look(|view| view.all("secrets"));
        let mark = |record: &&Value| {
            record["metadata"]["annotations"]["glue.divvy.dev/mark"] == "returning"
        };
        records.iter().find(mark).map(drop)
    });
    // Killed between the two, the next one goes on.
    glue.crash();
    let (fault, hold) = Fault::hold_before("queues.get_next_task");
    scene.stub.inject(fault);
    let _glue = scene.glue();
    scene.node.set(&task, Fate::Runs);
    until("it is claimed again", || hold.is_reached().then_some(()));
    assert_eq!(scene.stub.waiting("half"), std::slice::from_ref(&task));
    hold.release();
    until("it runs again", || {
        (scene.node.runs(&task) == 2).then_some(())
    });
    scene.node.set(&task, Fate::Completes);
    scene.becomes(&task, "completed");
    scene.is_clean();
}

#[test]
fn pods_have_labels_of_their_users_and_projects() {
    let scene = Scene::new(VALUES);
    let project = scene
        .stub
        .must("projects.create", json!({ "name": "Vision/Deep" }));
    let task = scene.stub.task("task", json!({ "project": project["id"] }));
    let user = scene.stub.task_fields(&task)["user"]
        .as_str()
        .unwrap()
        .to_owned();
    scene
        .stub
        .with(|world| world.users.insert(user, "Ana Ruíz".to_owned()));
    scene.node.set(&task, Fate::Runs);
    scene.must(
        "tasks.enqueue",
        json!({ "task": task, "queue": scene.stub.queue("half") }),
    );
    let _glue = scene.glue();
    let pod = until("it has its pod", || scene.pod_of(&task));
    let labels = &pod["metadata"]["labels"];
    assert_eq!(
        (&labels["clearml-user"], &labels["clearml-project"]),
        (&json!("Ana-Ru-z"), &json!("Vision-Deep"))
    );
}
