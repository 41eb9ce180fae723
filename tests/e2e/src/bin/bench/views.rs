//! What a viewer asks for: a page of a list, the board; with ten thousand pending jobs beside a hundred.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use divvy_api::v1::{Array, Submit};
use divvy_e2e::{Daemon, Home, Programs, until};

use crate::queue::{QUEUE, submit_all};
use crate::report::{Report, Row, percentile};

/// Waiting jobs of the two nodes, and the running jobs of each.
const WAITING: [u32; 2] = [100, 10_000];
pub const RUNNING: usize = 64;

/// Two boards that are so far apart are rendered anew.
const APART: Duration = Duration::from_millis(510);

/// Pages of 100 jobs.
const PAGES: [(&str, &str); 3] = [
    (
        "pending jobs of a queue",
        "/v1/jobs?state=queued&queue=eighth&sort=id&limit=100",
    ),
    (
        "the same in brief",
        "/v1/jobs?state=queued&queue=eighth&sort=id&limit=100&brief=true",
    ),
    (
        "a text in names, in brief",
        "/v1/jobs?state=queued&text=waiter&limit=100&brief=true",
    ),
];

pub fn measure(programs: &Programs, quick: bool, report: &mut Report) -> Result<()> {
    let (rounds, calls) = if quick { (1, 5) } else { (9, 60) };
    let [few, many] = WAITING;
    let many = if quick { few * 5 } else { many };
    let (small, _small_daemon) = node(programs, few)?;
    let (large, _large_daemon) = node(programs, many)?;
    for (what, path) in PAGES {
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut both = [Vec::new(), Vec::new()];
            for _ in 0..calls {
                for (home, times) in [&small, &large].into_iter().zip(&mut both) {
                    let (took, body) = timed(home.client().socket(), path)?;
                    ensure!(body > 10_000, "{path}: {body} bytes");
                    times.push(took);
                }
            }
            let [few, many] = both.map(|times| percentile(&times, 0.95));
            floor.push(few);
            ours.push(many);
        }
        let note = format!(
            "{many} pending jobs beside {few}, {RUNNING} running, each the p95 of {calls} calls"
        );
        report.add(Row {
            name: format!("page of 100: {what}, p95"),
            unit: "ms",
            ours,
            floor,
            floor_is: "the same with 100 pending jobs",
            note,
        });
    }
    let (mut took, mut bytes) = (Vec::new(), 0);
    for _ in 0..if quick { 3 } else { 40 } {
        thread::sleep(APART);
        let (one, body) = timed(large.client().socket(), "/v1/board")?;
        took.push(one);
        bytes = body;
    }
    let note = format!("{many} pending jobs, {RUNNING} running");
    report.add(Row::alone(
        "board, rendered anew, p95",
        "ms",
        vec![percentile(&took, 0.95)],
        note.clone(),
    ));
    report.add(Row::alone(
        "board, size",
        "kB",
        vec![bytes as f64 / 1e3],
        note,
    ));
    Ok(())
}

/// A node with 64 running jobs and so many that wait.
pub fn node(programs: &Programs, waiting: u32) -> Result<(Home, Daemon)> {
    let home = Home::with(programs.clone(), Some("a100-80gb:8")).slices_in_memory();
    let daemon = home.daemon(&QUEUE);
    let lasts = Submit {
        command: vec!["sleep".to_owned(), "100000".to_owned()],
        name: Some("waiter".to_owned()),
        queue: Some("eighth".to_owned()),
        cwd: "/".to_owned(),
        ..Submit::default()
    };
    submit_all(&home, &lasts, RUNNING, 8)?;
    let array = Submit {
        array: Some(Array {
            indices: (0..waiting).collect(),
            max_running: None,
        }),
        ..lasts
    };
    home.call(home.client().submit(&array))?;
    until("all slots are taken and all jobs wait", || {
        let board = home.call(home.client().board()).ok()?;
        let running = board.jobs.iter().filter(|job| job.state.is_none()).count();
        (running == RUNNING && board.waiting.count == u64::from(waiting)).then_some(())
    });
    Ok((home, daemon))
}

/// Milliseconds and bytes of an answer, from the connection to its end.
fn timed(socket: &Path, path: &str) -> Result<(f64, usize)> {
    let before = Instant::now();
    let mut stream = UnixStream::connect(socket)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: divvy\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200 "), "{path} is refused");
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let body = answer.len() - head.unwrap_or_default() - 4;
    Ok((before.elapsed().as_secs_f64() * 1e3, body))
}
