//! The values file: the served queues, and the pod templates of their tasks. Pure.
//!
//! It has the shape of the values of ClearML's agent chart, `agentk8sglue`, so that a file that is there already can be used:
//! keys that mean the stock agent's own deployment are passed over and said, any other that means nothing is an error.

mod queues;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;
use yaml_serde::Value as Yaml;

use super::template::{self, File, Template};
use crate::base::yaml;

/// The served queues and their settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// In the order they are served.
    pub queues: Vec<Queue>,
    /// The template of queues without settings of their own.
    pub base: Template,
    /// `defaultContainerImage`: of tasks that name none.
    pub image: Option<String>,
    /// `createQueueIfNotExists`.
    pub create_queues: bool,
    /// Addresses of the server, by the variable that each stands for.
    pub addresses: Vec<(&'static str, String)>,
    /// Values that are read differently than written, or ignored; notes for the author of the file.
    pub notes: Vec<String>,
}

/// A queue of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    pub name: String,
    /// `templateOverrides`.
    pub overrides: Template,
    /// `queueSettings.maxPods`: so many of its tasks have a pod at once.
    pub max_pods: Option<u32>,
}

/// An error in a values file, and its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {why}")]
pub struct InvalidValue {
    pub at: String,
    pub why: String,
}

impl InvalidValue {
    pub fn new(at: &str, why: &str) -> Self {
        Self {
            at: at.to_owned(),
            why: why.to_owned(),
        }
    }

    /// A key that means nothing, among these that do.
    pub fn unknown<'a>(at: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        let near = known.iter().map(|one| (distance(name, one), *one)).min();
        let why = match near {
            Some((0..=2, one)) => format!("unknown key; did you mean `{one}`?"),
            _ => format!("unknown key; the known keys are {}", known.join(", ")),
        };
        Self::new(at, &why)
    }
}

/// Most problems of a file that the glue prints: a screen. More would hide the first one.
const MOST_PROBLEMS: usize = 20;

/// The problems of a file, in the order in which they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Problems {
    told: Vec<InvalidValue>,
    /// Further ones, which are counted.
    more: usize,
}

impl Problems {
    pub fn add(&mut self, wrong: InvalidValue) {
        if self.told.len() < MOST_PROBLEMS {
            self.told.push(wrong)
        } else {
            self.more += 1
        }
    }

    /// What was read, or its default and a problem more.
    pub fn take<T: Default>(&mut self, read: Result<T, InvalidValue>) -> T {
        read.unwrap_or_else(|wrong| {
            self.add(wrong);
            T::default()
        })
    }

    /// The value, if it was read without a problem.
    ///
    /// # Errors
    /// The problems.
    pub fn none_in<T>(self, value: T) -> Result<T, Self> {
        if self.told.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }
}

