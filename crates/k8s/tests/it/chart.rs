//! The chart, rendered by Helm with several values: every object is one of the API's, and what it says fits together.
//!
//! `cargo xtask test` fetches Helm; without it (`DIVVY_TEST_HELM`) these tests say so and check nothing.

mod extender;
mod metrics;
pub mod render;
mod typed;

use std::collections::BTreeSet;

use divvy_k8s::base::workload::WORKLOADS;
use divvy_k8s::controller::{Registration, webhooks};
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

use render::{Chart, chart, refusal};

/// Values that between them reach every branch of the templates.
const WAYS: &[&[&str]] = &[
    &[],
    &["--set", "carrier.enabled=true"],
    &[
        "--set",
        "carrier.enabled=true,carrier.nodeSelector.pool=old,node.nodeSelector.gpu=yes,uninstall.force=true,uninstall.keepState=true",
    ],
    &["--set", "node.update=recreate,uninstall.enabled=false"],
    &[
        "--set",
        "node.enabled=false",
        "--set",
        "policies.pods=false",
    ],
    &[
        "--set",
        "webhook.tls.mode=certManager",
        "--set",
        "webhook.tls.issuerRef.name=ca,webhook.tls.issuerRef.kind=ClusterIssuer",
    ],
    &[
        "--set",
        "webhook.tls.mode=secret,webhook.tls.secretName=mine,webhook.tls.caBundle=Y2E=",
    ],
    &[
        "--set",
        "image.digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "--set",
        "imagePullSecrets[0].name=pull,controller.anyFraction=true,controller.replicas=1",
    ],
    &[
        "--set-json",
        r#"node={"nodeSelector":{"nvidia.com/gpu.present":"true"},"kubeletDir":"/data/kubelet","agent":{"args":["--set","on-bypass=kill"],"claimsOnly":false,"env":[{"name":"A","value":"b"}]},"plugin":{"env":[{"name":"A","value":"b"}]},"affinity":{"nodeAffinity":{}}}"#,
        "--set-json",
        r#"controller={"affinity":{"podAntiAffinity":{}},"tolerations":[{"operator":"Exists"}],"nodeSelector":{"a":"b"},"env":[{"name":"A","value":"b"}]}"#,
    ],
    GLUE,
    TEAMS,
    METRICS,
    SERVICES,
    ENFORCER,
    EXTENDER,
    HTTPS,
    SCHEDULER,
];

/// The extender for a scheduler of one's own, and for the chart's.
const EXTENDER: &[&str] = &[
    "--set",
    "extender.enabled=true,extender.tls.mode=secret,extender.tls.secretName=mine,extender.clusterIP=10.96.0.9,metrics.enabled=true",
    "--set-json",
    r#"extender={"nodeSelector":{"a":"b"},"affinity":{"podAffinity":{}},"tolerations":[{"operator":"Exists"}],"env":[{"name":"A","value":"b"}]}"#,
];
const HTTPS: &[&str] = &[
    "--set",
    "extender.enabled=true,extender.tls.mode=self,extender.clusterIP=10.96.0.9",
];
const SCHEDULER: &[&str] = &[
    "--set",
    "extender.enabled=true,extender.scheduler.enabled=true,metrics.enabled=true,metrics.serviceMonitor.enabled=true",
    "--set",
    "metrics.networkPolicy.enabled=true",
];

/// Everything about metrics.
const METRICS: &[&str] = &[
    "--set",
    "metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.podMonitor.labels.release=prometheus",
    "--set",
    "metrics.dashboard.enabled=true,metrics.networkPolicy.enabled=true",
    "--set",
    "metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.release=prometheus",
];

/// Metrics of pods that a Prometheus finds by Services.
const SERVICES: &[&str] = &[
    "--set",
    "metrics.enabled=true,metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=prometheus",
];

/// Two namespaces whose pods the enforcer limits, on the nodes with a label.
pub const ENFORCER: &[&str] = &[
    "--set",
    "enforcer.enabled=true,enforcer.namespaces={team-a,team-b},enforcer.nodeSelector.gpus=nvidia",
];

/// A glue with the shape of the seeds' values.
const GLUE: &[&str] = &[
    "--set",
    "glue.enabled=true,glue.credentialsSecret=clearml,glue.namespace=jobs",
    "--set-json",
    r#"glue.agentk8sglue={"queues":{"default0500":{"templateOverrides":{"labels":{"clearml-injector/fraction":"0.500"}},"queueSettings":{"maxPods":10}}}}"#,
];

