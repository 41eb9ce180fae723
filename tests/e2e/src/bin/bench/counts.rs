//! Instructions that the limiter adds to a call, counted by callgrind: unlike times the same in every run, so they are compared.
//!
//! Each call is made N and 3 N times; the difference by 2 N is one call's, without the start of the program.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use divvy_e2e::{Home, Programs};
use serde_json::{Value, json};

/// Name of the row, command to the probe, calls.
const CALLS: [(&str, &str, u64); 9] = [
    ("allocate and free 2 MiB", "pair", 1000),
    ("allocate and free 512 B", "small", 1000),
    ("the same in stream order, 2 MiB", "async", 1000),
    ("create and release a handle, 2 MiB", "create", 1000),
    ("cuMemGetInfo", "info", 1000),
    ("launch of an empty kernel", "launch", 1024),
    ("dlsym of a hooked function", "lookup", 1000),
    ("dlsym of another function", "plain", 1000),
    ("cuGetProcAddress", "ask", 1000),
];

/// The limiter's library, as callgrind names it.
const LIMITER: &str = "libdivvy_preload.so";

/// A count that has grown by more than this part is a failure.
const TOLERATED: f64 = 0.05;

/// Instructions of one call.
struct Count {
    /// In the limiter's own library.
    limiter: f64,
    /// More than without the limiter, wherever: also what it asks the driver and the C library.
    added: f64,
}

/// Counts, compares with the file of expected counts, or with `record` rewrites it. Says so and does nothing without valgrind.
///
/// # Errors
/// When a count has grown.
pub fn measure(programs: &Programs, expected: &Path, record: bool) -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("   NOT COUNTED: valgrind is not installed (apt-get install valgrind)");
        return Ok(());
    }
    let home = Home::with(programs.clone(), Some("a100-80gb:1"))
        .slices_in_memory()
        // For root it would be the wrapper; the hooks are the same.
        .variable("DIVVY_FORM", "preload");
    let mut counts = BTreeMap::new();
    for (name, command, times) in CALLS {
        let limited = one_call(&home, command, times, true)?;
        let bare = one_call(&home, command, times, false)?;
        let sum = |counts: &BTreeMap<String, f64>| counts.values().sum::<f64>();
        let count = Count {
            limiter: limited
                .iter()
                .filter(|(object, _)| object.ends_with(LIMITER))
                .map(|(_, count)| count)
                .sum(),
            added: sum(&limited) - sum(&bare),
        };
        writeln!(
            stdout(),
            "{name:<32} {:>8.0} instructions in the limiter, {:>8.0} added in all",
            count.limiter,
            count.added
        )?;
        counts.insert(name, count);
    }
    if record {
        return write(expected, &counts);
    }
    compare(expected, &counts)
}

/// Instructions of one call, by the file they are in.
fn one_call(
    home: &Home,
    command: &str,
    times: u64,
    limited: bool,
) -> Result<BTreeMap<String, f64>> {
    let few = run(home, command, times, limited)?;
    let many = run(home, command, 3 * times, limited)?;
    let each = many.into_iter().map(|(object, count)| {
        let start = few.get(&object).copied().unwrap_or(0);
        let grew = count.saturating_sub(start) as f64 / (2 * times) as f64;
        (object, grew)
    });
    Ok(each.collect())
}

