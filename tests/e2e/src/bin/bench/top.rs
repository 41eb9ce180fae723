//! `divvy top` and nvitop, each in a terminal of its own at the same time: what a live view takes of a processor and of memory.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use divvy_e2e::{Home, Programs, until};
use divvy_testkit::Bounded as _;

use crate::crowd::megabytes;
use crate::queue::processor_seconds;
use crate::report::{Report, Row};
use crate::views::{self, RUNNING};

/// A terminal of 80 columns and 24 lines with one program in it.
struct Terminal<'a> {
    home: &'a Home,
    name: &'static str,
}

impl<'a> Terminal<'a> {
    fn open(home: &'a Home, name: &'static str, mut command: Command) -> Result<Self> {
        let terminal = Self { home, name };
        let program = command.get_program().to_owned();
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = home.outside("tmux");
        command
            .args(["-u", "-f", "/dev/null", "-S"])
            .arg(terminal.socket());
        command
            .args(["new-session", "-d", "-x", "80", "-y", "24"])
            .arg(program)
            .args(words);
        command
            .env("LANG", "C.UTF-8")
            .env_remove("TMUX")
            .env_remove("NO_COLOR");
        let output = command.output_bounded()?;
        ensure!(
            output.status.success(),
            "tmux: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(terminal)
    }

    fn socket(&self) -> std::path::PathBuf {
        self.home.scratch().join(self.name)
    }

    fn tmux(&self, words: &[&str]) -> Result<String> {
        let mut command = self.home.command("tmux");
        let output = command
            .arg("-S")
            .arg(self.socket())
            .args(words)
            .output_bounded()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn pid(&self) -> Result<u32> {
        let pid = self.tmux(&["display-message", "-p", "#{pane_pid}"])?;
        pid.trim()
            .parse()
            .with_context(|| format!("{} has ended", self.name))
    }

    fn shows(&self, text: &str) {
        until(format!("{} shows {text:?}", self.name), || {
            self.tmux(&["capture-pane", "-p"])
                .is_ok_and(|screen| screen.contains(text))
        });
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

/// Measures with 8 GPUs, 64 running and 10,000 pending jobs. Without tmux there is no figure, without nvitop no floor.
pub fn measure(
    programs: &Programs,
    quick: bool,
    nvitop: Option<&Path>,
    report: &mut Report,
) -> Result<()> {
    if Command::new("tmux").arg("-V").output_bounded().is_err() {
        eprintln!("left out: tmux is missing, in which divvy top and nvitop run");
        return Ok(());
    }
    let (waiting, seconds) = if quick { (500, 3) } else { (10_000, 60) };
    let (home, daemon) = views::node(programs, waiting)?;
    // What the daemon takes without a viewer.
    thread::sleep(Duration::from_secs(2));
    let alone = part_of_a_core(&[daemon.pid()], seconds.min(20))?[0];
    let ours = Terminal::open(&home, "divvy-top", home.divvy_command(&["top"]))?;
    ours.shows("64 jobs run");
    let theirs = nvitop.map(|nvitop| {
        let mut command = home.outside(nvitop.to_str().unwrap_or_default());
        command.args(["--monitor", "full", "--interval", "1"]);
        let terminal = Terminal::open(&home, "nvitop", command)?;
        terminal.shows("NVITOP");
        Ok::<_, anyhow::Error>(terminal)
    });
    let theirs = theirs.transpose()?;
    let mut pids = vec![ours.pid()?, daemon.pid()];
    if let Some(theirs) = &theirs {
        pids.push(theirs.pid()?);
    }
    // Both have drawn, and know the daemon's history.
    thread::sleep(Duration::from_secs(3));
    let used = part_of_a_core(&pids, seconds)?;
    let note = format!(
        "8 GPUs, {RUNNING} running and {waiting} pending jobs, one look a second for {seconds} s"
    );
    let floor = |figure: Option<f64>| figure.into_iter().collect::<Vec<_>>();
    let row = |name: &str, unit, ours, floor: Vec<f64>| Row {
        name: name.to_owned(),
        unit,
        ours: vec![ours],
        floor_is: if floor.is_empty() { "" } else { "nvitop" },
        floor,
        note: note.clone(),
    };
    report.add(row(
        "`divvy top`, part of a core",
        "%",
        used[0],
        floor(used.get(2).copied()),
    ));
    let theirs = theirs.map(|theirs| megabytes(theirs.pid()?)).transpose()?;
    report.add(row(
        "`divvy top`, memory",
        "MB",
        megabytes(pids[0])?,
        floor(theirs),
    ));
    report.add(row(
        "the daemon with a viewer less without, part of a core",
        "%",
        used[1] - alone,
        Vec::new(),
    ));
    Ok(())
}

/// Processor time of each process in so many seconds, in percent of a core.
fn part_of_a_core(pids: &[u32], seconds: u64) -> Result<Vec<f64>> {
    let read = || {
        pids.iter()
            .map(|pid| processor_seconds(*pid))
            .collect::<Result<Vec<f64>>>()
    };
    let before = read()?;
    thread::sleep(Duration::from_secs(seconds));
    let length = Duration::from_secs(seconds).as_secs_f64();
    let used = read()?.into_iter().zip(before);
    Ok(used
        .map(|(after, before)| (after - before) / length * 100.0)
        .collect())
}
