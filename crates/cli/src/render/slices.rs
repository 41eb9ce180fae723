//! Output of `slice ls`.

use divvy_api::v1::{HeldClaim, Slice};

use super::View;
use super::jobs::labels;
use crate::table::{self, Column};
use crate::text;

/// One row a slice.
pub fn slices(slices: &[HeldClaim], view: View) -> String {
    if slices.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Text("SLICE"),
        Column::Text("USER"),
        Column::Text("ON"),
        Column::Right("USED/LIMIT"),
        Column::Right("PROCS"),
        Column::Text("STATE"),
        Column::Fixed("FOR"),
    ];
    if view.wide {
        columns.extend([Column::Right("JOB"), Column::Fixed("DEVICE")]);
    }
    columns.push(Column::Text("ENDS"));
    let rows: Vec<Vec<String>> = slices.iter().map(|slice| row(slice, view)).collect();
    table::render(&columns, &rows, view.fit())
}

fn row(held: &HeldClaim, view: View) -> Vec<String> {
    let used = held
        .slices
        .iter()
        .map(|slice| slice.memory_used_bytes)
        .sum();
    let limit = limit(&held.slices);
    let mut cells = vec![
        text::clean(&held.uid),
        text::clean(&held.owner),
        labels(&held.slices),
        text::memories(&[used, limit]),
        held.processes.to_string(),
        held.state.name().to_owned(),
        text::elapsed(held.since, view.now),
    ];
    if view.wide {
        cells.extend([format!("#{}", held.job), text::clean(&held.cdi_device)]);
    }
    let ends = end_of(held).unwrap_or_else(|| "by hand".to_owned());
    cells.push(match &held.problem {
        Some(problem) => format!("{ends}; {}", text::clean(problem)),
        None => ends,
    });
    cells
}

fn limit(slices: &[Slice]) -> u64 {
    slices.iter().map(|slice| slice.memory_limit_bytes).sum()
}

/// `gpu0:0.5a: 39.6 GiB`, the GPUs and the sum of the limits.
pub fn held_by(held: &HeldClaim) -> String {
    let limit = text::memory(limit(&held.slices));
    format!("{}: {limit}", labels(&held.slices))
}

/// What releases the slice besides a command.
pub fn end_of(held: &HeldClaim) -> Option<String> {
    let ends = held.ends.as_ref()?;
    match (ends.pid, &ends.cgroup) {
        (Some(pid), _) => Some(format!("process {pid}")),
        (None, Some(folder)) => Some(format!("group {}", text::clean(folder))),
        (None, None) => None,
    }
}
