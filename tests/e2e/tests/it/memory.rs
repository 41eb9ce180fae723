//! A program that runs out of memory: what is said of it, what would have done, and giving it that while it runs.

use divvy_e2e::{GIB, Home, MIB, client_script, python, until};
use serde_json::Value;

const BLOCK: u64 = 256 * MIB;

/// A job of cuda-bindings that wants so many bytes and has a limit of 4 GiB; its gates are `back` and `end`.
fn submit_grower(home: &Home, bytes: u64) -> String {
    let (python, script) = (python(), client_script("bindings_grow.py"));
    let python = python.to_str().expect("a path");
    let (bytes, back, end) = (bytes.to_string(), home.gate("back"), home.gate("end"));
    let words = [
        python,
        &script,
        "--bytes",
        &bytes,
        "--give-back",
        &back,
        "--end",
        &end,
    ];
    home.submit(&["--gpu-memory", "4G"], &words)
}

/// The line of the job's program that says so.
fn says(home: &Home, id: &str, what: &str) -> Value {
    until(format!("the program says {what:?}"), || {
        let log = home.log(id);
        let mut lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["what"] == what)
    })
}

fn figure(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no figure"))
}

fn slice(home: &Home, id: &str) -> Value {
    let jobs = home.items(&["ps", "-a"]);
    let job = jobs.into_iter().find(|job| job["id"] == id);
    job.expect("it is listed")["slices"][0].clone()
}

#[test]
fn a_program_that_fails_for_want_of_memory_is_told_where_to_look_and_there_it_says_why() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let program = home.program("cudarc_probe");
    let hold = ["hold", "--bytes", "8G", "--route", "vmm"];
    let words = [&["run", "--gpu-memory", "4G", "--", &program], &hold[..]].concat();
    let said = home.divvy(&words).exits(1);
    assert!(
        said.stderr.contains("`divvy oom 1` shows details"),
        "{}",
        said.stderr
    );

    home.ended("1");
    let oom = home.items(&["oom", "1"]).remove(0);
    let record = &oom["records"][0];
    assert_eq!(
        (&record["api"], &record["cause"]),
        (&"cuMemCreate".into(), &"slice_full".into())
    );
    assert!(figure(&oom["denials"]) >= 1);
    let (asked, used) = (
        figure(&record["asked_bytes"]),
        figure(&record["used_bytes"]),
    );
    assert!(used <= 4 * GIB && used + asked > 4 * GIB, "{record}");
    assert_eq!(figure(&record["own_bytes"]), used, "{record}");
    assert_eq!(figure(&record["sufficient_limit_bytes"]), used + asked);
    assert!(
        figure(&record["gpu_free_bytes"]) > 70 * GIB,
        "the GPU itself was not full: {record}"
    );
    let held = record["largest"].as_array().expect("a list").iter();
    let held: u64 = held
        .map(|live| figure(&live["bytes"]) * figure(&live["count"]))
        .sum();
    assert_eq!(held, used, "all of it is accounted for: {record}");
    let text = home.divvy(&["oom", "1"]).ok().stdout;
    assert!(
        text.contains("cuMemCreate") && text.contains("the slice was full"),
        "{text}"
    );

    // The refused call passes with that limit, and the next one is refused: no size follows from such a run.
    let advice = home.items(&["advise", "1"]).remove(0);
    assert_eq!(figure(&advice["memory_at_least_bytes"]), used + asked);
    assert!(advice["memory_bytes"].is_null(), "{advice}");
    let enough = format!("{}M", (used + asked).div_ceil(MIB));
    let words = [&["run", "--gpu-memory", &enough, "--", &program], &hold[..]].concat();
    let _ = home.divvy(&words).exits(1);
    home.ended("2");
    let again = &home.items(&["oom", "2"])[0]["records"][0];
    assert_eq!(figure(&again["used_bytes"]), used + asked, "{again}");
}

#[test]
fn a_program_that_waits_for_memory_goes_on_when_its_job_is_given_more() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let id = submit_grower(&home, 6 * GIB);
    let refused = says(&home, &id, "refused");
    assert_eq!(figure(&refused["total_bytes"]), 4 * GIB);
    let oom = home.items(&["oom", &id]).remove(0);
    let record = &oom["records"][0];
    assert_eq!(
        (&oom["state"], &record["pid"]),
        (&"running".into(), &refused["pid"])
    );
    assert_eq!(
        (&record["api"], figure(&record["asked_bytes"])),
        (&"cuMemAlloc_v2".into(), BLOCK)
    );

    let said = home.divvy(&["resize", &id, "--gpu-memory", "8G"]).ok();
    assert!(
        said.stdout.contains("has 8.0 GiB on gpu0"),
        "{}",
        said.stdout
    );
    let full = says(&home, &id, "full");
    assert_eq!(
        figure(&full["total_bytes"]),
        8 * GIB,
        "the program sees its new limit"
    );
    assert_eq!(figure(&slice(&home, &id)["memory_limit_bytes"]), 8 * GIB);
    home.open("back");
    home.open("end");
    assert_eq!(home.ended(&id).exit_code, Some(0));
}

#[test]
fn a_job_keeps_what_it_uses_when_it_is_to_have_less_and_the_rest_waits_for_that() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let id = submit_grower(&home, 3 * GIB);
    let full = says(&home, &id, "full");
    let said = home.divvy(&["resize", &id, "--gpu-memory", "1G"]).ok();
    assert!(said.stdout.contains("new limit 1.0 GiB"), "{}", said.stdout);
    let shrinking = slice(&home, &id);
    let figures =
        ["memory_limit_bytes", "memory_target_bytes"].map(|name| figure(&shrinking[name]));
    assert_eq!(figures, [4 * GIB, GIB]);
    // Somebody who wants all the rest has to wait for it.
    let usable = figure(&home.items(&["gpus"])[0]["memory_usable_bytes"]);
    let rest = format!("{}M", (usable - 2 * GIB) / MIB);
    let words = ["submit", "--parsable", "--gpu-memory", &rest, "--", "true"];
    let waiting = home.divvy(&words).ok().stdout.trim().to_owned();
    assert_eq!(home.job(&waiting).state, divvy_api::v1::JobState::Queued);

    home.open("back");
    let given_back = says(&home, &id, "given back");
    assert_eq!(
        figure(&given_back["total_bytes"]),
        GIB,
        "{full} {given_back}"
    );
    assert_eq!(home.ended(&waiting).exit_code, Some(0));
    let shrunk = slice(&home, &id);
    assert_eq!(figure(&shrunk["memory_limit_bytes"]), GIB);
    assert_eq!(shrunk["memory_target_bytes"], Value::Null);
    home.open("end");
    assert_eq!(home.ended(&id).exit_code, Some(0));
}

#[test]
fn without_a_daemon_a_program_that_fails_is_told_the_figures() {
    let home = Home::new("a100-80gb:1");
    let program = home.program("cudarc_probe");
    let hold = ["hold", "--bytes", "8G"];
    let words = [
        &["run", "--no-daemon", "--gpu-memory", "4G", "--", &program],
        &hold[..],
    ]
    .concat();
    let said = home.divvy(&words).exits(1);
    let told = said.stderr.lines().find(|line| line.starts_with("divvy: "));
    let told = told.unwrap_or_else(|| panic!("nothing was said of it: {}", said.stderr));
    assert!(
        told.contains("cuMemAlloc_v2 requested") && told.contains("4.0 GiB"),
        "{told}"
    );
    let _ = home
        .divvy(&["resize", "solo-1", "--gpu-memory", "8G"])
        .exits(7);
}
