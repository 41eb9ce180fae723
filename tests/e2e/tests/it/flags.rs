//! Every flag, typed: what is wrong with its value is said with the right exit code, and what it is for is seen to happen.
//!
//! Which flags there are is asked of `--help`. Those that are tried elsewhere are named with the file, which has to name them too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use divvy_api::v1::{EndReason, IdleAction, JobState};
use divvy_e2e::{Home, MIB, help, until};
use divvy_testkit::{Bounded as _, mentions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The exit code of a mistake of usage.
const USAGE: i32 = 2;
/// … of what is not there.
const NOT_FOUND: i32 = 3;

/// Words behind those of a verb, with a value that is wrong: the flag and what is wrong. `{}`: a folder of the test's own.
const WRONG: &[(&str, &[(&str, i32)])] = &[
    (
        "submit",
        &[
            ("--gpu half", USAGE),
            ("--gpu-memory lots", USAGE),
            ("--gpu-memory-exact", USAGE),
            ("--mig-profile big", USAGE),
            ("-g 0.125 --isolation none", USAGE),
            ("-g 0.125 --compute some", USAGE),
            ("-g 0.125 --latency soon", USAGE),
            ("-g 0.125 --latency 20ms --compute strict", USAGE),
            ("-g 0.125 --name=", USAGE),
            ("--queue nowhere", NOT_FOUND),
            ("-g 0.125 --gpus-on 19", USAGE),
            ("-g 0.125 --gpus-on x", USAGE),
            ("-g 0.125 --priority 1001", USAGE),
            ("-g 0.125 --priority high", USAGE),
            ("-g 0.125 --time 2", USAGE),
            ("-g 0.125 --time 0s", USAGE),
            ("-g 0.125 --idle-timeout soon", USAGE),
            ("-g 0.125 --idle-timeout 1m --idle-action kill", USAGE),
            ("-g 0.125 --idle-action notify", USAGE),
            ("-g 0.125 --park-after soon", USAGE),
            ("-g 0.125 --park-after 1m --idle-timeout 1m", USAGE),
            ("-g 0.125 --after nobody", NOT_FOUND),
            ("-g 0.125 --after-ok nobody", NOT_FOUND),
            ("-g 0.125 --env =1", USAGE),
            ("-g 0.125 --env NO_SUCH_VARIABLE", USAGE),
            ("-g 0.125 --env-file {}/none", USAGE),
            ("-g 0.125 --secret =1", USAGE),
            ("-g 0.125 --secret NO_SUCH_VARIABLE", USAGE),
            ("-g 0.125 --sim many", USAGE),
            ("--docker-args -v", USAGE),
            ("-g 0.125 --array 5-1", USAGE),
            ("-g 0.125 --array 0-9%0", USAGE),
            ("-g 0.125 --retries -1", USAGE),
            ("-g 0.125 --retries many", USAGE),
            ("-g 0.125 --idempotency-key=", USAGE),
            ("-g 0.125 --hold --no-wait", USAGE),
            ("--parsable --output wide", USAGE),
            ("-g 0.125 --chdir {}/none", USAGE),
            ("-g 0.125 --stderr %q", USAGE),
            ("-g 0.125 --notify=", USAGE),
            ("--output yaml", USAGE),
        ],
    ),
    (
        "run",
        &[
            ("--gpu 1.5", USAGE),
            ("--no-daemon --queue half", USAGE),
            ("-g 0.5 --time never", USAGE),
        ],
    ),
    ("shell", &[("--gpu 1.5", USAGE), ("-g 0.5 --env =1", USAGE)]),
    (
        "resize",
        &[
            ("first --gpu half", USAGE),
            ("first --gpu-memory lots", USAGE),
            ("first --compute some", USAGE),
        ],
    ),
    (
        "move",
        &[
            ("first", USAGE),
            ("waits --queue nowhere", NOT_FOUND),
            ("waits --queue half --gpu some", USAGE),
            ("nobody --top", NOT_FOUND),
        ],
    ),
    (
        "change",
        &[
            ("waits --priority high", USAGE),
            ("waits --priority 1001", USAGE),
            ("waits --time 2", USAGE),
            ("waits --gpu half", USAGE),
            ("waits --gpu-memory lots", USAGE),
            ("waits --mig-profile big", USAGE),
            ("waits --name=", USAGE),
        ],
    ),
    ("hold", &[("first --output yaml", USAGE)]),
    ("wait", &[("first --timeout soon", USAGE)]),
    (
        "ps",
        &[
            ("--state sleeping", USAGE),
            ("--since yesterday", USAGE),
            ("--limit few", USAGE),
            ("--sort size", USAGE),
            ("--me --user ana", USAGE),
            ("--me first", USAGE),
            ("--watch=0", USAGE),
            ("--watch=2 --output name", USAGE),
        ],
    ),
    ("gpus", &[("--watch=soon", USAGE)]),
    (
        "events",
        &[
            ("--after x", USAGE),
            ("--since yesterday", USAGE),
            ("--tail x", USAGE),
            ("--output yaml", USAGE),
        ],
    ),
    (
        "cancel",
        &[
            ("--me --state asleep --yes", USAGE),
            ("first --name x", USAGE),
        ],
    ),
    (
        "usage",
        &[
            ("--by nothing", USAGE),
            ("--since tomorrow", USAGE),
            ("--until x", USAGE),
            ("--since 2026-01-02 --until 2026-01-01", USAGE),
        ],
    ),
    (
        "top",
        &[
            ("--interval 1", USAGE),
            ("--interval 1m", USAGE),
            ("--output table", USAGE),
            ("--plain --once", USAGE),
            ("--bell", USAGE),
        ],
    ),
    (
        "web",
        &[
            ("--port 65536", USAGE),
            ("--web-host https://lab1", USAGE),
            ("--output yaml", USAGE),
        ],
    ),
    (
        "advise",
        &[("--name nobody", NOT_FOUND), ("--name a first", USAGE)],
    ),
    ("doctor", &[("--sim many", USAGE)]),
    (
        "selftest",
        &[
            ("--gpu 9", USAGE),
            ("--gpu x", USAGE),
            ("--gpu 0 --all", USAGE),
            ("--gpu-memory lots", USAGE),
            ("--sim many", USAGE),
        ],
    ),
    (
        "simulate",
        &[
            ("jobs.csv --gpus nothing:1", USAGE),
            ("--load 0", USAGE),
            ("--policy best", USAGE),
            ("--arrivals 1", USAGE),
            ("--runs 0", USAGE),
            ("--seed x", USAGE),
            ("--mode fast", USAGE),
            ("--input yaml", USAGE),
            ("jobs.csv --nodes {}/none", USAGE),
            ("--node-cpu 0 --gpus a100-80gb:1", USAGE),
            ("--node-memory lots --gpus a100-80gb:1 --job", USAGE),
            ("--part 0 --nodes n.csv", USAGE),
            ("--shards 0", USAGE),
            ("--order backwards", USAGE),
            ("--at 131", USAGE),
            ("jobs.csv --mode departures --at 90", USAGE),
            ("--mode waits --train jobs.csv", USAGE),
            ("--oldest 2", USAGE),
            ("--mode waits --timing", USAGE),
            ("--svg {}/none/chart.svg", USAGE),
            ("--queue-first q --gpus v100:1", USAGE),
            ("--eighths=most", USAGE),
            ("--gpu-mode 0", USAGE),
            ("--quota vision=many", USAGE),
            ("--backfill maybe", USAGE),
            ("-g 0.5", USAGE),
            ("--gpu-memory 4G", USAGE),
            ("--queue half", USAGE),
            ("--project vision", USAGE),
            ("jobs.csv --gpus a100-80gb:1 --queues half=0.3", USAGE),
            ("--rules none", USAGE),
            ("--projects vision", USAGE),
        ],
    ),
    (
        "slice create",
        &[
            ("a --gpus-on x -g 0.5", USAGE),
            ("a --gpus-on 0 --gpu half", USAGE),
            ("a --gpus-on 0 --gpu-memory lots", USAGE),
            ("a --gpus-on 0 --mig-profile big", USAGE),
            ("a --gpus-on 0 -g 0.5 --compute some", USAGE),
            ("a --gpus-on 0 -g 0.5 --pid x", USAGE),
            ("a --gpus-on 0 -g 0.5 --cancel-on-exit", USAGE),
            ("a --gpus-on 0 -g 0.5 --wait 2h", USAGE),
            ("a --gpus-on 0 -g 0.5 --cgroup /tmp", USAGE),
            ("a --gpus-on 0 -g 0.5 --user nobody", 4),
        ],
    ),
    ("slice env", &[("a --output yaml", USAGE)]),
    ("admin gpu", &[("0 --mode fast", USAGE)]),
    ("admin drain", &[("--reason x --until yesterday", USAGE)]),
    ("admin mig plan", &[("1g.5gb --gpus-on x", USAGE)]),
    ("admin mig gc", &[("--gpus-on x", USAGE)]),
    (
        "admin project add",
        &[
            ("p --quota many", USAGE),
            ("p --quota 1 --quota-memory lots", USAGE),
            ("p --quota 1 --weight heavy", USAGE),
            ("p --quota 1 --limit 0.5", USAGE),
            ("p --quota 1 --limit x", USAGE),
            ("p --quota 1 --limit-memory lots", USAGE),
            ("p --quota 1 --priority high", USAGE),
            ("p --quota 1 --min-runtime soon", USAGE),
            ("p --quota 1 --members ana,@", USAGE),
        ],
    ),
    (
        "admin init",
        &[
            ("--gpus x", USAGE),
            ("--queue a=0.3", USAGE),
            ("--admin @", USAGE),
            ("--project vision", USAGE),
            ("--listen 8.8.8.8:80", USAGE),
            ("--user --admin ana", USAGE),
            ("--default-project @", USAGE),
            ("--max-gpus many", USAGE),
            ("--device-nodes most", USAGE),
        ],
    ),
    (
        "daemon",
        &[
            ("--config {}/none", USAGE),
            ("--dynamic-gpus", USAGE),
            ("--gpus 7", USAGE),
            ("--queue a a", USAGE),
            ("--set limits.max-jobs=0", USAGE),
            ("--set max-jobs=1", USAGE),
            ("--set grace=soon", USAGE),
            ("--set project-rules.max-gpus=ana", USAGE),
            ("--set listen.access={}/none --system", USAGE),
            ("--set listen.access={}/none", USAGE),
            ("--set listen.listen=everywhere", USAGE),
            ("--set listen.listen=127.0.0.1:0", USAGE),
            ("--set listen.web-hosts=[\"lab1/\"]", USAGE),
            ("--set on-bypass=shout", USAGE),
            ("--set clearml.project-by=rules", USAGE),
            ("--stop --gpus x", USAGE),
            ("--stop --status", USAGE),
            ("--sim many", USAGE),
            ("--clearml --config-file {}/none", USAGE),
            ("--config-file {}/none", USAGE),
            ("--create-queue", USAGE),
            ("--uptime 17-20", USAGE),
            ("--downtime 17-20", USAGE),
            ("--clearml --polling-interval soon", USAGE),
            ("--child-report-tags a", USAGE),
        ],
    ),
];

/// Flags that every value is right for, or that have none, and where they are seen to do what they are for.
const ELSEWHERE: &[(&str, &str)] = &[
    ("--park", "offload.rs"),
    ("--once", "top.rs"),
    ("--interval", "top.rs"),
    ("--filter", "top.rs"),
    ("--ascii", "top.rs"),
    ("--plain", "top.rs"),
    ("--readonly", "top.rs"),
    ("--port", "web.rs"),
    ("--allow-actions", "web.rs"),
    ("--web-host", "web/table.rs"),
    ("--mode", "mig.rs"),
    ("--admin", "../../../../crates/agent/tests/it/config.rs"),
    ("--max-gpus", "../../../../crates/agent/tests/it/config.rs"),
    ("--config", "../../../../crates/agent/tests/it/config.rs"),
    ("--defaults", "../../../../crates/agent/tests/it/config.rs"),
    ("--force", "../../../../crates/agent/tests/it/config.rs"),
    ("--motd", "../../../../crates/agent/tests/it/config.rs"),
    (
        "--default-project",
        "../../../../crates/agent/tests/it/config.rs",
    ),
    ("--listen", "../../../../crates/cli/src/verbs/init/flags.rs"),
    (
        "--device-nodes",
        "../../../../crates/cli/src/verbs/init/flags.rs",
    ),
    ("--set", "bypass.rs"),
    ("--yes", "../../../../crates/agent/tests/it/config.rs"),
    ("--no-start", "../../../../crates/agent/tests/it/config.rs"),
    ("--user", "../../../../crates/agent/tests/it/config.rs"),
    ("--docker", "docker/scenes.rs"),
    ("--docker-args", "docker/scenes.rs"),
    ("--dry-run", "run.rs"),
    ("--idempotency-key", "run.rs"),
    ("--pid", "slices.rs"),
    ("--cgroup", "slices.rs"),
    ("--cancel-on-exit", "slices.rs"),
    ("--wait", "slices.rs"),
    ("--parsable", "../../../testkit/src/home.rs"),
    ("--no-wait", "errors.rs"),
    ("--no-daemon", "run.rs"),
    ("--mig-profile", "mig.rs"),
    ("--isolation", "mig.rs"),
    ("--sim", "run.rs"),
    ("--own-daemon", "one_machine.rs"),
    ("--outlive-client", "client_tie.rs"),
    ("--cdi", "docker/scenes.rs"),
    ("--release-memory", "offload.rs"),
    ("--from-start", "inside.rs"),
    ("--all", "errors.rs"),
    ("--me", "lists.rs"),
    ("--state", "lists.rs"),
    ("--limit", "lists.rs"),
    ("--sort", "lists.rs"),
    ("--watch", "lists.rs"),
    ("--by", "usage.rs"),
    ("--ascii", "filters.rs"),
    ("--tail", "filters.rs"),
    ("--timeout", "run.rs"),
    ("--gpus", "seed.rs"),
    ("--load", "studies/packing.rs"),
    ("--policy", "studies/packing.rs"),
    ("--arrivals", "studies/packing.rs"),
    ("--runs", "studies/packing.rs"),
    ("--seed", "studies/packing.rs"),
    ("--input", "studies/packing.rs"),
    ("--nodes", "studies.rs"),
    ("--node-cpu", "studies/packing.rs"),
    ("--node-memory", "studies/packing.rs"),
    ("--part", "studies/packing.rs"),
    ("--shards", "studies/packing.rs"),
    ("--order", "studies/packing.rs"),
    ("--at", "studies/packing.rs"),
    ("--train", "studies/packing.rs"),
    ("--oldest", "studies/packing.rs"),
    ("--timing", "studies/packing.rs"),
    ("--svg", "studies/packing.rs"),
    ("--queue-first", "studies/waits.rs"),
    ("--eighths", "studies/waits.rs"),
    ("--gpu-mode", "studies/waits.rs"),
    ("--backfill", "studies/waits.rs"),
    ("--job", "studies/live.rs"),
    ("--queues", "studies/packing.rs"),
    ("--rules", "studies/waits.rs"),
    ("--projects", "studies/waits.rs"),
    ("--quiet", "studies/waits.rs"),
    ("--dynamic-gpus", "seed.rs"),
    ("--tasks", "lists.rs"),
    ("--order-fairness", "clearml/placement.rs"),
    ("--system", "users.rs"),
    ("--stop", "verbs.rs"),
    ("--status", "verbs.rs"),
    ("--detached", "verbs.rs"),
    ("--clearml", "../../src/clearml/scene.rs"),
    ("--config-file", "../../src/clearml/scene.rs"),
    (
        "--polling-interval",
        "../../../../crates/cli/src/serve/clearml.rs",
    ),
    ("--uptime", "clearml/flags.rs"),
    ("--downtime", "clearml/flags.rs"),
    ("--child-report-tags", "clearml/flags.rs"),
    (
        "--create-queue",
        "../../../../crates/divvy/tests/it/clearml.rs",
    ),
];

/// Words behind those of a verb, and what the answer then has where: `-o json` is said besides. `{}`: the number of a job that runs.
const TAKEN: &[(&str, &str, &str, &str)] = &[
    ("submit", "--gpu 0.125", "/request/thousandths", "125"),
    ("submit", "--gpu-memory 4G", "/request/bytes", "4294967296"),
    (
        "submit",
        "--gpu-memory 4G --gpu-memory-exact",
        "/memory_exact",
        "true",
    ),
    (
        "submit",
        "-g 0.125 --isolation cooperative",
        "/isolation",
        r#""cooperative""#,
    ),
    (
        "submit",
        "-g 0.125 --compute strict",
        "/compute",
        r#""strict""#,
    ),
    (
        "submit",
        "-g 0.125 --latency 20ms",
        "/compute",
        r#""fair,latency=20ms""#,
    ),
    ("submit", "-g 0.125 --name eval", "/name", r#""eval""#),
    ("submit", "--queue half", "/queue", r#""half""#),
    (
        "submit",
        "-g 0.125 --project vision",
        "/project",
        r#""vision""#,
    ),
    ("submit", "-g 0.125 --gpus-on 1", "/slices/0/gpu_index", "1"),
    ("submit", "-g 0.125 --priority -7", "/priority", "-7"),
    ("submit", "-g 0.125 --time 1h30m", "/time_limit_s", "5400"),
    (
        "submit",
        "-g 0.125 --idle-timeout 30m",
        "/idle",
        r#"{"after_s":1800,"action":"notify"}"#,
    ),
    (
        "submit",
        "-g 0.125 --idle-timeout 30m --idle-action suspend",
        "/idle/action",
        r#""suspend""#,
    ),
    (
        "submit",
        "-g 0.125 --park-after 10m",
        "/idle",
        r#"{"after_s":600,"action":"park"}"#,
    ),
    ("submit", "-g 0.125 --after {}", "/after/0/ok", "false"),
    ("submit", "-g 0.125 --after-ok {}", "/after/0/ok", "true"),
    (
        "submit",
        "-g 0.125 --secret TOKEN=hush",
        "/secrets",
        r#"["TOKEN"]"#,
    ),
    ("submit", "-g 0.125 --preemptible", "/preemptible", "true"),
    ("submit", "-g 0.125 --array 4-5%1", "/array/index", "4"),
    ("submit", "-g 0.125 --retries 2", "/retries", "2"),
    (
        "submit",
        "-g 0.125 --hold --name waits",
        "/reason_code",
        r#""held""#,
    ),
    ("change", "waits --priority -7 --time 2h", "/priority", "-7"),
    ("change", "waits --time none", "/time_limit_s", "null"),
    (
        "change",
        "waits --gpu-memory 4G",
        "/request/bytes",
        "4294967296",
    ),
    (
        "move",
        "waits --queue half --gpu 0.5 --top",
        "/queue",
        r#""half""#,
    ),
    ("submit", "-g 0.125 --chdir /usr", "/cwd", r#""/usr""#),
    (
        "submit",
        "-g 0.125 --chdir /dev --stderr null",
        "/output/stderr",
        r#""/dev/null""#,
    ),
    ("submit", "-g 0.125 --notify true", "/notify", r#""true""#),
    ("admin project add", "p1 --quota 1.5", "/quota", "1500"),
    (
        "admin project set",
        "p1 --quota-memory 40G",
        "/quota_memory_bytes",
        "42949672960",
    ),
    ("admin project set", "p1 --weight 3", "/weight", "3"),
    ("admin project set", "p1 --limit 2", "/limit", "2000"),
    (
        "admin project set",
        "p1 --limit-memory 80G",
        "/limit_memory_bytes",
        "85899345920",
    ),
    ("admin project set", "p1 --priority -4", "/priority", "-4"),
    (
        "admin project set",
        "p1 --min-runtime 10m",
        "/min_runtime_s",
        "600",
    ),
    (
        "admin project set",
        "p1 --members ana,@vision",
        "/members",
        r#"["ana","@vision"]"#,
    ),
    (
        "admin drain",
        "0 --reason update",
        "/out_of_service/reason",
        r#""update""#,
    ),
];

/// Flags whose doing is seen below.
const SEEN: &[&str] = &[
    "--backfill",
    "--bell",
    "--compute",
    "--env",
    "--env-file",
    "--follow",
    "--gpus-on",
    "--no-signals",
    "--output",
    "--queue",
    "--since",
    "--until",
    "--idle-timeout",
    "--idle-action",
    "--name",
    "--after",
];

fn typed(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The flags that these words type.
fn flags_of(words: &str) -> impl Iterator<Item = &str> {
    let words = words
        .split_whitespace()
        .filter(|word| word.starts_with("--"));
    words.map(|word| word.split('=').next().unwrap_or(word))
}

#[test]
fn every_flag_of_every_verb_is_typed_with_a_wrong_value_and_seen_to_work() {
    let home = Home::new("a100-80gb:1");
    let mut wrong: BTreeSet<&str> = BTreeSet::new();
    for (_, lines) in WRONG {
        wrong.extend(lines.iter().flat_map(|(words, _)| flags_of(words)));
    }
    let mut works: BTreeSet<&str> = SEEN.iter().copied().collect();
    works.extend(TAKEN.iter().flat_map(|(_, words, ..)| flags_of(words)));
    for (flag, file) in ELSEWHERE {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/it")
            .join(file);
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{flag}: {error}"));
        let is_named = |close: char| text.contains(&format!("{flag}{close}"));
        assert!(
            ['"', ' ', '='].into_iter().any(is_named),
            "{} has no {flag}",
            file.display()
        );
        works.insert(flag);
    }
    let mut all = BTreeMap::new();
    for verb in help::verbs(&home) {
        for (flag, takes_value) in help::flags(&home, &verb) {
            *all.entry(flag).or_insert(false) |= takes_value;
        }
    }
    assert!(all.len() > 80, "{all:?}");
    for (flag, takes_value) in &all {
        assert!(works.contains(&**flag), "nothing shows that {flag} works");
        let is_free = ELSEWHERE_FREE.contains(&&**flag);
        assert!(
            !takes_value || is_free || wrong.contains(&**flag),
            "{flag} is given no wrong value"
        );
    }
    for flag in wrong.union(&works) {
        let is_listed = all.contains_key(*flag);
        assert_ne!(is_listed, UNLISTED.contains(flag), "{flag}");
    }
}

/// Flags that the manual pages have, and `--help` has no line for.
const UNLISTED: &[&str] = &[
    "--arrivals",
    "--at",
    "--child-report-tags",
    "--exact",
    "--gpu-memory-exact",
    "--input",
    "--node-cpu",
    "--node-memory",
    "--oldest",
    "--order",
    "--part",
    "--quiet",
    "--shards",
    "--timing",
    "--train",
];

/// Flags for which no value is wrong, or that is seen to be wrong where they are tried.
const ELSEWHERE_FREE: &[&str] = &[
    "--filter",          // any words are text
    "--project",         // a user without a project may name any
    "--docker",          // docker/image.rs: an image that is not there
    "--motd",            // a file that is made
    "--reason",          // any words in one line are a reason
    "--idempotency-key", // any text is a key
];

#[test]
fn what_is_wrong_with_a_value_is_said_with_a_hint_and_changes_nothing() {
    let home = Home::new("a100-80gb:2");
    let folder = home.scratch().display().to_string();
    let mut unclear = Vec::new();
    let mut refused = |verb: &str, words: &str, code: i32| {
        let words = words.replace("{}", &folder);
        let takes_command = ["submit", "run"].contains(&verb);
        let command: &[&str] = if takes_command { &["--", "true"] } else { &[] };
        let said = home.divvy(&[typed(verb), typed(&words), command.to_vec()].concat());
        // The flag, in words perhaps, what is wrong with it, or the flag that it needs.
        let told = said.stderr.to_lowercase().replace('-', " ");
        let mut flags = flags_of(&words).map(|flag| flag.replace('-', " "));
        let mut values = words.trim_start_matches("-g 0.125 ").split([' ', '=', ',']);
        let is_named = flags.any(|flag| told.contains(flag.trim_start()))
            || values.any(|value| (value.len() > 1 || value == "@") && said.stderr.contains(value))
            || told.contains("arguments were not provided:");
        let has_hint = said.stderr.lines().any(|line| line.starts_with("hint: "));
        let is_clear = said.stdout.is_empty() && said.stderr.starts_with("error: ") && has_hint;
        if said.code != code || !is_clear || !is_named {
            unclear.push(format!(
                "{verb} {words}: {} instead of {code}: {}{}",
                said.code, said.stdout, said.stderr
            ));
        }
    };
    let of_daemon = |verb: &str| ["daemon", "doctor", "simulate"].contains(&verb);
    for (verb, lines) in WRONG.iter().filter(|(verb, _)| of_daemon(verb)) {
        lines
            .iter()
            .for_each(|(words, code)| refused(verb, words, *code));
    }
    assert!(
        !home.path().join("divvy.sock").exists(),
        "none of them serves"
    );
    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5"]);
    let first = home.submit(&["-q", "half", "--name", "first"], &["true"]);
    home.ended(&first);
    let held = ["-g", "0.125", "--hold", "--name", "waits"];
    let _ = home.submit(&held, &["true"]);
    for (verb, lines) in WRONG.iter().filter(|(verb, _)| !of_daemon(verb)) {
        lines
            .iter()
            .for_each(|(words, code)| refused(verb, words, *code));
    }
    assert!(unclear.is_empty(), "{}", unclear.join("\n"));
    assert_eq!(home.items(&["ps", "--all"]).len(), 2);
    let waits = home.job("waits");
    assert_eq!((waits.priority, waits.time_limit_s), (0, None));
    assert!(home.items(&["projects"]).is_empty());
}

#[test]
fn what_is_typed_is_what_the_daemon_takes() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5"]);
    let _ = home
        .divvy(&typed("admin project add vision --quota 2"))
        .ok();
    let runs = home.submit(&["-g", "0.125"], &["sleep", "1000"]);
    home.running(&runs);
    for (verb, words, place, expected) in TAKEN {
        let words = words.replace("{}", &runs);
        let command: &[&str] = if *verb == "submit" {
            &["--", "true"]
        } else {
            &[]
        };
        let line = [
            typed(verb),
            typed("-o json"),
            typed(&words),
            command.to_vec(),
        ]
        .concat();
        let answer = home.divvy(&line).ok().items().remove(0);
        let expected: Value = serde_json::from_str(expected).expect("the table has JSON");
        assert_eq!(
            answer.pointer(place),
            Some(&expected),
            "{line:?}: {answer:#}"
        );
    }
    let named = home.items(&["describe", "eval"]);
    assert_eq!(named[0]["name"], "eval");
    let long = home.divvy(&typed("ps --all --output name")).ok().stdout;
    assert_eq!(long, home.divvy(&typed("ps -a -o name")).ok().stdout);
}

#[test]
fn variables_come_from_words_files_and_the_shell_and_secrets_are_written_nowhere() {
    let home = Home::new("a100-80gb:1").variable("FROM_SHELL", "shell");
    let _daemon = home.daemon(&[]);
    let file = home.scratch().join("variables");
    fs::write(&file, "# a comment\nIN_FILE=file\nTWICE=file\n").expect("the folder is ours");
    let file = file.display().to_string();
    let flags = [
        "-g",
        "0.25",
        "--env",
        "WORD=a word",
        "--env",
        "FROM_SHELL",
        "--env",
        "TWICE=word",
        "--env-file",
        &file,
        "--secret",
        "TOKEN=hush-hush",
    ];
    let script = "echo \"$WORD/$FROM_SHELL/$IN_FILE/$TWICE/$TOKEN\"";
    let expected = "a word/shell/file/word/hush-hush\n";
    for verb in ["run", "submit"] {
        let words = [&[verb], &flags[..], &["--", "sh", "-c", script]].concat();
        let said = home.divvy(&words).ok();
        let job = home.ended("last");
        match verb {
            "run" => assert_eq!(said.stdout, expected),
            _ => assert_eq!(home.divvy(&["logs", &job.id]).ok().stdout, expected),
        }
        assert_eq!(job.secrets, ["TOKEN"]);
    }
    // The submitted job's own output has it, and nothing else.
    let mut files = vec![home.path().to_owned()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            let below = fs::read_dir(&path).expect("the folder is ours");
            files.extend(below.map(|entry| entry.expect("an entry").path()));
        } else if path.is_file() && !path.ends_with("log") {
            let bytes = fs::read(&path).expect("the file is ours");
            let holds = mentions(&bytes, "hush-hush");
            assert!(!holds, "the secret is in {}", path.display());
        }
    }
    assert!(!home.daemon_said().contains("hush-hush"));
}

#[test]
fn a_job_is_stopped_at_the_end_of_its_time() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let said = home
        .divvy(&typed("run -g 0.25 --time 1s -- sleep 1000"))
        .exits(143);
    let cause = "(local time): its time limit of 1s was reached";
    assert!(said.stderr.contains(cause), "{}", said.stderr);
    assert_eq!(home.ended("last").end_reason, Some(EndReason::TimeLimit));
    let said = home.divvy(&["wait", "last"]).exits(143);
    assert!(said.stderr.contains(cause), "{}", said.stderr);
}

#[test]
fn a_job_starts_after_those_it_names_and_one_that_needs_them_to_end_well_gives_up() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let script = format!(
        "until test -e {}; do sleep 0.05; done; exit 3",
        home.gate("go")
    );
    let first = home.submit(&["-g", "0.25"], &["sh", "-c", &script]);
    let after = home.submit(&["-g", "0.25", "--after", &first], &["true"]);
    let after_ok = home.submit(&["-g", "0.25", "--after-ok", &first], &["true"]);
    let both = home.submit(
        &["-g", "0.25", "--after", &first, "--after-ok", &after],
        &["true"],
    );
    home.running(&first);
    for job in [&after, &after_ok, &both] {
        assert_eq!(home.job(job).state, JobState::Queued);
    }
    home.open("go");
    assert_eq!(home.ended(&after).exit_code, Some(0));
    assert_eq!(home.ended(&both).exit_code, Some(0));
    let given_up = home.ended(&after_ok);
    assert_eq!(given_up.end_reason, Some(EndReason::DependencyFailed));
    assert!(given_up.started_at.is_none());
}

/// What jobs have written, in the order they wrote it.
fn written(home: &Home) -> Vec<String> {
    let text = fs::read_to_string(home.scratch().join("written")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn writes(home: &Home, words: &str) -> String {
    format!(
        "echo {words} >>{}",
        home.scratch().join("written").display()
    )
}

#[test]
fn an_array_is_a_job_for_each_index_and_no_more_of_them_at_once_than_is_said() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let (begin, end) = (
        writes(&home, "$DIVVY_ARRAY_INDEX"),
        writes(&home, "$DIVVY_ARRAY_INDEX"),
    );
    let flags = ["-g", "0.125", "--array", "0,2-4%1", "--name", "sweep"];
    let _ = home.submit(
        &flags,
        &["sh", "-c", &format!("{begin}; sleep 0.02; {end}")],
    );
    for index in [0, 2, 3, 4] {
        assert_eq!(home.ended(&format!("sweep[{index}]")).exit_code, Some(0));
    }
    assert_eq!(written(&home), ["0", "0", "2", "2", "3", "3", "4", "4"]);
}

#[test]
fn a_job_that_fails_is_started_again_so_often() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let script = format!("{}; exit 9", writes(&home, "run"));
    let id = home.submit(&["-g", "0.25", "--retries", "2"], &["sh", "-c", &script]);
    let job = home.ended(&id);
    assert_eq!((job.exit_code, job.runs_before), (Some(9), 2));
    assert_eq!(written(&home).len(), 3);
}

#[test]
fn the_higher_priority_is_started_first() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let whole = home.submit_holder(&["-g", "1"], 0, "whole");
    home.running(&whole);
    let ids: Vec<String> = ["-5", "0", "5"]
        .iter()
        .map(|priority| {
            home.submit(
                &["-g", "1", "--priority", priority],
                &["sh", "-c", &writes(&home, priority)],
            )
        })
        .collect();
    home.open("whole");
    ids.iter().for_each(|id| drop(home.ended(id)));
    assert_eq!(written(&home), ["5", "0", "-5"]);
}

/// Behind a job that waits for GPU 0, which is held: one that GPU 1 has room for, and one that waits for GPU 0 as well.
fn behind_another(home: &Home) -> (String, String) {
    let whole = ["-g", "1", "--gpus-on", "0"];
    home.running(&home.submit(&whole, &["sleep", "1000"]));
    let head = home.submit(&whole, &["true"]);
    let passes = home.submit(&["-g", "0.5"], &["true"]);
    let delays = home.submit(&["-g", "0.5", "--gpus-on", "0"], &["true"]);
    assert_eq!(home.job(&head).state, JobState::Queued);
    (passes, delays)
}

#[test]
fn with_backfill_a_job_passes_one_that_it_cannot_delay() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    let (passes, delays) = behind_another(&home);
    let states = [passes, delays].map(|job| home.job(&job).state);
    assert_eq!(states, [JobState::Queued; 2]);

    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&["--set", "backfill=true"]);
    let (passes, delays) = behind_another(&home);
    assert_eq!(home.ended(&passes).exit_code, Some(0));
    assert_eq!(home.job(&delays).state, JobState::Queued);
}

