//! `divvy simulate` for the packing of nodes and for waits in queues: the real program on the data of `tests/data`, and on
//! a daemon's own jobs.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_e2e::{CommandOutput, Home};
use divvy_testkit::Bounded as _;
use serde_json::Value;

use crate::shown::shown;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn data(name: &str) -> String {
    root().join("tests/data").join(name).display().to_string()
}

/// Runs `divvy simulate` with these words; `openb/` and `simulate/` name files of `tests/data`.
fn simulate(home: &Home, words: &str) -> CommandOutput {
    let word = |word: &str| match word.starts_with("openb/") || word.starts_with("simulate/") {
        true => data(word),
        false => word.to_owned(),
    };
    let words: Vec<String> = words.split_whitespace().map(word).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    home.divvy(&[&["simulate"], words.as_slice()].concat())
}

const PACKING: &str = "openb/pods.csv --nodes openb/nodes.csv --runs 4 --policy best-fit,fgd,stock-least,stock-most,queue";
const WAITS: &str =
    "simulate/history.ndjson --mode waits --gpus a100-80gb:2 --queues pair,whole,half,quarter";

/// At 100 %, in percent.
fn unallocated(item: &Value) -> f64 {
    let points = item["points"].as_array().expect("points");
    let point = points
        .iter()
        .find(|point| point["arrived_percent"] == 100)
        .expect("a point at 100 %");
    point["unallocated"]["ratio"].as_f64().expect("a ratio") * 100.0
}

#[test]
fn equal_seeds_give_equal_bytes_as_table_json_and_chart() {
    let home = Home::new("a100-40gb:1");
    let folder = tempfile::tempdir().expect("a folder");
    let chart = |name: &str| folder.path().join(name);
    let run = |name: &str, more: &str| {
        let file = chart(name);
        let said = simulate(&home, &format!("{PACKING} {more} --svg {}", file.display())).ok();
        (said.stdout, fs::read(file).expect("a chart"))
    };
    let once = run("a.svg", "-o json");
    assert_eq!(once, run("b.svg", "-o json"));
    let other = run("c.svg", "-o json --seed 7");
    assert!(once.0 != other.0 && once.1 != other.1);
    let wide = run("d.svg", "-o wide").0;
    assert_eq!(wide, run("e.svg", "-o wide").0);
    assert!(
        wide.contains("fractions ") && wide.contains("several "),
        "{wide}"
    );
    let svg = String::from_utf8(once.1).expect("text");
    let document = roxmltree::Document::parse(&svg).expect("the chart is XML");
    let names: Vec<&str> = document
        .descendants()
        .map(|node| node.tag_name().name())
        .collect();
    assert!(
        names.contains(&"title") && names.contains(&"desc"),
        "{names:?}"
    );
    assert_eq!(names.iter().filter(|name| **name == "polyline").count(), 5);
    assert!(svg.contains("prefers-color-scheme:dark"));
}

#[test]
fn policies_differ_as_the_published_comparison_says() {
    let home = Home::new("a100-40gb:1");
    let said = simulate(&home, &format!("{PACKING} --order published -o json")).ok();
    assert_eq!(said.json()["kind"], "PackingList");
    let items = said.items();
    let [best_fit, fgd, least, most, queue]: [f64; 5] = items
        .iter()
        .map(unallocated)
        .collect::<Vec<_>>()
        .try_into()
        .expect("five policies");
    assert!(
        fgd < best_fit && best_fit < most,
        "{fgd} {best_fit} {least} {most}"
    );
    assert!(queue < fgd, "{queue}: all jobs wait, and patterns choose");
    assert!(items[0]["points"][0]["difference"].is_null());
    assert!(items[1]["points"][2]["difference"]["ci95"].is_number());
    assert!(
        items.iter().all(|item| item["timing"].is_null()),
        "no figure depends on the clock"
    );
    let timed = simulate(&home, &format!("{PACKING} --timing --at 100 -o json"))
        .ok()
        .items();
    assert!(timed[0]["timing"]["p99_us"].as_f64().expect("a time") > 0.0);
    assert_eq!(timed[0]["points"].as_array().expect("points").len(), 1);
    let oldest = simulate(&home, &format!("{PACKING} --oldest 1 -o json"))
        .ok()
        .items();
    let free = simulate(&home, &format!("{PACKING} -o json")).ok().items();
    assert!(
        unallocated(&oldest[4]) > unallocated(&free[4]),
        "age costs packing"
    );
    let part = simulate(&home, &format!("{PACKING} --part 7 -o json"))
        .ok()
        .items();
    assert_eq!(part[0]["scene"]["nodes"], 7);
}

