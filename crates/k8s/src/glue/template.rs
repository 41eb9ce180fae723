//! Keys of a pod template: where each goes in a pod, and how two values of it are merged. Pure.
//!
//! ```text
//! pod manifest ◄── basePodTemplate ◄── templateOverrides of the queue
//! ```
//! Each layer lies over the one to its left: sections are merged at every depth, lists of named things by name, and `null`
//! takes away what the layer below said. The keys are those of ClearML's chart, and a few more of a pod's own.

use serde_json::{Map, Value, json};

use super::values::Wrong;

/// A template, its keys and values checked by [`check`].
pub type Template = Map<String, Value>;

/// Where in a pod a key goes.
#[derive(Clone, Copy, Debug)]
enum Place {
    Metadata(&'static str),
    Spec(&'static str),
    /// Of the container that runs the task.
    Container(&'static str),
    /// Nowhere by itself: [`files`].
    Files,
}

/// How a value lies over another.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Replaces it; an empty text takes it away, as in a chart's defaults.
    Scalar,
    /// Sections of texts: every value has to be one.
    Texts,
    /// Limits and requests: quantities, which may be written as numbers.
    Resources,
    /// Sections within sections; a list replaces a list.
    Section,
    /// Items that are known by these keys together: one that is there already is replaced.
    Named(&'static [&'static str]),
    /// Items without a name: those that are not there yet are added.
    Items,
}

/// Key, place, and way of merging.
const KEYS: [(&str, Place, How); 27] = [
    ("labels", Place::Metadata("labels"), How::Texts),
    ("annotations", Place::Metadata("annotations"), How::Texts),
    ("image", Place::Container("image"), How::Scalar),
    (
        "imagePullPolicy",
        Place::Container("imagePullPolicy"),
        How::Scalar,
    ),
    (
        "imagePullSecrets",
        Place::Spec("imagePullSecrets"),
        How::Named(&["name"]),
    ),
    ("resources", Place::Container("resources"), How::Resources),
    ("env", Place::Container("env"), How::Named(&["name"])),
    ("envFrom", Place::Container("envFrom"), How::Items),
    ("volumes", Place::Spec("volumes"), How::Named(&["name"])),
    (
        "volumeMounts",
        Place::Container("volumeMounts"),
        How::Named(&["mountPath"]),
    ),
    (
        "fileMounts",
        Place::Files,
        How::Named(&["folderPath", "name"]),
    ),
    (
        "initContainers",
        Place::Spec("initContainers"),
        How::Named(&["name"]),
    ),
    ("nodeSelector", Place::Spec("nodeSelector"), How::Texts),
    ("tolerations", Place::Spec("tolerations"), How::Items),
    ("affinity", Place::Spec("affinity"), How::Section),
    ("schedulerName", Place::Spec("schedulerName"), How::Scalar),
    (
        "priorityClassName",
        Place::Spec("priorityClassName"),
        How::Scalar,
    ),
    (
        "runtimeClassName",
        Place::Spec("runtimeClassName"),
        How::Scalar,
    ),
    (
        "serviceAccountName",
        Place::Spec("serviceAccountName"),
        How::Scalar,
    ),
    (
        "hostAliases",
        Place::Spec("hostAliases"),
        How::Named(&["ip"]),
    ),
    ("hostIPC", Place::Spec("hostIPC"), How::Scalar),
    ("hostPID", Place::Spec("hostPID"), How::Scalar),
    ("hostNetwork", Place::Spec("hostNetwork"), How::Scalar),
    (
        "activeDeadlineSeconds",
        Place::Spec("activeDeadlineSeconds"),
        How::Scalar,
    ),
    (
        "terminationGracePeriodSeconds",
        Place::Spec("terminationGracePeriodSeconds"),
        How::Scalar,
    ),
    (
        "podSecurityContext",
        Place::Spec("securityContext"),
        How::Section,
    ),
    (
        "containerSecurityContext",
        Place::Container("securityContext"),
        How::Section,
    ),
];

/// The template at `at` of a values file.
///
/// # Errors
/// A key that no template has, and a value that its key cannot have.
pub fn check(at: &str, value: &Value) -> Result<Template, Wrong> {
    let fields = match value {
        Value::Null => return Ok(Template::new()),
        Value::Object(fields) => fields,
        _ => return Err(Wrong::new(at, "must be a mapping")),
    };
    let mut checked = Template::new();
    for (name, value) in fields {
        let at = format!("{at}.{name}");
        let (_, _, how) = KEYS
            .iter()
            .find(|(key, ..)| key == name)
            .ok_or_else(|| Wrong::unknown(&at, name, KEYS.iter().map(|(key, ..)| *key)))?;
        checked.insert(name.clone(), how.checked(&at, value)?);
    }
    Ok(checked)
}

impl How {
    fn checked(self, at: &str, value: &Value) -> Result<Value, Wrong> {
        let wrong = |why: &str| Err(Wrong::new(at, why));
        match (self, value) {
            (_, Value::Null) => Ok(Value::Null),
            (Self::Scalar, Value::Array(_) | Value::Object(_)) => wrong("must be a single value"),
            (Self::Scalar, scalar) => Ok(scalar.clone()),
            (Self::Texts, Value::Object(fields)) => {
                for (name, value) in fields {
                    if !matches!(value, Value::String(_) | Value::Null) {
                        let why = format!("must be a string; write {value} in quotes");
                        return Err(Wrong::new(&format!("{at}.{name}"), &why));
                    }
                }
                Ok(value.clone())
            }
            (Self::Resources, Value::Object(sections)) => {
                let section = |(name, value): (&String, &Value)| {
                    Ok((name.clone(), quantities(&format!("{at}.{name}"), value)?))
                };
                sections.iter().map(section).collect()
            }
            (Self::Section, Value::Object(_)) => Ok(value.clone()),
            (Self::Named(keys), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    for key in keys {
                        if !item[key].is_string() {
                            let why = format!("`{key}` is missing or not a string");
                            return Err(Wrong::new(&format!("{at}[{index}]"), &why));
                        }
                    }
                }
                Ok(value.clone())
            }
            (Self::Items, Value::Array(_)) => Ok(value.clone()),
            (Self::Named(_) | Self::Items, _) => wrong("must be a list"),
            (Self::Texts | Self::Resources | Self::Section, _) => wrong("must be a mapping"),
        }
    }