#[test]
fn what_does_nothing_is_told_of_suspended_or_cancelled_as_its_flags_or_the_daemons_say() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "idle={ after = \"1s\", action = \"cancel\" }"]);
    let submit = |flags: &str| {
        home.submit(
            &[typed("-g 0.125"), typed(flags)].concat(),
            &["sleep", "1000"],
        )
    };
    let never = submit("--idle-timeout none");
    let told = submit("--idle-timeout 1s");
    let suspended = submit("--idle-timeout 1s --idle-action suspend");
    let cancelled = submit("");
    assert_eq!(
        home.ended(&cancelled).end_reason,
        Some(EndReason::IdleTimeout)
    );
    until("it is suspended", || {
        home.job(&suspended).suspended.then_some(())
    });
    until("it is told of", || {
        let events = home.items(&["events"]);
        let is_it = |event: &Value| event["kind"] == "idle" && event["job"] == json!(told);
        events.iter().any(is_it).then_some(())
    });
    let [never, told] = [&never, &told].map(|id| home.job(id));
    assert_eq!(told.idle.map(|rule| rule.action), Some(IdleAction::Notify));
    for job in [never, told] {
        assert!(job.state == JobState::Running && !job.suspended, "{job:?}");
    }
}

#[test]
fn without_signals_attach_ends_alone_and_what_is_followed_is_told_to_its_end() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let script = format!(
        "echo begun; until test -e {}; do sleep 0.05; done; echo done",
        home.gate("go")
    );
    let id = home.submit(&["-g", "0.25"], &["sh", "-c", &script]);
    let begin = |words: &[&str]| {
        let mut child = home
            .divvy_command(words)
            .stdout(Stdio::piped())
            .spawn()
            .expect("divvy starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = lines.next().expect("a line").expect("text");
        (child, lines, first)
    };
    let (mut attached, _, first) = begin(&["attach", "--from-start", "--no-signals", &id]);
    assert_eq!(first, "begun");
    kill_process(Pid::from_child(&attached), Signal::INT).expect("it is our child");
    assert!(!attached.wait_bounded().expect("it is our child").success());
    // The client may read the job's output before the daemon has journaled its start.
    assert_eq!(home.running(&id).state, JobState::Running);

    let (mut log, rest, first) = begin(&["logs", "--follow", &id]);
    let (mut events, told, _) = begin(&["events", "--follow", "--output", "ndjson"]);
    assert_eq!(first, "begun");
    home.open("go");
    let rest: Vec<String> = rest.map(|line| line.expect("text")).collect();
    assert_eq!(rest, ["done"]);
    assert!(log.wait_bounded().expect("it is our child").success());
    let is_end = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("a line of JSON");
        event["kind"] == "ended" && event["job"] == json!(id)
    };
    let mut told = told.map(|line| line.expect("text"));
    assert!(told.any(|line| is_end(&line)), "its end is told");
    events.kill().expect("it is our child");
    events.wait_bounded().expect("it is our child");
}

