use super::*;

fn read(value: &Value) -> Result<Template, Problems> {
    let mut problems = Problems::default();
    let template = check("t", value, &mut problems);
    problems.none_in(template)
}

fn template(value: Value) -> Template {
    read(&value).unwrap()
}

fn laid(layers: &[Value]) -> Value {
    let mut pod = json!({});
    for layer in layers {
        lay(&template(layer.clone()), &mut pod);
    }
    pod
}

#[test]
fn the_queues_layer_lies_over_the_base() {
    let base = json!({
        "labels": {"team": "a", "tier": "1"},
        "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": 1}},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulerName": "", "priorityClassName": "low",
    });
    let queue = json!({
        "labels": {"tier": "2"},
        "resources": {"limits": {"nvidia.com/gpu": null, "nvidia.com/mig-1g.10gb": 1}},
        "env": [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}],
        "priorityClassName": "",
    });
    let pod = laid(&[base, queue]);
    assert_eq!(pod["metadata"]["labels"], json!({"team": "a", "tier": "2"}));
    let container = &pod["spec"]["containers"][0];
    assert_eq!(
        container["resources"]["limits"],
        json!({"cpu": "1", "nvidia.com/mig-1g.10gb": "1"})
    );
    assert_eq!(container["env"][1].get("value"), None);
    assert_eq!(container["env"].as_array().unwrap().len(), 2);
    assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(pod["spec"].get("priorityClassName"), None);
    assert_eq!(pod["spec"].get("schedulerName"), None);
}

#[test]
fn a_queue_can_take_away_what_the_base_says() {
    let pod = laid(&[
        json!({"nodeSelector": {"a": "b"}}),
        json!({"nodeSelector": null}),
    ]);
    assert_eq!(pod["spec"].get("nodeSelector"), None);
}

#[test]
fn what_no_template_has_is_named_with_what_was_meant() {
    for (value, said) in [
        (
            json!({"label": {}}),
            "t.label: unknown key; did you mean `labels`?",
        ),
        (
            json!({"NodeSelector": {}}),
            "t.NodeSelector: unknown key; did you mean `nodeSelector`?",
        ),
        (
            json!({"labels": {"a": 0.25}}),
            "t.labels.a: must be a string; write 0.25 in quotes",
        ),
        (json!({"labels": []}), "t.labels: must be a mapping"),
        (json!({"env": {"A": "b"}}), "t.env: must be a list"),
        (
            json!({"env": [{"value": "b"}]}),
            "t.env[0]: `name` is missing or not a string",
        ),
        (json!({"image": []}), "t.image: must be a single value"),
        (
            json!({"resources": {"limits": {"nvidia.com/gpu": "one"}}}),
            "t.resources.limits.nvidia.com/gpu: `one` is not a quantity such as 1, 0.5 or 500m",
        ),
    ] {
        assert_eq!(read(&value).unwrap_err().to_string(), said);
    }
}

#[test]
fn files_of_the_queue_replace_those_of_the_base() {
    let one = |content: &str| json!({"fileMounts": [{"name": "a", "folderPath": "/mnt/", "fileContent": content}]});
    let (base, queue) = (template(one("base")), template(one("queue")));
    assert_eq!(
        files([&base, &queue]),
        [File {
            path: "/mnt/a".into(),
            content: "queue".into()
        }]
    );
}
