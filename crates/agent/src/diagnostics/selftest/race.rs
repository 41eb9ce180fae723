//! The race test: several processes of the slice allocate at once, and together must not get more than one would.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use divvy_api::v1::{SelftestCheck, SelftestKind, SelftestResult};
use divvy_driver::load::Lookup;
use divvy_driver::probe::{Session, Taken};

use super::{Failure, exit_after_timeout, known_way};

/// Racers. Each has a context, which is a part of the limit. So more would need a larger limit; two are the least that
/// race.
const RACERS: usize = 4;
/// As many as the check on an H200 had (8 processes, 20 rounds), so that both compare.
const ROUNDS: usize = 20;
/// A racer takes this part of the limit in one call.
const PARTS: u64 = 64;
const PIECE: u64 = 2 << 20;

/// One racer, and the lines between us.
struct Racer {
    child: Child,
    /// `None` once it was told to end.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Racer {
    fn start(this: &Path, limit: u64, block: u64) -> io::Result<Self> {
        // Where nothing holds them, together they pass the limit by a few blocks and no more.
        let most = limit / RACERS as u64 + 2 * block;
        let mut child = Command::new(this)
            .args(["probe-limits", "--limit", &limit.to_string(), "racer"])
            .args([block.to_string(), most.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let to = child.stdin.take();
        let from = child.stdout.take();
        let from =
            BufReader::new(from.ok_or_else(|| io::Error::other("a test process has no pipe"))?);
        Ok(Self { child, to, from })
    }

    fn send(&mut self, word: &str) -> io::Result<()> {
        self.to.as_mut().map_or(Ok(()), |to| writeln!(to, "{word}"))
    }

    /// The number on its next line.
    fn number(&mut self) -> io::Result<u64> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        line.trim()
            .parse()
            .map_err(|_| io::Error::other(format!("a test process printed {line:?}")))
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        // It ends with its input, or by its own clock.
        self.to = None;
        let _ = self.child.wait();
    }
}

/// Lets the racers run, and holds every round's sum to the limit.
pub fn race(this: &Path, limit: u64) -> SelftestCheck {
    let (result, got, detail) = match run(this, limit) {
        Ok((got, racers)) if got > limit => {
            let detail = format!("{racers} processes at once");
            (SelftestResult::NotEnforced, Some(got), detail)
        }
        Ok((got, racers)) => {
            let detail = format!("{racers} processes at once, {ROUNDS} rounds");
            (SelftestResult::Enforced, Some(got), detail)
        }
        Err(error) => (SelftestResult::Failed, None, error.to_string()),
    };
    SelftestCheck {
        kind: SelftestKind::Race,
        name: "cuMemAlloc_v2 by several processes".to_owned(),
        result,
        got_bytes: got,
        detail,
    }
}

/// The most bytes that all held together, and how many they were.
fn run(this: &Path, limit: u64) -> io::Result<(u64, usize)> {
    let block = (limit / PARTS / PIECE).max(1) * PIECE;
    let mut racers = Vec::new();
    for _ in 0..RACERS {
        let mut racer = Racer::start(this, limit, block)?;
        // A racer does not come up if its context finds no room in the slice.
        match racer.number() {
            Ok(_) => racers.push(racer),
            Err(_) if racers.len() > 1 => break,
            Err(error) => return Err(error),
        }
    }
    let mut most = 0;
    for _ in 0..ROUNDS {
        racers.iter_mut().try_for_each(|racer| racer.send("go"))?;
        let sum = racers
            .iter_mut()
            .map(Racer::number)
            .sum::<io::Result<u64>>()?;
        most = most.max(sum);
        racers.iter_mut().try_for_each(|racer| racer.send("free"))?;
        racers
            .iter_mut()
            .try_for_each(|racer| racer.number().map(drop))?;
    }
    Ok((most, racers.len()))
}

/// One racer: on `go` takes blocks until it is refused or has `most`, on `free` gives all back; answers what it holds.
pub fn racer(block: &str, most: &str) -> Result<(), Failure> {
    let (block, most): (u64, u64) = (block.parse()?, most.parse()?);
    exit_after_timeout();
    let session = Session::open(None, Lookup::Handle, 0)?;
    let way = known_way("cuMemAlloc_v2")?;
    let mut held: Vec<Taken<'_>> = Vec::new();
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "0")?;
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "go" => {
                while (held.len() as u64) * block < most
                    && let Ok(taken) = way.take(&session, block)
                {
                    held.push(taken);
                }
            }
            _ => held.clear(),
        }
        writeln!(stdout, "{}", held.len() as u64 * block)?;
        stdout.flush()?;
    }
    Ok(())
}
