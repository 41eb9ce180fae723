//! The queue: how soon a job starts when nothing else happens, and how many pass in a second.
//!
//! "The same work" is 2,000 jobs of an eighth of a GPU over eight GPUs, 64 slots, each a C program that logs its start and its
//! end. The floor starts the same program 64 wide with posix_spawn and remembers nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use divvy_api::client::Client;
use divvy_api::v1::Submit;
use divvy_e2e::{Home, Programs, until};

use crate::peers::Peers;
use crate::report::{Report, Row, percentile};

pub const QUEUE: [&str; 3] = ["--dynamic-gpus", "--queue", "eighth=0.125"];
const WIDTH: u32 = 64;
/// Clients that submit at once.
const CONNECTIONS: usize = 8;

/// A line of the job's log.
pub struct Line {
    pub start: bool,
    pub nanoseconds: u128,
    gpu: String,
}

pub fn read_log(path: &Path) -> Vec<Line> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let parse = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, _job, nanoseconds, gpu] = words[..] else {
            return None;
        };
        Some(Line {
            start: what == "start",
            nanoseconds: nanoseconds.parse().ok()?,
            gpu: gpu.to_owned(),
        })
    };
    text.lines().filter_map(parse).collect()
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

fn job(home: &Home, log: &Path) -> Result<Submit> {
    Ok(Submit {
        command: vec![
            home.program("job_start"),
            log.to_str().context("a path")?.to_owned(),
        ],
        queue: Some("eighth".to_owned()),
        cwd: home.scratch().to_str().context("a path")?.to_owned(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        ..Submit::default()
    })
}

/// Submit to the first instruction of the job's `main`, one job at a time on an idle system.
pub fn latency(programs: &Programs, quick: bool, report: &mut Report) -> Result<()> {
    let jobs = if quick { 5 } else { 100 };
    let home = Home::with(programs.clone(), Some("a100-80gb:8")).slices_in_memory();
    let _daemon = home.daemon(&QUEUE);
    for by_command in [false, true] {
        let log = home.scratch().join(format!("latency-{by_command}"));
        let submit = job(&home, &log)?;
        let mut milliseconds = Vec::new();
        for _ in 0..jobs {
            // Idle means idle: the last job is settled and its records are on disk.
            thread::sleep(Duration::from_millis(100));
            let before = now();
            let id = if by_command {
                home.submit(
                    &["-q", "eighth"],
                    &submit
                        .command
                        .iter()
                        .map(String::as_str)
                        .collect::<Vec<_>>(),
                )
            } else {
                home.call(home.client().submit(&submit))?.id
            };
            home.ended(&id);
            let started = read_log(&log)
                .iter()
                .rev()
                .find(|line| line.start)
                .context("the job logs its start")?
                .nanoseconds;
            milliseconds.push((started - before) as f64 / 1e6);
        }
        let (p50, p99) = if by_command {
            (
                "`divvy submit` to start, idle, p50",
                "`divvy submit` to start, idle, p99",
            )
        } else {
            (
                "API submit to start, idle, p50",
                "API submit to start, idle, p99",
            )
        };
        let note = format!("{jobs} jobs");
        report.add(Row::alone(
            p50,
            "ms",
            vec![percentile(&milliseconds, 0.5)],
            note.clone(),
        ));
        report.add(Row::alone(
            p99,
            "ms",
            vec![percentile(&milliseconds, 0.99)],
            note,
        ));
    }
    Ok(())
}

/// Jobs a second, first submit to last exit, beside the bare loop and what other queues there are; checks that no GPU ever ran more
/// than eight.
pub fn throughput(programs: &Programs, quick: bool, report: &mut Report) -> Result<()> {
    let (rounds, jobs) = if quick { (1, 200) } else { (3, 2000) };
    let peers = Peers::find();
    let (mut slurm, mut hyperqueue) = (Vec::new(), Vec::new());
    let (mut ours, mut floor, mut cpu, mut most) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        let home = Home::with(programs.clone(), Some("a100-80gb:8")).slices_in_memory();
        let daemon = home.daemon(&QUEUE);
        let log = home.scratch().join("throughput");
        let submit = job(&home, &log)?;
        let first = now();
        submit_all(&home, &submit, jobs, CONNECTIONS)?;
        let lines = until("all jobs have run", || {
            // The log is looked at rather than the daemon, which has enough to do.
            thread::sleep(Duration::from_millis(50));
            let lines = read_log(&log);
            (lines.iter().filter(|line| !line.start).count() == jobs).then_some(lines)
        });
        let last = lines
            .iter()
            .map(|line| line.nanoseconds)
            .max()
            .context("jobs ran")?;
        ours.push(jobs as f64 / ((last - first) as f64 / 1e9));
        cpu.push(processor_seconds(daemon.pid())? / jobs as f64 * 1e3);
        most = most.max(widest(&lines));
        ensure!(most <= 8, "a GPU of eight slots ran {most} jobs at once");
        until("all are settled", || {
            home.items(&["ps"]).is_empty().then_some(())
        });
        let failed = home
            .items(&["ps", "--all"])
            .iter()
            .filter(|job| job["exit_code"] != 0)
            .count();
        ensure!(failed == 0, "{failed} of {jobs} jobs did not end with 0");
        floor.push(jobs as f64 / bare_loop(&home, jobs)?);
        drop(daemon);
        // A quarter shows its rate as well.
        slurm.extend(peers.slurm(&home, jobs / 4)?);
        hyperqueue.extend(peers.hyperqueue(&home, jobs)?);
    }
    let note = format!(
        "{jobs} jobs from {CONNECTIONS} clients, 64 slots, at most {most} of 8 on a GPU; state on disk, slices in memory"
    );
    report.add(Row {
        name: "jobs through the durable queue".to_owned(),
        unit: "jobs/s",
        ours: ours.clone(),
        floor,
        floor_is: "posix_spawn loop, 64 wide",
        note,
    });
    for (name, floor, floor_is, note) in [
        (
            "the same, beside Slurm",
            slurm,
            "its shards",
            "one array of a quarter of the jobs; shards are counted, not enforced",
        ),
        (
            "the same, beside HyperQueue",
            hyperqueue,
            "HyperQueue",
            "eighths of processors; it keeps nothing on disk",
        ),
    ] {
        if !floor.is_empty() {
            report.add(Row {
                name: name.to_owned(),
                unit: "jobs/s",
                ours: ours.clone(),
                floor,
                floor_is,
                note: note.to_owned(),
            });
        }
    }
    report.add(Row::alone(
        "the daemon's processor time for each job",
        "ms",
        cpu,
        String::new(),
    ));
    Ok(())
}

