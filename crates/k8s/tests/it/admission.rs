//! What becomes of pods in all the languages that people have for parts of GPUs.

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::Inventory;
use divvy_k8s::base::inject::{Injection, inject, strip_template};
use divvy_k8s::base::pod_request::{SkipReason, Steps};
use serde_json::{Value, json};

fn yaml(text: &str) -> Value {
    yaml_serde::from_str(text).expect("YAML of the test")
}

fn inventory() -> Inventory {
    Inventory {
        sizes: [Bytes::gib(80)].into(),
        ..Inventory::default()
    }
}

fn admit(pod: &Value) -> Result<Result<Injection, SkipReason>, String> {
    inject(pod, &inventory(), Steps::Eighths).map_err(|error| error.to_string())
}

/// What a pod becomes that is to be admitted.
fn injected(pod: &Value) -> Injection {
    admit(pod).expect("admitted").expect("not left as it is")
}

fn refused(pod: &Value) -> String {
    admit(pod).expect_err("to be refused")
}

/// A pod with one container, these labels, annotations and limits.
fn pod(labels: &Value, annotations: &Value, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "labels": labels, "annotations": annotations },
        "spec": { "containers": [{
            "name": "c", "image": "x",
            "resources": { "limits": limits, "requests": limits },
        }] },
    })
}

fn labelled(fraction: &str) -> Value {
    pod(
        &json!({ "clearml-injector/fraction": fraction }),
        &json!({}),
        &json!({}),
    )
}

fn annotated(annotations: &Value) -> Value {
    pod(&json!({}), annotations, &json!({}))
}

fn limited(limits: &Value) -> Value {
    pod(&json!({}), &json!({}), limits)
}

/// The memory that each request of the claim asks for, and of how many GPUs.
fn claimed(injection: &Injection) -> Vec<(String, u64)> {
    let template = injection.template.as_ref().expect("a template");
    let requests = &template.spec["spec"]["devices"]["requests"];
    let each = requests.as_array().expect("requests").iter();
    each.map(|request| {
        let one = match request.get("exactly") {
            Some(exactly) => exactly,
            None => &request["firstAvailable"][0],
        };
        let memory = one["capacity"]["requests"]["memory"].as_str();
        (
            memory.unwrap_or("whole").to_owned(),
            one["count"].as_u64().expect("a count"),
        )
    })
    .collect()
}

fn one(memory: &str) -> Vec<(String, u64)> {
    vec![(memory.to_owned(), 1)]
}

/// The same of two GPUs.
fn two_of(memory: &str) -> Vec<(String, u64)> {
    vec![(memory.to_owned(), 1); 2]
}

/// The pod of a queue `default0500`, as the API server hands it on: limits are requests too, and quantities in its own form.
fn queue_pod() -> Value {
    yaml(
        r#"
apiVersion: v1
kind: Pod
metadata:
  name: task
  labels: {required-resources: "0.5", clearml-injector/fraction: "0.500"}
spec:
  schedulerName: default-scheduler
  containers:
  - name: c
    image: x
    resources:
      limits: {nvidia.com/gpu: "1", clear.ml/fraction-1: 500m, cpu: "2"}
      requests: {nvidia.com/gpu: "1", clear.ml/fraction-1: 500m, cpu: "2"}
    volumeMounts: [{name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}]
  volumes: [{name: token, projected: {sources: []}}]
  tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
"#,
    )
}

#[test]
fn a1_limits_and_requests_become_a_claim_and_labels_stay() {
    let injection = injected(&queue_pod());
    let name = injection.template.as_ref().unwrap().name.clone();
    assert_eq!(
        injection.pod,
        yaml(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata:
  name: task
  labels: {{required-resources: "0.5", clearml-injector/fraction: "0.500"}}
  annotations: {{divvy.dev/gpus: "0.500"}}
spec:
  schedulerName: default-scheduler
  containers:
  - name: c
    image: x
    env: [{{name: CLEARML_AGENT_GPU_FRACTIONS, value: "0.500"}}]
    resources:
      limits: {{cpu: "2"}}
      requests: {{cpu: "2"}}
      claims: [{{name: fraction-gpu}}]
    volumeMounts: [{{name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}}]
  volumes: [{{name: token, projected: {{sources: []}}}}]
  resourceClaims: [{{name: fraction-gpu, resourceClaimTemplateName: {name}}}]
  tolerations:
  - {{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}}
  - {{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}
"#
        ))
    );
    assert_eq!(claimed(&injection), one("40960Mi"));
    let mut patched = queue_pod();
    json_patch::patch(&mut patched, &injection.patch).expect("the patch fits");
    assert_eq!(patched, injection.pod);
}

