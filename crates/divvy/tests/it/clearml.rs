//! The daemon with a ClearML Server behind it: what is refused before anybody hears of it, and how it comes and goes.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use divvy_clearml_stub::Stub;
use divvy_testkit::{Bounded as _, until};
use tempfile::TempDir;

/// An instance of its own, with a clearml.conf. Dropping it ends its daemon.
struct Home(TempDir);

impl Home {
    fn new(conf: &str) -> Self {
        let home = Self(TempDir::new().expect("a temporary folder"));
        fs::write(home.conf(), conf).expect("a file");
        home
    }

    fn conf(&self) -> PathBuf {
        self.0.path().join("clearml.conf")
    }

    /// `divvy daemon` with these words, and the rest of the words that every one needs.
    fn daemon(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy"));
        command.arg("daemon").args(line.split_whitespace());
        for (name, _) in std::env::vars() {
            if name.starts_with("CLEARML_") || name.starts_with("TRAINS_") || name == "DIVVY_SIM" {
                command.env_remove(name);
            }
        }
        command
            .env("DIVVY_HOME", self.0.path().join("divvy"))
            .env("HOME", self.0.path())
            .env("CLEARML_CONFIG_FILE", self.conf())
            .env("CLEARML_WORKER_NAME", "node1")
            .stdin(Stdio::null())
            .output_bounded()
            .expect("divvy can be run")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.daemon("--stop");
    }
}

/// What it said, and its exit code.
fn told(output: &Output) -> (Option<i32>, String) {
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn what_can_never_work_is_refused_before_the_server_hears_of_it() {
    let stub = Stub::start();
    let home = Home::new(&stub.conf());
    for (line, code, words) in [
        (
            "--dynamic-gpus --gpus 0-2 --queue dual",
            2,
            "queue must be in format <queue_name>=<num_gpus>",
        ),
        (
            "--dynamic-gpus --gpus 0-2 --queue dual=0",
            2,
            "<= 0 is not allowed",
        ),
        (
            "--dynamic-gpus --gpus 0-2 --queue dual=1.25",
            2,
            "fractional gpu cannot be > 1",
        ),
        ("--dynamic-gpus --gpus 0-2 --queue q=0.3", 2, "q=0.3"),
        ("--dynamic-gpus --gpus 0-2,x --queue q=1", 2, "--gpus: `x`"),
        ("--dynamic-gpus --queue q=1", 2, "requires --gpus"),
        (
            "--dynamic-gpus --gpus 0-3 --queue q=1 --set strict-start=true",
            2,
            "there is no GPU 3 here",
        ),
        (
            "--dynamic-gpus --gpus 0-1 --queue three=3 --set strict-start=true",
            5,
            "queue three=3 cannot start any job",
        ),
        (
            "--dynamic-gpus --gpus 0-2 --queue q=1 --services-mode",
            2,
            "--services-mode",
        ),
    ] {
        let (is, said) =
            told(&home.daemon(&format!("--sim a100-80gb:3 --clearml --docker {line}")));
        assert_eq!(is, Some(code), "{line}: {said}");
        assert!(
            said.contains(words) && said.contains("hint: "),
            "{line}: {said}"
        );
    }
    // Wrong keys are reported before the GPUs are looked at.
    let mut calls = stub.calls();
    calls.retain(|call| call.endpoint != "auth.login");
    assert!(calls.is_empty(), "{calls:?}");
}

#[test]
fn a_configuration_that_cannot_be_used_is_named_with_its_key() {
    for (conf, words) in [
        ("", "api.api_server"),
        (
            "api.api_server: \"http://127.0.0.1:9\"",
            "api.credentials.access_key",
        ),
        ("api {", "clearml.conf"),
    ] {
        let home = Home::new(conf);
        let (code, said) = told(&home.daemon("--sim a100-80gb:1 --clearml --queue q"));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(words) && said.contains("hint: "), "{said}");
        assert!(!home.0.path().join("divvy/divvy.sock").exists());
    }
    let stub = Stub::start();
    let home = Home::new(&stub.conf());
    let map = home.0.path().join("projects.toml");
    fs::write(&map, "by = \"nobody\"").expect("a file");
    for (rule, words) in [
        ("/nowhere/users", "cannot read"),
        (map.to_str().expect("a path"), "not a valid project mapping"),
    ] {
        let line = format!("--sim a100-80gb:1 --clearml --queue q --set clearml.project-by={rule}");
        let (code, said) = told(&home.daemon(&line));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(words) && said.contains("hint: "), "{said}");
    }
    let home = Home::new("");
    let (code, said) =
        told(&home.daemon("--clearml --queue q --config-file /nonexistent/clearml.conf"));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/nonexistent/clearml.conf"), "{said}");
}

