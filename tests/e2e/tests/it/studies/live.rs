//! Forecasts, and studies of a daemon's own jobs, with the rules of that daemon.

use super::*;

#[test]
fn a_job_is_forecast_from_a_list_and_from_the_daemon() {
    let home = Home::new("a100-80gb:1");
    let listed = "simulate/history.ndjson --gpus a100-80gb:2 --job";
    let item = &simulate(&home, &format!("{listed} -g 0.5 -q half -o json"))
        .ok()
        .items()[0];
    assert_eq!(
        (&item["starts_now"], &item["runs"]),
        (&Value::Bool(false), &Value::from(200))
    );
    assert!(
        item["p90_s"].as_f64() >= item["p50_s"].as_f64() && item["p50_s"].as_f64() > Some(0.0),
        "{item}"
    );
    let never = simulate(&home, &format!("{listed} -g 4")).exits(2);
    assert!(
        never.stderr.contains("4 never starts in queue default"),
        "{}",
        never.stderr
    );
    let none = simulate(&home, "--job -g 0.5").exits(7);
    assert!(
        none.stderr
            .contains("hint: name a list of jobs, or start a daemon"),
        "{}",
        none.stderr
    );
    let _daemon = home.daemon(&[]);
    for _ in 0..3 {
        let id = home.submit(&["-g", "0.25"], &["true"]);
        home.ended(&id);
    }
    let item = &simulate(&home, "--job -g 0.5 -o json").ok().items()[0];
    assert_eq!(
        (&item["starts_now"], &item["p90_s"]),
        (&Value::Bool(true), &Value::from(0.0))
    );
    let rows = simulate(&home, "--gpus +2xa100-80gb -o json").ok().items();
    assert_eq!(
        (&rows[0]["scene"]["gpus"], &rows[0]["before"]["submitted"]),
        (&Value::from(1), &Value::from(3))
    );
}

/// A daemon with a job of three quarters, and a half in front of the queue.
fn blocked(home: &Home, flags: &[&str]) -> divvy_testkit::Daemon {
    let daemon = home.daemon(flags);
    // Durations for the forecast.
    for _ in 0..3 {
        let id = home.submit(&["-g", "0.25"], &["true"]);
        home.ended(&id);
    }
    let _ = home.submit(&["-g", "0.75"], &["sleep", "3600"]);
    let _ = home.submit(&["-g", "0.5"], &["true"]);
    daemon
}

/// Behind a half that waits, a quarter starts now only with backfill. The forecast follows the daemon's flag, and
/// `--rules` describes another daemon.
#[test]
fn the_daemons_own_rules_are_those_of_its_forecast() {
    let starts = |home: &Home, more: &str| {
        let words = format!("--job -g 0.25 -o json {more}");
        simulate(home, &words).ok().items()[0]["starts_now"] == true
    };
    let rules = |home: &Home| {
        let items = simulate(home, "--gpus +1xa100-80gb -o json").ok().items();
        let scene = &items[0]["scene"];
        (scene["order"].clone(), scene["backfill"].clone())
    };
    let home = Home::new("a100-80gb:1");
    let _daemon = blocked(&home, &["--set", "backfill=true"]);
    assert_eq!(rules(&home), ("strict".into(), true.into()));
    assert!(starts(&home, ""), "the daemon starts it with backfill");
    assert!(!starts(&home, "--rules fairness"));
    let plain = Home::new("a100-80gb:1");
    let _plain = blocked(&plain, &["--order-fairness"]);
    assert_eq!(rules(&plain), ("fairness".into(), false.into()));
    assert!(!starts(&plain, ""), "the job would overtake a half");
    assert!(starts(&plain, "--rules backfill"));
}
