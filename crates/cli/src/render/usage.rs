//! Output of `usage`: tables, with bars or sparklines of days.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use divvy_api::v1::{Joules, Usage};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::View;
use crate::table::{self, Column};
use crate::text;

/// Cells of a bar. One cell is a tenth of the time, which is as exact as the figure beside it needs.
const BAR: usize = 10;

/// Most marks of a sparkline. Of more days, several share a mark. The days of a month, so that a month needs no
/// sharing.
const SPARKS: usize = 31;

/// Characters of bars and sparklines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    Ascii,
    Blocks,
}

impl Marks {
    /// From the smallest use to the largest.
    const fn sparks(self) -> &'static [char] {
        match self {
            Self::Ascii => &['.', ':', '-', '=', '+', '*', '#', '@'],
            Self::Blocks => &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
        }
    }

    const fn nothing(self) -> char {
        match self {
            Self::Ascii => '_',
            Self::Blocks => '·',
        }
    }

    /// One mark for each figure; the tallest stands for `most`.
    fn sparkline(self, figures: &[u64], most: u64) -> String {
        let sparks = self.sparks();
        let mark = |figure: &u64| match figure {
            0 => self.nothing(),
            figure => {
                let steps = u128::from(*figure) * (sparks.len() as u128);
                let level = steps.div_ceil(u128::from(most.max(1))).max(1) - 1;
                let level = usize::try_from(level).unwrap_or(usize::MAX);
                sparks[level.min(sparks.len() - 1)]
            }
        };
        figures.iter().map(mark).collect()
    }

    /// A bar that is full for the whole.
    fn bar(self, part: u64, whole: u64) -> String {
        let steps = |each: usize| {
            let steps = u128::from(part) * ((BAR * each) as u128);
            let steps = steps.checked_div(u128::from(whole)).unwrap_or(0);
            let steps = usize::try_from(steps).unwrap_or(usize::MAX).min(BAR * each);
            // Something is never drawn as nothing.
            steps.max(usize::from(part > 0))
        };
        match self {
            Self::Ascii => {
                let halves = steps(2);
                "#".repeat(halves / 2) + if halves % 2 > 0 { "-" } else { "" }
            }
            Self::Blocks => {
                let eighths = steps(8);
                let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
                "█".repeat(eighths / 8) + rest[eighths % 8]
            }
        }
    }
}

/// The columns of a CSV file: what rows are of, then their figures.
pub const COLUMNS: [&str; 23] = [
    "day",
    "month",
    "idle",
    "namespace",
    "user",
    "project",
    "queue",
    "gpu_index",
    "gpu_uuid",
    "job",
    "name",
    "jobs",
    "allocated_gpu_ms",
    "used_gpu_ms",
    "loaned_gpu_ms",
    "idle_gpu_ms",
    "unknown_gpu_ms",
    "suspended_gpu_ms",
    "memory_mib_s",
    "unused_memory_mib_s",
    "energy_joules",
    "energy_estimated_joules",
    "capacity_gpu_ms",
];

/// What a table has besides the figures of each row.
enum Extra {
    Nothing,
    Bar(Marks),
    Sparklines(Vec<String>),
}

/// One row for each of what was asked by. GPU time is in hours of a whole GPU.
pub fn usages(rows: &[Usage], view: View, marks: Marks) -> String {
    let extra = if rows.iter().any(|row| row.day.is_some()) {
        Extra::Bar(marks)
    } else {
        Extra::Nothing
    };
    table(rows, view, &extra)
}

/// One row for each of `totals`, with a sparkline of its usage by day.
pub fn daily_usages(
    totals: &[Usage],
    rows: &[Usage],
    days: &[String],
    view: View,
    marks: Marks,
) -> String {
    let of_rows = by_day(totals, rows, days);
    let most = of_rows.iter().flatten().max().copied().unwrap_or_default();
    let lines = of_rows.iter().map(|days| marks.sparkline(days, most));
    table(totals, view, &Extra::Sparklines(lines.collect()))
}