/// Projects of Kueue, in departments and outside of them.
const TEAMS: &[&str] = &[
    "--set-json",
    r#"kueue={"enabled":true,"gpuMemory":"81050Mi","departments":[{"name":"research","quota":4,"overQuota":false},{"name":"web","limit":"6.5","weight":2}],"projects":[{"name":"vision","quota":"1.5","limit":2,"weight":3,"namespaces":["vision","eyes"],"department":"research"},{"name":"nlp","quota":0.125,"overQuota":false,"namespaces":["nlp"]},{"name":"shop","quota":2,"namespaces":["shop"],"department":"web"},{"name":"spare","quota":0,"weight":0,"namespaces":["spare"]}]}"#,
];

/// Written down apart from the templates: one that is deleted takes a promise with it, the policies among them.
const OBJECTS: &[&str] = &[
    "ClusterRole divvy-controller",
    "ClusterRole divvy-node",
    "ClusterRole divvy-project-reports",
    "ClusterRole divvy-uninstall-finish",
    "ClusterRole divvy-uninstall-prepare",
    "ClusterRoleBinding divvy-controller",
    "ClusterRoleBinding divvy-node",
    "ClusterRoleBinding divvy-uninstall-finish",
    "ClusterRoleBinding divvy-uninstall-prepare",
    "CustomResourceDefinition projectreports.divvy.dev",
    "DaemonSet divvy-node",
    "Deployment divvy-controller",
    "Deployment divvy-reconciler",
    "Job divvy-uninstall-finish",
    "Job divvy-uninstall-prepare",
    "Lease divvy-controller",
    "MutatingWebhookConfiguration divvy",
    "PodDisruptionBudget divvy-controller",
    "PodDisruptionBudget divvy-reconciler",
    "Role divvy-controller",
    "Role divvy-uninstall-finish",
    "Role divvy-uninstall-prepare",
    "RoleBinding divvy-controller",
    "RoleBinding divvy-uninstall-finish",
    "RoleBinding divvy-uninstall-prepare",
    "Secret divvy-webhook-tls",
    "Service divvy-webhook",
    "ServiceAccount divvy-controller",
    "ServiceAccount divvy-node",
    "ServiceAccount divvy-uninstall-finish",
    "ServiceAccount divvy-uninstall-prepare",
    "ValidatingAdmissionPolicy divvy-folders",
    "ValidatingAdmissionPolicy divvy-pods",
    "ValidatingAdmissionPolicy divvy-slices",
    "ValidatingAdmissionPolicyBinding divvy-folders",
    "ValidatingAdmissionPolicyBinding divvy-pods",
    "ValidatingAdmissionPolicyBinding divvy-slices",
];

#[test]
fn every_way_of_the_chart_makes_its_objects() {
    let carrier = [
        "CustomResourceDefinition gpushares.divvy.dev",
        "Namespace divvy-carriers",
    ];
    let glue = [
        "ConfigMap divvy-glue",
        "Deployment divvy-glue",
        "Role divvy-glue",
        "RoleBinding divvy-glue",
        "ServiceAccount divvy-glue",
    ];
    let metrics = [
        "ConfigMap divvy-dashboard",
        "NetworkPolicy divvy-controller-metrics",
        "NetworkPolicy divvy-node-metrics",
        "NetworkPolicy divvy-reconciler-metrics",
        "PodMonitor divvy",
        "PrometheusRule divvy",
    ];
    let services = [
        "Service divvy-controller-metrics",
        "Service divvy-node-metrics",
        "Service divvy-reconciler-metrics",
        "ServiceMonitor divvy",
    ];
    let extender = [
        "ClusterRole divvy-extender",
        "ClusterRoleBinding divvy-extender",
        "ConfigMap divvy-extender",
        "Deployment divvy-extender",
        "Role divvy-extender",
        "RoleBinding divvy-extender",
        "Service divvy-extender",
        "ServiceAccount divvy-extender",
    ];
    let https = [&extender[..], &["Secret divvy-extender-tls"]].concat();
    let scheduler = [
        "ClusterRole divvy-extender",
        "ClusterRoleBinding divvy-extender",
        "ClusterRoleBinding divvy-kube-scheduler",
        "ClusterRoleBinding divvy-volume-scheduler",
        "ConfigMap divvy-extender",
        "ConfigMap divvy-scheduler",
        "Deployment divvy-extender",
        "Lease divvy-scheduler",
        "MutatingAdmissionPolicy divvy-scheduler",
        "MutatingAdmissionPolicyBinding divvy-scheduler",
        "NetworkPolicy divvy-controller-metrics",
        "NetworkPolicy divvy-extender-metrics",
        "NetworkPolicy divvy-node-metrics",
        "NetworkPolicy divvy-reconciler-metrics",
        "PodDisruptionBudget divvy-extender",
        "Role divvy-extender",
        "RoleBinding divvy-extender",
        "Service divvy-controller-metrics",
        "Service divvy-extender-metrics",
        "Service divvy-node-metrics",
        "Service divvy-reconciler-metrics",
        "ServiceAccount divvy-extender",
        "ServiceMonitor divvy",
    ];
    // The name of the template is the same in each namespace.
    let enforcer = [
        "ClusterRole divvy-enforcer",
        "ClusterRoleBinding divvy-enforcer",
        "DaemonSet divvy-enforcer",
        "DeviceClass limit.divvy.dev",
        "MutatingAdmissionPolicy divvy-limit",
        "MutatingAdmissionPolicyBinding divvy-limit",
        "ResourceClaimTemplate divvy-limit",
        "ValidatingAdmissionPolicy divvy-folders-enforced",
        "ValidatingAdmissionPolicy divvy-limit",
        "ValidatingAdmissionPolicy divvy-pods-enforced",
        "ValidatingAdmissionPolicyBinding divvy-folders-enforced",
        "ValidatingAdmissionPolicyBinding divvy-limit",
        "ValidatingAdmissionPolicyBinding divvy-pods-enforced",
    ];
    for (way, more) in [
        (WAYS[0], &[][..]),
        (WAYS[1], &carrier[..]),
        (GLUE, &glue[..]),
        (METRICS, &metrics[..]),
        (SERVICES, &services[..]),
        (ENFORCER, &enforcer[..]),
        (EXTENDER, &extender[..]),
        (HTTPS, &https[..]),
        (SCHEDULER, &scheduler[..]),
    ] {
        let Some(chart) = chart(way) else { return };
        let made: BTreeSet<String> = chart.objects.iter().map(render::called).collect();
        let named = OBJECTS.iter().chain(more).map(|name| (*name).to_owned());
        assert_eq!(made, named.collect(), "{way:?}");
    }
}

