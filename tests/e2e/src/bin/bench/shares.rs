//! Shares of compute time: what tenants of one simulated GPU get of it, in the GPU's own time, and what taking turns costs.
//!
//! Each scene is run twice, with turns and without (`--compute none`). A tenant's part is what it launched in a stretch of time;
//! its share is its part of all parts, so that a scene that leaves the GPU idle is judged by how it divides what it uses.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use divvy_e2e::{Dialog, Home, Programs};
use divvy_testkit::markers;

use crate::report::{Report, Row};

const BEGIN: &str = "<!-- made by cargo xtask bench --only shares: begin -->\n";
const END: &str = "<!-- made by cargo xtask bench --only shares: end -->\n";

/// What one tenant is and does: thousandths of the GPU, processes, load.
#[derive(Clone, Copy)]
struct Part {
    share: u32,
    processes: usize,
    load: Load,
}

/// A command of the tenant's; its second word is what its kernels take, in microseconds.
type Load = &'static str;

const SYNC: Load = "loop 200 0";
const FLOOD: Load = "flood 200";
const LONG: Load = "flood 50000";
const HUGE: Load = "loop 500000 0";
const GRAPHS: Load = "graphs 200 10";
const BURST: Load = "burst 200 20 180";
const REQUESTS: Load = "loop 1000 3000";
const LIGHT: Load = "loop 200 600";

struct Scene {
    name: String,
    parts: Vec<Part>,
    /// Whether all want the GPU all the time, so that shares can be judged.
    is_saturated: bool,
    seconds: usize,
}

/// What became of a scene.
struct Outcome {
    /// Part of the GPU per tenant and tenth of a second.
    used: Vec<Vec<f64>>,
    /// The first tenant's p99 in microseconds, where it counts that.
    p99: f64,
}

const WARM_UP: usize = 2;

/// How often a lone tenant is measured with and without turns.
const ALONE: usize = 9;

fn part(share: u32, load: Load) -> Part {
    Part {
        share,
        processes: 1,
        load,
    }
}

fn scenes(quick: bool) -> Vec<Scene> {
    let long = if quick { 3 } else { 10 };
    let scene = |name: String, parts: Vec<Part>| Scene {
        name,
        parts,
        is_saturated: true,
        seconds: long,
    };
    let mut all = Vec::new();
    for (one, other) in [(100, 900), (250, 750), (500, 500)] {
        for (name, a, b) in [
            ("floods of 0.2 ms", FLOOD, FLOOD),
            ("synchronous loops of 0.2 ms", SYNC, SYNC),
            ("a synchronous loop, a flood", SYNC, FLOOD),
            ("kernels of 50 ms, a flood", LONG, FLOOD),
            ("graphs of ten kernels, a flood", GRAPHS, FLOOD),
        ] {
            let name = format!("{}:{} {name}", one / 10, other / 10);
            all.push(scene(name, vec![part(one, a), part(other, b)]));
        }
    }
    for (one, other) in [(100, 900), (250, 750), (500, 500)] {
        all.push(Scene {
            seconds: long * 3,
            ..scene(
                format!("{}:{} kernels of 500 ms, a flood", one / 10, other / 10),
                vec![part(one, HUGE), part(other, FLOOD)],
            )
        });
    }
    for (one, other) in [(100, 900), (250, 750), (500, 500)] {
        let four = Part {
            processes: 4,
            ..part(one, FLOOD)
        };
        all.push(scene(
            format!("{}:{} four processes, one process", one / 10, other / 10),
            vec![four, part(other, FLOOD)],
        ));
    }
    for (name, load) in [
        ("floods", FLOOD),
        ("synchronous loops of 0.2 ms", SYNC),
        ("kernels of 50 ms", LONG),
        ("graphs of ten kernels", GRAPHS),
    ] {
        all.push(scene(format!("8 × 12.5 {name}"), vec![part(125, load); 8]));
    }
    for (name, parts) in [
        (
            "50:50 bursts of 20 ms in 200, a flood",
            vec![part(500, BURST), part(500, FLOOD)],
        ),
        (
            "25:75 requests of 1 ms in 4, a flood",
            vec![part(250, REQUESTS), part(750, FLOOD)],
        ),
        ("3 × 25 loops of 0.2 ms in 0.8", vec![part(250, LIGHT); 3]),
    ] {
        all.push(Scene {
            is_saturated: false,
            ..scene(name.to_owned(), parts)
        });
    }
    all
}