/// `DAYS: from 2026-11-20 to 2026-11-26, one mark per day; the highest stands for 3.25 GPU hours`.
pub fn days_legend(totals: &[Usage], rows: &[Usage], days: &[String]) -> Option<String> {
    let of_rows = by_day(totals, rows, days);
    let most = *of_rows.iter().flatten().max().filter(|most| **most > 0)?;
    let (first, last) = (days.first()?, days.last()?);
    let each = match days_per_mark(days) {
        1 => "one mark per day".to_owned(),
        days => format!("one mark per {days} days"),
    };
    Some(format!(
        "DAYS: from {first} to {last}, {each}; the highest stands for {} GPU hours",
        hours(most)
    ))
}

fn days_per_mark(days: &[String]) -> usize {
    days.len().div_ceil(SPARKS).max(1)
}

/// Allocated GPU time for each mark of the sparkline of each of `totals`.
fn by_day(totals: &[Usage], rows: &[Usage], days: &[String]) -> Vec<Vec<u64>> {
    let each = days_per_mark(days);
    let key = |row: &Usage| {
        (
            row.user.clone(),
            row.project.clone(),
            row.queue.clone(),
            row.gpu_uuid.clone(),
            row.job.clone(),
            row.namespace.clone(),
        )
    };
    let mut found: HashMap<_, Vec<u64>> = HashMap::new();
    for row in rows {
        // The text of days sorts as their time.
        let place = row
            .day
            .as_ref()
            .and_then(|day| days.binary_search(day).ok());
        let marks = found
            .entry(key(row))
            .or_insert_with(|| vec![0; days.len().div_ceil(each)]);
        if let Some(mark) = place.and_then(|place| marks.get_mut(place / each)) {
            *mark = mark.saturating_add(row.allocated_gpu_ms);
        }
    }
    totals
        .iter()
        .map(|row| found.remove(&key(row)).unwrap_or_default())
        .collect()
}

