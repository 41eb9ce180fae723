//! Helm, and what it makes of the chart.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use divvy_testkit::Bounded as _;
use serde::Deserialize;
use serde_json::Value;

/// The rendered objects.
pub struct Chart {
    pub objects: Vec<Value>,
}

impl Chart {
    pub fn find(&self, kind: &str, namespace: Option<&str>, name: &str) -> Option<&Value> {
        self.objects.iter().find(|object| {
            object["kind"] == kind
                && object["metadata"]["name"] == name
                && object["metadata"]["namespace"].as_str() == namespace
        })
    }

    pub fn has(&self, kind: &str) -> bool {
        self.objects.iter().any(|object| object["kind"] == kind)
    }
}

/// The chart with these values; `None` without Helm.
pub fn chart(values: &[&str]) -> Option<Chart> {
    let output = helm(values)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values:?}: {said}");
    let text = String::from_utf8(output.stdout).expect("YAML is text");
    let documents = yaml_serde::Deserializer::from_str(&text);
    let objects = documents
        .map(|document| Value::deserialize(document).expect("every template makes YAML"))
        .filter(|object| !object.is_null())
        .collect();
    Some(Chart { objects })
}

/// What Helm says against these values; `None` without Helm.
///
/// # Panics
/// When it takes them.
pub fn refusal(values: &[&str]) -> Option<String> {
    let output = helm(values)?;
    assert!(!output.status.success(), "{values:?} are taken");
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn helm(values: &[&str]) -> Option<Output> {
    let Some(helm) = std::env::var_os("DIVVY_TEST_HELM").map(PathBuf::from) else {
        eprintln!("skipped: DIVVY_TEST_HELM names no helm");
        return None;
    };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/divvy");
    let home = tempfile::tempdir().expect("a folder for what helm keeps");
    let mut command = Command::new(helm);
    command
        .args(["template", "divvy"])
        .arg(chart)
        .args(["--namespace", "divvy-system"])
        .args(values)
        .env("HOME", home.path())
        .env_remove("KUBECONFIG");
    Some(command.output_bounded().expect("helm starts"))
}

/// `Deployment divvy-controller`.
pub fn called(object: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "{} {}",
        word(&object["kind"]),
        word(&object["metadata"]["name"])
    )
}
