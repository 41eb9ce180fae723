//! The stock ClearML agent from PyPI with our package beside it: `--dynamic-gpus` with fractions, on a server as the open one is.
//!
//! Its `docker` is a script that writes down its words and has the real one run a probe where the agent's script would run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use divvy_clearml_stub::{Status, Stub};
use divvy_e2e::engine::{Engine, IMAGE};
use divvy_e2e::{GIB, Home, python, until, write_program};
use divvy_testkit::Bounded as _;
use serde_json::json;

use super::{got, reports, scene};

/// The agent, its server and its machine.
struct Stock {
    _engine: Arc<Engine>,
    home: Home,
    stub: Stub,
    python: PathBuf,
}

/// An agent that runs; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_bounded();
    }
}

impl Stock {
    fn new(sim: &str) -> Option<Self> {
        let (engine, home) = scene(sim)?;
        let bin = home.scratch().join("bin");
        for folder in [&bin, &home.scratch().join("docker.log")] {
            fs::create_dir(folder).expect("the folder is ours");
        }
        write_program(&bin.join("docker"), docker(&home));
        let divvy = format!(
            "#!/bin/sh\n[ -e {} ] && {{ echo 'error: not now' >&2; exit 1; }}\nexec {} \"$@\"\n",
            home.scratch().join("gates/refuse").display(),
            home.program("divvy")
        );
        write_program(&bin.join("divvy"), divvy);
        let stub = Stub::start();
        let more = "agent { worker_name: \"node1\" }\nagent.disable_agent_update_check: true\n";
        let conf = format!("{}{more}", stub.conf());
        fs::write(home.scratch().join("clearml.conf"), conf).expect("the folder is ours");
        let python = environment(&home.scratch().join("venv"));
        Some(Self {
            _engine: engine,
            home,
            stub,
            python,
        })
    }

    /// `clearml-agent daemon --dynamic-gpus` in the foreground.
    fn agent(&self, gpus: &str, queues: &[&str], docker: &[&str]) -> Command {
        let bin = self.home.scratch().join("bin");
        let mut command = self.home.command(self.python.to_str().expect("a path"));
        command
            .args([
                "-m",
                "clearml_agent",
                "daemon",
                "--foreground",
                "--dynamic-gpus",
            ])
            .args(["--gpus", gpus, "--queue"])
            .args(queues)
            .args(docker)
            .env(
                "CLEARML_CONFIG_FILE",
                self.home.scratch().join("clearml.conf"),
            )
            .env("HOME", self.home.scratch())
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()),
            );
        command
    }

    fn task(&self, queue: &str, name: &str) -> String {
        self.stub
            .enqueued(queue, name, json!({ "container": { "image": IMAGE } }))
    }

    /// Once the task is in this state; what its console says.
    #[track_caller]
    fn becomes(&self, task: &str, status: Status) -> String {
        until(format!("task {task} is {status:?}"), || {
            (self.stub.status(task) == Some(status)).then_some(())
        });
        self.stub.log(task)
    }

    /// The words of each `docker run` so far, in no order: two may come at once.
    fn lines(&self) -> Vec<Vec<String>> {
        let calls = fs::read_dir(self.home.scratch().join("docker.log")).expect("it was made");
        let read = |call: fs::DirEntry| fs::read_to_string(call.path()).expect("it was written");
        let words = |text: String| text.lines().map(str::to_owned).collect();
        let calls = calls.map(|call| call.expect("a folder of ours"));
        calls.map(read).map(words).collect()
    }
}

/// `docker` as the agent finds it.
fn docker(home: &Home) -> String {
    let real = ["/usr/bin/docker", "/usr/local/bin/docker"];
    let real = real.iter().find(|path| Path::new(path).exists());
    let real = real.expect("the engine's program was found");
    let log = home.scratch().join("docker.log");
    let log = log.display();
    format!(
        "#!/bin/sh\n\
         [ \"$1\" = run ] || exec {real} \"$@\"\n\
         for word; do printf '%s\\n' \"$word\" | head -n 1; done >{log}/$$\n\
         words=\n\
         while [ \"$1\" != {IMAGE} ]; do words=\"$words '$1'\"; shift; done\n\
         eval exec {real} \"$words\" {IMAGE} cudarc_probe fill --route linear\n"
    )
}