#[test]
fn a2_a_label_alone_is_enough() {
    for (text, memory) in [
        ("0.125", "10240Mi"),
        ("0.0625", "5120Mi"),
        ("0.250", "20480Mi"),
    ] {
        assert_eq!(claimed(&injected(&labelled(text))), one(memory), "{text}");
    }
}

#[test]
fn a3_whole_numbers_are_whole_gpus() {
    let variable = |injection: &Injection| {
        let env = &injection.pod["spec"]["containers"][0]["env"];
        env[0]["value"].as_str().expect("a value").to_owned()
    };
    let whole = injected(&labelled("1.000"));
    assert_eq!(
        (claimed(&whole), variable(&whole)),
        (one("whole"), "1.000".to_owned())
    );
    let two = injected(&labelled("2"));
    assert_eq!(claimed(&two), [("whole".to_owned(), 2)]);
}

#[test]
fn a4_other_fractions_are_refused_with_those_there_are() {
    for text in ["0.3", "0", "-1", "abc", "1.25"] {
        let said = refused(&labelled(text));
        assert!(
            said.contains(text) && said.contains("clearml-injector/fraction"),
            "{said}"
        );
    }
    assert!(refused(&labelled("0.3")).contains("0.125"));
    assert!(inject(&labelled("0.3"), &inventory(), Steps::Any).is_ok());
}

#[test]
fn a5_a_label_and_a_limit_that_disagree_are_refused() {
    let label = json!({ "clearml-injector/fraction": "0.500" });
    let contradictory = pod(
        &label,
        &json!({}),
        &json!({ "clear.ml/fraction-1": "0.25" }),
    );
    let said = refused(&contradictory);
    assert!(said.contains("0.500") && said.contains("0.25"), "{said}");
}

#[test]
fn a6_several_limits_are_several_gpus() {
    let limits = json!({ "clear.ml/fraction-1": "0.5", "clear.ml/fraction-2": "500m" });
    let injection = injected(&limited(&limits));
    assert_eq!(claimed(&injection), two_of("40960Mi"));
    let constraint =
        &injection.template.as_ref().unwrap().spec["spec"]["devices"]["constraints"][0];
    assert_eq!(constraint["distinctAttribute"], "gpu.divvy.dev/uuid");
}

#[test]
fn more_gpus_than_a_claim_can_have_are_refused_before_they_are_counted_out() {
    for text in ["33", "4000000000"] {
        let said = refused(&labelled(text));
        assert!(said.contains("32 GPUs"), "{said}");
        let said = refused(&limited(&json!({ "clear.ml/fraction-1": text })));
        assert!(said.contains("32 GPUs"), "{said}");
    }
    let mut many = labelled("20");
    many["metadata"]["annotations"]["gpu-fraction-num-devices"] = json!("2");
    assert!(refused(&many).contains("32 GPUs"));
    let limits = (1..=33).map(|number| (format!("clear.ml/fraction-{number}"), json!("0.5")));
    assert!(refused(&limited(&limits.collect())).contains("32 GPUs"));
    assert!(
        refused(&limited(
            &json!({ "nvidia.com/gpu": 33, "nvidia.com/gpumem": 1 })
        ))
        .contains("32 GPUs")
    );
    assert_eq!(
        claimed(&injected(&labelled("32"))),
        [("whole".to_owned(), 32)]
    );
}

#[test]
fn a7_replicas_asked_for_an_older_injector_are_not_counted() {
    let label = json!({ "clearml-injector/fraction": "0.500" });
    let four = pod(&label, &json!({}), &json!({ "nvidia.com/gpu": 4 }));
    assert_eq!(claimed(&injected(&four)), one("40960Mi"));
}

#[test]
fn a8_twice_is_once() {
    let once = injected(&queue_pod()).pod;
    assert_eq!(admit(&once), Ok(Err(SkipReason::Done)));
}

