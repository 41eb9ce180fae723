//! What users read of `simulate`, recorded from fixed figures, and the words that it refuses.

use std::ffi::OsString;

use divvy_cli::args::{self, Format};
use divvy_cli::error_output;
use divvy_cli::render::{
    self, Figure, Method, ProfileFigures, Ratio, Scene, Simulation, View, simulations,
};
use insta::assert_snapshot;

fn figure(ratio: f64, ci95: f64) -> Figure {
    Figure {
        ratio: Ratio(ratio),
        ci95: (ci95 > 0.0).then_some(Ratio(ci95)),
    }
}

fn scene(method: Method) -> Scene {
    let drawn = method == Method::Events;
    Scene {
        model: "a100-40gb".to_owned(),
        gpus: if method == Method::Exact { 1 } else { 8 },
        method,
        requests: if method == Method::Trace {
            "jobs.csv"
        } else {
            "1g=2,7g=1"
        }
        .to_owned(),
        load: Ratio(0.7),
        arrivals: match method {
            Method::Events => Some(20_000),
            Method::Trace => Some(1_234),
            Method::Exact => None,
        },
        runs: drawn.then_some(8),
        seed: drawn.then_some(1),
    }
}

fn profiles(small: f64, large: f64) -> Vec<ProfileFigures> {
    let of = |profile: &str, asked, refused| ProfileFigures {
        profile: profile.to_owned(),
        asked: Ratio(asked),
        refused: Ratio(refused),
    };
    vec![
        of("1g.5gb", 2.0 / 3.0, small),
        of("7g.40gb", 1.0 / 3.0, large),
    ]
}

fn figures(method: Method) -> Vec<Simulation> {
    let exact = method == Method::Exact;
    // A single run has no interval.
    let within = |ci95: f64| if method == Method::Events { ci95 } else { 0.0 };
    let first = Simulation {
        policy: if exact {
            "first-fit"
        } else {
            "demand-weighted"
        },
        scene: scene(method),
        refused: figure(0.1918, within(0.0021)),
        by_layout: Some(figure(0.0225, within(0.0011))),
        in_use: figure(0.6025, within(0.0044)),
        difference: None,
        reused: None,
        blocked: exact.then(|| figure(0.355, 0.0)),
        first_by_layout: exact.then(|| figure(0.179, 0.0)),
        profiles: profiles(0.01, 0.25),
    };
    let better = Simulation {
        policy: if exact { "optimal" } else { "planner" },
        refused: figure(0.0766, within(0.0018)),
        by_layout: Some(figure(0.0082, within(0.0005))),
        difference: Some(figure(-0.1152, within(0.0004))),
        reused: (!exact).then(|| figure(0.734_866_325, within(0.0098))),
        blocked: exact.then(|| figure(0.126, 0.0)),
        first_by_layout: exact.then(|| figure(0.032, 0.0)),
        profiles: profiles(0.005, 0.22),
        ..first.clone()
    };
    let bound = Simulation {
        policy: "free-repack",
        refused: figure(0.0558, within(0.0019)),
        by_layout: None,
        in_use: figure(0.6441, within(0.0049)),
        difference: Some(figure(-0.136, within(0.0012))),
        reused: None,
        blocked: None,
        first_by_layout: None,
        profiles: profiles(0.0, 0.18),
        ..first.clone()
    };
    vec![first, better, bound]
}

fn list(method: Method, format: Format, width: usize) -> String {
    let view = View {
        wide: false,
        width: Some(width),
        now: "2026-03-04T12:00:00Z".parse().expect("a time"),
        zone: || jiff::tz::TimeZone::UTC,
        palette: Default::default(),
    };
    render::list(&figures(method), format, view, simulations).expect("figures are JSON")
}

#[test]
fn views() {
    assert_snapshot!("table_80", list(Method::Events, Format::Table, 80));
    assert_snapshot!("wide", list(Method::Events, Format::Wide, 80));
    assert_snapshot!("trace_80", list(Method::Trace, Format::Table, 80));
    assert_snapshot!("exact_80", list(Method::Exact, Format::Table, 80));
    assert_snapshot!("exact_wide", list(Method::Exact, Format::Wide, 80));
    assert_snapshot!("json", list(Method::Events, Format::Json, 80));
    assert_snapshot!("ndjson", list(Method::Exact, Format::Ndjson, 80));
    assert_snapshot!("name", list(Method::Events, Format::Name, 80));
    let scenes = [Method::Events, Method::Trace, Method::Exact].map(scene);
    let told: Vec<String> = scenes.iter().map(render::scene).collect();
    assert_snapshot!("scenes", told.join("\n"));
}

#[test]
fn a_table_fits_the_terminal() {
    for method in [Method::Events, Method::Trace, Method::Exact] {
        for line in list(method, Format::Table, 80).lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn words_that_mean_nothing_are_refused() {
    let refused = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = args::parse(&words).expect_err("these words mean nothing");
        error_output::render(&error_output::from_clap(&error, &words), false)
    };
    let told: Vec<String> = [
        "divvy simulate --policy least-lost",
        "divvy simulate --load 0",
        "divvy simulate --load nan",
        "divvy simulate --arrivals 3",
        "divvy simulate --runs 0",
        "divvy simulate --seed -1",
        "divvy simulate jobs.csv --mix small",
        "divvy simulate jobs.csv --exact",
        "divvy simulate --exact --runs 3",
    ]
    .map(|line| format!("$ {line}\n{}", refused(line)))
    .to_vec();
    assert_snapshot!("usage", told.join("\n\n"));
}
