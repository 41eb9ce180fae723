//! Packing of nodes: policies, runs, charts, and what a node and a list may have.

use super::*;

const POLICIES: &str = "--policy best-fit,fgd,queue";

#[test]
fn equal_seeds_give_equal_bytes_as_table_json_and_chart() {
    equal_bytes("--runs 1");
}

fn equal_bytes(size: &str) {
    let home = Home::new("a100-40gb:1");
    let folder = tempfile::tempdir().expect("a folder");
    let words = format!("{PACKING} {POLICIES} {size}");
    let run = |more: &str| simulate(&home, &format!("{words} {more}")).ok().stdout;
    let file = folder.path().join("chart.svg");
    let once = run(&format!("-o json --svg {}", file.display()));
    let svg = fs::read_to_string(file).expect("a chart");
    assert_eq!(once, run("-o json"));
    assert_eq!(svg, run("-o svg"), "the same chart, and nothing else");
    assert_ne!(once, run("-o json --seed 7"));
    assert_ne!(svg, run("-o svg --seed 7"));
    let wide = run("-o wide");
    assert_eq!(wide, run("-o wide"));
    assert!(
        wide.contains("fractions ") && wide.contains("several "),
        "{wide}"
    );
    let document = roxmltree::Document::parse(&svg).expect("the chart is XML");
    let names: Vec<&str> = document
        .descendants()
        .map(|node| node.tag_name().name())
        .collect();
    assert!(
        names.contains(&"title") && names.contains(&"desc"),
        "{names:?}"
    );
    assert_eq!(names.iter().filter(|name| **name == "polyline").count(), 3);
    assert!(svg.contains("prefers-color-scheme:dark"));
}

#[test]
fn policies_differ_as_the_published_comparison_says() {
    let items = differ("--runs 2 --at 95,100");
    assert!(items[1]["points"][1]["difference"]["ci95"].is_number());
    let home = Home::new("a100-40gb:1");
    let run = |more: &str| {
        let words = format!("{PACKING} --runs 1 --at 100 -o json {more}");
        simulate(&home, &words).ok().items()
    };
    let timed = run("--policy best-fit --timing");
    assert!(timed[0]["timing"]["p99_us"].as_f64().expect("a time") > 0.0);
    assert_eq!(timed[0]["points"].as_array().expect("points").len(), 1);
    let (oldest, free) = (run("--policy queue --oldest 1"), run("--policy queue"));
    assert!(
        unallocated(&oldest[0]) > unallocated(&free[0]),
        "age costs packing"
    );
    let part = run("--policy best-fit --part 7");
    assert_eq!(part[0]["scene"]["nodes"], 7);
}

/// The policies over drawn orders. Returns the items.
fn differ(size: &str) -> Vec<Value> {
    let home = Home::new("a100-40gb:1");
    let words = format!("{PACKING} {POLICIES} {size} -o json");
    let said = simulate(&home, &words).ok();
    assert_eq!(said.json()["kind"], "PackingList");
    let items = said.items();
    let [best_fit, fgd, queue]: [f64; 3] = items
        .iter()
        .map(unallocated)
        .collect::<Vec<_>>()
        .try_into()
        .expect("three policies");
    assert!(fgd < best_fit, "{fgd} {best_fit}");
    assert!(queue < fgd, "{queue}: all jobs wait, and patterns choose");
    assert!(items[0]["points"][0]["difference"].is_null());
    assert!(
        items.iter().all(|item| item["timing"].is_null()),
        "no figure depends on the clock"
    );
    items
}

#[test]
fn jobs_that_come_and_go_are_refused_or_served() {
    let home = Home::new("a100-40gb:1");
    let words = "openb/pods.csv --nodes openb/nodes.csv --mode departures --policy best-fit,fgd --runs 1 --arrivals 3000 -o json";
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

mod exhaustive {
    use super::*;

    #[test]
    fn bytes_of_four_runs_on_all_nodes() {
        equal_bytes("--runs 4");
    }

    #[test]
    fn policies_over_four_runs() {
        let items = differ("--runs 4");
        assert!(items[1]["points"][2]["difference"]["ci95"].is_number());
    }
}
