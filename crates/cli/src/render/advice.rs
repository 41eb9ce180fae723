//! Output of `advise`: one row for each program that has run, and the command that follows.

use divvy_api::v1::Advice;
use divvy_core::Bytes;

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row a program.
pub fn advice(all: &[Advice], view: View) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Text("PROGRAM"),
        Column::Right("RUNS"),
        Column::Right("LIMIT"),
        Column::Right("PEAK p50/max"),
        Column::Right("SUGGESTED"),
    ];
    if view.wide {
        columns.extend([Column::Fixed("FLAGS"), Column::Text("NAME")]);
    }
    columns.push(Column::Text("REASON"));
    let rows: Vec<Vec<String>> = all.iter().map(|one| row(one, view)).collect();
    table::render(&columns, &rows, view.fit())
}

fn row(advice: &Advice, view: View) -> Vec<String> {
    let peaks = [advice.memory_peak_median_bytes, advice.memory_peak_bytes];
    let gpus = match advice.gpus {
        1 => String::new(),
        gpus => format!("{gpus} × "),
    };
    let mut cells = vec![
        text::clean(&advice.program),
        advice.runs.to_string(),
        format!("{gpus}{}", text::memory(advice.memory_limit_bytes)),
        text::memories(&peaks),
        match advice.memory_bytes {
            Some(bytes) => format!("{gpus}{}", text::memory(bytes)),
            None => format!("{gpus}> {}", text::memory(advice.memory_at_least_bytes)),
        },
    ];
    if view.wide {
        cells.extend([flag(advice), text::clean(&advice.name)]);
    }
    cells.push(reason(advice));
    cells
}

/// The memory saved or added, and what is known of the need.
fn reason(advice: &Advice) -> String {
    let (runs, refused) = (advice.runs, advice.denied_runs);
    let Some(ask) = advice.memory_bytes else {
        return match refused {
            1 if runs == 1 => "the run was refused memory, so its whole need is unknown".to_owned(),
            _ => format!(
                "{refused} of {runs} runs were refused memory, so their whole need is unknown"
            ),
        };
    };
    let had = advice.memory_limit_bytes;
    let change = match had.cmp(&ask) {
        std::cmp::Ordering::Less => format!("{} more", text::memory(ask - had)),
        std::cmp::Ordering::Equal => "unchanged".to_owned(),
        std::cmp::Ordering::Greater => format!("{} less", text::memory(had - ask)),
    };
    let limit = match advice.amount {
        None => ", but no GPU here has so much",
        Some(_) => "",
    };
    match refused {
        0 => format!("{change}{limit}; no run was refused memory"),
        _ => format!("{change}{limit}; {refused} of {runs} runs were refused memory"),
    }
}

/// The flag of a size; empty without one.
pub(super) fn flag(advice: &Advice) -> String {
    let amount = advice.amount.clone().map(divvy_core::Amount::try_from);
    match (amount, advice.memory_bytes) {
        (Some(Ok(amount)), _) => amount.flag(),
        (_, Some(bytes)) => format!("--gpu-memory {}", Bytes::new(bytes)),
        (_, None) => String::new(),
    }
}

/// The newest run's command with the size that is advised, to be pasted; nothing where no GPU has that much.
pub fn command_of(advice: &Advice) -> String {
    if advice.amount.is_none() {
        return String::new();
    }
    let command = text::command_line(&advice.command);
    format!("\ndivvy run {} -- {command}\n", flag(advice))
}
