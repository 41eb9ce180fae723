//! The webhook's answers to AdmissionReviews, case by case, and which objects it is asked about at all.
//!
//! `reviews/cases.yaml` has the questions, `reviews/*.snap` the answers; `cargo xtask bless` writes them anew.

#![allow(clippy::unwrap_used)]

mod standards;

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::{Inventory, Template};
use divvy_k8s::base::pod_request::{Rules, SkipReason, Steps, parse_pod_request};
use divvy_k8s::base::workload::WORKLOADS;
use divvy_k8s::controller::{AdmissionDecision, NoReview, Registration, answer, judge, question};
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};
use standards::{Level, violations};

use crate::workloads::object;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    case: String,
    #[serde(default = "a_pod")]
    kind: String,
    #[serde(default)]
    dry_run: bool,
    object: Value,
}

fn a_pod() -> String {
    "Pod".to_owned()
}

fn cases() -> Vec<Case> {
    yaml_serde::from_str(include_str!("reviews/cases.yaml")).expect("the cases are YAML")
}

fn inventory() -> Inventory {
    Inventory {
        sizes: [Bytes::gib(24), Bytes::gib(80)].into(),
        profiles: [("1g.10gb", 9728), ("2g.20gb", 19968)]
            .map(|(name, mib)| (name.parse().unwrap(), Bytes::mib(mib)))
            .into(),
    }
}

/// As the API server asks.
fn review(case: &Case) -> Value {
    let mut object = case.object.clone();
    object["kind"] = json!(case.kind);
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": { "version": "v1", "kind": case.kind }, "namespace": "team",
            "operation": "CREATE", "object": object, "oldObject": null, "dryRun": case.dry_run,
        },
    })
}

fn judged(review: &Value) -> (AdmissionDecision, Value) {
    let question = question(review.to_string().as_bytes()).expect("a question");
    let verdict = judge(&question, &inventory(), Steps::Eighths);
    let answer = answer(&question.uid, &verdict);
    (verdict, answer)
}

/// The patch of an answer, out of its wrapping.
fn patch(answer: &Value) -> Option<json_patch::Patch> {
    let text = answer["response"].get("patch")?;
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    let bytes: ByteString = serde_json::from_value(text.clone()).expect("base64");
    Some(serde_json::from_slice(&bytes.0).expect("a JSON patch"))
}

/// The answer as people read it.
fn shown(review: &Value) -> String {
    let (verdict, answer) = judged(review);
    let mut response = answer["response"].clone();
    if let Some(patch) = patch(&answer) {
        response["patch"] = json!(patch);
    }
    let named =
        |template: Template| json!({ "name": template.name, "spec": template.spec["spec"] });
    let mut shown = json!({ "response": response });
    let templates: Vec<Value> = verdict.templates.into_iter().map(named).collect();
    match &templates[..] {
        [] => shown["template"] = json!(null),
        [only] => shown["template"] = only.clone(),
        several => shown["templates"] = json!(several),
    }
    yaml_serde::to_string(&shown).expect("YAML")
}

#[test]
fn every_question_has_its_answer() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("reviews");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for case in cases() {
            insta::assert_snapshot!(case.case.replace(' ', "_"), shown(&review(&case)));
        }
        let recorded: Value = serde_json::from_str(include_str!("reviews/recorded.json")).unwrap();
        insta::assert_snapshot!("a01_as_a_1.36.2_asked", shown(&recorded));
    });
}

#[test]
fn what_is_no_question_is_no_answer() {
    assert!(matches!(question(b"{"), Err(NoReview::Json(_))));
    let other = json!({ "apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview" });
    assert!(matches!(
        question(other.to_string().as_bytes()),
        Err(NoReview::Kind { .. })
    ));
    let empty = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview" });
    assert!(matches!(
        question(empty.to_string().as_bytes()),
        Err(NoReview::NoRequest)
    ));
}

/// A8: what the API server sends back after our patch, and after others have changed something, is not changed again.
#[test]
fn a_second_round_changes_nothing() {
    for case in cases() {
        let mut review = review(&case);
        let (_, first) = judged(&review);
        let Some(patch) = patch(&first) else { continue };
        json_patch::patch(&mut review["request"]["object"], &patch).expect("the patch fits");
        let (_, second) = judged(&review);
        assert_eq!(
            second["response"],
            json!({ "uid": "u-1", "allowed": true }),
            "{}",
            case.case
        );
    }
}

