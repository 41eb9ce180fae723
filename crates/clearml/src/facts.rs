//! Display names that the server has for a task, its user and its project. They are untrusted text: bounded, and
//! reduced to one line.

use divvy_core::JobId;
use serde_json::Value;

/// Bytes of a name, as the node agent takes them.
const LONGEST: usize = 200;

/// The display names of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub name: Option<String>,
    pub user: Option<String>,
    pub user_id: Option<String>,
    pub project: Option<String>,
    pub project_id: Option<String>,
    /// Id of the task that made it: of a pipeline's step, its controller.
    pub parent_id: Option<String>,
}

impl Facts {
    /// From the server's fields of a task, of which none is sure to be there.
    #[must_use]
    pub fn of(task: &Value) -> Self {
        let of = |field: &str, part: &str| match &task[field] {
            // A server that joins nothing has the id alone.
            Value::String(id) if part == "id" => one_line(id),
            other => other[part].as_str().and_then(one_line),
        };
        Self {
            name: task["name"].as_str().and_then(one_line),
            user: of("user", "name").or_else(|| of("user", "id")),
            user_id: of("user", "id"),
            project: of("project", "name"),
            project_id: of("project", "id"),
            parent_id: of("parent", "id"),
        }
    }

    /// The name of the job of task `id`: the task's, unless a command would take that for another way to refer to a job.
    #[must_use]
    pub fn job_name(&self, id: &str) -> String {
        let plain = |name: &&String| {
            *name != "last" && name.trim_start_matches('#').parse::<JobId>().is_err()
        };
        match &self.name {
            Some(name) => match Some(name).filter(plain) {
                Some(name) => name.clone(),
                None => cut(&format!("task {name}")).to_owned(),
            },
            None => cut(&format!("clearml:{id}")).to_owned(),
        }
    }
}

/// A text on one line and of at most 200 bytes; `None` where nothing of it is left.
#[must_use]
pub fn one_line(text: &str) -> Option<String> {
    // Before every letter is looked at: a name may be a megabyte.
    let begin = text.trim_start();
    let begin: String = begin.chars().take(LONGEST).collect();
    let plain: String = begin
        .chars()
        .map(|one| if one.is_control() { ' ' } else { one })
        .collect();
    let plain = cut(plain.trim()).trim_end();
    (!plain.is_empty()).then(|| plain.to_owned())
}

/// As much of a text as a name may have, by whole letters.
fn cut(text: &str) -> &str {
    beginning(text, LONGEST)
}

/// At most so many bytes of a text, by whole letters.
#[must_use]
pub fn beginning(text: &str, most: usize) -> &str {
    let ends = text.char_indices().map(|(at, one)| at + one.len_utf8());
    &text[..ends.take_while(|end| *end <= most).last().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_the_server_are_bounded_and_on_one_line() {
        let huge = "ö".repeat(1 << 20);
        let task = json!({
            "name": "  train\n\u{1b}[31m\u{0}x  ",
            "user": {"id": "u1", "name": huge},
            "project": {"id": "p1", "name": "a/\r\nb"},
        });
        let facts = Facts::of(&task);
        assert_eq!(facts.name.as_deref(), Some("train  [31m x"));
        assert_eq!(facts.user.unwrap(), "ö".repeat(100));
        assert_eq!(facts.project.as_deref(), Some("a/  b"));
        let bare = Facts::of(&json!({"name": " \n ", "user": "u1", "project": null}));
        assert_eq!((bare.user.as_deref(), bare.project), (Some("u1"), None));
        assert_eq!(bare.name, None);
        assert_eq!(Facts::of(&json!(null)), Facts::default());
    }

    #[test]
    fn a_job_is_called_what_its_task_is_called() {
        let named = |name: &str| Facts::of(&json!({ "name": name })).job_name("4f2");
        for (name, job) in [
            ("train \"x\" <b>", "train \"x\" <b>"),
            ("7", "task 7"),
            ("#7", "task #7"),
            ("last", "task last"),
            ("", "clearml:4f2"),
            ("\t", "clearml:4f2"),
        ] {
            assert_eq!(named(name), job, "{name:?}");
        }
        assert_eq!(named(&"7".repeat(300)).len(), 200);
    }
}
