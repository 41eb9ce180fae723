//! Boards for the tests of the live view.
#![cfg(test)]

use divvy_api::v1::Board;
use jiff::Timestamp;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
const USABLE: u64 = 79 * GIB + GIB / 5;

/// The time of every board here.
pub fn now() -> Timestamp {
    "2026-01-02T12:04:31Z".parse().unwrap()
}

fn gpu(index: u32, used_gib: f64, share: u16, util: u32) -> Value {
    json!({
        "index": index, "model": "NVIDIA H200", "mode": "shared", "usable_bytes": USABLE,
        "used_bytes": gib(used_gib), "allocated_bytes": USABLE / 1000 * u64::from(share), "share": share,
        "utilization_percent": util, "temperature_celsius": 50 + index, "power_watts": 90 + util * 3,
    })
}

fn gib(number: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small figures of a test"
    )]
    let bytes = (number * 1024.0) as u64;
    bytes << 20
}

fn slice(gpu: u32, label: &str, share: u16, used_gib: f64, peak_gib: f64) -> Value {
    json!({
        "gpu": gpu, "label": label, "limit_bytes": USABLE / 1000 * u64::from(share), "used_bytes": gib(used_gib),
        "peak_bytes": gib(peak_gib), "share": share, "share_used": share / 2 + 20,
    })
}

/// Four GPUs, a MIG GPU and a sleeping one among them, six jobs, four pending jobs.
pub fn board() -> Board {
    let mut mig = gpu(2, 6.0, 0, 0);
    mig["mode"] = json!("mig");
    mig["utilization_percent"] = Value::Null;
    mig["mig"] = json!({ "slots": 8, "instances": [
        { "profile": "1g.10gb", "start": 0, "size": 1, "state": "held", "job": "22" },
        { "profile": "1g.10gb", "start": 1, "size": 1, "state": "idle" },
        { "profile": "1g.10gb", "start": 2, "size": 1, "state": "quarantined" },
        { "profile": "3g.40gb", "start": 4, "size": 4, "state": "held", "job": "23" },
    ] });
    let mut asleep = gpu(3, 0.0, 0, 0);
    asleep["asleep"] = json!(true);
    let mut second = gpu(1, 78.0, 1000, 98);
    second["unmanaged_bytes"] = json!(4 * GIB);
    second["processes"] =
        json!([{ "pid": 4242, "user": "zoe", "program": "blender", "memory_bytes": 4 * GIB }]);
    let at = |minutes: i64| (now() - jiff::SignedDuration::from_mins(minutes)).to_string();
    let mut on_mig = slice(2, "gpu2.1g.10gb@0", 125, 3.1, 3.4);
    on_mig["mig"] =
        json!({ "profile": "1g.10gb", "start": 0, "memory_slices": 1, "memory_bytes": 9 * GIB });
    let mut larger_on_mig = slice(2, "gpu2.3g.40gb@4", 500, 30.0, 31.0);
    larger_on_mig["mig"] =
        json!({ "profile": "3g.40gb", "start": 4, "memory_slices": 4, "memory_bytes": 39 * GIB });
    let board = json!({
        "hostname": "lab1", "version": "0.2.0", "changed_at": now(), "last_event": 90,
        "gpus": [gpu(0, 43.0, 750, 71), second, mig, asleep],
        "jobs": [
            { "id": "7", "name": "train", "user": "ana", "queue": "half", "project": "vision", "since": at(124),
              "denials": 2, "slices": [slice(0, "gpu0.5a", 500, 31.2, 38.0)] },
            { "id": "12", "name": "notebook", "user": "lee", "queue": "half", "since": at(31), "compute": "strict=0.25",
              "slices": [slice(0, "gpu0.25b", 250, 11.5, 11.5)] },
            { "id": "14", "name": "pretrain-訓練", "user": "bo", "project": "speech", "since": at(3000), "bypass": true,
              "slices": [slice(1, "gpu1", 1000, 74.0, 76.0)], "ends_by": "2026-01-02T13:10:00Z" },
            { "id": "21", "name": "evaluate", "user": "ana", "since": at(2), "suspended": true,
              "slices": [slice(0, "gpu0.125c", 125, 0.3, 0.5)] },
            { "id": "22", "task": "22_1", "name": "sweep_1", "user": "kim", "since": at(9), "slices": [on_mig] },
            { "id": "23", "name": "serve", "user": "kim", "since": at(600), "state": "starting", "slices": [larger_on_mig] },
        ],
        "waiting": {
            "count": 4, "reasons": { "insufficient": 1, "behind": 3 },
            "first": [
                { "id": "31", "name": "eval", "user": "eva", "queue": "half", "request": "1", "since": at(12),
                  "reason": "needs 1 whole GPU; 3.5 of 4 GPUs in use", "reason_code": "insufficient",
                  "expected_start": "2026-01-02T12:16:31Z", "latest_start": "2026-01-02T13:10:00Z" },
                { "id": "32", "name": "batch", "user": "lee", "request": "0.25", "since": at(11),
                  "reason": "behind #31 in queue default", "reason_code": "behind" },
                { "id": "33", "task": "33_0", "name": "big\u{1b}[2J", "user": "bo", "request": "2", "since": at(10),
                  "reason": "behind #31 in queue default", "reason_code": "behind" },
                { "id": "34", "name": "last", "user": "ana", "request": "4GiB", "since": at(1),
                  "reason": "behind #31 in queue default", "reason_code": "behind" },
            ],
        },
        "queues": [{ "name": "half", "waiting": 1, "running": 2 }, { "name": "default", "waiting": 3, "running": 4 }],
        "users": [
            { "name": "ana", "running": 2, "waiting": 1, "share": 625, "share_used": 300, "limit_bytes": 49 * GIB,
              "used_bytes": 31 * GIB },
            { "name": "bo", "running": 1, "waiting": 1, "share": 1000, "limit_bytes": 79 * GIB, "used_bytes": 74 * GIB },
        ],
        "projects": [
            { "name": "vision", "running": 1, "waiting": 0, "share": 500, "limit_bytes": 39 * GIB,
              "used_bytes": 31 * GIB, "quota": 2000 },
        ],
    });
    serde_json::from_value(board).unwrap()
}

/// As many GPUs, each with eight jobs, and as many pending jobs.
pub fn large(gpus: u32, waiting: u64) -> Board {
    let mut board = board();
    let (shared, job) = (board.gpus[0].clone(), board.jobs[0].clone());
    let first = board.waiting.first[1].clone();
    board.gpus = (0..gpus)
        .map(|index| divvy_api::v1::BoardGpu {
            index,
            ..shared.clone()
        })
        .collect();
    board.jobs = (0..gpus * 8)
        .map(|number| {
            let mut job = job.clone();
            job.id = (100 + number).to_string();
            job.slices[0].gpu = number / 8;
            job.slices[0].share = 125;
            job.slices[0].limit_bytes = USABLE / 8;
            job.slices[0].used_bytes = USABLE / 8 / (u64::from(number % 4) + 1);
            job.slices[0].label = format!(
                "gpu{}.125{}",
                number / 8,
                char::from(b'a' + u8::try_from(number % 8).unwrap())
            );
            job
        })
        .collect();
    board.waiting.count = waiting;
    board.waiting.first = (0..waiting.min(12))
        .map(|number| {
            let mut job = first.clone();
            job.id = (1000 + number).to_string();
            job
        })
        .collect();
    board
}
