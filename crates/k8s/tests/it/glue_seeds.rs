//! The values of ClearML's own guide to fractional GPUs, as they are printed there, and the pods that they say.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::{Command, Output};

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::Inventory;
use divvy_k8s::base::inject::inject;
use divvy_k8s::base::pod_request::{SkipReason, Steps};
use divvy_testkit::Bounded as _;
use serde::Deserialize as _;
use serde_json::{Value, json};

/// A fraction of each GPU for two queues.
const FRACTIONS: &str = r#"
agentk8sglue:
  queues:
    default0500:
      templateOverrides:
        labels:
          required-resources: "0.5"
          clearml-injector/fraction: "0.500"
        resources:
          limits:
            nvidia.com/gpu: 1
            clear.ml/fraction-1: "0.5"
      queueSettings:
        maxPods: 10
    default0250:
      templateOverrides:
        labels:
          required-resources: "0.25"
          clearml-injector/fraction: "0.250"
        resources:
          limits:
            nvidia.com/gpu: 1
            clear.ml/fraction-1: "0.25"
      queueSettings:
        maxPods: 10
"#;

/// MIG for two queues; the indentation of the queues is lost there.
const MIG: &str = r#"
agentk8sglue:
  queues:
default025:
      templateOverrides:
        labels:
          required-resources: "0.25"
        resources:
          limits:
            nvidia.com/mig-1g.10gb: 1
default050:
      templateOverrides:
        labels:
          required-resources: "0.50"
        resources:
          limits:
            nvidia.com/mig-1g.10gb: 1
"#;

/// Static MIG slices of one product.
const STATIC: &str = r#"
agentk8sglue:
 queue: default
 # …
 basePodTemplate:
   # …
   resources:
     limits:
       nvidia.com/gpu: 1
 nodeSelector:
   nvidia.com/gpu.product: A100-SXM4-40GB-MIG-1g.5gb
"#;

/// A template of its own for a MIG device; not YAML, as it is printed there.
const BENCHMARK: &str = r#"
# tf-benchmarks-mixed.yaml
apiVersion: v1
kind: Pod
metadata:
 name: tf-benchmarks-mixed
spec:
 restartPolicy: Never
 Containers:
    - name: tf-benchmarks-mixed
    image: ""
     command: []
     args: []
     resources:
       limits:
         nvidia.com/mig-3g.20gb: 1
 nodeSelector:  #optional
   nvidia.com/gpu.product: A100-SXM4-40GB
"#;

/// A pod that is made by hand, whose image has the limit in it.
const BY_HAND: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: train-pod
  labels:
    app: trainme
spec:
  hostPID: true
  containers:
  - name: train-container
    image: clearml/fractional-gpu:u22-cu12.3-8gb
    command: ['python3', '-c', 'print(f"Free GPU Memory: (free, global) {torch.cuda.mem_get_info()}")']
"#;

/// What the NVIDIA GPU operator is given: no values of ours.
const OPERATOR: &str = r#"
devicePlugin:
  config:
    name: device-plugin-config
    create: true
"#;

fn print(values: &str, template: Option<&str>) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::File::create(&path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        path
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"));
    command
        .args(["glue", "--print", "--values"])
        .arg(file("values.yaml", values));
    if let Some(template) = template {
        command
            .arg("--pod-template")
            .arg(file("pod.yaml", template));
    }
    command.output_bounded().unwrap()
}

