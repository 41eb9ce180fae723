//! Template variables `${CLEARML_…}` in a task's arguments: values of the task, its queue and its worker.
//!
//! Known are `${CLEARML_QUEUE_ID}`, `_QUEUE_NAME`, `_WORKER_ID`, `_PROJECT_ID` and `${CLEARML_TASK.path.of.a.field}`, each perhaps
//! with a default: `${CLEARML_TASK.hyperparams.a.b.value:none}`. What is not known stays as it is written.

use serde_json::Value;

use crate::server::Task;
use crate::slot::TaskSlot;

const OPEN: &str = "${CLEARML_";

/// The word with its templates filled in.
pub fn filled(word: &str, task: &Task, slot: &TaskSlot) -> String {
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find(OPEN) {
        let (before, template) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = template.find('}') else {
            rest = template;
            break;
        };
        let (whole, behind) = template.split_at(end + 1);
        let inner = &template[OPEN.len()..end];
        let (name, default) = match inner.split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        match value(name, task, slot).or_else(|| default.map(str::to_owned)) {
            Some(value) => out.push_str(&value),
            None => out.push_str(whole),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

fn value(name: &str, task: &Task, slot: &TaskSlot) -> Option<String> {
    if let Some(path) = name.strip_prefix("TASK.") {
        return match path {
            "id" => Some(task.id.clone()),
            "name" => Some(task.name.clone()),
            "project" => task.project.clone(),
            "user" => task.user.clone(),
            _ => field(path, task),
        };
    }
    match name {
        "QUEUE_ID" => Some(slot.queue_id.clone()),
        "QUEUE_NAME" => Some(slot.queue_name.clone()),
        "WORKER_ID" => Some(slot.worker.clone()),
        "PROJECT_ID" => task.project.clone(),
        _ => None,
    }
}

fn field(path: &str, task: &Task) -> Option<String> {
    let mut parts = path.split('.');
    let first = task.rest.get(parts.next()?)?;
    match parts.try_fold(first, |value, part| value.get(part))? {
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        scalar => Some(scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{slot, task};
    use super::*;

    #[test]
    fn templates_are_filled_in_where_there_is_something_and_stay_where_there_is_not() {
        let task: Task = Task {
            project: Some("p1".into()),
            rest: serde_json::json!({"hyperparams": {"a": {"b": {"value": "v"}}, "n": 3}})
                .as_object()
                .unwrap()
                .clone(),
            ..task("t1", None, None)
        };
        for (word, expected) in [
            ("-v=/q/${CLEARML_QUEUE_NAME}:/x", "-v=/q/quarter_gpu:/x"),
            ("${CLEARML_TASK.id}-${CLEARML_PROJECT_ID}", "t1-p1"),
            (
                "${CLEARML_TASK.hyperparams.a.b.value}${CLEARML_TASK.hyperparams.n}",
                "v3",
            ),
            (
                "${CLEARML_TASK.nothing:none} ${CLEARML_TASK.nothing}",
                "none ${CLEARML_TASK.nothing}",
            ),
            (
                "${CLEARML_WORKER_ID} ${HOME} ${CLEARML_",
                "node1:gpu2.25a ${HOME} ${CLEARML_",
            ),
        ] {
            assert_eq!(filled(word, &task, &slot()), expected);
        }
    }
}
