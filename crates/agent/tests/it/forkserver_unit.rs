//! A fork server in a unit of its own: what reaches jobs, crashes of either side, and what the daemon says where it cannot have it.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use divvy_api::v1::{JobState, Submit};
use divvy_testkit::{
    Bounded as _, Home, Rng, cgroup2_root, divvy, ended, in_state, log, quarter, script, until,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::mount_bind;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    send, socket_with,
};
use rustix::process::geteuid;

const SOCKET: &str = "DIVVY_FORK_SERVER";

const SIM: [&str; 4] = ["--sim", "a100-80gb:4", "--set", "grace=1s"];

/// What systemd does for `divvy-forkserver.socket` and its service: starts a fork server whenever a daemon connects and none runs.
struct Unit {
    pid: Arc<AtomicU32>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn socket_at(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 16).unwrap();
    listener
}

impl Unit {
    fn start(socket: &Path) -> Self {
        let listener = socket_at(socket);
        let folder = socket.parent().unwrap().join("jobs");
        let (pid, is_stopped) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let (server, over) = (Arc::clone(&pid), Arc::clone(&is_stopped));
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 5_000_000,
        };
        let activate = move || {
            while !over.load(Ordering::SeqCst) {
                let mut called = [PollFd::new(&listener, PollFlags::IN)];
                if !poll(&mut called, Some(&soon)).is_ok_and(|called| called > 0) {
                    continue;
                }
                let mut child = Command::new(divvy())
                    .arg("supervise")
                    .arg(&folder)
                    .stdin(Stdio::from(listener.try_clone().unwrap()))
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap();
                server.store(child.id(), Ordering::SeqCst);
                while child.try_wait().unwrap().is_none() {
                    if over.load(Ordering::SeqCst) {
                        let _ = child.kill();
                    }
                    let _ = poll(&mut [], Some(&soon));
                }
            }
        };
        Self {
            pid,
            is_stopped,
            thread: Some(thread::spawn(activate)),
        }
    }

    fn pid(&self) -> u32 {
        self.pid.load(Ordering::SeqCst)
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let thread = self.thread.take().unwrap();
        until("the unit has stopped", || thread.is_finished());
    }
}

/// A home whose daemon is to find its fork server at a socket, and the socket.
fn home() -> (Home, PathBuf) {
    let mut home = Home::empty();
    let socket = home.path().join("forkserver.sock");
    home.set(SOCKET, socket.to_str().unwrap());
    (home, socket)
}

fn parent(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.unwrap().trim().parse().unwrap()
}

/// The lines of `/proc/PID/status` that tell of restrictions.
fn restrictions(status: &str) -> Vec<&str> {
    let kinds = ["CapBnd:", "NoNewPrivs:", "Seccomp:"];
    let is_one = |line: &&str| kinds.iter().any(|kind| line.starts_with(kind));
    status.lines().filter(is_one).collect()
}

#[tokio::test]
async fn restrictions_of_the_daemon_do_not_reach_jobs() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can restrict a daemon as its unit does");
        return;
    }
    let (mut home, socket) = home();
    let unit = Unit::start(&socket);
    let mut restricted = home.command("setpriv");
    restricted
        .args(["--no-new-privs", "--bounding-set=-all,+kill,+chown"])
        .arg(divvy())
        .arg("daemon")
        .args(SIM);
    // The mount of a container whose supervisor died. Without CAP_SYS_ADMIN, the daemon itself cannot remove it.
    let staged = home.path().join("mounts").join("divvy-left-1").join("0");
    fs::create_dir_all(&staged).unwrap();
    mount_bind(home.path().join("mounts"), &staged).unwrap();
    home.start_by(&mut restricted);
    until("the mount is gone", || !staged.parent().unwrap().exists());
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", home.daemon_pid())).unwrap();
    assert_ne!(restrictions(&status), restrictions(&own));

    let client = home.connect();
    let job = quarter(&["sh", "-c", "cat /proc/self/status; exec sleep 1000"]);
    let id = client.submit(&job).await.unwrap().id;
    let running = in_state(&client, &id, JobState::Running).await;
    assert_eq!(parent(home.pid(&id, "launch")), unit.pid());
    let mut said = String::new();
    until("the job has said what it may do", || {
        said = fs::read_to_string(home.path().join("jobs").join(&id).join("log")).unwrap();
        restrictions(&said).len() == 3
    });
    assert_eq!(restrictions(&said), restrictions(&own));
    if let Some(group) = running.group.unwrap().path {
        let server = fs::read_to_string(format!("/proc/{}/cgroup", unit.pid())).unwrap();
        let server = server.lines().find_map(|line| line.strip_prefix("0::"));
        let parent = Path::new(&group).parent().unwrap();
        assert!(
            parent.ends_with(server.unwrap().trim_matches('/')),
            "{group}"
        );
    }
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
}

