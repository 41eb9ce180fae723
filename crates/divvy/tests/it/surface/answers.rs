//! What the program makes of an agent's answers: what it asks, what it prints, what it passes on.

use std::os::unix::process::ExitStatusExt as _;

use crate::surface::agent::{Answer, Asked, Home};
use insta::assert_snapshot;
use serde_json::{Value, json};

fn items(kind: &str, items: &[Value]) -> Answer {
    Answer::Body(
        200,
        json!({"schema": "divvy/v1", "kind": kind, "items": items}).to_string(),
    )
}

fn job(id: &str, state: &str, end_reason: Option<&str>, exit_code: Option<i32>) -> Value {
    json!({
        "id": id, "name": "train.py", "user": "ana", "project": null, "queue": "half_gpu", "state": state,
        "end_reason": end_reason, "exit_code": exit_code, "request": {"kind": "share", "thousandths": 500},
        "compute": "fair", "slices": [], "reason": null, "place": null, "command": ["python", "train.py"],
        "cwd": "/home/ana", "runner": "supervisor", "pid": null, "submitted_at": "2026-03-04T11:00:00Z",
        "started_at": null, "ended_at": null, "directory": "/nowhere", "slice_directory": null,
    })
}

fn failure(status: u16, code: &str) -> Answer {
    let error =
        json!({"code": code, "message": format!("it is {code}"), "hint": "do something else"});
    Answer::Body(status, json!({ "error": error }).to_string())
}

/// The job that a path names, as this agent has it.
fn ended(question: &Asked) -> Answer {
    let id = question.path.split('/').nth(3).unwrap_or_default();
    let job = match id {
        "1" => job("1", "ended", Some("completed"), Some(0)),
        "2" => job("2", "ended", Some("failed"), Some(3)),
        "3" => job("3", "ended", Some("failed"), Some(137)),
        "4" => job("4", "ended", Some("launch_failed"), Some(127)),
        "5" => job("5", "ended", Some("cancelled"), None),
        "6" => job("6", "ended", Some("supervisor_lost"), None),
        "7" => job("7", "running", None, None),
        _ => return failure(404, "not_found"),
    };
    items("JobList", &[job])
}

#[test]
fn every_error_code_has_its_exit_code() {
    let codes = [
        ("internal", 500, 1),
        ("usage", 400, 2),
        ("not_found", 404, 3),
        ("gone", 410, 3),
        ("not_allowed", 403, 4),
        ("too_many", 429, 4),
        ("never_fits", 422, 5),
        ("would_wait", 409, 6),
        ("no_daemon", 503, 7),
        ("conflict", 409, 8),
        ("timed_out", 408, 9),
        ("launch_failed", 500, 125),
    ];
    for (code, status, exit) in codes {
        let home = Home::with_agent(move |_, _| failure(status, code));
        let said = home.said(&["ps"]);
        let expected = format!(
            "exit {exit}\n--- stdout\n--- stderr\nerror: it is {code}\nhint: do something else\n"
        );
        assert_eq!(said, format!("$ divvy ps\n{expected}"));
    }
}

#[test]
fn wait_passes_the_programs_exit_code() {
    let home = Home::with_agent(|question, _| ended(question));
    for (jobs, exit) in [
        (&["1"][..], 0),
        (&["2"], 3),
        (&["#3"], 137),
        (&["4"], 127),
        (&["1", "1", "3", "2"], 137),
    ] {
        let said = home.said(&[&["wait"], jobs].concat());
        assert!(
            said.ends_with(&format!("exit {exit}\n--- stdout\n--- stderr\n")),
            "{said}"
        );
    }
    assert_snapshot!("wait_cancelled", home.said(&["wait", "5"]));
    assert_snapshot!("wait_lost", home.said(&["wait", "6"]));
    assert_snapshot!(
        "wait_timeout",
        home.said(&["wait", "1", "7", "--timeout", "1ms"])
    );
    assert_snapshot!("wait_unknown", home.said(&["wait", "1", "99"]));
    assert_snapshot!("wait_name", home.said(&["wait", "2", "1", "-o", "name"]));
}