#[test]
fn jobs_that_come_and_go_are_refused_or_served() {
    let home = Home::new("a100-40gb:1");
    let words = "openb/pods.csv --nodes openb/nodes.csv --mode departures --policy best-fit,fgd --runs 2 --arrivals 3000 -o json";
    let said = simulate(&home, words).ok();
    let again = simulate(&home, words).ok();
    assert_eq!(said.stdout, again.stdout);
    let items = said.items();
    for item in &items {
        let refused = item["refused"]["ratio"].as_f64().expect("a ratio");
        let in_use = item["in_use"]["ratio"].as_f64().expect("a ratio");
        assert!(
            refused > 0.0 && refused < 0.5 && in_use > 0.6 && in_use <= 1.0,
            "{item}"
        );
    }
    assert!(items[1]["difference"]["ratio"].is_number());
    let light = simulate(&home, &words.replace("--runs", "--load 0.3 --runs"))
        .ok()
        .items();
    assert!(light[0]["refused"]["ratio"].as_f64() < items[0]["refused"]["ratio"].as_f64());
    // Jobs at their own times need times, which the history has and the list of five columns has not.
    let own = "simulate/history.ndjson --mode departures --order given --gpus 2xa100-80gb:1 --policy best-fit -o json";
    let own = simulate(&home, own).ok();
    assert_eq!(own.items()[0]["scene"]["arrivals"], 160);
    assert!(
        own.stderr.contains("skipped 5 jobs without start and end"),
        "{}",
        own.stderr
    );
    let without = "openb/pods-multigpu.csv --mode departures --order given --nodes openb/nodes.csv";
    let refused = simulate(&home, without).exits(2);
    assert!(
        refused
            .stderr
            .contains("no job has a submission, a start and an end"),
        "{}",
        refused.stderr
    );
}

/// With CPU counted, jobs that ask for much of it leave GPUs unused; a policy may learn from another list.
#[test]
fn nodes_of_the_command_line_have_cpu_and_memory_and_a_policy_learns() {
    let home = Home::new("a100-40gb:1");
    let words = "openb/pods.csv --mode fill --gpus 4xg2-24gb:8 --policy best-fit --runs 1 -o json";
    let words = words.replace("openb/pods.csv", "openb/pods-multigpu.csv");
    let uncounted = simulate(&home, &words).ok().items();
    let counted = simulate(&home, &format!("{words} --node-cpu 16 --node-memory 1T"))
        .ok()
        .items();
    assert!(unallocated(&counted[0]) > unallocated(&uncounted[0]));
    let little = simulate(&home, &format!("{words} --node-memory 8G"))
        .ok()
        .items();
    assert!(unallocated(&little[0]) > unallocated(&uncounted[0]));
    let learned = "openb/pods.csv --nodes openb/nodes.csv --part 12 --mode departures --policy best-fit,learned \
                   --runs 1 --arrivals 500 --train openb/pods-multigpu.csv";
    let said = simulate(&home, learned).ok();
    assert!(
        said.stderr.contains("--policy learned uses "),
        "{}",
        said.stderr
    );
}

#[test]
fn every_format_gives_jobs_to_both_studies() {
    let home = Home::new("a100-40gb:1");
    let formats = [
        ("simulate/history.ndjson", "", 165, 160),
        ("simulate/sacct.txt", "--shards 4", 63, 60),
        (
            "simulate/clearml.json",
            "--queues pair,whole,half=0.5,quarter=0.25",
            60,
            60,
        ),
        ("openb/pods-multigpu.csv", "", 350, 0),
    ];
    for (file, more, _, ended) in formats {
        let packed = simulate(
            &home,
            &format!(
                "{file} {more} --mode fill --gpus 4xa100-80gb:8 --policy best-fit --runs 1 -o json"
            ),
        );
        let item = &packed.ok().items()[0];
        assert!(
            unallocated(item) >= 0.0 && item["scene"]["gpus"] == 32,
            "{file}: {item}"
        );
        if ended > 0 {
            let waits = simulate(
                &home,
                &format!("{file} {more} --mode waits --gpus a100-80gb:2 -o json"),
            )
            .ok();
            assert_eq!(
                waits.items()[0]["before"]["submitted"],
                ended,
                "{file}: {}",
                waits.stderr
            );
        }
    }
    let named = simulate(
        &home,
        "simulate/sacct.txt --input openb --mode fill --gpus a100-80gb:1",
    )
    .exits(2);
    assert!(
        named
            .stderr
            .contains("sacct.txt: line 1: the header has no column `name`"),
        "{}",
        named.stderr
    );
}

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
    let folder = tempfile::tempdir().expect("a folder");
    let chart = folder.path().join("waits.svg");
    let drawn = simulate(
        &home,
        &format!("{WAITS} --backfill on --quiet --svg {}", chart.display()),
    )
    .ok();
    assert!(
        drawn.stderr.contains("after: with backfill"),
        "{}",
        drawn.stderr
    );
    let svg = fs::read_to_string(chart).expect("a chart");
    roxmltree::Document::parse(&svg).expect("the chart is XML");
    assert!(
        svg.contains("p90 after") && svg.contains("all jobs"),
        "{svg}"
    );
}

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

