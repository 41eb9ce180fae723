//! `GET /metrics` by the rules of promtool, and its GPU time over a killed daemon.

use std::collections::{BTreeMap, BTreeSet};

use divvy_e2e::{Home, until};
use divvy_testkit::call;

use crate::prometheus::server::Programs;

/// Labels that dcgm-exporter spells so; promtool wants snake case.
const OF_DCGM: [&str; 1] = ["modelName"];

fn page(home: &Home) -> String {
    let (status, page) = call(&home.socket(), "GET", "/metrics", "");
    assert_eq!(status, 200, "{page}");
    page
}

/// Names and values of a series' labels.
pub fn labels(series: &str) -> Vec<(String, String)> {
    let (mut labels, mut rest) = (Vec::new(), series);
    while let Some((name, value)) = rest.split_once("=\"") {
        let mut end = 0;
        let bytes = value.as_bytes();
        while bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        labels.push((
            name.trim_start_matches(',').to_owned(),
            value[..end].to_owned(),
        ));
        rest = &value[end + 1..];
    }
    labels
}

/// What promtool 2.42 finds (util/promlint), one line each.
fn problems(page: &str) -> Vec<String> {
    let (mut helps, mut kinds) = (BTreeMap::new(), BTreeMap::new());
    let (mut seen, mut found, mut last) = (BTreeSet::new(), Vec::new(), String::new());
    let mut ended = BTreeSet::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap_or((help, ""));
            if text.is_empty() || helps.insert(name, text).is_some() {
                found.push(format!("{name}: no help, or two"));
            }
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            if kinds.insert(name.to_owned(), kind).is_some() {
                found.push(format!("{name}: two types"));
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a sample");
        let (name, within) = series.split_once('{').unwrap_or((series, ""));
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .find(|base| {
                kinds
                    .get(*base)
                    .is_some_and(|kind| ["histogram", "summary"].contains(kind))
            });
        let base = base.unwrap_or(name);
        let mut bad = |why: &str| found.push(format!("{base}: {why}: {series}"));
        let Some(kind) = kinds.get(base) else {
            bad("no type before the first sample");
            continue;
        };
        if base != last {
            if !ended.insert(base.to_owned()) {
                bad("samples of a metric are not together");
            }
            base.clone_into(&mut last);
        }
        if !seen.insert(series.to_owned()) {
            bad("the same series twice");
        }
        if value.parse::<f64>().is_err() {
            bad("no number");
        }
        if base.ends_with("_total") != (*kind == "counter") {
            bad("counters end in _total, and nothing else does");
        }
        let is_snake = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        let units = [
            "_ms",
            "_milliseconds",
            "_minutes",
            "_hours",
            "_kilobytes",
            "_mib",
            "_percent",
            "_gauge",
            "_counter",
        ];
        if !is_snake(base)
            || units
                .iter()
                .any(|unit| base.trim_end_matches("_total").ends_with(unit))
        {
            bad("not in snake case, or not in base units");
        }
        for (label, _) in labels(within) {
            // promtool takes capitals alone for an abbreviation, and wants none between small letters.
            let camel = label
                .as_bytes()
                .windows(2)
                .any(|two| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase());
            if camel && !OF_DCGM.contains(&&*label) {
                bad("a label in camel case");
            }
            let reserved = (label == "le" && *kind != "histogram")
                || (label == "quantile" && *kind != "summary");
            if reserved || label.starts_with("__") {
                bad("a reserved label");
            }
        }
    }
    found
}

