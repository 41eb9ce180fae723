//! What each call does to the state. Over HTTP: `tests/http.rs`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{add_batch, perform};
use crate::status::Status;
use crate::world::World;

struct Scene {
    world: World,
    queue: String,
}

impl Scene {
    fn new() -> Self {
        let mut world = World::default();
        let queue = perform(&mut world, "queues.create", &json!({ "name": "half_gpu" }))
            .expect("a new queue");
        let queue = queue["id"].as_str().expect("an id").to_owned();
        Self { world, queue }
    }

    #[track_caller]
    fn must(&mut self, endpoint: &str, body: Value) -> Value {
        perform(&mut self.world, endpoint, &body)
            .unwrap_or_else(|refusal| panic!("{endpoint} {body}: {refusal}"))
    }

    #[track_caller]
    fn refused(&mut self, endpoint: &str, body: Value) -> (u16, u16) {
        let refusal = perform(&mut self.world, endpoint, &body).expect_err("it is refused");
        (refusal.code, refusal.subcode)
    }

    #[track_caller]
    fn enqueued(&mut self) -> String {
        let task = self.must(
            "tasks.create",
            json!({ "name": "train", "type": "training" }),
        )["id"]
            .clone();
        self.must(
            "tasks.enqueue",
            json!({ "task": task, "queue": self.queue }),
        );
        task.as_str().expect("an id").to_owned()
    }

    fn message(&self, task: &str) -> &str {
        self.world.tasks[task]["status_message"]
            .as_str()
            .expect("text")
    }
}

#[test]
fn a_pop_takes_the_head_only_when_it_is_the_one_that_was_meant() {
    let mut scene = Scene::new();
    let (first, second) = (scene.enqueued(), scene.enqueued());
    let queue = scene.queue.clone();
    assert_eq!(
        scene.must("queues.peek_task", json!({ "queue": queue }))["task"],
        json!(first)
    );
    assert_eq!(
        scene.must(
            "queues.get_next_task",
            json!({ "queue": queue, "task": second })
        ),
        json!({})
    );
    let popped = scene.must(
        "queues.get_next_task",
        json!({ "queue": queue, "task": first, "get_task_info": true }),
    );
    assert_eq!(popped["entry"]["task"], json!(first));
    assert_eq!(
        popped["task_info"],
        json!({ "company": "company", "user": "ana" })
    );
    assert_eq!(scene.world.status(&first), Some(Status::Queued));
    assert_eq!(scene.world.waiting("half_gpu"), [second]);
}

#[test]
fn an_old_server_pops_whatever_is_first() {
    let mut scene = Scene::new();
    let (first, second) = (scene.enqueued(), scene.enqueued());
    scene.world.is_old = true;
    let body = json!({ "queue": scene.queue, "task": second });
    assert_eq!(
        scene.must("queues.get_next_task", body)["entry"]["task"],
        json!(first)
    );
}

#[test]
fn what_was_popped_can_be_put_back_in_front_and_only_once() {
    let mut scene = Scene::new();
    let (first, second) = (scene.enqueued(), scene.enqueued());
    let entry = json!({ "queue": scene.queue, "task": first });
    scene.must("queues.get_next_task", entry.clone());
    scene.must("queues.add_task", entry.clone());
    assert_eq!(scene.refused("queues.add_task", entry.clone()), (400, 706));
    assert_eq!(
        scene.world.waiting("half_gpu"),
        [second.clone(), first.clone()]
    );
    assert_eq!(
        scene.must("queues.move_task_to_front", entry.clone()),
        json!({ "position": 0 })
    );
    assert_eq!(scene.world.waiting("half_gpu"), [first, second]);
    assert_eq!(
        scene.must("queues.remove_task", entry.clone()),
        json!({ "removed": 1 })
    );
    assert_eq!(scene.refused("queues.remove_task", entry), (400, 703));
}