/// Runs a scene with the given compute mode for every tenant.
fn play(programs: &Programs, scene: &Scene, compute: &str, seconds: usize) -> Result<Outcome> {
    let home = Home::with(programs.clone(), Some("a100-40gb:1")).slices_in_memory();
    let _daemon = home.daemon(&[]);
    let (own, tenant) = (home.program("bench"), home.program("tenant"));
    let mut all = Vec::new();
    for part in &scene.parts {
        let (share, copies) = (format!("0.{:03}", part.share), part.processes.to_string());
        let mut dialog = Dialog::start(&mut home.divvy_command(&[
            "run",
            "-g",
            &share,
            "--compute",
            compute,
            "--",
            &own,
            "crowd",
            &copies,
            &tenant,
        ]));
        ensure!(dialog.line().starts_with("ready"), "the tenants start");
        all.push(dialog);
    }
    all[0].say("clock");
    let start = numbers(&all[0].line())
        .first()
        .and_then(|all| all.first().copied());
    let start = start.context("a tenant tells the time")?;
    for (dialog, part) in all.iter_mut().zip(&scene.parts) {
        let ms = (WARM_UP + seconds) * 1000 + 500;
        dialog.say(&format!("{} {ms}", part.load));
        dialog.say(&format!("buckets {start}"));
    }
    let (mut used, mut p99) = (Vec::new(), 0.0);
    for (dialog, part) in all.iter_mut().zip(&scene.parts) {
        let answer = numbers(&dialog.line());
        if used.is_empty() {
            p99 = answer
                .first()
                .and_then(|answer| answer.get(2))
                .copied()
                .unwrap_or(0.0);
        }
        let kernels = numbers(&dialog.line());
        let tenths = kernels.iter().map(Vec::len).min().unwrap_or(0);
        let kernel_us = part.load.split_whitespace().nth(1);
        let kernel_us: f64 = kernel_us.context("a load names its kernel")?.parse()?;
        let one = kernel_us / 100_000.0;
        let sum = |tenth: usize| kernels.iter().map(|each| each[tenth]).sum::<f64>() * one;
        used.push((0..tenths).map(sum).collect());
    }
    let has_worked = |parts: &Vec<f64>| parts.iter().any(|part| *part > 0.0);
    ensure!(
        used.iter().all(has_worked),
        "{}: a tenant did nothing",
        scene.name
    );
    Ok(Outcome { used, p99 })
}

/// What each process of a crowd answered.
fn numbers(line: &str) -> Vec<Vec<f64>> {
    let words = |text: &str| {
        text.split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect()
    };
    line.trim().split('|').map(words).collect()
}

impl Outcome {
    /// The part of the GPU that each tenant used in some seconds.
    fn parts(&self, from: usize, seconds: usize) -> Vec<f64> {
        let within = |used: &Vec<f64>| {
            let tenths = from * 10..((from + seconds) * 10).min(used.len());
            used[tenths].iter().sum::<f64>() / (seconds as f64 * 10.0)
        };
        self.used.iter().map(within).collect()
    }

    fn total(&self, seconds: usize) -> f64 {
        self.parts(WARM_UP, seconds).iter().sum()
    }

    /// Mean over tenants and stretches of how far shares are off, in points.
    fn error(&self, scene: &Scene, stretch: usize) -> f64 {
        let asked: u32 = scene.parts.iter().map(|part| part.share).sum();
        let mut errors = Vec::new();
        for from in (WARM_UP..=WARM_UP + scene.seconds - stretch).step_by(stretch) {
            let parts = self.parts(from, stretch);
            let all: f64 = parts.iter().sum();
            for (used, part) in parts.iter().zip(&scene.parts) {
                let share = f64::from(part.share) / f64::from(asked);
                errors.push((used / all.max(1e-9) - share).abs() * 100.0);
            }
        }
        errors.iter().sum::<f64>() / errors.len() as f64
    }

    /// Jain's index of fairness: 1 when all have the same.
    fn jain(&self, seconds: usize) -> f64 {
        let parts = self.parts(WARM_UP, seconds);
        let (sum, squares) = (
            parts.iter().sum::<f64>(),
            parts.iter().map(|part| part * part).sum::<f64>(),
        );
        sum * sum / (parts.len() as f64 * squares)
    }
}

/// What a lone tenant uses of the GPU with turns, and without: one right after the other and each first in turn, so that a machine
/// that is slower for a while slows both.
fn in_turns(programs: &Programs, scene: &Scene, rounds: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut used = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for side in [round % 2, 1 - round % 2] {
            let outcome = play(programs, scene, ["fair", "none"][side], scene.seconds)?;
            used[side].push(outcome.total(scene.seconds));
        }
    }
    Ok(used.into())
}

/// What is to be measured.
pub struct Wish<'a> {
    pub quick: bool,
    /// Only scenes whose names begin so.
    pub scene: Option<&'a str>,
    /// Where the table goes, too.
    pub page: Option<&'a Path>,
}

impl Wish<'_> {
    fn includes(&self, name: &str) -> bool {
        self.scene.is_none_or(|scene| name.starts_with(scene))
    }
}

