use serde_json::{Value, json};

use super::super::record::{Logged, holder};
use super::super::task_state::ClaimPhase;
use super::super::template::check as template;
use super::super::values::Problems;
use super::*;

fn record() -> Record {
    Record {
        task: "abc".into(),
        queue_id: "q1".into(),
        queue_name: "half".into(),
        mark: ClaimPhase::Ours,
        was_stopped: false,
        logged: Logged::Nothing,
    }
}

fn facts() -> Facts {
    Facts {
        name: Some("train".into()),
        user: Some("Ana Ruíz".into()),
        project: Some("Vision/Deep".into()),
        ..Facts::default()
    }
}

/// The settings of a task.
#[derive(Default)]
struct Brings<'a> {
    image: Option<&'a str>,
    env: &'a [(String, String)],
    files: &'a [File],
    token: bool,
}

fn made(manifest: &Value, layer: Value, brings: &Brings<'_>) -> Result<Value, InvalidValue> {
    let (record, holder) = (record(), holder("glue"));
    let asked = TaskPodSpec {
        record: &record,
        facts: &facts(),
        holder: &holder,
        image: brings.image,
        default_image: "ubuntu:24.04",
        env: brings.env,
        worker: "glue:abc",
        files: brings.files,
        token: brings.token,
        pull: false,
    };
    let mut problems = Problems::default();
    let layer = template("t", &layer, &mut problems);
    let layer = problems.none_in(layer).unwrap();
    let pod = pod(manifest, &[&layer], &asked)?;
    Ok(serde_json::to_value(pod).unwrap())
}

