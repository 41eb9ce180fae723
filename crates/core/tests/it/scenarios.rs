//! Scenarios: commands in, recorded text out. Each `scenarios/NAME.txt` holds both: lines with `> ` are commands, the
//! lines after each are what it answered when it was recorded, `#` is a remark.
//!
//! `cargo xtask bless` records anew; review the diff.

use crate::node;

use std::fmt::Write as _;
use std::path::PathBuf;

use divvy_core::mig::{Placement, UnallocatedInstance, UnallocatedState};
use divvy_core::{
    Bytes, Gpu, GpuSelection, GpuUuid, JobId, Mode, Order, Plan, QueueWords, Request, Snapshot,
    can_ever_fit, parse_gpus, parse_queues, why,
};
use node::{Node, amount};

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        const LISTED: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { check(stringify!($name)); })*
    };
}

scenarios! {
    m1_memory_gets_the_smallest_profile,
    m2_a_queues_fraction_beside_a_shared_gpu,
    m3_idle_instances_are_taken_over_or_removed,
    m4_a_wait_by_layout,
    m5_backfill_keeps_places_open,
    m6_what_mig_can_never_give,
    m7_isolation,
    m8_somebody_elses_instances,
    p_rules_of_the_command_line,
    r_backfill_passes_only_where_it_cannot_delay,
    r_reasons_and_what_is_sooner,
    r_what_does_not_answer,
    r_requests_beyond_the_node,
    r_round_robin_with_order_fairness,
    r_the_fewest_ends_that_start_it,
    t1_the_seeds_example,
    t2_a_quarter_goes_to_the_tighter_gpu,
    t3_a_whole_job_takes_the_empty_gpu_and_a_half_fills_the_other,
    t4_a_waiting_head_stops_the_queues_below,
    t5_eight_eighths_fill_a_gpu,
    t6_three_times_three_eighths_need_two_gpus,
    t7_two_gpus_are_not_one_and_three_quarters,
    t8_rounded_shares_never_overfill_a_gpu,
    w7_letters_go_on_after_z,
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/scenarios")
        .join(format!("{name}.txt"))
}

#[test]
fn every_scenario_file_is_run() {
    let folder = path("any").parent().expect("a folder").to_owned();
    for file in folder.read_dir().expect("the scenarios' folder") {
        let file = file
            .expect("a file")
            .file_name()
            .into_string()
            .expect("a plain name");
        assert!(
            LISTED.iter().any(|name| file == format!("{name}.txt")),
            "{file} is not listed in scenarios.rs"
        );
    }
}

fn check(name: &str) {
    let recorded = std::fs::read_to_string(path(name)).expect("the scenario's file");
    let replayed = replay(&recorded);
    if std::env::var_os("DIVVY_RECORD").is_some() {
        std::fs::write(path(name), replayed).expect("the scenario's file can be written");
    } else if recorded != replayed {
        panic!(
            "{name}.txt has other answers now (cargo xtask bless records them):\n{}",
            diff(&recorded, &replayed)
        );
    }
}

/// The file as it would be recorded now: its commands and remarks, with today's answers.
fn replay(recorded: &str) -> String {
    let mut node = Node::new(0, "");
    let mut text = String::new();
    for line in recorded.lines() {
        if line.starts_with('#') {
            text += &format!("{line}\n");
        } else if let Some(command) = line.strip_prefix("> ") {
            text += &format!("{line}\n{}", answer(&mut node, command));
        }
    }
    text
}

/// The lines that differ, in the order of both texts: `-` as recorded, `+` as answered now.
fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    // Length of the longest common subsequence of each pair of tails.
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            text += &format!("  {}\n", old[i]);
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            text += &format!("- {}\n", old[i]);
            i += 1;
        } else {
            text += &format!("+ {}\n", new[j]);
            j += 1;
        }
    }
    text
}