/// Each node has one of the two, by its labels; without labels every node is the enforcer's.
#[test]
fn a_label_chooses_the_nodes_of_the_enforcer_and_no_node_has_two_node_parts() {
    let Some(both) = chart(ENFORCER) else { return };
    let spec = |chart: &Chart, name: &str| {
        let found = chart.find("DaemonSet", Some("divvy-system"), name);
        found.map(|set| set["spec"]["template"]["spec"].clone())
    };
    let enforcer = spec(&both, "divvy-enforcer").unwrap();
    let node = spec(&both, "divvy-node").unwrap();
    assert_eq!(enforcer["nodeSelector"]["gpus"], "nvidia");
    assert_eq!(node["nodeSelector"]["gpus"], Value::Null);
    let terms = &node["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let not = json!([{ "matchExpressions": [{ "key": "gpus", "operator": "NotIn", "values": ["nvidia"] }] }]);
    assert_eq!(terms["nodeSelectorTerms"], not);
    let flags = |spec: &Value| spec["containers"][1]["args"].to_string();
    assert!(flags(&enforcer).contains("--enforce") && !flags(&node).contains("--enforce"));
    let every = chart(&["--set", "enforcer.enabled=true"]).unwrap();
    assert!(spec(&every, "divvy-enforcer").is_some() && spec(&every, "divvy-node").is_none());
}

/// Only the kubelet of 1.33 and newer calls the newest of several sockets of one driver.
#[test]
fn an_update_starts_the_new_pod_first_where_kubelet_can_have_two() {
    let surge = |values: &[&str]| {
        let chart = chart(values)?;
        let mut objects = chart.objects.iter();
        let node = objects
            .find(|object| object["kind"] == "DaemonSet")
            .unwrap();
        let pod = &node["spec"]["template"]["spec"];
        let plugin = &pod["containers"][1];
        assert_eq!(plugin["readinessProbe"]["httpGet"]["path"], "/readyz");
        assert!(plugin["args"].to_string().contains("--instance=$(POD_UID)"));
        let update = &node["spec"]["updateStrategy"]["rollingUpdate"];
        Some((update["maxSurge"].clone(), update["maxUnavailable"].clone()))
    };
    let Some(new) = surge(&["--kube-version", "1.33.0"]) else {
        return;
    };
    let (first, after) = ((json!(1), json!(0)), (json!(0), json!("10%")));
    assert_eq!(new, first);
    assert_eq!(surge(&["--kube-version", "1.32.9"]).unwrap(), after);
    assert_eq!(surge(&["--set", "node.update=recreate"]).unwrap(), after);
    let forced = ["--kube-version", "1.32.9", "--set", "node.update=surge"];
    assert_eq!(surge(&forced).unwrap(), first);
}

#[test]
fn the_agent_gives_gpus_to_claims_alone_unless_a_value_opens_the_node() {
    let open = ["--set", "node.agent.claimsOnly=false"];
    // The pod's uid, as the daemon serves no other pod.
    let pod = "--node-pod=$(POD_UID)";
    for (values, expected) in [
        (&[][..], &[pod, "--set", "claims-only=true"][..]),
        (&open[..], &[pod][..]),
    ] {
        let Some(chart) = chart(values) else { return };
        let mut objects = chart.objects.iter();
        let node = objects.find(|object| object["kind"] == "DaemonSet");
        let agent = &node.unwrap()["spec"]["template"]["spec"]["containers"][0];
        let args = agent["args"].as_array().unwrap();
        assert_eq!(args, expected, "{values:?}");
    }
}

/// Kubelet runs a probe in the mount namespace of its container's first process: the agent's stays in the image.
#[test]
fn the_agents_probe_is_a_program_of_its_image_and_asks_a_socket_that_it_mounts() {
    let Some(chart) = chart(&[]) else { return };
    let node = chart
        .objects
        .iter()
        .find(|object| object["kind"] == "DaemonSet");
    let containers = &node.unwrap()["spec"]["template"]["spec"]["containers"];
    let of_name = |name: &str| {
        let mut all = containers.as_array().unwrap().iter();
        all.find(|one| one["name"] == name).unwrap().clone()
    };
    let (agent, plugin) = (of_name("agent"), of_name("plugin"));
    assert_eq!(agent["image"], plugin["image"]);
    let image = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/images/kubernetes/Dockerfile"
    );
    let image = std::fs::read_to_string(image).unwrap();
    for kind in ["livenessProbe", "startupProbe"] {
        let probe = &agent[kind];
        let command = probe["exec"]["command"].as_array().unwrap().iter();
        let command: Vec<&str> = command.map(|word| word.as_str().unwrap()).collect();
        assert_eq!(command[0], "/usr/local/bin/divvy-k8s");
        let copies = |line: &str| {
            line.starts_with("COPY ")
                && line.contains(" bin/divvy-k8s ")
                && line.ends_with(" /usr/local/bin/")
        };
        assert!(image.lines().any(copies), "the image has no {}", command[0]);
        let socket = command
            .iter()
            .find_map(|word| word.strip_prefix("--agent="));
        let folder = socket.unwrap().rsplit_once('/').unwrap().0;
        let mut mounts = agent["volumeMounts"].as_array().unwrap().iter();
        assert!(mounts.any(|mount| mount["mountPath"] == folder), "{folder}");
        // The program knows these words, and answers before kubelet gives up.
        let elsewhere = command[1..]
            .iter()
            .map(|word| word.replace(folder, "/nonexistent"));
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
            .args(elsewhere)
            .output_bounded()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("no daemon listens on /nonexistent"), "{said}");
        let seconds = command
            .iter()
            .find_map(|word| word.strip_prefix("--seconds="));
        let seconds: u64 = seconds.unwrap().parse().unwrap();
        assert!(probe["timeoutSeconds"].as_u64().unwrap() > seconds);
    }
}

