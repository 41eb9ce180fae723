//! What goes over the wire: paths, keys and tokens, the envelope, the list of calls, and calls that go wrong.

#![warn(clippy::disallowed_methods)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use divvy_clearml_stub::{ACCESS_KEY, Fault, SECRET_KEY, Status, Stub};
use divvy_testkit::{PATIENCE, until};
use serde_json::{Value, json};

/// One request on a connection of its own; nothing where the connection ended without an answer.
fn send(stub: &Stub, method: &str, path: &str, authorization: &str, body: &str) -> Option<Value> {
    let mut stream =
        TcpStream::connect(stub.url().trim_start_matches("http://")).expect("it listens");
    let head = format!(
        "{method} /{path} HTTP/1.1\r\nhost: stub\r\nconnection: close\r\nx-clearml-worker: here\r\n\
         x-clearml-agent: test\r\nauthorization: {authorization}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .expect("it reads");
    let timeout = stream.set_read_timeout(Some(PATIENCE));
    timeout.expect("the limit is not zero");
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    let (_, body) = said.split_once("\r\n\r\n")?;
    Some(serde_json::from_str(body).expect("an envelope"))
}

fn basic(key: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{key}:{SECRET_KEY}")))
}

fn bearer(stub: &Stub) -> String {
    let answer = send(stub, "POST", "auth.login", &basic(ACCESS_KEY), "{}").expect("an answer");
    format!(
        "Bearer {}",
        answer["data"]["token"].as_str().expect("a token")
    )
}

fn codes(answer: Option<Value>) -> (i64, i64) {
    let answer = answer.expect("an answer");
    let code = |name: &str| answer["meta"][name].as_i64().expect("a number");
    (code("result_code"), code("result_subcode"))
}

#[test]
fn a_call_may_have_any_method_and_version_and_its_answer_an_envelope() {
    let stub = Stub::start();
    let bearer = bearer(&stub);
    for (method, path) in [
        ("POST", "queues.get_all"),
        ("GET", "v2.4/queues.get_all"),
        ("GET", "v9.9/queues.get_all"),
    ] {
        let answer = send(&stub, method, path, &bearer, r#"{"name": "x"}"#).expect("an answer");
        assert_eq!(answer["data"], json!({ "queues": [] }));
        assert_eq!(answer["meta"]["endpoint"]["name"], "queues.get_all");
        assert_eq!(answer["meta"]["endpoint"]["actual_version"], "2.34");
    }
    let call = &stub.calls()[1];
    assert_eq!(
        (call.worker.as_str(), call.client.as_str()),
        ("here", "test")
    );
    assert_eq!(call.body, json!({ "name": "x" }));
    assert_eq!(stub.complaints(), [] as [String; 0]);
}

#[test]
fn a_caller_is_known_by_keys_or_by_a_token_of_some_age() {
    let stub = Stub::start();
    let codes =
        |authorization: &str, path: &str| codes(send(&stub, "POST", path, authorization, "{}"));
    assert_eq!(codes("", "auth.login"), (401, 20));
    assert_eq!(codes("Basic x", "auth.login"), (401, 21));
    assert_eq!(codes(&basic("NOBODY"), "auth.login"), (401, 22));
    assert_eq!(codes("Bearer x.y.z", "queues.get_all"), (401, 30));
    assert_eq!(codes(&basic("GUESTKEY"), "queues.get_all"), (200, 0));
    assert_eq!(codes(&basic("GUESTKEY"), "queues.create"), (403, 20));
    let token = bearer(&stub);
    let claims = token.split('.').nth(1).expect("three parts");
    let claims: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).expect("base64")).expect("JSON");
    assert_eq!(claims["feature_set"], "basic");
    assert_eq!(claims["identity"]["user"], "ana");
    assert_eq!(codes(&token, "queues.get_all"), (200, 0));
    stub.advance(Duration::from_secs(30 * 24 * 3600));
    assert_eq!(codes(&token, "queues.get_all"), (401, 30));
    let token = bearer(&stub);
    stub.advance(Duration::from_secs(1));
    stub.with(|world| world.revoke_tokens());
    assert_eq!(codes(&token, "queues.get_all"), (401, 30));
    assert_eq!(codes(&bearer(&stub), "queues.get_all"), (200, 0));
}