fn pods(values: &str, template: Option<&str>) -> (Vec<Value>, String) {
    let output = print(values, template);
    let (out, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{said}");
    let documents = yaml_serde::Deserializer::from_str(&out);
    (
        documents
            .map(|one| Value::deserialize(one).unwrap())
            .collect(),
        said,
    )
}

/// A pod as it is without any template, of a queue.
fn bare(queue: &str) -> Value {
    let set = |name: &str, value: &str| json!({ "name": name, "value": value });
    let name = "clearml-id-7acc2f6a2c3a3eea";
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "divvy",
                "glue.divvy.dev/worker": "HOLDER",
                "clearml-task-id": "TASK",
                "clearml-agent-queue": "QUEUE",
                "clearml-agent-queue-name": queue,
            },
            "annotations": {
                "glue.divvy.dev/task": "TASK",
                "glue.divvy.dev/queue": "QUEUE",
                "glue.divvy.dev/queue-name": queue,
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "task",
                "image": "IMAGE",
                "command": ["/bin/bash", "/etc/divvy/task/run.sh"],
                "env": [
                    set("CLEARML_WORKER_ID", "divvy-k8s:TASK"),
                    set("CLEARML_TASK_ID", "TASK"),
                    set("CLEARML_DOCKER_IMAGE", "IMAGE"),
                    set("CLEARML_CONFIG_FILE", "/tmp/clearml.conf"),
                    set("CLEARML_AGENT_PROPAGATE_EXITCODE", "1"),
                ],
                "volumeMounts": [
                    { "name": "divvy-task", "mountPath": "/etc/divvy/task", "readOnly": true },
                    { "name": "divvy-task", "mountPath": "/tmp/clearml.conf", "subPath": "clearml.conf", "readOnly": true },
                ],
            }],
            "volumes": [{ "name": "divvy-task", "secret": { "secretName": name } }],
        },
    })
}

/// The same with what differs, `JSON pointer → value`, but for the two names that are digests.
#[track_caller]
fn assert_is(mut pod: Value, queue: &str, more: &[(&str, Value)]) {
    let mut wanted = bare(queue);
    let digests = [
        "/metadata/name",
        "/metadata/labels/glue.divvy.dev~1worker",
        "/spec/volumes/0/secret/secretName",
    ];
    for at in digests {
        *wanted.pointer_mut(at).unwrap() = pod
            .pointer(at)
            .unwrap_or_else(|| panic!("{at} is missing"))
            .clone();
    }
    assert_eq!(
        pod["metadata"]["name"],
        pod["spec"]["volumes"][0]["secret"]["secretName"]
    );
    for (at, value) in more {
        let (parent, key) = at.rsplit_once('/').unwrap();
        wanted.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value.clone();
    }
    for one in [&mut pod, &mut wanted] {
        one.sort_all_objects();
    }
    assert_eq!(pod, wanted, "{pod:#}");
}

const LIMITS: &str = "/spec/containers/0/resources";

#[test]
fn the_queues_of_fractions_have_the_labels_and_limits_that_the_guide_gives_them() {
    let (pods, said) = pods(FRACTIONS, None);
    assert_eq!(said, "");
    for (pod, (queue, required, label, fraction)) in pods.iter().zip([
        ("default0500", "0.5", "0.500", "0.5"),
        ("default0250", "0.25", "0.250", "0.25"),
    ]) {
        assert_is(
            pod.clone(),
            queue,
            &[
                ("/metadata/labels/required-resources", json!(required)),
                ("/metadata/labels/clearml-injector~1fraction", json!(label)),
                (
                    LIMITS,
                    json!({ "limits": { "nvidia.com/gpu": "1", "clear.ml/fraction-1": fraction } }),
                ),
            ],
        );
    }
    assert_eq!(pods.len(), 2);

    // And the webhook makes of them what it makes of anybody's.
    let inventory = Inventory {
        sizes: [Bytes::gib(80)].into(),
        ..Inventory::default()
    };
    let memory = pods.iter().map(|pod| {
        let injected = inject(pod, &inventory, Steps::Eighths).unwrap().unwrap();
        let request =
            &injected.template.as_ref().unwrap().spec["spec"]["devices"]["requests"][0]["exactly"];
        request["capacity"]["requests"]["memory"]
            .as_str()
            .unwrap()
            .to_owned()
    });
    assert_eq!(memory.collect::<Vec<_>>(), ["40960Mi", "20480Mi"]);
}