#[test]
fn states_follow_each_other_as_the_server_has_it() {
    let mut scene = Scene::new();
    let task = scene.enqueued();
    let queue = scene.queue.clone();
    let name = json!({ "task": task });
    assert_eq!(scene.refused("tasks.completed", name.clone()), (400, 110));
    scene.must(
        "tasks.started",
        json!({ "task": task, "status_message": "pulled by node1:gpu0.5a" }),
    );
    assert_eq!(scene.message(&task), "pulled by node1:gpu0.5a");
    assert_eq!(
        scene.refused("tasks.enqueue", json!({ "task": task, "queue": queue })),
        (400, 110)
    );
    scene.must(
        "tasks.failed",
        json!({ "task": task, "status_reason": "worker execution exit code 1" }),
    );
    assert_eq!(scene.refused("tasks.completed", name.clone()), (400, 110));
    scene.must("tasks.completed", json!({ "task": task, "force": true }));
    assert_eq!(
        scene.refused("tasks.started", json!({ "task": "nobody" })),
        (400, 10)
    );
    scene.must("tasks.reset", json!({ "task": task, "force": true }));
    assert_eq!(scene.world.status(&task), Some(Status::Created));
}

#[test]
fn a_task_that_a_worker_runs_is_asked_to_stop_and_any_other_is_stopped() {
    let mut scene = Scene::new();
    let (waiting, running, silent) = (scene.enqueued(), scene.enqueued(), scene.enqueued());
    for task in [&running, &silent] {
        scene.must(
            "queues.remove_task",
            json!({ "queue": scene.queue.clone(), "task": task }),
        );
        scene.must("tasks.started", json!({ "task": task }));
    }
    scene.must(
        "workers.status_report",
        json!({ "worker": "node1:gpu0.5a", "task": running, "timestamp": 1 }),
    );
    for task in [&waiting, &running, &silent] {
        scene.must("tasks.stop", json!({ "task": task }));
    }
    assert_eq!(scene.world.status(&waiting), Some(Status::Stopped));
    assert_eq!(scene.world.waiting("half_gpu"), [] as [String; 0]);
    assert_eq!(scene.world.status(&silent), Some(Status::Stopped));
    assert_eq!(scene.message(&silent), "Stopped by ana");
    assert_eq!(scene.world.status(&running), Some(Status::InProgress));
    assert_eq!(scene.message(&running), "stopping");
    // Another `started` wipes the wish away, as the real one does.
    scene.must(
        "tasks.started",
        json!({ "task": running, "status_message": "again" }),
    );
    assert_eq!(scene.message(&running), "again");
    scene.world.advance(Duration::from_secs(601));
    scene.must("tasks.stop", json!({ "task": running }));
    assert_eq!(scene.world.status(&running), Some(Status::Stopped));
}

#[test]
fn names_of_users_and_projects_come_beside_their_ids() {
    let mut scene = Scene::new();
    let task = scene.enqueued();
    let made = scene.must(
        "projects.create",
        json!({ "name": "Vision/Deep", "description": "" }),
    );
    scene.world.set(&task, "project", made["id"].clone());
    scene.world.users.insert("ana".into(), "Ana Ruiz".into());
    let mut named = |only: Value| {
        let body = json!({ "id": [task, "gone"], "only_fields": only, "search_hidden": true });
        scene.must("tasks.get_all_ex", body)["tasks"].take()
    };
    // As apiserver 2.3.0 answers.
    assert_eq!(
        named(json!(["id", "user.name", "project.name"])),
        json!([{
            "id": task,
            "user": { "id": "ana", "name": "Ana Ruiz" },
            "project": { "id": made["id"], "name": "Vision/Deep" },
        }])
    );
    assert_eq!(
        named(json!(["user"])),
        json!([{ "id": task, "user": { "id": "ana" } }])
    );
}

#[test]
fn a_task_stopped_while_it_was_popped_is_queued_again() {
    let mut scene = Scene::new();
    let task = scene.enqueued();
    scene.world.set(&task, "status", json!("stopped"));
    scene.must(
        "queues.get_next_task",
        json!({ "queue": scene.queue.clone() }),
    );
    assert_eq!(scene.world.status(&task), Some(Status::Queued));
}

