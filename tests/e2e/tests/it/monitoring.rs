//! Alert rules and boards: each metric and label that they name is in the page of a daemon, and each alert has its
//! section and its test. `prometheus::exhaustive` has them evaluated by a real Prometheus.

pub mod files;
pub mod promql;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use divvy_e2e::{Home, MIB, until};
use serde_json::Value;

use files::{boards, expressions, panels, root, rules};
use promql::{labels_of_template, metrics, named};

/// Labels that Prometheus and the chart add.
const ADDED: [&str; 3] = ["instance", "node", "job"];

/// Metrics of other programs, with the labels that these have.
fn of_others() -> BTreeMap<String, BTreeSet<String>> {
    let labels =
        |names: &[&str]| -> BTreeSet<String> { names.iter().map(ToString::to_string).collect() };
    let dcgm = labels(&[
        "gpu",
        "UUID",
        "pci_bus_id",
        "device",
        "modelName",
        "Hostname",
    ]);
    [
        ("up", labels(&[])),
        ("ALERTS", labels(&["alertname", "alertstate"])),
        ("node_textfile_mtime_seconds", labels(&["file"])),
        ("DCGM_FI_DEV_SM_CLOCK", dcgm.clone()),
        ("DCGM_FI_DEV_XID_ERRORS", dcgm),
    ]
    .map(|(name, labels)| (name.to_owned(), labels))
    .into()
}

/// A daemon with whatever has metrics: shared GPUs, an instance, a project and jobs that run and wait.
fn page_with_everything() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root divides a GPU");
        return None;
    }
    let home = Home::new("a100-40gb:2");
    let file = home.scratch().join("sim.toml");
    fs::write(&file, "[mig]\nenabled = [1]\n").expect("the folder is ours");
    let home = home.variable("DIVVY_SIM_CONFIG", file.to_str().expect("a readable name"));
    let _daemon = home.daemon(&[]);
    let _ = home
        .divvy(&["admin", "project", "add", "vision", "--quota", "1"])
        .ok();
    let half = ["-g", "0.5", "-p", "vision", "--compute", "strict"];
    let half = home.submit_holder(&half, 2 * MIB, "half");
    let instance = home.submit_holder(&["--mig-profile", "1g.5gb"], 2 * MIB, "instance");
    let _ = (home.running(&half), home.running(&instance));
    let waits = home.submit(&["-g", "1"], &["true"]);
    home.waits(&waits);
    // The last metrics to come: they need two looks at the GPUs.
    Some(until("the use of the job is measured", || {
        let (_, page) = divvy_testkit::call(&home.socket(), "GET", "/metrics", "");
        let is_there = [
            "divvy_job_compute_used_ratio{",
            "divvy_ledger_mismatch_bytes{",
            "divvy_gpu_energy_idle_joules_total{",
            "divvy_user_energy_joules_total{",
        ];
        is_there
            .iter()
            .all(|name| page.contains(name))
            .then_some(page)
    }))
}

#[test]
fn every_metric_and_label_of_rules_and_boards_is_in_a_page() {
    let Some(page) = page_with_everything() else {
        return;
    };
    let mut known = metrics(&page);
    known.extend(of_others());
    let node = boards().remove(0);
    let of_board = expressions(&node);
    let mut all: Vec<(String, BTreeSet<String>)> = of_board
        .iter()
        .map(|expression| (expression.clone(), BTreeSet::new()))
        .collect();
    for rule in rules() {
        let mut labels = labels_of_template(&rule.annotations["summary"]);
        labels.extend(labels_of_template(&rule.annotations["command"]));
        all.push((rule.expression, labels));
    }
    assert!(of_board.len() > 50 && all.len() > of_board.len() + 12);
    for (expression, mut labels) in all {
        let named = named(&expression);
        let mut of_all = BTreeSet::new();
        for (metric, matchers) in &named.metrics {
            let Some(has) = known.get(metric) else {
                panic!("no page has {metric}: {expression}");
            };
            for label in matchers {
                let is_known = has.contains(label) || ADDED.contains(&label.as_str());
                assert!(is_known, "{metric} has no {label}: {expression}");
            }
            of_all.extend(has.iter().map(String::as_str));
        }
        assert!(!named.metrics.is_empty(), "{expression}");
        labels.extend(named.grouping);
        for label in labels {
            let is_known = of_all.contains(label.as_str()) || ADDED.contains(&label.as_str());
            assert!(is_known, "no metric has {label}: {expression}");
        }
    }
}

