//! The promise: an unmodified CUDA program gets its slice and not a byte more, and sees nothing but its slice.

use divvy_e2e::{GIB, Home, MIB, client_script, python};
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

const LIMIT: u64 = 4 * GIB;

/// What a process costs before its first allocation, as the daemon declares it.
fn declared_overhead(home: &Home) -> u64 {
    let overhead = home.items(&["gpus"])[0]["context_overhead_bytes"]
        .as_u64()
        .expect("a figure");
    assert!(
        overhead > 0 && overhead < GIB,
        "{overhead} bytes are no believable context"
    );
    overhead
}

/// Holds what a filling program reported against the limit.
#[track_caller]
fn was_held_to_four_gib(report: &Value, overhead: u64) {
    let figure = |value: &Value| {
        value
            .as_u64()
            .unwrap_or_else(|| panic!("a figure is missing in {report}"))
    };
    assert_eq!(report["error"], "CUDA_ERROR_OUT_OF_MEMORY", "{report}");
    let got = figure(&report["got_bytes"]);
    let granule = figure(&report["granule_bytes"]);
    assert!(
        got + overhead <= LIMIT,
        "{got} bytes and a context are more than the limit: {report}"
    );
    assert!(
        got + overhead + granule > LIMIT,
        "refused although a granule was left: {report}"
    );
    assert!(
        figure(&report["first_refused_at_bytes"]) + overhead + 64 * MIB > LIMIT,
        "refused too early: {report}"
    );
    assert_eq!(report["before"]["total_bytes"], LIMIT, "{report}");
    assert_eq!(report["before"]["device_total_bytes"], LIMIT, "{report}");
    assert_eq!(
        figure(&report["before"]["free_bytes"]),
        LIMIT - overhead,
        "{report}"
    );
    assert!(
        figure(&report["free_after_bytes"]) < granule,
        "free memory that cannot be had: {report}"
    );
}

#[track_caller]
fn fill(home: &Home, flags: &[&str], command: &[&str]) -> Value {
    home.divvy(&[&["run", "--gpu-memory", "4G"], flags, &["--"], command].concat())
        .ok()
        .json()
}

#[test]
fn cudarc_gets_four_gib_by_every_route_and_no_more() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let overhead = declared_overhead(&home);
    for route in ["linear", "async", "managed", "vmm"] {
        let report = fill(
            &home,
            &[],
            &[&home.program("cudarc_probe"), "fill", "--route", route],
        );
        was_held_to_four_gib(&report, overhead);
    }
    home.ended("last");
    assert_eq!(
        home.items(&["gpus"])[0]["slices"],
        json!([]),
        "a slice outlived its job"
    );
}

#[test]
fn cuda_bindings_gets_four_gib_by_every_route_and_no_more() {
    let (home, python) = (Home::new("a100-80gb:1"), python());
    let _daemon = home.daemon(&[]);
    let overhead = declared_overhead(&home);
    for route in ["linear", "async", "vmm"] {
        let script = client_script("bindings_fill.py");
        let report = fill(
            &home,
            &[],
            &[python.to_str().expect("a path"), &script, "--route", route],
        );
        was_held_to_four_gib(&report, overhead);
    }
}

#[test]
fn numba_compiles_launches_and_gets_four_gib_and_no_more() {
    let (home, python) = (Home::new("a100-80gb:1"), python());
    let _daemon = home.daemon(&[]);
    let overhead = declared_overhead(&home);
    let report = fill(
        &home,
        &[],
        &[
            python.to_str().expect("a path"),
            &client_script("numba_fill.py"),
        ],
    );
    was_held_to_four_gib(&report, overhead);
}

#[test]
fn without_a_daemon_the_limit_is_the_same() {
    let (home, python) = (Home::new("a100-80gb:1"), python());
    let daemon = home.daemon(&[]);
    let overhead = declared_overhead(&home);
    assert_eq!(daemon.stop(), 0);

    let report = fill(
        &home,
        &["--no-daemon"],
        &[&home.program("cudarc_probe"), "fill"],
    );
    was_held_to_four_gib(&report, overhead);
    let script = client_script("bindings_fill.py");
    let report = fill(
        &home,
        &["--no-daemon"],
        &[python.to_str().expect("a path"), &script],
    );
    was_held_to_four_gib(&report, overhead);
    let _ = home.divvy(&["ps"]).exits(7);
}

#[test]
fn the_same_programs_outside_get_the_whole_gpu() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let gpu = home.items(&["gpus"]).remove(0);
    let report = home
        .look(&home.program("cudarc_probe"), &["fill", "--step", "1G"])
        .ok()
        .json();
    let got = report["got_bytes"].as_u64().expect("a figure");
    let usable = gpu["memory_usable_bytes"].as_u64().expect("a figure");
    assert!(got > usable - GIB && got <= usable, "{report} on {gpu}");
}

