//! `divvy simulate` through the real program: no daemon, no GPU, figures that are known, and refusals that say where the fault is.

use std::fs;

use divvy_e2e::{CommandOutput, Home};
use serde_json::Value;

fn simulate(home: &Home, flags: &[&str]) -> CommandOutput {
    home.divvy(&[&["simulate"], flags].concat())
}

/// In percent, to two decimals.
fn percent(item: &Value, figure: &str) -> f64 {
    let ratio = item[figure]["ratio"].as_f64();
    (ratio.unwrap_or_else(|| panic!("no {figure} in {item}")) * 1e4).round() / 1e2
}

/// The figures that a Markov chain was solved for by another program: uniform mix, load 0.8, one A100.
#[test]
fn one_gpu_is_solved_exactly_without_a_daemon() {
    let home = Home::new("a100-40gb:1");
    let flags = [
        "--gpus",
        "a100-40gb:1",
        "--exact",
        "--load",
        "0.8",
        "-o",
        "json",
    ];
    let said = simulate(&home, &flags).ok();
    assert_eq!(said.json()["kind"], "SimulationList");
    let refused: Vec<(String, f64)> = said
        .items()
        .iter()
        .map(|item| (item["policy"].to_string(), percent(item, "refused")))
        .collect();
    let expected = [
        ("first-fit", 39.58),
        ("driver-default", 37.21),
        ("least-loss", 37.21),
        ("optimal", 37.19),
        ("free-repack", 35.73),
    ];
    assert_eq!(
        refused,
        expected.map(|(policy, refused)| (format!("{policy:?}"), refused))
    );
    assert_eq!(percent(&said.items()[0], "by_layout"), 7.36);
    assert_eq!(percent(&said.items()[0], "blocked"), 35.52);
    assert!(!home.path().exists(), "a simulation made a home");
}

#[test]
fn equal_seeds_print_equal_figures_and_say_what_they_are_of() {
    let home = Home::new("a100-40gb:1");
    let flags = [
        "--gpus",
        "h100-80gb:4",
        "--mix",
        "1g=5,1g.20gb=2,7g=1",
        "--arrivals",
        "500",
        "--runs",
        "2",
    ];
    let once = simulate(&home, &flags).ok();
    assert_eq!(once.stdout, simulate(&home, &flags).ok().stdout);
    assert_ne!(
        once.stdout,
        simulate(&home, &[&flags[..], &["--seed", "9"]].concat())
            .ok()
            .stdout
    );
    assert!(
        once.stderr
            .contains("4 × h100-80gb, 1g=5,1g.20gb=2,7g=1, load 0.70: 2 runs of 500"),
        "{}",
        once.stderr
    );
    for word in ["POLICY", "first-fit", "planner", "free-repack", " ±"] {
        assert!(once.stdout.contains(word), "{word}: {}", once.stdout);
    }
}

#[test]
fn a_trace_is_replayed_as_it_is_or_at_another_load() {
    let home = Home::new("a100-40gb:1");
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("jobs.csv");
    let trace = trace.to_str().expect("a path in UTF-8");
    // The 3g lies at 0 under first-fit, where the 4g wants to be; the last whole GPU comes when all have gone.
    let text = "arrival,profile,duration\n0,3g,100\n10,4g,50\n300,7g,100\n";
    fs::write(trace, text).expect("a file");
    let flags = [
        trace,
        "--gpus",
        "a100-40gb:1",
        "--policy",
        "first-fit,planner",
        "-o",
        "json",
    ];
    let items = simulate(&home, &flags).ok().items();
    assert_eq!(
        items
            .iter()
            .map(|item| percent(item, "refused"))
            .collect::<Vec<_>>(),
        [33.33, 0.0]
    );
    assert_eq!(percent(&items[0], "by_layout"), 33.33);
    assert_eq!(items[0]["scene"]["arrivals"], 3);
    // Ten times closer together, the third comes while the first two are there.
    let load = items[0]["scene"]["load"].as_f64().expect("a load") * 10.0;
    let load = load.to_string();
    let closer = [&flags[..], &["--load", &load]].concat();
    let items = simulate(&home, &closer).ok().items();
    assert_eq!(percent(&items[1], "refused"), 33.33);
}

