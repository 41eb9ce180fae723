//! Output of `selftest --like`: a list of steps for each program, and their sum.

use divvy_api::v1::{LimiterForm, Replay, ReplayResult, ReplayStep};

use super::View;
use crate::table::{self, Column};
use crate::text;

/// A heading, the steps and their sum, for each program.
pub fn replays(replays: &[Replay], view: View) -> String {
    let each: Vec<String> = replays.iter().map(|replay| one(replay, view)).collect();
    each.join("\n")
}

fn one(replay: &Replay, view: View) -> String {
    let mut text = heading(replay);
    let columns = [Column::Fixed("RESULT"), Column::Text("STEP")];
    let steps = replay.steps.iter();
    let rows: Vec<Vec<String>> = steps.flat_map(|step| rows(step, view.wide)).collect();
    text.push_str(&table::render(&columns, &rows, view.fit()));
    text.push_str(&sum(replay));
    text
}

fn heading(replay: &Replay) -> String {
    let simulated = match replay.simulated {
        Some(_) => ", simulated",
        None => "",
    };
    let form = match replay.form {
        Some(LimiterForm::Preload) => "preload",
        Some(LimiterForm::Wrapper) => "wrapper",
        None => "not loaded",
    };
    let holder = text::enforcer(&replay.enforcement);
    let holder = match replay.enforcement.as_str() {
        "mig" => holder,
        _ => format!("{holder} ({form})"),
    };
    format!(
        "{} on GPU {} {}{simulated} · driver {}, CUDA {} · limit {}, enforced by {holder}\n",
        replay.program,
        replay.gpu_index,
        text::clean(&replay.model),
        text::clean(&replay.driver_version),
        text::clean(&replay.cuda_version),
        text::memory(replay.memory_limit_bytes),
    )
}

/// The calls of a step beside its result; below them what the program expects, and what was seen.
fn rows(step: &ReplayStep, wide: bool) -> Vec<Vec<String>> {
    let result = match step.result {
        ReplayResult::Ok => "ok",
        ReplayResult::Failed => "FAILED",
        ReplayResult::NotAvailable => "not available",
    };
    let mut lines = vec![
        (result, text::clean(&step.calls)),
        ("", format!("expects: {}", text::clean(&step.expects))),
        ("", format!("seen: {}", text::clean(&step.seen))),
    ];
    if wide {
        lines.push(("", format!("source: {}", text::clean(&step.source))));
    }
    let row = |(result, line): (&str, String)| vec![result.to_owned(), line];
    lines.into_iter().map(row).collect()
}

/// `6 ok, 1 not available, 0 failed: vllm finds what it expects`
fn sum(replay: &Replay) -> String {
    let count = |result| {
        let steps = replay.steps.iter();
        steps.filter(|step| step.result == result).count()
    };
    format!(
        "{} ok, {} not available, {} failed: {} {} what it expects\n",
        count(ReplayResult::Ok),
        count(ReplayResult::NotAvailable),
        count(ReplayResult::Failed),
        replay.program,
        if replay.passed {
            "finds"
        } else {
            "does not find"
        },
    )
}
