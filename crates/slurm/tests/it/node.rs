//! Prolog, steps and Epilog as slurmd runs them, with the environment that it had, over a daemon with simulated GPUs.

use std::fs;

use divvy_testkit::{Home, can_be_users};
use serde_json::Value;

use crate::kit::{EPILOG, GRES, JOB, Node, PROLOG, WHOLE};

const GIB: u64 = 1 << 30;

/// The user of the recorded job, who need not exist.
const ANA: &str = "uid=1000";

fn node(home: &Home, more: &str) -> Node {
    let node = Node::new();
    node.configure(&format!(
        "home = {:?}\n{more}",
        home.path().display().to_string()
    ));
    node
}

fn outcome(node: &Node, job: u32) -> Value {
    let text = fs::read(node.record(job)).expect("Prolog left a record");
    let record: Value = serde_json::from_slice(&text).expect("JSON");
    record["outcome"].clone()
}

fn slices(home: &Home) -> Vec<Value> {
    home.items(&["slice", "ls"])
}

/// What a task could allocate, in GiB rounded down.
#[track_caller]
fn filled(home: &Home, node: &Node, words: &[&str], wrap: &[&str]) -> (u64, String) {
    let probe = home.program("cudarc_probe");
    let command = [wrap, &[probe.as_str(), "fill"]].concat();
    let said = node.task(&[&["job=1", ANA], words].concat(), &command);
    let report = said.json();
    assert_eq!(report["error"], "CUDA_ERROR_OUT_OF_MEMORY", "{report}");
    (
        report["got_bytes"].as_u64().expect("a figure") / GIB,
        said.stderr,
    )
}

#[test]
fn a_job_is_held_to_its_shards_in_every_task_and_released_by_epilog() {
    if !can_be_users("entering a slice as Slurm does") {
        return;
    }
    let mut home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "");
    home.start(&["--system"]);
    let node = node(&home, "");
    node.does("prolog", PROLOG, &[]);
    let held = slices(&home);
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0]["uid"], "slurm-1");
    // 3 shards of 8.
    let (gib, stderr) = filled(&home, &node, &[], &[]);
    assert!((28..=29).contains(&gib), "{gib}");
    assert!(
        stderr.contains("refused at the limit of 29.7 GiB"),
        "{stderr}"
    );
    assert!(
        node.calls().contains("Comment=divvy n1: peak"),
        "no comment"
    );
    // A user who unsets what a weaker form of the limiter needs.
    let unset = [
        "DIVVY_SLICE",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "DIVVY_JOB_ID",
    ];
    let unset = unset.map(|name| format!("--unset={name}"));
    let wrap: Vec<&str> = ["/usr/bin/env"]
        .into_iter()
        .chain(unset.iter().map(String::as_str))
        .collect();
    let (gib, _) = filled(&home, &node, &[], &wrap);
    assert!((28..=29).contains(&gib), "{gib}");
    // Prolog of a requeued job, and an Epilog that runs twice.
    node.does("prolog", PROLOG, &[]);
    node.does("epilog", EPILOG, &[("SLURM_JOB_ID", "1")]);
    node.does("epilog", EPILOG, &[("SLURM_JOB_ID", "1")]);
    assert_eq!(slices(&home), Vec::<Value>::new());
    assert!(!node.record(1).exists());
}