/// Whether two panels cover a cell together.
fn overlap(one: &Value, other: &Value) -> bool {
    let span = |panel: &Value, start: &str, length: &str| {
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a position");
        at(start)..at(start) + at(length)
    };
    [("x", "w"), ("y", "h")].iter().all(|(start, length)| {
        let (one, other) = (span(one, start, length), span(other, start, length));
        one.start < other.end && other.start < one.end
    })
}

/// Every data source of a document.
fn datasources<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("datasource"));
            fields.values().for_each(|value| datasources(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| datasources(item, found)),
        _ => {}
    }
}

#[test]
fn boards_have_their_panels_side_by_side_and_one_data_source() {
    let mut uids = BTreeSet::new();
    for board in boards() {
        let title = board["title"].as_str().expect("a title");
        assert!(uids.insert(board["uid"].to_string()), "{title}");
        assert_eq!(
            board["id"],
            Value::Null,
            "{title}: Grafana gives a board its id"
        );
        let panels = panels(&board);
        let mut ids = BTreeSet::new();
        for (place, panel) in panels.iter().enumerate() {
            assert!(
                ids.insert(panel["id"].as_u64().expect("a number")),
                "{panel}"
            );
            let right = ["x", "w"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(99));
            assert!(right.iter().sum::<u64>() <= 24, "{panel}");
            let other = panels[..place].iter().find(|other| overlap(panel, other));
            assert_eq!(other, None, "{} covers it", panel["title"]);
            let targets = panel["targets"].as_array().map_or(0, Vec::len);
            assert_eq!(targets == 0, panel["type"] == "row", "{panel}");
        }
        let mut found = Vec::new();
        datasources(&board, &mut found);
        assert!(found.len() > panels.len(), "{title}");
        for datasource in found {
            assert_eq!(datasource["uid"], "${datasource}", "{title}");
        }
        // Every variable of an expression is one of the board's, or one of Grafana's.
        let variables = board["templating"]["list"].as_array().expect("a list");
        let names: BTreeSet<&str> = variables
            .iter()
            .map(|variable| variable["name"].as_str().expect("a name"))
            .collect();
        for expression in expressions(&board) {
            for name in expression.split('$').skip(1) {
                let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let name = &name[..end.unwrap_or(name.len())];
                let is_known = names.contains(name) || name == "__rate_interval";
                assert!(is_known, "${name}: {expression}");
            }
        }
    }
}

/// GitHub's anchor of a heading.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    headings
        .map(|heading| {
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || *c == ' ');
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

#[test]
fn every_alert_has_a_severity_a_command_a_section_and_a_unit_test() {
    let tests = fs::read_to_string(root().join("deploy/prometheus/rules_test.yml"))
        .expect("the tests of the rules");
    let tests: Value = yaml_serde::from_str(&tests).expect("YAML");
    let cases = || {
        let tests = tests["tests"].as_array().expect("a list").iter();
        tests.flat_map(|test| test["alert_rule_test"].as_array().expect("a list"))
    };
    let mut names = BTreeSet::new();
    for rule in rules() {
        let name = rule.name.as_str();
        assert!(names.insert(rule.name.clone()), "{name} is there twice");
        assert!(
            ["critical", "warning", "info"].contains(&rule.severity.as_str()),
            "{name}"
        );
        let command = &rule.annotations["command"];
        assert!(command.starts_with("divvy "), "{name}: {command}");
        let (page, anchor) = rule.annotations["runbook"].split_once('#').expect("a link");
        let page = fs::read_to_string(root().join(page)).expect("the page of the runbook");
        assert!(anchors(&page).contains(anchor), "{name}: no #{anchor}");
        assert_eq!(anchor, name.to_lowercase());
        // The section shows the same command, which the tests of the documents try.
        let (_, section) = page
            .split_once(&format!("### {name}\n"))
            .expect("a section");
        let section = section.split("\n### ").next().expect("it has an end");
        let command = command.replace("{{ $labels.job }}", "JOB");
        assert!(
            section.contains(&format!("`{command}`")),
            "{name}: {command}"
        );
        let of_it: Vec<&Value> = cases().filter(|case| case["alertname"] == name).collect();
        let fires = |case: &&&Value| !case["exp_alerts"].as_array().is_none_or(Vec::is_empty);
        assert!(
            of_it.iter().any(|case| fires(&case)),
            "{name} never fires in rules_test.yml"
        );
        assert!(
            of_it.iter().any(|case| !fires(&case)),
            "{name} always fires in rules_test.yml"
        );
    }
    assert!(names.len() >= 14, "{names:?}");
    for case in cases() {
        let name = case["alertname"].as_str().expect("a name");
        assert!(names.contains(name), "{name} is no alert");
    }
}
