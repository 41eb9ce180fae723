//! The rules and boards of the repository, parsed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An alert rule.
#[derive(Debug)]
pub struct Rule {
    pub name: String,
    pub expression: String,
    pub severity: String,
    pub annotations: BTreeMap<String, String>,
}

/// The rules of machines, as YAML.
pub fn rules_text() -> String {
    fs::read_to_string(root().join("deploy/prometheus/rules.yml")).expect("the rules")
}

/// The rules of machines.
pub fn rules() -> Vec<Rule> {
    let file: Value = yaml_serde::from_str(&rules_text()).expect("YAML");
    let groups = file["groups"].as_array().expect("groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    rules
        .map(|rule| Rule {
            name: text(&rule["alert"]),
            expression: text(&rule["expr"]),
            severity: text(&rule["labels"]["severity"]),
            annotations: (rule["annotations"].as_object().expect("annotations").iter())
                .map(|(key, value)| (key.clone(), text(value)))
                .collect(),
        })
        .collect()
}

/// The board of a machine, and that of a cluster.
pub fn boards() -> Vec<Value> {
    let paths = [
        "deploy/grafana/divvy.json",
        "deploy/helm/divvy/dashboards/kubernetes.json",
    ];
    paths
        .iter()
        .map(|path| {
            let text = fs::read_to_string(root().join(path)).expect("a board");
            serde_json::from_str(&text).expect("JSON")
        })
        .collect()
}

pub fn panels(board: &Value) -> &[Value] {
    board["panels"].as_array().expect("panels")
}

/// The expressions of a board: of its panels, and those in the queries of its variables.
pub fn expressions(board: &Value) -> Vec<String> {
    let targets = panels(board).iter().flat_map(|panel| {
        let targets = panel["targets"].as_array();
        targets.into_iter().flatten()
    });
    let text = |value: &Value| value.as_str().expect("an expression").to_owned();
    let mut all: Vec<String> = targets.map(|target| text(&target["expr"])).collect();
    let variables = board["templating"]["list"].as_array().expect("variables");
    for variable in variables
        .iter()
        .filter(|variable| variable["type"] == "query")
    {
        // label_values(SELECTOR, LABEL): as an expression, the selector grouped by the label.
        let query = text(&variable["definition"]);
        let inner = query
            .strip_prefix("label_values(")
            .and_then(|inner| inner.strip_suffix(')'));
        let (selector, label) = inner
            .and_then(|inner| inner.rsplit_once(", "))
            .unwrap_or_else(|| panic!("{query}"));
        all.push(format!("count by ({label}) ({selector})"));
    }
    all
}