#[test]
fn every_object_is_one_of_the_api_and_no_field_is_unknown_to_it() {
    for way in WAYS {
        let Some(chart) = chart(way) else { return };
        for object in &chart.objects {
            if let Err(why) = typed::check(object) {
                panic!("{} with {way:?}: {why}", render::called(object));
            }
        }
    }
}

#[test]
fn no_object_is_there_twice_and_everything_namespaced_says_where() {
    for way in WAYS {
        let Some(chart) = chart(way) else { return };
        let mut seen = BTreeSet::new();
        for object in &chart.objects {
            let namespace = object.pointer("/metadata/namespace");
            assert_eq!(
                namespace.is_some(),
                !typed::CLUSTER_WIDE.contains(&object["kind"].as_str().unwrap_or_default()),
                "{}",
                render::called(object)
            );
            assert!(
                seen.insert((render::called(object), namespace.map(Value::to_string))),
                "{} twice",
                render::called(object)
            );
            assert_eq!(
                object["metadata"]["labels"]["app.kubernetes.io/instance"],
                "divvy",
                "{} does not say whose it is",
                render::called(object)
            );
        }
    }
}

#[test]
fn what_is_named_is_there() {
    for way in WAYS {
        let Some(chart) = chart(way) else { return };
        for (from, kind, namespace, name) in references(&chart) {
            // What the values name, and what cert-manager makes, is not the chart's.
            let foreign = ["mine", "pull", "clearml"].contains(&name.as_str())
                || name.starts_with("system:")
                || (kind == "Secret" && chart.has("Certificate"));
            assert!(
                foreign || chart.find(&kind, namespace.as_deref(), &name).is_some(),
                "{from} names the {kind} {name}, which is not there with {way:?}"
            );
        }
    }
}