#[test]
fn the_tasks_image_goes_before_the_queues_and_that_before_the_default() {
    let image = |layer: Value, own: Option<&'static str>| {
        let pod = made(
            &json!({}),
            layer,
            &Brings {
                image: own,
                ..Brings::default()
            },
        )
        .unwrap();
        pod["spec"]["containers"][0]["image"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(image(json!({}), None), "ubuntu:24.04");
    assert_eq!(image(json!({"image": "queue"}), None), "queue");
    assert_eq!(image(json!({"image": "queue"}), Some("task")), "task");
    assert_eq!(image(json!({"image": ""}), None), "ubuntu:24.04");
}

#[test]
fn no_secret_is_in_the_pod() {
    let pod = made(
        &json!({}),
        json!({}),
        &Brings {
            token: true,
            ..Brings::default()
        },
    )
    .unwrap();
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let token = env
        .iter()
        .find(|one| one["name"] == "CLEARML_AUTH_TOKEN")
        .unwrap();
    assert_eq!(token["valueFrom"]["secretKeyRef"]["name"], "clearml-id-abc");
    assert_eq!(token.get("value"), None);
    let data = secret_data("s".into(), "c".into(), Some("t"), &[]);
    assert_eq!(
        data.keys().collect::<Vec<_>>(),
        ["clearml.conf", "run.sh", "token"]
    );
}

#[test]
fn the_tasks_variables_go_over_the_queues_and_ours_over_both() {
    let env = [
        ("A".to_owned(), "task".to_owned()),
        ("CLEARML_WORKER_ID".to_owned(), "x".to_owned()),
    ];
    let layer = json!({"env": [{"name": "A", "value": "queue"}, {"name": "B", "value": "b"}]});
    let pod = made(
        &json!({}),
        layer,
        &Brings {
            env: &env,
            ..Brings::default()
        },
    )
    .unwrap();
    let all = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| all.iter().find(|one| one["name"] == name).unwrap()["value"].clone();
    assert_eq!((value("A"), value("B")), (json!("task"), json!("b")));
    assert_eq!(value("CLEARML_WORKER_ID"), "glue:abc");
}

#[test]
fn files_of_the_template_come_by_the_secret() {
    let files = [File {
        path: "/mnt/a.txt".into(),
        content: "text".into(),
    }];
    let pod = made(
        &json!({}),
        json!({}),
        &Brings {
            files: &files,
            ..Brings::default()
        },
    )
    .unwrap();
    let mounts = pod["spec"]["containers"][0]["volumeMounts"]
        .as_array()
        .unwrap();
    let mount = mounts
        .iter()
        .find(|one| one["mountPath"] == "/mnt/a.txt")
        .unwrap();
    assert_eq!(
        (&mount["subPath"], &mount["name"]),
        (&json!("file-0"), &json!("divvy-task"))
    );
    assert_eq!(
        secret_data(String::new(), String::new(), None, &files)["file-0"],
        "text"
    );
}

#[test]
fn a_template_may_say_nothing_that_no_pod_has() {
    let volumes =
        json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptydir": {}}]});
    assert_eq!(
        made(&json!({}), volumes, &Brings::default())
            .unwrap_err()
            .to_string(),
        "spec.volumes[1].emptydir: unknown field of a pod"
    );
    let good = json!({"volumes": [{"name": "a", "emptyDir": {}}]});
    let pod = made(&json!({}), good, &Brings::default()).unwrap();
    assert_eq!(
        pod["spec"]["volumes"][0],
        json!({"name": "a", "emptyDir": {}})
    );
    let wrong = json!({"resources": {"limit": {"cpu": 1}}});
    assert!(
        made(&json!({}), wrong, &Brings::default())
            .unwrap_err()
            .at
            .contains("resources.limit")
    );
}

#[test]
fn a_manifest_lies_under_the_template() {
    let text = "kind: Pod\nmetadata: {name: x, labels: {app: a}}\nspec:\n  hostPID: true\n  containers:\n  - {name: main, \
                image: \"\", command: [sleep], args: [\"1\"], resources: {limits: {nvidia.com/mig-3g.20gb: 1}}}\n  \
                - {name: mesh, image: mesh}\n";
    let manifest = manifest(text).unwrap();
    let pod = made(
        &manifest,
        json!({"labels": {"team": "b"}}),
        &Brings::default(),
    )
    .unwrap();
    assert_eq!(pod["metadata"]["name"], "clearml-id-abc");
    assert_eq!(pod["metadata"]["labels"]["app"], "a");
    assert_eq!(pod["metadata"]["labels"]["team"], "b");
    let task = &pod["spec"]["containers"][0];
    assert_eq!(task["name"], "main");
    assert_eq!(task["image"], "ubuntu:24.04");
    assert_eq!(
        task["command"],
        json!(["/bin/bash", "/etc/divvy/task/run.sh"])
    );
    assert_eq!(task.get("args"), None);
    assert_eq!(
        task["resources"]["limits"],
        json!({"nvidia.com/mig-3g.20gb": "1"})
    );
    assert_eq!(pod["spec"]["containers"][1]["name"], "mesh");
    assert_eq!(
        (&pod["spec"]["hostPID"], &pod["spec"]["restartPolicy"]),
        (&json!(true), &json!("Never"))
    );
}

#[test]
fn a_manifest_that_is_none_is_refused_by_what_is_wrong() {
    for (text, said) in [
        ("a: [1", "the pod template: not valid YAML"),
        ("[]", "the pod template: must be a Pod"),
        ("kind: Job", "kind: \"Job\" is not a Pod"),
        (
            "spec: {restartPolicy: Always}",
            "spec.restartPolicy: \"Always\" is not supported; use Never",
        ),
        (
            "spec: {Containers: []}",
            "spec.Containers: unknown field of a pod; did you mean `containers`?",
        ),
    ] {
        let found = manifest(text).unwrap_err().to_string();
        assert!(found.starts_with(said), "{text}: {found}");
    }
}

#[test]
fn of_container_arguments_only_variables_mean_something() {
    let (env, left_out) =
        arguments("-e A=1 --env 'B=two words' --env=C= --gpus all --ipc=host -e D");
    let pairs: Vec<(&str, &str)> = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(pairs, [("A", "1"), ("B", "two words"), ("C", "")]);
    assert_eq!(left_out, ["--gpus", "all", "--ipc=host", "D"]);
}

#[test]
fn a_pod_tells_its_user_and_project() {
    let pod = made(&json!({}), json!({}), &Brings::default()).unwrap();
    let metadata = &pod["metadata"];
    for (section, name, value) in [
        ("labels", "clearml-user", "Ana-Ru-z"),
        ("labels", "clearml-project", "Vision-Deep"),
        ("annotations", "glue.divvy.dev/user", "Ana Ruíz"),
        ("annotations", "glue.divvy.dev/project", "Vision/Deep"),
        ("annotations", "glue.divvy.dev/task-name", "train"),
    ] {
        assert_eq!(metadata[section][name], value, "{name}");
    }
}
