//! The self-test proves limits that hold, and is not fooled where they do not.

use std::collections::BTreeSet;

use divvy_e2e::{CommandOutput, GIB, Home};
use serde_json::Value;

/// The functions that every driver of the last years offers, the simulated one included.
const ALWAYS: [&str; 9] = [
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemCreate",
    "cuMemMap (handle released)",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuCtxCreate_v2",
];

fn result<'a>(test: &'a Value, name: &str) -> &'a str {
    let checks = test["checks"].as_array().expect("a test has checks");
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("{name} was not tried: {test}"))["result"]
        .as_str()
        .expect("a result is a word")
}

fn tests(said: &CommandOutput) -> Vec<Value> {
    assert_eq!(said.json()["kind"], "Selftest");
    said.items()
}

/// The functions that the limiter hooks, by the page that is made from its table.
fn hooked() -> BTreeSet<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/enforcement.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let table = page.split("table.rs: ").nth(1).expect("the page has it");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`'));
    names
        .filter(|name| name.starts_with("cu"))
        .map(str::to_owned)
        .collect()
}

/// Whatever the limiter hooks is enforced, and the exit code tells whether all that was tried is. A function that it does not
/// hook yet is open, which LIMITS.md says, and the self-test says so too.
fn holds(said: &CommandOutput) -> Vec<Value> {
    let (tests, hooked) = (tests(said), hooked());
    let mut open = 0;
    for check in tests.iter().flat_map(|test| {
        let checks = test["checks"].as_array();
        checks.expect("a test has checks")
    }) {
        let name = check["name"].as_str().expect("a check has a name");
        let function = name.split(' ').next().unwrap_or_default();
        match (check["kind"].as_str(), check["result"].as_str()) {
            (Some("memory"), Some("not_enforced")) => {
                assert!(!hooked.contains(function), "{check}");
                open += 1;
            }
            // All functions in one row: the worst of them is what it shows.
            (Some("lookup"), Some("not_enforced")) if open > 0 => {}
            (_, result) => assert!(
                !matches!(result, Some("not_enforced" | "differs" | "failed")),
                "{check}"
            ),
        }
    }
    assert_eq!(said.code, i32::from(open > 0), "{said:?}");
    assert!(tests.iter().all(|test| test["passed"] == (open == 0)));
    tests
}

#[test]
fn without_a_daemon_the_limit_is_proved_in_every_way_there_is() {
    let home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "preload");
    let tests = holds(&home.divvy(&["selftest", "-o", "json"]));
    assert_eq!(tests.len(), 1, "one GPU, unless told otherwise");
    let test = &tests[0];
    assert_eq!(
        (&test["daemon"], &test["form"]),
        (&false.into(), &"preload".into())
    );
    assert_eq!(test["memory_limit_bytes"], 4 * GIB);
    for name in ALWAYS {
        assert_eq!(result(test, name), "enforced", "{name}");
    }
    assert_eq!(
        result(test, "cuMemAlloc_v2 by several processes"),
        "enforced"
    );
    for name in [
        "cuMemGetInfo total",
        "cuMemGetInfo free",
        "cuMemGetInfo free, allocated",
        "cuDeviceTotalMem",
        "NVML total",
        "NVML used",
        "NVML free",
        "NVML process list",
    ] {
        assert_eq!(result(test, name), "agrees", "{name}");
    }
}

/// Only root may lay it in front of the driver; others are told so.
#[test]
fn in_the_form_of_a_wrapper_it_is_proved_as_well() {
    let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", "wrapper");
    let said = home.divvy(&["selftest", "-o", "json"]);
    if !rustix::process::geteuid().is_root() {
        let _ = said.exits(125);
        return;
    }
    let tests = holds(&said);
    assert_eq!(tests[0]["form"], "wrapper");
    for name in ALWAYS {
        assert_eq!(result(&tests[0], name), "enforced", "{name}");
    }
}

#[test]
fn with_a_daemon_every_gpu_is_tested_in_a_slice_of_its_own() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    let said = home.divvy(&["selftest", "--all", "--gpu-memory", "2G", "-o", "json"]);
    let tests = holds(&said);
    let indices: Vec<&Value> = tests.iter().map(|test| &test["gpu_index"]).collect();
    assert_eq!(indices, [0, 1]);
    assert!(tests.iter().all(|test| test["daemon"] == true));
    let one = home.divvy(&["selftest", "--gpu", "1"]);
    assert!(one.stdout.starts_with("GPU 1 "), "{}", one.stdout);
    assert!(
        one.stdout.contains(" 0 failed: the limit holds") == (one.code == 0),
        "{}",
        one.stdout
    );
}

#[test]
fn with_the_limiter_off_every_way_is_seen_to_be_open() {
    // In the other form the slice is mounted, and the switch is ignored.
    let home = Home::new("a100-80gb:1")
        .variable("DIVVY_FORM", "preload")
        .variable("DIVVY_SHIM", "off");
    let said = home.divvy(&["selftest", "-o", "json"]).exits(1);
    let test = &tests(&said)[0];
    assert_eq!(test["passed"], false);
    for name in ALWAYS {
        assert_eq!(result(test, name), "not_enforced", "{name}");
    }
    for name in [
        "linked (global scope)",
        "cuGetProcAddress",
        "cuMemAlloc_v2 by several processes",
    ] {
        assert_eq!(result(test, name), "not_enforced", "{name}");
    }
    for name in [
        "cuMemGetInfo total",
        "cuDeviceTotalMem",
        "NVML total",
        "NVML free",
    ] {
        assert_eq!(result(test, name), "differs", "{name}");
    }
    let error = said.error();
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("cuMemCreate")),
        "{error}"
    );
    assert!(
        error["hint"]
            .as_str()
            .is_some_and(|text| text.contains("DIVVY_SHIM")),
        "{error}"
    );
}

#[test]
fn a_gpu_that_is_full_before_the_limit_proves_nothing() {
    let home = Home::new("a100-80gb:1");
    let faults = home.scratch().join("full.toml");
    // The first block is a trial; from the third call on the driver has nothing left to give.
    let text = "[[fault]]\nfunction = \"cuMemAlloc_v2\"\ncall = 3\ntimes = 0\ncode = 2\n";
    std::fs::write(&faults, text).expect("the folder can be written");
    let home = home.variable(
        "DIVVY_SIM_CONFIG",
        faults.to_str().expect("a readable path"),
    );
    let said = home.divvy(&["selftest", "-o", "json"]).exits(1);
    let test = &tests(&said)[0];
    assert_eq!(result(test, "cuMemAlloc_v2"), "failed", "{test}");
    assert_eq!(result(test, "cuMemAllocPitch_v2"), "enforced", "{test}");
}

#[test]
fn a_slice_that_is_not_to_be_had_is_an_error_with_its_own_code() {
    let home = Home::new("l4-24gb:1");
    let _ = home.divvy(&["selftest", "--gpu-memory", "100G"]).exits(5);
    let _ = home.divvy(&["selftest", "--gpu", "7"]).exits(2);
    let _ = home.divvy(&["selftest", "--gpu-memory", "4"]).exits(2);
}