/// A20: a pod passes the level afterwards that it passed before.
#[test]
fn what_is_added_is_allowed_at_every_level_of_pod_security() {
    let mut passed = 0;
    for case in cases().iter().filter(|case| case.kind == "Pod") {
        let (_, answer) = judged(&review(case));
        let Some(patch) = patch(&answer) else {
            continue;
        };
        let mut pod = case.object.clone();
        pod["kind"] = json!("Pod");
        for level in [Level::Baseline, Level::Restricted] {
            let before = violations(&pod, level);
            let mut changed = pod.clone();
            json_patch::patch(&mut changed, &patch).expect("the patch fits");
            assert_eq!(before, violations(&changed, level), "{}", case.case);
            passed += usize::from(before.is_empty() && level == Level::Restricted);
        }
    }
    assert!(passed > 0, "some pod is restricted");
}

#[test]
fn the_table_of_pod_security_sees_what_each_control_is_about() {
    let restricted = cases()
        .into_iter()
        .find(|case| case.case.starts_with("a20"));
    let pod = restricted.expect("a restricted pod").object;
    assert_eq!(violations(&pod, Level::Restricted), Vec::<&str>::new());
    let at = |path: &str, value: Value| {
        let mut pod = pod.clone();
        let merged = path
            .rsplit('/')
            .fold(value, |inner, key| json!({ key: inner }));
        json_patch::merge(&mut pod["spec"], &merged);
        violations(&pod, Level::Restricted)
    };
    let container = |path: &str, value: Value| {
        let mut pod = pod.clone();
        let merged = path
            .rsplit('/')
            .fold(value, |inner, key| json!({ key: inner }));
        json_patch::merge(&mut pod["spec"]["containers"][0], &merged);
        violations(&pod, Level::Restricted)
    };
    for (found, control) in [
        (
            at("securityContext/windowsOptions/hostProcess", json!(true)),
            "host process",
        ),
        (at("hostPID", json!(true)), "host namespaces"),
        (
            container("securityContext/privileged", json!(true)),
            "privileged containers",
        ),
        (
            container("securityContext/capabilities/add", json!(["SYS_ADMIN"])),
            "capabilities",
        ),
        (
            at(
                "volumes",
                json!([{ "name": "v", "hostPath": { "path": "/" } }]),
            ),
            "host path volumes",
        ),
        (
            container("ports", json!([{ "containerPort": 1, "hostPort": 1 }])),
            "host ports",
        ),
        (
            container("livenessProbe/httpGet/host", json!("other")),
            "probes and hooks of other hosts",
        ),
        (
            container("securityContext/appArmorProfile/type", json!("Unconfined")),
            "AppArmor",
        ),
        (
            container("securityContext/seLinuxOptions/type", json!("spc_t")),
            "SELinux",
        ),
        (
            container("securityContext/procMount", json!("Unmasked")),
            "/proc mount type",
        ),
        (
            container("securityContext/seccompProfile/type", json!("Unconfined")),
            "seccomp unconfined",
        ),
        (
            at(
                "securityContext/sysctls",
                json!([{ "name": "kernel.msgmax", "value": "1" }]),
            ),
            "sysctls",
        ),
        (
            at("volumes", json!([{ "name": "v", "nfs": {} }])),
            "volume types",
        ),
        (
            container("securityContext/allowPrivilegeEscalation", json!(null)),
            "privilege escalation",
        ),
        (
            at("securityContext/runAsNonRoot", json!(null)),
            "running as non-root",
        ),
        (at("securityContext/seccompProfile", json!(null)), "seccomp"),
        (
            container("securityContext/capabilities/drop", json!(null)),
            "capabilities dropped",
        ),
    ] {
        assert!(found.contains(&control), "{control}: {found:?}");
    }
}

/// The conditions of one webhook of the registration, ready to be asked.
struct Conditions(Vec<cel::Program>);

impl Conditions {
    fn of(resource: &str) -> Self {
        Self::with(resource, &[])
    }

