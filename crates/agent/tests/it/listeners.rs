//! What a daemon is reached through besides its socket, and how it tells systemd of itself.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_api::v1::{EndReason, ErrorCode, JobState, Submit};
use divvy_testkit::{Bounded as _, Home, PATIENCE, divvy, ended, log, quarter, refused, until};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A daemon that listens on TCP, and where.
pub fn listening(more: &[&str]) -> (Home, String) {
    let mut home = Home::empty();
    let token = home.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let token = token.to_str().unwrap().to_owned();
    let listen = [
        "--sim",
        "a100-80gb:1",
        "--set",
        "listen.listen=127.0.0.1:0",
        "--set",
        &format!("listen.token-file={token}"),
    ];
    home.start(&[&listen[..], more].concat());
    let log = home.daemon_log();
    let at = log.find("127.0.0.1:").expect("it says where it listens");
    let end = log[at..].find(char::is_whitespace).unwrap();
    (home, log[at..at + end].to_owned())
}

/// The status of an answer, and all of it.
fn call(address: &str, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let authorization = token.map_or_else(String::new, |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let body = "{}";
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{authorization}\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

#[test]
fn over_tcp_nothing_is_answered_without_the_token() {
    let (home, address) = listening(&[]);
    for token in [None, Some(""), Some("wrong"), Some(&TOKEN[1..])] {
        for path in ["/v1/node", "/v1/jobs", "/metrics", "/no/such/path"] {
            let (status, answer) = call(&address, "GET", path, token);
            assert_eq!(status, 403, "{path} {token:?}: {answer}");
            assert!(answer.contains("not_allowed") && !answer.contains("hostname"));
        }
    }
    let (status, answer) = call(&address, "GET", "/v1/node", Some(TOKEN));
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("hostname"));
    assert!(!home.daemon_log().contains(TOKEN));
}

#[test]
fn on_the_systems_daemon_the_token_only_looks() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon for every user");
        return;
    }
    let (_home, address) = listening(&["--system"]);
    let (status, _) = call(&address, "GET", "/v1/gpus", Some(TOKEN));
    assert_eq!(status, 200);
    for (method, path) in [
        ("POST", "/v1/jobs"),
        ("POST", "/v1/mig/gc"),
        ("PATCH", "/v1/gpus/0"),
    ] {
        let (status, answer) = call(&address, method, path, Some(TOKEN));
        assert_eq!(status, 403, "{path}: {answer}");
    }
}

/// The daemon's process: the first line of its lock.
fn daemon(home: &Home) -> Pid {
    let lock = fs::read_to_string(home.path().join("daemon.lock")).unwrap();
    let pid = lock.lines().next().unwrap().parse().unwrap();
    Pid::from_raw(pid).unwrap()
}

/// Sets how many files it may have open; how many it might.
fn open_files(pid: Pid, current: Option<u64>, maximum: Option<u64>) -> Rlimit {
    prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum }).unwrap()
}

#[tokio::test]
async fn the_daemon_has_as_many_files_as_it_may_and_its_jobs_as_many_as_before() {
    // The usual limit, which is enough for the tests beside this one too.
    let few = Rlimit {
        current: Some(1024),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let pid = daemon(&home).as_raw_pid();
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let files: Vec<&str> = files.unwrap().split_whitespace().collect();
    assert_eq!(files[3], files[4], "soft and hard");
    let ask = quarter(&["sh", "-c", "ulimit -Sn"]);
    let job = client.submit(&ask).await.unwrap();
    ended(&client, &job.id).await;
    assert_eq!(log(&client, &job.id).await, "1024\n");
}

#[tokio::test]
async fn a_job_that_there_are_no_descriptors_for_waits_and_is_not_ended() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    // Its connection is there before, and stays.
    client.node().await.unwrap();
    let pid = daemon(&home);
    let used = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).unwrap();
    let used: Vec<u64> = used
        .map(|entry| {
            entry
                .unwrap()
                .file_name()
                .to_str()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    let free = (0..).find(|number| !used.contains(number)).unwrap();
    let before = open_files(pid, Some(free), getrlimit(Resource::Nofile).maximum);
    let job = client.submit(&quarter(&["true"])).await.unwrap();
    until("its start has failed", || {
        home.daemon_log().contains("cannot start the job now")
    });
    let now = client.job(&job.id).await.unwrap().state;
    assert!(
        matches!(now, JobState::Queued | JobState::Starting),
        "{now:?}"
    );
    open_files(pid, before.current, before.maximum);
    let end = ended(&client, &job.id).await;
    assert_eq!(end.end_reason, Some(EndReason::Completed), "{end:?}");
}

#[test]
fn a_daemon_whose_address_is_taken_is_never_there() {
    let home = Home::empty();
    let token = home.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let sim = ["daemon", "--detached", "--sim", "a100-80gb:1"];
    let listen = [
        "--set",
        &format!("listen.listen={address}"),
        "--set",
        &format!("listen.token-file={}", token.display()),
    ];
    let said = home.run(&[&sim[..], &listen].concat());
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && text.contains(&address), "{text}");
    assert!(!home.socket().exists());
}