#[test]
fn a9_a_pod_without_a_name_is_as_good() {
    let mut unnamed = queue_pod();
    unnamed["metadata"] = json!({
        "generateName": "train-7d9f-",
        "labels": { "clearml-injector/fraction": "0.500" },
    });
    assert_eq!(injected(&unnamed).template, injected(&queue_pod()).template);
}

#[test]
fn a10_a_template_keeps_what_it_asks_for_as_a_label() {
    let job = |kind: &str, at: &str| {
        let mut object = json!({ "kind": kind, "metadata": { "name": "j" } });
        let template = json!({ "spec": limited(&json!({ "clear.ml/fraction-1": "0.5", "nvidia.com/gpu": 1 }))["spec"] });
        match at {
            "CronJob" => object["spec"]["jobTemplate"]["spec"]["template"] = template,
            _ => object["spec"]["template"] = template,
        }
        object
    };
    for kind in ["Deployment", "Job", "StatefulSet", "CronJob"] {
        let stripped = strip_template(&job(kind, kind), Steps::Eighths);
        let stripped = stripped.expect("not refused").expect("changed");
        let template = match kind {
            "CronJob" => &stripped["spec"]["jobTemplate"]["spec"]["template"],
            _ => &stripped["spec"]["template"],
        };
        assert_eq!(
            template["metadata"]["labels"]["clearml-injector/fraction"],
            "0.500"
        );
        let limits = &template["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &json!({ "nvidia.com/gpu": 1 }), "{kind}");
        // And its pods are then like any other's.
        assert_eq!(
            claimed(&injected(
                &json!({ "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"] })
            )),
            one("40960Mi")
        );
        assert_eq!(
            strip_template(&stripped, Steps::Eighths),
            Ok(None),
            "twice is once"
        );
    }
}

#[test]
fn a10_several_equal_parts_of_a_template_are_counted_and_unequal_ones_refused() {
    let job = |second: &str| {
        let limits = json!({ "clear.ml/fraction-1": "0.5", "clear.ml/fraction-2": second });
        json!({ "kind": "Job", "spec": { "template": { "spec": limited(&limits)["spec"] } } })
    };
    let equal = strip_template(&job("0.5"), Steps::Eighths)
        .unwrap()
        .unwrap();
    let template = &equal["spec"]["template"];
    assert_eq!(
        template["metadata"]["annotations"]["gpu-fraction-num-devices"],
        "2"
    );
    let pod = json!({ "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"] });
    assert_eq!(claimed(&injected(&pod)), two_of("40960Mi"));
    assert!(strip_template(&job("0.25"), Steps::Eighths).is_err());
}