#[test]
fn wait_outlives_a_restart_of_the_daemon() {
    let home =
        Home::with_agent(
            |question, before| match (question.path.contains("/wait"), before) {
                (true, 0) => ended(&Asked {
                    path: "/v1/jobs/7".into(),
                    ..question.clone()
                }),
                (true, 3..) => ended(&Asked {
                    path: "/v1/jobs/2".into(),
                    ..question.clone()
                }),
                (true, _) => Answer::Gone,
                (false, _) => ended(&Asked {
                    path: "/v1/jobs/7".into(),
                    ..question.clone()
                }),
            },
        );
    let said = home.said(&["wait", "7"]);
    assert!(said.ends_with("exit 3\n--- stdout\n--- stderr\n"), "{said}");
    assert_eq!(home.asked().len(), 4);
}

#[test]
fn a_followed_log_goes_on_at_the_byte_where_it_was_torn() {
    let home = Home::with_agent(|question, _| match question.path.as_str() {
        "/v1/jobs/last" => ended(&Asked {
            path: "/v1/jobs/7".into(),
            ..question.clone()
        }),
        "/v1/jobs/7" => items("JobList", &[job("7", "ended", Some("completed"), Some(0))]),
        "/v1/jobs/7/log?offset=0&follow=true" => Answer::Torn("first\n".into()),
        "/v1/jobs/7/log?offset=6&follow=true" => Answer::Body(200, "second\n".into()),
        path => panic!("nobody should ask for {path}"),
    });
    assert_snapshot!("logs_torn", home.said(&["logs", "-f"]));
}

#[test]
fn followed_events_go_on_after_the_last_one_seen() {
    let event = |seq: u64| {
        let event = json!({"seq": seq, "at": "2026-03-04T11:00:00Z", "job": "7", "kind": "running", "text": "on gpu0"});
        format!("id: {seq}\ndata: {event}\n\n")
    };
    let home = Home::with_agent(move |question, _| match question.path.as_str() {
        "/v1/node" => items("Node", &[node(None)]),
        "/v1/events?follow=true" => Answer::Torn(event(1) + &event(2)),
        "/v1/events?after=2&follow=true" => Answer::Body(200, event(3)),
        _ => failure(500, "internal"),
    });
    assert_snapshot!("events_torn", home.said(&["events", "-f", "-o", "ndjson"]));
}

#[test]
fn cancel_goes_through_the_whole_list() {
    let home = Home::with_agent(|question, _| ended(question));
    assert_snapshot!("cancel", home.said(&["cancel", "7", "99", "5"]));
    assert!(
        home.asked()
            .iter()
            .all(|asked| asked.method == "POST" && asked.path.ends_with("/cancel"))
    );
}

fn node(simulated: Option<&str>) -> Value {
    json!({
        "hostname": "box", "version": "0.1.0", "pid": 1, "driver_version": "580.1", "simulated": simulated,
        "order": "strict", "backfill": false, "home": "/nowhere",
    })
}

/// An agent that queues whatever is submitted.
fn queueing(question: &Asked, _: usize) -> Answer {
    match (question.method.as_str(), question.path.as_str()) {
        (_, "/v1/node") => items("Node", &[node(Some("l4-24gb:1"))]),
        ("POST", "/v1/jobs") => {
            let mut job = job("12", "queued", None, None);
            job["reason"] = "needs 0.5 of a GPU; 1 of 1 GPU in use".into();
            items("JobList", &[job])
        }
        _ => ended(question),
    }
}

#[test]
fn submit_says_what_became_of_the_job() {
    let home = Home::with_agent(queueing);
    assert_snapshot!(
        "submit",
        home.said(&["submit", "-q", "half_gpu", "--", "python", "train.py"])
    );
    assert_snapshot!(
        "submit_parsable",
        home.said(&["submit", "--parsable", "-q", "half_gpu", "--", "python"])
    );
    assert_snapshot!(
        "submit_dry_run",
        home.said(&["submit", "--dry-run", "-g", "0.5", "--", "python"])
    );
    let body = |asked: &Asked| serde_json::from_str::<Value>(&asked.body).unwrap();
    let bodies: Vec<Value> = home
        .asked()
        .iter()
        .filter(|asked| asked.path == "/v1/jobs")
        .map(body)
        .collect();
    assert_eq!(
        (&bodies[0]["queue"], &bodies[0]["amount"]),
        (&json!("half_gpu"), &Value::Null)
    );
    assert_eq!(
        (&bodies[2]["dry_run"], &bodies[2]["amount"]["thousandths"]),
        (&json!(true), &json!(500))
    );
}

