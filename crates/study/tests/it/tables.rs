//! What users read of `simulate`'s studies of packing and of waits, recorded from fixed figures, and the words that it
//! refuses.

use std::ffi::OsString;

use divvy_cli::args::{self, Format};
use divvy_cli::render::{Item, View, list};
use divvy_cli::{error_output, rejection};
use divvy_study::render::{
    self, Figure, Packing, PackingKinds, PackingPoint, PackingScene, PackingTiming, Ratio, Spread,
    WaitDifference, WaitFigures, WaitForecast, WaitRow, WaitScene,
};
use insta::assert_snapshot;

fn view() -> View {
    View {
        wide: false,
        width: Some(80),
        now: "2026-03-04T12:00:00Z".parse().expect("a time"),
        zone: || jiff::tz::TimeZone::UTC,
        palette: Default::default(),
    }
}

fn drawn<T: Item>(items: &[T], format: Format, table: fn(&[T], View) -> String) -> String {
    list(items, format, view(), table).expect("figures are JSON")
}

fn spread(ratio: f64, sd: f64) -> Spread {
    Spread {
        ratio: Ratio(ratio),
        sd: (sd > 0.0).then_some(Ratio(sd)),
    }
}

fn packings(mode: &'static str) -> Vec<Packing> {
    let is_fill = mode == "fill";
    let point = |arrived_percent, ratio, difference: f64| PackingPoint {
        arrived_percent,
        unallocated: spread(ratio, 0.0021),
        difference: (difference != 0.0).then_some(Figure {
            ratio: Ratio(difference),
            ci95: Some(Ratio(0.0009)),
        }),
    };
    let points = |by: f64| {
        let all = [
            (90, 0.1002),
            (95, 0.0718),
            (100, 0.0714),
            (110, 0.0706),
            (130, 0.0692),
        ];
        all.map(|(percent, ratio)| point(percent, ratio + by, by))
            .to_vec()
    };
    let first = Packing {
        policy: "best-fit",
        scene: PackingScene {
            mode,
            nodes: 1213,
            gpus: 6212,
            requests: "pods.csv".to_owned(),
            order: "seeded",
            load: (!is_fill).then_some(Ratio(0.9)),
            arrivals: (!is_fill).then_some(62_120),
            runs: 10,
            seed: Some(42),
        },
        points: if is_fill { points(0.0) } else { Vec::new() },
        refused: spread(0.2835, 0.0015),
        difference: None,
        kinds: PackingKinds {
            fraction: Some(Ratio(0.3)),
            one: Some(Ratio(0.25)),
            several: Some(Ratio(0.4)),
            cpu_only: Some(Ratio(0.0)),
        },
        in_use: (!is_fill).then(|| spread(0.866, 0.004)),
        check: None,
        timing: None,
        training_seconds: None,
    };
    let learned = Packing {
        policy: "learned",
        points: if is_fill { points(-0.0338) } else { Vec::new() },
        refused: spread(0.2571, 0.0012),
        difference: (!is_fill).then_some(Figure {
            ratio: Ratio(-0.0264),
            ci95: Some(Ratio(0.0011)),
        }),
        timing: (!is_fill).then_some(PackingTiming {
            decisions: 10,
            p50_us: Ratio(8.25),
            p99_us: Ratio(61.5),
            max_us: Ratio(99.0),
        }),
        ..first.clone()
    };
    let mut all = vec![first, learned];
    all[0].timing = all[1].timing;
    all
}

