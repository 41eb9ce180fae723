use divvy_cli::render::View;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::*;
use crate::tools::views::{gpus as gpus_view, ps};

const USABLE: u64 = 81_050;

fn view(width: Option<usize>) -> View {
    View {
        wide: false,
        width,
        now: "2026-11-26T12:00:00Z".parse().unwrap(),
        zone: || TimeZone::UTC,
        palette: Default::default(),
    }
}

fn gpu(index: u32) -> Value {
    json!({
        "name": format!("gpu-{index}"), "allowMultipleAllocations": true,
        "attributes": {
            "type": { "string": "fraction" }, "uuid": { "string": format!("GPU-{index}") },
            "model": { "string": "NVIDIA A100-SXM4-80GB" }, "index": { "int": index },
        },
        "capacity": { "memory": { "value": format!("{USABLE}Mi") } },
    })
}

fn instance(index: u32, profile: &str, start: u8, counters: &[u8]) -> Value {
    let mut device = gpu(index);
    device["name"] = json!(format!(
        "gpu-{index}-mig-{}-{start}",
        profile.replace('.', "-")
    ));
    device["allowMultipleAllocations"] = Value::Null;
    device["attributes"]["type"]["string"] = json!("mig");
    device["attributes"]["profile"] = json!({ "string": profile });
    device["attributes"]["start"] = json!({ "int": start });
    device["capacity"]["memory"]["value"] = json!("9856Mi");
    let slots = counters
        .iter()
        .map(|slot| (format!("slot-{slot}"), json!({ "value": "1" })));
    device["consumesCounters"] = json!([{
        "counterSet": format!("gpu-{index}"), "counters": slots.collect::<serde_json::Map<_, _>>(),
    }]);
    device
}

fn slice(node: &str, devices: Value) -> ResourceSlice {
    let slots = (0..8).map(|slot| (format!("slot-{slot}"), json!({ "value": "1" })));
    let counters: serde_json::Map<_, _> = slots.collect();
    serde_json::from_value(json!({
        "metadata": { "name": node },
        "spec": {
            "driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
            "sharedCounters": [{ "name": "gpu-1", "counters": counters }],
        },
    }))
    .unwrap()
}

fn claim(name: &str, device: Option<(&str, &str, Option<u64>)>) -> ResourceClaim {
    let allocation = device.map(|(node, device, mib)| {
        let consumed = mib.map(|mib| json!({ "memory": format!("{mib}Mi") }));
        json!({ "devices": { "results": [{
            "request": "r", "driver": DRIVER, "pool": node, "device": device, "consumedCapacity": consumed,
        }] } })
    });
    let reserved = allocation
        .as_ref()
        .map(|_| json!([{ "resource": "pods", "name": name, "uid": name }]));
    serde_json::from_value(json!({
        "metadata": { "name": format!("{name}-x"), "namespace": "team", "uid": format!("claim-{name}") },
        "spec": { "devices": { "requests": [
            { "name": "r", "exactly": { "deviceClassName": "fraction.gpu.divvy.dev" } },
        ] } },
        "status": { "allocation": allocation, "reservedFor": reserved },
    }))
    .unwrap()
}

fn pod(name: &str, phase: &str, asked: &str) -> Pod {
    let condition =
        json!({ "type": "PodScheduled", "status": "False", "message": "0/1 nodes are available" });
    let conditions = (phase == "Pending").then(|| json!([condition]));
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-11-26T11:00:00Z",
            "annotations": { "divvy.dev/gpus": asked },
        },
        "spec": { "nodeName": (phase == "Running").then_some("a"), "containers": [],
                  "resourceClaims": [{ "name": "fraction-gpu", "resourceClaimTemplateName": "t" }] },
        "status": { "phase": phase, "startTime": (phase == "Running").then_some("2026-11-26T11:30:00Z"),
                    "conditions": conditions,
                    "resourceClaimStatuses": [{ "name": "fraction-gpu", "resourceClaimName": format!("{name}-x") }] },
    }))
    .unwrap()
}

fn board() -> Board {
    serde_json::from_value(json!({
        "hostname": "a", "version": "0.1.0", "changed_at": "2026-11-26T12:00:00Z", "last_event": 1,
        "gpus": [
            { "index": 0, "model": "A100", "mode": "shared", "usable_bytes": USABLE << 20, "used_bytes": 5u64 << 30,
              "allocated_bytes": 20_262u64 << 20, "share": 250, "utilization_percent": 71 },
            { "index": 2, "model": "L4", "mode": "unmanaged", "usable_bytes": 22u64 << 30, "used_bytes": 0,
              "allocated_bytes": 0, "share": 0 },
        ],
        "jobs": [{ "id": "7", "name": "team/train-x", "user": "root", "since": "2026-11-26T11:30:00Z", "slices": [
            { "gpu": 0, "label": "gpu0.25a", "limit_bytes": 20_262u64 << 20, "used_bytes": 3u64 << 30, "share": 250 },
        ] }],
        "waiting": { "count": 0 }, "queues": [],
    }))
    .unwrap()
}

fn objects() -> Objects {
    let devices = json!([
        gpu(0),
        instance(1, "1g.10gb", 0, &[0]),
        instance(1, "3g.40gb", 4, &[4, 5, 6, 7])
    ]);
    Objects {
        slices: Some(vec![slice("a", devices), slice("b", json!([gpu(0)]))]),
        claims: Some(vec![
            claim("train", Some(("a", "gpu-0", Some(20_262)))),
            claim("small", Some(("a", "gpu-1-mig-1g-10gb-0", None))),
            claim("eval", None),
        ]),
        pods: vec![
            pod("train", "Running", "0.250"),
            pod("small", "Running", ""),
            pod("eval", "Pending", "0.750"),
        ],
        boards: [("a".to_owned(), board())].into(),
        silent: [("b".to_owned(), "its pod of Divvy is not ready".to_owned())].into(),
        ..Objects::default()
    }
}

