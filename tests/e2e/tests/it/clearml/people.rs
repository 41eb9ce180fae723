//! Users and projects of tasks: names, quotas, the mapping that the administrator changes.

use std::fs;
use std::path::PathBuf;

use divvy_api::v1::{JobState, ProjectChange};
use divvy_e2e::clearml::{Scene, Task};
use divvy_e2e::until;
use serde_json::json;

/// Writes the mapping of projects.
fn map(scene: &Scene, text: &str) -> PathBuf {
    let path = scene.home.scratch().join("projects.toml");
    // In one step: it is read while it is written.
    let new = path.with_extension("new");
    fs::write(&new, text).expect("the folder is ours");
    fs::rename(&new, &path).expect("the folder is ours");
    path
}

/// Makes it the task of a user, who is called so, in a project of the server.
fn owned<'a>(scene: &Scene, task: Task<'a>, user: &str, name: &str) -> Task<'a> {
    let id = task.id();
    scene.stub().with(|world| {
        world.users.insert(user.to_owned(), name.to_owned());
        world.set(&id, "user", json!(user));
    });
    task
}

fn project(scene: &Scene, name: &str, gpus: u64) {
    let limit = ProjectChange {
        quota: Some(gpus * 1000),
        limit: Some(Some(gpus * 1000)),
        ..ProjectChange::default()
    };
    let made = scene
        .home
        .call(scene.home.client().add_project(name, &limit));
    made.expect("a new project");
}

#[test]
fn quotas_hold_for_tasks_of_two_users_and_a_new_mapping_restarts_nothing() {
    let scene = Scene::new("a100-80gb:2");
    let file = map(&scene, "by = \"user\"\n[users]\nann = \"vision\"");
    let file = file.to_str().expect("a readable name");
    let _daemon = scene.daemon(
        "0-1",
        &["single_gpu=1"],
        &["--set", &format!("clearml.project-by={file}")],
    );
    project(&scene, "vision", 1);
    project(&scene, "Bob B", 1);
    let on = |user: &str, name: &str, task: &str| {
        owned(&scene, scene.task(task), user, name).enqueue("single_gpu")
    };
    let first = on("ann", "Ann A", "first");
    first.runs_on();
    let (second, others) = (on("ann", "Ann A", "second"), on("bob", "Bob B", "others"));
    // It passes the head, which its project's limit holds back.
    others.runs_on();
    let waits = second.waits();
    assert_eq!(
        (waits.user.as_str(), waits.name.as_str()),
        ("Ann A", "second")
    );
    assert_eq!(waits.project.as_deref(), Some("vision"));
    assert!(
        waits
            .reason
            .as_ref()
            .is_some_and(|reason| reason.contains("vision's limit")),
        "{waits:?}"
    );
    let job = others.job();
    assert_eq!(
        (job.user.as_str(), job.project.as_deref()),
        ("Bob B", Some("Bob B"))
    );
    assert_eq!(job.labels["clearml.user"], "Bob B");

    map(&scene, "[users]\nann = \"nowhere\"");
    let moved = until("it is in the other project", || {
        second.jobs().into_iter().find(|job| job.project.is_none())
    });
    assert_eq!(moved.state, JobState::Queued);
    let why = scene
        .home
        .call(scene.home.client().why(&format!("clearml:{}", second.id())));
    let note = why.expect("it waits").note.expect("a note");
    assert!(note.contains("no project nowhere"), "{note}");
    let still = first.job();
    assert_eq!(
        (still.state, still.project.as_deref()),
        (JobState::Running, Some("vision"))
    );
    first.completes("first");
    second.runs_on();
    assert!(
        second.log().contains("divvy: there is no project nowhere"),
        "{}",
        second.log()
    );
    assert_eq!((first.runs(), others.runs()), (1, 1));
    scene.assert_no_complaints();
}

#[test]
fn a_task_beyond_its_projects_limit_waits_alone_and_the_server_says_why() {
    let scene = Scene::new("a100-80gb:2");
    let _daemon = scene.daemon(
        "0-1",
        &["dual_gpus=2"],
        &["--set", "clearml.project-by=user"],
    );
    project(&scene, "Ann A", 1);
    project(&scene, "Bob B", 2);
    let large = owned(&scene, scene.task("large"), "ann", "Ann A").enqueue("dual_gpus");
    let next = owned(&scene, scene.task("next"), "bob", "Bob B").enqueue("dual_gpus");
    next.runs_on();
    assert_eq!(large.status(), "queued");
    let said = large.fields()["status_message"].clone();
    assert!(
        said.as_str()
            .is_some_and(|said| said.starts_with("waits: ") && said.contains("Ann A")),
        "{said}"
    );
    scene.assert_no_complaints();
}

#[test]
fn names_of_the_server_are_text_and_nothing_else() {
    let scene = Scene::new("a100-80gb:1");
    let _daemon = scene.daemon(
        "0",
        &["single_gpu=1"],
        &["--set", "clearml.project-by=user"],
    );
    for (name, user, job_name, job_user) in [
        ("a\u{1b}[31m\nb", "\u{7}root\r", "a [31m b", "root"),
        ("7", &"ö".repeat(5000), "task 7", &"ö".repeat(100)),
        (" ", "\n", "clearml:", "hostile"),
    ] {
        let task = scene.task(job_user);
        scene
            .stub()
            .with(|world| world.set(&task.id(), "name", json!(name)));
        let task = owned(&scene, task, "hostile", user).enqueue("single_gpu");
        task.runs_on();
        let job = task.job();
        assert!(job.name.starts_with(job_name), "{:?}", job.name);
        assert_eq!(job.user, job_user);
        assert_eq!(job.project.as_deref(), Some(job_user));
        task.completes(job_user);
    }
    scene.assert_no_complaints();
}

#[test]
fn a_daemon_killed_between_claim_and_start_keeps_user_and_project() {
    // After the claim; before and after the server hears that it starts.
    for held in ["before", "after"] {
        let scene = Scene::new("a100-80gb:1");
        let words = ["--set", "clearml.project-by=user"];
        let hold = match held {
            "before" => scene.stub().hold_before("tasks.started"),
            _ => scene.stub().hold_after("tasks.started"),
        };
        let task = owned(&scene, scene.task("task"), "ann", "Ann A").enqueue("single_gpu");
        let daemon = scene.daemon("0", &["single_gpu=1"], &words);
        until("the task is claimed", || hold.is_reached().then_some(()));
        daemon.crash();
        hold.release();
        let _daemon = scene.daemon("0", &["single_gpu=1"], &words);
        task.runs_on();
        let job = task.job();
        assert_eq!(
            (job.user.as_str(), job.project.as_deref()),
            ("Ann A", Some("Ann A")),
            "{held}"
        );
        assert_eq!(
            (job.name.as_str(), job.labels["clearml.user"].as_str()),
            ("task", "Ann A"),
            "{held}"
        );
        assert_eq!(task.runs(), 1, "{held}");
    }
}
