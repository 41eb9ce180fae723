//! The client against the stand-in server.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use divvy_clearml::Settings;
use divvy_clearml::server::{Event, Server, Subcode};
use divvy_clearml_stub::{Fault, Stub};
use serde_json::json;

/// A client with the stand-in's own configuration and these keys on top; it waits for nothing between two attempts.
fn client(stub: &Stub, keys: &[(&str, &str)]) -> Server {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("clearml.conf");
    let conf = stub.conf() + "\napi.http.retries { total: 3, backoff_factor: 0 }\n";
    std::fs::write(&file, conf).expect("a file");
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let vars: BTreeMap<String, String> = keys.iter().map(owned).collect();
    let settings = Settings::read_with(Some(&file), vars).expect("settings");
    Server::new(&settings.api, "node1").expect("a client")
}

#[tokio::test]
async fn keys_that_the_server_does_not_know_are_refused_with_a_hint() {
    let stub = Stub::start();
    let server = client(&stub, &[("CLEARML_API_SECRET_KEY", "wrong")]);
    let error = server.login().await.unwrap_err();
    assert_eq!(error.refusal(), Some(Subcode::Unauthorized), "{error}");
    assert!(error.hint().unwrap().contains("keys"));
    assert!(!format!("{error} {server:?}").contains("wrong"));
}

#[tokio::test]
async fn a_token_that_counts_no_more_is_renewed_within_the_call() {
    let stub = Stub::start();
    stub.queue("half_gpu");
    for method in ["get", "post"] {
        let server = client(&stub, &[("CLEARML_API_DEFAULT_REQ_METHOD", method)]);
        server.login().await.unwrap();
        assert_eq!(server.facts().feature_set.as_deref(), Some("basic"));
        stub.with(|world| world.revoke_tokens());
        assert!(server.queue("half_gpu").await.unwrap().is_some());
    }
    assert_eq!(stub.complaints(), Vec::<String>::new());
}

#[tokio::test]
async fn maintenance_is_waited_out_and_other_trouble_for_so_many_attempts() {
    let stub = Stub::start();
    stub.queue("half_gpu");
    let server = client(&stub, &[]);
    server.login().await.unwrap();
    // More often than the configuration allows for anything else.
    stub.inject(Fault::answer("queues.get_all", 503).times(10));
    assert!(server.queue("half_gpu").await.unwrap().is_some());
    stub.inject(Fault::answer("queues.get_all", 502).times(3));
    assert!(server.queue("half_gpu").await.unwrap().is_some());
    stub.inject(Fault::drop_before("queues.get_all").times(4));
    let error = server.queue("half_gpu").await.unwrap_err();
    assert!(error.passes() && error.refusal().is_none(), "{error}");
}

/// A server that answers each connection with these bytes, and counts them.
fn answering(bytes: &'static [u8]) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut connection = connection;
            let _ = connection.read(&mut [0; 4096]);
            let _ = connection.write_all(bytes);
        }
    });
    (address, count)
}

#[tokio::test]
async fn an_api_server_of_the_other_scheme_is_said_at_once_with_the_scheme() {
    let stub = Stub::start();
    let https = stub.url().replace("http://", "https://");
    let server = client(&stub, &[("CLEARML_API_HOST", &https)]);
    let error = server.login().await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("write http:// in place of https://"),
        "{error}"
    );
    assert!(error.hint().is_some() && error.passes(), "{error}");

    // nginx in front of TLS, and TLS itself: its alert "unexpected message" (RFC 8446, 6.2).
    for bytes in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 50\r\nConnection: close\r\n\r\nThe plain HTTP request was sent to HTTPS port<html>"[..],
        b"\x15\x03\x01\x00\x02\x02\x0a",
    ] {
        let (address, count) = answering(bytes);
        let server = client(&stub, &[("CLEARML_API_HOST", &address)]);
        let error = server.login().await.unwrap_err();
        assert!(error.to_string().ends_with("write https:// in place of http://"), "{error}");
        assert_eq!(count.load(Ordering::Relaxed), 1, "asked once");
    }
}

#[tokio::test]
async fn a_pop_whose_answer_is_lost_is_not_asked_again() {
    let stub = Stub::start();
    let task = stub.enqueued("half_gpu", "task", json!({}));
    let queue = stub.queue("half_gpu");
    let server = client(&stub, &[]);
    server.login().await.unwrap();
    stub.inject(Fault::drop_after("queues.get_next_task").times(1));
    let error = server.pop(&queue, &task).await.unwrap_err();
    assert!(error.passes(), "{error}");
    assert_eq!(stub.calls_to("queues.get_next_task").len(), 1);
    assert!(stub.waiting("half_gpu").is_empty());
    // What is asked twice says that there is nothing.
    assert_eq!(server.pop(&queue, &task).await.unwrap().entry, None);
}

#[tokio::test]
async fn a_queue_is_found_by_its_very_name_or_its_id() {
    let stub = Stub::start();
    let other = stub.queue("axb (1)");
    let id = stub.queue("a.b (1)");
    let server = client(&stub, &[]);
    assert_eq!(server.queue("a.b (1)").await.unwrap().unwrap().id, id);
    assert_eq!(server.queue(&other).await.unwrap().unwrap().name, "axb (1)");
    assert!(server.queue("a.b").await.unwrap().is_none());
    assert_eq!(stub.complaints(), Vec::<String>::new());
}

#[tokio::test]
async fn what_may_not_follow_is_told_by_its_code() {
    let stub = Stub::start();
    let task = stub.enqueued("half_gpu", "task", json!({}));
    let server = client(&stub, &[]);
    let again = server
        .add(&stub.queue("half_gpu"), &task)
        .await
        .unwrap_err();
    assert_eq!(again.refusal(), Some(Subcode::AlreadyQueued), "{again}");
    let done = server.completed(&task, "", "").await.unwrap_err();
    assert_eq!(done.refusal(), Some(Subcode::StatusChange), "{done}");
    let nobody = server
        .failed("00000000000000000000000000000000", "", "")
        .await
        .unwrap_err();
    assert_eq!(nobody.refusal(), Some(Subcode::NoTask), "{nobody}");
    let nobody = server
        .started("00000000000000000000000000000000", "")
        .await
        .unwrap_err();
    assert_eq!(nobody.refusal(), Some(Subcode::NoTask), "{nobody}");
}

#[tokio::test]
async fn a_long_log_is_several_requests_and_whole() {
    let stub = Stub::start();
    let task = stub.enqueued("half_gpu", "task", json!({}));
    let server = client(&stub, &[]);
    let event = |number: i64| Event {
        kind: "log",
        level: "DEBUG",
        task: task.clone(),
        worker: "node1:gpu0.5a".into(),
        msg: format!("{number} {}\n", "x".repeat(60_000)),
        timestamp: 1_700_000_000_000 + number,
    };
    let events: Vec<Event> = (0..40).map(event).collect();
    server.add_events(&events).await.unwrap();
    assert_eq!(stub.calls_to("events.add_batch").len(), 3);
    assert_eq!(stub.log(&task).lines().count(), 40);
}