#[test]
fn gpus_have_fractions_as_requested_room_as_the_scheduler_sees_it_and_use_as_the_node_does() {
    let objects = objects();
    let rows = gpus(&objects.require_slices().unwrap());
    assert_eq!(
        gpus_view::table(&rows, view(None)),
        "NODE  GPU  MODEL           MODE            ALLOC  USED/ALLOC/USABLE  UTIL  FREE            NOTE\n\
         a       0  A100-SXM4-80GB  shared           0.25  5.0/19.8/79.2 GiB   71%  0.75, 59.3 GiB  team/train 0.25\n\
         a       1  A100-SXM4-80GB  mig        1 instance        –/9.6/– GiB     –  up to 3g.40gb   team/small 1g.10gb@0\n\
         a       2  L4              unmanaged           –     0.0/–/22.0 GiB     –  –               not published\n\
         b       0  A100-SXM4-80GB  shared              0     –/0.0/79.2 GiB     –  1, 79.1 GiB     no figures: its pod of Divvy is not ready\n"
    );
}

#[test]
fn a_gpu_of_a_carrier_node_has_the_figures_of_its_daemon() {
    let mut objects = objects();
    let gpu = &mut objects.boards.get_mut("a").unwrap().gpus[1];
    gpu.mode = "shared".to_owned();
    gpu.allocated_bytes = gpu.usable_bytes / 2;
    let rows = gpus(&objects.require_slices().unwrap());
    let row = rows.iter().find(|row| row.gpu == Some(2)).unwrap();
    assert_eq!(
        (row.allocated.as_deref(), row.allocated_bytes),
        (Some("0.5"), Some(11 << 30))
    );
}

#[test]
fn without_the_right_to_list_claims_what_is_free_is_unknown_and_not_all() {
    let mut objects = objects();
    objects.claims = None;
    let rows = gpus(&objects.require_slices().unwrap());
    assert!(
        rows.iter()
            .all(|row| row.free.is_none() && row.allocated.is_none())
    );
    assert!(rows.iter().all(|row| row.holders.is_empty()));
}

#[test]
fn pods_have_their_request_and_use_and_waiting_ones_the_reason() {
    let mut objects = objects();
    let now = view(None).now;
    assert_eq!(
        ps::table(&pods(&objects, now), view(None)),
        "NAMESPACE  POD    NODE  GPU          REQ      STATE       FOR    USED/LIMIT  REASON\n\
         team       small  a     1.1g.10gb@0  1g.10gb  running  30m00s     –/9.6 GiB\n\
         team       train  a     0            0.25     running  30m00s  3.0/19.8 GiB\n\
         team       eval   –     –            0.75     waiting   1h00m             –  0/1 nodes are available\n"
    );
    let reason = "waits for 0.750 of a GPU: no GPU has room for it";
    objects.reasons = [("eval".to_owned(), reason.to_owned())].into();
    let rows = pods(&objects, now);
    assert_eq!(rows[2].reason.as_deref(), Some(reason));
}

/// K4: the author of a claim by hand wrote another amount beside it.
#[test]
fn the_request_of_a_pod_is_that_of_its_claim() {
    let mut objects = objects();
    for pod in &mut objects.pods {
        let annotations = pod.metadata.annotations.as_mut().unwrap();
        annotations.insert("divvy.dev/gpus".to_owned(), "0.125".to_owned());
    }
    let rows = pods(&objects, view(None).now);
    let requests = rows
        .iter()
        .map(|row| (row.pod.as_str(), row.request.as_str()));
    assert_eq!(
        requests.collect::<Vec<_>>(),
        [("small", "1g.10gb"), ("train", "0.25"), ("eval", "0.125")],
        "a waiting pod has nothing yet"
    );
}

/// A limit on `nvidia.com/mig-1g.10gb` becomes a claim only when the scheduler has a place; carrier mode has no claims.
#[test]
fn a_waiting_pod_without_a_claim_is_not_listed() {
    let mut waiting = pod("slice", "Pending", "");
    waiting.spec.as_mut().unwrap().resource_claims = None;
    waiting.status.as_mut().unwrap().resource_claim_statuses = None;
    let objects = Objects {
        pods: vec![waiting],
        ..objects()
    };
    assert_eq!(pods(&objects, view(None).now), []);
}

#[test]
fn a_namespace_user_without_slices_sees_the_own_pods() {
    let objects = Objects {
        slices: None,
        boards: BTreeMap::new(),
        ..objects()
    };
    let rows = pods(&objects, view(None).now);
    assert_eq!(rows.len(), 3);
    assert_eq!(
        (rows[1].request.as_str(), rows[1].devices[0].gpu),
        ("0.25", None)
    );
    assert_eq!(rows[1].devices[0].memory_limit_bytes, Some(20_262 << 20));
    assert_eq!(
        objects
            .require_slices()
            .err()
            .map(|error| error.code.exit_code()),
        Some(4)
    );
}

#[test]
fn names_of_pods_break_no_line_and_the_table_fits_a_narrow_terminal() {
    let mut objects = objects();
    for pod in &mut objects.pods {
        pod.metadata.name = Some(format!("{}\n\u{1b}[2J{}", pod.name_any(), "x".repeat(200)));
    }
    let text = ps::table(&pods(&objects, view(None).now), view(Some(60)));
    assert!(!text.contains('\u{1b}'));
    for line in text.lines() {
        assert!(line.chars().count() <= 60, "{line}");
    }
}
