//! Kueue's published schemas, and a cluster of the stand-in that has them.

// A broken fixture or stand-in ends the test.
#![allow(clippy::unwrap_used)]

use crate::apiserver::ApiServer;

use std::process::{Child, Command, Output, Stdio};

use divvy_k8s::base::claim::DRIVER;
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

/// The CustomResourceDefinitions, in the order of their kinds' names.
const DEFINITIONS: [&str; 5] = [
    include_str!("../fixtures/kueue/clusterqueues.yaml"),
    include_str!("../fixtures/kueue/cohorts.yaml"),
    include_str!("../fixtures/kueue/localqueues.yaml"),
    include_str!("../fixtures/kueue/resourceflavors.yaml"),
    include_str!("../fixtures/kueue/workloads.yaml"),
];

pub fn definitions() -> Vec<Value> {
    DEFINITIONS
        .iter()
        .map(|text| yaml_serde::from_str(text).unwrap())
        .collect()
}

/// What is wrong with an object of Kueue by its published schema; fields that it does not know are.
pub fn faults(object: &Value) -> Vec<String> {
    let definition = definitions()
        .into_iter()
        .find(|one| one["spec"]["names"]["kind"] == object["kind"]);
    let definition = definition.unwrap_or_else(|| panic!("no schema of {}", object["kind"]));
    let version = &definition["spec"]["versions"][0];
    let group = definition["spec"]["group"].as_str().unwrap();
    let mut faults = Vec::new();
    if object["apiVersion"] != format!("{group}/{}", version["name"].as_str().unwrap()) {
        faults.push(format!("apiVersion {}", object["apiVersion"]));
    }
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    schema["properties"]["metadata"] = json!({ "x-kubernetes-preserve-unknown-fields": true });
    compare(object, &schema, "", &mut faults);
    faults
}

/// Compares a value with a structural schema (apiextensions.k8s.io/v1): the keywords that Kueue's schemas use. A field
/// without a schema is a fault, as with `--validate=strict`.
fn compare(value: &Value, schema: &Value, at: &str, faults: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    let mut fault = |text: String| faults.push(format!("{at}: {text}"));
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let wanted = schema["type"].as_str();
    match (wanted, schema["x-kubernetes-int-or-string"] == true) {
        (_, true) if ["integer", "string"].contains(&kind) => {}
        (Some("number"), _) if kind == "integer" => {}
        (Some(wanted), _) if wanted == kind => {}
        _ => return fault(format!("{value} is not {wanted:?}")),
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        fault(format!("{value} is none of {allowed:?}"));
    }
    let within = |size: u64, most: &str, least: &str| {
        schema[most].as_u64().is_none_or(|most| size <= most)
            && schema[least].as_u64().is_none_or(|least| size >= least)
    };
    match value {
        Value::String(text) => {
            if !within(text.chars().count() as u64, "maxLength", "minLength") {
                fault(format!("the length of {text:?}"));
            }
            let matches = |pattern: &str| regex::Regex::new(pattern).unwrap().is_match(text);
            if !schema["pattern"].as_str().is_none_or(matches) {
                fault(format!("{text:?} does not match {}", schema["pattern"]));
            }
        }
        Value::Array(items) => {
            if !within(items.len() as u64, "maxItems", "minItems") {
                fault(format!("{} items", items.len()));
            }
            for (index, item) in items.iter().enumerate() {
                compare(item, &schema["items"], &format!("{at}[{index}]"), faults);
            }
        }
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten() {
                if !fields.contains_key(name.as_str().unwrap()) {
                    fault(format!("{name} is missing"));
                }
            }
            for (name, field) in fields {
                let known = [&schema["properties"][name], &schema["additionalProperties"]];
                match known.into_iter().find(|schema| schema.is_object()) {
                    Some(schema) => compare(field, schema, &format!("{at}.{name}"), faults),
                    None => faults.push(format!("{at}: the field {name} is unknown")),
                }
            }
        }
        _ => {}
    }
}

/// A cluster with Kueue, nodes with two GPUs of 79.1 GiB, and a namespace for each team.
pub struct Cluster {
    pub server: ApiServer,
    folder: tempfile::TempDir,
}

#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Cluster {
    /// Without Kueue and without nodes.
    pub fn bare() -> Self {
        Self {
            server: ApiServer::start(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn start() -> Self {
        let cluster = Self::bare();
        for definition in definitions() {
            cluster.server.create(definition);
        }
        cluster.gpus("node-a", &["81050Mi", "81050Mi"]);
        for name in ["vision", "nlp"] {
            cluster.namespace(name);
        }
        cluster
    }

    pub fn namespace(&self, name: &str) {
        self.server.create(
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        );
    }

    pub fn gpus(&self, node: &str, sizes: &[&str]) {
        let gpu = |(at, memory): (usize, &&str)| {
            json!({
                "name": format!("gpu-{at}"), "allowMultipleAllocations": true,
                "attributes": { "type": { "string": "fraction" }, "uuid": { "string": format!("GPU-{node}-{at}") } },
                "capacity": { "memory": { "value": memory } },
            })
        };
        let devices: Vec<Value> = sizes.iter().enumerate().map(gpu).collect();
        self.server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": format!("{node}-0") },
            "spec": {
                "driver": DRIVER, "nodeName": node, "devices": devices,
                "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
            },
        }));
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
        command
            .args(words)
            .env("KUBECONFIG", self.server.kubeconfig(self.folder.path()));
        command
    }

    pub fn run(&self, words: &str) -> Said {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.command(&words).output_bounded().unwrap().into()
    }

    /// The command must succeed.
    pub fn done(&self, words: &str) -> Said {
        let said = self.run(words);
        assert_eq!(said.code, Some(0), "{words}: {said:?}");
        said
    }

    /// The command must end with this code, and say this on stderr.
    pub fn refused(&self, words: &str, code: i32, text: &str) {
        let said = self.run(words);
        assert_eq!(said.code, Some(code), "{words}: {said:?}");
        assert!(said.err.contains(text), "{words}: {}", said.err);
    }

    pub fn spawn(&self, words: &str) -> Child {
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut command = self.command(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// The objects of Kueue, without what a server adds.
    pub fn objects(&self) -> Vec<Value> {
        let kinds = ["resourceflavors", "cohorts", "clusterqueues", "localqueues"];
        let mut all = self
            .server
            .look(|view| kinds.map(|plural| view.all(plural)).concat());
        for object in &mut all {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.retain(|field, _| {
                ["name", "namespace", "labels", "annotations"].contains(&field.as_str())
            });
        }
        all
    }

    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.server.look(|view| view.get(plural, namespace, name))
    }
}