/// One command, and what it says.
fn answer(node: &mut Node, command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words[..] {
        // gpus COUNT SIZE: shared GPUs, all of their memory usable
        ["gpus", count, size] => {
            let size: Bytes = size.parse().expect("a size");
            node.snapshot.gpus = (0..count.parse().expect("a count"))
                .map(node::gpu)
                .collect();
            node.snapshot
                .gpus
                .iter_mut()
                .for_each(|gpu| gpu.total = size);
            String::new()
        }
        ["gpu", index, "has", "foreign", memory] => {
            node.snapshot.gpus[place(index)].unmanaged = memory.parse().expect("memory");
            String::new()
        }
        // A GPU in MIG mode, of a model of data/mig.toml
        ["gpu", index, "is", "mig", model] => {
            node::cut(&mut node.snapshot.gpus[place(index)], model);
            String::new()
        }
        // gpu INDEX with STANDING PROFILE@START: an instance that is no job's
        ["gpu", index, "with", standing, instance] => {
            others(&mut node.snapshot.gpus[place(index)], standing, instance);
            String::new()
        }
        ["gpu", index, "is", "lost"] => {
            node.snapshot.gpus.remove(place(index));
            String::new()
        }
        ["gpu", index, "is", "away"] => {
            let gpu = &mut node.snapshot.gpus[place(index)];
            (gpu.mode, gpu.away) = (Mode::Unmanaged, true);
            String::new()
        }
        ["gpu", index, "is", mode] => {
            let gpu = &mut node.snapshot.gpus[place(index)];
            (gpu.mode, gpu.away) = (mode.parse().expect("a mode"), false);
            String::new()
        }
        ["order", "fairness"] => {
            node.snapshot.order = Order::Fairness;
            String::new()
        }
        ["backfill", switch] => {
            node.snapshot.backfill = switch == "on";
            String::new()
        }
        // The daemon's flags, as parsed.
        ["--gpus", ref words @ ..] => match parse_gpus(words) {
            Ok(GpuSelection::All) => "  all\n".to_owned(),
            Ok(selection) => {
                let gpus = node.snapshot.gpus.iter();
                let here: Vec<_> = gpus.map(|gpu| (gpu.index, &gpu.uuid)).collect();
                match selection.check(here.iter().copied()) {
                    Ok(()) => {
                        let named = here
                            .iter()
                            .filter(|(index, uuid)| selection.names(*index, uuid));
                        format!(
                            "  {:?}\n",
                            named.map(|(index, _)| index).collect::<Vec<_>>()
                        )
                    }
                    Err(error) => format!("  error: {error}\n  hint: {}\n", error.hint()),
                }
            }
            Err(error) => format!("  error: {error}\n  hint: {}\n", error.hint()),
        },
        ["--queue", ref words @ ..] => queues(node, words, QueueWords::Names, false),
        ["daemon", "--queue", ref words @ ..] => queues(node, words, QueueWords::Any, false),
        ["--dynamic-gpus", "--queue", ref words @ ..] => {
            queues(node, words, QueueWords::Amounts, false)
        }
        [
            "--dynamic-gpus",
            "--services-mode",
            "--queue",
            ref words @ ..,
        ] => queues(node, words, QueueWords::Amounts, true),
        // submit QUEUE [AMOUNT [on INDEX,… | exactly | ISOLATION]]
        ["submit", queue, ref ask @ ..] => submit(node, queue, ask),
        ["plan"] => {
            let plan = node.step();
            show_plan(&node.snapshot.gpus, &plan)
        }
        ["end", ref jobs @ ..] => {
            for job in jobs {
                assert!(
                    node.end(job.parse().expect("a job")),
                    "#{job} holds something"
                );
            }
            String::new()
        }
        ["show"] => show(&node.snapshot),
        ["why", job] => show_why(&node.snapshot, job.parse().expect("a job")),
        _ => panic!("no such command: {command}"),
    }
}

fn place(index: &str) -> usize {
    index.parse().expect("an index")
}

fn queues(node: &mut Node, words: &[&str], kind: QueueWords, services_mode: bool) -> String {
    match parse_queues(words, kind, services_mode) {
        Err(error) => format!("  error: {error}\n  hint: {}\n", error.hint()),
        Ok(specs) => {
            let mut text = String::new();
            for spec in &specs {
                match spec.amount {
                    None => writeln!(text, "  {}: what each job asks for", spec.name),
                    Some(amount) => writeln!(text, "  {}: {}", spec.name, amount.describe()),
                }
                .expect("text");
                if let Some(Err(never)) = spec
                    .amount
                    .map(|amount| can_ever_fit(&node.snapshot.gpus, &amount.into()))
                {
                    writeln!(text, "  error: {never}\n  hint: {}", never.hint()).expect("text");
                }
            }
            node.set_queues(specs);
            text
        }
    }
}

fn submit(node: &mut Node, queue: &str, ask: &[&str]) -> String {
    let request: Request = match *ask {
        [] => return format!("  #{}\n", node.submit(queue)),
        [text] => amount(text).into(),
        [text, "on", on] => {
            let on = on
                .split(',')
                .map(|index| index.parse().expect("an index"))
                .collect();
            Request {
                on,
                ..amount(text).into()
            }
        }
        [text, "exactly"] => Request {
            exact: true,
            ..amount(text).into()
        },
        [text, isolation] => Request {
            isolation: isolation.parse().expect("a kind of isolation"),
            ..amount(text).into()
        },
        _ => panic!("submit QUEUE [AMOUNT [on INDEX,… | exactly | ISOLATION]]"),
    };
    match can_ever_fit(&node.snapshot.gpus, &request) {
        Ok(()) => format!("  #{}\n", node.submit_request(queue, request)),
        Err(never) => format!("  error: {never}\n  hint: {}\n", never.hint()),
    }
}