    fn with(resource: &str, schedulers: &[String]) -> Self {
        let registration = Registration {
            name: "divvy",
            namespace: "divvy-system",
            service: "divvy-webhook",
            all_namespaces: false,
            schedulers,
        };
        let object = registration.object();
        let webhooks = object["webhooks"].as_array().unwrap();
        let asks_about = |rule: &Value| {
            let mut resources = rule["resources"].as_array().unwrap().iter();
            resources.any(|one| one == resource)
        };
        let found = webhooks
            .iter()
            .find(|one| one["rules"].as_array().unwrap().iter().any(asks_about));
        let conditions = found.unwrap()["matchConditions"].as_array().unwrap();
        let text = |condition: &Value| condition["expression"].as_str().unwrap().to_owned();
        Self(
            conditions
                .iter()
                .map(|one| cel::Program::compile(&text(one)).unwrap())
                .collect(),
        )
    }

    /// Whether the API server asks about an object that is created.
    fn take(&self, object: &Value) -> bool {
        self.are_true(object, &json!(null), "CREATE")
    }

    /// Whether it asks about an update.
    fn take_update(&self, object: &Value, old: &Value) -> bool {
        self.are_true(object, old, "UPDATE")
    }

    /// As the API server decides: one condition that is false counts for more than errors of others; an error alone refuses the
    /// object.
    fn are_true(&self, object: &Value, old: &Value, operation: &str) -> bool {
        let answers: Vec<_> = self
            .0
            .iter()
            .map(|program| {
                let mut context = cel::Context::default();
                context.add_variable("object", object).unwrap();
                context.add_variable("oldObject", old).unwrap();
                let request = json!({ "operation": operation });
                context.add_variable("request", &request).unwrap();
                program.execute(&context)
            })
            .collect();
        let is = |answer: bool| move |one: &_| *one == Ok(cel::Value::Bool(answer));
        if answers.iter().any(is(false)) {
            return false;
        }
        assert!(answers.iter().all(is(true)), "{answers:?} of {object}");
        true
    }
}

/// Whether a pod is for the webhook, as Rust says it: refused or not.
fn is_marked(pod: &Value) -> bool {
    !matches!(
        parse_pod_request(pod, Steps::Eighths),
        Ok(Err(SkipReason::Unmarked | SkipReason::Scheduler(_)))
    )
}

#[test]
fn the_api_server_asks_about_marked_pods_and_no_others() {
    let conditions = Conditions::of("pods");
    let mut asked = [0; 2];
    let labels = [
        json!(null),
        json!({ "a": "b" }),
        json!({ "clearml-injector/fraction": "0.500" }),
    ];
    let annotations = [
        "",
        "a",
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
    ];
    let limits = [
        "",
        "cpu",
        "nvidia.com/gpu",
        "clear.ml/fraction",
        "clear.ml/fraction-1",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/mig-1g.10gb",
    ];
    let schedulers = [
        None,
        Some(""),
        Some("default-scheduler"),
        Some("kai-scheduler"),
    ];
    for label in &labels {
        for annotation in annotations {
            for limit in limits {
                for place in [
                    "containers/limits",
                    "containers/requests",
                    "initContainers/limits",
                ] {
                    for scheduler in schedulers {
                        let pod = pod_with(label, annotation, limit, place, scheduler);
                        let marked = is_marked(&pod);
                        assert_eq!(conditions.take(&pod), marked, "{pod}");
                        asked[usize::from(marked)] += 1;
                    }
                }
            }
        }
    }
    assert!(asked.iter().all(|count| *count > 100), "{asked:?}");
}

fn pod_with(
    label: &Value,
    annotation: &str,
    limit: &str,
    place: &str,
    scheduler: Option<&str>,
) -> Value {
    let mut pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c" }] } });
    if !label.is_null() {
        pod["metadata"]["labels"] = label.clone();
    }
    if !annotation.is_empty() {
        pod["metadata"]["annotations"] = json!({ annotation: "1" });
    }
    if let Some(scheduler) = scheduler {
        pod["spec"]["schedulerName"] = json!(scheduler);
    }
    let (list, kind) = place.split_once('/').unwrap();
    if !limit.is_empty() {
        let container = json!({ "name": "l", "resources": { kind: { limit: "1" } } });
        match pod["spec"][list].as_array_mut() {
            Some(containers) => containers.push(container),
            None => pod["spec"][list] = json!([container]),
        }
    }
    pod
}

