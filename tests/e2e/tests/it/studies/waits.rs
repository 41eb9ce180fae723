//! Waits in queues: each question on the same jobs.

use super::*;

#[test]
fn a_question_compares_the_same_jobs_before_and_after() {
    let home = Home::new("a100-40gb:1");
    let plain = simulate(&home, &format!("{WAITS} -o json")).ok();
    assert_eq!(plain.json()["kind"], "WaitList");
    let p50 = |item: &Value, when: &str| item[when]["p50_s"].as_f64().expect("a time");
    let mean = |item: &Value| item["difference"]["mean_s"].as_f64().expect("a difference");
    let asked = |question: &str| {
        simulate(&home, &format!("{WAITS} {question} -o json"))
            .ok()
            .items()
    };
    let before = p50(&plain.items()[0], "before");
    assert!(before > 0.0, "jobs wait: {}", plain.stdout);
    let words = WAITS.replace("a100-80gb:2", "a100-80gb:2,+2xa100-80gb");
    let more = simulate(&home, &format!("{words} -o json")).ok().items();
    assert_eq!(more[0]["scene"]["changes"][0], "+2xa100-80gb");
    assert_eq!(p50(&more[0], "before"), before);
    assert!(
        mean(&more[0]) < 0.0
            && more[0]["difference"]["longer"].as_u64() < more[0]["difference"]["shorter"].as_u64()
    );
    let of = |items: &[Value], queue: &str| -> Value {
        items
            .iter()
            .find(|item| item["queue"] == queue && item["amount"].is_null())
            .expect("a queue")
            .clone()
    };
    let first = asked("--queue-first quarter");
    assert!(mean(&of(&first, "quarter")) < 0.0 && mean(&of(&first, "pair")) >= 0.0);
    assert!(
        mean(&asked("--eighths")[0]) < 0.0,
        "whole GPUs with little memory become eighths"
    );
    assert!(
        asked("--eighths=parts")[0]["difference"]["mean_s"].as_f64() == Some(0.0),
        "quarters are eighths"
    );
    assert_eq!(
        mean(&asked("--backfill on")[0]),
        0.0,
        "quarters could delay each half"
    );
    // A quarter beside three quarters delays no half.
    let fixed = WAITS.replace("pair,whole,half", "whole=0.75,half,pair");
    let asked_fixed = |question: &str| {
        simulate(&home, &format!("{fixed} {question} -o json"))
            .ok()
            .items()
    };
    let backfill = asked_fixed("--backfill on");
    assert_eq!(backfill[0]["scene"]["changes"][0], "with backfill");
    assert!(mean(&of(&backfill, "quarter")) < 0.0, "{}", backfill[0]);
    let without = asked_fixed("--rules backfill --backfill off");
    assert_eq!(mean(&without[0]), -mean(&backfill[0]));
    let mig = asked("--gpu-mode 1=mig");
    assert!(
        mig[0]["after"]["refused"].as_u64() > mig[0]["before"]["refused"].as_u64(),
        "pairs need two shared GPUs"
    );
    let quota = asked("--projects vision=1,speech=1 --quota vision=2");
    let started = |when: &str| of(&quota, "pair")[when]["started"].as_u64();
    assert_eq!(
        started("before"),
        Some(0),
        "two GPUs are above a quota of one"
    );
    assert!(started("after") > Some(0));
    let drawn = simulate(&home, &format!("{words} --runs 3 --seed 5 -o json"))
        .ok()
        .items();
    assert!(drawn[0]["difference"]["ci95_s"].as_f64() > Some(0.0));
    let drawn = simulate(&home, &format!("{WAITS} --backfill on --quiet -o svg")).ok();
    let svg = drawn.stdout;
    roxmltree::Document::parse(&svg).expect("the chart is XML");
    assert!(
        svg.contains("p90 after") && svg.contains("all jobs"),
        "{svg}"
    );
}