#[test]
fn what_cannot_be_simulated_is_refused_with_what_to_do() {
    let home = Home::new("a100-40gb:1");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";
    let broken = file("broken.csv", &format!("{pods}a,1,1,1,500,\nb,1,x,1,500,\n"));
    let model = file(
        "model.csv",
        &format!("{pods}a,1,1,1,500,\nb,1,1,1,500,G9\n"),
    );
    let empty = file("empty.csv", pods);
    let times = file(
        "times.txt",
        "7|2026-03-04T12:00:00|2026-03-04T12:05:00|2026-03-04T12:04:00|gres/gpu=1|gpu|COMPLETED\n",
    );
    let nothing = file("nothing.txt", "what is this\n");
    let nodes = "--nodes openb/nodes.csv";
    for (words, said) in [
        (
            format!("{broken} {nodes}"),
            "broken.csv: line 3, column memory_mib: `x`: not a number",
        ),
        (
            format!("{model} {nodes}"),
            "model.csv: line 3, job b: unknown model `G9`: no node has it",
        ),
        (
            format!("{model} --mode waits --gpus a100-80gb:1"),
            "line 3, job b: unknown model `G9`: no node has it",
        ),
        (
            format!("{times} --mode waits --gpus a100-80gb:1"),
            "line 1, column End: `2026-03-04T12:04:00`: before Start",
        ),
        (
            format!("{empty} {nodes}"),
            "empty.csv: no jobs found (openb)",
        ),
        (format!("{nothing} {nodes}"), "nothing.txt: unknown format"),
        (
            format!("/nonexistent/jobs {nodes}"),
            "cannot read /nonexistent/jobs",
        ),
        ("--mode fill".to_owned(), "this study needs jobs"),
        (
            "openb/pods.csv --mode fill".to_owned(),
            "this study needs nodes",
        ),
        (
            "openb/pods.csv --mode fill --gpus v100:8".to_owned(),
            "unknown model `v100`",
        ),
        (
            format!("openb/pods.csv {nodes} --policy first-fit"),
            "--policy first-fit: unknown policy of nodes",
        ),
        (
            format!("openb/pods.csv {nodes} --policy queue --mode departures"),
            "--policy queue: jobs that come and go",
        ),
        (
            format!("openb/pods.csv {nodes} --load 0.5"),
            "--mode fill does not use --load",
        ),
        (
            format!("openb/pods.csv {nodes} --svg /nonexistent/a.svg --policy best-fit"),
            "--svg: cannot write /nonexistent/a.svg",
        ),
        (
            "--gpus a100-40gb:1 --timing".to_owned(),
            "MIG placement does not use --timing",
        ),
        (
            "--policy fgd".to_owned(),
            "--policy fgd: `fgd` is not a way to place",
        ),
        (
            format!("{WAITS} --queue-first nobody"),
            "there is no queue nobody",
        ),
        (
            format!("{WAITS} --quota vision=4"),
            "there is no project vision",
        ),
        (
            format!("{WAITS} --gpu-mode 9=mig"),
            "there is no GPU 9: the scene has 2",
        ),
        (format!("{WAITS} --gpu-mode 0=fast"), "--gpu-mode 0=fast"),
        (
            format!("{WAITS} --queues half,half"),
            "--queues: half is listed twice",
        ),
        (format!("{WAITS} --queues half=0.3"), "--queues half=0.3"),
        (
            format!("{WAITS} --policy best-fit,fgd"),
            "--mode waits takes one --policy",
        ),
        (
            format!("{WAITS} --job -g 0.5 --backfill on"),
            "--job does not use --backfill",
        ),
        (format!("{WAITS} --job"), "--job: the amount is missing"),
        (
            format!("{WAITS} --arrivals 300000"),
            "300000 jobs: at most 200000 can be simulated",
        ),
    ] {
        let refused = simulate(&home, &words).exits(2);
        assert!(refused.stdout.is_empty(), "{words}: {}", refused.stdout);
        for word in [said, "error: ", "hint: "] {
            assert!(refused.stderr.contains(word), "{words}: {}", refused.stderr);
        }
    }
    let json = simulate(&home, &format!("{broken} {nodes} -o json")).exits(2);
    assert!(json.stderr.starts_with('{'), "{}", json.stderr);
}

/// `shown.rs` compares the words of all pages; here each figure counts, since equal seeds give equal figures.
#[test]
fn the_page_shows_exactly_what_its_commands_print() {
    let page = fs::read_to_string(root().join("docs/simulate.md")).expect("a page");
    let home = Home::new("a100-80gb:2");
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(root().join("tests"), folder.path().join("tests"))
        .expect("a new folder");
    let all = shown(&page);
    assert!(all.len() >= 11, "{} commands", all.len());
    let (divvy, path) = (
        PathBuf::from(home.program("divvy")),
        std::env::var("PATH").unwrap_or_default(),
    );
    let path = format!("{}:{path}", divvy.parent().expect("a folder").display());
    for shown in all {
        let mut shell = home.command("bash");
        shell
            .args(["-c", &shown.command])
            .current_dir(folder.path())
            .env("PATH", &path);
        let output = shell.output_bounded().expect("the shell runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = shown.output.join("\n");
        assert_eq!(
            printed.trim_end(),
            expected.trim_end(),
            "`{}`",
            shown.command
        );
    }
}
