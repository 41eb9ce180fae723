//! Many processes in one slice, and the ledger by itself.

use std::fs;
use std::io::{BufRead, Write, stdin, stdout};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use divvy_e2e::{Dialog, Home, Programs};

use crate::report::{Report, Row};

const PROCESSES: usize = 300;

/// Starts `copies` of a program that says a line when it is up, says one line when all are, then passes lines on.
pub fn crowd(copies: usize, program: &str) -> Result<()> {
    let started = Instant::now();
    let mut all: Vec<Dialog> = (0..copies)
        .map(|_| Dialog::start(&mut Command::new(program)))
        .collect();
    for one in &mut all {
        one.line();
    }
    let mut out = stdout().lock();
    writeln!(out, "ready {}", started.elapsed().as_secs_f64())?;
    out.flush()?;
    for line in stdin().lock().lines() {
        let line = line?;
        all.iter_mut().for_each(|one| one.say(&line));
        let answers: Vec<String> = all
            .iter_mut()
            .map(|one| one.line().trim().to_owned())
            .collect();
        writeln!(out, "{}", answers.join("|"))?;
        out.flush()?;
    }
    Ok(())
}

/// How long 300 processes of one slice take until each has a context, beside 300 without the limiter.
pub fn measure(programs: &Programs, quick: bool, report: &mut Report) -> Result<()> {
    let rounds = if quick { 1 } else { 5 };
    // Contexts are made small so that 300 of them fit one GPU.
    let config = std::env::temp_dir().join(format!("divvy-bench-{}.toml", std::process::id()));
    fs::write(&config, "context_mib = 16\n")?;
    let home = Home::with(programs.clone(), Some("a100-80gb:1"))
        .slices_in_memory()
        .variable("DIVVY_SIM_CONFIG", config.to_str().context("a path")?);
    let _daemon = home.daemon(&[]);
    let (own, probe, copies) = (
        home.program("bench"),
        home.program("call_cost"),
        PROCESSES.to_string(),
    );
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(seconds(&mut Dialog::start(&mut home.divvy_command(&[
            "run", "-g", "0.5", "--", &own, "crowd", &copies, &probe,
        ])))?);
        floor.push(seconds(&mut Dialog::start(
            home.outside(&own).args(["crowd", &copies, &probe]),
        ))?);
    }
    fs::remove_file(config)?;
    let name = "start of 300 processes, each with a context";
    report.add(Row {
        name: name.to_owned(),
        unit: "s",
        ours,
        floor,
        floor_is: "the same 300 without the limiter",
        note: "one slice".to_owned(),
    });
    Ok(())
}

fn seconds(crowd: &mut Dialog) -> Result<f64> {
    let line = crowd.line();
    let seconds = line
        .trim()
        .strip_prefix("ready ")
        .and_then(|figure| figure.parse().ok());
    seconds.with_context(|| format!("the crowd said {line:?}"))
}

/// The figures that the ledger's own example prints, `NAME VALUE UNIT` a line.
pub fn ledger(programs: &Programs, report: &mut Report) -> Result<()> {
    let output = Command::new(programs.path("examples/ledger_cost"))
        .output()
        .context("start ledger_cost")?;
    ensure!(
        output.status.success(),
        "ledger_cost: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    for line in String::from_utf8(output.stdout)?.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(Ok(value)), Some(unit)) =
            (words.next(), words.next().map(str::parse), words.next())
        else {
            continue;
        };
        // Names of rows live as long as the program; there are a handful.
        let (name, unit) = (name.replace('_', " ").leak(), unit.to_owned().leak());
        report.add(Row::alone(name, unit, vec![value], String::new()));
    }
    Ok(())
}
