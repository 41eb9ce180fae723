//! The views of the cluster and the metrics of a node, over a real daemon with simulated GPUs.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use divvy_core::units::Bytes;
use divvy_k8s::base::pod_request::Fraction;
use divvy_testkit::{Bounded as _, PATIENCE, join, let_pass, programs, until_async as until};
use serde_json::{Value, json};

use crate::apiserver::exec::Ran;
use crate::controller::health::{documented, families};
use crate::kubelet::fake::Driver;
use crate::kubelet::machine::NODE;
use crate::kubelet::rig::Node;

/// The published memory of an A100 80GB.
const USABLE: u64 = 81_050 << 20;

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(node: &Node, words: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args(words)
        .env("KUBECONFIG", node.api.kubeconfig(node.machine.path()))
        .env_remove("COLUMNS")
        .output_bounded()
        .unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The pod of Divvy on the node; commands in it run beside the daemon.
fn node_pod(node: &Node) {
    node.api.create(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "divvy-node-x", "namespace": "divvy-system", "labels": {
            "app.kubernetes.io/name": "divvy", "app.kubernetes.io/component": "node",
        } },
        "spec": { "nodeName": NODE, "containers": [] },
        "status": { "containerStatuses": [{
            "name": "plugin", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": { "running": {} },
        }] },
    }));
    let home: PathBuf = node.machine.agent_socket().parent().unwrap().to_owned();
    let program = programs::folder().join("divvy");
    node.api.on_exec(move |pod, words| {
        assert_eq!((pod, words[0].as_str()), ("divvy-node-x", "divvy"));
        let output = Command::new(&program)
            .args(&words[1..])
            .env("DIVVY_HOME", &home)
            .output_bounded()
            .unwrap();
        Ran {
            code: u8::try_from(output.status.code().unwrap()).unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            ..Ran::default()
        }
    });
}

/// A pod with a fraction, as the webhook and kubelet leave it.
async fn fraction(node: &Node, driver: &Driver, name: &str, asked: &str) {
    let part = Fraction::between_none_and_one(asked).unwrap();
    let memory = Bytes::mib(part.mib_of(USABLE)).get() >> 20;
    let gpu = node.gpu(0).await;
    let claim = node.allocate(name, &[(&gpu, Some(&format!("{memory}Mi")))]);
    driver.prepare(&claim).await.unwrap();
    node.api.create(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "team", "annotations": { "divvy.dev/gpus": asked } },
        "spec": { "nodeName": NODE, "containers": [], "resourceClaims": [
            { "name": "fraction-gpu", "resourceClaimName": name },
        ] },
        "status": { "phase": "Running", "startTime": "2026-01-02T03:04:05Z" },
    }));
}

/// A port that is free at the moment.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let call = format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
    stream.write_all(call.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// A node whose driver serves metrics.
async fn scraped(gpus: &'static str) -> (Node, Driver, SocketAddr) {
    let mut node = Node::new(gpus);
    node.start_daemon(&[]).await;
    let address = free_port();
    node.start_driver_with(&["--metrics", "--health-listen", &address.to_string()]);
    let driver = node.kubelet.driver().await;
    until("the health listener answers", async || {
        get(address, "/healthz").filter(|answer| answer.starts_with("HTTP/1.1 200"))
    })
    .await;
    (node, driver, address)
}

/// The value of the series of this metric that has all of these labels.
fn value<'a>(page: &'a str, metric: &str, labels: &[&str]) -> Option<&'a str> {
    let mut lines = page
        .lines()
        .filter(|line| line.starts_with(&format!("{metric}{{")));
    let line = lines.find(|line| labels.iter().all(|label| line.contains(label)))?;
    line.rsplit(' ').next()
}

