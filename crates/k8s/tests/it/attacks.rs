//! The chart's policies on pods, evaluated on each setting with which a pod could try to pass its limit or to reach
//! Divvy's daemon.
//!
//! `attacks/cases.yaml` has the settings and the texts of their refusal; `kube` puts the same cases to a real API server.

#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use serde_json::{Value, json};

use crate::chart::ENFORCER;
use crate::chart::render::{self, Chart};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    #[serde(default)]
    container: Value,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    metadata: Value,
    /// A container that joins the pod later.
    ephemeral: Option<Value>,
    /// Part of the text of its refusal.
    refused: Option<String>,
}

fn cases() -> Vec<Case> {
    yaml_serde::from_str(include_str!("attacks/cases.yaml")).expect("the cases are YAML")
}

/// The pod of a case, with a claim that its author wrote.
fn pod(case: &Case) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "attack" },
        "spec": {
            "containers": [{ "name": "c", "image": "x" }],
            "resourceClaims": [{ "name": "gpu", "resourceClaimName": "gpu" }],
        },
    });
    json_patch::merge(&mut pod["metadata"], &or_empty(&case.metadata));
    json_patch::merge(&mut pod["spec"], &or_empty(&case.spec));
    let container = &mut pod["spec"]["containers"][0];
    json_patch::merge(container, &or_empty(&case.container));
    container["resources"] = json!({ "claims": [{ "name": "gpu" }] });
    if let Some(ephemeral) = &case.ephemeral {
        let mut joining = json!({ "name": "e", "image": "x" });
        json_patch::merge(&mut joining, ephemeral);
        pod["spec"]["ephemeralContainers"] = json!([joining]);
    }
    pod
}

fn or_empty(patch: &Value) -> Value {
    if patch.is_null() {
        json!({})
    } else {
        patch.clone()
    }
}

/// A policy of the chart, as the API server evaluates it.
struct Policy<'a>(&'a Value);

impl Policy<'_> {
    /// Whether it looks at a request, and the messages of the validations that fail.
    fn refusals(&self, pod: &Value, request: &Value) -> Option<Vec<String>> {
        let mut context = cel::Context::default();
        context.add_variable("object", pod).unwrap();
        context.add_variable("request", request).unwrap();
        let list = |key: &str| self.0[key].as_array().expect("a list");
        let holds = |expression: &Value, context: &cel::Context<'_, '_>| {
            let text = expression.as_str().unwrap();
            match evaluate(text, context) {
                cel::Value::Bool(holds) => holds,
                other => panic!("{text}: {other:?}"),
            }
        };
        let mut conditions = list("matchConditions").iter();
        if !conditions.all(|condition| holds(&condition["expression"], &context)) {
            return None;
        }
        let mut variables = serde_json::Map::new();
        for variable in list("variables") {
            context.add_variable("variables", &variables).unwrap();
            let value = evaluate(variable["expression"].as_str().unwrap(), &context);
            let name = variable["name"].as_str().unwrap().to_owned();
            variables.insert(name, value.json().expect("a variable is JSON"));
        }
        context.add_variable("variables", &variables).unwrap();
        let failed = list("validations").iter();
        let failed = failed.filter(|one| !holds(&one["expression"], &context));
        Some(
            failed
                .map(|one| one["message"].as_str().unwrap().to_owned())
                .collect(),
        )
    }
}

pub fn evaluate(expression: &str, context: &cel::Context<'_, '_>) -> cel::Value {
    // Of the API server's language, it also has the optional fields.
    let program = cel::Env::stdlib().compile(expression);
    let program = program.unwrap_or_else(|error| panic!("{expression}: {error}"));
    let result = program.execute(context);
    result.unwrap_or_else(|error| panic!("{expression}: {error}"))
}

fn policy(chart: &Chart) -> Policy<'_> {
    named(chart, "divvy-pods")
}

fn named<'a>(chart: &'a Chart, name: &str) -> Policy<'a> {
    let found = chart.find("ValidatingAdmissionPolicy", None, name);
    Policy(&found.expect("the chart has it")["spec"])
}

fn request(case: &Case) -> Value {
    match case.ephemeral {
        Some(_) => json!({ "operation": "UPDATE", "subResource": "ephemeralcontainers" }),
        None => json!({ "operation": "CREATE", "subResource": "" }),
    }
}