#[test]
fn keys_that_the_server_refuses_and_queues_that_it_does_not_have_end_the_daemon() {
    let stub = Stub::start();
    let home = Home::new(
        &stub
            .conf()
            .replace(divvy_clearml_stub::ACCESS_KEY, "NOBODY"),
    );
    for more in ["", " --detached"] {
        let line = format!("--sim a100-80gb:1 --clearml --queue default{more}");
        let (code, said) = told(&home.daemon(&line));
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("hint: create new API keys"), "{said}");
        let measured = "measured the context overhead";
        assert!(
            !said.contains(measured),
            "after the GPUs were measured: {said}"
        );
    }
    drop(home);
    let home = Home::new(&stub.conf());
    let (code, said) = told(&home.daemon("--sim a100-80gb:1 --clearml --queue nothing_here"));
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("nothing_here") && said.contains("--create-queue"),
        "{said}"
    );
    assert!(stub.workers().is_empty());
}

#[test]
fn a_detached_daemon_has_returned_before_it_logs_that_the_server_lacks_its_queue() {
    let stub = Stub::start();
    let home = Home::new(&stub.conf());
    let looked_for = stub.hold_before("queues.get_all");
    let started = home.daemon("--sim a100-80gb:1 --clearml --queue nothing_here --detached");
    assert!(started.status.success(), "{}", told(&started).1);
    looked_for.release();
    let log = home.0.path().join("divvy/daemon.log");
    until("its log has the queue", || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        said.contains("nothing_here") && said.contains("--create-queue")
    });
}

#[test]
fn a_daemon_says_which_worker_it_is_and_is_stopped_by_that_name_alone() {
    let stub = Stub::start();
    let home = Home::new(&stub.conf());
    let started = home.daemon(
        "--sim a100-80gb:3 --clearml --dynamic-gpus --gpus 0, 1 --queue dual_gpus=2 half_gpu=0.5 --create-queue --detached",
    );
    assert!(started.status.success(), "{}", told(&started).1);
    until("it is registered", || {
        stub.workers()
            .iter()
            .any(|worker| worker.id == "node1:dgpu0,1")
    });
    let status = home.daemon("--status");
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    for line in [
        format!("worker   node1:dgpu0,1 of clearml at {}", stub.url()),
        "queues   dual_gpus=2 half_gpu=0.5 default".to_owned(),
        "running  no job".to_owned(),
    ] {
        assert!(said.lines().any(|is| is == line), "{line}: {said}");
    }
    let (code, said) = told(&home.daemon("--stop node1:dgpu0-2"));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("node1:dgpu0,1, not node1:dgpu0-2"), "{said}");

    // Lines of unit files: the one that starts the daemon, with `--stop` behind it. The GPUs say which daemon is meant.
    for (line, words) in [
        (
            "--gpus 5,6 --queue other=1 --stop",
            "serves GPUs 0,1 (worker node1:dgpu0,1), not GPUs 5,6",
        ),
        (
            "--detached --dynamic-gpus --gpus 0 --queue other=1 --stop",
            "not GPU 0",
        ),
        (
            "--dynamic-gpus --gpus 0-2 --queue other=1 --stop --foreground",
            "not GPUs 0,1,2",
        ),
    ] {
        let (code, said) = told(&home.daemon(line));
        assert_eq!(code, Some(3), "{line}: {said}");
        assert!(
            said.contains(words) && said.contains("hint: omit --gpus"),
            "{line}: {said}"
        );
    }
    for flag in ["--cpu-only", "--services-mode"] {
        let (code, said) = told(&home.daemon(&format!("--queue other {flag} --detached --stop")));
        assert_eq!(code, Some(2), "{flag}: {said}");
        assert!(said.contains("`clearml-agent daemon"), "{flag}: {said}");
    }
    let (code, said) = told(&home.daemon("--status --detached --gpus 5 --queue other"));
    assert_eq!(code, Some(0), "it was not stopped: {said}");

    let (code, said) = told(&home.daemon("--stop node1:dgpu0,1 --gpus 5,6"));
    assert_eq!(code, Some(0), "{said}");
    assert!(stub.workers().is_empty(), "it has taken leave");
    let (code, _) = told(&home.daemon("--status"));
    assert_eq!(code, Some(7));
    assert!(stub.complaints().is_empty(), "{:?}", stub.complaints());
}