#[test]
fn a10_another_limit_in_a_template_is_another_label_and_a_label_of_its_authors_is_not_touched() {
    let with = |object: &Value, limit: &str| {
        let mut object = object.clone();
        object["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] =
            json!({ "clear.ml/fraction-1": limit, "clear.ml/fraction-2": limit });
        object
    };
    let strip = |object: &Value| strip_template(object, Steps::Eighths);
    let job = json!({ "kind": "Job", "spec": { "template": { "spec": { "containers": [{ "name": "c" }] } } } });
    let half = strip(&with(&job, "0.5")).unwrap().unwrap();
    // As after `kubectl apply` of the same file with another limit.
    let quarter = strip(&with(&half, "0.25")).unwrap().unwrap();
    assert_eq!(quarter, strip(&with(&job, "0.25")).unwrap().unwrap());
    let metadata = &quarter["spec"]["template"]["metadata"];
    assert_eq!(metadata["labels"]["clearml-injector/fraction"], "0.250");
    // One part after two is not two.
    let mut one = half.clone();
    one["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] =
        json!({ "clear.ml/fraction-1": "0.5" });
    let one = strip(&one).unwrap().unwrap();
    let annotations = &one["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations.get("gpu-fraction-num-devices"), None);

    let mut labelled = job.clone();
    labelled["spec"]["template"]["metadata"]["labels"] =
        json!({ "clearml-injector/fraction": "0.5" });
    let kept = strip(&with(&labelled, "0.5")).unwrap().unwrap();
    let labels = &kept["spec"]["template"]["metadata"]["labels"];
    assert_eq!(
        labels["clearml-injector/fraction"], "0.5",
        "as it was written"
    );
    assert!(
        strip(&with(&kept, "0.25")).is_err(),
        "they contradict each other"
    );
}

#[test]
fn a10_the_container_with_the_limit_is_the_one_that_gets_the_claim() {
    let mut job = json!({ "kind": "Job", "spec": { "template": { "spec": {
        "containers": [{ "name": "side" }, { "name": "train" }],
    } } } });
    let limits = json!({ "clear.ml/fraction-1": "0.5" });
    job["spec"]["template"]["spec"]["containers"][1]["resources"]["limits"] = limits;
    let stripped = strip_template(&job, Steps::Eighths).unwrap().unwrap();
    let template = &stripped["spec"]["template"];
    let pod = json!({ "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"] });
    let containers = injected(&pod).pod["spec"]["containers"].clone();
    assert_eq!(containers[0]["resources"], Value::Null);
    assert_eq!(
        containers[1]["resources"]["claims"][0]["name"],
        "fraction-gpu"
    );
}

#[test]
fn a12_pods_of_other_schedulers_are_left_alone() {
    let mut theirs = annotated(&json!({ "gpu-fraction": "0.5" }));
    theirs["spec"]["schedulerName"] = json!("kai-scheduler");
    assert_eq!(
        admit(&theirs),
        Ok(Err(SkipReason::Scheduler("kai-scheduler".to_owned())))
    );
    assert_eq!(
        admit(&limited(&json!({ "nvidia.com/gpu": 1 }))),
        Ok(Err(SkipReason::Unmarked))
    );
    assert_eq!(
        admit(&limited(&json!({ "nvidia.com/mig-1g.10gb": 1 }))),
        Ok(Err(SkipReason::Unmarked))
    );
}

#[test]
fn a13_the_fraction_annotation_is_between_none_and_one() {
    let fraction = |text: &str| annotated(&json!({ "gpu-fraction": text }));
    assert_eq!(claimed(&injected(&fraction("0.5"))), one("40960Mi"));
    assert_eq!(
        claimed(&injected(&fraction("0.3"))),
        one("24576Mi"),
        "any part"
    );
    for text in ["1.0", "0", "1.5", "half"] {
        assert!(refused(&fraction(text)).contains(text), "{text}");
    }
}

#[test]
fn a14_the_memory_annotation_is_whole_mib() {
    let memory = |text: &str| annotated(&json!({ "gpu-memory": text }));
    assert_eq!(claimed(&injected(&memory("2000"))), one("2000Mi"));
    for text in ["0", "2G", "-5", "1.5"] {
        assert!(refused(&memory(text)).contains(text), "{text}");
    }
    assert!(
        refused(&memory("90000")).contains("80.0 GiB"),
        "no GPU has it"
    );
}

/// Requests that are numbers, and why none of them can be a pod's.
#[test]
fn a_refused_gpu_request_says_what_is_so() {
    let annotation = |key: &str, text: &str| annotated(&json!({ key: text }));
    let devices =
        |text: &str| annotated(&json!({ "gpu-fraction": "0.5", "gpu-fraction-num-devices": text }));
    let hami = |key: &str, value: Value| limited(&json!({ "nvidia.com/gpu": 1, key: value }));
    let sized =
        |text: &str| annotated(&json!({ "gpu-fraction": "0.5", "divvy.dev/gpu-size": text }));
    let many = "at most 32 GPUs";
    for (pod, reason) in [
        (
            annotation("gpu-fraction", "0.0000003"),
            "less than a millionth of a GPU",
        ),
        (
            annotation("gpu-fraction", "1e30"),
            "not a positive number smaller than 1.0",
        ),
        (labelled("5000.5"), "above 1 and not a whole number"),
        (labelled("5000000000"), many),
        (limited(&json!({ "clear.ml/fraction-1": "1e18" })), many),
        (
            limited(&json!({ "clear.ml/fraction-1": "99999999999999999999" })),
            many,
        ),
        (devices("33"), many),
        (devices("18446744073709551616"), many),
        (devices("2.0"), "write digits alone, such as 2"),
        (
            annotation("gpu-memory", "2000.0"),
            "MiB in digits, such as 2000",
        ),
        (
            annotation("gpu-memory", "17592186044416"),
            "more than any GPU has",
        ),
        (
            annotation("gpu-memory", "99999999999999999999"),
            "more than any GPU has",
        ),
        (
            hami("nvidia.com/gpumem", json!("20Ti")),
            "more than any GPU has",
        ),
        (
            hami("nvidia.com/gpumem-percentage", json!(150)),
            "whole per cent from 1 to 100",
        ),
        (
            hami("nvidia.com/gpumem-percentage", json!("0.5")),
            "whole per cent from 1 to 100",
        ),
        (
            hami("nvidia.com/gpumem-percentage", json!(0)),
            "whole per cent from 1 to 100",
        ),
        (sized("80"), "less than 1Mi"),
        (sized("512Ki"), "less than 1Mi"),
        (sized("80GiB"), "not an amount of memory, such as 80Gi"),
    ] {
        let said = refused(&pod);
        assert!(said.contains(reason), "{pod}: {said}");
    }
    // A third, as people write it (ray 30260), and numbers with exponents, which the API server takes.
    for (text, memory) in [
        ("0.3333333", "27306Mi"),
        ("0.3333333333333333", "27306Mi"),
        ("5e-1", "40960Mi"),
        ("0.9999999999", "81918Mi"),
    ] {
        let claimed = claimed(&injected(&annotation("gpu-fraction", text)));
        assert_eq!(claimed, one(memory), "{text}");
    }
    let exponent = limited(&json!({ "clear.ml/fraction-1": "5e-1" }));
    assert_eq!(claimed(&injected(&exponent)), one("40960Mi"));
    assert!(
        admit(&sized("79.5Gi")).is_ok(),
        "{:?}",
        admit(&sized("79.5Gi"))
    );
}

#[test]
fn a15_two_ways_at_once_are_refused() {
    let both = annotated(&json!({ "gpu-fraction": "0.5", "gpu-memory": "2000" }));
    assert!(refused(&both).contains("cannot request both"));
    for annotation in [
        json!({ "gpu-fraction": "0.5" }),
        json!({ "gpu-memory": "2000" }),
    ] {
        let beside = pod(&json!({}), &annotation, &json!({ "nvidia.com/gpu": 1 }));
        assert!(refused(&beside).contains("cannot have both"));
    }
}

#[test]
fn a16_so_many_devices_of_a_fraction() {
    let two = annotated(&json!({ "gpu-fraction": "0.5", "gpu-fraction-num-devices": "2" }));
    assert_eq!(claimed(&injected(&two)), two_of("40960Mi"));
    assert!(
        refused(&annotated(&json!({ "gpu-fraction-num-devices": "2" })))
            .contains("gpu-fraction-num-devices")
    );
    let none = annotated(&json!({ "gpu-fraction": "0.5", "gpu-fraction-num-devices": "0" }));
    assert!(refused(&none).contains("`0`"));
}

#[test]
fn a17_the_container_that_is_named_gets_the_claim() {
    let named = |name: &str| {
        let annotations = json!({ "gpu-fraction": "0.5", "gpu-fraction-container-name": name });
        let mut pod = annotated(&annotations);
        pod["spec"]["containers"] = json!([{ "name": "c" }, { "name": "side" }]);
        pod["spec"]["initContainers"] = json!([{ "name": "first" }]);
        pod
    };
    let claims = |pod: &Value, at: &str| pod.pointer(at).cloned();
    let side = injected(&named("side")).pod;
    assert_eq!(
        claims(&side, "/spec/containers/1/resources/claims/0/name"),
        Some(json!("fraction-gpu"))
    );
    assert_eq!(claims(&side, "/spec/containers/0/resources"), None);
    let init = injected(&named("first")).pod;
    assert_eq!(
        claims(&init, "/spec/initContainers/0/resources/claims/0/name"),
        Some(json!("fraction-gpu"))
    );
    assert!(refused(&named("none")).contains("`none`"));
}

#[test]
fn a18_what_would_go_past_the_limit_or_the_scheduler_is_refused() {
    let mut privileged = labelled("0.5");
    privileged["spec"]["initContainers"] =
        json!([{ "name": "i", "securityContext": { "privileged": true } }]);
    assert!(refused(&privileged).contains("privileged"));
    for (context, named) in [
        (
            json!({"capabilities": {"add": ["NET_ADMIN", "SYS_ADMIN"]}}),
            "SYS_ADMIN",
        ),
        (
            json!({"capabilities": {"add": ["CAP_SYS_MODULE"]}}),
            "CAP_SYS_MODULE",
        ),
        (json!({"capabilities": {"add": ["sys_rawio"]}}), "sys_rawio"),
        (
            json!({"capabilities": {"add": ["DAC_READ_SEARCH"]}}),
            "DAC_READ_SEARCH",
        ),
        (json!({"capabilities": {"add": ["ALL"]}}), "ALL"),
        (json!({"procMount": "Unmasked"}), "procMount"),
    ] {
        let mut unheld = labelled("0.5");
        unheld["spec"]["containers"][0]["securityContext"] = context;
        assert!(refused(&unheld).contains(named), "{named}");
    }
    let mut harmless = labelled("0.5");
    harmless["spec"]["containers"][0]["securityContext"] = json!({
        "capabilities": {"add": ["NET_ADMIN", "SYS_PTRACE"], "drop": ["ALL"]}, "procMount": "Default",
    });
    let _ = injected(&harmless);
    // It then reaches the processes of the node.
    harmless["spec"]["hostPID"] = json!(true);
    assert!(refused(&harmless).contains("SYS_PTRACE"));
    let mut placed = labelled("0.5");
    placed["spec"]["nodeName"] = json!("node-a");
    assert!(refused(&placed).contains("nodeName"));
    let mut sees = labelled("0.5");
    sees["spec"]["containers"][0]["env"] =
        json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }]);
    assert!(refused(&sees).contains("NVIDIA_VISIBLE_DEVICES"));
    sees["spec"]["containers"][0]["env"][0]["value"] = json!("void");
    let _ = injected(&sees);
}