#[test]
fn each_setting_past_the_limit_is_refused_by_one_text_and_the_others_are_admitted() {
    let Some(chart) = render::chart(&[]) else {
        return;
    };
    let policy = policy(&chart);
    for case in cases() {
        let said = policy.refusals(&pod(&case), &request(&case));
        let said = said.unwrap_or_else(|| panic!("{}: the policy does not look", case.case));
        match &case.refused {
            None => assert_eq!(said, Vec::<String>::new(), "{}", case.case),
            Some(text) => {
                let [only] = &said[..] else {
                    panic!("{}: {said:?}", case.case);
                };
                assert!(only.contains(text), "{}: {only}", case.case);
            }
        }
    }
}

#[test]
fn pods_without_claims_and_changes_of_older_pods_are_not_looked_at() {
    let Some(chart) = render::chart(&[]) else {
        return;
    };
    let policy = policy(&chart);
    for case in cases().iter().filter(|case| case.refused.is_some()) {
        let mut pod = pod(case);
        let changed = json!({ "operation": "UPDATE", "subResource": "" });
        assert_eq!(policy.refusals(&pod, &changed), None, "{}", case.case);
        pod["spec"]["resourceClaims"] = json!([]);
        assert_eq!(policy.refusals(&pod, &request(case)), None, "{}", case.case);
        let spec = pod["spec"].as_object_mut().unwrap();
        spec.remove("resourceClaims");
        assert_eq!(policy.refusals(&pod, &request(case)), None, "{}", case.case);
    }
}

/// The scheduler makes the claim of such a pod, so its author writes none.
#[test]
fn pods_with_extended_resources_are_checked_as_pods_with_claims_are() {
    let Some(chart) = render::chart(&[]) else {
        return;
    };
    let policy = policy(&chart);
    let mig = json!({ "nvidia.com/mig-1g.10gb": "1" });
    for case in cases() {
        let refused = policy.refusals(&pod(&case), &request(&case)).unwrap();
        for kind in ["limits", "requests"] {
            let mut pod = pod(&case);
            pod["spec"]
                .as_object_mut()
                .unwrap()
                .remove("resourceClaims");
            pod["spec"]["containers"][0]["resources"] = json!({ kind: mig });
            let said = policy.refusals(&pod, &request(&case));
            assert_eq!(said.as_ref(), Some(&refused), "{} {kind}", case.case);
            // The same in an init container alone.
            let container = pod["spec"]["containers"][0].as_object_mut().unwrap();
            container.remove("resources");
            let init = json!({ "name": "first", "image": "x", "resources": { kind: mig } });
            let mut all = pod["spec"]["initContainers"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            all.push(init);
            pod["spec"]["initContainers"] = json!(all);
            let said = policy.refusals(&pod, &request(&case));
            assert_eq!(said.as_ref(), Some(&refused), "{} {kind}", case.case);
        }
    }
}

fn with_host_path(path: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "attack" },
        "spec": {
            "containers": [{ "name": "c", "image": "x" }],
            "volumes": [
                { "name": "empty", "emptyDir": {} },
                { "name": "host", "hostPath": { "path": path } },
            ],
        },
    })
}

#[test]
fn no_pod_mounts_the_folders_of_the_nodes_daemon_however_it_writes_the_path() {
    let Some(chart) = render::chart(&[]) else {
        return;
    };
    let policy = named(&chart, "divvy-folders");
    let create = json!({ "operation": "CREATE", "subResource": "", "namespace": "team" });
    let refused = |path: &str| {
        let said = policy.refusals(&with_host_path(path), &create);
        !said.expect("it looks at host paths").is_empty()
    };
    for path in [
        "/",
        "//",
        "/.",
        "/run",
        "/run/",
        "/run//",
        "/run/.",
        "/run/divvy",
        "/run/divvy/",
        "/run//divvy",
        "/./run/./divvy/.",
        "/run/divvy/divvy.sock",
        "run/divvy",
        "/var",
        "/var/run",
        "/var/run/divvy",
        "/var/lib",
        "/var/lib/",
        "/var/lib/divvy",
        "/var/lib/divvy/node",
        "/var//lib/./divvy/",
        "/run/divvy/..",
        "/run/cdi",
        "/var/run/cdi/divvy.json",
        "/var/lib/kubelet",
        "/var/lib/kubelet/plugins/gpu.divvy.dev",
        "/var/lib/kubelet/plugins_registry",
        "/proc",
        "/proc/1/root/run/divvy",
        "/sys",
        "/sys/fs/cgroup",
    ] {
        assert!(refused(path), "{path}");
    }
    for path in [
        "/dev/shm",
        "/data",
        "/data/run/divvy",
        "/runs",
        "/run/divvy2",
        "/var/lib/divvy-data",
        "/var/lib/kubelet/pods",
        "/var/log",
        "/data/x..y",
        "/procedures",
        "/sys/class",
    ] {
        assert!(!refused(path), "{path}");
    }
    // The node pods themselves, and pods without a host path.
    let own = json!({ "operation": "CREATE", "subResource": "", "namespace": "divvy-system" });
    assert_eq!(policy.refusals(&with_host_path("/run/divvy"), &own), None);
    let mut without = with_host_path("/run/divvy");
    without["spec"]["volumes"].as_array_mut().unwrap().pop();
    assert_eq!(policy.refusals(&without, &create), None);
}

