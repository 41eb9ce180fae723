//! `divvy-k8s inject` as people type it.

use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

use divvy_testkit::Bounded as _;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: team, labels: {clearml-injector/fraction: "0.500"}}
spec:
  hostPID: true
  containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1, clear.ml/fraction-1: "0.5"}}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
"#;

fn inject(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .arg("inject")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    match stdin.write_all(input.as_bytes()) {
        // Whose words are refused has read nothing, and may have ended.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.expect("it reads"),
    }
    drop(stdin);
    child.output_bounded().expect("it ends")
}

#[test]
fn it_shows_the_claims_template_and_the_pod_and_leaves_the_rest() {
    let output = inject(&["-f", "-", "--gpu", "80GiB"], POD);
    let (out, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{said}");
    let kinds: Vec<&str> = out
        .lines()
        .filter_map(|line| line.strip_prefix("kind: "))
        .collect();
    assert_eq!(kinds, ["ResourceClaimTemplate", "Pod", "ConfigMap"]);
    assert!(out.contains("namespace: team") && out.contains("memory: 40960Mi"));
    assert!(!out.contains("clear.ml/fraction-1"));
    assert!(said.starts_with("warning: Pod train: hostPID"), "{said}");
}

#[test]
fn what_is_refused_names_the_object_and_prints_nothing_of_it() {
    let bad = POD.replace("0.500", "0.3");
    let output = inject(&["-f", "-", "--gpu", "80GiB"], &bad);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(
        said.contains("Pod train is refused") && said.contains("0.3"),
        "{said}"
    );

    let much = POD
        .replace("clearml-injector/fraction: \"0.500\"", "x: y")
        .replace("clear.ml/fraction-1: \"0.5\", ", "");
    let much = much.replace(
        "nvidia.com/gpu: 1, clear.ml/fraction-1: \"0.5\"",
        "nvidia.com/gpumem: 90000",
    );
    let output = inject(&["-f", "-", "--gpu", "80GiB"], &much);
    assert_eq!(output.status.code(), Some(5), "no GPU will ever have it");
}

#[test]
fn a_file_that_cannot_be_read_or_is_no_yaml_is_said_by_name() {
    let missing = inject(&["-f", "/nowhere/pod.yaml", "--gpu", "80GiB"], "");
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        String::from_utf8(missing.stderr)
            .unwrap()
            .contains("/nowhere/pod.yaml")
    );
    let broken = inject(&["-f", "-", "--gpu", "80GiB"], "a: [1");
    assert_eq!(broken.status.code(), Some(2));
    let unsized_gpu = inject(&["-f", "-", "--gpu", "80"], POD);
    assert_eq!(unsized_gpu.status.code(), Some(2));
}
