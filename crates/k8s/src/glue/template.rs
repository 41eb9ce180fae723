//! Keys of a pod template: where each goes in a pod, and how two values of it are merged. Pure.
//!
//! ```text
//! pod manifest ◄── basePodTemplate ◄── templateOverrides of the queue
//! ```
//! Each layer lies over the one to its left: sections are merged at every depth, lists of named things by name, and `null`
//! takes away what the layer below said. The keys are those of ClearML's chart, and a few more of a pod's own.

use serde_json::{Map, Value, json};

use super::values::{InvalidValue, Problems};

/// A template, its keys and values checked by [`check`].
pub type Template = Map<String, Value>;

/// Where in a pod a key goes.
#[derive(Clone, Copy, Debug)]
enum TargetField {
    Metadata(&'static str),
    Spec(&'static str),
    /// Of the container that runs the task.
    Container(&'static str),
    /// Nowhere by itself: [`files`].
    Files,
}

/// How a value is merged over another.
#[derive(Clone, Copy, Debug)]
enum MergeRule {
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
const KEYS: [(&str, TargetField, MergeRule); 27] = [
    ("labels", TargetField::Metadata("labels"), MergeRule::Texts),
    (
        "annotations",
        TargetField::Metadata("annotations"),
        MergeRule::Texts,
    ),
    ("image", TargetField::Container("image"), MergeRule::Scalar),
    (
        "imagePullPolicy",
        TargetField::Container("imagePullPolicy"),
        MergeRule::Scalar,
    ),
    (
        "imagePullSecrets",
        TargetField::Spec("imagePullSecrets"),
        MergeRule::Named(&["name"]),
    ),
    (
        "resources",
        TargetField::Container("resources"),
        MergeRule::Resources,
    ),
    (
        "env",
        TargetField::Container("env"),
        MergeRule::Named(&["name"]),
    ),
    (
        "envFrom",
        TargetField::Container("envFrom"),
        MergeRule::Items,
    ),
    (
        "volumes",
        TargetField::Spec("volumes"),
        MergeRule::Named(&["name"]),
    ),
    (
        "volumeMounts",
        TargetField::Container("volumeMounts"),
        MergeRule::Named(&["mountPath"]),
    ),
    (
        "fileMounts",
        TargetField::Files,
        MergeRule::Named(&["folderPath", "name"]),
    ),
    (
        "initContainers",
        TargetField::Spec("initContainers"),
        MergeRule::Named(&["name"]),
    ),
    (
        "nodeSelector",
        TargetField::Spec("nodeSelector"),
        MergeRule::Texts,
    ),
    (
        "tolerations",
        TargetField::Spec("tolerations"),
        MergeRule::Items,
    ),
    (
        "affinity",
        TargetField::Spec("affinity"),
        MergeRule::Section,
    ),
    (
        "schedulerName",
        TargetField::Spec("schedulerName"),
        MergeRule::Scalar,
    ),
    (
        "priorityClassName",
        TargetField::Spec("priorityClassName"),
        MergeRule::Scalar,
    ),
    (
        "runtimeClassName",
        TargetField::Spec("runtimeClassName"),
        MergeRule::Scalar,
    ),
    (
        "serviceAccountName",
        TargetField::Spec("serviceAccountName"),
        MergeRule::Scalar,
    ),
    (
        "hostAliases",
        TargetField::Spec("hostAliases"),
        MergeRule::Named(&["ip"]),
    ),
    ("hostIPC", TargetField::Spec("hostIPC"), MergeRule::Scalar),
    ("hostPID", TargetField::Spec("hostPID"), MergeRule::Scalar),
    (
        "hostNetwork",
        TargetField::Spec("hostNetwork"),
        MergeRule::Scalar,
    ),
    (
        "activeDeadlineSeconds",
        TargetField::Spec("activeDeadlineSeconds"),
        MergeRule::Scalar,
    ),
    (
        "terminationGracePeriodSeconds",
        TargetField::Spec("terminationGracePeriodSeconds"),
        MergeRule::Scalar,
    ),
    (
        "podSecurityContext",
        TargetField::Spec("securityContext"),
        MergeRule::Section,
    ),
    (
        "containerSecurityContext",
        TargetField::Container("securityContext"),
        MergeRule::Section,
    ),
];

/// The template at `at` of a values file. A key that no template has, and a value that its key cannot have, become
/// problems.
pub fn check(at: &str, value: &Value, problems: &mut Problems) -> Template {
    let fields = match value {
        Value::Null => return Template::new(),
        Value::Object(fields) => fields,
        _ => {
            problems.add(InvalidValue::new(at, "must be a mapping"));
            return Template::new();
        }
    };
    let mut checked = Template::new();
    for (name, value) in fields {
        let at = format!("{at}.{name}");
        match KEYS.iter().find(|(key, ..)| key == name) {
            Some((_, _, how)) => {
                checked.insert(name.clone(), how.checked(&at, value, problems));
            }
            None => problems.add(InvalidValue::unknown(
                &at,
                name,
                KEYS.iter().map(|(key, ..)| *key),
            )),
        }
    }
    checked
}

impl MergeRule {
    fn checked(self, at: &str, value: &Value, problems: &mut Problems) -> Value {
        let mut wrong = |at: &str, why: &str| problems.add(InvalidValue::new(at, why));
        match (self, value) {
            (_, Value::Null)
            | (Self::Section, Value::Object(_))
            | (Self::Items, Value::Array(_)) => {}
            (Self::Scalar, Value::Array(_) | Value::Object(_)) => {
                wrong(at, "must be a single value");
            }
            (Self::Scalar, _) => {}
            (Self::Texts, Value::Object(fields)) => {
                for (name, value) in fields {
                    if !matches!(value, Value::String(_) | Value::Null) {
                        let why = format!("must be a string; write {value} in quotes");
                        wrong(&format!("{at}.{name}"), &why);
                    }
                }
            }
            (Self::Resources, Value::Object(sections)) => {
                let section = |(name, value): (&String, &Value)| {
                    let at = format!("{at}.{name}");
                    (name.clone(), quantities(&at, value, problems))
                };
                return sections.iter().map(section).collect();
            }
            (Self::Named(keys), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    for key in keys.iter().filter(|key| !item[**key].is_string()) {
                        let why = format!("`{key}` is missing or not a string");
                        wrong(&format!("{at}[{index}]"), &why);
                    }
                }
            }
            (Self::Named(_) | Self::Items, _) => wrong(at, "must be a list"),
            (Self::Texts | Self::Resources | Self::Section, _) => wrong(at, "must be a mapping"),
        }
        value.clone()
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
fn quantities(at: &str, value: &Value, problems: &mut Problems) -> Value {
    let Value::Object(fields) = value else {
        return value.clone();
    };
    let quantity = |(name, value): (&String, &Value)| {
        if value.is_null() {
            return (name.clone(), Value::Null);
        }
        if let Err(error) = crate::base::quantity::Quantity::of(value) {
            let at = format!("{at}.{name}");
            problems.add(InvalidValue::new(&at, &error.to_string()));
        }
        (name.clone(), json!(text(value)))
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
            TargetField::Metadata(field) => (&mut pod["metadata"], field),
            TargetField::Spec(field) => (&mut pod["spec"], field),
            TargetField::Container(field) => (container(pod), field),
            TargetField::Files => continue,
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
        MergeRule::Named(&["folderPath", "name"]).lay(value, &mut all);
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
