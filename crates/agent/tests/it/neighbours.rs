//! One user's calls beside another user's: a user that calls at the dearest arguments and reads no answer uses up a budget
//! of its own.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use divvy_api::client::Client;
use divvy_api::frame::PROTOCOL;
use divvy_api::route::{Body, ROUTES, Route};
use divvy_api::v1::{Amount, Array, ErrorCode, JobState, Submit};
use divvy_testkit::{Bounded as _, Home, PATIENCE, in_state, quarter, refused, until};
use serde_json::json;

use crate::users::{ANA, LEE, as_user, system};

/// Six times what one user may leave unread.
const CALLS: usize = 24;

/// An array of which one job runs, and the others wait for it.
fn array(count: u32) -> Submit {
    Submit {
        array: Some(Array {
            indices: (0..count).collect(),
            max_running: Some(1),
        }),
        ..quarter(&["/bin/sleep", "1000"])
    }
}

/// A request of the route with the arguments that take longest.
fn dearest(route: &Route, job: &str) -> String {
    let path = (route.path.replace("{job}", job))
        .replace("{gpu}", "0")
        .replace("{project}", "p")
        .replace("{uid}", "u");
    let query = match route.path {
        "/v1/jobs" if route.method == "GET" => "?all=true&limit=0&sort=-name",
        "/v1/jobs/{job}/wait" => "?timeout_s=0",
        "/v1/usage" => "?by=day,user,project,queue,gpu,job&since=1970-01-01T00:00:00Z",
        "/v1/history" => "?of=node&step=60",
        "/v1/events" => "?tail=10000",
        _ => "",
    };
    let body = match route.body {
        Body::None => String::new(),
        Body::Json("Submit") => {
            let dry_run = Submit {
                dry_run: true,
                ..quarter(&["true"])
            };
            serde_json::to_string(&dry_run).unwrap()
        }
        Body::Json("Exec") => json!({ "command": ["/bin/sleep", "1000"] }).to_string(),
        Body::Json("JobsChange") => json!({ "action": "suspend", "dry_run": true }).to_string(),
        Body::Json("MigWanted") => json!({ "profiles": vec!["1g.10gb"; 7] }).to_string(),
        Body::Json(_) => "{}".to_owned(),
    };
    request(route.method, &format!("{path}{query}"), &body)
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: divvy\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// So many connections with this request, and no answer read.
fn unread(socket: &Path, request: &str, count: usize) -> Vec<UnixStream> {
    let call = |_| {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    (0..count).map(call).collect()
}

async fn is_served(client: &Client) {
    let answered = tokio::time::timeout(PATIENCE, client.jobs(false)).await;
    answered.expect("another user's call is answered").unwrap();
}

/// A daemon of which ana has a running job, and an array that waits; and the number of the job.
fn busy(count: u32) -> Option<(Home, String)> {
    let home = system(&[])?;
    let job = as_user(&home, ANA, async |client| {
        let holds = Submit {
            amount: Some(Amount::Whole { count: 1 }),
            ..quarter(&["/bin/sleep", "1000"])
        };
        let job = client.submit(&holds).await.unwrap().id;
        in_state(&client, &job, JobState::Running).await;
        client.submit(&array(count)).await.unwrap();
        job
    });
    Some((home, job))
}

#[test]
fn no_route_lets_one_user_keep_another_users_calls_waiting() {
    let Some((home, job)) = busy(300) else { return };
    let socket = home.socket();
    let routes: Vec<String> = ROUTES.iter().map(|route| dearest(route, &job)).collect();
    let follows = ["/v1/events?follow=true", "/v1/board?follow=true"];
    let follows = follows.map(|path| request("GET", path, ""));
    // The last job of the array, with all jobs before it.
    let last = request("GET", "/v1/jobs/2_299/why", "");
    for call in routes.iter().chain(&follows).chain([&last]) {
        let held = as_user(&home, ANA, async |_| unread(&socket, call, CALLS));
        as_user(&home, LEE, async |client| is_served(&client).await);
        drop(held);
    }
    // Nothing is left of the calls that were given up.
    as_user(&home, ANA, async |client| is_served(&client).await);
}

#[test]
fn a_users_unread_answers_are_bounded_and_refuse_the_users_next_list_alone() {
    // A list of two megabytes, which no socket takes whole.
    let Some((home, _)) = busy(1500) else { return };
    let socket = home.socket();
    let list = request("GET", "/v1/jobs?limit=0", "");
    let mut held = as_user(&home, ANA, async |_| unread(&socket, &list, 4));
    // Their answers have begun.
    for stream in &mut held {
        stream.read_exact(&mut [0; 100]).unwrap();
    }
    as_user(&home, ANA, async |client| {
        let error = refused(client.jobs(false).await);
        assert_eq!(error.code, ErrorCode::TooMany);
        let said = format!("too many unread answers: uid {ANA} has had 4 for 8 s");
        assert!(error.message.starts_with(&said), "{error:?}");
        // What does not grow with the jobs is answered.
        client.node().await.unwrap();
    });
    as_user(&home, LEE, async |client| is_served(&client).await);
    // A client that reads one of them to its end makes room.
    let mut first = held.remove(0);
    let mut text = Vec::new();
    while !text.ends_with(b"0\r\n\r\n") {
        let mut piece = [0; 65536];
        let length = first.read(&mut piece).unwrap();
        assert!(length > 0, "the answer ends");
        text.extend_from_slice(&piece[..length]);
    }
    assert!(text.len() > 1_000_000);
    as_user(&home, ANA, async |client| is_served(&client).await);
}

#[test]
fn a_file_that_does_not_open_holds_four_threads_of_its_user_and_none_of_others() {
    let Some((home, job)) = busy(1) else { return };
    // A program under a lease: execve(2) waits until the lease is given back, for up to 45 s.
    let leased = home.scratch().join("leased");
    std::fs::copy("/bin/true", &leased).unwrap();
    let holds = "import fcntl, signal, sys, time\n\
                 signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
                 file = open(sys.argv[1], 'r+')\n\
                 fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                 print('held', flush=True)\n\
                 time.sleep(60)";
    let mut holder = Command::new("python3");
    let holder = holder.args(["-c", holds]).arg(&leased);
    let mut holder = holder.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 4];
    let output = holder.stdout.as_mut().unwrap();
    output.read_exact(&mut said).unwrap();
    let call = json!({ "command": [leased] }).to_string();
    let call = request("POST", &format!("/v1/jobs/{job}/exec"), &call);
    let socket = home.socket();
    let threads = || {
        let tasks = format!("/proc/{}/task", home.daemon_pid());
        std::fs::read_dir(tasks).unwrap().count()
    };
    let before = threads();
    let held = as_user(&home, ANA, async |_| unread(&socket, &call, 40));
    until("the first calls wait for the program", || {
        threads() >= before + 4
    });
    // The daemon has read all 40 calls once it answers a later one.
    as_user(&home, LEE, async |client| is_served(&client).await);
    let more = threads() - before;
    assert!(more < 12, "{more} threads wait");
    drop(held);
    holder.kill().unwrap();
    holder.wait_bounded().unwrap();
}