#[test]
fn simulated_gpus_other_than_the_daemons_are_a_conflict() {
    let home = Home::with_agent(queueing);
    assert_snapshot!(
        "submit_other_gpus",
        home.said(&["submit", "--sim", "a100-80gb:3", "-g", "1", "--", "x"])
    );
    assert!(
        home.asked().iter().all(|asked| asked.method == "GET"),
        "something was submitted"
    );
}

#[test]
fn an_empty_list_is_said_on_stderr() {
    let home = Home::with_agent(|_, _| items("JobList", &[]));
    assert_snapshot!("ps_empty", home.said(&["ps"]));
    assert_snapshot!("ps_empty_json", home.said(&["ps", "-o", "json"]));
}

#[test]
fn stop_ends_the_process_that_answers_and_waits_for_its_end() {
    let mut daemon = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let pid = daemon.id();
    let home = Home::with_agent(move |question, _| match question.path.as_str() {
        "/v1/node" => {
            let mut node = node(None);
            node["pid"] = pid.into();
            items("Node", &[node])
        }
        "/v1/jobs" => {
            let mut running = job("7", "running", None, None);
            running["pid"] = 4242.into();
            items("JobList", &[running, job("8", "queued", None, None)])
        }
        path => panic!("nobody should ask for {path}"),
    });
    let said = home.said(&["daemon", "--stop"]);
    assert_snapshot!("stop", said.replace(&pid.to_string(), "PID"));
    assert_eq!(
        daemon
            .try_wait()
            .unwrap()
            .and_then(|status| status.signal()),
        Some(15)
    );
}

#[test]
fn a_job_whose_acknowledgement_was_lost_is_submitted_again_under_the_same_key() {
    let home = Home::with_agent(|question, before| match question.path.as_str() {
        "/v1/node" => items("Node", &[node(None)]),
        "/v1/jobs" if before == 1 => Answer::Gone,
        "/v1/jobs" => items("JobList", &[job("7", "queued", None, None)]),
        path => panic!("nobody should ask for {path}"),
    });
    let said = home.said(&["submit", "--parsable", "-g", "0.5", "--", "true"]);
    assert!(
        said.ends_with("exit 0\n--- stdout\n7\n--- stderr\n"),
        "{said}"
    );
    let keys: Vec<String> = home
        .asked()
        .iter()
        .filter(|question| question.method == "POST")
        .map(|question| {
            let body: Value = serde_json::from_str(&question.body).expect("a submission is JSON");
            body["idempotency_key"].as_str().expect("a key").to_owned()
        })
        .collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
}

fn slice(limit: u64, target: Option<u64>) -> Value {
    json!({
        "label": "gpu0.25a", "gpu_uuid": "GPU-0", "gpu_index": 0, "memory_limit_bytes": limit, "share": 250,
        "memory_used_bytes": 7_000_000_000_u64, "memory_peak_bytes": 7_500_000_000_u64, "processes": 1, "denials": 0,
        "last_denied_bytes": null, "enforcement": "interposer", "memory_target_bytes": target,
    })
}

/// An agent that has room for job 7, none for job 8, and knows of no other.
fn resizing(question: &Asked, _: usize) -> Answer {
    match question.path.as_str() {
        "/v1/jobs/7/resize" => {
            let mut job = job("7", "running", None, None);
            let body: Value = serde_json::from_str(&question.body).expect("a resize is JSON");
            job["slices"] = match body["amount"]["bytes"].as_u64() {
                None => json!([slice(8 << 30, None)]),
                Some(more) if more > 8 << 30 => json!([slice(more, None)]),
                Some(less) => json!([slice(8 << 30, Some(less))]),
            };
            if let Some(compute) = body.get("compute") {
                job["compute"] = compute.clone();
            }
            items("JobList", &[job])
        }
        "/v1/jobs/8/resize" => failure(409, "would_wait"),
        "/v1/jobs/9/resize" => failure(409, "conflict"),
        _ => failure(404, "not_found"),
    }
}