/// As the user `edit` of a namespace made it on a real cluster: administrator of the node's daemon.
#[test]
fn a_pod_with_a_mig_limit_and_the_daemons_folder_is_refused_by_both_policies() {
    let Some(chart) = render::chart(&[]) else {
        return;
    };
    let mut pod = with_host_path("/run/divvy");
    pod["spec"]["containers"][0] = json!({
        "name": "c", "image": "x", "securityContext": { "privileged": true },
        "resources": { "limits": { "nvidia.com/mig-1g.10gb": 1 } },
    });
    let create = json!({ "operation": "CREATE", "subResource": "", "namespace": "team" });
    for name in ["divvy-pods", "divvy-folders"] {
        let said = named(&chart, name).refusals(&pod, &create);
        assert!(said.is_some_and(|said| !said.is_empty()), "{name}");
    }
}

#[test]
fn a_host_path_that_the_clusters_owner_lists_is_admitted_and_none_below_it() {
    let Some(chart) = render::chart(&["--set", "policies.hostPaths={/data/sets}"]) else {
        return;
    };
    let policy = policy(&chart);
    for (path, allowed) in [
        ("/data/sets", true),
        ("/data/sets/", false),
        ("/data/sets/link", false),
        ("/data/setsx", false),
        ("/data", false),
        ("/dev/shm", false),
    ] {
        let volume = json!([{ "name": "v", "hostPath": { "path": path } }]);
        let case = Case {
            case: path.to_owned(),
            spec: json!({ "volumes": volume }),
            container: Value::Null,
            metadata: Value::Null,
            ephemeral: None,
            refused: None,
        };
        let said = policy.refusals(&pod(&case), &request(&case)).unwrap();
        assert_eq!(said.is_empty(), allowed, "{path}: {said:?}");
    }
}

#[test]
fn pods_that_kai_places_may_have_the_variable_that_kai_sets_and_no_other_pod() {
    let Some(chart) = render::chart(ENFORCER) else {
        return;
    };
    let policy = policy(&chart);
    let of_kai = json!({ "name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": { "configMapKeyRef": {
        "name": "train-0a1b2c3-shared-gpu-0", "key": "NVIDIA_VISIBLE_DEVICES",
    } } });
    let own = json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" });
    for (scheduler, variable, admitted) in [
        ("kai-scheduler", &of_kai, true),
        ("kai-scheduler", &own, false),
        ("default-scheduler", &of_kai, false),
    ] {
        let case = Case {
            case: scheduler.to_owned(),
            spec: json!({ "schedulerName": scheduler }),
            container: json!({ "env": [variable] }),
            metadata: Value::Null,
            ephemeral: None,
            refused: None,
        };
        let said = policy.refusals(&pod(&case), &request(&case)).unwrap();
        assert_eq!(
            said.is_empty(),
            admitted,
            "{scheduler} {variable}: {said:?}"
        );
    }
}

/// The enforcer's policies on a pod of which the metadata and the spec are these.
fn enforced_pod(metadata: Value, spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}