/// Objects that objects name: service accounts, roles, policies, services, secrets.
fn references(chart: &Chart) -> Vec<(String, String, Option<String>, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut found = Vec::new();
    for object in &chart.objects {
        let from = render::called(object);
        let namespace = text(&object["metadata"]["namespace"]);
        let mut name = |kind: &str, namespace: Option<String>, name: &Value| {
            if let Some(name) = text(name) {
                found.push((from.clone(), kind.to_owned(), namespace, name));
            }
        };
        let pod = &object["spec"]["template"]["spec"];
        name(
            "ServiceAccount",
            namespace.clone(),
            &pod["serviceAccountName"],
        );
        for volume in pod["volumes"].as_array().into_iter().flatten() {
            name("Secret", namespace.clone(), &volume["secret"]["secretName"]);
            name("ConfigMap", namespace.clone(), &volume["configMap"]["name"]);
        }
        if let Some(kind) = text(&object["roleRef"]["kind"]) {
            let place = namespace.clone().filter(|_| kind == "Role");
            name(&kind, place, &object["roleRef"]["name"]);
        }
        for subject in object["subjects"].as_array().into_iter().flatten() {
            name(
                "ServiceAccount",
                text(&subject["namespace"]),
                &subject["name"],
            );
        }
        for webhook in object["webhooks"].as_array().into_iter().flatten() {
            let service = &webhook["clientConfig"]["service"];
            name("Service", text(&service["namespace"]), &service["name"]);
        }
        let kind = object["kind"].as_str().unwrap_or_default();
        let policy = kind.trim_end_matches("Binding").to_owned();
        name(&policy, None, &object["spec"]["policyName"]);
    }
    found
}

#[test]
fn selectors_find_their_pods_and_ports_are_those_of_containers() {
    for way in WAYS {
        let Some(chart) = chart(way) else { return };
        let pods: Vec<&Value> = chart
            .objects
            .iter()
            .map(|object| &object["spec"]["template"])
            .filter(|template| template.is_object())
            .collect();
        for object in &chart.objects {
            let selector = match object["kind"].as_str() {
                Some("Service") => &object["spec"]["selector"],
                Some("Deployment" | "DaemonSet" | "PodDisruptionBudget") => {
                    &object["spec"]["selector"]["matchLabels"]
                }
                _ => continue,
            };
            let wanted = selector.as_object().expect("a selector has labels");
            let finds = |template: &&&Value| {
                let labels = &template["metadata"]["labels"];
                wanted.iter().all(|(key, value)| &labels[key] == value)
            };
            let found: Vec<&&Value> = pods.iter().filter(finds).collect();
            assert_eq!(found.len(), 1, "{}", render::called(object));
            for port in object["spec"]["ports"].as_array().into_iter().flatten() {
                let containers = found[0]["spec"]["containers"].as_array().expect("a list");
                let mut names = containers
                    .iter()
                    .flat_map(|container| container["ports"].as_array().into_iter().flatten());
                assert!(
                    names.any(|open| open["name"] == port["targetPort"]),
                    "{}",
                    render::called(object)
                );
            }
        }
    }
}

#[test]
fn only_the_agent_is_privileged_and_only_its_pod_sees_the_node() {
    for way in WAYS {
        let Some(chart) = chart(way) else { return };
        for object in &chart.objects {
            let pod = &object["spec"]["template"]["spec"];
            let node = object["kind"] == "DaemonSet";
            assert_eq!(pod["hostPID"].as_bool().unwrap_or(false), node);
            for container in pod["containers"].as_array().into_iter().flatten() {
                let context = &container["securityContext"];
                let agent = node && container["name"] == "agent";
                assert_eq!(context["privileged"].as_bool().unwrap_or(false), agent);
                if !agent {
                    assert_eq!(context["allowPrivilegeEscalation"], false);
                    assert_eq!(context["readOnlyRootFilesystem"], true);
                    assert_eq!(context["capabilities"]["drop"][0], "ALL");
                }
                assert_eq!(
                    context["runAsNonRoot"].as_bool().unwrap_or(false),
                    object["kind"] == "Deployment" || object["kind"] == "Job"
                );
            }
            for volume in pod["volumes"].as_array().into_iter().flatten() {
                let Some(path) = volume["hostPath"]["path"].as_str() else {
                    continue;
                };
                assert!(
                    node && [
                        "/var/lib/divvy",
                        "/run/divvy",
                        "kubelet/plugins",
                        "kubelet/plugins_registry",
                        "kubelet/device-plugins",
                        "kubelet/pod-resources"
                    ]
                    .iter()
                    .any(|end| path.ends_with(end)),
                    "{path}"
                );
            }
        }
    }
}

