//! Refusals: clear, with the right exit code, and nothing half done.

use divvy_e2e::{CommandOutput, Home};
use serde_json::json;

/// A refusal has one line that names the thing, and leaves no job, no slice and no folder behind.
#[track_caller]
fn nothing_happened(home: &Home) {
    assert_eq!(
        home.items(&["ps", "--all"]),
        Vec::<serde_json::Value>::new()
    );
    for gpu in home.items(&["gpus"]) {
        assert_eq!(
            (&gpu["slices"], &gpu["memory_allocated_bytes"]),
            (&json!([]), &json!(0)),
            "{gpu}"
        );
    }
    for folder in ["jobs", "slices"] {
        let left = std::fs::read_dir(home.path().join(folder)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "something is left in {folder}");
    }
}

#[track_caller]
fn says(said: &CommandOutput, words: &[&str]) {
    assert!(
        said.stdout.is_empty(),
        "{}: talk belongs on stderr, not on stdout: {}",
        said.words,
        said.stdout
    );
    for word in words {
        assert!(
            said.stderr.contains(word),
            "`{}` does not say {word:?}:\n{}",
            said.words,
            said.stderr
        );
    }
}

#[test]
fn amounts_that_are_none_are_refused() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    for (flags, word) in [
        (["-g", "1.25"], "1.25"),
        (["-g", "0"], "0"),
        (["-g", "-1"], "-1"),
        (["-g", "0.0005"], "0.0005"),
        (["-g", "half"], "half"),
        (["-g", ""], "hint: "),
        (["--gpu-memory", "4"], "4"),
        (["--gpu-memory", "0G"], "0"),
        (["--gpu-memory", "lots"], "lots"),
        (["-g0.5", "--compute=some"], "some"),
    ] {
        for verb in ["run", "submit"] {
            let said = home
                .divvy(&[&[verb], &flags[..], &["--", "true"]].concat())
                .exits(2);
            says(&said, &["error: ", word]);
        }
    }
    nothing_happened(&home);
}

#[test]
fn queues_whose_amount_is_none_stop_the_daemon_before_it_starts() {
    let home = Home::new("a100-80gb:2");
    for (queue, word) in [
        ("q=1.25", "fractional gpu cannot be > 1"),
        ("q=0", "Parsing min/max number of gpus <= 0 is not allowed"),
        ("q=-1", "Parsing min/max number of gpus <= 0 is not allowed"),
        ("q=0.3", "0.125"),
        ("q=half", "half"),
        ("q", "queue must be in format <queue_name>=<num_gpus>"),
        ("q=3", "2"),
        ("q=3-4", "2"),
        ("q=2-1", "2-1"),
    ] {
        // `q` alone is a queue without an amount; the stock agent's options require one.
        let clearml: &[&str] = if queue == "q" { &["--clearml"] } else { &[] };
        // A queue that is larger than the machine refuses a strict start alone.
        let words = [
            "daemon",
            "--set",
            "strict-start=true",
            "--dynamic-gpus",
            "--queue",
            queue,
        ];
        let said = home.divvy(&[&words, clearml].concat());
        assert!(
            [2, 5].contains(&said.code),
            "`{}` ended with {}: {}",
            said.words,
            said.code,
            said.stderr
        );
        says(&said, &["error: ", word]);
    }
    let _ = home.divvy(&["ps"]).exits(7);
}

#[test]
fn a_gpu_index_that_is_not_there_is_refused_by_name() {
    let home = Home::new("a100-80gb:2");
    for gpus in ["7", "x", "0,1-", ""] {
        let said = home.divvy(&["daemon", "--gpus", gpus]).exits(2);
        says(&said, &["error: "]);
    }
    // A machine may have lost some of them.
    for gpus in ["0-7", "1,7"] {
        let words = ["daemon", "--set", "strict-start=true", "--gpus", gpus];
        says(&home.divvy(&words).exits(2), &["no GPU", "0, 1"]);
    }
    let _daemon = home.daemon(&["--gpus", "0"]);
    for index in ["1", "7"] {
        let said = home.divvy(&["submit", "-g", "0.5", "--gpus-on", index, "--", "true"]);
        assert!([2, 5].contains(&said.code), "{said:?}");
        says(&said, &["error: ", index]);
    }
    nothing_happened(&home);
}