#[tokio::test]
async fn crashes_of_fork_server_and_daemon_lose_no_job() {
    lose_no_job(6, 1).await;
}

mod exhaustive {
    use std::process::Child;

    use super::*;

    #[tokio::test]
    async fn two_hundred_crashes_of_fork_server_and_daemon_lose_no_job() {
        lose_no_job(200, 2).await;
    }

    /// systemd as PID 1 of its own namespaces, with its control groups.
    struct Machine {
        process: Child,
        group: PathBuf,
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait_bounded();
            let group = &self.group;
            until("the machine's control groups are gone", || {
                let _ = Command::new("find")
                    .arg(group)
                    .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
                    .stderr(Stdio::null())
                    .wait_bounded();
                !group.exists()
            });
        }
    }

    /// The checks are those of `checks.sh`; here is only how they end.
    #[test]
    fn the_units_do_under_systemd_what_they_promise() {
        let (Some(groups), true) = (cgroup2_root(), geteuid().is_root()) else {
            eprintln!("SKIPPED: only root can run systemd in namespaces, and with cgroup v2");
            return;
        };
        let results = tempfile::tempdir().unwrap();
        let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
        let scripts = ours.join("tests/it/forkserver_unit");
        let output = fs::File::create(results.path().join("output")).unwrap();
        let process = Command::new("sh")
            .arg(ours.join("../../tests/systemd/boot.sh"))
            .arg(results.path().join("memory/root"))
            .arg(results.path())
            .arg(&groups)
            .arg(scripts.join("fill.sh"))
            .arg(divvy().parent().unwrap())
            .arg(ours.join("../../deploy/systemd"))
            .arg(scripts.join("checks.sh"))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let group = groups.join(format!("divvy-test-systemd-{}", process.id()));
        let mut machine = Machine { process, group };
        let there = |name: &str| results.path().join(name).exists();
        let read = |name: &str| fs::read_to_string(results.path().join(name)).unwrap_or_default();
        until("systemd has started, or cannot", || {
            there("booted") || machine.process.try_wait().unwrap().is_some()
        });
        if !there("booted") {
            eprintln!(
                "SKIPPED: systemd does not run in namespaces here: {}",
                read("output")
            );
            return;
        }
        let mut lines = 0;
        while !there("end") {
            until("the next check has ended", || {
                let before = std::mem::replace(&mut lines, read("log").lines().count());
                there("end") || lines > before
            });
        }
        let log = read("log");
        assert_eq!(read("end").trim(), "0", "{log}");
        // Each state of the device nodes, and each job of the crashes.
        assert_eq!(log.matches("ok: ").count(), 6 + 40 + 1 + 3 * 6, "{log}");
    }
}

/// A job that says that it ran, and ends with this code after a while.
fn job(home: &Home, key: &str, seconds: &str, code: u64) -> Submit {
    let ran = home.path().join("ran");
    let words = format!(
        "echo {key} >> {}; sleep {seconds}; exit {code}",
        ran.display()
    );
    Submit {
        idempotency_key: Some(key.to_owned()),
        ..script("default", &words)
    }
}