#[test]
fn of_an_array_64_logs_are_followed_at_once() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let script = format!(
        "echo hi; [ $DIVVY_ARRAY_INDEX = 65 ] || until test -e {}; do sleep 0.05; done",
        home.gate("go")
    );
    let flags = ["-g", "0.25", "--array", "1-65", "--hold"];
    let id = home.submit(&flags, &["sh", "-c", &script]);
    let (first, last) = (format!("{id}_1"), format!("{id}_65"));
    let _ = home.divvy(&["release", &last]).ok();
    let _ = home.ended(&last);
    let mut command = home.divvy_command(&["logs", "-f", &id]);
    let mut log = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(log.stdout.take().expect("piped")).lines();
    let mut lines = lines.map(|line| line.expect("text"));
    // The last has ended and the 64 before it are held: its log is not followed before one of theirs has ended.
    let _ = home.divvy(&["release", &first]).ok();
    assert_eq!(lines.next(), Some(format!("{first}  | hi")));
    home.open("go");
    assert_eq!(lines.next(), Some(format!("{last} | hi")));
    log.kill().expect("it is our child");
    log.wait_bounded().expect("it is our child");
}

#[test]
fn usage_is_of_the_time_between_and_forgotten_after_what_is_kept() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let _ = home.divvy(&typed("run -g 0.25 -- true")).ok();
    let ended = home.ended("last").ended_at.expect("it has ended");
    let rows = |words: &str| home.items(&[typed("usage --by none"), typed(words)].concat());
    assert_eq!(rows("--since 1h")[0]["jobs"], 1);
    assert!(rows("--since 2001-01-01 --until 2002-01-01").is_empty());
    assert!(rows("--since 2h --until 1h").is_empty());
    assert_eq!(daemon.stop(), 0);
    // A daemon forgets when it starts.
    until("it is older than what is kept", || {
        (jiff::Timestamp::now().duration_since(ended).as_secs() > 1).then_some(())
    });
    let _daemon = home.daemon(&typed("--set retention.usage-for=1s"));
    until("it is forgotten", || {
        rows("--since 1h").is_empty().then_some(())
    });
}