#[test]
fn resize_says_what_the_job_has_now_and_what_it_is_to_have() {
    let home = Home::with_agent(resizing);
    let resize = |job, size| home.said(&["resize", job, "--gpu-memory", size]);
    assert_snapshot!("resize_more", resize("#7", "12G"));
    assert_snapshot!("resize_less", resize("7", "2G"));
    assert_snapshot!("resize_no_room", resize("8", "12G"));
    let divide = |mode| home.said(&["resize", "7", "--compute", mode]);
    assert_snapshot!("resize_compute", divide("strict=0.25"));
    assert_snapshot!("resize_compute_none", divide("none"));
    let both = ["resize", "7", "--gpu-memory", "2G", "--compute", "fair=0.5"];
    assert_snapshot!("resize_both", home.said(&both));
    assert!(resize("9", "1G").contains("\nexit 8\n"));
    assert!(resize("99", "1G").contains("\nexit 3\n"));
    let named = home.said(&["resize", "7", "--gpu-memory", "2G", "-o", "name"]);
    assert!(
        named.ends_with("exit 0\n--- stdout\n7\n--- stderr\n"),
        "{named}"
    );
    let asked = &home.asked()[0];
    assert_eq!(
        (asked.method.as_str(), asked.path.as_str()),
        ("POST", "/v1/jobs/7/resize")
    );
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(
        body,
        json!({"amount": {"kind": "memory", "bytes": 12_u64 << 30}})
    );
    let body: Value = serde_json::from_str(&home.asked()[3].body).unwrap();
    assert_eq!(body, json!({"compute": "strict=0.25"}));
}

#[test]
fn oom_says_what_was_refused_or_that_nothing_was() {
    let record = json!({
        "number": 0, "at": "2026-03-04T11:00:00Z", "pid": 4242, "program": "python3", "api": "cuMemCreate",
        "cause": "slice_full", "gpu_uuid": "GPU-0", "gpu_index": 0, "asked_bytes": 1_u64 << 30, "limit_bytes": 8_u64 << 30,
        "used_bytes": 7_u64 << 30, "own_bytes": 7_u64 << 30, "unaccounted_bytes": 0, "gpu_free_bytes": null,
        "gpu_total_bytes": null, "sufficient_limit_bytes": 8_u64 << 30, "skipped": 0, "allocations": 0, "largest": [],
        "peer_count": 0, "peers": [],
    });
    let home = Home::with_agent(move |question, _| {
        let oom = |id: &str, records: &[Value]| {
            let denied = records.len();
            let oom = json!({
                "job": id, "name": "train.py", "state": "ended", "denials": denied, "records": records,
                "suggested": if denied > 0 { json!({"kind": "memory", "bytes": 16_u64 << 30}) } else { Value::Null },
            });
            items("Oom", &[oom])
        };
        match question.path.as_str() {
            "/v1/jobs/7/oom" => oom("7", std::slice::from_ref(&record)),
            "/v1/jobs/last/oom" => oom("8", &[]),
            _ => failure(404, "not_found"),
        }
    });
    let said = home.said(&["oom", "7"]);
    // How long ago depends on when this runs.
    let ago = said.find(" ago").expect("it says how long ago");
    let from = said[..ago].rfind('\n').expect("a line before");
    assert_snapshot!("oom", [&said[..=from], "SOME TIME", &said[ago..]].concat());
    assert_snapshot!("oom_none", home.said(&["oom"]));
    assert_snapshot!("oom_unknown", home.said(&["oom", "99"]));
}

#[test]
fn advise_needs_history_and_gives_a_command() {
    let home = Home::with_agent(|question, _| {
        let advice = json!({
            "name": "train", "program": "python train.py", "gpus": 1, "runs": 2, "denied_runs": 0,
            "memory_limit_bytes": 8_u64 << 30, "memory_peak_median_bytes": 3_u64 << 30,
            "memory_peak_bytes": 4_u64 << 30, "memory_bytes": 5_u64 << 30,
            "memory_at_least_bytes": 4_u64 << 30, "amount": {"kind": "memory", "bytes": 5_u64 << 30}, "command": ["python", "train.py"],
        });
        match question.path.as_str() {
            "/v1/advice?job=last" | "/v1/advice?program=python%20train.py" => {
                items("AdviceList", &[advice])
            }
            _ => items("AdviceList", &[]),
        }
    });
    assert_snapshot!("advise_job", home.said(&["advise", "last"]));
    let by_command = home.said(&["advise", "--", "python", "-u", "train.py", "--lr", "1"]);
    assert!(
        by_command.contains("divvy run --gpu-memory 5GiB -- python train.py"),
        "{by_command}"
    );
    assert_snapshot!("advise_unknown", home.said(&["advise", "--name", "no*"]));
    assert_snapshot!("advise_nothing", home.said(&["advise"]));
}
