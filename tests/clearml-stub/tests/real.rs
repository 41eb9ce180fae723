//! The stand-in beside the real server: `real.json` has the answers of clearml-server 2.3.0 (API 2.34) to a sequence of the glue's and
//! its tasks' calls. Ids are `$names`, which a call with `save` gives.

#![warn(clippy::disallowed_methods)]

use std::collections::BTreeMap;

use divvy_clearml_stub::Stub;
use serde_json::Value;

/// What the glue reads of an answer.
const READ: [&str; 15] = [
    "/id",
    "/entry/task",
    "/task_info/user",
    "/queue/id",
    "/queue/tags",
    "/queue/entries/0/task",
    "/queues/0/id",
    "/queues/0/name",
    "/removed",
    "/tasks/0/id",
    "/tasks/0/status",
    "/tasks/0/status_message",
    "/tasks/0/execution/queue",
    "/tasks/0/project/name",
    "/tasks/0/runtime/_divvy_pod",
];

fn filled(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix('$') {
            Some(name) => names.get(name).cloned().unwrap_or_default().into(),
            None => value.clone(),
        },
        Value::Array(items) => items.iter().map(|item| filled(item, names)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            Value::Object(
                fields
                    .map(|(name, value)| (name.clone(), filled(value, names)))
                    .collect(),
            )
        }
        other => other.clone(),
    }
}

/// A status message names the user, and a name is an id in the server's schema.
fn plain(value: Option<&Value>, names: &BTreeMap<String, String>) -> Option<Value> {
    let value = filled(value?, names);
    match value.as_str() {
        None | Some("") => None,
        Some(text) if text.starts_with("Stopped by ") => Some("Stopped by".into()),
        _ => Some(value),
    }
}

#[test]
fn every_call_is_answered_as_the_real_server_answers_it() {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("real.json")).expect("JSON");
    let stub = Stub::start();
    let mut names: BTreeMap<String, String> = [
        ("queue_name".to_owned(), "recorded".to_owned()),
        ("nobody".to_owned(), "0".repeat(32)),
    ]
    .into();
    let (mut compared, mut differ) = (0, Vec::new());
    for (at, step) in recorded.iter().enumerate() {
        let call = step["call"].as_str().expect("a call");
        let body = filled(&step["body"], &names);
        let what = format!("call {at}: {call} {body}");
        let answer = match &body {
            Value::Array(lines) => {
                let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
                stub.add_batch(&lines.join("\n"))
            }
            body => stub.call(call, body.clone()),
        };
        let (code, data) = match &answer {
            Ok(data) => ((200, 0), data.clone()),
            Err(refusal) => ((refusal.code, refusal.subcode), Value::Null),
        };
        let real = (&step["code"], &step["subcode"]);
        if (&Value::from(code.0), &Value::from(code.1)) != real {
            differ.push(format!(
                "{what}: {answer:?} instead of {real:?} {}",
                step["message"]
            ));
            continue;
        }
        if let Some(name) = step["save"].as_str() {
            let id = data["id"].as_str().expect("an id").to_owned();
            names.insert(name.to_owned(), id);
        }
        for path in READ {
            let (real, ours) = (step["data"].pointer(path), data.pointer(path));
            let (real, ours) = (plain(real, &names), plain(ours, &names));
            // Each server makes its own ids.
            let is_id = path == "/id" || path == "/task_info/user";
            if (is_id && real.is_some() != ours.is_some()) || (!is_id && real != ours) {
                differ.push(format!("{what}: {path} is {ours:?} instead of {real:?}"));
            }
            compared += usize::from(ours.is_some());
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(compared > 60, "{compared}");
}