    fn lay(self, over: &Value, under: &mut Value) {
        match (self, over) {
            (_, Value::Null) => *under = Value::Null,
            (Self::Scalar, Value::String(text)) if text.is_empty() => *under = Value::Null,
            (Self::Scalar, _) => *under = over.clone(),
            (Self::Texts | Self::Resources | Self::Section, _) => lay_section(over, under),
            (Self::Named(keys), Value::Array(items)) => {
                let there = list(under);
                for item in items {
                    let same = |old: &Value| keys.iter().all(|key| old[key] == item[key]);
                    match there.iter_mut().find(|old| same(old)) {
                        Some(old) => *old = item.clone(),
                        None => there.push(item.clone()),
                    }
                }
            }
            (_, Value::Array(items)) => {
                let there = list(under);
                for item in items {
                    if !there.contains(item) {
                        there.push(item.clone());
                    }
                }
            }
            (_, over) => *under = over.clone(),
        }
    }
}

/// Limits or requests, each quantity as a text; what else may stand among resources is left as it is.
fn quantities(at: &str, value: &Value) -> Result<Value, Wrong> {
    let Value::Object(fields) = value else {
        return Ok(value.clone());
    };
    let quantity = |(name, value): (&String, &Value)| match value {
        Value::Null => Ok((name.clone(), Value::Null)),
        value => match crate::quantity::Quantity::of(value) {
            Ok(_) => Ok((name.clone(), json!(text(value)))),
            Err(error) => Err(Wrong::new(&format!("{at}.{name}"), &error.to_string())),
        },
    };
    fields.iter().map(quantity).collect()
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Sections are merged at every depth; a null takes away, anything else replaces.
fn lay_section(over: &Value, under: &mut Value) {
    let Value::Object(fields) = over else {
        *under = over.clone();
        return;
    };
    if !under.is_object() {
        *under = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => drop(under.as_object_mut().map(|there| there.remove(name))),
            value => lay_section(value, &mut under[name]),
        }
    }
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = json!([]);
    }
    match value {
        Value::Array(items) => items,
        _ => unreachable!("became a list"),
    }
}

/// Lays a template over a pod, whose first container is the one that runs the task.
pub fn lay(template: &Template, pod: &mut Value) {
    for (name, place, how) in KEYS {
        let Some(value) = template.get(name) else {
            continue;
        };
        let (section, field) = match place {
            Place::Metadata(field) => (&mut pod["metadata"], field),
            Place::Spec(field) => (&mut pod["spec"], field),
            Place::Container(field) => (container(pod), field),
            Place::Files => continue,
        };
        how.lay(value, &mut section[field]);
        if section[field].is_null() {
            section.as_object_mut().map(|fields| fields.remove(field));
        }
    }
}

/// The container that runs the task: the first.
pub fn container(pod: &mut Value) -> &mut Value {
    let containers = list(&mut pod["spec"]["containers"]);
    if containers.is_empty() {
        containers.push(json!({}));
    }
    &mut containers[0]
}

/// A file that a template puts into its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub path: String,
    pub content: String,
}

/// Files of these templates, the later over the earlier.
pub fn files<'a>(templates: impl IntoIterator<Item = &'a Template>) -> Vec<File> {
    let mut all = Value::Null;
    for value in templates
        .into_iter()
        .filter_map(|one| one.get("fileMounts"))
    {
        How::Named(&["folderPath", "name"]).lay(value, &mut all);
    }
    let items = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let part = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    let file = |item: &Value| File {
        path: format!(
            "{}/{}",
            part(item, "folderPath").trim_end_matches('/'),
            part(item, "name")
        ),
        content: part(item, "fileContent"),
    };
    items.iter().map(file).collect()
}

#[cfg(test)]
mod tests;