#[test]
fn a_worker_is_forgotten_when_its_time_is_over() {
    let mut scene = Scene::new();
    let queue = scene.queue.clone();
    let refused = scene.refused(
        "workers.register",
        json!({ "worker": "node1:dgpu0-2", "queues": ["nowhere"] }),
    );
    assert_eq!(refused, (400, 701));
    scene.must(
        "workers.register",
        json!({ "worker": "node1:dgpu0-2", "queues": [queue], "timeout": 600 }),
    );
    scene.must(
        "workers.status_report",
        json!({ "worker": "node1:gpu0", "timestamp": 1 }),
    );
    scene.world.advance(Duration::from_secs(599));
    scene.must(
        "workers.status_report",
        json!({ "worker": "node1:gpu0", "timestamp": 2 }),
    );
    scene.world.advance(Duration::from_secs(2));
    let known = |scene: &mut Scene| {
        let all = scene.must("workers.get_all", json!({ "last_seen": 600 }));
        let ids = all["workers"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|worker| worker["id"].clone());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(known(&mut scene), ["node1:gpu0"]);
    scene.must(
        "workers.unregister",
        json!({ "worker": "node1:gpu0", "queues": [] }),
    );
    scene.must("workers.unregister", json!({ "worker": "node1:gpu0" }));
    assert_eq!(known(&mut scene), [] as [Value; 0]);
}

#[test]
fn events_are_lines_of_json_about_tasks_that_are() {
    let mut scene = Scene::new();
    let task = scene.enqueued();
    let line = |task: &str, text: &str| {
        json!({ "type": "log", "task": task, "msg": text, "level": "INFO" }).to_string()
    };
    let both = format!("{}\n{}", line(&task, "one\n"), line(&task, "two\n"));
    let added = add_batch(&mut scene.world, &both).expect("they are fine");
    assert_eq!(added, json!({ "added": 2, "errors": 0, "errors_info": {} }));
    assert_eq!(scene.world.log(&task), "one\ntwo\n");
    let refused = |scene: &mut Scene, lines: &str| {
        let refusal = add_batch(&mut scene.world, lines).expect_err("it is refused");
        (refusal.code, refusal.subcode)
    };
    assert_eq!(refused(&mut scene, &line("nobody", "x")), (400, 131));
    assert_eq!(refused(&mut scene, "[1, 2"), (500, 0));
    assert_eq!(refused(&mut scene, "\n"), (400, 17));
    let strange = json!({ "type": "log", "task": task, "msg": "x", "colour": "red" }).to_string();
    assert_eq!(refused(&mut scene, &strange), (400, 12));
}

#[test]
fn an_edit_replaces_runtime_and_container_and_adds_to_execution() {
    let mut scene = Scene::new();
    let task = scene.enqueued();
    let runtime = json!({ "task": task, "runtime": { "a": 1 } });
    assert_eq!(scene.refused("tasks.edit", runtime), (400, 110));
    scene.must(
        "tasks.edit",
        json!({ "task": task, "force": true, "runtime": { "a": 1 }, "execution": { "x": 1 } }),
    );
    scene.must(
        "tasks.edit",
        json!({ "task": task, "force": true, "runtime": { "b": 2 } }),
    );
    let fields = &scene.world.tasks[&task];
    assert_eq!(fields["runtime"], json!({ "b": 2 }));
    assert_eq!(fields["execution"], json!({ "queue": scene.queue, "x": 1 }));
}

#[test]
fn queues_are_found_by_expressions_and_have_names_of_three_letters() {
    let mut scene = Scene::new();
    scene.must("queues.create", json!({ "name": "half_gpu_2" }));
    let mut found = |name: &str| {
        let all = scene.must(
            "queues.get_all",
            json!({ "name": name, "only_fields": ["id", "name"] }),
        );
        all["queues"].as_array().expect("a list").len()
    };
    assert_eq!(found("half_gpu"), 2);
    assert_eq!(found("^half_gpu$"), 1);
    assert_eq!(
        scene.refused("queues.create", json!({ "name": "q1" })),
        (400, 800)
    );
    assert_eq!(
        scene.refused("queues.create", json!({ "name": "half_gpu" })),
        (400, 801)
    );
    assert_eq!(
        scene.refused("queues.get_by_id", json!({ "queue": "half_gpu" })),
        (400, 701)
    );
    assert_eq!(scene.refused("queues.get_default", json!({})), (400, 707));
    assert_eq!(
        scene.refused("workers.set_runtime_properties", json!({ "worker": "w" })),
        (404, 0)
    );
}
