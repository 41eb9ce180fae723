//! Replays: the documented calls of known programs, made in a slice, find what each program expects; and not where the
//! limiter is missing or wrong.
//!
//! ```text
//! step       one step: calls, expectation, source, and the act that makes the calls       programs   the steps of each program
//! acts       one function for each act       stage   GPU, limit and surroundings of the acts
//! child      further processes of the slice       beside   the programs in other slices: a neighbour, a pair of GPUs
//! ```
//! Each program is this test program once more, in a slice of `divvy run`. It prints a line for each step.

mod acts;
mod beside;
mod child;
mod exhaustive;
mod programs;
mod stage;
mod step;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use divvy_e2e::Home;
use divvy_testkit::{Bounded as _, bounded};

use beside::{GpuFigures, Neighbour, Surroundings};
use child::{ENTRY, ROLE, lines, number, print_json, this};
use programs::{PROGRAMS, steps};
use stage::Stage;
use step::{StepReport, StepResult, Trouble};

/// The limit of a tested slice, and what the flag calls it.
const LIMIT: (u64, &str) = (4 << 30, "4G");

/// The steps of each program.
type Replays = BTreeMap<&'static str, Vec<StepReport>>;

/// A process of a slice, which the variable describes. Without it this is no test.
#[test]
#[ignore = "a process that other tests start in a slice"]
fn a_process_in_a_slice() {
    let role = std::env::var(ROLE).expect("another test starts this one");
    let words: Vec<&str> = role.split(' ').collect();
    let done = match words[..] {
        ["play", program, limit, around] => play_here(program, limit, around),
        ["role", ref role @ ..] => child::role(role),
        ["neighbour", limit] => number(limit).and_then(beside::neighbour),
        ["pair"] => beside::pair(),
        _ => panic!("unknown role {role}"),
    };
    done.expect("the role is played");
}

/// Makes the calls of one program in this process, and prints a line for each step.
fn play_here(program: &str, limit: &str, around: &str) -> Result<(), Trouble> {
    let around: Surroundings = serde_json::from_str(around).expect("a test wrote it");
    let stage = Stage::set(number(limit)?, around)?;
    for step in steps(program) {
        print_json(&step.report(acts::run(&stage, step.act)))?;
    }
    Ok(())
}

/// `divvy run` of this test program, in a slice of these flags.
fn in_slice(home: &Home, flags: &[&str], role: &str) -> Command {
    let this = this();
    let this = this.to_str().expect("a readable path");
    let words = [&["run", "--no-wait"], flags, &["--", this], &ENTRY].concat();
    let mut command = home.divvy_command(&words);
    command.env(ROLE, role);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Plays these programs in slices with the limit, beside a neighbour that allocates all the time.
fn replays(home: &Home, flags: &[&str], programs: &[&'static str]) -> Replays {
    let (limit, memory) = LIMIT;
    let memory = format!("--gpu-memory={memory}");
    let slice = [flags, &["--gpus-on=0", &memory]].concat();
    let mut running = in_slice(home, &slice, &format!("neighbour {limit}"));
    let mut running = running.spawn().expect("divvy starts");
    let said = BufReader::new(running.stdout.take().expect("a pipe"));
    let mut said = said.lines().map_while(Result::ok);
    let neighbour: Option<Neighbour> = bounded("the neighbour has its memory", || {
        said.find_map(|line| serde_json::from_str(&line).ok())
    });
    let neighbour = neighbour.expect("there is room for a neighbour");
    let replay = |program| {
        let around = Surroundings {
            neighbour: neighbour.clone(),
            pair: (program == "sglang").then(|| pair(home, flags)).flatten(),
        };
        let around = serde_json::to_string(&around).expect("figures are JSON");
        let role = format!("play {program} {limit} {around}");
        let output = in_slice(home, &slice, &role).output_bounded();
        let output = output.expect("divvy runs");
        let seen: Vec<StepReport> = lines(&output.stdout).collect();
        assert_eq!(seen.len(), steps(program).len(), "{program}: {output:?}");
        (program, seen)
    };
    let replays = programs.iter().copied().map(replay).collect();
    drop(running.stdin.take());
    let rounds: Option<u64> = bounded("the neighbour ends", || {
        said.find_map(|line| line.parse().ok())
    });
    assert!(rounds > Some(0), "the neighbour has allocated all the time");
    running.wait_bounded().expect("a child can be waited for");
    replays
}

/// The figures of a job with equal parts of two GPUs; none where there is one GPU.
fn pair(home: &Home, flags: &[&str]) -> Option<Vec<GpuFigures>> {
    let slice = [flags, &["--gpu=2x0.1"]].concat();
    let output = in_slice(home, &slice, "pair").output_bounded();
    lines(&output.expect("divvy runs").stdout).next()
}

fn all() -> Vec<&'static str> {
    PROGRAMS.map(|(program, _)| program).to_vec()
}

/// The step whose expectation has these words.
fn step<'a>(replays: &'a Replays, program: &str, words: &str) -> &'a StepReport {
    let mut steps = replays[program].iter();
    let found = steps.find(|step| step.expects.contains(words));
    found.unwrap_or_else(|| panic!("no step of {program} expects {words:?}"))
}

/// Each program found what it expects; only what this machine lacks is not available.
fn all_pass(replays: &Replays) {
    assert_eq!(replays.len(), PROGRAMS.len());
    for (program, steps) in replays {
        for step in steps {
            let needs_a_program = step.calls.starts_with("nvidia-smi");
            match step.result {
                StepResult::Ok => {}
                StepResult::NotAvailable if needs_a_program => {}
                _ => panic!("{program}: {step:#?}"),
            }
        }
    }
    // The simulated driver takes nothing by itself, so here the figures are exact.
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
        let text = &step(replays, program, expects).seen;
        assert!(text.contains(seen), "{program}: {text}");
    }
}

#[test]
fn every_program_finds_what_it_expects_with_the_preload() {
    let home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "preload");
    all_pass(&replays(&home, &["--no-daemon"], &all()));
}

/// The same calls without the limiter: each family of expectations is seen to fail.
#[test]
fn without_the_limiter_each_family_of_expectations_fails() {
    // In the other form the slice is mounted, and the switch is ignored.
    let home = Home::new("a100-80gb:1")
        .variable("DIVVY_FORM", "preload")
        .variable("DIVVY_SHIM", "off");
    let replays = replays(&home, &["--no-daemon"], &all());
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
        let step = step(&replays, program, expects);
        assert_eq!(step.result, StepResult::Failed, "{program}: {step:#?}");
    }
    for (program, steps) in &replays {
        let mut failed = steps.iter().map(|step| step.result);
        assert!(
            failed.any(|result| result == StepResult::Failed),
            "{program}"
        );
    }
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
    let replays = replays(&home, &["--no-daemon"], &["nccl"]);
    let failed: Vec<&str> = replays["nccl"]
        .iter()
        .filter(|step| step.result == StepResult::Failed)
        .map(|step| step.expects.as_str())
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
