//! What the driver really does (`gpu_facts`), outside of every slice and inside one, and what the limiter adds to its calls.

use std::time::Duration;
use std::{fs, thread};

use divvy_e2e::{GIB, MIB};
use serde_json::Value;

use crate::Item;
use crate::ground::{Ground, Trouble};

/// Facts that are worth a second look inside a slice: there the driver's figures are the limiter's charges.
const IN_A_SLICE: [&str; 5] = [
    "alloc_sizes",
    "pool_segments",
    "context_limits",
    "graph_bytes",
    "managed_bytes",
];

/// The fact that exists in a slice alone.
const TURNS: &str = "call_turns";

const SLICE: u64 = 8 * GIB;
const PATIENCE: u64 = 40;

/// Every fact that the program knows; none where it is not there.
pub fn items(ground: &Ground) -> Vec<Item> {
    let program = program(ground);
    let listed = ground.json(
        &mut ground.outside(&[program.as_str(), "list"]),
        Duration::from_secs(10),
    );
    let listed = match listed {
        Ok(listed) => listed,
        Err(trouble) => {
            let why = format!("{trouble:?}");
            return vec![Item::new("fact", "gpu_facts", 1, move |_| {
                Err(Trouble::NotAvailable(why.clone()))
            })];
        }
    };
    let mut items = Vec::new();
    let known = listed.as_array().into_iter().flatten();
    for fact in known.filter(|fact| fact["name"] != TURNS) {
        let name = fact["name"].as_str().unwrap_or_default().to_owned();
        let decides = fact["decides"].as_str().unwrap_or_default().to_owned();
        let word = name.clone();
        items.push(Item::new(
            format!("fact.{name}"),
            decides.clone(),
            PATIENCE,
            move |ground| outside(ground, &word, &[]),
        ));
        if name == "context_bytes" {
            items.push(Item::new(
                "fact.context_bytes.eager",
                "the same with all code loaded at once (CUDA_MODULE_LOADING=EAGER)",
                PATIENCE,
                |ground| outside(ground, "context_bytes", &[("CUDA_MODULE_LOADING", "EAGER")]),
            ));
        }
        if IN_A_SLICE.contains(&name.as_str()) {
            items.push(Item::new(
                format!("slice.{name}"),
                format!("what is charged, beside: {decides}"),
                PATIENCE,
                move |ground| inside(ground, &name),
            ));
        }
    }
    items.push(Item::new(
        "overhead",
        "what the limiter adds to each call, both sides by turns in one process",
        90,
        |ground| inside(ground, TURNS),
    ));
    items.extend(SHARES.map(|(name, what, tenants)| {
        Item::new(name, what, 100, move |ground| shares(ground, tenants))
    }));
    items
}

/// Tenants at one time, as `--compute` has each.
const SHARES: [(&str, &str, &[&str]); 3] = [
    (
        "shares.alone",
        "device time, products, clock and power of a tenant with a whole GPU",
        &["fair=0.75"],
    ),
    (
        "shares.strict",
        "the same held to a quarter: a quarter of the device time, whatever the clock",
        &["strict=0.25"],
    ),
    (
        "shares.pair",
        "the same of two tenants at a time",
        &["fair=0.75", "fair=0.25"],
    ),
];
const SHARE_OF_TIME: &str = include_str!("../../../clients/gpu/share_of_time.py");

/// What each tenant says of its pieces of work: for a minute, or five seconds where it is to be quick.
fn shares(ground: &Ground, tenants: &[&str]) -> Result<Value, Trouble> {
    let script = ground.home.scratch().join("share_of_time.py");
    fs::write(&script, SHARE_OF_TIME)?;
    let seconds = if ground.quick { "5" } else { "60" };
    let run = |compute: &&str| {
        let memory = format!("{}M", SLICE / MIB);
        let words = [
            "run",
            "--no-wait",
            "--gpu-memory",
            &memory,
            "--compute",
            compute,
            "--",
        ];
        let mut command = ground.home.divvy_command(&words);
        command.arg(&ground.python).arg(&script);
        command.args(["--seconds", seconds]);
        ground.json(&mut command, Duration::from_secs(90))
    };
    thread::scope(|scope| {
        let running = tenants.iter().map(|tenant| scope.spawn(|| run(tenant)));
        let running: Vec<_> = running.collect();
        let answers = running.into_iter().map(|tenant| {
            let ended = tenant.join();
            ended.unwrap_or_else(|_| Err(Trouble::failed("a tenant's thread panicked")))
        });
        let answers: Result<Vec<Value>, Trouble> = answers.collect();
        Ok(tenants
            .iter()
            .map(|name| (*name).to_owned())
            .zip(answers?)
            .collect())
    })
}

fn program(ground: &Ground) -> String {
    ground.home.program("examples/gpu_facts")
}

fn outside(ground: &Ground, fact: &str, variables: &[(&str, &str)]) -> Result<Value, Trouble> {
    let program = program(ground);
    let mut command = ground.outside(&[program.as_str(), fact]);
    command.envs(variables.iter().copied());
    ground.json(&mut command, Duration::from_secs(PATIENCE))
}

fn inside(ground: &Ground, fact: &str) -> Result<Value, Trouble> {
    let program = program(ground);
    let mut command = ground.in_slice(SLICE, &[program.as_str(), fact]);
    ground.json(&mut command, Duration::from_secs(2 * PATIENCE))
}