#[test]
fn the_systems_daemon_serves_its_socket_while_a_program_holds_its_address_and_takes_it_later() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon for every user");
        return;
    }
    let mut home = Home::empty();
    let token = home.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let token = token.to_str().unwrap().to_owned();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let listen = [
        "--set",
        &format!("listen.listen={address}"),
        "--set",
        &format!("listen.token-file={token}"),
    ];
    home.start(&[&["--system", "--sim", "a100-80gb:1"], &listen[..]].concat());

    let node = home.call(home.client().node()).unwrap();
    let why = node.listen_error.unwrap();
    assert!(
        why.starts_with(&format!(
            "cannot listen on {address}: Address already in use"
        )),
        "{why}"
    );
    assert!(home.daemon_log().contains(&why), "{}", home.daemon_log());
    let found = home.run(&["doctor", "-o", "json"]).stdout;
    assert!(String::from_utf8_lossy(&found).contains(&why));

    drop(taken);
    until("the daemon has the address", || {
        let node = home.call(home.client().node()).unwrap();
        node.listen_error.is_none()
    });
    assert_eq!(call(&address, "GET", "/v1/node", Some(TOKEN)).0, 200);
}

#[tokio::test]
async fn a_submit_that_brings_too_much_is_refused_with_its_size() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let large = Submit {
        env: [("LARGE".into(), "x".repeat(3 << 20))].into(),
        ..quarter(&["true"])
    };
    let error = refused(client.submit(&large).await);
    assert_eq!(error.code, ErrorCode::Usage);
    assert!(error.message.contains("2097152"), "{}", error.message);
    assert!(error.hint.is_some());
}

#[test]
fn a_token_that_others_can_read_starts_no_daemon() {
    let home = Home::empty();
    let token = home.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let token = token.to_str().unwrap();
    let said = home.run(&[
        "daemon",
        "--sim",
        "a100-80gb:1",
        "--set",
        "listen.listen=127.0.0.1:0",
        "--set",
        &format!("listen.token-file={token}"),
    ]);
    let text = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(2), "{text}");
    assert!(text.contains("644") && text.contains("hint:"), "{text}");
}

#[test]
fn systemd_is_told_when_it_serves_that_it_lives_and_when_it_stops() {
    let mut home = Home::empty();
    let path = home.path().join("notify");
    let listener = UnixDatagram::bind(&path).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    home.set("NOTIFY_SOCKET", path.to_str().unwrap().to_owned());
    home.set("WATCHDOG_USEC", "100000");
    home.start(&["--sim", "a100-80gb:1"]);
    let hear = || {
        let mut told = [0; 256];
        let length = listener.recv(&mut told).unwrap();
        String::from_utf8(told[..length].to_vec()).unwrap()
    };
    assert!(hear().starts_with("READY=1"));
    assert_eq!((hear(), hear()), ("WATCHDOG=1".into(), "WATCHDOG=1".into()));
    assert_eq!(home.stop(), 0);
    until("it says that it stops", || hear() == "STOPPING=1");
}

