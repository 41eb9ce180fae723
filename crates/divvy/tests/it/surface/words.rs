//! What the program says where no daemon is needed, or none answers: exit code, stdout and stderr of each.

use std::process::Stdio;

use divvy_testkit::Bounded as _;

use crate::surface::agent::Home;
use insta::assert_snapshot;

#[test]
fn without_a_daemon_read_verbs_say_so_and_what_to_do() {
    let home = Home::without_agent();
    assert_snapshot!("no_daemon_ps", home.said(&["ps"]));
    assert_snapshot!("no_daemon_json", home.said(&["gpus", "-o", "json"]));
    assert_snapshot!("no_daemon_resize", home.said(&["resize", "3", "-g", "0.5"]));
    let verbs: [&[&str]; 13] = [
        &["oom"],
        &["advise"],
        &["advise", "--", "python", "train.py"],
        &["resize", "3", "-g", "0.5"],
        &["queues"],
        &["describe"],
        &["why", "3"],
        &["logs"],
        &["logs", "-f"],
        &["events"],
        &["events", "-f"],
        &["wait", "3"],
        &["cancel", "3"],
    ];
    for words in verbs {
        let said = home.said(words);
        assert!(
            said.contains("\nexit 7\n--- stdout\n--- stderr\nerror: ") || words[0] == "cancel",
            "{said}"
        );
        assert!(
            said.contains("\nexit 7\n") && said.contains("\nhint: "),
            "{said}"
        );
    }
    assert_eq!(
        std::fs::read_dir(home.path()).unwrap().count(),
        0,
        "a read verb left something behind"
    );
}

#[test]
fn words_that_mean_nothing_are_usage_errors() {
    let home = Home::without_agent();
    let lines: [(&str, &[&str]); 19] = [
        ("usage_resize_nothing", &["resize", "3"]),
        (
            "usage_resize_compute",
            &["resize", "3", "--compute", "none=0.5"],
        ),
        (
            "usage_resize_amount",
            &["resize", "3", "--gpu-memory", "12"],
        ),
        (
            "usage_resize_both",
            &["resize", "3", "--gpu-memory", "12G", "-g", "0.5"],
        ),
        ("usage_advise_both", &["advise", "3", "--name", "train*"]),
        ("usage_unknown_verb", &["pss"]),
        ("usage_unknown_flag", &["ps", "--frobnicate"]),
        (
            "usage_unknown_flag_json",
            &["ps", "--frobnicate", "-o", "json"],
        ),
        ("usage_unknown_form", &["ps", "-o", "yaml"]),
        ("usage_no_job", &["wait"]),
        ("usage_no_program", &["run", "-g", "0.25"]),
        ("usage_no_amount", &["submit", "--", "true"]),
        ("usage_amount", &["run", "-g", "1.25", "--", "true"]),
        (
            "usage_amount_json",
            &["submit", "-g", "half", "-o", "json", "--", "true"],
        ),
        (
            "usage_memory_without_unit",
            &["run", "--gpu-memory", "4", "--", "true"],
        ),
        (
            "usage_compute",
            &["run", "-g", "1", "--compute", "none=0.5", "--", "true"],
        ),
        (
            "usage_queue",
            &["daemon", "--dynamic-gpus", "--queue", "half=0.3"],
        ),
        ("usage_timeout", &["wait", "1", "--timeout", "90"]),
        ("usage_follow_json", &["events", "-f", "-o", "json"]),
    ];
    for (name, words) in lines {
        let said = home.said(words);
        assert!(said.contains("\nexit 2\n"), "{said}");
        assert_snapshot!(name, said);
    }
}

#[test]
fn no_words_at_all_are_answered_with_help_on_stderr() {
    let said = Home::without_agent().said(&[]);
    assert!(
        said.starts_with("$ divvy \nexit 2\n--- stdout\n--- stderr\nCut NVIDIA GPUs"),
        "{said}"
    );
}

#[test]
fn help_and_version_are_data() {
    let home = Home::without_agent();
    let version = home.said(&["--version"]);
    assert_eq!(
        version,
        format!(
            "$ divvy --version\nexit 0\n--- stdout\ndivvy {}\n--- stderr\n",
            divvy_api::version::program()
        )
    );
    let all = home.said(&["--version", "-v"]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/upgrade.md");
    let page = std::fs::read_to_string(page).unwrap();
    for protocol in ["api 1", "journal 24", "ledger 2", "record 1"] {
        assert!(all.contains(&format!("\n{protocol}\n")), "{all}");
        let (name, version) = protocol.split_once(' ').unwrap();
        let row = format!("| `{name}` | {version} |");
        assert!(page.contains(&row), "docs/upgrade.md lacks {row}");
    }
    for words in [
        &["--help"][..],
        &["-h"],
        &["run", "--help"],
        &["daemon", "-h"],
    ] {
        let said = home.said(words);
        assert!(
            said.contains("\nexit 0\n--- stdout\n") && said.ends_with("--- stderr\n"),
            "{said}"
        );
    }
}

#[test]
fn completion_is_printed_for_known_shells() {
    let home = Home::without_agent();
    for shell in ["bash", "zsh", "fish"] {
        let said = home.said(&["completion", shell]);
        assert!(
            said.contains("\nexit 0\n") && said.contains("COMPLETE="),
            "{shell}: {}",
            &said[..400]
        );
        assert!(
            !said.contains("probe-context"),
            "{shell} completes what is hidden"
        );
    }
    assert_snapshot!(
        "completion_unknown_shell",
        home.said(&["completion", "tcsh"])
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::without_agent();
    let mut child = home
        .command(&["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.output_bounded().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn a_full_disk_is_an_error() {
    let home = Home::without_agent();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = home
        .command(&["completion", "bash"])
        .stdout(full)
        .output_bounded()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .starts_with("error: cannot write to stdout")
    );
}
