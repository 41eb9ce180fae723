//! The served queues, in their order, with the settings of each.

use yaml_serde::Value as Yaml;

use super::{InvalidValue, Problems, Queue, ROOT, Section, json, section};
use crate::glue::template::{self, Template};

/// Of `queue`, which gives the order, and of `queues`, which give each its pods; what `queue` does not name comes behind it.
pub fn queues(
    order: Option<&Yaml>,
    listed: Option<&Yaml>,
    stray: Section,
    problems: &mut Problems,
) -> Vec<Queue> {
    let at = format!("{ROOT}.queues");
    let before = problems.clone();
    let mut listed = problems.take(section(&at, listed.unwrap_or(&Yaml::Null)));
    listed.extend(stray);
    let mut queues: Vec<Queue> = Vec::new();
    for name in problems.take(names(order)) {
        if queues.iter().any(|other| other.name == name) {
            problems.add(InvalidValue::new(
                &format!("{ROOT}.queue"),
                &format!("{name} is listed twice"),
            ));
        }
        queues.push(bare(&name));
    }
    for (name, value) in &listed {
        let queue = queue(&format!("{at}.{name}"), name, value, problems);
        match queues.iter_mut().find(|other| other.name == *name) {
            Some(bare) => *bare = queue,
            None => queues.push(queue),
        }
    }
    if queues.is_empty() && *problems == before {
        let why = "no queue is set, neither here nor in `queue`";
        problems.add(InvalidValue::new(&at, why));
    }
    queues
}

/// `default`, `first,second`, or a list of them.
fn names(value: Option<&Yaml>) -> Result<Vec<String>, InvalidValue> {
    let wrong = || {
        InvalidValue::new(
            &format!("{ROOT}.queue"),
            "must be a queue name, or a list of them",
        )
    };
    let names: Vec<&str> = match value {
        None | Some(Yaml::Null) => Vec::new(),
        Some(Yaml::String(text)) => text.split(',').collect(),
        Some(Yaml::Sequence(names)) => {
            let names: Option<Vec<&str>> = names.iter().map(Yaml::as_str).collect();
            names.ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    let names = names.into_iter().map(str::trim);
    Ok(names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// A queue that says nothing of its own.
fn bare(name: &str) -> Queue {
    Queue {
        name: name.to_owned(),
        overrides: Template::new(),
        max_pods: None,
    }
}

fn queue(at: &str, name: &str, value: &Yaml, problems: &mut Problems) -> Queue {
    let mut queue = bare(name);
    for (key, value) in problems.take(section(at, value)) {
        let at = format!("{at}.{key}");
        match key.as_str() {
            "templateOverrides" => {
                let overrides = problems.take(json(Some(&value)));
                queue.overrides = template::check(&at, &overrides, problems);
            }
            "queueSettings" => {
                for (key, value) in problems.take(section(&at, &value)) {
                    let at = format!("{at}.{key}");
                    if key != "maxPods" {
                        problems.add(InvalidValue::unknown(&at, &key, ["maxPods"].into_iter()));
                        continue;
                    }
                    let most = value.as_u64().and_then(|most| u32::try_from(most).ok());
                    queue.max_pods = most.filter(|most| *most > 0);
                    if queue.max_pods.is_none() {
                        problems.add(InvalidValue::new(&at, "must be a whole number above 0"));
                    }
                }
            }
            _ => {
                let known = ["templateOverrides", "queueSettings"];
                problems.add(InvalidValue::unknown(&at, &key, known.into_iter()));
            }
        }
    }
    queue
}
