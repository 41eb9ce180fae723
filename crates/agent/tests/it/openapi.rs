//! `openapi/v1.json` says what the agent does. `cargo xtask bless` writes it anew.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use divvy_api::openapi::document;
use divvy_api::route::{Answer, Body, ROUTES};
use divvy_testkit::{Home, call, quarter};
use serde_json::Value;

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/v1.json")
}

#[test]
fn the_committed_document_is_the_one_that_the_code_makes() {
    let made = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("DIVVY_RECORD").is_some() {
        std::fs::create_dir_all(committed().parent().unwrap()).unwrap();
        std::fs::write(committed(), &made).unwrap();
    }
    let committed = std::fs::read_to_string(committed()).unwrap();
    assert!(
        made == committed,
        "openapi/v1.json has drifted: DIVVY_RECORD=1 cargo test -p divvy-agent --test it openapi"
    );
}

/// Every key of the answer is in the schema, and every required key of the schema is in the answer.
fn conforms(value: &Value, schema: &Value, all: &Value) {
    let schema = match schema["$ref"].as_str() {
        Some(name) => &all[name.rsplit('/').next().unwrap()],
        None => schema,
    };
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let value = value.as_object().unwrap();
    let known: BTreeSet<&String> = properties.keys().collect();
    let unknown: Vec<_> = value.keys().filter(|key| !known.contains(key)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not in the document");
    for required in schema["required"].as_array().into_iter().flatten() {
        assert!(
            value.contains_key(required.as_str().unwrap()),
            "{required} is missing"
        );
    }
}

#[test]
fn every_route_of_the_document_is_served_and_answers_what_it_says() {
    let mut home = Home::empty();
    let devices = home.path().join("cdi");
    let devices = format!("containers.cdi-dir={}", devices.display());
    home.start(&["--sim", "l4-24gb:1", "--set", &devices]);
    let socket = home.socket();
    let (_, gpus) = call(&socket, "GET", "/v1/gpus", "");
    let gpus: Value = serde_json::from_str(&gpus).unwrap();
    let claim = serde_json::json!({
        "namespace": "team",
        "name": "train",
        "devices": [{"gpu": gpus["items"][0]["uuid"], "memory_bytes": 1 << 30}],
    });
    let claim = claim.to_string();
    let submit = serde_json::to_string(&quarter(&["true"])).unwrap();
    let document = document();
    let schemas = &document["components"]["schemas"];
    // Jobs are submitted before they are asked for.
    let mut routes: Vec<_> = ROUTES.iter().collect();
    routes.sort_by_key(|route| {
        let is_claims = route.path.starts_with("/v1/claims");
        (is_claims, route.body == Body::None)
    });
    for route in routes {
        // What needs a living job is asked for one that is not there: the one that is has come to its end. No GPU here can be
        // divided.
        let changes = [
            "cancel", "confirm", "resize", "requeue", "suspend", "resume", "docker", "exec",
            "signal", "change", "hold", "release",
        ]
        .iter()
        .any(|verb| route.path.ends_with(verb));
        let refused = match route.path {
            "/v1/mig/plan" => Some((422, "no GPU here is in MIG mode")),
            "/v1/jobs/{job}/park" | "/v1/jobs/{job}/wake" => Some((409, "has ended already")),
            _ if changes => Some((404, "there is no job nobody")),
            _ => None,
        };
        let path = route
            .path
            .replace("{job}", if changes { "nobody" } else { "1" })
            .replace("{gpu}", "0")
            .replace("{project}", "vision")
            .replace("{uid}", "u-1");
        let body = match (route.method, route.body) {
            ("POST", Body::Json("Resize")) => r#"{"amount":{"kind":"memory","bytes":1073741824}}"#,
            (_, Body::Json("JobChange")) => r#"{"priority":-1,"time_limit_s":60}"#,
            (_, Body::Json("Suspend" | "CancelJob")) => "{}",
            (_, Body::Json("JobsChange")) => r#"{"action":"cancel","dry_run":true}"#,
            (_, Body::Json("Confirm")) => r#"{"attempt":1,"labels":{"front.task":"t1"}}"#,
            (_, Body::Json("Exec")) => r#"{"command":["true"]}"#,
            (_, Body::Json("SignalJob")) => r#"{"signal":"int"}"#,
            (_, Body::Json("ProjectChange")) => r#"{"quota":500}"#,
            (_, Body::Json("GpuChange")) => r#"{"mode":"exclusive","dry_run":true}"#,
            (_, Body::Json("Drain")) => r#"{"gpus":["0"],"reason":"an update"}"#,
            (_, Body::Json("Undrain")) => "{}",
            (_, Body::Json("MigWanted")) => r#"{"profiles":["1g.5gb"]}"#,
            (_, Body::Json("MigGc")) => "{}",
            (_, Body::Json("Claim")) => &claim,
            ("POST", Body::Json(_)) => &submit,
            _ => "",
        };
        let (status, body) = call(&socket, route.method, &path, body);
        if let Some((code, message)) = refused {
            assert_eq!(status, code, "{body}");
            assert!(body.contains(message), "{body}");
            continue;
        }
        assert_eq!(status, 200, "{} {path}: {body}", route.method);
        let (of, kind) = match route.answer {
            Answer::List { of, kind } => (of, kind),
            Answer::Events => ("Event", "EventList"),
            Answer::Board => ("Board", "Board"),
            Answer::Jobs => ("Job", "JobList"),
            Answer::Bytes | Answer::Frames => continue,
        };
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (body["schema"].as_str(), body["kind"].as_str()),
            (Some("divvy/v1"), Some(kind)),
            "{path}"
        );
        for item in body["items"].as_array().unwrap() {
            conforms(item, &schemas[of], schemas);
        }
    }
}