fn wait_rows(is_compared: bool) -> Vec<WaitRow> {
    let scene = WaitScene {
        nodes: 1,
        gpus: 2,
        requests: "jobs.ndjson".to_owned(),
        jobs: 160,
        runs: 3,
        seed: Some(1),
        order: "strict",
        backfill: false,
        changes: is_compared
            .then(|| "+2xa100-80gb".to_owned())
            .into_iter()
            .collect(),
    };
    let figures = |p50: f64, started| WaitFigures {
        submitted: 90,
        started,
        refused: 90 - started,
        p50_s: Ratio(p50),
        p90_s: Ratio(p50 * 3.0),
        mean_s: Ratio(p50 * 1.4),
        longest_s: Ratio(p50 * 50.0),
        ..WaitFigures::default()
    };
    let row = |queue: Option<&str>, amount: Option<&str>, p50| WaitRow {
        queue: queue.map(str::to_owned),
        amount: amount.map(str::to_owned),
        scene: scene.clone(),
        before: figures(p50, 90),
        after: is_compared.then(|| figures(p50 / 5.0, if p50 > 5000.0 { 0 } else { 88 })),
        difference: (is_compared && amount.is_none()).then(|| WaitDifference {
            jobs: 88,
            shorter: 80,
            longer: 3,
            mean_s: Ratio(-p50),
            ci95_s: Some(Ratio(61.0)),
        }),
    };
    vec![
        row(None, None, 754.0),
        row(Some("whole"), None, 4321.0),
        row(Some("whole"), Some("1"), 5432.0),
        row(Some("quarter"), None, 0.0),
    ]
}

#[test]
fn packing() {
    let fill = packings("fill");
    assert_snapshot!(
        "packing_fill_80",
        drawn(&fill, Format::Table, render::packings)
    );
    assert_snapshot!(
        "packing_fill_wide",
        drawn(&fill, Format::Wide, render::packings)
    );
    assert_snapshot!(
        "packing_fill_json",
        drawn(&fill[1..], Format::Json, render::packings)
    );
    let departures = packings("departures");
    assert_snapshot!(
        "packing_departures_80",
        drawn(&departures, Format::Table, render::packings)
    );
    assert_snapshot!(
        "packing_departures_wide",
        drawn(&departures, Format::Wide, render::packings)
    );
    let mut given = fill[0].scene.clone();
    (given.mode, given.seed, given.arrivals) = ("departures", None, Some(160));
    let scenes = [&fill[0].scene, &departures[0].scene, &given].map(render::packing_scene);
    assert_snapshot!("packing_scenes", scenes.join("\n"));
}

#[test]
fn waits() {
    assert_snapshot!(
        "waits_80",
        drawn(&wait_rows(false), Format::Table, render::waits)
    );
    assert_snapshot!(
        "waits_wide",
        drawn(&wait_rows(false), Format::Wide, render::waits)
    );
    assert_snapshot!(
        "waits_compared_80",
        drawn(&wait_rows(true), Format::Table, render::waits)
    );
    assert_snapshot!(
        "waits_compared_wide",
        drawn(&wait_rows(true), Format::Wide, render::waits)
    );
    assert_snapshot!(
        "waits_json",
        drawn(&wait_rows(true)[..1], Format::Json, render::waits)
    );
    assert_snapshot!(
        "waits_name",
        drawn(&wait_rows(true), Format::Name, render::waits)
    );
    assert_snapshot!("waits_scene", render::wait_scene(&wait_rows(true)[0].scene));
    let forecast = WaitForecast {
        queue: "half".to_owned(),
        amount: "0.5".to_owned(),
        runs: 200,
        seed: 1,
        starts_now: false,
        stuck: 2,
        p50_s: Ratio(754.0),
        p90_s: Ratio(5000.0),
        longest_s: Ratio(90_000.0),
    };
    assert_snapshot!(
        "waits_forecast",
        drawn(&[forecast], Format::Table, render::wait_forecasts)
    );
}

#[test]
fn tables_fit_the_terminal() {
    for table in [
        drawn(&packings("fill"), Format::Table, render::packings),
        drawn(&packings("departures"), Format::Table, render::packings),
        drawn(&wait_rows(false), Format::Table, render::waits),
        drawn(&wait_rows(true), Format::Table, render::waits),
    ] {
        for line in table.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn flags_with_wrong_values_are_refused_with_what_to_write() {
    let refused = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = args::parse(&words).expect_err("a value is wrong");
        error_output::render(&rejection::from_clap(&error, &words), false)
    };
    let told = [
        "divvy simulate --policy best-fi",
        "divvy simulate --load 0",
        "divvy simulate --load nan",
        "divvy simulate --arrivals 3",
        "divvy simulate --runs 0",
        "divvy simulate --seed -1",
        "divvy simulate --mode mig",
    ]
    .map(|line| format!("$ {line}\n{}", refused(line)));
    assert_snapshot!("usage", told.join("\n\n"));
}
