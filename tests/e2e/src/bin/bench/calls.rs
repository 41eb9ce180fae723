//! What a driver call costs with the limiter and without, over the simulated driver, in turns within one run.

use anyhow::{Context, Result, ensure};
use divvy_e2e::{Dialog, Home, Programs};
use rustix::process::geteuid;

use crate::report::{Report, Row};

/// Name of the row, command to the probe, calls a round.
const CALLS: [(&str, &str, u32); 10] = [
    ("allocate and free 2 MiB", "pair", 4000),
    ("allocate and free 512 B", "small", 4000),
    ("the same in stream order, 2 MiB", "async", 4000),
    ("create and release a handle, 2 MiB", "create", 4000),
    ("cuMemGetInfo", "info", 100_000),
    ("launch of an empty kernel", "launch", 10_240),
    ("cuCtxGetDevice, not hooked", "device", 1_000_000),
    ("dlsym of a hooked function", "lookup", 20_000),
    ("dlsym of another function", "plain", 20_000),
    ("cuGetProcAddress", "ask", 20_000),
];

/// Siblings that are started one after another, how many there are then, and calls a round. The simulated driver's own
/// call takes 0.4 us for each of them, too: their number is what the difference is to be seen to depend on.
const SIBLINGS: [(u32, u32, u32); 3] = [(1, 1, 20_000), (6, 7, 8_000), (24, 31, 2_000)];

/// Processes that allocate at once.
const AT_ONCE: usize = 4;

/// The slice that is filled to see how much of a limit can be had.
const FILLED: u64 = 8 << 30;

/// The probe in a slice and outside, which are asked the same in turns.
struct Probes {
    limited: Dialog,
    bare: Dialog,
}

impl Probes {
    fn start(home: &Home, limit: &str) -> Result<Self> {
        let probe = home.program("call_cost");
        let mut probes = Self {
            limited: Dialog::start(&mut home.divvy_command(&[
                "run",
                "--gpu-memory",
                limit,
                "--",
                &probe,
            ])),
            bare: Dialog::start(&mut home.outside(&probe)),
        };
        for dialog in [&mut probes.limited, &mut probes.bare] {
            ensure!(dialog.line().trim() == "ready", "the probes came up");
        }
        Ok(probes)
    }

    /// Has both do something that is not measured.
    fn prepare(&mut self, command: &str) {
        for dialog in [&mut self.limited, &mut self.bare] {
            dialog.say(command);
            dialog.line();
        }
    }

    fn row(&mut self, name: String, command: &str, rounds: usize) -> Result<Row> {
        let read = |line: &str| line.parse().ok();
        let (ours, floor) = in_turns(&mut self.limited, &mut self.bare, command, rounds, read)?;
        Ok(Row {
            name,
            unit: "ns/call",
            ours,
            floor,
            floor_is: "the same call without the limiter",
            note: String::new(),
        })
    }
}

/// Each call in a slice of `home`, and bare. `form` is put behind the rows' names.
fn each_call(home: &Home, form: &str, rounds: usize, report: &mut Report) -> Result<()> {
    let _daemon = home.daemon(&[]);
    let mut probes = Probes::start(home, "8G")?;
    for (name, command, calls) in CALLS {
        report.add(probes.row(
            format!("{name}{form}"),
            &format!("{command} {calls}"),
            rounds,
        )?);
    }
    Ok(())
}

/// The view of memory with a live pool, and beside other processes of the slice.
fn view(home: &Home, rounds: usize, report: &mut Report) -> Result<()> {
    let _daemon = home.daemon(&[]);
    let mut probes = Probes::start(home, "60G")?;
    probes.prepare("pool 4194304");
    report.add(probes.row("cuMemGetInfo with a pool".to_owned(), "info 100000", rounds)?);
    for (more, all, calls) in SIBLINGS {
        probes.prepare(&format!("siblings {more}"));
        let name = format!("cuMemGetInfo with a pool, {all} siblings");
        report.add(probes.row(name, &format!("info {calls}"), rounds)?);
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
    view(&home, rounds, report)?;

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