/// Somebody's instance, `1g.5gb@0`.
fn others(gpu: &mut Gpu, standing: &str, instance: &str) {
    let (profile, start) = instance.split_once('@').expect("PROFILE@START");
    let carving = gpu.mig.as_mut().expect("a GPU in MIG mode");
    let profile = carving.table.named(profile.parse().expect("a profile"));
    let standing = match standing {
        "idle" => UnallocatedState::Idle,
        "foreign" => UnallocatedState::Foreign,
        "quarantined" => UnallocatedState::Quarantined,
        "leaving" => UnallocatedState::Leaving,
        _ => panic!("no such standing: {standing}"),
    };
    carving.instances.push(UnallocatedInstance {
        placement: Placement {
            profile: profile.expect("a profile of the model").id,
            start: start.parse().expect("a slot"),
        },
        standing,
    });
}

/// `, removing 1g.5gb@0`: idle instances that go for a start.
fn removed(gpus: &[Gpu], reclaim: &[(GpuUuid, Placement)]) -> String {
    let label = |(uuid, placement): &(GpuUuid, Placement)| {
        let gpu = gpus.iter().find(|gpu| gpu.uuid == *uuid)?;
        Some(gpu.mig.as_ref()?.table.label(*placement))
    };
    let labels: Vec<String> = reclaim.iter().filter_map(label).collect();
    if labels.is_empty() {
        String::new()
    } else {
        format!(", removing idle {}", labels.join(", "))
    }
}

fn show_plan(gpus: &[Gpu], plan: &Plan) -> String {
    let mut text = String::new();
    for start in &plan.starts {
        let grants = start
            .grants
            .iter()
            .map(|grant| format!("{} {}", grant.label, grant.memory));
        writeln!(
            text,
            "  start #{} {}: {}{}",
            start.job,
            start.queue,
            grants.collect::<Vec<_>>().join(", "),
            removed(gpus, &start.reclaim)
        )
        .expect("text");
    }
    for wait in &plan.waits {
        writeln!(
            text,
            "  wait  #{} {} (place {}): {}",
            wait.job, wait.queue, wait.place, wait.reason
        )
        .expect("text");
    }
    text
}

fn show(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for gpu in &snapshot.gpus {
        let grants = || {
            snapshot
                .held
                .iter()
                .flat_map(|held| held.grants.iter().map(move |grant| (held.job, grant)))
        };
        let held: Vec<String> = grants()
            .filter(|(_, grant)| grant.gpu == gpu.uuid)
            .map(|(job, grant)| format!("#{job} {} {}", grant.label, grant.memory))
            .collect();
        let instances = gpu.mig.iter().flat_map(|carving| {
            let label = |instance: &UnallocatedInstance| {
                let label = carving.table.label(instance.placement);
                format!("{} {label}", instance.standing)
            };
            carving.instances.iter().map(label)
        });
        let all: Vec<String> = held.into_iter().chain(instances).collect();
        writeln!(text, "  GPU {}: {}", gpu.index, all.join(", ")).expect("text");
    }
    text.lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

fn show_why(snapshot: &Snapshot, job: JobId) -> String {
    let Some(why) = why(snapshot, job) else {
        return "  no such job\n".to_owned();
    };
    let mut text = format!("  #{job} {}\n", why.summary);
    for gpu in why.gpus {
        let failed = if gpu.failed.is_empty() {
            "has room".to_owned()
        } else {
            gpu.failed.join("; ")
        };
        let holders = if gpu.holders.is_empty() {
            String::new()
        } else {
            let holders: Vec<String> = gpu.holders.iter().map(ToString::to_string).collect();
            format!(" [{}]", holders.join(", "))
        };
        writeln!(text, "    GPU {}: {failed}{holders}", gpu.index).expect("text");
    }
    for (count, job) in why.jobs_ahead.iter().enumerate() {
        let lead = if count == 0 { "    behind" } else { "" };
        write!(text, "{lead} #{job}").expect("text");
    }
    if !why.jobs_ahead.is_empty() {
        text.push('\n');
    }
    for sooner in why.suggestions {
        writeln!(text, "    {sooner}").expect("text");
    }
    text
}
