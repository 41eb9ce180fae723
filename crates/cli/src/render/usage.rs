//! Output of `usage`.

use divvy_api::v1::Usage;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row for each of what was asked by. GPU time is in hours of a whole GPU.
pub fn usages(rows: &[Usage], view: View) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let has = |of: fn(&Usage) -> bool| rows.iter().any(of);
    let asked = [
        ("USER", has(|row| row.user.is_some())),
        ("PROJECT", has(|row| row.project.is_some())),
        ("QUEUE", has(|row| row.queue.is_some())),
        ("GPU", has(|row| row.gpu_uuid.is_some())),
        ("JOB", has(|row| row.job.is_some())),
        ("NAME", has(|row| row.name.is_some())),
    ];
    let keys = asked.into_iter().filter(|(_, has)| *has);
    let keys: Vec<&'static str> = keys.map(|(name, _)| name).collect();
    let mut columns: Vec<Column> = keys.iter().map(|name| Column::Text(name)).collect();
    columns.extend([
        Column::Right("JOBS"),
        Column::Right("GPU HOURS"),
        Column::Right("USED"),
        Column::Right("IDLE"),
        Column::Right("UNKNOWN"),
    ]);
    if view.wide {
        columns.extend([Column::Right("LOANED"), Column::Right("SUSPENDED")]);
    }
    columns.push(Column::Right("MEMORY GiB H"));
    let cell = |row: &Usage, name: &str| match name {
        "USER" => row.user.clone(),
        "PROJECT" => row.project.clone(),
        "QUEUE" => row.queue.clone(),
        "GPU" => row.gpu_index.map(|index| index.to_string()),
        "JOB" => row.job.clone(),
        _ => row.name.clone(),
    };
    let row = |row: &Usage| {
        let key =
            |name: &&str| cell(row, name).map_or_else(|| "-".to_owned(), |own| text::clean(&own));
        let mut cells: Vec<String> = keys.iter().map(key).collect();
        cells.extend([
            row.jobs.to_string(),
            hours(row.allocated_gpu_ms),
            hours(row.used_gpu_ms),
            hours(row.idle_gpu_ms),
            hours(row.unknown_gpu_ms),
        ]);
        if view.wide {
            cells.extend([hours(row.loaned_gpu_ms), hours(row.suspended_gpu_ms)]);
        }
        cells.push(hundredths(
            u128::from(row.memory_mib_s) * 100 / (1024 * 3600),
        ));
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

/// `12.50 GPU hours from … until …, of which 40 % used`.
pub fn usage_total(
    rows: &[Usage],
    since: Timestamp,
    until: Timestamp,
    zone: fn() -> TimeZone,
) -> String {
    let sum = |of: fn(&Usage) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
    let allocated = sum(|row| row.allocated_gpu_ms);
    let (idle, unknown) = (sum(|row| row.idle_gpu_ms), sum(|row| row.unknown_gpu_ms));
    let percent = |part: u64| {
        (u128::from(part) * 100)
            .checked_div(allocated.into())
            .unwrap_or(0)
    };
    format!(
        "{} GPU hours from {} until {}: {} % idle, {} % not measured",
        hours(allocated),
        text::time(since, zone()),
        text::time(until, zone()),
        percent(idle),
        percent(unknown)
    )
}

/// With two decimals, rounded down.
fn hours(gpu_ms: u64) -> String {
    hundredths(u128::from(gpu_ms) / 36_000)
}

fn hundredths(figure: u128) -> String {
    format!("{}.{:02}", figure / 100, figure % 100)
}
