//! What the chart makes for Prometheus and Grafana: the rules and boards of its files, unchanged.

use serde_json::Value;

use super::render::{self, Chart, chart};
use super::{METRICS, SERVICES};

/// The rules of machines, and those of the cluster.
const RULES: [&str; 2] = [
    include_str!("../../../../../deploy/helm/divvy/files/prometheus/rules.yml"),
    include_str!("../../../../../deploy/helm/divvy/files/prometheus/kubernetes.yml"),
];

fn object<'c>(chart: &'c Chart, name: &str) -> &'c Value {
    let mut objects = chart.objects.iter();
    let found = objects.find(|object| render::called(object) == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_rules_and_boards_in_the_cluster_are_those_of_the_files() {
    let Some(chart) = chart(METRICS) else { return };
    let mut groups: Vec<Value> = Vec::new();
    for text in RULES {
        let mut file: Value = yaml_serde::from_str(text).unwrap();
        let Value::Array(own) = file["groups"].take() else {
            panic!("no groups: {text}");
        };
        groups.extend(own);
    }
    let rules = object(&chart, "PrometheusRule divvy");
    assert_eq!(rules["spec"]["groups"], Value::Array(groups));
    assert_eq!(rules["metadata"]["labels"]["release"], "prometheus");

    let boards = object(&chart, "ConfigMap divvy-dashboard");
    for (key, uid) in [
        ("divvy-node.json", "divvy-node"),
        ("divvy-kubernetes.json", "divvy-kubernetes"),
    ] {
        let text = boards["data"][key].as_str().unwrap();
        let board: Value = serde_json::from_str(text).unwrap();
        assert_eq!(board["uid"], uid);
    }
    assert_eq!(boards["metadata"]["labels"]["grafana_dashboard"], "1");
}

/// An alert that has its name twice fires twice for one fault.
#[test]
fn no_alert_of_the_cluster_has_the_name_of_one_of_a_machine() {
    let mut names: Vec<String> = RULES
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .map(str::to_owned)
        .collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn a_service_monitor_finds_the_services_of_its_release_also_of_pods_that_are_not_ready() {
    let Some(chart) = chart(SERVICES) else { return };
    let monitor = object(&chart, "ServiceMonitor divvy");
    let wanted = monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    let found: Vec<String> = chart
        .objects
        .iter()
        .filter(|object| object["kind"] == "Service")
        .filter(|service| {
            let labels = &service["metadata"]["labels"];
            wanted.iter().all(|(key, value)| labels[key] == *value)
        })
        .inspect(|service| {
            let spec = &service["spec"];
            assert_eq!(spec["publishNotReadyAddresses"], true);
            assert_eq!(
                spec["ports"][0]["name"],
                monitor["spec"]["endpoints"][0]["port"]
            );
        })
        .map(render::called)
        .collect();
    let services = [
        "Service divvy-node-metrics",
        "Service divvy-controller-metrics",
        "Service divvy-reconciler-metrics",
    ];
    assert_eq!(found, services);
    assert_eq!(monitor["spec"]["endpoints"][0]["honorLabels"], true);
}