#[test]
fn what_it_is_strict_about_is_refused_and_noted() {
    let stub = Stub::start();
    let token = bearer(&stub);
    let task = stub.enqueued("half_gpu", "train", json!({}));
    let codes =
        |path: &str, body: Value| codes(send(&stub, "POST", path, &token, &body.to_string()));
    assert_eq!(
        codes("tasks.ping", json!({ "task": task, "colour": "red" })),
        (400, 12)
    );
    assert_eq!(
        codes("tasks.completed", json!({ "task": task })),
        (400, 110)
    );
    assert_eq!(codes("workers.get_runtime_properties", json!({})), (404, 0));
    assert_eq!(
        codes("queues.get_by_id", json!({ "queue": "half_gpu" })),
        (400, 701)
    );
    let complaints = stub.complaints();
    assert_eq!(complaints.len(), 3, "{complaints:?}");
    assert!(
        complaints[1].contains("current_status=queued, new_status=completed"),
        "{}",
        complaints[1]
    );
}

#[test]
fn calls_go_wrong_as_often_as_a_test_wants() {
    let stub = Stub::start();
    let token = bearer(&stub);
    let task = stub.enqueued("half_gpu", "train", json!({}));
    let start = || {
        send(
            &stub,
            "POST",
            "tasks.started",
            &token,
            &json!({ "task": task }).to_string(),
        )
    };
    stub.inject(Fault::answer("tasks.started", 503).times(2));
    stub.inject(Fault::drop_before("tasks.started"));
    stub.inject(Fault::drop_after("tasks.started"));
    assert_eq!(codes(start()), (503, 0));
    assert_eq!(codes(start()), (503, 0));
    assert!(start().is_none());
    assert_eq!(stub.status(&task), Some(Status::Queued));
    assert!(start().is_none());
    assert_eq!(stub.status(&task), Some(Status::InProgress));
    assert_eq!(codes(start()), (200, 0));
    assert_eq!(
        stub.calls_to("tasks.started").len(),
        4,
        "what was dropped before is no call"
    );
}

#[test]
fn a_held_call_waits_and_the_others_do_not() {
    let stub = Stub::start();
    let token = bearer(&stub);
    let task = stub.enqueued("half_gpu", "train", json!({}));
    let (body, login) = (json!({ "task": task }).to_string(), || {
        codes(send(&stub, "POST", "auth.login", &basic(ACCESS_KEY), ""))
    });
    for (hold, held_at) in [
        (stub.hold_before("tasks.started"), Status::Queued),
        (stub.hold_after("tasks.failed"), Status::Failed),
    ] {
        let path = if held_at == Status::Queued {
            "tasks.started"
        } else {
            "tasks.failed"
        };
        thread::scope(|scope| {
            let call = scope.spawn(|| codes(send(&stub, "POST", path, &token, &body)));
            until("the call is held", || hold.is_reached().then_some(()));
            assert_eq!(stub.status(&task), Some(held_at));
            assert_eq!(login(), (200, 0));
            hold.release();
            assert_eq!(call.join().expect("it is answered"), (200, 0));
        });
    }
}

#[test]
fn a_fault_finds_the_call_that_is_meant() {
    let stub = Stub::start();
    let token = bearer(&stub);
    let (task, other) = (
        stub.enqueued("half_gpu", "train", json!({})),
        stub.enqueued("half_gpu", "other", json!({})),
    );
    let call = |path: &str, task: &str| {
        let body = json!({ "task": task }).to_string();
        codes(send(&stub, "POST", path, &token, &body))
    };
    stub.inject(Fault::answer("*", 502).changes().about(&task).skip(1));
    assert_eq!(call("tasks.started", &task), (200, 0));
    assert_eq!(call("tasks.get_by_id", &task), (200, 0));
    assert_eq!(call("tasks.ping", &other), (200, 0));
    assert_eq!(call("tasks.ping", &task), (502, 0));
    assert_eq!(call("tasks.ping", &task), (200, 0));
}