async fn lose_no_job(rounds: u64, seed: u64) {
    let (mut home, socket) = home();
    let unit = Unit::start(&socket);
    let mut rng = Rng::new(seed);
    let mut jobs = Vec::new();
    home.start(&SIM);
    for round in 0..rounds {
        let client = home.connect();
        for (which, seconds) in [(0, "0"), (1, "0.3"), (2, "1")] {
            let key = format!("r{round}-{which}");
            let code = 1 + rng.below(100);
            let mut job = job(&home, &key, seconds, code);
            job.amount = quarter(&[]).amount;
            let id = client.submit(&job).await.unwrap().id;
            jobs.push((id, key, i32::try_from(code).unwrap()));
        }
        let (server_dies, daemon_dies) =
            [(true, false), (false, true), (true, true)][usize::try_from(round % 3).unwrap()];
        let server = unit.pid();
        if server_dies {
            // It may be between two daemons.
            let _ = Command::new("kill")
                .args(["-KILL", &server.to_string()])
                .stderr(Stdio::null())
                .wait_bounded();
        }
        if daemon_dies {
            home.kill();
            home.start(&SIM);
        }
    }
    let client = home.connect();
    for (id, key, code) in &jobs {
        assert_eq!(ended(&client, id).await.exit_code, Some(*code), "{key}");
    }
    let ran = fs::read_to_string(home.path().join("ran")).unwrap();
    for (_, key, _) in &jobs {
        let times = ran.lines().filter(|line| line == key).count();
        assert_eq!(times, 1, "{key}");
    }
    until("no slice is left", || home.slices().is_empty());
}

#[tokio::test]
async fn the_next_daemon_gets_a_new_fork_server_and_the_jobs_of_the_last() {
    let (mut home, socket) = home();
    let unit = Unit::start(&socket);
    home.start(&SIM);
    let client = home.connect();
    let lasting = client
        .submit(&quarter(&["sh", "-c", "echo up; sleep 1; exit 5"]))
        .await
        .unwrap()
        .id;
    in_state(&client, &lasting, JobState::Running).await;
    let first = unit.pid();
    assert_eq!(home.stop(), 0);
    home.start(&SIM);
    let client = home.connect();
    assert_eq!(ended(&client, &lasting).await.exit_code, Some(5));
    assert_ne!(
        unit.pid(),
        first,
        "it is of the program that is installed now"
    );
    assert_eq!(log(&client, &lasting).await, "up\n");
}

/// What a daemon says that cannot have this fork server.
fn refusal(home: &Home) -> String {
    let output = home.run(&[&["daemon"][..], &SIM].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("hint: systemctl status divvy-forkserver"),
        "{said}"
    );
    said
}

#[test]
fn a_daemon_without_its_fork_server_does_not_start_jobs_below_itself() {
    let (home, socket) = home();
    let said = refusal(&home);
    let expected = format!("cannot connect to the fork server at {}", socket.display());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_second_daemon_learns_which_one_the_fork_server_serves() {
    let (mut first, socket) = home();
    let _unit = Unit::start(&socket);
    first.start(&SIM);
    let mut second = Home::empty();
    second.set(SOCKET, socket.to_str().unwrap());
    let said = refusal(&second);
    let expected = format!("serves another daemon (pid {})", first.daemon_pid());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_fork_server_of_another_protocol_is_named() {
    let (home, socket) = home();
    let listener = socket_at(&socket);
    let later = thread::spawn(move || {
        let daemon = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        let hello = br#"{"hello":{"protocol":99,"process":{"pid":1,"start_time":1},"more":true}}"#;
        send(&daemon, hello, SendFlags::NOSIGNAL).unwrap();
    });
    let said = refusal(&home);
    assert!(
        said.contains(
            "speaks version 99 of its protocol and this daemon version 1: restart the daemon"
        ),
        "{said}"
    );
    until("its thread has ended", || later.is_finished());
}

#[test]
fn device_nodes_for_jobs_need_the_forkservers_unit_in_a_slice_of_its_own() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a system's daemon");
        return;
    }
    let words = [
        &["daemon", "--system", "--set", "device-nodes=jobs"][..],
        &SIM,
    ]
    .concat();
    let said = |home: &Home, code: i32| {
        let output = home.run(&words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    };
    let text = said(&Home::empty(), 2);
    assert!(
        text.contains("device-nodes = \"jobs\" requires the units divvy-forkserver.socket"),
        "{text}"
    );
    let (home, socket) = home();
    let _unit = Unit::start(&socket);
    let text = said(&home, 1);
    assert!(text.contains("is not below divvy.slice"), "{text}");
}