#[test]
fn in_plain_form_each_task_has_all_gpus_that_are_given() {
    let stub = Stub::start();
    stub.queue("default");
    let home = Home::new(&stub.conf());
    let started = home.daemon(
        "--sim a100-80gb:3 --clearml --gpus 0-1 --queue default --docker clearml/fractional-gpu:u22-cu12.3-8gb --detached",
    );
    assert!(started.status.success(), "{}", told(&started).1);
    let status = home.daemon("--status");
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(
        said.lines().any(|line| line == "queues   default=2"),
        "{said}"
    );
    assert!(said.contains("worker   node1:gpu0-1 of clearml"), "{said}");
    // The line of a unit of the stock agent (clearml-agent 210), with its GPUs written otherwise.
    let line = "--detach --clearml --gpus 0,1 --queue default --create-queue --polling-interval 1 --uptime '0-24 SUN-SAT' --docker --stop";
    let (code, said) = told(&home.daemon(line));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("has stopped"), "{said}");
}

/// Flags that the help of a command of the installed stock agent shows.
fn flags_of_the_stock_agent(command: &[&str]) -> BTreeSet<String> {
    let python = std::env::var_os("DIVVY_TEST_PYTHON").map(PathBuf::from);
    let python = python.expect("DIVVY_TEST_PYTHON is set by `cargo xtask test`");
    let output = Command::new(python.with_file_name("clearml-agent"))
        .args(command)
        .arg("--help")
        .output_bounded()
        .expect("the agent lies beside its Python");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split(|letter: char| letter.is_whitespace() || "[],=".contains(letter));
    // Words of a description are in quotes or end in a stop.
    let is_flag = |word: &&str| {
        let name = word.trim_start_matches('-');
        word.starts_with('-')
            && !name.is_empty()
            && name.chars().all(|l| l.is_ascii_alphabetic() || l == '-')
    };
    words.filter(is_flag).map(str::to_owned).collect()
}

