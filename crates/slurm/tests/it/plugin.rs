//! The plugin as Slurm's programs load it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use divvy_testkit::{Bounded as _, CommandOutput};

use crate::kit::{Node, plugin, stand_in};

fn local(api: u32, words: &[&str]) -> CommandOutput {
    let mut command = Command::new(stand_in(api));
    command.arg(plugin()).arg("local").args(words);
    let output = command.output_bounded().expect("the stand-in starts");
    CommandOutput::new(words.join(" "), &output)
}

/// Writes a record by hand.
fn record(node: &Node, job: u32, outcome: &str) {
    let text = format!(
        r#"{{"version":1,"job":{job},"node":"n1","outcome":{outcome},"gpu_memory":8589934592,"helper":"/nonexistent","config":"/nonexistent"}}"#
    );
    fs::create_dir_all(node.records()).expect("a temporary folder");
    fs::write(node.record(job), text).expect("a temporary folder");
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(node.record(job), private).expect("a temporary folder");
}

#[test]
fn the_plugin_has_the_release_of_the_program_that_loads_it() {
    for (api, release) in [
        (37, "21.08"),
        (38, "22.05"),
        (40, "23.11"),
        (42, "24.11"),
        (45, "26.05"),
    ] {
        let said = local(api, &[]).ok();
        assert_eq!(said.stderr, format!("release {release}\n"));
    }
    // Slurm itself refuses the plugin, as the release is not its own.
    let said = local(99, &[]).ok();
    let why = "serves Slurm 21.08 to 26.05, and not the release with libslurm 99";
    assert!(said.stderr.contains(why), "{}", said.stderr);
    assert!(said.stderr.contains("release 22.05"), "{}", said.stderr);
}

#[test]
fn the_option_is_checked_at_submission_and_passed_to_prolog_in_bytes() {
    let said = local(38, &["gpu-memory=8G"]).ok();
    assert_eq!(said.stdout.trim(), "SPANK_DIVVY_GPU_MEMORY=8589934592");
    assert_eq!(local(38, &[]).ok().stdout, "");
    for wrong in ["8Q", "", "-1G", "0", "8G\u{1b}[31m"] {
        let said = local(38, &[&format!("gpu-memory={wrong}")]).exits(1);
        assert!(
            said.stderr.contains("divvy: --gpu-memory"),
            "{wrong}: {}",
            said.stderr
        );
        assert!(said.stderr.contains("such as 8G"), "{}", said.stderr);
        assert!(!said.stderr.contains('\u{1b}'), "{}", said.stderr);
    }
}

#[test]
fn a_task_without_a_record_does_not_start_unless_plugstack_allows_it() {
    let node = Node::new();
    let said = node.task(&[], &["echo", "started"]).exits(1);
    assert!(!said.stdout.contains("started"));
    assert!(
        said.stderr.contains("no record of job 7"),
        "{}",
        said.stderr
    );
    let said = node
        .task(&["argument=missing=run"], &["echo", "started"])
        .ok();
    assert!(said.stdout.contains("started"));
    let said = node
        .task(&["argument=missing=perhaps"], &["echo", "started"])
        .exits(1);
    assert!(
        said.stderr.contains("\"missing=perhaps\""),
        "{}",
        said.stderr
    );
}

#[test]
fn the_record_decides_and_its_line_is_in_the_output() {
    let node = Node::new();
    record(&node, 7, r#""no_slice""#);
    assert!(
        node.task(&[], &["echo", "started"])
            .ok()
            .stdout
            .contains("started")
    );
    record(&node, 7, r#"{"refused":"n1: no room"}"#);
    let said = node.task(&[], &["echo", "started"]).exits(1);
    assert!(!said.stdout.contains("started"));
    assert!(
        said.stderr
            .contains("divvy: the job does not start here: n1: no room"),
        "{}",
        said.stderr
    );
    record(&node, 7, r#"{"unlimited":"n1: no room"}"#);
    let said = node.task(&[], &["echo", "started"]).ok();
    assert!(said.stdout.contains("started"));
    assert!(
        said.stderr.contains("runs without a limit: n1: no room"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_step_cannot_change_the_amount_of_its_job() {
    let node = Node::new();
    record(&node, 7, r#""no_slice""#);
    let _ = node.task(&["gpu-memory=8G"], &["true"]).ok();
    let said = node.task(&["gpu-memory=9G"], &["true"]).exits(1);
    assert!(
        said.stderr.contains("belongs to the job"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_damaged_record_or_one_that_others_can_write_starts_nothing() {
    let node = Node::new();
    for text in ["", "{", "null", r#"{"version":2}"#] {
        record(&node, 7, r#""no_slice""#);
        fs::write(node.record(7), text).expect("a temporary folder");
        let said = node.task(&[], &["echo", "started"]).exits(1);
        assert!(
            said.stderr.contains("the record of job 7"),
            "{text}: {}",
            said.stderr
        );
    }
    record(&node, 7, r#""no_slice""#);
    let open = fs::Permissions::from_mode(0o622);
    fs::set_permissions(node.record(7), open).expect("a temporary folder");
    let said = node.task(&[], &["echo", "started"]).exits(1);
    assert!(
        said.stderr.contains("not a private file"),
        "{}",
        said.stderr
    );
    record(&node, 8, r#""no_slice""#);
    fs::rename(node.record(8), node.record(7)).expect("a temporary folder");
    assert!(
        node.task(&[], &["true"])
            .exits(1)
            .stderr
            .contains("of job 8")
    );
}
