//! `selftest --like`: every known program finds what it expects in a slice, and not where the limiter is missing or wrong.

mod exhaustive;

use std::collections::BTreeMap;

use divvy_e2e::{CommandOutput, GIB, Home};
use serde_json::Value;

/// The programs, in the order of `all`.
const PROGRAMS: [&str; 10] = [
    "pytorch",
    "jax",
    "tensorflow",
    "vllm",
    "sglang",
    "llama.cpp",
    "ollama",
    "triton",
    "nccl",
    "rapids",
];

fn replays(said: &CommandOutput) -> Vec<Value> {
    assert_eq!(said.json()["kind"], "Replay");
    said.items()
}

fn steps(replay: &Value) -> &Vec<Value> {
    replay["steps"].as_array().expect("a replay has steps")
}

/// The step whose expectation has these words.
fn step<'a>(replay: &'a Value, words: &str) -> &'a Value {
    let found = steps(replay).iter().find(|step| {
        let expects = step["expects"].as_str();
        expects.is_some_and(|expects| expects.contains(words))
    });
    found.unwrap_or_else(|| panic!("no step expects {words:?}: {replay:#}"))
}

fn results(replay: &Value) -> Vec<(&str, &str)> {
    steps(replay)
        .iter()
        .map(|step| {
            let text = |field| step[field].as_str().unwrap_or_default();
            (text("expects"), text("result"))
        })
        .collect()
}

/// Each program found what it expects; only what this machine lacks is not available.
fn all_pass(said: &CommandOutput, form: &str) {
    assert_eq!(said.code, 0, "{said:?}");
    let replays = replays(said);
    let programs: Vec<&Value> = replays.iter().map(|replay| &replay["program"]).collect();
    assert_eq!(programs, PROGRAMS);
    for replay in &replays {
        assert_eq!(
            (&replay["form"], &replay["passed"]),
            (&form.into(), &true.into())
        );
        assert_eq!(replay["memory_limit_bytes"], 4 * GIB);
        for step in steps(replay) {
            let needs_a_program = step["calls"]
                .as_str()
                .is_some_and(|calls| calls.starts_with("nvidia-smi"));
            match step["result"].as_str() {
                Some("ok") => {}
                Some("not_available") if needs_a_program => {}
                _ => panic!("{}: {step:#}", replay["program"]),
            }
        }
    }
    // The simulated driver takes nothing by itself, so here the figures are exact.
    let of = |name: &str| {
        let found = replays.iter().find(|replay| replay["program"] == name);
        found.expect("every program is there")
    };
    for (program, expects, seen) in [
        ("vllm", "initial free == current free", ", at most 0 more"),
        (
            "vllm",
            "/sleep gives the bytes back",
            "free as before; awake again: free as before",
        ),
        (
            "nccl",
            "from the proxy's thread without a context",
            "268435456 bytes taken, free fell by 268435456",
        ),
        (
            "nccl",
            "two ranks of a slice share",
            "the import took 0 more",
        ),
        ("llama.cpp", "physical memory of the host", "free fell by 0"),
        (
            "jax",
            "two that start at once",
            "3221225472 bytes, while the neighbour holds 3221225472",
        ),
    ] {
        let text = step(of(program), expects)["seen"]
            .as_str()
            .unwrap_or_default();
        assert!(text.contains(seen), "{program}: {text}");
    }
}

#[test]
fn every_program_finds_what_it_expects_with_the_preload() {
    let home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "preload");
    all_pass(
        &home.divvy(&["selftest", "--like", "all", "-o", "json"]),
        "preload",
    );
}

/// The same calls without the limiter: each family of expectations is seen to fail.
#[test]
fn without_the_limiter_each_family_of_expectations_fails() {
    // In the other form the slice is mounted, and the switch is ignored.
    let home = Home::new("a100-80gb:1")
        .variable("DIVVY_FORM", "preload")
        .variable("DIVVY_SHIM", "off");
    let said = home
        .divvy(&["selftest", "--like", "all", "-o", "json"])
        .exits(1);
    let replays = replays(&said);
    let of: BTreeMap<&str, &Value> = replays
        .iter()
        .map(|replay| (replay["program"].as_str().unwrap_or_default(), replay))
        .collect();
    for (program, expects) in [
        ("pytorch", "the limit as every total"),
        (
            "pytorch",
            "out of memory at the limit; after the cache is freed",
        ),
        ("pytorch", "out of memory at the limit; mapped pieces stay"),
        ("pytorch", "out of memory during a capture"),
        ("jax", "two that start at once"),
        ("jax", "refused until the block fits"),
        ("tensorflow", "refused until the block fits the limit"),
        ("vllm", "initial free == current free"),
        ("llama.cpp", "layers that fit the free memory"),
        ("ollama", "each process sees the limit"),
        ("triton", "processes of one slice sum up"),
        ("nccl", "out of memory, and no wait"),
        ("rapids", "oversubscription is refused"),
    ] {
        let step = step(of[program], expects);
        assert_eq!(step["result"], "failed", "{program}: {step:#}");
    }
    for replay in &replays {
        assert_eq!(replay["passed"], false, "{:?}", results(replay));
    }
    let error = said.error();
    let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    assert!(
        text("message").contains("steps of vllm failed on GPU 0"),
        "{error}"
    );
    assert!(text("hint").contains("DIVVY_SHIM"), "{error}");
}

/// As of a limiter that charges an import once more, or memory of the host: the driver is made to refuse them.
#[test]
fn a_driver_that_refuses_what_a_step_needs_fails_that_step_alone() {
    let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", "preload");
    let faults = home.scratch().join("faults.toml");
    let fault = |function: &str, code: u32| {
        format!("[[fault]]\nfunction = \"{function}\"\ncall = 1\ntimes = 0\ncode = {code}\n")
    };
    let text = [
        fault("cuMemImportFromShareableHandle", 2),
        fault("cuIpcOpenMemHandle_v2", 2),
        fault("cuMemHostAlloc", 2),
    ];
    std::fs::write(&faults, text.concat()).expect("the folder can be written");
    let home = home.variable(
        "DIVVY_SIM_CONFIG",
        faults.to_str().expect("a readable path"),
    );
    let said = home
        .divvy(&["selftest", "--like", "nccl", "-o", "json"])
        .exits(1);
    let replay = &replays(&said)[0];
    let failed: Vec<&str> = results(replay)
        .into_iter()
        .filter_map(|(expects, result)| (result == "failed").then_some(expects))
        .collect();
    assert_eq!(
        failed,
        [
            "a buffer that two ranks of a slice share counts once",
            "NCCL_CUMEM_ENABLE=0: a buffer that two ranks share counts once",
            "buffers of the host take nothing of the limit",
        ]
    );
}

#[test]
fn names_that_are_unknown_are_refused_with_the_list() {
    let home = Home::new("l4-24gb:1");
    for names in ["vlm", "", "vllm,", "vllm,JAX", "all,vllm"] {
        let said = home.divvy(&["selftest", "--like", names]).exits(2);
        assert!(
            said.stderr.contains("pytorch,jax,tensorflow,vllm,sglang"),
            "{}",
            said.stderr
        );
    }
    let _ = home
        .divvy(&["selftest", "--like", "jax", "--gpu", "7"])
        .exits(2);
    let _ = home
        .divvy(&["selftest", "--like", "jax", "--gpu-memory", "100G"])
        .exits(5);
}