#[test]
fn no_flag_of_the_installed_stock_agent_is_unknown() {
    let home = Home::new("");
    let flags = flags_of_the_stock_agent(&["daemon"]);
    for flag in [
        "--queue",
        "--git-pass",
        "--log-level",
        "--services-mode",
        "--podman",
        "-O",
        "--stop",
    ] {
        assert!(flags.contains(flag), "the help was read wrongly: {flags:?}");
    }
    let mut seen = 0;
    for flag in flags
        .iter()
        .filter(|flag| !["-h", "--help", "--gpu"].contains(&flag.as_str()))
    {
        let value = match flag.as_str() {
            "--polling-interval" => "5",
            "--queue" | "--child-report-tags" | "--git-user" | "--git-pass" => "word",
            "--uptime" | "--downtime" => "8-17",
            "--log-level" => "CRITICAL",
            "--gpus" => "0",
            _ => "",
        };
        let (code, said) = told(&home.daemon(&format!(
            "--clearml --config-file /nonexistent {flag} {value}"
        )));
        assert!(code != Some(0), "{flag}: {said}");
        assert!(
            !said.contains("unexpected argument") && !said.contains("a value is required"),
            "{flag}: {said}"
        );
        seen += 1;
    }
    assert!(seen >= 25, "{flags:?}");
    // What stands before `daemon` there stands before it here.
    let before = flags_of_the_stock_agent(&[]);
    assert!(
        before.contains("--config-file") && before.contains("--debug"),
        "{before:?}"
    );
    for (words, code, words_of_it) in [
        (
            "--config-file /nowhere --debug daemon --clearml --queue q",
            2,
            "/nowhere",
        ),
        (
            "-d --config-file /nowhere daemon --clearml --queue q",
            2,
            "/nowhere",
        ),
        ("--debug ps", 2, "--debug is not a flag of this verb"),
        (
            "--config-file /nowhere daemon --queue q",
            2,
            "--config-file is not a flag of this verb",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_divvy"))
            .args(words.split(' '))
            .env("DIVVY_HOME", home.0.path().join("divvy"))
            .env_remove("CLEARML_CONFIG_FILE")
            .output_bounded()
            .expect("divvy can be run");
        let (is, said) = told(&output);
        assert_eq!(is, Some(code), "{words}: {said}");
        assert!(
            said.contains(words_of_it) && said.contains("hint: "),
            "{words}: {said}"
        );
    }
}

#[test]
fn a_git_password_is_in_no_list_of_processes_and_the_first_line_names_the_image() {
    let stub = Stub::start();
    let home = Home::new(&stub.conf());
    let started = home.daemon(
        "--sim a100-80gb:1 --clearml --queue all --create-queue --git-user octo --git-pass t0ken-of-octo --log-level debug \
         --docker --detached",
    );
    assert!(started.status.success(), "{}", told(&started).1);
    let status = String::from_utf8_lossy(&home.daemon("--status").stdout).into_owned();
    let pid = status
        .strip_prefix("daemon   pid ")
        .and_then(|rest| rest.split(',').next());
    let process = PathBuf::from("/proc").join(pid.expect(&status));
    let read = |name: &str| {
        let bytes = fs::read(process.join(name)).expect("the daemon runs");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let words = read("cmdline");
    assert!(
        words.contains("octo") && !words.contains("t0ken"),
        "{words}"
    );
    let environment = read("environ");
    for variable in [
        "CLEARML_AGENT_GIT_PASS=t0ken-of-octo",
        "CLEARML_LOG_LEVEL=DEBUG",
    ] {
        assert!(
            environment.split('\0').any(|is| is == variable),
            "{variable}"
        );
    }
    let log = read("fd/2");
    let first = log
        .lines()
        .find(|line| line.contains("INFO"))
        .unwrap_or_default();
    assert!(
        first.contains("each task runs in a container of its own image, or of nvidia/cuda:12.6.3-cudnn-runtime-ubuntu20.04"),
        "{log}"
    );
    assert!(
        !log.contains("t0ken") && !log.contains("without an image"),
        "{log}"
    );

    let (code, said) = told(&home.daemon("--stop other:gpu0 node1:0 --detached"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("not this daemon: other:gpu0"), "{said}");
}

#[test]
fn flags_that_this_machine_cannot_follow_say_what_is_missing() {
    let home = Home::new("");
    for (line, words) in [
        (
            "--force-current-version --set clearml.agent=[\"/nowhere/agent\"] --queue q",
            "`/nowhere/agent --version`: No such file",
        ),
        (
            "--force-current-version --set clearml.agent=[\"echo\"] --queue q",
            "it prints no version",
        ),
    ] {
        let (code, said) = told(&home.daemon(&format!("--sim a100-80gb:1 --clearml {line}")));
        assert_eq!(code, Some(2), "{line}: {said}");
        assert!(
            said.contains(words) && said.contains("hint: "),
            "{line}: {said}"
        );
    }
}
