//! The extender and its scheduler: their settings of each other agree.

#![allow(clippy::unwrap_used)]

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::Inventory;
use divvy_k8s::base::inject::inject;
use divvy_k8s::base::pod_request::Steps;
use serde_json::{Value, json};

use super::render::{Chart, chart, refusal};
use super::{EXTENDER, HTTPS, SCHEDULER};
use crate::attacks::evaluate;

const SYSTEM: Option<&str> = Some("divvy-system");

fn arguments(chart: &Chart, container: usize) -> Vec<String> {
    let deployment = chart.find("Deployment", SYSTEM, "divvy-extender").unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][container];
    let list = container["args"].as_array().unwrap();
    list.iter()
        .map(|one| one.as_str().unwrap().to_owned())
        .collect()
}

fn configuration(chart: &Chart) -> Value {
    let map = chart.find("ConfigMap", SYSTEM, "divvy-scheduler").unwrap();
    yaml_serde::from_str(map["data"]["config.yaml"].as_str().unwrap()).unwrap()
}

/// `KubeSchedulerConfiguration` has these fields (`k8s.io/kube-scheduler/config/v1`); the scheduler refuses unknown ones.
#[test]
fn the_scheduler_calls_the_extender_in_its_own_pod_and_goes_on_without_it() {
    let Some(chart) = chart(SCHEDULER) else {
        return;
    };
    let configuration = configuration(&chart);
    assert_eq!(
        configuration["extenders"],
        json!([{
            "urlPrefix": "http://127.0.0.1:8888", "prioritizeVerb": "prioritize", "weight": 100,
            "nodeCacheCapable": true, "ignorable": true, "httpTimeout": "1s",
        }])
    );
    assert_eq!(
        configuration["profiles"][0]["schedulerName"],
        "divvy-scheduler"
    );
    assert!(arguments(&chart, 0).contains(&"--listen=127.0.0.1:8888".to_owned()));
    let lease = &configuration["leaderElection"];
    let (place, name) = (&lease["resourceNamespace"], &lease["resourceName"]);
    assert!(
        chart
            .find("Lease", place.as_str(), name.as_str().unwrap())
            .is_some()
    );
}

/// Two schedulers that allocate the same devices would give them out twice.
#[test]
fn all_pods_that_want_devices_go_to_the_one_scheduler_and_the_webhook_serves_it() {
    let Some(chart) = chart(SCHEDULER) else {
        return;
    };
    let policy = chart.find("MutatingAdmissionPolicy", None, "divvy-scheduler");
    let spec = &policy.unwrap()["spec"];
    assert_eq!(spec["reinvocationPolicy"], "IfNeeded");
    assert_eq!(spec["matchConstraints"].get("namespaceSelector"), None);
    let mutation = &spec["mutations"][0]["jsonPatch"]["expression"];
    assert_eq!(
        mutation.as_str().unwrap(),
        "variables.wantsDevices ? [JSONPatch{op: 'add', path: '/spec/schedulerName', value: 'divvy-scheduler'}] : []"
    );
    let controller = chart
        .find("Deployment", SYSTEM, "divvy-controller")
        .unwrap();
    assert!(
        controller
            .to_string()
            .contains("--scheduler=divvy-scheduler")
    );
    let webhook = chart
        .find("MutatingWebhookConfiguration", None, "divvy")
        .unwrap();
    for part in webhook["webhooks"].as_array().unwrap() {
        assert!(
            part["matchConditions"]
                .to_string()
                .contains("'divvy-scheduler'")
        );
    }
}