/// Submits a job so many times, over several connections at once as several users would.
pub fn submit_all(home: &Home, submit: &Submit, jobs: usize, connections: usize) -> Result<()> {
    let socket = home.client().socket();
    let one = |first: usize| -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = Client::new(socket);
        for _ in (first..jobs).step_by(connections) {
            runtime.block_on(client.submit(submit))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..connections)
            .map(|first| scope.spawn(move || one(first)))
            .collect();
        all.into_iter()
            .try_for_each(|one| one.join().map_err(|_| anyhow!("a client panicked"))?)
    })
}

/// Seconds that the bare loop takes for the same programs.
fn bare_loop(home: &Home, jobs: usize) -> Result<f64> {
    let log = home.scratch().join("bare");
    let (count, width, program) = (
        jobs.to_string(),
        WIDTH.to_string(),
        home.program("job_start"),
    );
    let said = home
        .look(
            &home.program("spawn_floor"),
            &[&count, &width, &program, log.to_str().context("a path")?],
        )
        .ok();
    Ok(said.stdout.trim().parse()?)
}

/// The most jobs that were between their first and last line on one GPU at any time.
fn widest(lines: &[Line]) -> i64 {
    let mut order: Vec<&Line> = lines.iter().collect();
    // Of two lines at the same nanosecond the end comes first: its job has left.
    order.sort_by_key(|line| (line.nanoseconds, line.start));
    let mut now: BTreeMap<&str, i64> = BTreeMap::new();
    let mut most = 0;
    for line in order {
        let busy = now.entry(&line.gpu).or_default();
        *busy += if line.start { 1 } else { -1 };
        most = most.max(*busy);
    }
    most
}

/// Processor seconds a process has used, its own and the system's on its behalf (proc(5), fields 14 and 15, in ticks of 10 ms).
pub fn processor_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .context("the name ends there")?
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / 100.0)
}
