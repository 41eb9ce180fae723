//! A user's own daemon and runs over a logout and the next login, and in a home folder that several machines share.
//!
//! systemd-logind removes `/run/user/UID` at a user's last logout; a folder in memory stands for it here.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use divvy_e2e::{CommandOutput, GIB, Home, python, until};
use divvy_testkit::Bounded as _;

/// Waits for `go.N` in the folder it is given, then takes 1 GiB itself, and 1 GiB in a process that it starts: in parts, over
/// several of the limiter's looks at its files (4 ms). Prints the driver's answers.
const PROGRAM: &str = r#"
import ctypes, os, subprocess, sys, time

def take(cu=None):
    if cu is None:
        cu = ctypes.CDLL("libcuda.so.1")
        cu.cuInit(0)
        cu.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0)
    answer = 0
    for part in range(16):
        time.sleep(0.002)
        answer |= cu.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 26))
    return cu, answer

if len(sys.argv) == 1:
    sys.exit(take()[1])
cu = None
for turn in range(9):
    while not os.path.exists(f"{sys.argv[1]}/go.{turn}"):
        time.sleep(0.005)
    cu, own = take(cu)
    print(turn, own, subprocess.call([sys.executable, __file__]), flush=True)
"#;

/// A user with a home folder and a session, on a machine whose driver is simulated.
struct Session {
    home: Home,
    own: PathBuf,
    runtime: tempfile::TempDir,
}

impl Session {
    fn new() -> Self {
        let home = Home::new("a100-80gb:1");
        let own = home.scratch().join("own");
        fs::create_dir(&own).expect("a new folder");
        fs::write(own.join("program.py"), PROGRAM).expect("a new file");
        // A driver's libraries are two files; the wrapper form mounts over each.
        let driver = own.join("driver");
        fs::create_dir(&driver).expect("a new folder");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::copy(home.program("libdivvy_sim.so"), driver.join(name)).expect("a copy");
        }
        let memory = tempfile::tempdir_in("/dev/shm").expect("memory");
        let this = Self {
            home,
            own,
            runtime: memory,
        };
        this.login();
        this.make_gpus();
        this
    }

    /// The first program of the machine that asks its driver.
    fn make_gpus(&self) {
        let mut command = self.command(python().to_str().expect("text"));
        let ask = "import ctypes; raise SystemExit(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())";
        command.args(["-c", ask]).env("DIVVY_SIM", "a100-80gb:1");
        let asked = command.output_bounded().expect("python starts");
        assert!(asked.status.success(), "{asked:?}");
    }

    fn runtime(&self) -> PathBuf {
        self.runtime.path().join("1000")
    }

    fn login(&self) {
        let made = fs::DirBuilder::new().mode(0o700).create(self.runtime());
        made.expect("no session");
    }

    fn logout(&self) {
        fs::remove_dir_all(self.runtime()).expect("a session");
    }

    /// A command of this user, as in a shell that outlives the session.
    fn command(&self, program: &str) -> Command {
        let mut command = self.home.command(program);
        command
            .env_remove("DIVVY_HOME")
            .env("HOME", &self.own)
            .env("XDG_RUNTIME_DIR", self.runtime())
            .env("DIVVY_SIM_STATE", self.own.join("gpus"))
            .env_remove("DIVVY_SIM")
            .env("LD_LIBRARY_PATH", self.own.join("driver"));
        command
    }

    fn divvy(&self, words: &[&str]) -> CommandOutput {
        let mut command = self.command(&self.home.program("divvy"));
        command.args(words);
        let output = command.output_bounded().expect("divvy starts");
        CommandOutput::new(words.join(" "), &output)
    }

    fn go(&self, turn: usize) {
        fs::write(self.own.join(format!("go.{turn}")), "").expect("a new file");
    }

    fn program(&self) -> [String; 3] {
        let text = |path: PathBuf| path.to_str().expect("text").to_owned();
        [
            text(python()),
            text(self.own.join("program.py")),
            text(self.own.clone()),
        ]
    }

    /// GPU memory that job 1 uses; `None` where no daemon answers.
    fn used(&self) -> Option<u64> {
        let output = self.divvy(&["describe", "night", "-o", "json"]);
        let job: serde_json::Value = serde_json::from_str(&output.stdout).ok()?;
        job["items"][0]["slices"][0]["memory_used_bytes"].as_u64()
    }
}

fn lines(log: &str) -> Vec<&str> {
    log.lines().collect()
}

#[test]
fn a_job_of_a_users_daemon_keeps_its_slice_over_a_logout() {
    let session = Session::new();
    let divvy = |words: &[&str]| session.divvy(words);
    let _ = divvy(&["daemon", "--detached"]).ok();
    let program = session.program();
    let mut words = vec!["submit", "-g", "0.25", "--name", "night", "--"];
    words.extend(program.iter().map(String::as_str));
    let _ = divvy(&words).ok();
    let logged = |count: usize| {
        until("it takes memory", || {
            let log = divvy(&["logs", "night"]).stdout;
            (lines(&log).len() == count).then_some(log)
        })
    };
    session.go(0);
    logged(1);
    session.logout();
    session.go(1);
    // The shell's variable names a folder that is gone; the lock names the socket.
    let log = logged(2);
    assert_eq!(lines(&log), ["0 0 0", "1 0 0"]);
    session.login();
    let socket = session.runtime().join("divvy/divvy.sock");
    until(
        "the daemon is where clients of earlier versions look",
        || socket.exists().then_some(()),
    );
    let _ = divvy(&["daemon", "--status"]).ok();
    let used = || until("its memory is known", || session.used());
    assert!(used() >= 2 * GIB);
    // The next daemon finds the slice, of which no name is left.
    let _ = divvy(&["daemon", "--stop"]).ok();
    let _ = divvy(&["daemon", "--detached"]).ok();
    assert!(used() >= 2 * GIB);
    session.go(2);
    assert_eq!(lines(&logged(3))[2], "2 0 0");
    assert!(used() >= 3 * GIB);
    let events = divvy(&["events", "-o", "json"]).stdout;
    assert!(!events.contains("bypass"), "{events}");
    let _ = divvy(&["cancel", "night"]).ok();
    let _ = divvy(&["wait", "night"]);
    // A daemon that has no socket for a moment is stopped all the same.
    session.logout();
    let _ = divvy(&["daemon", "--stop"]).ok();
}

