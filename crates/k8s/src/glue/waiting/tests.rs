use serde_json::json;

use super::*;
use crate::glue::pod_status::pod_status;

const NOW: &str = "2026-11-26T22:00:00Z";

fn event(uid: &str, kind: &str, reason: &str, message: &str, at: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {}, "involvedObject": { "kind": "Pod", "uid": uid }, "type": kind, "reason": reason,
        "message": message, "lastTimestamp": at,
    }))
    .unwrap()
}

fn pod(uid: &str, spec: Value, status: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "uid": uid }, "spec": spec, "status": status }))
        .unwrap()
}

fn said(reasons: &Reasons, pod: &Pod) -> Option<String> {
    match reasons.explain(pod, pod_status(pod)).state {
        PodState::Waits(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_latest_warning_of_a_pod_counts_and_divvys_own_before_it() {
    let events = [
        event("a", "Warning", "FailedMount", "old", "2026-11-26T21:49:59Z"),
        event(
            "b",
            "Warning",
            "FailedMount",
            "first",
            "2026-11-26T21:58:00Z",
        ),
        event(
            "b",
            "Warning",
            "FailedPrepareDynamicResources",
            "second",
            "2026-11-26T21:59:00Z",
        ),
        event(
            "b",
            "Normal",
            "Scheduled",
            "Successfully assigned",
            "2026-11-26T21:59:30Z",
        ),
        event(
            "b",
            "Warning",
            "FailedScheduling",
            "0/1 nodes",
            "2026-11-26T21:59:40Z",
        ),
        event(
            "c",
            "Normal",
            "WaitsForGpu",
            "waits for 0.500 of a GPU",
            "2026-11-26T21:58:00Z",
        ),
        event(
            "c",
            "Warning",
            "FailedMount",
            "later",
            "2026-11-26T21:59:00Z",
        ),
        event("d", "Warning", "BackOff", " ", "2026-11-26T21:59:00Z"),
    ];
    let reasons = latest(&events, NOW.parse().unwrap());
    let expected = [
        ("b", "FailedPrepareDynamicResources: second"),
        ("c", "WaitsForGpu: waits for 0.500 of a GPU"),
        ("d", "BackOff"),
    ];
    assert_eq!(
        reasons,
        expected
            .map(|(uid, why)| (uid.to_owned(), why.to_owned()))
            .into()
    );
}

#[test]
fn a_pod_that_waits_shows_the_best_known_reason() {
    let unschedulable = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/3 nodes are available" }] });
    let gated = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False",
        "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates" }] });
    let kueue = json!({ "containers": [], "schedulingGates": [{ "name": KUEUE_GATE }] });
    let (bare, mut reasons) = (json!({ "containers": [] }), Reasons::default());
    let placed = pod("p", bare.clone(), json!({ "phase": "Pending" }));
    let waits = pod("w", bare, unschedulable);
    let held = pod("g", kueue, gated);
    assert_eq!(said(&reasons, &placed), None);
    assert_eq!(
        said(&reasons, &held).as_deref(),
        Some("SchedulingGated: Scheduling is blocked due to non-empty scheduling gates")
    );
    for uid in ["p", "g"] {
        reasons
            .events
            .insert(uid.to_owned(), "FailedMount: no".to_owned());
    }
    reasons
        .workloads
        .insert("g".to_owned(), "no quota".to_owned());
    assert_eq!(said(&reasons, &placed).as_deref(), Some("FailedMount: no"));
    assert_eq!(
        said(&reasons, &waits).as_deref(),
        Some("Unschedulable: 0/3 nodes are available")
    );
    assert_eq!(said(&reasons, &held).as_deref(), Some("Kueue: no quota"));
    reasons
        .events
        .insert("p".to_owned(), "é".repeat(LONGEST + 1));
    assert_eq!(
        said(&reasons, &placed).unwrap().chars().count(),
        LONGEST + 1
    );
}

#[test]
fn a_workload_says_why_its_pod_is_held() {
    let workload =
        |conditions: Value| json!({ "spec": {}, "status": { "conditions": conditions } });
    let waits = json!({ "type": "QuotaReserved", "status": "False", "reason": "Pending",
        "message": "insufficient unused quota for gpu.memory" });
    let preempted = json!({ "type": "Preempted", "status": "True", "message": "to reclaim quota" });
    for (workload, why) in [
        (json!({}), None),
        (workload(json!([])), None),
        (
            workload(json!([waits])),
            Some("insufficient unused quota for gpu.memory"),
        ),
        (
            workload(json!([waits, preempted])),
            Some("insufficient unused quota for gpu.memory (it ran before: to reclaim quota)"),
        ),
        (
            json!({ "spec": { "active": false } }),
            Some("the Workload is deactivated"),
        ),
        (
            workload(json!([{ "type": "QuotaReserved", "status": "True", "message": "quota" }])),
            None,
        ),
    ] {
        assert_eq!(quota_reason(&workload).as_deref(), why, "{workload}");
    }
}
