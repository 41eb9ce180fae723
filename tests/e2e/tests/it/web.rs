//! `divvy web` and the daemon's TCP listener as servers of the page: files, streams, a daemon that goes away, many clients.

mod roles;
mod table;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use divvy_e2e::page::{Page, ask, connect};
use divvy_e2e::{Daemon, Home, until};
use divvy_testkit::{PATIENCE, join};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A daemon that listens on TCP, and its address.
fn listening(home: &Home, more: &[&str]) -> (Daemon, String) {
    let token = home.scratch().join("token");
    fs::write(&token, TOKEN).expect("the folder can be written");
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("the file is ours");
    let token = token.to_str().expect("a path of ours is text");
    let listen = [
        "--set",
        "listen.listen=127.0.0.1:0",
        "--set",
        &format!("listen.token-file={token}"),
    ];
    let daemon = home.daemon(&[&listen[..], more].concat());
    let said = home.daemon_said();
    let at = said.rfind("127.0.0.1:").expect("it says where it listens");
    let address = said[at..].split(|c: char| c != '.' && c != ':' && !c.is_ascii_digit());
    (daemon, address.take(1).collect())
}

#[test]
fn the_page_is_served_with_its_tag_compressed_and_to_head_as_well() {
    let home = Home::new("l4-24gb:1");
    let page = Page::open(&home, &[]);
    let host = format!("host: {}", page.address);
    let whole = ask(&page.address, &format!("GET /\n{host}"), b"");
    assert_eq!(whole.status, 200);
    assert_eq!(whole.header("content-type"), "text/html; charset=utf-8");
    assert!(whole.body.starts_with(b"<!doctype html>"));
    let style = |more: &str| {
        ask(
            &page.address,
            &format!("GET /assets/style.css\n{host}{more}"),
            b"",
        )
    };
    let (long, short) = (style(""), style("\naccept-encoding: gzip"));
    assert_eq!(short.header("content-encoding"), "gzip");
    assert!(short.body.starts_with(&[0x1f, 0x8b]) && short.body.len() < long.body.len());
    let tag = format!("if-none-match: {}", whole.header("etag"));
    let known = ask(&page.address, &format!("GET /\n{host}\n{tag}"), b"");
    assert_eq!((known.status, known.body.len()), (304, 0));
    let head = ask(&page.address, &format!("HEAD /\n{host}"), b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), whole.body.len().to_string());
}

#[test]
fn the_daemons_answers_pass_as_they_are_and_long_json_compressed() {
    let home = Home::new("a100-80gb:8");
    let _daemon = home.daemon(&[]);
    let page = Page::open(&home, &[]);
    let gpus = page.fetch("GET /v1/gpus");
    assert_eq!(gpus.json()["kind"], "GpuList");
    assert!(gpus.body.len() > 4096 && !gpus.headers.contains_key("content-encoding"));
    assert_eq!(gpus.header("cache-control"), "no-store");
    let short = page.fetch("GET /v1/gpus\naccept-encoding: gzip, br");
    assert_eq!(short.header("content-encoding"), "gzip");
    assert!(
        short.body.len() * 2 < gpus.body.len(),
        "{}",
        short.body.len()
    );
    // A board has its tag through the proxy too, and compressed a weak one.
    let board = page.fetch("GET /v1/board");
    let tag = board.header("etag");
    let again = format!("GET /v1/board\nif-none-match: W/{tag}");
    until("the board is the same twice", || {
        page.fetch(&again).status == 304
    });
    let missing = page.fetch("GET /v1/jobs/77");
    assert_eq!(
        (missing.status, &missing.json()["error"]["code"]),
        (404, &"not_found".into())
    );
    let session = page.fetch("GET /web/session").json();
    assert_eq!(session["via"], "proxy");
    assert_eq!(
        (&session["role"], &session["actions"]),
        (&"admin".into(), &false.into())
    );
    assert!(
        session["why_no_actions"]
            .as_str()
            .is_some_and(|why| why.contains("--allow-actions"))
    );
}

#[test]
fn a_followed_board_comes_as_the_daemon_writes_it() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let page = Page::open(&home, &[]);
    let mut stream = connect(&page.address);
    let (host, token) = (&page.address, &page.token);
    let request = format!(
        "GET /v1/board?follow=true HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\naccept-encoding: gzip\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut heard = String::new();
    let mut hears = |what: &str| {
        while !heard.contains(what) {
            let mut piece = [0; 4096];
            let length = stream
                .read(&mut piece)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(length > 0, "{heard}");
            heard += &String::from_utf8_lossy(&piece[..length]);
        }
    };
    hears("event: board");
    let _job = home.submit(&["-g", "0.5", "--name", "visible"], &["sleep", "1000"]);
    hears("event: change");
    hears("visible");
    assert!(heard.contains("text/event-stream") && !heard.contains("content-encoding"));
}