#[test]
fn a_run_without_a_daemon_keeps_its_slice_over_a_logout_and_is_counted() {
    let session = Session::new();
    let program = session.program();
    let mut run = session.command(&session.home.program("divvy"));
    run.env("DIVVY_FORM", "preload");
    run.args(["run", "--no-daemon", "-g", "0.75", "--"])
        .args(&program);
    let output = session.own.join("output");
    let file = fs::File::create(&output).expect("a new file");
    let mut child = run
        .stdin(Stdio::null())
        .stdout(file)
        .spawn()
        .expect("divvy starts");
    let logged = |count: usize| {
        until("it takes memory", || {
            let log = fs::read_to_string(&output).expect("its output");
            (lines(&log).len() == count).then_some(log)
        })
    };
    session.go(0);
    logged(1);
    session.logout();
    session.go(1);
    assert_eq!(lines(&logged(2)), ["0 0 0", "1 0 0"]);
    session.login();
    let other = session.divvy(&["run", "--no-daemon", "-g", "0.5", "--", "true"]);
    assert!(
        other.stderr.contains("the job cannot start now"),
        "{}",
        other.stderr
    );
    let beside = session.divvy(&["run", "--no-daemon", "-g", "0.25", "--", "true"]);
    let _ = beside.ok();
    session.go(2);
    assert_eq!(lines(&logged(3))[2], "2 0 0");
    child.kill().expect("it runs");
    child.wait_bounded().expect("it ends");
}

/// A command on another host with this home folder: with a name, processes and a machine's id of its own.
fn elsewhere(session: &Session, id: Option<&str>, script: &str) -> Option<CommandOutput> {
    let mut setup = "hostname lab2\n".to_owned();
    if let Some(id) = id {
        let file = session.own.join("machine-id");
        fs::write(&file, format!("{id}\n")).expect("a file");
        setup += &format!("mount --bind {} /etc/machine-id\n", file.display());
    }
    let runtime = session.own.join("lab2");
    let _ = fs::DirBuilder::new().mode(0o700).create(&runtime);
    let mut command = session.command("unshare");
    command.args(["--uts", "--pid", "--fork", "--mount", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let divvy = PathBuf::from(session.home.program("divvy"));
    let folder = divvy.parent().expect("its folder").display();
    command.args(["sh", "-c", &format!("{setup}PATH={folder}:$PATH\n{script}")]);
    let output = command
        .env("XDG_RUNTIME_DIR", &runtime)
        .env("DIVVY_REGISTRY", &runtime)
        .output_bounded();
    let output = output.expect("unshare starts");
    let said = CommandOutput::new(script.to_owned(), &output);
    let cannot =
        said.stderr.contains("unshare failed") || said.stderr.contains("must be superuser");
    if cannot || !PathBuf::from("/etc/machine-id").is_file() {
        eprintln!("SKIPPED: no namespaces may be made here, or this machine has no id");
        return None;
    }
    Some(said)
}

#[test]
fn machines_of_a_shared_home_have_a_daemon_each_and_two_with_one_machine_id_are_told() {
    let session = Session::new();
    let _ = session.divvy(&["daemon", "--detached"]).ok();
    let submit = [
        "submit", "-g", "0.25", "--name", "here", "--", "sleep", "1000",
    ];
    let _ = session.divvy(&submit).ok();
    let id = "00112233445566778899aabbccddeeff";
    let script =
        "divvy run -g 0.25 -- echo apart; divvy ps; divvy daemon --status; divvy daemon --stop";
    let Some(apart) = elsewhere(&session, Some(id), script) else {
        return;
    };
    let apart = apart.ok();
    assert!(
        apart.stdout.contains("apart\n"),
        "{}\n{}",
        apart.stdout,
        apart.stderr
    );
    assert!(!apart.stdout.contains("here"), "{}", apart.stdout);
    let state = session.own.join(".local/state/divvy");
    assert!(state.join(id).join("state.db").is_file());
    // The same id: no second daemon, and the message names both hosts. No command looks for the daemon's process here.
    for script in [
        "divvy run -g 0.25 -- true",
        "divvy run --no-daemon -g 0.25 -- true",
        "divvy submit -g 0.25 -- true",
        "divvy daemon",
        "divvy daemon --stop",
    ] {
        let refused = elsewhere(&session, None, script).expect("as before");
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let names = refused.stderr.contains(&format!(" on {host}"));
        let said = &refused.stderr;
        assert!(
            names && refused.code != 0,
            "{script}: {}, {said}",
            refused.code
        );
    }
    let here = session.divvy(&["ps"]).ok();
    assert!(here.stdout.contains("here"), "{}", here.stdout);
    let _ = session.divvy(&["cancel", "here"]).ok();
    let _ = session.divvy(&["daemon", "--stop"]).ok();
}