#[test]
fn every_tool_inside_shows_the_slice_and_outside_the_whole_gpu() {
    let (home, python) = (Home::new("a100-80gb:1"), python());
    let python = python.to_str().expect("a path");
    let _daemon = home.daemon(&[]);
    let overhead = declared_overhead(&home);
    let total = home.items(&["gpus"])[0]["memory_total_bytes"]
        .as_u64()
        .expect("a figure");
    // Somebody else on the same GPU, whom nobody inside may see.
    let other = home.submit_holder(&["--gpu-memory", "8G"], 2 * GIB, "other");
    let other_pid = home
        .running(&other)
        .pid
        .expect("a running job has a process");
    let _ = home.first_words(&other);

    let look = client_script("look.py");
    let (probe, gate) = (home.program("cudarc_probe"), home.gate("never"));
    let holder = [
        probe.as_str(),
        "hold",
        "--bytes",
        "1G",
        "--until-file",
        &gate,
    ];
    let inside = fill(&home, &[], &[&[python, &look][..], &holder].concat());
    sees(
        &inside,
        LIMIT,
        GIB + overhead,
        &[inside["holder"]["pid"].as_u64().expect("a pid")],
    );

    let outside = home.look(python, &[&look]).ok().json();
    sees(&outside, total, 2 * GIB + overhead, &[u64::from(other_pid)]);

    let wrapper = |said: Value| {
        (
            said["gpus"][0]["total_bytes"].clone(),
            said["gpus"][0]["processes"].as_array().map(Vec::len),
        )
    };
    assert_eq!(
        wrapper(fill(&home, &[], &[&home.program("nvml_probe"), "show"])),
        (json!(LIMIT), Some(0))
    );
    assert_eq!(
        wrapper(
            home.look(&home.program("nvml_probe"), &["show"])
                .ok()
                .json()
        ),
        (json!(total), Some(1))
    );
    home.open("other");
    assert_eq!(home.ended(&other).exit_code, Some(0));
}

/// Every tool in `seen` shows one GPU with that total and use, and exactly those processes.
#[track_caller]
fn sees(seen: &Value, total: u64, used: u64, pids: &[u64]) {
    let of = |processes: &Value| -> Vec<u64> {
        processes
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|process| process["pid"].as_u64())
            .collect()
    };
    let nvml = &seen["nvidia_ml_py"][0];
    assert_eq!(
        (&nvml["v1"]["total"], &nvml["v2"]["total"]),
        (&json!(total), &json!(total)),
        "{nvml}"
    );
    assert_eq!(nvml["v2"]["used"], used, "{nvml}");
    assert_eq!(
        (of(&nvml["processes"]), of(&nvml["processes_v2"])),
        (pids.to_vec(), pids.to_vec()),
        "{nvml}"
    );
    assert_eq!(nvml["processes"][0]["used"], used, "{nvml}");

    let gpustat = &seen["gpustat"][0];
    assert_eq!(
        (&gpustat["memory.total"], &gpustat["memory.used"]),
        (&json!(total / MIB), &json!(used / MIB)),
        "{gpustat}"
    );
    assert_eq!(of(&gpustat["processes"]), pids, "{gpustat}");

    let nvitop = &seen["nvitop"]["gpus"][0];
    assert_eq!(
        (&nvitop["total"], &nvitop["used"], &nvitop["pids"]),
        (&json!(total), &json!(used), &json!(pids)),
        "{nvitop}"
    );
    let text = seen["nvitop"]["text"].as_str().expect("nvitop draws");
    let drawn = pids.iter().all(|pid| text.contains(&pid.to_string()));
    assert!(drawn && text.contains(&(used / MIB).to_string()), "{text}");

    let py3nvml = &seen["py3nvml"][0];
    assert_eq!(
        (&py3nvml["total"], &py3nvml["pids"]),
        (&json!(total), &json!(pids)),
        "{py3nvml}"
    );
}

/// What the programs of one job see free: the first, which takes 3 GiB and ends without giving them back; a monitor; and the next.
fn seen_by_successors(command: impl FnOnce(&[&str]) -> String, monitor: &str) -> [u64; 3] {
    let (python, script) = (python(), client_script("bindings_fill.py"));
    let lines = r#"FILL_AT_MOST=3221225472 "$0" "$1"; "$2" show; FILL_AT_MOST=0 "$0" "$1""#;
    let python = python.to_str().expect("a path");
    let said = command(&["sh", "-c", lines, python, &script, monitor]);
    let said: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(said[0]["got_bytes"], 3 * GIB, "{said:?}");
    let free = [
        &said[0]["before"]["free_bytes"],
        &said[1]["gpus"][0]["free_bytes"],
        &said[2]["before"]["free_bytes"],
    ];
    free.map(|free| {
        free.as_u64()
            .unwrap_or_else(|| panic!("a figure is missing in {said:?}"))
    })
}

#[test]
fn the_next_program_of_a_job_does_not_see_memory_of_one_that_has_ended() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let overhead = declared_overhead(&home);
    let monitor = home.program("nvml_probe");
    let bare = |words: &[&str]| {
        let output = home.outside(words[0]).args(&words[1..]).output_bounded();
        String::from_utf8(output.expect("it starts").stdout).expect("text")
    };
    let [first, between, next] = seen_by_successors(bare, &monitor);
    assert_eq!((next, between), (first, first + overhead), "without Divvy");
    let in_slice = |flags: &[&str]| {
        let run = |words: &[&str]| {
            let run = [&["run", "--gpu-memory", "4G"], flags, &["--"], words].concat();
            home.divvy(&run).ok().stdout
        };
        let seen = seen_by_successors(run, &monitor);
        assert_eq!(
            seen,
            [LIMIT - overhead, LIMIT, LIMIT - overhead],
            "{flags:?}"
        );
    };
    in_slice(&[]);
    drop(daemon);
    in_slice(&["--no-daemon"]);
}