#[test]
fn health_readiness_and_metrics_are_served_beside_the_api() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let socket = home.socket();
    let get = |path| call(&socket, "GET", path, "");
    assert_eq!(get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(get("/readyz"), (200, "ready\n".to_owned()));
    let (status, page) = get("/metrics");
    assert_eq!(status, 200);
    for line in [
        "divvy_gpu_health{gpu=\"0\"",
        "divvy_gpu_temperature_celsius{gpu=\"0\"",
        "divvy_gpu_power_watts{gpu=\"0\"",
        "divvy_gpu_energy_joules_total{gpu=\"0\"",
        "pci_bus_id=\"00000000:",
        "divvy_journal_fsync_duration_seconds_count ",
    ] {
        assert!(page.contains(line), "{page}");
    }
    assert_eq!(call(&socket, "POST", "/readyz", "").0, 400);
}

#[test]
fn what_is_no_route_or_no_body_fails_in_the_apis_own_form() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let socket = home.socket();
    for (method, path, body, status, code) in [
        ("GET", "/v1/nothing", "", 404, "not_found"),
        ("GET", "/", "", 404, "not_found"),
        ("DELETE", "/v1/jobs", "", 400, "usage"),
        ("POST", "/v1/jobs", "{", 400, "usage"),
        ("POST", "/v1/jobs", "{}", 400, "usage"),
        (
            "POST",
            "/v1/jobs",
            r#"{"command":["true"],"cwd":"/","env":{},"surprise":1}"#,
            400,
            "usage",
        ),
        ("GET", "/v1/jobs?some=true", "", 400, "usage"),
        ("GET", "/v1/jobs/1/wait?state=asleep", "", 400, "usage"),
        ("GET", "/v1/jobs/1", "", 404, "not_found"),
        ("GET", "/v1/jobs/%00", "", 404, "not_found"),
        ("GET", "/v1/jobs/1/oom", "", 404, "not_found"),
        ("POST", "/v1/jobs/1/resize", "{}", 400, "usage"),
        (
            "POST",
            "/v1/jobs/1/resize",
            r#"{"amount":{"kind":"memory","bytes":1}}"#,
            404,
            "not_found",
        ),
        ("POST", "/v1/jobs/1/exec", r#"{"command":[]}"#, 400, "usage"),
        (
            "POST",
            "/v1/jobs/1/exec",
            r#"{"command":["true"]}"#,
            404,
            "not_found",
        ),
        (
            "POST",
            "/v1/jobs/1/signal",
            r#"{"signal":"kill"}"#,
            400,
            "usage",
        ),
        ("GET", "/v1/jobs/1/log?from=middle", "", 400, "usage"),
        ("PUT", "/v1/claims/u", "{}", 400, "usage"),
        (
            "PUT",
            "/v1/claims/u",
            r#"{"namespace":"a","name":"b","devices":[{"gpu":"x","whole":true}]}"#,
            400,
            "usage",
        ),
        ("POST", "/v1/claims/u", "{}", 400, "usage"),
        ("GET", "/v1/claims/u", "", 400, "usage"),
        ("GET", "/v1/gpus/9/placements", "", 404, "not_found"),
        ("PATCH", "/v1/gpus/0", "{}", 400, "usage"),
        ("PATCH", "/v1/gpus/0", r#"{"mode":"whole"}"#, 400, "usage"),
        ("PATCH", "/v1/gpus/9", r#"{"mode":"mig"}"#, 404, "not_found"),
        ("GET", "/v1/gpus/0", "", 400, "usage"),
        ("POST", "/v1/mig/plan", r#"{"profiles":[]}"#, 400, "usage"),
        (
            "POST",
            "/v1/mig/plan",
            r#"{"profiles":["1g"]}"#,
            400,
            "usage",
        ),
        ("POST", "/v1/mig/gc", r#"{"all":true}"#, 400, "usage"),
        ("GET", "/v1/advice?name=a&program=b", "", 400, "usage"),
        ("GET", "/v1/advice?command=a", "", 400, "usage"),
        ("GET", "/v1/advice?job=1", "", 404, "not_found"),
    ] {
        let (answered, body) = call(&socket, method, path, body);
        assert_eq!(answered, status, "{method} {path}: {body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["code"], code, "{body}");
        assert!(
            body["error"]["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty())
        );
    }
}
