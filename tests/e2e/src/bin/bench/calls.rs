//! What a driver call costs with the limiter and without, over the simulated driver, in turns within one run.

use anyhow::{Context, Result, ensure};
use divvy_e2e::{Dialog, Home, Programs};
use rustix::process::geteuid;

use crate::report::{Report, Row};

/// Name of the row, command to the probe, calls a round.
const CALLS: [(&str, &str, u32); 8] = [
    ("allocate and free 2 MiB", "pair", 4000),
    ("allocate and free 512 B", "small", 4000),
    ("cuMemGetInfo", "info", 100_000),
    ("launch of an empty kernel", "launch", 10_240),
    ("cuCtxGetDevice, not hooked", "device", 1_000_000),
    ("dlsym of a hooked function", "lookup", 20_000),
    ("dlsym of another function", "plain", 20_000),
    ("cuGetProcAddress", "ask", 20_000),
];

/// Processes that allocate at once.
const AT_ONCE: usize = 4;

/// The slice that is filled to see how much of a limit can be had.
const FILLED: u64 = 8 << 30;

/// Each call in a slice of `home`, and bare. `form` is put behind the rows' names.
fn each_call(home: &Home, form: &str, rounds: usize, report: &mut Report) -> Result<()> {
    let _daemon = home.daemon(&[]);
    let probe = home.program("call_cost");
    let mut limited =
        Dialog::start(&mut home.divvy_command(&["run", "--gpu-memory", "8G", "--", &probe]));
    let mut bare = Dialog::start(&mut home.outside(&probe));
    ensure!(
        limited.line().trim() == "ready" && bare.line().trim() == "ready",
        "the probes came up"
    );
    for (name, command, calls) in CALLS {
        let (ours, floor) = in_turns(
            &mut limited,
            &mut bare,
            &format!("{command} {calls}"),
            rounds,
            |line| line.parse().ok(),
        )?;
        report.add(Row {
            name: format!("{name}{form}"),
            unit: "ns/call",
            ours,
            floor,
            floor_is: "the same call without the limiter",
            note: String::new(),
        });
    }
    Ok(())
}

pub fn measure(programs: &Programs, quick: bool, report: &mut Report) -> Result<()> {
    let rounds = if quick { 3 } else { 31 };
    let home = |form| {
        Home::with(programs.clone(), Some("a100-80gb:1"))
            .slices_in_memory()
            .variable("DIVVY_FORM", form)
    };
    // Only root's jobs may have it.
    if geteuid().is_root() {
        each_call(&home("wrapper"), ", wrapper", rounds, report)?;
    }
    let home = home("preload");
    let probe = home.program("call_cost");
    each_call(&home, "", rounds, report)?;

    let _daemon = home.daemon(&[]);
    let (own, copies) = (home.program("bench"), AT_ONCE.to_string());
    let mut limited = Dialog::start(&mut home.divvy_command(&[
        "run",
        "--gpu-memory",
        "8G",
        "--",
        &own,
        "crowd",
        &copies,
        &probe,
    ]));
    let mut bare = Dialog::start(home.outside(&own).args(["crowd", &copies, &probe]));
    ensure!(
        limited.line().contains("ready") && bare.line().contains("ready"),
        "the crowds came up"
    );
    for (name, field) in [
        ("four at once, allocate and free, p50", 0),
        ("four at once, allocate and free, p99", 1),
    ] {
        let worst = |line: &str| -> Option<f64> {
            let figures = line
                .split('|')
                .map(|one| one.split_whitespace().nth(field)?.parse::<f64>().ok());
            figures
                .collect::<Option<Vec<f64>>>()
                .map(|all| crate::report::median(&all))
        };
        let (ours, floor) = in_turns(
            &mut limited,
            &mut bare,
            "spread 20000",
            rounds.min(11),
            worst,
        )?;
        let note = "median over the processes".to_owned();
        report.add(Row {
            name: name.to_owned(),
            unit: "ns/pair",
            ours,
            floor,
            floor_is: "the same four without the limiter",
            note,
        });
    }
    Ok(())
}

/// How much of a limit programs can have, in blocks that get smaller as they are refused, down to 2 MiB; a context is in it.
pub fn usable(programs: &Programs, report: &mut Report) -> Result<()> {
    let home = Home::with(programs.clone(), Some("a100-80gb:1")).slices_in_memory();
    let _daemon = home.daemon(&[]);
    for (name, route) in [
        ("usable part of a limit, cuMemAlloc", "linear"),
        ("usable part of a limit, cuMemAllocAsync", "async"),
        ("usable part of a limit, cuMemCreate", "vmm"),
    ] {
        let limit = format!("{}M", FILLED >> 20);
        let probe = home.program("cudarc_probe");
        let words = [
            "run",
            "--gpu-memory",
            &limit,
            "--",
            &probe,
            "fill",
            "--route",
            route,
        ];
        let filled = home.divvy(&words).ok().json();
        let figure = |name: &serde_json::Value| name.as_u64().context("a figure");
        let context = FILLED - figure(&filled["before"]["free_bytes"])?;
        let got = figure(&filled["got_bytes"])? + context;
        let note = format!(
            "of {} MiB, {} MiB for the context",
            FILLED >> 20,
            context >> 20
        );
        ensure!(got <= FILLED, "beyond the limit: {filled}");
        report.add(Row::alone(
            name,
            "%",
            vec![got as f64 * 100.0 / FILLED as f64],
            note,
        ));
    }
    Ok(())
}

/// Asks both sides the same thing, `rounds` times, the order changing from round to round.
fn in_turns(
    limited: &mut Dialog,
    bare: &mut Dialog,
    command: &str,
    rounds: usize,
    read: impl Fn(&str) -> Option<f64>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let ask = |dialog: &mut Dialog| {
        dialog.say(command);
        let line = dialog.line();
        read(line.trim()).with_context(|| format!("a probe answered {line:?}"))
    };
    ask(limited)?;
    ask(bare)?;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            ours.push(ask(limited)?);
            floor.push(ask(bare)?);
        } else {
            floor.push(ask(bare)?);
            ours.push(ask(limited)?);
        }
    }
    Ok((ours, floor))
}