#[test]
fn jobs_that_have_run_are_a_trace() {
    let home = Home::new("a100-40gb:1");
    let _daemon = home.daemon(&[]);
    for _ in 0..2 {
        let id = home.submit(&["-g", "0.25"], &["true"]);
        home.ended(&id);
    }
    let jobs = home.divvy(&["ps", "-a", "-o", "ndjson"]).ok().stdout;
    let trace = home.scratch().join("jobs.ndjson");
    fs::write(&trace, jobs).expect("a file");
    let trace = trace.to_str().expect("a path in UTF-8");
    let items = simulate(&home, &[trace, "--gpus", "a100-40gb:1", "-o", "json"])
        .ok()
        .items();
    assert_eq!(items[0]["scene"]["arrivals"], 2);
    assert_eq!(items[0]["profiles"][0]["profile"], "1g.10gb");
}

/// Profiles that exclude each other have no closed form for free-repack.
#[test]
fn a_policy_that_nobody_asked_for_is_left_out_where_it_is_not_known() {
    let home = Home::new("a100-40gb:1");
    let mix = [
        "--mix",
        "1g=1,1g.5gb+me=1",
        "--arrivals",
        "500",
        "-o",
        "name",
    ];
    let said = simulate(&home, &mix).ok();
    let named = said.stdout.lines().collect::<Vec<_>>();
    assert_eq!(
        named,
        [
            "first-fit",
            "driver-default",
            "least-loss",
            "planner",
            "idle-repack"
        ]
    );
    assert!(
        said.stderr.contains("skipped: free-repack"),
        "{}",
        said.stderr
    );
}

#[test]
fn what_cannot_be_simulated_is_refused_with_what_to_do() {
    let home = Home::new("a100-40gb:1");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let wrong = file("wrong.csv", "arrival,profile,duration\n0,1g,5\n1,9g,5\n");
    let empty = file("empty.csv", "arrival,profile,duration\n");
    let at_once = file("at_once.csv", "arrival,profile,duration\n3,1g,5\n3,1g,5\n");
    let cases: &[(&[&str], &str)] = &[
        (&["--gpus", "v100:2"], "unknown MIG model `v100`"),
        (&["--gpus", "a100-40gb:0"], "0 is not a number of GPUs"),
        (&["--gpus", "a100-40gb:99999999"], "from 1 to 10000"),
        (
            &["--gpus", "a100-40gb:1,a30-24gb:1"],
            "only one model is possible",
        ),
        (
            &["--gpus", "a30-24gb:2", "--mix", "uniform"],
            "no MIG profile `3g`",
        ),
        (&["--mix", "unifrom"], "unknown mix `unifrom`"),
        (&["--mix", "1g=x"], "`1g=x`: not a size"),
        (&["--exact"], "--exact solves one GPU, not 8"),
        (
            &["--exact", "--gpus", "a100-40gb:1", "--policy", "planner"],
            "--exact does not support planner",
        ),
        (
            &["--policy", "optimal"],
            "optimal is known for a single GPU only",
        ),
        (
            &["--mix", "1g=1,1g.5gb+me=1", "--policy", "free-repack"],
            "free-repack is not known for these profiles",
        ),
        (&["/nonexistent/trace"], "cannot read /nonexistent/trace"),
        (
            &[&wrong],
            "wrong.csv: line 3: this GPU has no MIG profile for 9g",
        ),
        (&[&empty], "empty.csv: no requests found"),
        (&[&at_once, "--load", "0.5"], "--load is not possible"),
    ];
    for (flags, said) in cases {
        let refused = simulate(&home, flags).exits(2);
        assert!(refused.stdout.is_empty(), "{flags:?}: {}", refused.stdout);
        for word in [said, "error: ", "hint: "] {
            assert!(
                refused.stderr.contains(word),
                "{flags:?}: {}",
                refused.stderr
            );
        }
    }
}