#[test]
fn variables_of_a_config_map_are_not_looked_at() {
    let from = json!([{ "configMapRef": { "name": "names-nvidia-visible-devices" } }]);
    let mut pod = labelled("0.5");
    pod["spec"]["containers"][0]["envFrom"] = from.clone();
    assert_eq!(injected(&pod).pod["spec"]["containers"][0]["envFrom"], from);
}

#[test]
fn a_part_of_any_size_is_one_device_to_a_quota() {
    let asked = |mebibytes: &str| {
        let pod = annotated(&json!({ "gpu-memory": mebibytes }));
        claimed(&injected(&pod))
    };
    assert_eq!(asked("5120"), one("5120Mi"));
    assert_eq!(asked("40960"), one("40960Mi"));
}

#[test]
fn a19_host_pid_stays_and_is_said_to_be_unneeded() {
    let mut pod = labelled("0.5");
    pod["spec"]["hostPID"] = json!(true);
    let injection = injected(&pod);
    assert_eq!(injection.pod["spec"]["hostPID"], true);
    assert!(injection.warnings[0].contains("hostPID"));
}

#[test]
fn a21_the_container_with_the_gpu_gets_the_claim() {
    let mut pod = labelled("0.5");
    pod["spec"]["containers"] = json!([
        { "name": "side" },
        { "name": "train", "resources": { "limits": { "nvidia.com/gpu": 1 } } },
    ]);
    let changed = injected(&pod).pod;
    // Whatever its image says, it sees no GPU.
    let hidden = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }]);
    let side = json!({ "name": "side", "env": hidden });
    assert_eq!(changed["spec"]["containers"][0], side);
    assert_eq!(
        changed["spec"]["containers"][1]["resources"],
        json!({ "claims": [{ "name": "fraction-gpu" }] })
    );
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!(1);
    let said = refused(&pod);
    assert!(
        said.contains("`side`") && said.contains("`train`"),
        "{said}"
    );
}