#[test]
fn no_role_is_wider_than_what_the_pieces_do() {
    for way in WAYS {
        let Some(chart) = chart(way) else { return };
        for object in &chart.objects {
            for rule in object["rules"].as_array().into_iter().flatten() {
                let words = ["apiGroups", "resources", "verbs"]
                    .iter()
                    .flat_map(|key| rule[*key].as_array().into_iter().flatten());
                assert!(
                    words.clone().all(|word| word != "*"),
                    "{}: {rule}",
                    render::called(object)
                );
                let writes = rule["verbs"].as_array().expect("verbs").iter().any(|verb| {
                    [
                        "create",
                        "update",
                        "patch",
                        "delete",
                        "escalate",
                        "bind",
                        "impersonate",
                    ]
                    .contains(&verb.as_str().unwrap_or_default())
                });
                let resources = rule["resources"].as_array().expect("resources");
                // Secrets, leases and webhooks: the chart's own ones, by name. The glue's records have names that nobody knows before,
                // and a namespace of their own.
                let records = object["kind"] == "Role" && object["metadata"]["namespace"] == "jobs";
                for named in ["secrets", "leases", "mutatingwebhookconfigurations"] {
                    assert!(
                        !resources.iter().any(|resource| resource == named)
                            || rule["resourceNames"].is_array()
                            || records,
                        "{}: {rule}",
                        render::called(object)
                    );
                }
                // A limit is what the status of a claim says, and nobody of ours writes that.
                assert!(
                    !writes
                        || !resources
                            .iter()
                            .any(|resource| resource == "resourceclaims/status"),
                    "{}: {rule}",
                    render::called(object)
                );
            }
        }
    }
}

#[test]
fn the_api_server_asks_about_what_the_webhook_answers() {
    for schedulers in [&[][..], &["volcano".to_owned(), "my-own".to_owned()]] {
        let set = format!("controller.schedulers={{{}}}", schedulers.join(","));
        let way = [String::from("--set"), set];
        let way: Vec<&str> = match schedulers {
            [] => Vec::new(),
            _ => way.iter().map(String::as_str).collect(),
        };
        let Some(chart) = chart(&way) else { return };
        let registration = Registration {
            name: "divvy",
            namespace: "divvy-system",
            service: "divvy-webhook",
            all_namespaces: false,
            schedulers,
        };
        let told = chart.find("MutatingWebhookConfiguration", None, "divvy");
        assert_eq!(
            told.expect("the chart has one")["webhooks"],
            registration.object()["webhooks"]
        );
        let controller = chart.find("Deployment", Some("divvy-system"), "divvy-controller");
        let arguments = controller.expect("the chart has one").to_string();
        for scheduler in schedulers {
            assert!(arguments.contains(&format!("--scheduler={scheduler}")));
        }
    }
}

#[test]
fn the_charts_copy_of_the_webhooks_is_up_to_date() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/helm/divvy/files/webhooks.json"
    );
    let text = serde_json::to_string_pretty(&webhooks(&[])).unwrap() + "\n";
    if std::env::var_os("DIVVY_RECORD").is_some() {
        std::fs::create_dir_all(std::path::Path::new(file).parent().unwrap()).unwrap();
        std::fs::write(file, &text).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(file).unwrap_or_default(),
        text,
        "cargo xtask bless writes it anew"
    );
}

/// The definition of ProjectReports, as the chart has it without its labels.
#[test]
fn the_charts_definition_of_project_reports_is_up_to_date() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/helm/divvy/templates/controller/projectreport.yaml"
    );
    let text = yaml_serde::to_string(&divvy_k8s::teams::project::report::definition()).unwrap();
    let labelled = text.replacen(
        "  name: projectreports.divvy.dev\n",
        "  name: projectreports.divvy.dev\n  labels: {{- include \"divvy.labels\" . | nindent 4 }}\n",
        1,
    );
    if std::env::var_os("DIVVY_RECORD").is_some() {
        std::fs::write(file, &labelled).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(file).unwrap_or_default(),
        labelled,
        "cargo xtask bless writes it anew"
    );
}

