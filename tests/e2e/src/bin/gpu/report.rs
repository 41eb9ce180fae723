//! What came of each item. The file is written after every one.

use std::fs;
use std::io::{Write, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::Item;
use crate::ground::{Ground, Trouble};

/// An item is not begun when less than this part of what it may take is left.
const ENOUGH: f64 = 0.5;

/// The report as it grows.
pub struct Report {
    path: PathBuf,
    head: Value,
    rows: Vec<Value>,
    simulated: bool,
}

impl Report {
    /// Writes down the machine.
    pub fn begin(ground: &Ground, path: &Path) -> Result<Self> {
        let report = Self {
            path: path.to_owned(),
            head: machine(),
            rows: Vec::new(),
            simulated: ground.simulated,
        };
        report.write()?;
        Ok(report)
    }

    /// Runs an item, and writes down what came of it.
    pub fn add(&mut self, ground: &Ground, item: &Item) -> Result<()> {
        let patience = Duration::from_secs(item.patience);
        let started = Instant::now();
        let (status, value, detail) =
            if ground.left().as_secs_f64() < patience.as_secs_f64() * ENOUGH {
                ("skipped", Value::Null, "no time was left".to_owned())
            } else {
                match catch_unwind(AssertUnwindSafe(|| (item.run)(ground))) {
                    Ok(Ok(value)) => ("ok", value, String::new()),
                    Ok(Err(Trouble::NotAvailable(why))) => ("not_available", Value::Null, why),
                    Ok(Err(Trouble::Failed(why))) => ("failed", Value::Null, why),
                    Err(panic) => ("failed", Value::Null, words(&*panic)),
                }
            };
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("   {:<30} {status} ({seconds:.1} s) {detail}", item.name);
        self.rows.push(json!({
            "name": item.name,
            "what": item.what,
            "status": status,
            // A figure of the simulator's is the simulator's own belief.
            "simulated": self.simulated,
            "seconds": seconds,
            "value": value,
            "detail": detail,
        }));
        self.write()
    }

    fn write(&self) -> Result<()> {
        let document = json!({
            "schema": "divvy/gpu-report/v1",
            "simulated": self.simulated,
            "machine": self.head,
            "items": self.rows,
        });
        fs::write(&self.path, format!("{document:#}\n"))
            .with_context(|| format!("write {}", self.path.display()))
    }

    fn count(&self, status: &str) -> usize {
        self.rows
            .iter()
            .filter(|row| row["status"] == status)
            .count()
    }

    /// How many items failed.
    pub fn failed(&self) -> usize {
        self.count("failed")
    }

    /// One line for each item, and their sum.
    pub fn print(&self) -> Result<()> {
        let mut out = stdout().lock();
        for row in &self.rows {
            writeln!(
                out,
                "{:<14} {:<30} {}",
                row["status"].as_str().unwrap_or_default(),
                row["name"].as_str().unwrap_or_default(),
                row["detail"].as_str().unwrap_or_default()
            )?;
        }
        writeln!(
            out,
            "{} ok, {} failed, {} not available, {} skipped{}; {}",
            self.count("ok"),
            self.failed(),
            self.count("not_available"),
            self.count("skipped"),
            if self.simulated {
                " (simulated: nothing here was measured on hardware)"
            } else {
                ""
            },
            self.path.display()
        )?;
        Ok(())
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

fn machine() -> Value {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let line = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let memory = read("/proc/meminfo");
    json!({
        "date": line("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "cores": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        "memory": memory.lines().next(),
        "libc": line("getconf", &["GNU_LIBC_VERSION"]),
        "module": read("/proc/driver/nvidia/version").lines().next(),
        "version": env!("CARGO_PKG_VERSION"),
        "commit": line("git", &["rev-parse", "HEAD"]),
        "nvidia_smi": line("nvidia-smi", &[
            "--query-gpu=name,driver_version,memory.total,mig.mode.current,compute_mode,persistence_mode",
            "--format=csv,noheader",
        ]),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use divvy_e2e::Programs;

    use super::*;

    fn item(
        name: &str,
        patience: u64,
        run: impl Fn(&Ground) -> Result<Value, Trouble> + 'static,
    ) -> Item {
        Item::new(name, "", patience, run)
    }

    #[test]
    fn an_item_that_fails_in_any_way_is_written_down_and_the_next_runs() {
        let programs = Programs::at("/nowhere".into());
        let python = Path::new("python3");
        let ground = Ground::new(
            programs,
            Some("a100-80gb:1"),
            python,
            Duration::from_secs(60),
            true,
        );
        let path = ground.home.scratch().join("report.json");
        let mut report = Report::begin(&ground, &path).unwrap();
        for item in [
            item("fails", 1, |_| Err(Trouble::failed("as it should"))),
            item("panics", 1, |_| panic!("on purpose")),
            item("lacks", 1, |ground| {
                let mut command = Command::new("/nowhere/program");
                ground.json(&mut command, Duration::from_secs(1))
            }),
            item("hangs", 1, |ground| {
                let mut command = Command::new("sleep");
                ground.json(command.arg("600"), Duration::from_millis(10))
            }),
            item("takes too long", 1000, |_| Ok(Value::Null)),
            item("works", 1, |_| Ok(json!(7))),
        ] {
            report.add(&ground, &item).unwrap();
        }
        let written: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let rows = written["items"].as_array().unwrap();
        let statuses: Vec<&str> = rows
            .iter()
            .map(|row| row["status"].as_str().unwrap())
            .collect();
        assert_eq!(
            statuses,
            [
                "failed",
                "failed",
                "not_available",
                "failed",
                "skipped",
                "ok"
            ]
        );
        assert!(rows.iter().all(|row| row["simulated"] == true));
        assert_eq!(
            (rows[1]["detail"].as_str(), &rows[5]["value"]),
            (Some("on purpose"), &json!(7))
        );
        assert_eq!(report.failed(), 3);
    }
}