#[test]
fn a22_a_burst_limit_is_never_ignored_in_silence() {
    let annotation = annotated(&json!({ "gpu-fraction": "0.25", "gpu-fraction-limit": "0.8" }));
    assert!(injected(&annotation).warnings[0].contains("gpu-fraction-limit"));
    let mut variable = annotated(&json!({ "gpu-memory": "2000" }));
    variable["spec"]["containers"][0]["env"] =
        json!([{ "name": "RUNAI_GPU_MEMORY_LIMIT", "value": "4000" }]);
    assert!(injected(&variable).warnings[0].contains("RUNAI_GPU_MEMORY_LIMIT"));
}

/// K4. A claim by hand of the webhook's name decides, and the label beside it only misleads.
#[test]
fn a_label_beside_a_claim_by_hand_is_admitted_with_a_warning() {
    let with = |claim: Value| {
        let mut pod = pod(
            &json!({ "clearml-injector/fraction": "0.125" }),
            &json!({ "divvy.dev/gpus": "0.125" }),
            &json!({}),
        );
        pod["spec"]["resourceClaims"] = json!([claim]);
        pod
    };
    for claim in [
        json!({ "name": "fraction-gpu", "resourceClaimName": "whole" }),
        json!({ "name": "fraction-gpu", "resourceClaimTemplateName": "whole" }),
    ] {
        let injection = injected(&with(claim));
        let said = injection.warnings.join("; ");
        assert!(
            said.contains("clearml-injector/fraction, divvy.dev/gpus has no effect"),
            "{said}"
        );
        assert_eq!(injection.template, None);
    }
    let ours = json!({ "name": "fraction-gpu", "resourceClaimTemplateName": "divvy-abc" });
    assert!(injected(&with(ours)).warnings.is_empty(), "of a workload");
}

