//! Second tier: ten thousand jobs, and what yielding gains and costs.

use std::collections::BTreeMap;
use std::time::Instant;

use super::*;

/// Ten thousand jobs on eight GPUs, at several loads.
#[test]
fn ten_thousand_jobs_on_eight_gpus_take_seconds() {
    let kinds = [
        ("0.25", 3.0),
        ("0.5", 3.0),
        ("0.3", 1.0),
        ("1", 2.0),
        ("2", 1.0),
        ("10GiB", 1.0),
    ];
    for (load, backfill) in [
        (0.8, false),
        (1.1, false),
        (2.0, false),
        (0.8, true),
        (1.1, true),
        (2.0, true),
    ] {
        let mean = (0.75 + 1.5 + 0.3 + 2.0 + 2.0 + 0.25) / 11.0;
        let gap = 1_000_000.0 * mean / (8.0 * load);
        let source = Source::Drawn(drawn(&kinds, gap, 1_000_000.0, 10_000, 1));
        let scene = Scene {
            backfill,
            ..scene(&[Mode::Shared; 8], &["a"])
        };
        let began = Instant::now();
        let figures = simulate(&scene, &source, &mut |_| ()).unwrap();
        println!(
            "load {load} backfill {backfill}: {:?}, in use {:.3}, p50 {} s p90 {} s",
            began.elapsed(),
            figures.in_use,
            figures.all.wait.p50_ms / 1000,
            figures.all.wait.p90_ms / 1000
        );
    }
}

/// A head that only two of six GPUs can serve, and parts for all: what yielding gains, and what the longest wait
/// is.
#[test]
fn patterns_use_no_less_and_the_longest_wait_stays_bounded() {
    let mut scene = Scene {
        backfill: true,
        ..scene(&[Mode::Shared; 4], &["a"])
    };
    let mut second = node(&[Mode::Shared; 2]);
    for gpu in &mut second.gpus {
        gpu.model = "h200-141gb".to_owned();
    }
    scene.nodes.push(second);
    let sizes = [
        ("0.25", 1.0),
        ("0.3", 1.0),
        ("0.4", 1.0),
        ("0.5", 1.0),
        ("0.6", 1.0),
        ("0.7", 1.0),
        ("1", 1.0),
    ];
    for load in [0.8, 1.0] {
        let mut draw = drawn(&sizes, 0.0, 600_000.0, 1500, 4);
        let whole = Kind {
            job: Submission {
                models: vec!["h200-141gb".to_owned()],
                ..job(0, "2", 0)
            },
            weight: 0.6,
            ..draw.kinds[0].clone()
        };
        draw.kinds.push(whole);
        // 0.535 GPUs a job of the seven sizes, and two of the last kind.
        draw.gap_ms = 600_000.0 * (3.75 + 1.2) / 7.6 / (6.0 * load);
        let source = Source::Drawn(draw);
        let run = |yields_for_ms: Option<u64>| {
            let scene = Scene {
                yields_for_ms,
                ..scene.clone()
            };
            simulate(&scene, &source, &mut |_| ()).unwrap()
        };
        let plain = run(None);
        let mut by_minutes = BTreeMap::new();
        for minutes in [0, 60, 180, 360, 720, 1440] {
            let found = run(Some(minutes * 60_000));
            println!(
                "load {load}, {minutes} minutes: in use {:.4} ({:+.4}), mean {:.0} s ({:+.0}), p90 {} s ({}), longest {} s ({})",
                found.in_use,
                found.in_use - plain.in_use,
                found.all.wait.mean_ms / 1000.0,
                (found.all.wait.mean_ms - plain.all.wait.mean_ms) / 1000.0,
                found.all.wait.p90_ms / 1000,
                plain.all.wait.p90_ms / 1000,
                found.all.wait.longest_ms / 1000,
                plain.all.wait.longest_ms / 1000,
            );
            match minutes {
                0 => assert_eq!(found, plain),
                _ => assert!(found.all.wait.mean_ms < plain.all.wait.mean_ms),
            }
            // The longest wait grows by no more than the bound.
            let bound = plain.all.wait.longest_ms + minutes * 60_000;
            assert!(found.all.wait.longest_ms <= bound);
            assert!(found.in_use >= plain.in_use - 0.005);
            by_minutes.insert(minutes, found.in_use);
        }
        // Six hours, the planner's own, have the whole gain.
        assert!(by_minutes[&360] > by_minutes[&60]);
        assert!((by_minutes[&360] - by_minutes[&1440]).abs() < 0.002);
    }
}