/// The webhook and the reconcile loops have pods of their own: no fault of one is one of the other.
#[test]
fn the_webhook_shares_no_pod_with_the_reconciler() {
    for values in [
        &[][..],
        &["--set", "carrier.enabled=true"],
        &[
            "--set",
            "webhook.tls.mode=secret,webhook.tls.secretName=tls,webhook.tls.caBundle=YQ==",
        ],
    ] {
        let Some(chart) = chart(values) else { return };
        let of = |piece: &str| {
            let name = format!("divvy-{piece}");
            let deployment = chart.find("Deployment", Some("divvy-system"), &name);
            deployment.unwrap()["spec"].clone()
        };
        let service = chart.find("Service", Some("divvy-system"), "divvy-webhook");
        let selector = &service.unwrap()["spec"]["selector"];
        for (piece, part) in [("controller", "webhook"), ("reconciler", "reconcile")] {
            let spec = of(piece);
            let pod = &spec["template"];
            let is_selected = pod["metadata"]["labels"] == *selector;
            assert_eq!(is_selected, part == "webhook", "{values:?}");
            let containers = pod["spec"]["containers"].as_array().unwrap();
            assert_eq!(
                containers.len(),
                1,
                "a pod is ready when all containers are"
            );
            assert!(containers[0]["resources"]["limits"]["memory"].is_string());
            let args = containers[0]["args"].as_array().unwrap();
            assert!(args.contains(&json!(format!("--only={part}"))), "{args:?}");
            // The program knows these words.
            let words = args.iter().map(|word| word.as_str().unwrap());
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
                .arg("controller")
                .args(words)
                .env("KUBECONFIG", "/nonexistent/kubeconfig")
                .env_remove("KUBERNETES_SERVICE_HOST")
                .output_bounded()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("KUBECONFIG"), "{said}");
        }
    }
}

/// The controller watches every kind that the webhook mutates.
#[test]
fn the_controller_may_list_every_kind_of_workload() {
    let Some(chart) = chart(&[]) else { return };
    let role = chart.find("ClusterRole", None, "divvy-controller").unwrap();
    let rules = role["rules"].as_array().unwrap();
    let has = |rule: &Value, key: &str, word: &str| {
        rule[key].as_array().unwrap().iter().any(|one| one == word)
    };
    for workload in WORKLOADS {
        let rule = rules.iter().find(|rule| {
            has(rule, "apiGroups", workload.group) && has(rule, "resources", workload.resource)
        });
        let rule = rule.unwrap_or_else(|| panic!("no rule for {}", workload.resource));
        assert_eq!(rule["verbs"], json!(["list", "watch"]));
    }
}

#[test]
fn the_policies_on_pods_cover_the_served_namespaces_only() {
    let Some(chart) = chart(&[]) else { return };
    for name in ["divvy-pods", "divvy-folders"] {
        covers_served_namespaces(&chart, name);
    }
}

fn covers_served_namespaces(chart: &Chart, name: &str) {
    let spec = |kind: &str| {
        let found = chart.find(kind, None, name);
        &found.expect("the chart has one")["spec"]
    };
    let constraints = &spec("ValidatingAdmissionPolicy")["matchConstraints"];
    assert_eq!(
        constraints["namespaceSelector"],
        json!({ "matchLabels": { "divvy.dev/inject": "enabled" } })
    );
    let binding = spec("ValidatingAdmissionPolicyBinding");
    assert_eq!(binding.get("matchResources"), None, "{binding}");
}

/// Helm deletes objects of a hook by its policy alone: without it they would be left.
#[test]
fn only_uninstallations_have_hooks_and_all_of_their_objects_go() {
    for way in WAYS {
        let Some(chart) = chart(way) else { return };
        for object in &chart.objects {
            let annotations = &object["metadata"]["annotations"];
            let Some(hook) = annotations["helm.sh/hook"].as_str() else {
                continue;
            };
            let called = render::called(object);
            let [event, verb] = if called.ends_with("-prepare") {
                ["pre-delete", "prepare"]
            } else {
                ["post-delete", "finish"]
            };
            assert_eq!(hook, event, "{called}");
            assert_eq!(
                annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded",
                "{called}"
            );
            if object["kind"] != "Job" {
                continue;
            }
            let spec = &object["spec"];
            assert!(spec["activeDeadlineSeconds"].is_u64(), "{called}");
            assert_eq!(spec["backoffLimit"], 0, "{called}");
            let container = &spec["template"]["spec"]["containers"][0];
            let words = ["command", "args"].map(|key| container[key].as_array().unwrap().clone());
            let words: Vec<String> = words
                .concat()
                .iter()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect();
            assert_eq!(words[1..3], ["uninstall", verb]);
            // The program knows these words; without a cluster it says so.
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
                .args(&words[1..])
                .env("KUBECONFIG", "/nonexistent")
                .env_remove("KUBERNETES_SERVICE_HOST")
                .output_bounded()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{words:?}: {said}");
        }
    }
}