/// Has `systemd-analyze` judge a unit of ours.
fn analyze(unit: &str, words: &[&str], file: &Path) {
    let mut command = Command::new("systemd-analyze");
    command.args(words).arg(file);
    command.env("XDG_RUNTIME_DIR", file.parent().unwrap());
    match command.output_bounded() {
        Err(error) => eprintln!("SKIPPED: {unit} is not judged: systemd-analyze: {error}"),
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stderr);
            // What it says of other units of this machine is not about ours.
            let ours: Vec<&str> = text.lines().filter(|line| line.contains("divvy")).collect();
            let table = String::from_utf8_lossy(&said.stdout);
            assert!(
                said.status.success() && ours.is_empty(),
                "{unit}: {text}{table}"
            );
        }
    }
}

fn unit_file(unit: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/systemd")
        .join(unit)
}

/// Has systemd verify a unit with these lines, with the program where it was built.
fn verify(unit: &str, more: &[&str], lines: &[&str]) {
    let text = fs::read_to_string(unit_file(unit)).unwrap();
    for line in lines {
        assert!(
            text.lines().any(|there| there.starts_with(line)),
            "{unit} has no {line}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    // Verified together, since each names the others.
    for other in [
        "divvy.service",
        "divvy-forkserver.service",
        "divvy-forkserver.socket",
    ] {
        let text = fs::read_to_string(unit_file(other)).unwrap();
        let text = text.replace("/usr/bin/divvy ", &format!("{} ", divvy().display()));
        fs::write(dir.path().join(other), text).unwrap();
    }
    let name = Path::new(unit).file_name().unwrap();
    let copy = dir.path().join(name);
    let text = text.replace("/usr/bin/divvy ", &format!("{} ", divvy().display()));
    fs::write(&copy, text).unwrap();
    analyze(unit, &[more, &["verify", "--man=no"]].concat(), &copy);
}

#[test]
fn systemd_takes_the_systems_units() {
    let daemon = [
        "ExecStart=/usr/bin/divvy daemon --system",
        "Type=notify",
        "KillMode=process",
        "WatchdogSec=",
        "Requires=divvy-forkserver.socket",
        "Environment=DIVVY_FORK_SERVER=/run/divvy-forkserver.sock",
    ];
    verify("divvy.service", &[], &daemon);
    let fork_server = [
        "ExecStart=/usr/bin/divvy supervise ",
        "StandardInput=socket",
        "KillMode=process",
        "Delegate=yes",
        "TasksMax=infinity",
    ];
    verify("divvy-forkserver.service", &[], &fork_server);
    let socket = [
        "ListenSequentialPacket=/run/divvy-forkserver.sock",
        "SocketMode=0600",
    ];
    verify("divvy-forkserver.socket", &[], &socket);
}

#[test]
fn systemd_takes_the_users_unit() {
    let lines = [
        "ExecStart=/usr/bin/divvy daemon",
        "Type=notify",
        "KillMode=process",
        "WatchdogSec=",
        "Delegate=yes",
    ];
    verify("user/divvy.service", &["--user"], &lines);
}

/// The exposure in tenths, by the measure of `systemd-analyze security`.
#[test]
fn the_daemons_unit_is_exposed_by_at_most_four_and_a_half() {
    let words = ["security", "--offline=true", "--threshold=45", "--no-pager"];
    analyze("divvy.service", &words, &unit_file("divvy.service"));
}

/// Each restriction of this unit would apply to every job.
#[test]
fn the_fork_servers_unit_has_no_restrictions() {
    let text = fs::read_to_string(unit_file("divvy-forkserver.service")).unwrap();
    let service = text.split_once("[Service]").unwrap().1;
    let settings = service.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = settings
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    let expected = [
        "Type",
        "Slice",
        "ExecStart",
        "StandardInput",
        "StandardOutput",
        "StandardError",
        "KillMode",
        "Delegate",
        "TasksMax",
        "LimitCORE",
    ];
    assert_eq!(names, expected);
}
