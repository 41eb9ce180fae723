//! `events`: in one go, or line by line as they happen.

use divvy_api::v1::Event;
use jiff::Timestamp;

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row an event, the oldest on top.
pub fn events(events: &[Event], view: View) -> String {
    if events.is_empty() {
        return String::new();
    }
    let columns = [
        Column::Right("SEQ"),
        Column::Right("AGO"),
        Column::Fixed("JOB"),
        Column::Fixed("EVENT"),
        Column::Text("TEXT"),
    ];
    let rows: Vec<Vec<String>> = events
        .iter()
        .map(|event| cells(event, view.now).to_vec())
        .collect();
    table::render(&columns, &rows, view.width)
}

/// One event on its own line, in columns wide enough for most.
pub fn event_line(event: &Event, now: Timestamp) -> String {
    let [seq, ago, job, kind, text] = cells(event, now);
    format!("{seq:>5}  {ago:>6}  {job:<5}  {kind:<10}  {text}")
        .trim_end()
        .to_owned()
        + "\n"
}

fn cells(event: &Event, now: Timestamp) -> [String; 5] {
    let job = event
        .job
        .as_ref()
        .map(|id| format!("#{id}"))
        .unwrap_or_default();
    let (kind, text) = (text::clean(&event.kind), text::clean(&event.text));
    [
        event.seq.to_string(),
        text::elapsed(event.at, now),
        job,
        kind,
        text,
    ]
}