#[test]
fn without_a_daemon_the_answer_is_an_error_of_the_api_and_a_new_daemon_is_found() {
    let home = Home::new("l4-24gb:1");
    let page = Page::open(&home, &[]);
    let away = page.fetch("GET /v1/board");
    assert_eq!(
        (away.status, &away.json()["error"]["code"]),
        (503, &"no_daemon".into())
    );
    assert!(away.json()["error"]["hint"].is_string());
    until("the terminal says it too", || {
        page.said().contains("no daemon answers")
    });
    assert!(!home.socket().exists(), "it starts none");
    let daemon = home.daemon(&[]);
    assert_eq!(page.fetch("GET /v1/board").status, 200);
    daemon.crash();
    assert_eq!(page.fetch("GET /v1/board").status, 503);
    assert_eq!(page.fetch("GET /web/session").status, 503);
    let _daemon = home.daemon(&[]);
    assert_eq!(page.fetch("GET /web/session").status, 200);
}

#[test]
fn the_token_is_new_each_time_and_in_no_log_and_ctrl_c_ends_the_page() {
    let home = Home::new("l4-24gb:1").variable("DIVVY_LOG", "debug");
    let _daemon = home.daemon(&[]);
    let first = Page::open(&home, &[]);
    let second = Page::open(&home, &["--allow-actions"]);
    assert_ne!(first.token, second.token);
    assert_eq!(first.token.len(), 64);
    assert_eq!(first.fetch("GET /v1/node").status, 200);
    let port = first.address.rsplit_once(':').expect("a port").1;
    assert!(
        first
            .ssh
            .starts_with(&format!("ssh -N -L {port}:127.0.0.1:{port} ")),
        "{}",
        first.ssh
    );
    let words = fs::read_to_string(format!("/proc/{}/cmdline", first.pid())).expect("it runs");
    for text in [home.daemon_said(), first.said(), second.said(), words] {
        assert!(
            !text.contains(&first.token) && !text.contains(&second.token),
            "{text}"
        );
    }
    // One's token is not the other's.
    let (host, token) = (&first.address, &second.token);
    let other = ask(
        &first.address,
        &format!("GET /v1/node\nhost: {host}\nauthorization: Bearer {token}"),
        b"",
    );
    assert_eq!(other.status, 403);
    let (address, held) = (first.address.clone(), connect(&first.address));
    assert_eq!(first.stop(), 0);
    assert!(std::net::TcpStream::connect(address).is_err());
    drop(held);
}

#[test]
fn a_port_that_is_taken_is_named_with_what_to_do() {
    let home = Home::new("l4-24gb:1");
    let page = Page::open(&home, &[]);
    let port = page.address.rsplit_once(':').expect("a port").1;
    let said = home.divvy(&["web", "--port", port, "-o", "json"]).exits(8);
    assert!(
        said.stderr.contains(port) && said.stderr.contains("--port"),
        "{}",
        said.stderr
    );
}

#[test]
fn two_hundred_requests_at_once_are_all_answered() {
    let home = Home::new("a100-80gb:8");
    let _daemon = home.daemon(&[]);
    let page = Page::open(&home, &[]);
    let request = format!(
        "GET /v1/board\nhost: {}\nauthorization: Bearer {}\naccept-encoding: gzip",
        page.address, page.token
    );
    let begin = |_| {
        let (address, request) = (page.address.clone(), request.clone());
        thread::spawn(move || ask(&address, &request, b"").status)
    };
    let threads: Vec<_> = (0..200).map(begin).collect();
    let statuses: Vec<u16> = threads
        .into_iter()
        .map(|thread| join("a request", thread))
        .collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[test]
fn clients_that_send_half_a_request_keep_no_browser_out() {
    let home = Home::new("l4-24gb:1");
    let _daemon = home.daemon(&[]);
    let page = Page::open(&home, &[]);
    let half = |_| {
        let mut stream = connect(&page.address);
        stream
            .write_all(b"GET /v1/node HTTP/1.1\r\nHo")
            .expect("it reads");
        stream
    };
    // More than it takes without the token.
    let mut held: Vec<_> = (0..300).map(half).collect();
    assert_eq!(page.fetch("GET /v1/node").status, 200);
    // The oldest gave way to newer ones.
    held[0].set_read_timeout(Some(PATIENCE)).expect("not zero");
    assert!(matches!(held[0].read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn doctor_and_selftest_run_as_the_commands_do() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let page = Page::open(&home, &["--allow-actions"]);
    let findings = page.fetch("GET /web/doctor");
    assert_eq!(
        (findings.status, &findings.json()["kind"]),
        (200, &"Doctor".into())
    );
    let typed = home.run(&["doctor", "-o", "json"]);
    let typed: serde_json::Value = serde_json::from_slice(&typed.stdout).expect("a document");
    let checks = |document: &serde_json::Value| {
        let items = document["items"].as_array().expect("a list").iter();
        items.map(|item| item["check"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(checks(&findings.json()), checks(&typed));
    let test = page.fetch("POST /web/selftest\ncontent-length: 0");
    assert_eq!(
        (test.status, &test.json()["kind"]),
        (200, &"Selftest".into()),
        "{:?}",
        test.json()
    );
    assert_eq!(test.json()["items"][0]["passed"], true);
}
