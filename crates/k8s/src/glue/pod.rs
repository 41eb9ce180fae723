//! The pod of a task: its queue's template, and in the first container the stock agent's `execute`. Pure.
//!
//! ```text
//! Secret of the same name:  run.sh         what the container runs: finds a Python, installs the agent, hands over
//!                           clearml.conf   the configuration, with the credentials
//!                           token          CLEARML_AUTH_TOKEN, where that is what the credentials are
//!                           file-0 …       fileMounts
//! ```
//! No secret is in the pod itself, where every user who may list pods could read it. The glue injects nothing: the
//! webhook, the scheduler and the node handle a template's GPU request, as for any pod.

use std::collections::BTreeMap;

use divvy_clearml::facts::Facts;
use divvy_core::docker::words;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::record::{Record, annotations_of, labels_of, name};
use super::template::{File, Template, container, lay};
use super::values::InvalidValue;

/// Where the configuration lies in the container: the stock agent's place, which its script copies it from.
pub const CONFIG: &str = "/tmp/clearml.conf";
/// The Secret's other files.
const FOLDER: &str = "/etc/divvy/task";
const SCRIPT: &str = "run.sh";
const CONF: &str = "clearml.conf";
const TOKEN: &str = "token";
/// The volume that they come by.
const VOLUME: &str = "divvy-task";

/// The parameters of a pod.
#[derive(Clone, Debug)]
pub struct TaskPodSpec<'a> {
    pub record: &'a Record,
    /// Display names of the task, its user and its project.
    pub facts: &'a Facts,
    /// Whose it is, as [`super::record::holder`] has it.
    pub holder: &'a str,
    /// The task's own; `None`: the template's.
    pub image: Option<&'a str>,
    /// Where there is neither.
    pub default_image: &'a str,
    /// The task's own variables.
    pub env: &'a [(String, String)],
    /// The worker that the task's agent registers as.
    pub worker: &'a str,
    pub files: &'a [File],
    /// Whether there is a token among the Secret's keys.
    pub token: bool,
    /// `agent.docker_force_pull`.
    pub pull: bool,
}

/// Reads a pod's manifest that is to lie under every template: `--pod-template`.
///
/// # Errors
/// Text that is no YAML, another kind, fields that no pod has, and a restart policy under which a task could run twice.
pub fn manifest(text: &str) -> Result<Value, InvalidValue> {
    let at = "the pod template";
    let wrong = |why: String| InvalidValue::new(at, &why);
    let pod = crate::base::yaml::parse(text).map_err(|error| wrong(error.to_string()))?;
    let mut pod = serde_json::to_value(pod).map_err(|error| wrong(error.to_string()))?;
    if !pod.is_object() {
        return Err(InvalidValue::new(at, "must be a Pod"));
    }
    if !["null", "\"Pod\"", "\"pod\""].contains(&pod["kind"].to_string().as_str()) {
        return Err(InvalidValue::new(
            "kind",
            &format!("{} is not a Pod", pod["kind"]),
        ));
    }
    let policy = &pod["spec"]["restartPolicy"];
    if !policy.is_null() && policy != "Never" {
        return Err(InvalidValue::new(
            "spec.restartPolicy",
            &format!("{policy} is not supported; use Never, because a task runs only once"),
        ));
    }
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
        fields.insert("kind".to_owned(), json!("Pod"));
    }
    container(&mut pod);
    check(&mut pod)?;
    Ok(pod)
}

/// Makes the pod.
///
/// # Errors
/// The templates say something that no pod has.
pub fn pod(
    manifest: &Value,
    layers: &[&Template],
    asked: &TaskPodSpec<'_>,
) -> Result<Pod, InvalidValue> {
    let mut pod = manifest.clone();
    for template in layers {
        lay(template, &mut pod);
    }
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    let metadata = &mut pod["metadata"];
    for stale in [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        metadata.as_object_mut().map(|fields| fields.remove(stale));
    }
    metadata["name"] = json!(name(&asked.record.task));
    add(&mut metadata["labels"], asked.record.labels(asked.holder));
    add(&mut metadata["labels"], labels_of(asked.facts));
    add(&mut metadata["annotations"], asked.record.of_whom());
    add(&mut metadata["annotations"], annotations_of(asked.facts));
    pod["spec"]["restartPolicy"] = json!("Never");
    push(
        &mut pod["spec"]["volumes"],
        json!({ "name": VOLUME, "secret": { "secretName": name(&asked.record.task) } }),
    );

    let task = container(&mut pod);
    if task["name"].is_null() {
        task["name"] = json!("task");
    }
    let of_template = task["image"].as_str().filter(|image| !image.is_empty());
    let image = asked
        .image
        .or(of_template)
        .unwrap_or(asked.default_image)
        .to_owned();
    task["image"] = json!(image);
    if asked.pull && task["imagePullPolicy"].is_null() {
        task["imagePullPolicy"] = json!("Always");
    }
    task["command"] = json!(["/bin/bash", format!("{FOLDER}/{SCRIPT}")]);
    task.as_object_mut().map(|fields| fields.remove("args"));
    for (name, value) in asked.env {
        set(&mut task["env"], json!({ "name": name, "value": value }));
    }
    for (name, value) in [
        ("CLEARML_WORKER_ID", asked.worker),
        ("CLEARML_TASK_ID", &asked.record.task),
        ("CLEARML_DOCKER_IMAGE", &image),
        ("CLEARML_CONFIG_FILE", CONFIG),
        // Without it the agent's exit code is 0, even if the task failed.
        ("CLEARML_AGENT_PROPAGATE_EXITCODE", "1"),
    ] {
        set(&mut task["env"], json!({ "name": name, "value": value }));
    }
    if asked.token {
        let from = json!({ "secretKeyRef": { "name": name(&asked.record.task), "key": TOKEN } });
        set(
            &mut task["env"],
            json!({ "name": "CLEARML_AUTH_TOKEN", "valueFrom": from }),
        );
    }
    let mounts = &mut task["volumeMounts"];
    push(
        mounts,
        json!({ "name": VOLUME, "mountPath": FOLDER, "readOnly": true }),
    );
    push(
        mounts,
        json!({ "name": VOLUME, "mountPath": CONFIG, "subPath": CONF, "readOnly": true }),
    );
    for (index, file) in asked.files.iter().enumerate() {
        let key = format!("file-{index}");
        push(
            mounts,
            json!({ "name": VOLUME, "mountPath": file.path, "subPath": key, "readOnly": true }),
        );
    }
    check(&mut pod)
}