/// The scheduler of a pod as the API server admits it: policies, the webhook, and again the policies that matched before.
fn scheduler_of(spec: &Value, pod: &Value) -> String {
    let holds = |text: &Value, pod: &Value| {
        let mut context = cel::Context::default();
        context.add_variable("object", pod).unwrap();
        evaluate(text.as_str().unwrap(), &context) == cel::Value::Bool(true)
    };
    let mut conditions = spec["matchConditions"].as_array().unwrap().iter();
    let matched = conditions.all(|one| holds(&one["expression"], pod));
    let inventory = Inventory {
        sizes: [Bytes::gib(80)].into(),
        ..Inventory::default()
    };
    let injection = inject(pod, &inventory, Steps::Eighths).unwrap();
    let admitted = injection.map_or_else(|_| pod.clone(), |injection| injection.pod);
    let wants = &spec["variables"][0];
    assert_eq!(wants["name"], "wantsDevices");
    if matched && holds(&wants["expression"], &admitted) {
        "divvy-scheduler".to_owned()
    } else {
        pod["spec"]["schedulerName"].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_pod_with_any_form_of_request_goes_to_the_charts_scheduler_and_others_keep_theirs() {
    let Some(chart) = chart(SCHEDULER) else {
        return;
    };
    let policy = chart.find("MutatingAdmissionPolicy", None, "divvy-scheduler");
    let spec = &policy.unwrap()["spec"];
    let pod = |metadata: Value, container: Value, claims: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "schedulerName": "default-scheduler", "containers": [container] },
        });
        pod["metadata"]["name"] = json!("p");
        pod["spec"]["containers"][0]["name"] = json!("c");
        if !claims.is_null() {
            pod["spec"]["resourceClaims"] = claims;
        }
        pod
    };
    let marked = |metadata: Value| pod(metadata, json!({ "image": "x" }), Value::Null);
    let limited = |limits: Value| {
        let container = json!({ "image": "x", "resources": { "limits": limits } });
        pod(json!({}), container, Value::Null)
    };
    let label = json!({ "labels": { "clearml-injector/fraction": "0.750" } });
    let image = json!({ "image": "clearml/fractional-gpu:u22-cu12.3-8gb" });
    let claim = json!([{ "name": "own", "resourceClaimName": "own" }]);
    let asking = [
        marked(label.clone()),
        marked(json!({ "annotations": { "gpu-fraction": "0.5" } })),
        marked(
            json!({ "annotations": { "gpu-fraction": "0.5", "gpu-fraction-num-devices": "2" } }),
        ),
        marked(json!({ "annotations": { "gpu-memory": "4096" } })),
        limited(json!({ "clear.ml/fraction": "0.5" })),
        limited(json!({ "clear.ml/fraction-1": "500m", "nvidia.com/gpu": "1" })),
        limited(json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000" })),
        limited(json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50" })),
        limited(json!({ "nvidia.com/gpu": "1" })),
        limited(json!({ "nvidia.com/mig-1g.10gb": "1" })),
        limited(json!({ "deviceclass.resource.kubernetes.io/fraction.gpu.divvy.dev": "1" })),
        pod(json!({}), image, Value::Null),
        pod(json!({}), json!({ "image": "x" }), claim),
    ];
    for pod in asking {
        assert_eq!(scheduler_of(spec, &pod), "divvy-scheduler", "{pod}");
    }
    let plain = limited(json!({ "cpu": "1" }));
    assert_eq!(scheduler_of(spec, &plain), "default-scheduler");
    let mut other = marked(label);
    other["spec"]["schedulerName"] = json!("volcano");
    assert_eq!(scheduler_of(spec, &other), "volcano");
}

#[test]
fn an_extender_for_another_scheduler_has_one_replica_an_address_and_a_certificate() {
    let Some(chart) = chart(EXTENDER) else { return };
    let deployment = chart.find("Deployment", SYSTEM, "divvy-extender").unwrap();
    assert_eq!(deployment["spec"]["replicas"], 1);
    let arguments = arguments(&chart, 0);
    for argument in [
        "--listen=0.0.0.0:8888",
        "--tls-cert=/etc/divvy/tls/tls.crt",
        "--metrics",
    ] {
        assert!(arguments.contains(&argument.to_owned()), "{arguments:?}");
    }
    let service = chart.find("Service", SYSTEM, "divvy-extender").unwrap();
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.9");
    assert_eq!(service["spec"]["ports"][0]["port"], 443);
}

/// The scheduler calls the address, so that it is the name that decides whether the certificate is renewed.
#[test]
fn an_extender_with_a_certificate_of_its_own_has_the_secret_and_the_names_for_it() {
    let Some(chart) = chart(HTTPS) else { return };
    let arguments = arguments(&chart, 0);
    let names = [
        "--tls-name=10.96.0.9",
        "--tls-name=divvy-extender.divvy-system.svc",
    ];
    let there = |text: &&str| arguments.iter().position(|one| one == text).unwrap();
    assert!(there(&names[0]) < there(&names[1]), "{arguments:?}");
    assert!(arguments.contains(&"--tls-secret=divvy-extender-tls".to_owned()));
    let secret = chart.find("Secret", SYSTEM, "divvy-extender-tls").unwrap();
    assert_eq!(secret.get("data"), None);
    let service = chart.find("Service", SYSTEM, "divvy-extender").unwrap();
    assert_eq!(service["spec"]["ports"][0]["port"], 443);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let with = |more: &str| format!("extender.enabled=true,{more}");
    let both = with("extender.scheduler.enabled=true,extender.tls.mode=self");
    let nameless = with("extender.tls.mode=secret");
    let unused = with("extender.tls.secretName=a");
    for (values, text) in [
        (both.as_str(), "exclude each other"),
        (nameless.as_str(), "requires extender.tls.secretName"),
        (unused.as_str(), "requires extender.tls.mode=secret"),
        ("extender.tls.mode=maybe", "mode"),
        ("extender.scheduler.name=default-scheduler", "name"),
        ("extender.policy=fgd", "policy"),
        ("extender.weight=3", "weight"),
    ] {
        let Some(said) = refusal(&["--set", values]) else {
            return;
        };
        assert!(said.contains(text), "{values}: {said}");
    }
}