/// Plays the scenes, one after the other.
pub fn measure(programs: &Programs, wish: &Wish<'_>, report: &mut Report) -> Result<()> {
    let quick = wish.quick;
    let mut lines = vec![
        "| tenants | share error over 10 s | over 1 s | Jain's index | throughput, of that without leases |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    let wanted = |scene: &Scene| wish.includes(&scene.name);
    for scene in scenes(quick).into_iter().filter(wanted) {
        let (with, without) = (
            play(programs, &scene, "fair", scene.seconds)?,
            play(programs, &scene, "none", scene.seconds.min(5))?,
        );
        let ratio = with.total(scene.seconds) / without.total(scene.seconds.min(5));
        let stretch = scene.seconds.min(10);
        let (ten, one) = (with.error(&scene, stretch), with.error(&scene, 1));
        let equal = scene
            .parts
            .iter()
            .all(|part| part.share == scene.parts[0].share);
        let judged = |text: String| {
            if scene.is_saturated {
                text
            } else {
                "–".to_owned()
            }
        };
        let points = |error: f64| judged(format!("{error:.2} points"));
        let jain = if equal {
            judged(format!("{:.4}", with.jain(scene.seconds)))
        } else {
            "–".to_owned()
        };
        lines.push(format!(
            "| {} | {} | {} | {jain} | {:.1} % |",
            scene.name,
            points(ten),
            points(one),
            ratio * 100.0
        ));
        let note = format!(
            "{} over 1 s; {:.1} % of the throughput without leases",
            points(one),
            ratio * 100.0
        );
        let row = if scene.is_saturated {
            ten
        } else {
            ratio * 100.0
        };
        let unit = if scene.is_saturated {
            "points off"
        } else {
            "% used"
        };
        report.add(Row::alone(scene.name.clone(), unit, vec![row], note));
    }
    let alone = |name: &str, load| Scene {
        name: name.to_owned(),
        parts: vec![part(250, load)],
        is_saturated: true,
        seconds: if quick { 2 } else { 5 },
    };
    let lone = [
        alone("alone, a flood", FLOOD),
        alone("alone, a synchronous loop", SYNC),
    ];
    for scene in lone.iter().filter(|scene| wanted(scene)) {
        let rounds = if quick { 1 } else { ALONE };
        let (with, without) = in_turns(programs, scene, rounds)?;
        let ratio = |(with, without): (&f64, &f64)| with / without * 100.0;
        let mut ratios: Vec<f64> = with.iter().zip(&without).map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, half, most) = (ratios[0], ratios[rounds / 2], ratios[rounds - 1]);
        lines.push(format!("| {} | | | | {half:.1} % |", scene.name));
        report.add(Row {
            name: scene.name.clone(),
            unit: "of the GPU",
            ours: with,
            floor: without,
            floor_is: "without leases",
            note: format!("{half:.2} %, {least:.2} to {most:.2}"),
        });
    }

    let requests = alone("p99 of 0.25 beside a flood", REQUESTS);
    if wanted(&requests) {
        lines.push(String::new());
        lines.extend(beside_a_flood(programs, requests, report)?);
    }
    match wish.page {
        Some(page) => {
            let table = format!("{}\n", lines.join("\n"));
            Ok(markers::rewrite(page, (BEGIN, END), &table)?)
        }
        None => Ok(()),
    }
}

/// How long requests take, alone and beside a flood, as a table.
fn beside_a_flood(
    programs: &Programs,
    requests: Scene,
    report: &mut Report,
) -> Result<Vec<String>> {
    let beside = Scene {
        name: requests.name.clone(),
        parts: vec![part(250, REQUESTS), part(750, FLOOD)],
        ..requests
    };
    let p99 = |scene: &Scene, mode| -> Result<f64> {
        Ok(play(programs, scene, mode, scene.seconds)?.p99 / 1000.0)
    };
    let (own, whole) = (p99(&requests, "strict")?, p99(&requests, "fair")?);
    let (shared, without) = (p99(&beside, "fair")?, p99(&beside, "none")?);
    let mut table = vec![
        "| requests of 1 ms, one every 4 ms, at a share of 0.25 | p99 |".to_owned(),
        "|---|---|".to_owned(),
    ];
    for (scene, milliseconds) in [
        ("alone, `strict`: held to the quarter", own),
        ("alone, `fair`: the whole GPU", whole),
        ("beside a flood, `fair`", shared),
        ("beside a flood, without leases", without),
    ] {
        table.push(format!("| {scene} | {milliseconds:.1} ms |"));
    }
    report.add(Row {
        name: requests.name,
        unit: "ms",
        ours: vec![shared],
        floor: vec![own],
        floor_is: "the same alone at strict 0.25",
        note: format!("{without:.1} ms without leases"),
    });
    Ok(table)
}
