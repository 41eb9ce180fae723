//! Rows of figures: medians of rounds, as a table for people and as JSON for programs.

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use divvy_testkit::markers;
use serde_json::{Value, json};

/// Between these lies the table of a page.
const BEGIN: &str = "<!-- made by cargo xtask bench --only latency throughput crowd: begin -->\n\n";
const END: &str = "<!-- made by cargo xtask bench --only latency throughput crowd: end -->";

/// One measured thing. With a floor, each round measured both, and the ratio is the median of the rounds' ratios.
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    /// Ours, one figure a round.
    pub ours: Vec<f64>,
    /// The floor, one figure a round, or nothing.
    pub floor: Vec<f64>,
    /// What the floor is.
    pub floor_is: &'static str,
    pub note: String,
}

impl Row {
    /// A row without a floor.
    pub fn alone(
        name: impl Into<String>,
        unit: &'static str,
        ours: Vec<f64>,
        note: String,
    ) -> Self {
        Self {
            name: name.into(),
            unit,
            ours,
            floor: Vec::new(),
            floor_is: "",
            note,
        }
    }

    fn ratios(&self) -> Vec<f64> {
        self.ours
            .iter()
            .zip(&self.floor)
            .map(|(ours, floor)| ours / floor)
            .collect()
    }

    fn added(&self) -> Vec<f64> {
        self.ours
            .iter()
            .zip(&self.floor)
            .map(|(ours, floor)| ours - floor)
            .collect()
    }
}

/// All rows, and the machine they were measured on.
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a row, and says so: a long run shows that it moves.
    pub fn add(&mut self, row: Row) {
        eprintln!(
            "   {}: {} {}",
            row.name,
            figure(median(&row.ours)),
            row.unit
        );
        self.rows.push(row);
    }

    /// Prints the table.
    pub fn print(&self) -> Result<()> {
        let mut out = stdout().lock();
        writeln!(
            out,
            "{:<44} {:>10} {:>10} {:>10} {:>7} {:>6}  note",
            "", "ours", "floor", "added", "ratio", "rounds"
        )?;
        for row in &self.rows {
            let paired = |values: Vec<f64>| {
                if values.is_empty() {
                    String::new()
                } else {
                    figure(median(&values))
                }
            };
            writeln!(
                out,
                "{:<44} {:>10} {:>10} {:>10} {:>7} {:>6}  {}",
                format!("{} ({})", row.name, row.unit),
                figure(median(&row.ours)),
                paired(row.floor.clone()),
                paired(row.added()),
                paired(row.ratios()),
                row.ours.len(),
                row.note
            )?;
        }
        Ok(())
    }

    /// Puts a table of the rows from `first` on between the page's markers.
    pub fn rewrite(&self, first: usize, page: &Path) -> Result<()> {
        let rows = self.rows.iter().skip(first).map(|row| {
            let floor = if row.floor.is_empty() {
                String::new()
            } else {
                format!("{} ({})", figure(median(&row.floor)), row.floor_is)
            };
            let (name, ours) = (&row.name, figure(median(&row.ours)));
            format!(
                "| {name} | {ours} {} | {floor} | {} |\n",
                row.unit, row.note
            )
        });
        let machine = machine();
        let said = |what: &str| match &machine[what] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let head = format!(
            "Divvy {}, {}, {} cores, Linux {}, load {} before.\n\n| figure | value | floor | condition |\n|---|---|---|---|\n",
            env!("CARGO_PKG_VERSION"),
            said("processor"),
            said("cores"),
            said("kernel"),
            said("load_before"),
        );
        let table = format!("{head}{}\n", rows.collect::<String>());
        markers::rewrite(page, (BEGIN, END), &table)?;
        eprintln!("   the table is in {}", page.display());
        Ok(())
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Writes the JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let paired = (!row.floor.is_empty()).then(|| {
                    json!({
                        "is": row.floor_is,
                        "median": median(&row.floor),
                        "rounds": row.floor,
                        "added_median": median(&row.added()),
                        "ratio_median": median(&row.ratios()),
                    })
                });
                json!({
                    "name": row.name,
                    "unit": row.unit,
                    "median": median(&row.ours),
                    "rounds": row.ours,
                    "floor": paired,
                    "note": row.note,
                })
            })
            .collect();
        let document = json!({"schema": "divvy/bench/v1", "machine": machine(), "rows": rows});
        fs::write(path, format!("{document:#}\n"))
            .with_context(|| format!("write {}", path.display()))?;
        eprintln!("   every round is in {}", path.display());
        Ok(())
    }
}

fn machine() -> Value {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let commit = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success());
    json!({
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": read("/proc/loadavg").split(' ').next(),
        "commit": commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
    })
}

/// The middle value; the mean of the two middle ones where there are two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// The value that `part` (0 to 1) of all values do not exceed.
pub fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len()) - 1]
}

fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