#[test]
fn the_page_is_clean_by_promtools_rules_and_pending_jobs_only_count() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&["--queue", "default", "night"]);
    let whole = home.submit(&["-g", "1", "--name", "a\"b\\c"], &["sleep", "1000"]);
    let part = home.submit(&["-g", "0.5", "-p", "vision"], &["sleep", "1000"]);
    let _ = (home.running(&whole), home.running(&part));
    let waits = home.submit(&["-g", "2", "-q", "night", "--array", "0-99"], &["true"]);
    home.waits(&format!("{waits}_0"));
    let page = page(&home);
    assert_eq!(problems(&page), [""; 0]);
    assert!(
        page.contains(r#"divvy_queue_jobs{queue="night",state="queued"} 100"#),
        "{page}"
    );
    let of = |id: &str| {
        page.lines()
            .filter(|line| line.contains(&format!("job=\"{id}\"")))
            .count()
    };
    assert!(of(&whole) > 10 && of(&part) > 10);
    assert_eq!(of(&waits), 0, "a pending job has no series");
    let ratio = page.lines().find(|line| {
        line.starts_with("divvy_job_compute_request_ratio")
            && line.contains(&format!("job=\"{whole}\""))
    });
    assert!(
        ratio.is_some_and(|line| line.ends_with(" 1.000")),
        "{ratio:?}"
    );

    // Each rule finds what it is for.
    for broken in [
        "# TYPE a_total counter\na_total 1\n# TYPE a_total counter",
        "# HELP a x\n# TYPE a counter\na 1",
        "# HELP a_total x\n# TYPE a_total gauge\na_total 1",
        "# HELP a x\n# TYPE a gauge\na 1\na 1",
        "# HELP a x\n# TYPE a gauge\na{aB=\"1\"} 1",
        "# HELP a x\n# TYPE a gauge\na{le=\"1\"} 1",
        "# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1",
        "# HELP a \n# TYPE a gauge\na 1",
        "a 1",
    ] {
        assert_ne!(problems(broken), [""; 0], "{broken}");
    }

    let Some(programs) = Programs::find() else {
        return;
    };
    let said = programs.promtool(home.scratch(), &["check", "metrics"], &page);
    let said = said.stderr + &said.stdout;
    let of_dcgm = |line: &&str| line.starts_with("divvy_gpu_") && line.contains("not 'camelCase'");
    let others: Vec<&str> = said
        .lines()
        .filter(|line| !of_dcgm(line) && !line.starts_with("divvy_mig_instance_info"))
        .collect();
    assert_eq!(others, [""; 0]);
}

/// GPU time that the user's and the project's counters show.
fn allocated(home: &Home) -> BTreeMap<String, f64> {
    let page = page(home);
    let counters = page
        .lines()
        .filter(|line| line.contains("_gpu_seconds_total{") && line.contains("kind=\"allocated\""));
    let figure = |line: &str| {
        let (series, value) = line.rsplit_once(' ').expect("a sample");
        (series.to_owned(), value.parse().expect("a number"))
    };
    counters
        .filter(|line| !line.starts_with("divvy_job"))
        .map(figure)
        .collect()
}

#[test]
fn gpu_time_of_users_and_projects_never_falls_also_over_a_killed_daemon() {
    let mut home = Home::new("a100-80gb:2");
    home.start(&[]);
    let ended = home.submit(&["-g", "1", "-p", "vision"], &["sleep", "0.3"]);
    home.ended(&ended);
    let held = home.submit(&["-g", "1", "-p", "vision"], &["sleep", "1000"]);
    let _ = home.running(&held);
    let mut last = allocated(&home);
    assert_eq!(last.len(), 2, "{last:?}");
    assert!(last.values().all(|time| *time >= 0.3), "{last:?}");
    for _ in 0..2 {
        home.kill();
        home.start(&[]);
        let now = allocated(&home);
        for (series, time) in &last {
            assert!(
                now[series] >= *time,
                "{series}: {} after {time}",
                now[series]
            );
        }
        last = now;
    }
    let _ = home.divvy(&["cancel", &held]).ok();
    home.ended(&held);
    until("the end counts", || {
        let now = allocated(&home);
        last.iter()
            .all(|(series, time)| now[series] > *time)
            .then_some(())
    });
}