#[test]
fn the_api_server_asks_about_pods_with_a_claim_or_an_image_with_a_limit() {
    let conditions = Conditions::of("pods");
    let fixed = "docker.io/clearml/fractional-gpu:u22-cu12.3-8gb";
    for (image, limit, claims, asked) in [
        (fixed, "", json!(null), true),
        (
            "clearml/fractional-gpu:u20-cu11.7-12gb@sha256:0",
            "",
            json!([]),
            true,
        ),
        (fixed, "cpu", json!(null), true),
        (fixed, "nvidia.com/gpu", json!(null), false),
        (fixed, "nvidia.com/mig-1g.10gb", json!(null), false),
        (
            fixed,
            "",
            json!([{ "name": "mine", "resourceClaimName": "c" }]),
            false,
        ),
        ("clearml/fractional-gpu:latest", "", json!(null), false),
        (
            "my-clearml/fractional-gpu:u22-cu12.3-8gb",
            "",
            json!(null),
            false,
        ),
        ("python:3", "", json!([{ "name": "mine" }]), false),
        (
            "python:3",
            "",
            json!([{ "name": "mine" }, { "name": "fraction-gpu" }]),
            true,
        ),
    ] {
        for list in ["containers", "initContainers"] {
            let mut pod = pod_with(&json!(null), "", limit, "containers/limits", None);
            pod["spec"][list] = match list {
                "containers" => pod["spec"][list].clone(),
                _ => json!([{ "name": "i" }]),
            };
            pod["spec"][list][0]["image"] = json!(image);
            if !claims.is_null() {
                pod["spec"]["resourceClaims"] = claims.clone();
            }
            assert_eq!(is_marked(&pod), asked, "{pod}");
            assert_eq!(conditions.take(&pod), asked, "{pod}");
        }
    }
}

#[test]
fn the_api_server_asks_about_every_workload_with_a_marked_template() {
    for workload in WORKLOADS {
        let conditions = Conditions::of(workload.resource);
        let label = json!({ "clearml-injector/fraction": "0.500" });
        for (label, annotation, limit, scheduler) in [
            (&json!(null), "", "", None),
            (&json!(null), "", "nvidia.com/gpu", None),
            (&json!(null), "", "nvidia.com/gpumem", None),
            (&json!(null), "", "clear.ml/fraction-1", None),
            (&json!(null), "gpu-memory", "", None),
            (&label, "", "", None),
            (&label, "", "", Some("kai-scheduler")),
        ] {
            for place in ["containers/limits", "initContainers/limits"] {
                let pod = pod_with(label, annotation, limit, place, scheduler);
                let object = object(workload, &pod);
                assert_eq!(conditions.take(&object), is_marked(&pod), "{object}");
                assert!(
                    !conditions.take_update(&object, &object),
                    "nothing has changed"
                );
                let mut other = object.clone();
                let place = &workload.places(&object)[0];
                other.pointer_mut(&place.pointer).unwrap()["spec"]["nodeSelector"] =
                    json!({ "a": "b" });
                assert_eq!(
                    conditions.take_update(&object, &other),
                    is_marked(&pod),
                    "{object}"
                );
            }
        }
        // What an operator's object may lack is no error, in either version.
        let full = object(
            workload,
            &pod_with(&label, "", "", "containers/limits", None),
        );
        for empty in [json!({}), json!({ "spec": {} })] {
            assert!(!conditions.take(&empty), "{}", workload.kind);
            assert!(conditions.take_update(&full, &empty), "{}", workload.kind);
            assert!(!conditions.take_update(&empty, &full), "{}", workload.kind);
        }
    }
}

#[test]
fn the_api_server_asks_about_pods_of_the_schedulers_that_are_served() {
    let schedulers = ["volcano".to_owned()];
    let rules = Rules {
        steps: Steps::Eighths,
        schedulers: &schedulers,
    };
    let conditions = Conditions::with("pods", &schedulers);
    for (scheduler, served) in [
        (None, true),
        (Some("default-scheduler"), true),
        (Some("volcano"), true),
        (Some("kai-scheduler"), false),
    ] {
        let label = json!({ "clearml-injector/fraction": "0.500" });
        let pod = pod_with(&label, "", "", "containers/limits", scheduler);
        assert_eq!(conditions.take(&pod), served);
        let parsed = parse_pod_request(&pod, rules).unwrap();
        assert_eq!(parsed.is_ok(), served, "{parsed:?}");
    }
}