fn table(rows: &[Usage], view: View, extra: &Extra) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let has = |of: fn(&Usage) -> bool| rows.iter().any(of);
    let asked = [
        ("DAY", has(|row| row.day.is_some())),
        ("MONTH", has(|row| row.month.is_some())),
        ("NAMESPACE", has(|row| row.namespace.is_some())),
        ("USER", has(|row| row.user.is_some())),
        ("PROJECT", has(|row| row.project.is_some())),
        ("QUEUE", has(|row| row.queue.is_some())),
        ("GPU", has(|row| row.gpu_uuid.is_some())),
        ("JOB", has(|row| row.job.is_some())),
        ("NAME", has(|row| row.name.is_some())),
    ];
    let keys = asked.into_iter().filter(|(_, has)| *has);
    let keys: Vec<&'static str> = keys.map(|(name, _)| name).collect();
    let column = |name: &&'static str| match *name {
        name @ ("DAY" | "MONTH") => Column::Fixed(name),
        name => Column::Text(name),
    };
    let mut columns: Vec<Column> = keys.iter().map(column).collect();
    // Days need the room of these columns.
    let is_whole = view.wide || matches!(extra, Extra::Nothing);
    // Daemons before version 0.2 report no capacity.
    let has_capacity = rows.iter().any(|row| row.capacity_gpu_ms > 0);
    // Beside the drawing of days, if there is one.
    let is_first = has_capacity && matches!(extra, Extra::Nothing);
    let is_last = has_capacity && !is_first;
    columns.extend([Column::Right("JOBS"), Column::Right("GPU HOURS")]);
    if is_first {
        columns.push(Column::Right("OF MACHINE"));
    }
    columns.extend([Column::Right("USED"), Column::Right("IDLE")]);
    if is_whole {
        columns.push(Column::SpareRight("UNKNOWN"));
    }
    if view.wide {
        columns.extend([Column::Right("LOANED"), Column::Right("SUSPENDED")]);
    }
    if is_whole {
        columns.push(Column::SpareRight("MEMORY GiB H"));
    }
    // Daemons before version 0.2 report neither.
    let has_unused = is_whole && has(|row| row.unused_memory_mib_s > 0);
    let has_energy = is_whole && has(|row| row.energy_joules > Joules::default());
    if has_unused {
        columns.push(Column::SpareRight("UNUSED"));
    }
    if has_energy {
        columns.push(Column::Right("ENERGY"));
    }
    if is_last {
        columns.push(Column::Right("OF MACHINE"));
    }
    match extra {
        Extra::Nothing => {}
        Extra::Bar(_) => columns.push(Column::Fixed("0-100 %")),
        Extra::Sparklines(_) => columns.push(Column::Fixed("DAYS")),
    }
    let cell = |row: &Usage, name: &str| match name {
        "DAY" => row.day.clone(),
        "MONTH" => row.month.clone(),
        "USER" => row.user.clone(),
        "PROJECT" => row.project.clone(),
        "QUEUE" => row.queue.clone(),
        "GPU" => row.gpu_index.map(|index| index.to_string()),
        "JOB" => row.job.clone(),
        "NAMESPACE" => row.namespace.clone(),
        _ => row.name.clone(),
    };
    let row = |(place, row): (usize, &Usage)| {
        let key =
            |name: &&str| cell(row, name).map_or_else(|| "-".to_owned(), |own| text::clean(&own));
        let mut cells: Vec<String> = keys.iter().map(key).collect();
        cells.extend([row.jobs.to_string(), hours(row.allocated_gpu_ms)]);
        let of_machine = || percent(row.allocated_gpu_ms, row.capacity_gpu_ms);
        if is_first {
            cells.push(of_machine());
        }
        cells.extend([hours(row.used_gpu_ms), hours(row.idle_gpu_ms)]);
        if is_whole {
            cells.push(hours(row.unknown_gpu_ms));
        }
        if view.wide {
            cells.extend([hours(row.loaned_gpu_ms), hours(row.suspended_gpu_ms)]);
        }
        if is_whole {
            cells.push(gib_hours(row.memory_mib_s));
        }
        if has_unused {
            cells.push(gib_hours(row.unused_memory_mib_s));
        }
        if has_energy {
            cells.push(energy(row));
        }
        if is_last {
            cells.push(of_machine());
        }
        match extra {
            Extra::Nothing => {}
            Extra::Bar(marks) => {
                cells.push(marks.bar(row.allocated_gpu_ms, row.capacity_gpu_ms));
            }
            Extra::Sparklines(lines) => cells.push(lines.get(place).cloned().unwrap_or_default()),
        }
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().enumerate().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

/// `12.50 GPU hours from … until …: 3.1 % of the machine, 40 % idle, 2 % not measured`.
pub fn usage_total(
    rows: &[Usage],
    since: Timestamp,
    until: Timestamp,
    zone: fn() -> TimeZone,
) -> String {
    let sum = |of: fn(&Usage) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
    let allocated = sum(|row| row.allocated_gpu_ms);
    let (idle, unknown) = (sum(|row| row.idle_gpu_ms), sum(|row| row.unknown_gpu_ms));
    // All rows of one period have its capacity.
    let periods: BTreeMap<_, u64> = rows
        .iter()
        .map(|row| (&row.day, row.capacity_gpu_ms))
        .collect();
    let capacity = periods.values().copied().fold(0, u64::saturating_add);
    let whole = |part: u64| {
        (u128::from(part) * 100)
            .checked_div(allocated.into())
            .unwrap_or(0)
    };
    let of_machine = match capacity {
        0 => String::new(),
        capacity => format!("{} of the machine, ", percent(allocated, capacity)),
    };
    format!(
        "{} GPU hours from {} until {}: {of_machine}{} % idle, {} % not measured",
        hours(allocated),
        text::time(since, zone()),
        text::time(until, zone()),
        whole(idle),
        whole(unknown)
    )
}

/// Energy of rows, and the part of it that is an estimate.
struct Energy {
    all: Joules,
    estimated: Joules,
}

impl Energy {
    fn of<'u>(rows: impl IntoIterator<Item = &'u Usage>) -> Self {
        let (mut all, mut estimated) = (0_u64, 0_u64);
        for row in rows {
            all = all.saturating_add(row.energy_joules.millijoules());
            estimated = estimated.saturating_add(row.energy_estimated_joules.millijoules());
        }
        Self {
            all: Joules::from_millijoules(all),
            estimated: Joules::from_millijoules(estimated),
        }
    }

    fn is_estimate(&self) -> bool {
        self.estimated > Joules::default()
    }
}