/// GPUs, thousandths of each, and jobs of 6,203: the list `default` of Alibaba's cluster-trace-gpu-v2023 (Weng et al.,
/// USENIX ATC 2023), shares rounded to twentieths.
const OPENB: [(&str, f64); 16] = [
    ("0.1", 25.0),
    ("0.15", 71.0),
    ("0.2", 60.0),
    ("0.25", 98.0),
    ("0.3", 289.0),
    ("0.35", 58.0),
    ("0.45", 585.0),
    ("0.5", 19.0),
    ("0.55", 71.0),
    ("0.6", 62.0),
    ("0.65", 218.0),
    ("0.8", 1017.0),
    ("1", 3556.0),
    ("2", 15.0),
    ("4", 15.0),
    ("8", 44.0),
];

/// Seconds that its jobs ran: parts, one GPU, several. Of each, the middle of every twentieth.
const RAN: [[u64; 20]; 3] = [
    [
        25, 47, 65, 89, 124, 154, 200, 247, 339, 464, 596, 810, 947, 1157, 1496, 2368, 3661, 6486,
        12549, 40513,
    ],
    [
        45, 66, 107, 154, 197, 224, 286, 379, 531, 661, 842, 1082, 1344, 1698, 2160, 2941, 3879,
        4663, 8324, 37123,
    ],
    [
        23, 37, 62, 118, 150, 217, 425, 450, 521, 553, 768, 1071, 2321, 2933, 4319, 13054, 23925,
        61202, 101_998, 977_323,
    ],
];

/// Of the sizes up to `most` GPUs, jobs that load eight GPUs so much.
fn openb(load: f64, most: f64, jobs: u32) -> Draw {
    let mut draw = drawn(&[], 0.0, 0.0, jobs, 4);
    let (mut volume, mut weights) = (0.0, 0.0);
    for (asks, weight) in OPENB {
        let gpus: f64 = asks.parse().unwrap();
        if gpus > most {
            continue;
        }
        let ran = &RAN[usize::from(gpus >= 1.0) + usize::from(gpus > 1.0)];
        let ran: Vec<u64> = ran.iter().map(|seconds| seconds * 1000).collect();
        volume += weight * gpus * ran.iter().sum::<u64>() as f64 / ran.len() as f64;
        weights += weight;
        draw.kinds.push(Kind {
            job: job(0, asks, 0),
            weight,
            durations: Durations::Of(ran),
        });
    }
    draw.gap_ms = volume / weights / (8.0 * load);
    draw
}

/// Eight equal GPUs, on which every GPU serves the head: the time for which young jobs yield changes nothing that counts.
#[test]
fn yielding_costs_equal_gpus_nothing() {
    for (most, loads) in [(1.0, [0.85, 0.95, 1.05]), (8.0, [0.85, 0.95, 1.05])] {
        for load in loads {
            let source = Source::Drawn(openb(load, most, 3000));
            let run = |hours: Option<u64>| {
                let scene = Scene {
                    backfill: true,
                    yields_for_ms: hours.map(|hours| hours * 3_600_000),
                    ..scene(&[Mode::Shared; 8], &["a"])
                };
                let found = simulate(&scene, &source, &mut |_| ()).unwrap();
                let wait = found.all.wait;
                let hours = hours.map_or_else(|| "none".to_owned(), |hours| format!("{hours} h"));
                println!(
                    "up to {most} GPUs, load {load}, {hours}: in use {:.2} %, p50 {:.2} h, p90 {:.2} h, mean {:.2} h, longest {:.1} h",
                    found.in_use * 100.0,
                    wait.p50_ms as f64 / 3.6e6,
                    wait.p90_ms as f64 / 3.6e6,
                    wait.mean_ms / 3.6e6,
                    wait.longest_ms as f64 / 3.6e6,
                );
                found
            };
            let plain = run(None);
            for hours in [1, 3, 6, 12, 24] {
                let found = run(Some(hours));
                assert!((found.in_use - plain.in_use).abs() < 0.003);
                let (wait, before) = (found.all.wait, plain.all.wait);
                assert!(wait.mean_ms < before.mean_ms * 1.02);
                assert!(wait.longest_ms <= before.longest_ms + hours * 3_600_000);
            }
        }
    }
}
