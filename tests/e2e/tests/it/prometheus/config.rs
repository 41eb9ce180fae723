//! The shipped configuration and rules with the addresses and times of a test, and pages of other programs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use crate::monitoring::files::{root, rules_text};

/// Ports of what Prometheus reads.
pub struct Targets {
    pub divvy: Vec<u16>,
    pub node: u16,
    pub dcgm: u16,
}

/// Times in expressions that no test waits for, and what takes their place.
const SHORTER: [(&str, &str, &str); 3] = [
    ("DivvyQueueStuck", "4 * 3600", "2"),
    ("DivvyIdleJob", "2 * 3600", "2"),
    ("DivvyTextfileOld", "> 120", "> 5"),
];

/// Writes `prometheus.yml` and its rules: the shipped files, read and evaluated every second.
pub fn write(folder: &Path, targets: &Targets) {
    let shipped = root().join("deploy/prometheus/scrape.yml");
    let shipped = fs::read_to_string(shipped).expect("the shipped configuration");
    let mut config: Value = yaml_serde::from_str(&shipped).expect("YAML");
    config["global"] = json!({ "scrape_interval": "1s", "evaluation_interval": "1s" });
    let addresses = |ports: &[u16]| -> Value {
        ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect()
    };
    let jobs = config["scrape_configs"].as_array_mut().expect("a list");
    for job in jobs.iter_mut() {
        let ports = match job["job_name"].as_str() {
            Some("divvy") => targets.divvy.as_slice(),
            Some("node") => &[targets.node],
            other => panic!("{other:?} is not known to this test"),
        };
        job["static_configs"] = json!([{ "targets": addresses(ports) }]);
    }
    let dcgm = json!([{ "targets": addresses(&[targets.dcgm]) }]);
    jobs.push(json!({ "job_name": "dcgm", "static_configs": dcgm }));
    // JSON is YAML.
    fs::write(folder.join("prometheus.yml"), config.to_string()).expect("the folder is ours");
    fs::write(folder.join("rules.yml"), quick_rules().to_string()).expect("the folder is ours");
}

/// The rules with short times.
fn quick_rules() -> Value {
    let mut file: Value = yaml_serde::from_str(&rules_text()).expect("YAML");
    let mut shortened = 0;
    for group in file["groups"].as_array_mut().expect("groups") {
        for rule in group["rules"].as_array_mut().expect("rules") {
            if rule.get("for").is_some() {
                rule["for"] = json!("2s");
            }
            for (name, long, short) in SHORTER {
                let expression = rule["expr"].as_str().expect("an expression");
                if rule["alert"] == name && expression.contains(long) {
                    rule["expr"] = json!(expression.replace(long, short));
                    shortened += 1;
                }
            }
        }
    }
    assert_eq!(shortened, SHORTER.len());
    file
}

/// An expression of a board for every value of its variables.
pub fn without_variables(expression: &str) -> String {
    let mut plain = expression.replace("$__rate_interval", "15s");
    for name in ["instance", "hostname", "gpu", "project", "user"] {
        plain = plain.replace(&format!("\"${name}\""), "\".*\"");
    }
    assert!(!plain.contains('$'), "{plain}");
    plain
}

/// A page as dcgm-exporter writes it, of these GPUs.
pub fn dcgm_page(gpus: &[Value]) -> String {
    let mut page = String::new();
    for (metric, value) in [
        ("DCGM_FI_DEV_SM_CLOCK", 1410),
        ("DCGM_FI_DEV_XID_ERRORS", 0),
    ] {
        let _ = writeln!(page, "# HELP {metric} Of the test.\n# TYPE {metric} gauge");
        for gpu in gpus {
            let (index, uuid) = (&gpu["index"], &gpu["uuid"]);
            let _ = writeln!(
                page,
                "{metric}{{gpu=\"{index}\",UUID={uuid},device=\"nvidia{index}\",Hostname=\"lab\"}} {value}"
            );
        }
    }
    page
}

/// What node_exporter says of a file of its textfile collector.
pub fn textfile_page(file: &Path) -> String {
    let written = fs::metadata(file).and_then(|data| data.modified());
    let written = written.expect("the file is there");
    let seconds = written.duration_since(UNIX_EPOCH).expect("after 1970");
    format!(
        "# HELP node_textfile_mtime_seconds Unixtime mtime of textfiles successfully read.\n\
         # TYPE node_textfile_mtime_seconds gauge\n\
         node_textfile_mtime_seconds{{file=\"{}\"}} {}\n",
        file.display(),
        seconds.as_secs()
    )
}