#[test]
fn the_glue_has_rights_in_one_namespace_only() {
    let Some(chart) = chart(GLUE) else { return };
    let mut bindings = Vec::new();
    for object in &chart.objects {
        let mut subjects = object["subjects"].as_array().into_iter().flatten();
        if subjects.any(|subject| subject["name"] == "divvy-glue") {
            bindings.push((&object["kind"], &object["metadata"]["namespace"]));
        }
    }
    assert_eq!(bindings, [(&json!("RoleBinding"), &json!("jobs"))]);
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for (wrong, word) in [
        (&["--set", "nodes.enabled=true"][..], "nodes"),
        (&["--set", "controller.replicas=0"], "replicas"),
        (&["--set", "webhook.tls.mode=none"], "mode"),
        (&["--set", "image.digest=latest"], "digest"),
        (&["--set", "webhook.tls.mode=secret"], "caBundle"),
        (&["--set", "webhook.tls.mode=certManager"], "issuerRef"),
        (&["--set", "webhook.timeoutSeconds=60"], "timeoutSeconds"),
        (&["--set", "glue.enabled=true"], "glue.namespace"),
        (
            &["--set", "enforcer.enabled=true,carrier.enabled=true"],
            "exclude",
        ),
        (
            &[
                "--set",
                "metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true",
            ],
            "read every page twice",
        ),
        (&["--set", "policies.hostPaths={data}"], "hostPaths"),
        (&["--set", "policies.hostPaths={/data/}"], "hostPaths"),
        (
            &["--set", "glue.enabled=true,glue.namespace=jobs"],
            "credentialsSecret",
        ),
        (
            &[
                "--set",
                "glue.enabled=true,glue.namespace=divvy-system,glue.credentialsSecret=x",
            ],
            "the release's namespace",
        ),
    ] {
        let Some(said) = refusal(wrong) else { return };
        assert!(said.contains(word), "{wrong:?}: {said}");
    }
}

/// The chart and the commands write the same objects, but for the labels that say who wrote them.
#[test]
fn the_chart_renders_projects_as_the_command_writes_them() {
    let Some(chart) = chart(TEAMS) else { return };
    let cluster = crate::kueue::Cluster::start();
    for name in ["eyes", "shop", "spare"] {
        cluster.namespace(name);
    }
    for words in [
        "department add research --quota 4 --no-over-quota",
        "department add web --limit 6.5 --weight 2",
        "project add vision --quota 1.5 --limit 2 --weight 3 --namespace vision,eyes --department research",
        "project add nlp --quota 0.125 --no-over-quota --namespace nlp",
        "project add shop --quota 2 --namespace shop --department web",
        "project add spare --quota 0 --weight 0 --namespace spare",
    ] {
        cluster.done(words);
    }
    let bare = |object: &Value| {
        let mut object = object.clone();
        let mark = object["metadata"]["labels"]["divvy.dev/kueue"].clone();
        object["metadata"]["labels"] = json!({ "divvy.dev/kueue": mark });
        object
    };
    let of_kueue = |object: &&Value| {
        object["apiVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with("kueue"))
    };
    let sorted = |mut all: Vec<Value>| {
        all.sort_by_key(|object| {
            (
                render::called(object),
                object["metadata"]["namespace"].to_string(),
            )
        });
        all
    };
    let rendered = sorted(chart.objects.iter().filter(of_kueue).map(bare).collect());
    let written = sorted(cluster.objects().iter().map(bare).collect());
    assert_eq!(rendered.len(), 14);
    assert_eq!(rendered, written);
}

#[test]
fn projects_that_cannot_be_are_refused_by_the_chart() {
    let kueue = |rest: &str| format!(r#"kueue={{"enabled":true,"gpuMemory":"80Gi",{rest}}}"#);
    for (values, text) in [
        (
            r#"kueue={"enabled":true,"projects":[{"name":"a","quota":1,"namespaces":["a"]}]}"#
                .to_owned(),
            "gpuMemory is required",
        ),
        (
            kueue(r#""projects":[{"name":"a","quota":1,"namespaces":["a"],"department":"b"}]"#),
            "none of kueue.departments",
        ),
        (
            kueue(r#""projects":[{"name":"a","quota":2,"limit":1,"namespaces":["a"]}]"#),
            "below its quota",
        ),
        (
            kueue(
                r#""projects":[{"name":"a","quota":1,"namespaces":["a"]},{"name":"b","quota":1,"namespaces":["a"]}]"#,
            ),
            "in two projects",
        ),
        (
            kueue(
                r#""departments":[{"name":"d","quota":1}],"projects":[{"name":"a","quota":1.5,"namespaces":["a"],"department":"d"}]"#,
            ),
            "more than its quota",
        ),
        (
            kueue(r#""projects":[{"name":"A","quota":1,"namespaces":["a"]}]"#),
            "pattern",
        ),
        (
            kueue(r#""projects":[{"name":"a","quota":"1.0005","namespaces":["a"]}]"#),
            "quota",
        ),
        (
            kueue(r#""projects":[{"name":"a","quota":1}]"#),
            "namespaces",
        ),
        (
            kueue(r#""projects":[{"name":"a","quota":1,"namespaces":["a"],"members":["b"]}]"#),
            "members",
        ),
    ] {
        let Some(said) = refusal(&["--set-json", &values]) else {
            return;
        };
        assert!(said.contains(text), "{values}: {said}");
    }
}
