//! The task that keeps a node's slices in the cluster, against an API server in memory.

#![allow(clippy::unwrap_used)]

use crate::apiserver;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use divvy_api::v1;
use divvy_k8s::base::slices::publish::Publisher;
use divvy_testkit::join;
use serde_json::{Value, json};
use tokio::sync::watch;

use apiserver::{ApiServer, View};

/// A GPU as the agent lists it, mode `shared` or `mig`.
fn gpu(index: u32, mode: &str) -> v1::Gpu {
    let mut gpu = json!({
        "uuid": format!("GPU-00000000-0000-4000-8000-{index:012x}"),
        "index": index,
        "model": "NVIDIA A100-SXM4-40GB",
        "mode": mode,
        "memory_total_bytes": 40_u64 << 30,
        "memory_usable_bytes": (39_u64 << 30) + 12345,
        "memory_allocated_bytes": 0,
        "memory_used_bytes": 0,
        "memory_unmanaged_bytes": 0,
        "share_allocated": 0,
        "utilization_percent": null,
        "context_overhead_bytes": 0,
        "slices": [],
        "unmanaged_pids": [],
        "enforcement": "interposer",
    });
    if mode == "mig" {
        gpu["mig"] = json!({
            "memory_slices": 8,
            "compute_slices": 7,
            "profiles": [{
                "name": "1g.5gb", "id": 19, "memory_bytes": 4864_u64 << 20, "memory_slices": 1,
                "compute_slices": 1, "multiprocessors": 14, "max_instances": 7, "starts": [0, 1, 2, 3, 4, 5, 6],
                "available": 7,
            }, {
                "name": "7g.40gb", "id": 0, "memory_bytes": 40192_u64 << 20, "memory_slices": 8,
                "compute_slices": 7, "multiprocessors": 98, "max_instances": 1, "starts": [0], "available": 1,
            }],
            "instances": [],
        });
    }
    serde_json::from_value(gpu).unwrap()
}

fn node(name: &str, labels: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels } })
}

