//! What a driver call costs with the limiter and without, over the simulated driver, in turns within one run.

use anyhow::{Context, Result, ensure};
use divvy_e2e::{Dialog, Home, Programs};

use crate::report::{Report, Row};

/// Name of the row, command to the probe, calls a round.
const CALLS: [(&str, &str, u32); 4] = [
    ("allocate and free 2 MiB", "pair", 4000),
    ("cuMemGetInfo", "info", 100_000),
    ("launch of an empty kernel", "launch", 10_240),
    ("cuCtxGetDevice, not hooked", "device", 1_000_000),
];

/// Processes that allocate at once.
const AT_ONCE: usize = 4;

pub fn measure(programs: &Programs, quick: bool, report: &mut Report) -> Result<()> {
    let rounds = if quick { 3 } else { 31 };
    let home = Home::with(programs.clone(), Some("a100-80gb:1")).slices_in_memory();
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
            name,
            unit: "ns/call",
            ours,
            floor,
            floor_is: "the same call without the limiter",
            note: String::new(),
        });
    }
    drop((limited, bare));

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
            name,
            unit: "ns/pair",
            ours,
            floor,
            floor_is: "the same four without the limiter",
            note,
        });
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