#[test]
fn less_compute_time_and_another_gpu_are_had_by_their_flags() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    let id = home.submit_holder(
        &["-g", "0.25", "--gpus-on", "1", "--compute", "strict"],
        MIB,
        "go",
    );
    let job = home.running(&id);
    assert_eq!(
        (job.slices[0].gpu_index, job.compute.as_str()),
        (1, "strict")
    );
    let resized = home
        .divvy(&["resize", &id, "--compute", "fair=0.5", "--output", "json"])
        .ok();
    assert_eq!(resized.items()[0]["compute"], "fair=0.5");
    let resized = home
        .divvy(&["resize", &id, "--gpu", "0.5", "-o", "json"])
        .ok();
    assert_eq!(resized.items()[0]["slices"][0]["share"], 500);
    let resized = home
        .divvy(&["resize", &id, "--gpu-memory", "50G", "-o", "json"])
        .ok();
    assert_eq!(
        resized.items()[0]["slices"][0]["memory_limit_bytes"],
        50_u64 << 30
    );
}

#[test]
fn a_job_file_is_submitted_as_it_is_typed_and_its_output_and_end_are_told() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let folder = home.scratch().display().to_string();
    let text = "#!/bin/sh\n#SBATCH -J train -G 1 -o %x.out --mem=4G\n#DIVVY -g 0.25\n\
                echo \"$1 $SLURM_JOB_NAME\"; PATH=/nowhere\nsrun true\n";
    fs::write(home.scratch().join("job.sh"), text).expect("the folder is ours");
    let file = format!("{folder}/job.sh");
    let said = home.divvy(&["submit", "-C", &folder, &file, "a b"]).ok();
    for line in [
        "--mem has no effect: Divvy allocates only GPUs",
        "line 5 of",
        "calls srun",
    ] {
        assert!(said.stderr.contains(line), "{}", said.stderr);
    }
    let job = home.ended("last");
    assert_eq!((job.name.as_str(), job.exit_code), ("train", Some(127)));
    let log = home.divvy(&["logs", "-f", "last"]).ok();
    assert!(log.stdout.starts_with("a b train\n"), "{}", log.stdout);

    // Refused before a daemon is asked: with the line, and with both flags.
    for (words, why) in [
        (vec!["--wrap", "true", "--", "true"], "cannot be used with"),
        (vec!["--open-mode", "both", "--", "true"], "--open-mode"),
        (vec!["-o", "a.b", "--stdout", "c", "true"], "--stdout"),
        (
            vec!["-o", "jsno", "true"],
            "--output jsno: neither a format",
        ),
        (vec!["-e", "", "true"], "-e : the file name is empty"),
    ] {
        let said = home.divvy(&[&["submit", "-g", "0.25"], &words[..]].concat());
        assert_eq!(said.code, USAGE, "{words:?}: {}", said.stderr);
        assert!(
            said.stderr.contains(why) && said.stderr.contains("hint: "),
            "{}",
            said.stderr
        );
    }
    let wrapped = home.divvy(&[
        "submit",
        "--parsable",
        "-g",
        "0.25",
        "--wrap",
        "echo x; exit 3",
    ]);
    let id = wrapped.ok().stdout.trim().to_owned();
    let silent = home.divvy(&["wait", "--bell", &id]);
    assert_eq!((silent.code, silent.stderr.as_str()), (3, ""));
    let typed = format!("{} wait --bell {id} {id}", home.program("divvy"));
    let output = home
        .command("script")
        .args(["-qec", &typed, "/dev/null"])
        .stdin(Stdio::null())
        .output_bounded();
    match output {
        Ok(output) => {
            let rings = output.stdout.iter().filter(|byte| **byte == 7).count();
            assert_eq!((output.status.code(), rings), (Some(3), 2), "{output:?}");
        }
        Err(_) => eprintln!("SKIPPED: no script(1)"),
    }
}
