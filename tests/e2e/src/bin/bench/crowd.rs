//! A node with ten thousand jobs that wait: what it takes to submit them, to list them, to decide about them and to ask why; and what a
//! daemon takes that has nothing to do.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use divvy_api::v1::{Array, Submit};
use divvy_e2e::{Home, Programs, until};

use crate::queue::{QUEUE, processor_seconds, submit_all};
use crate::report::{Report, Row, percentile};

/// So many wait; the node's 64 slots are taken.
const WAITING: u32 = 10_000;
const SLOTS: usize = 64;

pub fn measure(programs: &Programs, quick: bool, report: &mut Report) -> Result<()> {
    let (waiting, asked) = if quick { (500, 5) } else { (WAITING, 40) };
    let home = Home::with(programs.clone(), Some("a100-80gb:8")).slices_in_memory();
    let daemon = home.daemon(&QUEUE);
    drop(home.items(&["ps"]));
    let idle = resting(daemon.pid(), quick)?;
    report.add(Row::alone(
        "idle daemon, part of a core",
        "%",
        vec![idle],
        String::new(),
    ));
    report.add(Row::alone(
        "idle daemon, memory",
        "MB",
        vec![megabytes(daemon.pid())?],
        String::new(),
    ));

    let lasts = Submit {
        command: vec!["sleep".to_owned(), "100000".to_owned()],
        queue: Some("eighth".to_owned()),
        cwd: "/".to_owned(),
        ..Submit::default()
    };
    submit_all(&home, &lasts, SLOTS, 8)?;
    until("all slots are taken", || {
        let running = home
            .items(&["queues"])
            .iter()
            .filter_map(|queue| queue["running"].as_u64())
            .sum::<u64>();
        (running == SLOTS as u64).then_some(())
    });
    let before = Instant::now();
    submit_all(&home, &lasts, (waiting / 2) as usize, 16)?;
    let each = before.elapsed().as_secs_f64() * 1e3 / f64::from(waiting / 2);
    let note = format!(
        "{} jobs, 16 connections, each acknowledged from disk",
        waiting / 2
    );
    report.add(Row::alone(
        "submit one by one, each",
        "ms",
        vec![each],
        note,
    ));
    let before = Instant::now();
    let array = Submit {
        array: Some(Array {
            indices: (0..waiting / 2).collect(),
            max_running: None,
        }),
        ..lasts.clone()
    };
    home.call(home.client().submit(&array))?;
    let each = before.elapsed().as_secs_f64() * 1e3 / f64::from(waiting / 2);
    let note = format!("an array of {}", waiting / 2);
    report.add(Row::alone(
        "submit in one batch, each",
        "ms",
        vec![each],
        note,
    ));

    let note = format!("{waiting} pending jobs, {SLOTS} running");
    report.add(Row::alone(
        "resting daemon, part of a core",
        "%",
        vec![resting(daemon.pid(), quick)?],
        note.clone(),
    ));
    report.add(Row::alone(
        "resting daemon, memory",
        "MB",
        vec![megabytes(daemon.pid())?],
        note.clone(),
    ));
    let listed = times(asked, || {
        let jobs = home.call(home.client().jobs(false))?;
        ensure!(
            jobs.len() >= waiting as usize,
            "{} jobs are listed",
            jobs.len()
        );
        Ok(())
    })?;
    report.add(Row::alone(
        "list all through the API, p95",
        "ms",
        vec![percentile(&listed, 0.95)],
        note.clone(),
    ));
    let listed = times(asked, || {
        ensure!(home.divvy(&["ps"]).code == 0, "ps fails");
        Ok(())
    })?;
    report.add(Row::alone(
        "`divvy ps`, p95",
        "ms",
        vec![percentile(&listed, 0.95)],
        note.clone(),
    ));
    let last = home.call(home.client().submit(&lasts))?.id;
    let explained = times(asked, || {
        Ok(home.call(home.client().why(&last)).map(drop)?)
    })?;
    report.add(Row::alone(
        "`why` of the last pending job, p95",
        "ms",
        vec![percentile(&explained, 0.95)],
        note.clone(),
    ));

    let before = plans(&home)?;
    for _ in 0..asked {
        let job = home.call(home.client().submit(&lasts))?.id;
        home.call(home.client().cancel(&job))?;
    }
    let after = plans(&home)?;
    let (sum, count) = (after.0 - before.0, after.1 - before.1);
    ensure!(count > 0.0, "nothing was planned");
    report.add(Row::alone(
        "one plan, mean",
        "ms",
        vec![sum * 1e3 / count],
        note.clone(),
    ));
    report.add(Row::alone(
        "daemon at the end, memory",
        "MB",
        vec![megabytes(daemon.pid())?],
        note,
    ));
    Ok(())
}

/// Milliseconds that each of so many calls took.
fn times(count: usize, mut call: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    (0..count)
        .map(|_| {
            let before = Instant::now();
            call()?;
            Ok(before.elapsed().as_secs_f64() * 1e3)
        })
        .collect()
}

/// Which part of a core the daemon takes while nothing happens, in percent.
fn resting(daemon: u32, quick: bool) -> Result<f64> {
    let pause = Duration::from_secs(if quick { 2 } else { 20 });
    // What was begun is done by then.
    thread::sleep(Duration::from_secs(1));
    let before = processor_seconds(daemon)?;
    thread::sleep(pause);
    Ok((processor_seconds(daemon)? - before) / pause.as_secs_f64() * 100.0)
}

/// Resident memory (proc(5), `VmRSS`).
pub fn megabytes(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line
        .and_then(|line| line.split_whitespace().next())
        .context("VmRSS")?;
    Ok(kilobytes.parse::<f64>()? * 1024.0 / 1e6)
}

/// Seconds spent deciding so far, and how often.
fn plans(home: &Home) -> Result<(f64, f64)> {
    let mut socket = UnixStream::connect(home.client().socket())?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: divvy\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    socket.read_to_string(&mut page)?;
    let figure = |name: &str| -> Result<f64> {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.with_context(|| format!("no {name}"))?.trim().parse()?)
    };
    let name = "divvy_scheduling_duration_seconds";
    Ok((
        figure(&format!("{name}_sum "))?,
        figure(&format!("{name}_count "))?,
    ))
}
