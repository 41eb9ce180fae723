//! The HTTP server under clients that ask little, badly or too often at once: the others are served.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;

use divvy_api::route::ROUTES;
use divvy_api::v1::ErrorCode;
use divvy_testkit::{Home, PATIENCE, call, quarter, refused, until, until_async};
use rustix::process::geteuid;

use crate::listeners::{TOKEN, listening};
use crate::users::{LEE, as_user};

/// Status and headers of an answer, and its body; `Host` and such aside, the request has these lines.
fn answer(mut stream: impl Read + Write, request: &str) -> (u16, BTreeMap<String, String>, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_owned(), value.to_owned())
    });
    (status.parse().unwrap(), headers.collect(), body.to_owned())
}

fn tcp(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[tokio::test]
async fn head_answers_as_get_does_on_every_route() {
    // The token of a daemon for every user sees less than all, and of a user's own it sees everything.
    let daemons: &[&[&str]] = if geteuid().is_root() {
        &[&[], &["--system"]]
    } else {
        &[&[]]
    };
    for more in daemons {
        let (home, address) = listening(more);
        let client = home.connect();
        let job = client.submit(&quarter(&["true"])).await.unwrap();
        divvy_testkit::ended(&client, &job.id).await;
        let routes = ROUTES.iter().filter(|route| route.method == "GET");
        let paths = routes
            .map(|route| route.path)
            .chain(["/metrics", "/healthz", "/readyz", "/v1/nothing"])
            .map(|path| path.replace("{job}", "1").replace("{gpu}", "0"));
        for path in paths.chain(["/v1/jobs?brief=true".to_owned()]) {
            let [get, head] = ["GET", "HEAD"].map(|method| {
                let (status, headers, body) = answer(
                    tcp(&address),
                    &format!(
                        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
                    ),
                );
                assert!(method == "GET" || body.is_empty(), "{path}: {body}");
                // How long a page of figures is changes from call to call, and chunks are the body's.
                let mut headers = headers;
                for changes in ["date", "transfer-encoding"] {
                    headers.remove(changes);
                }
                headers.entry("content-length".into()).and_modify(String::clear);
                (status, headers)
            });
            assert_eq!(get, head, "{path}");
            assert!(get.0 < 500, "{path}: {get:?}");
        }
    }
}

#[test]
fn http_2_is_not_spoken() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let mut stream = UnixStream::connect(home.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).unwrap();
    let mut first = Vec::new();
    // What a server of HTTP/2 says first is its settings, of nine bytes or more.
    let _ = stream.take(9).read_to_end(&mut first);
    assert!(
        first.is_empty() || first.starts_with(b"HTTP/1.1"),
        "{first:?}"
    );
}

#[test]
fn half_requests_without_the_token_do_not_keep_out_its_owner() {
    let (_home, address) = listening(&[]);
    let half = |_| {
        let mut stream = tcp(&address);
        stream.write_all(b"GET /v1/node HTTP/1.1\r\nHo").unwrap();
        stream
    };
    let mut held: Vec<_> = (0..600).map(half).collect();
    let ask = format!(
        "GET /v1/node HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    );
    let (status, _, body) = answer(tcp(&address), &ask);
    assert_eq!(status, 200, "{body}");
    // The oldest gave way, and the newest are heard.
    let mut newest = held.pop().unwrap();
    newest.write_all(&ask.as_bytes()[25..]).unwrap();
    let mut said = String::new();
    newest.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    let closed = held[0].read(&mut [0]);
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[test]
fn a_user_with_too_many_connections_is_told_so_and_others_are_served() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can be another user");
        return;
    }
    let home = Home::started(&["--system", "--sim", "l4-24gb:1"]);
    let socket = home.socket();
    as_user(&home, LEE, async |client| {
        // Some of those beyond the bound say nothing either.
        let held: Vec<_> = (0..600)
            .map(|_| UnixStream::connect(&socket).unwrap())
            .collect();
        let error = refused(client.node().await);
        assert_eq!(error.code, ErrorCode::TooMany, "{error:?}");
        assert!(error.message.contains("too many connections: uid"));
        assert!(error.hint.is_some());
        drop(held);
        until_async("there is room again", async || client.node().await.ok()).await;
    });
    assert_eq!(call(&socket, "GET", "/v1/node", "").0, 200);
}

#[test]
fn a_socket_file_that_was_removed_is_bound_again_and_connections_stay() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let socket = home.socket();
    let mode = fs::metadata(&socket).unwrap().mode();
    let kept = UnixStream::connect(&socket).unwrap();
    kept.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = || {
        (&kept)
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut lines = BufReader::new(&kept).lines().map(Result::unwrap);
        assert_eq!(lines.next().unwrap(), "HTTP/1.1 200 OK");
        assert!(lines.any(|line| line == "ok"));
    };
    ask();
    fs::remove_file(&socket).unwrap();
    until("the daemon binds its socket again", || socket.exists());
    assert_eq!(call(&socket, "GET", "/v1/node", "").0, 200);
    assert_eq!(fs::metadata(&socket).unwrap().mode(), mode);
    ask();
    assert!(
        home.daemon_log().contains("bound the socket again"),
        "{}",
        home.daemon_log()
    );
    assert_eq!(home.stop(), 0);
    assert!(!socket.exists());
}
