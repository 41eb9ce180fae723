//! `cargo xtask demo` and `cargo xtask bench` work: what they run is run here, on what was built for the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use divvy_e2e::Programs;
use divvy_testkit::{Bounded as _, bounded_for};
use serde_json::Value;

#[test]
fn the_demo_observes_all_it_shows() {
    let _ = Programs::of_this_test(); // brought up to date
    let output = Command::new(env!("CARGO_BIN_EXE_demo"))
        .stdin(Stdio::null())
        .output_bounded()
        .expect("the demo starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for fact in [
        "2.75 of 3 GPUs are in use",
        "then CUDA_ERROR_OUT_OF_MEMORY",
        "single_gpu started on GPU 2",
    ] {
        assert!(
            text.lines()
                .any(|line| line.starts_with("  ✓ ") && line.contains(fact)),
            "the demo does not show that {fact}:\n{text}"
        );
    }
}

mod exhaustive {
    #[test]
    fn the_bench_measures_each_figure_beside_its_floor() {
        super::measures(
            &[
                "calls",
                "processes",
                "latency",
                "throughput",
                "crowd",
                "views",
                "shares",
                "top",
            ],
            &[
                ("allocate and free 2 MiB", true),
                ("cuMemGetInfo", true),
                ("launch of an empty kernel", true),
                ("cuCtxGetDevice, not hooked", true),
                ("four at once, allocate and free, p99", true),
                ("start of 300 processes, each with a context", true),
                ("API submit to start, idle, p99", false),
                ("jobs through the durable queue", true),
                ("list all through the API, p95", false),
                ("one plan, mean", false),
                ("page of 100: the same in brief, p95", true),
                ("board, rendered anew, p95", false),
                ("`divvy top`, memory", false),
                ("25:75 a synchronous loop, a flood", false),
            ],
        );
    }
}

/// Runs these parts of the bench; each of these rows is there, beside a floor or not.
fn measures(parts: &[&str], expected: &[(&str, bool)]) {
    let _ = Programs::of_this_test();
    let bench = PathBuf::from(env!("CARGO_BIN_EXE_bench"));
    let folder = bench.parent().expect("a program lies in a folder");
    for probe in ["call_cost", "job_start", "spawn_floor", "tenant"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../clients/c/{probe}.c"));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(folder.join(probe))
            .arg(source)
            .arg("-ldl");
        assert!(
            cc.wait_bounded().expect("cc starts").success(),
            "{probe} does not compile"
        );
    }
    let scratch = tempfile::tempdir().expect("a temporary folder can be made");
    let json = scratch.path().join("bench.json");
    let mut bench = Command::new(&bench);
    bench
        .arg("--quick")
        .arg("--json")
        .arg(&json)
        .args(["--scene", "25:75 a synchronous loop, a flood"])
        .arg("--only")
        .args(parts);
    #[expect(
        clippy::disallowed_methods,
        reason = "a run of many programs, bounded by more than the usual minute"
    )]
    let output = bounded_for(Duration::from_secs(300), "the bench ends", || {
        bench.output()
    });
    let output = output.expect("the bench starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let written: Value =
        serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("it is JSON");
    let rows = written["rows"].as_array().expect("rows");
    for &(name, has_floor) in expected {
        let row = rows
            .iter()
            .find(|row| row["name"] == name)
            .unwrap_or_else(|| panic!("nothing measured {name}: {written}"));
        assert!(
            row["median"].as_f64() > Some(0.0) && row["unit"].is_string(),
            "{row}"
        );
        assert_eq!(
            row["floor"]["median"].as_f64() > Some(0.0),
            has_floor,
            "{row}"
        );
    }
}