/// `12.34 Wh`, `~12.34 Wh`: partly an estimate.
impl fmt::Display for Energy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_estimate() { "~" } else { "" };
        write!(out, "{mark}{}", text::energy(self.all))
    }
}

/// The energy of a row.
pub(super) fn energy(row: &Usage) -> String {
    Energy::of([row]).to_string()
}

/// `energy: 15.50 kWh, of it jobs 12.30 kWh and idle 3.20 kWh`; without idle rows only that of the jobs.
pub fn energy_total(jobs: &[Usage], idle: &[Usage]) -> Option<String> {
    let all = Energy::of(jobs.iter().chain(idle));
    if all.all == Joules::default() {
        return None;
    }
    let parts = match idle {
        [] => String::new(),
        idle => format!(
            ", of it jobs {} and idle {}",
            Energy::of(jobs),
            Energy::of(idle)
        ),
    };
    let remark = if all.is_estimate() {
        " (~: partly an estimate)"
    } else {
        ""
    };
    Some(format!("energy: {all}{parts}{remark}"))
}

fn gib_hours(mib_s: u64) -> String {
    hundredths(u128::from(mib_s) * 100 / (1024 * 3600))
}

/// `12.3 %`, rounded down; something below a tenth is not shown as nothing.
fn percent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1000).checked_div(u128::from(whole));
    match tenths {
        None => "-".to_owned(),
        Some(0) if part > 0 => "<0.1 %".to_owned(),
        Some(tenths) => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// With two decimals, rounded down.
fn hours(gpu_ms: u64) -> String {
    hundredths(u128::from(gpu_ms) / 36_000)
}

fn hundredths(figure: u128) -> String {
    format!("{}.{:02}", figure / 100, figure % 100)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn row(day: Option<&str>, user: Option<&str>, hours: u64, jobs: u64) -> Usage {
        let hour_ms = 3_600_000;
        serde_json::from_value(serde_json::json!({
            "day": day, "user": user, "jobs": jobs,
            "allocated_gpu_ms": hours * hour_ms, "used_gpu_ms": hours * hour_ms / 2, "loaned_gpu_ms": 0,
            "idle_gpu_ms": hours * hour_ms / 2, "unknown_gpu_ms": 0, "suspended_gpu_ms": 0,
            "memory_mib_s": hours * 3600 * 1024, "capacity_gpu_ms": 48 * hour_ms,
        }))
        .unwrap()
    }

    fn view(width: Option<usize>) -> View {
        View {
            wide: false,
            width,
            now: Timestamp::UNIX_EPOCH,
            zone: || TimeZone::UTC,
            palette: Default::default(),
        }
    }

    #[test]
    fn days_are_rows_in_their_order_with_bars_of_the_machine() {
        let rows = [
            row(Some("2026-11-24"), None, 0, 0),
            row(Some("2026-11-25"), None, 36, 4),
            row(Some("2026-11-26"), None, 48, 2),
        ];
        let shown = usages(&rows, view(None), Marks::Blocks);
        let expected = "\
DAY         JOBS  GPU HOURS   USED   IDLE  OF MACHINE  0-100 %
2026-11-24     0       0.00   0.00   0.00       0.0 %
2026-11-25     4      36.00  18.00  18.00      75.0 %  ███████▌
2026-11-26     2      48.00  24.00  24.00     100.0 %  ██████████
";
        assert_eq!(shown, expected);
        let ascii = usages(&rows, view(Some(66)), Marks::Ascii);
        assert!(ascii.contains("75.0 %  #######-\n"), "{ascii}");
        assert!(
            ascii.is_ascii() && ascii.lines().all(|line| line.len() <= 66),
            "{ascii}"
        );
        let wide = View {
            wide: true,
            ..view(Some(66))
        };
        let wide = usages(&rows, wide, Marks::Ascii);
        assert!(
            wide.contains("UNKNOWN") && wide.contains("MEMORY GiB H  OF MACHINE  0-100 %"),
            "{wide}"
        );
        let total = usage_total(&rows, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH, || {
            TimeZone::UTC
        });
        assert!(total.starts_with("84.00 GPU hours"), "{total}");
        assert!(total.contains("58.3 % of the machine"), "{total}");
    }

    #[test]
    fn usage_as_csv_has_every_field_and_an_idle_row() {
        let mut rows = [row(None, Some("=ana,1"), 36, 3), row(None, None, 0, 0)];
        (rows[0].month, rows[0].energy_joules) =
            (Some("2026-11".into()), Joules::from_millijoules(1_234_567));
        (rows[1].idle, rows[1].energy_joules) = (true, Joules::from_millijoules(1));
        let full = Usage {
            day: Some(String::new()),
            namespace: Some(String::new()),
            idle: true,
            ..rows[0].clone()
        };
        let full = serde_json::to_value(full).unwrap();
        let fields: BTreeSet<&str> = full.as_object().unwrap().keys().map(|key| &**key).collect();
        assert_eq!(BTreeSet::from(COLUMNS), fields);
        let text = super::super::list(&rows, crate::args::Format::Csv, view(None), |_, _| {
            String::new()
        });
        let text = text.unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], COLUMNS.join(","));
        assert!(lines[1].starts_with(",2026-11,,,\"'=ana,1\",,"), "{text}");
        assert!(lines[1].contains(",1234.567,0.0,"), "{text}");
        assert!(
            lines[2].starts_with(",,true,,,") && lines[2].contains(",0.001,"),
            "{text}"
        );
    }

    #[test]
    fn energy_is_a_column_and_a_line_of_jobs_and_idle() {
        let mut jobs = [row(None, Some("ana"), 36, 3), row(None, Some("kim"), 1, 1)];
        jobs[0].energy_joules = Joules::from_millijoules(12_300 * 3_600_000);
        jobs[0].unused_memory_mib_s = 18 * 3600 * 1024;
        jobs[1].energy_joules = Joules::from_millijoules(1);
        jobs[1].energy_estimated_joules = Joules::from_millijoules(1);
        let expected = "\
USER  JOBS  GPU HOURS  OF MACHINE   USED   IDLE  UNKNOWN  MEMORY GiB H  UNUSED  ENERGY
ana      3      36.00      75.0 %  18.00  18.00     0.00         36.00   18.00  12.30 kWh
kim      1       1.00       2.0 %   0.50   0.50     0.00          1.00    0.00  ~<0.01 Wh
";
        assert_eq!(usages(&jobs, view(None), Marks::Blocks), expected);
        let narrow = usages(&jobs, view(Some(66)), Marks::Blocks);
        assert!(
            !narrow.contains("UNKNOWN") && narrow.contains("ENERGY"),
            "{narrow}"
        );
        assert!(narrow.lines().all(|line| line.len() <= 66), "{narrow}");
        let mut idle = [row(None, None, 0, 0)];
        assert_eq!(
            energy_total(&jobs[..1], &[]).as_deref(),
            Some("energy: 12.30 kWh")
        );
        idle[0].energy_joules = Joules::from_millijoules(3_200 * 3_600_000);
        assert_eq!(
            energy_total(&jobs, &idle).as_deref(),
            Some(
                "energy: ~15.50 kWh, of it jobs ~12.30 kWh and idle 3.20 kWh (~: partly an estimate)"
            )
        );
        assert_eq!(energy_total(&[], &[]), None);
    }

    #[test]
    fn without_days_the_part_of_the_machine_stands_beside_the_hours() {
        let rows = [row(None, Some("ana"), 36, 3)];
        let expected = "\
USER  JOBS  GPU HOURS  OF MACHINE   USED   IDLE  UNKNOWN  MEMORY GiB H
ana      3      36.00      75.0 %  18.00  18.00     0.00  36.00
";
        assert_eq!(usages(&rows, view(None), Marks::Blocks), expected);
        let mut old = rows;
        old[0].capacity_gpu_ms = 0;
        let shown = usages(&old, view(None), Marks::Blocks);
        assert!(!shown.contains("OF MACHINE"), "{shown}");
    }

    #[test]
    fn users_have_one_line_with_their_days() {
        let days = ["2026-11-24", "2026-11-25", "2026-11-26"].map(str::to_owned);
        let totals = [row(None, Some("ana"), 36, 3), row(None, Some("kim"), 1, 1)];
        let rows = [
            row(Some("2026-11-24"), Some("ana"), 32, 2),
            row(Some("2026-11-26"), Some("ana"), 4, 2),
            row(Some("2026-11-26"), Some("kim"), 1, 1),
        ];
        let shown = daily_usages(&totals, &rows, &days, view(None), Marks::Blocks);
        let expected = "\
USER  JOBS  GPU HOURS   USED   IDLE  OF MACHINE  DAYS
ana      3      36.00  18.00  18.00      75.0 %  █·▁
kim      1       1.00   0.50   0.50       2.0 %  ··▁
";
        assert_eq!(shown, expected);
        let ascii = daily_usages(&totals, &rows, &days, view(None), Marks::Ascii);
        assert!(ascii.contains("75.0 %  @_.\n"), "{ascii}");
        let legend = days_legend(&totals, &rows, &days).unwrap();
        assert_eq!(
            legend,
            "DAYS: from 2026-11-24 to 2026-11-26, one mark per day; the highest stands for 32.00 GPU hours"
        );
    }

    #[test]
    fn of_many_days_several_share_a_mark() {
        let first: jiff::civil::Date = "2026-01-01".parse().unwrap();
        let days: Vec<String> = first
            .series(jiff::Span::new().days(1))
            .take(62)
            .map(|day| day.to_string())
            .collect();
        let totals = [row(None, Some("ana"), 4, 3)];
        let rows = [
            row(Some("2026-01-01"), Some("ana"), 1, 1),
            row(Some("2026-01-02"), Some("ana"), 1, 1),
            row(Some("2026-03-03"), Some("ana"), 2, 1),
        ];
        let marks = by_day(&totals, &rows, &days);
        assert_eq!(
            (marks[0].len(), marks[0][0], marks[0][30]),
            (31, 7_200_000, 7_200_000)
        );
        assert!(
            days_legend(&totals, &rows, &days)
                .unwrap()
                .contains("one mark per 2 days")
        );
        assert_eq!(days_legend(&totals, &[], &days), None, "no usage");
    }

    #[test]
    fn something_is_never_drawn_or_said_as_nothing_and_never_more_than_all() {
        for marks in [Marks::Ascii, Marks::Blocks] {
            assert_eq!(marks.bar(0, 1000), "");
            assert_ne!(marks.bar(1, u64::MAX), "");
            assert_eq!(marks.bar(u64::MAX, 1).chars().count(), BAR);
            assert_eq!(
                marks.bar(5, 0),
                marks.bar(1, u64::MAX),
                "of an unknown whole"
            );
            let line = marks.sparkline(&[0, 1, u64::MAX], u64::MAX);
            let (first, last) = (marks.sparks()[0], marks.sparks()[7]);
            assert_eq!(line, String::from_iter([marks.nothing(), first, last]));
        }
        assert_eq!(percent(1, u64::MAX), "<0.1 %");
        assert_eq!(percent(9_999, 10_000), "99.9 %");
        assert_eq!(percent(1, 0), "-");
    }
}