#[tokio::test(flavor = "current_thread")]
async fn fractions_are_shown_as_requested_on_the_node_and_in_every_view() {
    let (node, driver) = Node::served("a100-80gb:2").await;
    node_pod(&node);
    for (name, asked) in [("half", "0.500"), ("quarter", "0.250"), ("eighth", "0.125")] {
        fraction(&node, &driver, name, asked).await;
    }
    let gpus = node.machine.gpus().await;
    let mut shares: Vec<u16> = gpus[0].slices.iter().map(|slice| slice.share).collect();
    shares.sort_unstable();
    assert_eq!(shares, [125, 250, 500]);

    let said = run(&node, &["gpus", "-o", "json"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let list: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(list["kind"], "ClusterGpuList");
    let [first, second] = &list["items"].as_array().unwrap()[..] else {
        panic!("two GPUs: {}", said.out);
    };
    assert_eq!(
        (&first["node"], &first["gpu"], &first["allocated"]),
        (&json!(NODE), &json!(0), &json!("0.875"))
    );
    assert_eq!(first["free"], "0.125, 9.8 GiB");
    assert_eq!(second["allocated"], "0");
    assert!(first["used_bytes"].is_u64(), "the node has answered");

    let said = run(&node, &["ps", "-n", "team"]);
    let rows: Vec<Vec<&str>> = said
        .out
        .lines()
        .map(|line| line.split_whitespace().take(5).collect())
        .collect();
    assert_eq!(
        rows[1..],
        [
            ["team", "eighth", NODE, "0", "0.125"],
            ["team", "half", NODE, "0", "0.5"],
            ["team", "quarter", NODE, "0", "0.25"],
        ],
        "{}",
        said.out
    );
    assert_eq!(
        run(&node, &["ps", "-A", "-o", "name"]).out,
        "team/eighth\nteam/half\nteam/quarter\n"
    );
}

#[tokio::test(flavor = "current_thread")]
async fn the_mode_of_a_gpu_is_changed_in_the_nodes_words_and_with_its_exit_codes() {
    let (node, driver) = Node::simulated("h100-80gb:2", "").serve().await;
    node_pod(&node);
    let gpu = |words: &[&str]| run(&node, &[&["admin", "gpu"], words].concat());
    let said = gpu(&[NODE, "1", "--mode", "mig"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    until("the mode is mig", async || {
        (node.machine.gpus().await[1].mode == "mig").then_some(())
    })
    .await;
    let said = run(&node, &["admin", "mig", "ls", NODE, "-o", "json"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("MigInstanceList"), "{}", said.out);

    // As the daemon refuses it: the GPU is held.
    let first = node.gpu(0).await;
    let claim = node.allocate("train", &[(&first, Some("20Gi"))]);
    driver.prepare(&claim).await.unwrap();
    let said = gpu(&[NODE, "0", "--mode", "exclusive", "-o", "json"]);
    let own: Value = serde_json::from_str(said.err.trim()).unwrap();
    assert_ne!(said.code, Some(0));
    assert!(own["error"]["message"].is_string(), "{own}");
    assert_eq!(
        gpu(&[NODE, "9", "--mode", "mig"]).code,
        Some(3),
        "no such GPU"
    );

    let said = gpu(&["nowhere", "0", "--mode", "mig"]);
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(
        said.err.contains("\"nowhere\" does not exist"),
        "{}",
        said.err
    );
    node.api.on_exec(|_, _| Ran {
        refused: Some(403),
        ..Ran::default()
    });
    let said = gpu(&[NODE, "0", "--mode", "mig", "-o", "json"]);
    let denied: Value = serde_json::from_str(said.err.trim()).unwrap();
    assert_eq!(
        (said.code, &denied["error"]["code"]),
        (Some(4), &json!("not_allowed"))
    );
    let not_ready = json!({ "status": { "containerStatuses": [] } });
    node.api
        .merge("pods", "divvy-system", "divvy-node-x", &not_ready);
    assert_eq!(gpu(&[NODE, "0", "--mode", "mig"]).code, Some(7));
}

#[tokio::test(flavor = "current_thread")]
async fn series_of_a_claim_name_its_pod_and_go_with_it() {
    let (node, driver, address) = scraped("a100-80gb:1").await;
    fraction(&node, &driver, "quarter", "0.250").await;
    let page = get(address, "/metrics").unwrap();
    let own = [
        "namespace=\"team\"",
        "pod=\"quarter\"",
        "claim=\"quarter\"",
        "node=\"node-a\"",
    ];
    let limit = value(&page, "divvy_job_memory_limit_bytes", &own);
    assert_eq!(limit, Some(&*(20_262_u64 << 20).to_string()), "{page}");
    assert_eq!(
        value(&page, "divvy_job_compute_request_ratio", &own),
        Some("0.250")
    );
    assert_eq!(value(&page, "divvy_driver_daemon_up", &[]), Some("1"));
    let prepared = ["operation=\"prepare\"", "result=\"done\""];
    assert_eq!(
        value(&page, "divvy_driver_operations_total", &prepared),
        Some("1")
    );
    assert!(
        page.contains("content-type: text/plain; version=0.0.4"),
        "{page}"
    );
    promtool(&page);

    let claim = node
        .api
        .look(|view| view.get("resourceclaims", "team", "quarter"));
    let uid = claim.unwrap()["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let claim = divvy_k8s::node::protocol::dra::Claim {
        namespace: "team".into(),
        name: "quarter".into(),
        uid,
    };
    driver.unprepare(&claim).await.unwrap();
    until("the series go", async || {
        let page = get(address, "/metrics")?;
        (!page.contains("pod=\"quarter\"")).then_some(())
    })
    .await;
}

/// Names in an expression of PromQL that are metrics of Divvy, without the suffixes of histograms.
fn metrics_of(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("divvy_"));
    names
        .map(|name| {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix));
            base.unwrap_or(name).to_owned()
        })
        .collect()
}

/// Every text of a JSON document under one of these keys.
fn texts<'v>(value: &'v Value, keys: &[&str], found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if keys.contains(&key.as_str()) => found.push(text),
                    _ => texts(value, keys, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, keys, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "current_thread")]
async fn dashboard_and_alarms_use_only_metrics_of_a_node_and_of_the_controller() {
    let (node, driver, address) = scraped("a100-80gb:1").await;
    fraction(&node, &driver, "quarter", "0.250").await;
    let page = get(address, "/metrics").unwrap();
    let of_driver: BTreeSet<String> = families(&page)
        .into_iter()
        .filter(|name| name.starts_with("divvy_driver_"))
        .collect();
    assert_eq!(of_driver, documented("divvy_driver_"));
    // The controller's page has those of the documents, by a test of its own.
    let mut known = families(&page);
    known.extend(documented("divvy_controller_"));

    let dashboard = include_str!("../../../../../deploy/helm/divvy/dashboards/kubernetes.json");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let mut expressions = Vec::new();
    texts(&dashboard, &["expr", "query"], &mut expressions);
    let rules = include_str!("../../../../../deploy/helm/divvy/files/prometheus/kubernetes.yml");
    let alarms: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "))
        .collect();
    assert!(expressions.len() > 25 && alarms.len() == 6);
    for expression in expressions.iter().chain(&alarms) {
        for name in metrics_of(expression) {
            assert!(known.contains(&name), "{name} in {expression}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables: Vec<_> = variables
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(variables, ["datasource", "namespace", "node"]);
}

/// Prometheus gives a scrape up after 10 s, and the daemon answers again when it can.
#[tokio::test(flavor = "current_thread")]
async fn many_scrapes_share_a_page_and_a_daemon_that_hangs_delays_none_for_long() {
    let (node, _driver, address) = scraped("a100-80gb:1").await;
    let at_once = || {
        let begun = Instant::now();
        let scrapes: Vec<_> = (0..200)
            .map(|_| std::thread::spawn(move || get(address, "/metrics").unwrap()))
            .collect();
        let pages = scrapes.into_iter().map(|scrape| join("a scrape", scrape));
        (pages.collect::<Vec<_>>(), begun.elapsed())
    };
    let (pages, _) = at_once();
    assert!(pages.iter().all(|page| page.contains("\ndivvy_gpu_info{")));
    node.stop_daemon();
    // A page is kept for a second.
    let_pass(Duration::from_millis(1100));
    let (pages, took) = at_once();
    assert!(took < Duration::from_secs(9), "{took:?}");
    for page in &pages {
        assert_eq!(
            value(page, "divvy_driver_daemon_up", &[]),
            Some("0"),
            "{page}"
        );
    }
    node.continue_daemon();
    until("the daemon answers again", async || {
        let page = get(address, "/metrics")?;
        page.contains("\ndivvy_gpu_info{").then_some(())
    })
    .await;
}

/// What promtool has against a page, apart from the spelling that the labels of GPUs share with dcgm-exporter.
fn promtool(page: &str) {
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    let folder = std::env::var_os("DIVVY_TEST_PROMETHEUS").unwrap_or_default();
    let child = Command::new(PathBuf::from(folder).join("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: there is no promtool");
        return;
    };
    // A body of an unknown length comes in chunks; each has a line with its length.
    let body: String = if page.contains("transfer-encoding: chunked") {
        panic!("the page is one body")
    } else {
        body.to_owned()
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(body.as_bytes()).unwrap();
    drop(stdin);
    let output = child.output_bounded().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let found: Vec<&str> = said
        .lines()
        .filter(|line| {
            !line.ends_with("label names should be written in 'snake_case' not 'camelCase'")
        })
        .collect();
    assert_eq!(found, [""; 0]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_gpu_that_is_out_of_service_is_tainted_and_keeps_its_claims() {
    let (node, driver) = Node::served("a100-80gb:2").await;
    node_pod(&node);
    let gpu = node.gpu(1).await;
    let claim = node.allocate("train", &[(&gpu, Some("20Gi"))]);
    driver.prepare(&claim).await.unwrap();
    let taint = async || {
        let devices = node.devices().await;
        let device = devices.into_iter().find(|device| device["name"] == *gpu);
        device.unwrap()["taints"][0]["value"].clone()
    };
    let said = run(
        &node,
        &["admin", "drain", NODE, "1", "--reason", "an update"],
    );
    assert_eq!(said.code, Some(0), "{}", said.err);
    until("the device is tainted", async || {
        (taint().await == "drained").then_some(())
    })
    .await;
    node.is_sound(&[&claim]).await;
    // What is placed there all the same waits, with the reason.
    let late = node.allocate("late", &[(&gpu, Some("20Gi"))]);
    let refused = driver.prepare(&late).await.unwrap_err();
    assert!(refused.contains("an update"), "{refused}");
    let said = run(&node, &["admin", "undrain", NODE, "1"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    until("the taint is taken back", async || {
        taint().await.is_null().then_some(())
    })
    .await;
    driver.prepare(&late).await.unwrap();
    assert_eq!(
        run(&node, &["admin", "drain", NODE, "9", "--reason", "x"]).code,
        Some(3)
    );
}