fn run(home: &Home, command: &str, times: u64, limited: bool) -> Result<BTreeMap<String, u64>> {
    let scratch = home.scratch();
    let (commands, counted) = (scratch.join("commands"), scratch.join("counted"));
    fs::write(&commands, format!("{command} {times}\n"))?;
    let out = format!("--callgrind-out-file={}", counted.display());
    let words = [
        "valgrind",
        "--quiet",
        "--tool=callgrind",
        &out,
        &home.program("call_cost"),
    ]
    .map(str::to_owned);
    let mut program = if limited {
        let mut divvy = home.divvy_command(&["run", "--no-daemon", "--gpu-memory", "8G", "--"]);
        divvy.args(words);
        divvy
    } else {
        let mut bare = home.outside(&words[0]);
        bare.args(&words[1..]);
        bare
    };
    let output = program
        .stdin(File::open(&commands)?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .context("start valgrind")?;
    ensure!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(by_object(&fs::read_to_string(&counted)?))
}

/// Sums callgrind's own costs by object. Its format names an object once, `ob=(3) /path`, and from then on by number; a line
/// after `calls=` is the cost of what was called, which is counted where it was spent.
fn by_object(text: &str) -> BTreeMap<String, u64> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut current = String::new();
    let mut of_a_call = false;
    for line in text.lines() {
        if let Some(object) = line
            .strip_prefix("ob=")
            .or_else(|| line.strip_prefix("cob="))
        {
            let (number, name) = object.split_once(' ').unwrap_or((object, ""));
            if !name.is_empty() {
                names.insert(number.to_owned(), name.to_owned());
            }
            if line.starts_with("ob=") {
                current = names.get(number).cloned().unwrap_or_default();
            }
        } else if line.starts_with("calls=") {
            of_a_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost = line
                .split(' ')
                .nth(1)
                .and_then(|cost| cost.parse::<u64>().ok());
            if !std::mem::take(&mut of_a_call) {
                *sums.entry(current.clone()).or_default() += cost.unwrap_or(0);
            }
        }
    }
    sums
}

fn write(expected: &Path, counts: &BTreeMap<&str, Count>) -> Result<()> {
    let rows: BTreeMap<&str, Value> = counts
        .iter()
        .map(|(name, count)| {
            let row = json!({"limiter": count.limiter.round(), "added": count.added.round()});
            (*name, row)
        })
        .collect();
    fs::write(expected, format!("{:#}\n", json!(rows)))
        .with_context(|| format!("write {}", expected.display()))?;
    eprintln!("   recorded in {}", expected.display());
    Ok(())
}

/// Only the limiter's own instructions are compared: the rest are the C library's too, which differs between machines.
fn compare(expected: &Path, counts: &BTreeMap<&str, Count>) -> Result<()> {
    let text = fs::read_to_string(expected)
        .with_context(|| format!("read {}; --record makes it", expected.display()))?;
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text)?;
    let mut grown = Vec::new();
    for (name, count) in counts {
        let before = expected.get(*name).and_then(|row| row["limiter"].as_f64());
        let before = before.with_context(|| format!("no count of `{name}` is expected"))?;
        if count.limiter > before * (1.0 + TOLERATED) {
            grown.push(format!(
                "{name}: {:.0} instead of {before:.0}",
                count.limiter
            ));
        } else if count.limiter < before * (1.0 - TOLERATED) {
            eprintln!(
                "   {name} has shrunk to {:.0} from {before:.0}: record it with --record",
                count.limiter
            );
        }
    }
    if grown.is_empty() {
        return Ok(());
    }
    bail!("calls have grown by more than 5 %: {}", grown.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_summed_where_they_were_spent() {
        let text = "events: Ir\n\nob=(1) /bin/probe\nfl=(1) a.c\nfn=(1) main\n10 5\n+1 2\n\
                    cob=(2) /lib/libdivvy_preload.so\ncfn=(2) cuMemAlloc\ncalls=3 20\n* 300\n\
                    fn=(3) other\n12 1\n\nob=(2)\nfn=(2)\n20 290\n-3 10\n";
        let sums = by_object(text);
        assert_eq!(sums.get("/bin/probe"), Some(&8));
        assert_eq!(sums.get("/lib/libdivvy_preload.so"), Some(&300));
    }

    #[test]
    fn a_count_that_has_grown_is_a_failure_and_one_that_has_shrunk_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("counts.json");
        let counts = |limiter| {
            BTreeMap::from([(
                "pair",
                Count {
                    limiter,
                    added: 0.0,
                },
            )])
        };
        write(&file, &counts(1000.0)).unwrap();
        for (now, well) in [
            (1000.0, true),
            (1049.0, true),
            (1051.0, false),
            (500.0, true),
        ] {
            assert_eq!(compare(&file, &counts(now)).is_ok(), well, "{now}");
        }
    }
}