#[test]
fn an_empty_command_is_refused() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    for words in [
        &["run", "-g", "0.5", "--"][..],
        &["submit", "-g", "0.5", "--"],
        &["submit", "-g", "0.5"],
        &["run"],
        &["submit", "-g", "0.5", "--", ""],
    ] {
        says(&home.divvy(words).exits(2), &["error"]);
    }
    nothing_happened(&home);
}

#[test]
fn without_a_daemon_read_verbs_say_so_and_start_none() {
    let home = Home::new("a100-80gb:1");
    for words in [
        &["ps"][..],
        &["queues"],
        &["describe", "1"],
        &["why", "1"],
        &["logs", "1"],
        &["wait", "1"],
        &["cancel", "1"],
        &["events"],
    ] {
        says(&home.divvy(words).exits(7), &["error: ", "hint: "]);
    }
    let error = home.divvy(&["ps", "-o", "json"]).exits(7).error();
    assert_eq!(error["code"], "no_daemon", "{error}");
    assert!(!home.path().join("state.db").exists());
}

#[test]
fn what_can_never_fit_is_refused_at_once_with_the_nearest_that_can() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    for flags in [
        ["--gpu-memory", "100G"],
        ["-g", "3"],
        ["-g", "3-4"],
        ["-g", "3x0.5"],
    ] {
        let said = home
            .divvy(&[&["submit"], &flags[..], &["--", "true"]].concat())
            .exits(5);
        says(&said, &["error: ", "hint: "]);
    }
    let error = home
        .divvy(&["submit", "-o", "json", "--gpu-memory", "100G", "--", "true"])
        .exits(5)
        .error();
    assert_eq!(error["code"], "never_fits", "{error}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("100")),
        "{error}"
    );
    assert!(
        error["hint"].as_str().is_some_and(|text| !text.is_empty()),
        "{error}"
    );
    nothing_happened(&home);
}

#[test]
fn a_job_that_must_not_wait_is_refused_where_it_would() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let whole = home.submit_holder(&["-g", "1"], 0, "whole");
    home.running(&whole);
    says(
        &home
            .divvy(&["submit", "--no-wait", "-g", "0.5", "--", "true"])
            .exits(6),
        &["error: "],
    );
    says(
        &home
            .divvy(&["run", "--no-wait", "-g", "0.5", "--", "true"])
            .exits(6),
        &["error: "],
    );
    assert_eq!(home.items(&["ps", "--all"]).len(), 1);
}

#[test]
fn a_job_or_queue_that_is_not_there_is_not_found() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5"]);
    for words in [
        ["describe", "99"],
        ["why", "99"],
        ["logs", "nobody"],
        ["wait", "99"],
        ["cancel", "last"],
    ] {
        says(&home.divvy(&words).exits(3), &["error: ", words[1]]);
    }
    let error = home
        .divvy(&["describe", "99", "-o", "json"])
        .exits(3)
        .error();
    assert_eq!(error["code"], "not_found", "{error}");
    says(
        &home.divvy(&["submit", "-q", "hlaf", "--", "true"]).exits(3),
        &["error: ", "hlaf", "half"],
    );
    nothing_happened(&home);
}

#[test]
fn words_that_mean_nothing_are_usage_errors() {
    let home = Home::new("a100-80gb:1");
    for words in [
        &["frobnicate"][..],
        &["ps", "--frobnicate"],
        &["ps", "-o", "yaml"],
        &["wait"],
        &["run", "--gpu-memory", "1G", "-g", "0.5", "--", "true"],
        &["daemon", "--sim", "a100-80gb:1", "--sim", "x"],
        &["docker", "compose", "up"],
    ] {
        says(&home.divvy(words).exits(2), &["error"]);
    }
    for sim in ["voodoo:1", "a100-80gb:0", ":", "a100-80gb:x"] {
        let said = home.divvy(&["daemon", "--sim", sim]).exits(2);
        says(&said, &["error: "]);
    }
}

#[test]
fn a_home_that_cannot_be_is_a_mistake_of_usage_with_and_without_a_daemon() {
    let long = format!("/tmp/{}", "x".repeat(120));
    for (value, word) in [(long.as_str(), "socket path"), ("", "DIVVY_HOME")] {
        for words in [
            &["ps"][..],
            &["daemon"],
            &["run", "-g", "0.5", "--", "true"],
            &["run", "--no-daemon", "-g", "0.5", "--", "true"],
        ] {
            let home = Home::new("a100-80gb:1").variable("DIVVY_HOME", value);
            says(&home.divvy(words).exits(2), &[word, "hint: set DIVVY_HOME"]);
        }
    }
}