/// A Python environment with the tests' clients, and with our package as `pip` installs it.
fn environment(folder: &Path) -> PathBuf {
    let clients = python();
    let clients_run = |words: &[&str]| {
        let output = Command::new(&clients)
            .args(words)
            .stdin(Stdio::null())
            .output_bounded()
            .expect("Python starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let at = folder.to_str().expect("a plain path");
    let _ = clients_run(&["-m", "venv", "--without-pip", at]);
    let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let theirs = clients_run(&["-c", packages]);
    let own = folder.join("bin/python");
    let output = Command::new(&own).args(["-c", packages]).output_bounded();
    let ours = output.expect("Python starts").stdout;
    let ours = String::from_utf8_lossy(&ours).trim().to_owned();
    fs::write(Path::new(&ours).join("clients.pth"), format!("{theirs}\n")).expect("it is ours");
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/clearml-agent-fractional-gpu");
    let _ = clients_run(&[
        "-m",
        "pip",
        "--python",
        own.to_str().expect("a path"),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        source.to_str().expect("a path"),
    ]);
    own
}

#[test]
fn the_stock_agents_fractions_reach_docker_run_with_our_mounts_and_their_limit() {
    let Some(stock) = Stock::new("a100-80gb:2") else {
        return;
    };
    let _daemon = stock.home.daemon(&[]);
    let quarter = stock.task("quarter_gpu", "quarter");
    let half = stock.task("half_gpu", "half");
    let _ = stock.stub.queue("single_gpu");
    let queues = ["quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"];
    let agent = stock.agent("0-1", &queues, &["--docker"]).spawn();
    let _agent = Running(agent.expect("Python starts"));
    let usable = stock.home.items(&["gpus"])[0]["memory_usable_bytes"].as_u64();
    let usable = usable.expect("a figure");
    for (task, parts) in [(&quarter, 4), (&half, 2)] {
        let log = stock.becomes(task, Status::Completed);
        let report = &reports(&log)[0];
        let total = report["before"]["total_bytes"].as_u64().expect("a figure");
        assert!(
            total.abs_diff(usable / parts) < GIB / 100,
            "{total}: 1/{parts} of {usable}"
        );
        assert!(got(report) < total, "{report}");
    }
    let lines = stock.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for task in [&quarter, &half] {
        let its = format!("CLEARML_TASK_ID={task}");
        let is_its = |line: &&Vec<String>| line.iter().any(|word| word.contains(&its));
        let line = lines.iter().find(is_its);
        let line = line.unwrap_or_else(|| panic!("{its}: {lines:?}"));
        let says = |part: &str| line.iter().any(|word| word.contains(part));
        assert!(
            says("target=/run/divvy-job/slice/control,readonly"),
            "{line:?}"
        );
        assert!(says("target=/etc/ld.so.preload,readonly"), "{line:?}");
        assert!(says("--label=divvy.joins="), "{line:?}");
        // What the agent itself has put there.
        assert!(says("clearml-parent-worker-id=node1:dgpu0-1"), "{line:?}");
        assert!(!says("--gpus"), "{line:?}");
    }
    // Each was a job of Divvy's, on the GPU that the agent chose.
    let jobs = stock.home.items(&["ps", "--all"]);
    assert_eq!(jobs.len(), 2, "{jobs:?}");
    for task in [&quarter, &half] {
        let name = format!("clearml-{task}");
        assert!(jobs.iter().any(|job| job["name"] == name), "{jobs:?}");
    }
    // The open server was asked for runtime properties, and has none.
    assert!(
        stock
            .stub
            .calls_to("workers.set_runtime_properties")
            .iter()
            .all(|call| call.code == 404)
    );
}

mod exhaustive {
    use super::*;

    #[test]
    fn what_cannot_be_given_is_said_before_a_task_is_taken_and_what_fails_late_fails_its_task_alone()
     {
        let Some(stock) = Stock::new("a100-80gb:1") else {
            return;
        };
        let _daemon = stock.home.daemon(&[]);
        let task = stock.task("half_gpu", "first");
        let refused = |gpus: &str, queues: &[&str], docker: &[&str], why: &str| {
            let output = stock.agent(gpus, queues, docker).output_bounded();
            let output = output.expect("Python starts");
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(!output.status.success() && said.contains(why), "{said}");
            assert_eq!(stock.stub.status(&task), Some(Status::Queued), "{why}");
        };
        let _ = stock.stub.queue("single_gpu");
        let (half, single) = ("half_gpu=0.5", "single_gpu=1");
        refused("0", &["half_gpu=0.3"], &["--docker"], "a multiple of 0.125");
        refused("3", &[half], &["--docker"], "does not serve GPU 3");
        // The agent by itself looks at its last queue alone.
        refused("0", &[half, single], &[], "only supported in docker-mode");

        let hold = stock.stub.hold_before("queues.get_next_task");
        let agent = stock.agent("0", &[half], &["--docker"]).spawn();
        let _agent = Running(agent.expect("Python starts"));
        until("a task is asked for", || hold.is_reached().then_some(()));
        stock.home.open("refuse");
        hold.release();
        let log = stock.becomes(&task, Status::Failed);
        assert!(
            log.contains("clearml-agent-fractional-gpu: ") && log.contains("not now"),
            "{log}"
        );
        fs::remove_file(stock.home.gate("refuse")).expect("it was made here");
        let next = stock.task("half_gpu", "next");
        let _ = stock.becomes(&next, Status::Completed);
    }
}