#[test]
fn a_pod_with_a_gpu_of_others_gets_a_ticket_and_no_other_pod_does() {
    let Some(chart) = render::chart(ENFORCER) else {
        return;
    };
    let found = chart.find("MutatingAdmissionPolicy", None, "divvy-limit");
    let spec = &found.expect("the chart has one")["spec"];
    let namespaces = &spec["matchConstraints"]["namespaceSelector"]["matchExpressions"][0];
    assert_eq!(namespaces["values"], json!(["team-a", "team-b"]));
    // The containers that get a ticket; none where the policy does not look at the pod.
    let gets = |pod: &Value| {
        let mut context = cel::Context::default();
        context.add_variable("object", pod).unwrap();
        let conditions = spec["matchConditions"].as_array().unwrap().iter();
        let mut texts = conditions.map(|one| one["expression"].as_str().unwrap());
        if !texts.all(|text| evaluate(text, &context) == cel::Value::Bool(true)) {
            return json!([]);
        }
        let mut variables = serde_json::Map::new();
        for variable in spec["variables"].as_array().unwrap() {
            context.add_variable("variables", &variables).unwrap();
            let value = evaluate(variable["expression"].as_str().unwrap(), &context);
            let name = variable["name"].as_str().unwrap().to_owned();
            variables.insert(name, value.json().expect("a variable is JSON"));
        }
        variables["gets"].clone()
    };
    let claims = |name: &str| json!({ "claims": [{ "name": name }] });
    let two = json!({
        "resourceClaims": [{ "name": "gpu" }, { "name": "nic" }],
        "initContainers": [{ "name": "i", "resources": claims("gpu") }],
        "containers": [{ "name": "c", "resources": claims("nic") }, { "name": "idle" }],
    });
    assert_eq!(
        gets(&enforced_pod(json!({}), two.clone())),
        json!(["c", "i"])
    );
    let others = json!({ "annotations": { "divvy.dev/other-claims": "nic,x" } });
    assert_eq!(gets(&enforced_pod(others, two)), json!(["i"]));
    let replica = json!({ "containers": [
        { "name": "a", "resources": { "limits": { "nvidia.com/gpu.shared": "1" } } }, { "name": "b" },
    ] });
    assert_eq!(gets(&enforced_pod(json!({}), replica)), json!(["a"]));
    let kai = |scheduler: &str, annotations: Value| {
        let spec =
            json!({ "schedulerName": scheduler, "containers": [{ "name": "c" }, { "name": "d" }] });
        gets(&enforced_pod(json!({ "annotations": annotations }), spec))
    };
    assert_eq!(
        kai("kai-scheduler", json!({ "gpu-fraction": "0.5" })),
        json!(["c"])
    );
    let named = json!({ "gpu-memory": "4096", "gpu-fraction-container-name": "d" });
    assert_eq!(kai("kai-scheduler", named), json!(["d"]));
    assert_eq!(
        kai("default-scheduler", json!({ "gpu-fraction": "0.5" })),
        json!([])
    );
    assert_eq!(kai("kai-scheduler", json!({ "a": "b" })), json!([]));
    let has_one =
        json!({ "resourceClaims": [{ "name": "divvy-limit" }], "containers": [{ "name": "c" }] });
    assert_eq!(gets(&enforced_pod(json!({}), has_one)), json!([]));
}

#[test]
fn a_pod_cannot_bring_a_ticket_of_its_own_nor_change_the_template_of_tickets() {
    let Some(chart) = render::chart(ENFORCER) else {
        return;
    };
    let found = chart.find("ValidatingAdmissionPolicy", None, "divvy-limit");
    let policy = Policy(&found.expect("the chart has one")["spec"]);
    let request =
        |resource: &str| json!({ "resource": { "resource": resource }, "operation": "CREATE" });
    let pod = |template: &str, claims: Value| {
        let spec = json!({
            "resourceClaims": [{ "name": "gpu" }, { "name": "divvy-limit", "resourceClaimTemplateName": template }],
            "containers": [{ "name": "c", "resources": { "claims": claims } }],
        });
        policy.refusals(&enforced_pod(json!({}), spec), &request("pods"))
    };
    let ticket = json!([{ "name": "divvy-limit" }]);
    assert_eq!(pod("divvy-limit", ticket.clone()), Some(vec![]));
    let own = pod("mine", ticket).unwrap();
    assert!(
        own[0].contains("must be of the ResourceClaimTemplate"),
        "{own:?}"
    );
    let past = pod("divvy-limit", json!([{ "name": "gpu" }])).unwrap();
    assert!(past[0].contains("needs the claim divvy-limit"), "{past:?}");
    let template = |name: &str, class: &str| {
        let request = json!({ "name": "ticket", "exactly": { "deviceClassName": class } });
        let template = json!({
            "metadata": { "name": name }, "spec": { "spec": { "devices": { "requests": [request] } } },
        });
        policy.refusals(&template, &self::request_of_template())
    };
    assert_eq!(template("divvy-limit", "limit.divvy.dev"), Some(vec![]));
    assert_eq!(
        template("divvy-limit", "nic.example").map(|all| all.len()),
        Some(1)
    );
    assert_eq!(template("mine", "nic.example"), None);
}

fn request_of_template() -> Value {
    json!({ "resource": { "resource": "resourceclaimtemplates" }, "operation": "CREATE" })
}
