//! Helm, and what it makes of the chart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use divvy_testkit::{Bounded as _, filled};
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

/// What Helm answered.
struct Rendered {
    is_refused: bool,
    stdout: String,
    stderr: String,
}

/// The chart with these values; `None` without Helm.
pub fn chart(values: &[&str]) -> Option<Chart> {
    let rendered = helm(values)?;
    assert!(!rendered.is_refused, "{values:?}: {}", rendered.stderr);
    let documents = yaml_serde::Deserializer::from_str(&rendered.stdout);
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
    let rendered = helm(values)?;
    assert!(rendered.is_refused, "{values:?} are taken");
    Some(rendered.stderr)
}

/// Each set of values is rendered once for all test processes, until a file of the chart changes.
fn helm(values: &[&str]) -> Option<Rendered> {
    let Some(helm) = std::env::var_os("DIVVY_TEST_HELM").map(PathBuf::from) else {
        eprintln!("skipped: DIVVY_TEST_HELM names no helm");
        return None;
    };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/divvy");
    let mut files = Vec::new();
    read_files(&chart, &mut files);
    // Values are words (`--set`): no file beside the chart changes the result.
    let key = (&helm, values, &files);
    let rendered = filled("rendered", key, |folder| {
        let output = render(&helm, &chart, values);
        let status = output.status.success().to_string();
        for (name, text) in [
            ("status", status.as_bytes()),
            ("stdout", &output.stdout),
            ("stderr", &output.stderr),
        ] {
            fs::write(folder.join(name), text).expect("the target folder can be written");
        }
    });
    let read = |name: &str| fs::read_to_string(rendered.join(name)).expect("text of Helm");
    Some(Rendered {
        is_refused: read("status") == "false",
        stdout: read("stdout"),
        stderr: read("stderr"),
    })
}

/// The files below a folder, in order, with their text.
fn read_files(folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    let entries = fs::read_dir(folder).expect("the chart can be read");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read_files(&path, files)
        } else {
            let text = fs::read(&path).expect("the chart can be read");
            files.push((path, text));
        }
    }
}

fn render(helm: &Path, chart: &Path, values: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a folder for what helm keeps");
    let mut command = Command::new(helm);
    command
        .args(["template", "divvy"])
        .arg(chart)
        .args(["--namespace", "divvy-system"])
        .args(values)
        .env("HOME", home.path())
        .env_remove("KUBECONFIG");
    command.output_bounded().expect("helm starts")
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