/// The content of the Secret.
pub fn secret_data(
    script: String,
    config: String,
    token: Option<&str>,
    files: &[File],
) -> BTreeMap<String, String> {
    let mut data: BTreeMap<String, String> =
        [(SCRIPT.to_owned(), script), (CONF.to_owned(), config)].into();
    data.extend(token.map(|token| (TOKEN.to_owned(), token.to_owned())));
    let files = files.iter().enumerate();
    data.extend(files.map(|(index, file)| (format!("file-{index}"), file.content.clone())));
    data
}

/// Variables among a task's container arguments, and the words that mean nothing to a pod.
pub fn arguments(line: &str) -> (Vec<(String, String)>, Vec<String>) {
    let words =
        words::split(line).unwrap_or_else(|_| line.split_whitespace().map(str::to_owned).collect());
    let (mut env, mut left_out) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let pair = match word.as_str() {
            "-e" | "--env" => words.next(),
            _ => word.strip_prefix("--env=").map(str::to_owned),
        };
        match pair.as_deref().and_then(|pair| pair.split_once('=')) {
            Some((name, value)) if !name.is_empty() => {
                env.push((name.to_owned(), value.to_owned()))
            }
            _ => left_out.push(pair.unwrap_or(word)),
        }
    }
    (env, left_out)
}

fn add(section: &mut Value, pairs: BTreeMap<String, String>) {
    for (name, value) in pairs {
        section[name] = json!(value);
    }
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

/// Sets a variable.
fn set(list: &mut Value, variable: Value) {
    let items = list.as_array_mut();
    match items.and_then(|items| items.iter_mut().find(|old| old["name"] == variable["name"])) {
        Some(old) => *old = variable,
        None => push(list, variable),
    }
}

/// The pod itself, if it says nothing that no pod has.
fn check(pod: &mut Value) -> Result<Pod, InvalidValue> {
    for place in ["containers", "initContainers"] {
        for container in pod["spec"][place].as_array_mut().into_iter().flatten() {
            for kind in ["limits", "requests"] {
                let section = container.pointer_mut(&format!("/resources/{kind}"));
                let quantities = section.and_then(Value::as_object_mut);
                for quantity in quantities.into_iter().flat_map(|all| all.values_mut()) {
                    if quantity.is_number() {
                        *quantity = json!(quantity.to_string());
                    }
                }
            }
        }
    }
    drop_nulls(pod);
    // A container is to have a name; the one that runs the task is given its own.
    let mut named = pod.clone();
    let task = container(&mut named);
    if task.get("name").is_none() {
        task["name"] = json!("task");
    }
    let typed: Pod = serde_json::from_value(named.clone())
        .map_err(|error| InvalidValue::new("the pod", &error.to_string()))?;
    let back = serde_json::to_value(&typed)
        .map_err(|error| InvalidValue::new("the pod", &error.to_string()))?;
    lost("", &named, &back)?;
    Ok(typed)
}

/// Removes the nulls that indexing a value has left behind.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Names the first field that did not come back from the typed pod: a pod has none such.
fn lost(at: &str, given: &Value, back: &Value) -> Result<(), InvalidValue> {
    match (given, back) {
        (Value::Object(given), Value::Object(back)) => {
            for (name, value) in given {
                let at = match at {
                    "" => name.clone(),
                    at => format!("{at}.{name}"),
                };
                match back.get(name) {
                    Some(back) => lost(&at, value, back)?,
                    None => {
                        let near = back.keys().find(|known| known.eq_ignore_ascii_case(name));
                        let why = match near {
                            Some(near) => {
                                format!("unknown field of a pod; did you mean `{near}`?")
                            }
                            None => "unknown field of a pod".to_owned(),
                        };
                        return Err(InvalidValue::new(&at, &why));
                    }
                }
            }
            Ok(())
        }
        (Value::Array(given), Value::Array(back)) => {
            let pairs = given.iter().zip(back).enumerate();
            for (index, (given, back)) in pairs {
                lost(&format!("{at}[{index}]"), given, back)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