/// K5. HAMi's default policy holds the per cent while others use the GPU; `force` holds it always.
#[test]
fn hamis_cores_are_a_share_of_compute_time() {
    let pod = |cores: &Value, policy: Option<&str>| {
        let limits =
            json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": cores });
        let mut pod = limited(&limits);
        if let Some(policy) = policy {
            pod["spec"]["containers"][0]["env"] =
                json!([{ "name": "GPU_CORE_UTILIZATION_POLICY", "value": policy }]);
        }
        pod
    };
    let share = |cores: Value, policy: Option<&str>| {
        let injection = injected(&pod(&cores, policy));
        assert!(injection.warnings.is_empty(), "{:?}", injection.warnings);
        let spec = injection.template.unwrap().spec;
        let parameters = spec.pointer("/spec/devices/config/0/opaque/parameters/compute");
        parameters.cloned()
    };
    assert_eq!(share(json!(30), None), Some(json!("fair=0.3")));
    assert_eq!(share(json!("30"), Some("default")), Some(json!("fair=0.3")));
    assert_eq!(share(json!(5), Some("force")), Some(json!("strict=0.05")));
    assert_eq!(share(json!(30), Some("disable")), None);
    assert_eq!(share(json!(0), None), None, "HAMi's word for no limit");
    let all = injected(&pod(&json!(100), None));
    assert!(
        all.warnings[0].contains("does not reserve"),
        "{:?}",
        all.warnings
    );
    for nonsense in [json!(101), json!(-1), json!("0.5"), json!("many")] {
        let said = refused(&pod(&nonsense, None));
        assert!(
            said.contains("is not a whole per cent from 0 to 100"),
            "{said}"
        );
    }
    let mut both = pod(&json!(30), None);
    both["metadata"]["annotations"] = json!({ "divvy.dev/compute": "fair=0.3" });
    assert!(injected(&both).warnings.is_empty(), "they agree");
    both["metadata"]["annotations"] = json!({ "divvy.dev/compute": "strict=0.3" });
    let said = refused(&both);
    assert!(
        said.contains("strict=0.3") && said.contains("fair=0.3"),
        "{said}"
    );
}

#[test]
fn hamis_memory_is_so_much_of_each_gpu() {
    let two = limited(
        &json!({ "nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30 }),
    );
    let injection = injected(&two);
    assert_eq!(claimed(&injection), two_of("3000Mi"));
    assert!(injection.warnings.is_empty(), "{:?}", injection.warnings);
    assert_eq!(
        injection.pod["spec"]["containers"][0]["resources"],
        json!({ "claims": [{ "name": "fraction-gpu" }] })
    );
    let half = limited(&json!({ "nvidia.com/gpumem-percentage": "50" }));
    assert_eq!(claimed(&injected(&half)), one("40960Mi"));
    let both = limited(&json!({ "nvidia.com/gpumem": 3000, "nvidia.com/gpumem-percentage": 50 }));
    assert!(refused(&both).contains("cannot request both"));
}