impl From<InvalidValue> for Problems {
    fn from(wrong: InvalidValue) -> Self {
        Self {
            told: vec![wrong],
            more: 0,
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = &self.told[..] {
            return one.fmt(out);
        }
        write!(out, "{} problems", self.told.len() + self.more)?;
        for wrong in &self.told {
            write!(out, "\n  {wrong}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(out, "\n  and {more} more"),
        }
    }
}

/// Letters that are to be put in, left out or changed, upper and lower case aside (Levenshtein's distance).
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.to_lowercase(), other.to_lowercase());
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.chars().enumerate() {
            let change = corner + usize::from(a != b);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

const ROOT: &str = "agentk8sglue";

/// Keys beside [`ROOT`] that are the chart's own.
const BESIDE: [&str; 6] = [
    "clearml",
    "fullnameOverride",
    "global",
    "imageCredentials",
    "nameOverride",
    "sessions",
];

/// The beginning of keys that are there for their anchors, as in files of Docker Compose.
const EXTENSION: &str = "x-";

/// Keys of [`ROOT`] that are read.
const READ: [&str; 10] = [
    "apiServerUrlReference",
    "basePodTemplate",
    "clearmlcheckCertificate",
    "createQueueIfNotExists",
    "defaultContainerImage",
    "fileServerUrlReference",
    "nodeSelector",
    "queue",
    "queues",
    "webServerUrlReference",
];

/// Keys of [`ROOT`] that are about the stock agent's own pod.
const OF_THE_AGENT: [&str; 18] = [
    "additionalClusterRoleBindings",
    "additionalRoleBindings",
    "affinity",
    "annotations",
    "containerSecurityContext",
    "extraEnvs",
    "fileMounts",
    "image",
    "initContainers",
    "labels",
    "podSecurityContext",
    "replicaCount",
    "resources",
    "serviceAccountAnnotations",
    "serviceExistingAccountName",
    "tolerations",
    "volumeMounts",
    "volumes",
];

/// Keys with addresses, and the variables that mean the same to clearml.conf.
const ADDRESSES: [(&str, &str); 3] = [
    ("apiServerUrlReference", "CLEARML_API_HOST"),
    ("webServerUrlReference", "CLEARML_WEB_HOST"),
    ("fileServerUrlReference", "CLEARML_FILES_HOST"),
];

impl Values {
    /// # Errors
    /// Text that is no YAML, keys that mean nothing, values that their keys cannot have.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        let at = "the values file";
        let whole = yaml::parse(text).map_err(|error| InvalidValue::new(at, &error.to_string()))?;
        let whole = section(at, &whole)?;
        let found = whole.iter().find(|(name, _)| name == ROOT);
        let (_, root) = found.ok_or_else(|| match whole.first() {
            Some((name, _)) => InvalidValue::unknown(name, name, [ROOT].into_iter()),
            None => InvalidValue::new(ROOT, "is missing"),
        })?;
        let root = section(ROOT, root)?;
        let (mut notes, mut problems) = (Vec::new(), Problems::default());
        let shared = shared(text);
        let stray = beside(&whole, &root, &shared, &mut notes, &mut problems);
        let get = |key: &str| {
            root.iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value)
        };
        for (name, _) in root.iter().filter(|(name, _)| !name.starts_with(EXTENSION)) {
            if OF_THE_AGENT.contains(&name.as_str()) {
                notes.push(format!(
                    "{ROOT}.{name} has no effect: it configures the stock agent's own pod"
                ));
            } else if !READ.contains(&name.as_str()) {
                problems.add(InvalidValue::unknown(
                    &format!("{ROOT}.{name}"),
                    name,
                    READ.into_iter(),
                ));
            }
        }
        let base = problems.take(json(get("basePodTemplate")));
        let mut base = template::check(&format!("{ROOT}.basePodTemplate"), &base, &mut problems);
        if let Some(selector) = get("nodeSelector") {
            // In ClearML's guide the selector of tasks' pods stands here; in its chart it is that of the agent's pod.
            let selector = problems.take(json(Some(selector)));
            let selector = serde_json::json!({ "nodeSelector": selector });
            let mut both = template::check(ROOT, &selector, &mut problems);
            if !both
                .get("nodeSelector")
                .is_none_or(|of| of.is_null() || *of == serde_json::json!({}))
            {
                notes.push(format!(
                    "{ROOT}.nodeSelector applies to the pods of tasks; basePodTemplate.nodeSelector takes precedence"
                ));
                if let (Some(Value::Object(under)), Some(Value::Object(over))) =
                    (both.get_mut("nodeSelector"), base.get("nodeSelector"))
                {
                    under.extend(over.clone());
                }
                base.extend(both);
            }
        }
        let queues = queues::queues(get("queue"), get("queues"), stray, &mut problems);
        let mut addresses = Vec::new();
        for (key, variable) in ADDRESSES {
            if let Some(address) = problems.take(one_text(key, get(key))) {
                addresses.push((variable, address));
            }
        }
        let mut flag = |key| problems.take(flag(key, get(key)));
        if flag("clearmlcheckCertificate") == Some(false) {
            addresses.push(("CLEARML_API_HOST_VERIFY_CERT", "false".to_owned()));
        }
        let create_queues = flag("createQueueIfNotExists").unwrap_or(false);
        let key = "defaultContainerImage";
        let image = problems.take(one_text(key, get(key)));
        problems.none_in(Self {
            queues,
            base,
            image,
            create_queues,
            addresses,
            notes,
        })
    }

    /// Layers of a queue's pods, the lowest first.
    pub fn layers<'a>(&'a self, queue: &'a Queue) -> [&'a Template; 2] {
        [&self.base, &queue.overrides]
    }

    /// Files that a queue's pods have.
    pub fn files(&self, queue: &Queue) -> Vec<File> {
        template::files(self.layers(queue))
    }
}

/// A section of the file, in its order.
type Section = Vec<(String, Yaml)>;

