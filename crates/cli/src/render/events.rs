//! Output of `events`: at once, or line by line as they happen.

use divvy_api::v1::Event;
use jiff::tz::TimeZone;

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row an event, the oldest on top: its age, and in a wide table its local time as well.
pub fn events(events: &[Event], view: View) -> String {
    if events.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Right("SEQ"),
        Column::Right("AGE"),
        Column::Fixed("JOB"),
        Column::Fixed("EVENT"),
        Column::Text("TEXT"),
    ];
    if view.wide {
        columns.insert(2, Column::Fixed("TIME"));
    }
    let rows: Vec<Vec<String>> = events.iter().map(|event| row(event, view)).collect();
    table::render(&columns, &rows, view.fit())
}

fn row(event: &Event, view: View) -> Vec<String> {
    let [job, kind, text] = to_cells(event);
    let mut cells = vec![
        event.seq.to_string(),
        text::elapsed(event.at, view.now),
        job,
        kind,
        text,
    ];
    if view.wide {
        cells.insert(2, text::time(event.at, (view.zone)()));
    }
    cells
}

/// One event on its own line, in columns wide enough for most, with the time of day in `zone`.
pub fn event_line(event: &Event, zone: &TimeZone) -> String {
    let time = event.at.to_zoned(zone.clone()).strftime("%H:%M:%S %Z");
    let [job, kind, text] = to_cells(event);
    format!("{time}  {job:<5}  {kind:<10}  {text}")
        .trim_end()
        .to_owned()
        + "\n"
}

fn to_cells(event: &Event) -> [String; 3] {
    let job = event
        .job
        .as_ref()
        .map(|id| format!("#{id}"))
        .unwrap_or_default();
    [job, text::clean(&event.kind), text::clean(&event.text)]
}