#[test]
fn the_queues_of_mig_are_read_though_their_indentation_is_lost() {
    let (pods, said) = pods(MIG, None);
    assert!(
        said.contains("default025 is read as agentk8sglue.queues.default025; indent it"),
        "{said}"
    );
    for (pod, (queue, required)) in pods
        .iter()
        .zip([("default025", "0.25"), ("default050", "0.50")])
    {
        assert_is(
            pod.clone(),
            queue,
            &[
                ("/metadata/labels/required-resources", json!(required)),
                (
                    LIMITS,
                    json!({ "limits": { "nvidia.com/mig-1g.10gb": "1" } }),
                ),
            ],
        );
        let untouched = inject(pod, &Inventory::default(), Steps::Eighths).unwrap();
        assert_eq!(
            untouched.unwrap_err(),
            SkipReason::Unmarked,
            "a device class serves it"
        );
    }
    assert_eq!(pods.len(), 2);
}

#[test]
fn static_slices_are_a_limit_and_a_selector() {
    let (pods, said) = pods(STATIC, None);
    assert!(
        said.contains("agentk8sglue.nodeSelector applies to the pods of tasks"),
        "{said}"
    );
    assert_eq!(pods.len(), 1);
    assert_is(
        pods[0].clone(),
        "default",
        &[
            (
                "/spec/nodeSelector",
                json!({ "nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-1g.5gb" }),
            ),
            (LIMITS, json!({ "limits": { "nvidia.com/gpu": "1" } })),
        ],
    );
}

#[test]
fn a_template_of_ones_own_lies_under_the_queues() {
    let as_printed = print("agentk8sglue: {queue: default}", Some(BENCHMARK));
    let said = String::from_utf8(as_printed.stderr).unwrap();
    assert_eq!(as_printed.status.code(), Some(2));
    assert!(
        said.contains("pod.yaml: the pod template: not valid YAML"),
        "{said}"
    );

    let indented = BENCHMARK
        .replace("    image", "      image")
        .replace("     command", "      command");
    let indented = indented
        .replace("     args", "      args")
        .replace("     resources", "      resources");
    let indented = indented
        .replace("       limits", "        limits")
        .replace("         nvidia", "          nvidia");
    let capital = print("agentk8sglue: {queue: default}", Some(&indented));
    let said = String::from_utf8(capital.stderr).unwrap();
    assert!(
        said.contains("spec.Containers: unknown field of a pod; did you mean `containers`?"),
        "{said}"
    );

    let (pods, _) = pods(
        "agentk8sglue: {queue: default}",
        Some(&indented.replace("Containers", "containers")),
    );
    assert_is(
        pods[0].clone(),
        "default",
        &[
            (
                "/spec/nodeSelector",
                json!({ "nvidia.com/gpu.product": "A100-SXM4-40GB" }),
            ),
            ("/spec/containers/0/name", json!("tf-benchmarks-mixed")),
            (
                LIMITS,
                json!({ "limits": { "nvidia.com/mig-3g.20gb": "1" } }),
            ),
        ],
    );
}

#[test]
fn a_pod_of_a_fractional_image_keeps_what_the_image_needs() {
    let (pods, _) = pods("agentk8sglue: {queue: default}", Some(BY_HAND));
    assert_is(
        pods[0].clone(),
        "default",
        &[
            ("/metadata/labels/app", json!("trainme")),
            ("/spec/hostPID", json!(true)),
            ("/spec/containers/0/name", json!("train-container")),
            (
                "/spec/containers/0/image",
                json!("clearml/fractional-gpu:u22-cu12.3-8gb"),
            ),
            (
                "/spec/containers/0/env/2/value",
                json!("clearml/fractional-gpu:u22-cu12.3-8gb"),
            ),
        ],
    );
}

#[test]
fn values_of_something_else_are_refused_by_their_name() {
    let output = print(OPERATOR, None);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("devicePlugin: unknown key"), "{said}");
}

#[test]
fn a_fraction_that_the_webhook_would_refuse_is_said_at_the_start() {
    let text = FRACTIONS.replace(
        "clear.ml/fraction-1: \"0.5\"",
        "clear.ml/fraction-1: \"0.25\"",
    );
    let (_, said) = pods(&text, None);
    assert!(
        said.starts_with("warning: queue default0500: Divvy's webhook would refuse its pods: "),
        "{said}"
    );
}