fn section(at: &str, value: &Yaml) -> Result<Section, InvalidValue> {
    match value {
        Yaml::Null => Ok(Vec::new()),
        Yaml::Mapping(fields) => {
            let named = |(name, value): (&Yaml, &Yaml)| {
                let name = match name {
                    Yaml::String(name) => name.clone(),
                    Yaml::Number(number) => number.to_string(),
                    Yaml::Bool(flag) => flag.to_string(),
                    _ => return Err(InvalidValue::new(at, "a key is not a string")),
                };
                Ok((name, value.clone()))
            };
            fields.iter().map(named).collect()
        }
        _ => Err(InvalidValue::new(at, "must be a mapping")),
    }
}

/// Looks at what stands beside the root: the chart's own keys, values that are there for their anchors, and queues
/// whose indentation was lost, as in ClearML's guide.
fn beside(
    whole: &Section,
    root: &Section,
    shared: &BTreeSet<&str>,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) -> Section {
    let takes_strays = root
        .iter()
        .any(|(name, value)| name == "queues" && value.is_null());
    let mut stray = Vec::new();
    for (name, value) in whole.iter().filter(|(name, _)| name != ROOT) {
        let is_queue = section(name, value).is_ok_and(|fields| {
            let known =
                |(key, _): &(String, Yaml)| key == "templateOverrides" || key == "queueSettings";
            !fields.is_empty() && fields.iter().all(known)
        });
        if BESIDE.contains(&name.as_str()) {
            notes.push(format!(
                "{name} has no effect: it is for ClearML's own chart"
            ));
        } else if name.starts_with(EXTENSION) || shared.contains(name.as_str()) {
            // Its values count where their aliases are.
        } else if takes_strays && is_queue {
            notes.push(format!(
                "{name} is read as {ROOT}.queues.{name}; indent it to make that explicit"
            ));
            stray.push((name.clone(), value.clone()));
        } else {
            problems.add(InvalidValue::unknown(
                name,
                name,
                [ROOT].into_iter().chain(BESIDE),
            ));
        }
    }
    stray
}

/// The keys at the left edge of a file under which an anchor is set whose alias is under another such key. Helm takes
/// any key for that. An unknown key without such an anchor is a mistake.
fn shared(text: &str) -> BTreeSet<&str> {
    let mut under: Vec<(&str, &str)> = Vec::new();
    let mut begin = (0, "");
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let key = line
            .split_once(':')
            .map(|(key, _)| key.trim_matches(['"', '\'']));
        let key = key.filter(|key| !key.starts_with([' ', '\t', '#', '-', '{', '}', '&']));
        if let Some(key) = key {
            under.push((begin.1, &text[begin.0..at]));
            begin = (at, key);
        }
        at += line.len();
    }
    under.push((begin.1, &text[begin.0..]));
    let aliases: Vec<BTreeSet<&str>> = under.iter().map(|(_, text)| marked(text, '*')).collect();
    let is_used = |at: usize, anchor: &&str| {
        let mut others = aliases.iter().enumerate().filter(|(other, _)| *other != at);
        others.any(|(_, aliases)| aliases.contains(*anchor))
    };
    let shares = |(at, (_, text)): &(usize, &(&str, &str))| {
        marked(text, '&').iter().any(|anchor| is_used(*at, anchor))
    };
    under
        .iter()
        .enumerate()
        .filter(shares)
        .map(|(_, (key, _))| *key)
        .collect()
}

/// The names that stand behind this mark at the beginning of a word.
fn marked(text: &str, mark: char) -> BTreeSet<&str> {
    let ends = |letter: char| letter.is_whitespace() || "[]{},".contains(letter);
    (text.split(ends).filter_map(|word| word.strip_prefix(mark)))
        .filter(|name| !name.is_empty())
        .collect()
}

fn json(value: Option<&Yaml>) -> Result<Value, InvalidValue> {
    let value = value.unwrap_or(&Yaml::Null);
    serde_json::to_value(value).map_err(|error| InvalidValue::new(ROOT, &error.to_string()))
}

fn one_text(key: &str, value: Option<&Yaml>) -> Result<Option<String>, InvalidValue> {
    match value {
        None | Some(Yaml::Null) => Ok(None),
        Some(Yaml::String(text)) => {
            Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
        }
        Some(_) => Err(InvalidValue::new(
            &format!("{ROOT}.{key}"),
            "must be a string",
        )),
    }
}

fn flag(key: &str, value: Option<&Yaml>) -> Result<Option<bool>, InvalidValue> {
    match value {
        None | Some(Yaml::Null) => Ok(None),
        Some(Yaml::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(InvalidValue::new(
            &format!("{ROOT}.{key}"),
            "must be true or false",
        )),
    }
}

#[cfg(test)]
mod tests;