/// A node that is published, by a thread of its own.
struct Published {
    server: ApiServer,
    says: Option<watch::Sender<Option<Vec<v1::Gpu>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Published {
    fn start(server: ApiServer, gpus: Option<Vec<v1::Gpu>>) -> Self {
        let mut published = Self {
            server,
            says: None,
            thread: None,
        };
        published.begin(gpus);
        published
    }

    fn begin(&mut self, gpus: Option<Vec<v1::Gpu>>) {
        let (says, hears) = watch::channel(gpus);
        let url = self.server.url();
        let publish = async move {
            divvy_k8s::base::cluster::use_ring();
            let config = kube::Config::new(url.parse().unwrap());
            let client = kube::Client::try_from(config).unwrap();
            Publisher::new(client, "a").run(hears).await;
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        self.says = Some(says);
        self.thread = Some(std::thread::spawn(move || runtime.block_on(publish)));
    }

    fn say(&self, gpus: Vec<v1::Gpu>) {
        self.says.as_ref().unwrap().send(Some(gpus)).unwrap();
    }

    fn until<T>(&self, what: &str, look: impl FnMut(&View<'_>) -> Option<T>) -> T {
        self.server.until(what, look)
    }

    /// Ends it, as its pod ends; the cluster goes on.
    fn end(&mut self) {
        self.says = None;
        if let Some(thread) = self.thread.take() {
            join("the publisher", thread);
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.says = None;
    }
}

fn with_node() -> ApiServer {
    let server = ApiServer::start();
    server.create(node("a", &json!({})));
    server
}

/// The node's slices by name; `None` while they are not as many as they say, all of one generation.
fn complete(view: &View<'_>) -> Option<Vec<Value>> {
    let mut slices = view.all("resourceslices");
    slices.retain(|slice| slice["spec"]["driver"] == "gpu.divvy.dev");
    slices.sort_by_key(|slice| slice["metadata"]["name"].to_string());
    let pool = &slices.first()?["spec"]["pool"];
    let same = slices.iter().all(|slice| slice["spec"]["pool"] == *pool);
    (same && pool["resourceSliceCount"] == slices.len()).then_some(slices)
}

fn devices(slices: &[Value]) -> Vec<Value> {
    let all = slices
        .iter()
        .filter_map(|slice| slice["spec"]["devices"].as_array());
    all.flatten().cloned().collect()
}

/// So many devices, and nothing on the way.
fn with_devices(count: usize) -> impl FnMut(&View<'_>) -> Option<Vec<Value>> {
    move |view| complete(view).filter(|slices| devices(slices).len() == count)
}

#[test]
fn what_the_agent_says_is_published_and_goes_with_the_node() {
    let published = Published::start(with_node(), Some(vec![gpu(0, "shared"), gpu(1, "shared")]));
    let slices = published.until("two devices", with_devices(2));
    let uid = published
        .server
        .look(|view| view.get("nodes", "", "a").unwrap())["metadata"]["uid"]
        .clone();
    assert_eq!(slices[0]["metadata"]["ownerReferences"][0]["uid"], uid);
    let device = &devices(&slices)[0];
    // In whole steps of 2 MiB.
    assert_eq!(device["capacity"]["memory"]["value"], "39Gi");
    assert_eq!(
        device["capacity"]["memory"]["requestPolicy"]["validRange"]["step"],
        "2Mi"
    );
    assert_eq!(device["allowMultipleAllocations"], true);
}

#[test]
fn slices_outlive_the_publisher_and_stay_until_the_agent_has_spoken() {
    let mut published = Published::start(with_node(), Some(vec![gpu(0, "shared")]));
    published.until("a device", with_devices(1));
    published.end();
    let before = published.server.look(|view| view.calls().len());
    published.begin(None);
    // It has come so far as to know its node and to watch its slices.
    published.until("it watches", |view| {
        let watched = |part: &str| {
            let mut calls = view.calls()[before..].iter();
            calls.any(|call| call.path.contains(part) && call.query.contains_key("watch"))
        };
        (watched("/nodes") && watched("/resourceslices")).then_some(())
    });
    published.say(vec![gpu(0, "shared"), gpu(1, "shared")]);
    let slices = published.until("two devices", with_devices(2));
    assert_eq!(slices[0]["spec"]["pool"]["generation"], 2);
    let deleted = |view: &View<'_>| view.calls().iter().any(|call| call.method == "DELETE");
    assert!(!published.server.look(deleted));
}

#[test]
fn what_is_deleted_or_edited_by_others_comes_back() {
    let published = Published::start(with_node(), Some(vec![gpu(0, "shared")]));
    let first = published.until("a device", with_devices(1));
    let name = first[0]["metadata"]["name"].as_str().unwrap();
    let uid = |slices: &[Value]| slices[0]["metadata"]["uid"].clone();
    // As a kubelet does when it starts.
    published.server.remove("resourceslices", "", name);
    let again = published.until("another slice", |view| {
        with_devices(1)(view).filter(|slices| uid(slices) != uid(&first))
    });
    assert_eq!(again[0]["spec"], first[0]["spec"]);
    let edit = json!({ "spec": { "devices": [] } });
    published.server.merge("resourceslices", "", name, &edit);
    let again = published.until("the device", with_devices(1));
    assert_eq!(devices(&again), devices(&first));
    assert_eq!(again[0]["spec"]["pool"]["generation"], 2);
}

#[test]
fn a_label_of_the_node_has_its_gpus_cut() {
    let published = Published::start(with_node(), Some(vec![gpu(0, "mig"), gpu(1, "shared")]));
    published.until("the part", with_devices(1));
    let label = |value: Value| {
        let labels = json!({ "metadata": { "labels": { "divvy.dev/dynamic-mig": value } } });
        published.server.merge("nodes", "", "a", &labels);
    };
    label(json!("true"));
    let slices = published.until("the places", with_devices(9));
    let counters = slices
        .iter()
        .filter(|slice| slice["spec"]["sharedCounters"].is_array());
    assert_eq!(counters.count(), 1);
    label(Value::Null);
    let slices = published.until("the part alone", with_devices(1));
    assert_eq!(slices.len(), 1, "and no counters");
}

#[test]
fn a_gpu_that_is_lost_is_marked_and_its_pods_are_moved() {
    let published = Published::start(with_node(), Some(vec![gpu(0, "shared")]));
    published.until("a device", with_devices(1));
    let mut lost = gpu(0, "unmanaged");
    lost.lost = Some(v1::GpuLost {
        mode: "shared".to_owned(),
        for_good: true,
    });
    published.say(vec![lost]);
    let taint = published.until("a taint", |view| {
        let taint = devices(&complete(view)?)[0]["taints"][0].clone();
        taint.is_object().then_some(taint)
    });
    assert_eq!(
        (&taint["key"], &taint["effect"]),
        (&json!("gpu.divvy.dev/unhealthy"), &json!("NoExecute"))
    );
    published.say(vec![gpu(0, "shared")]);
    published.until("no taint", |view| {
        let device = devices(&complete(view)?)[0].clone();
        device.get("taints").is_none().then_some(())
    });
}

#[test]
fn other_nodes_and_other_drivers_slices_are_left_alone() {
    let server = with_node();
    let foreign = |name: &str, driver: &str, node: &str| {
        let pool = json!({ "name": node, "generation": 1, "resourceSliceCount": 1 });
        let spec = json!({ "driver": driver, "nodeName": node, "pool": pool, "devices": [] });
        let meta = json!({ "name": name });
        server.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec,
        }))
    };
    let others = [
        foreign("one", "gpu.nvidia.com", "a"),
        foreign("two", "gpu.divvy.dev", "b"),
    ];
    // What an older version of ours may have left.
    foreign("three", "gpu.divvy.dev", "a");
    let published = Published::start(server, Some(vec![gpu(0, "shared")]));
    published.until("ours, and nothing left over", |view| {
        let names: Vec<Value> = view
            .all("resourceslices")
            .iter()
            .map(|slice| slice["metadata"]["name"].clone())
            .collect();
        let is = |name: &str| names.contains(&json!(name));
        (is("a-gpu.divvy.dev-000") && !is("three")).then_some(())
    });
    published.server.look(|view| {
        for other in &others {
            let name = other["metadata"]["name"].as_str().unwrap();
            assert_eq!(view.get("resourceslices", "", name).as_ref(), Some(other));
        }
    });
}

#[test]
fn trouble_with_the_api_server_is_tried_again() {
    let server = with_node();
    server.fail("POST", "resourceslices", 500, 2);
    let published = Published::start(server, Some(vec![gpu(0, "shared")]));
    published.until("a device", with_devices(1));
    published.server.fail("GET", "resourceslices", 503, 3);
    published.server.cut_watches();
    published.say(vec![gpu(0, "shared"), gpu(1, "shared")]);
    published.until("two devices", with_devices(2));
}

#[test]
fn a_node_that_comes_later_is_waited_for() {
    let server = ApiServer::start();
    server.create(node("b", &json!({})));
    let published = Published::start(server, Some(vec![gpu(0, "shared")]));
    published.server.create(node("a", &json!({})));
    published.until("a device", with_devices(1));
}

/// An API server that drops a field of devices, as one does whose feature gate is off.
fn without(field: &'static str) -> (ApiServer, Arc<AtomicBool>, Arc<Mutex<usize>>) {
    let server = with_node();
    let (off, tried) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(0)));
    let (is_off, count) = (Arc::clone(&off), Arc::clone(&tried));
    server.on_create(move |kind, object| {
        if kind != "ResourceSlice" {
            return Ok(());
        }
        *count.lock().unwrap() += 1;
        if is_off.load(Ordering::SeqCst)
            && let Some(devices) = object["spec"]["devices"].as_array_mut()
        {
            for device in devices {
                device.as_object_mut().unwrap().remove(field);
            }
        }
        Ok(())
    });
    (server, off, tried)
}

#[test]
fn a_cluster_that_cannot_share_devices_is_told_nothing() {
    let (server, off, tried) = without("allowMultipleAllocations");
    let published = Published::start(server, Some(vec![gpu(0, "shared")]));
    published.until("it was tried, and taken back", |view| {
        let none = view.all("resourceslices").is_empty();
        (none && *tried.lock().unwrap() > 0).then_some(())
    });
    off.store(false, Ordering::SeqCst);
    published.until("once it can", with_devices(1));
}

#[test]
fn a_cluster_that_knows_no_taints_is_not_told_of_gpus_that_are_ill() {
    let (server, _, _) = without("taints");
    let mut ill = gpu(0, "shared");
    ill.problem = Some("it is to be reset".to_owned());
    let published = Published::start(server, Some(vec![ill, gpu(1, "shared")]));
    let slices = published.until("the other", with_devices(1));
    assert_eq!(devices(&slices)[0]["attributes"]["index"]["int"], 1);
}