#[test]
fn amounts_that_differ_are_refused_with_both_and_whole_gpus_are_held() {
    let mut home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "");
    home.start(&["--system"]);
    let node = node(&home, "weaker_form = \"run\"");
    let refused = |environment: &[(&str, &str)]| {
        node.does("prolog", PROLOG, environment);
        outcome(&node, 1)["refused"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    // 30 GiB are more than 3 of 8 shards of 79.2 GiB.
    let why = refused(&[("SPANK_DIVVY_GPU_MEMORY", "32212254720")]);
    assert!(
        why.contains("30.0 GiB is more than the job's 3 of 8 shards"),
        "{why}"
    );
    node.answers("slurmd", "slurmd: error: no gres.conf");
    let why = refused(&[]);
    assert!(why.contains("how many shards GPU 0 has"), "{why}");
    node.answers("slurmd", &GRES.replace("nvidia0", "nvidia7"));
    let why = refused(&[]);
    assert!(
        why.contains("(/dev/nvidia7), and Divvy's daemon has no such GPU"),
        "{why}"
    );
    node.answers("slurmd", GRES);
    node.answers("scontrol", &JOB.replace("shard:3(", "shard:11("));
    let why = refused(&[]);
    assert!(
        why.contains("11 shards on GPUs [0], and GPU 0 has 8"),
        "{why}"
    );
    node.fails(
        "scontrol",
        "slurm_load_jobs error: Unable to contact slurm controller",
    );
    let why = refused(&[]);
    assert!(why.contains("Unable to contact slurm controller"), "{why}");
    assert_eq!(slices(&home), Vec::<Value>::new());
    node.answers("scontrol", WHOLE);
    node.does("prolog", PROLOG, &[]);
    assert_eq!(slices(&home)[0]["devices"][0]["whole"], true);
    // A job of 6 GiB beside it, on the other GPU, until slurmctld no longer knows the first one.
    node.answers("scontrol", JOB);
    let second = [
        ("SLURM_JOB_ID", "2"),
        ("SPANK_DIVVY_GPU_MEMORY", "6442450944"),
    ];
    node.does("prolog", PROLOG, &second);
    assert!(
        outcome(&node, 2)["slice"]["name"] == "slurm-2",
        "{}",
        outcome(&node, 2)
    );
    let held = slices(&home);
    assert_eq!(
        held.len(),
        1,
        "the lost Epilog of job 1 was made up for: {held:?}"
    );
    assert_eq!(held[0]["slices"][0]["memory_limit_bytes"], 6 * GIB);
    node.answers("squeue", "2\n");
    node.does("check", "SLURMD_NODENAME=n1", &[]);
    assert_eq!(slices(&home).len(), 1);
    node.answers("squeue", "");
    node.does("check", "SLURMD_NODENAME=n1", &[]);
    assert_eq!(slices(&home), Vec::<Value>::new());
}

#[test]
fn a_node_without_a_daemon_refuses_runs_or_drains_as_configured() {
    let home = Home::new("a100-80gb:1");
    let node = node(&home, "wait_seconds = 0");
    node.does("prolog", PROLOG, &[]);
    let said = node.task(&["job=1"], &["echo", "started"]).exits(1);
    assert!(
        said.stderr.contains("Divvy's daemon on n1 does not answer"),
        "{}",
        said.stderr
    );
    let configure = |line: &str| {
        let home = home.path().display().to_string();
        node.configure(&format!("home = {home:?}\nwait_seconds = 0\n{line}"));
    };
    configure("without_daemon = \"run\"");
    node.does("prolog", PROLOG, &[]);
    let said = node.task(&["job=1"], &["echo", "started"]).ok();
    assert!(
        said.stderr.contains("runs without a limit"),
        "{}",
        said.stderr
    );
    configure("without_daemon = \"drain\"");
    let _ = node.run("prolog", PROLOG, &[]).exits(1);
    configure("without_demon = 1");
    node.does("prolog", PROLOG, &[]);
    let why = outcome(&node, 1)["refused"].to_string();
    assert!(why.contains("unknown field `without_demon`"), "{why}");
    // Epilog never fails, because Slurm would drain the node.
    node.does("epilog", EPILOG, &[]);
    // A job without GPUs needs neither daemon nor slurmctld.
    let without: String = PROLOG
        .lines()
        .filter(|line| !line.contains("GPUS"))
        .map(|line| format!("{line}\n"))
        .collect();
    node.fails("scontrol", "no controller");
    configure("");
    node.does("prolog", &without, &[]);
    assert_eq!(outcome(&node, 1), "no_slice");
    node.does("prolog", &without, &[("SPANK_DIVVY_GPU_MEMORY", "1")]);
    let why = outcome(&node, 1)["refused"].to_string();
    assert!(why.contains("add --gres=shard:N"), "{why}");
}

#[test]
fn shards_of_a_gpu_in_mig_mode_are_refused_at_once_with_the_mode() {
    let mut home = Home::new("h100-80gb:2");
    home.start(&["--system"]);
    let _ = home.divvy(&["admin", "gpu", "0", "--mode", "mig"]).ok();
    let node = node(&home, "wait_seconds = 60");
    let started = std::time::Instant::now();
    node.does("prolog", PROLOG, &[]);
    let why = outcome(&node, 1)["refused"].to_string();
    assert!(why.contains("n1: GPU 0 is in MIG mode"), "{why}");
    assert!(why.contains("divvy admin gpu 0 --mode shared"), "{why}");
    assert!(
        started.elapsed().as_secs() < 30,
        "it waited for what cannot come"
    );
}
