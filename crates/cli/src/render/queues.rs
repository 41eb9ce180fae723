//! Output of `queues`.

use divvy_api::v1::Queue;

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row a queue, the first served on top.
pub fn queues(queues: &[Queue], view: View) -> String {
    if queues.is_empty() {
        return String::new();
    }
    let columns = [
        Column::Right("PRIORITY"),
        Column::Text("QUEUE"),
        Column::Fixed("EACH JOB GETS"),
        Column::Right("PENDING"),
    ];
    let columns = [
        &columns[..],
        &[
            Column::Right("RUNNING"),
            Column::Fixed("HEAD"),
            Column::Text("REASON"),
        ],
    ]
    .concat();
    let rows: Vec<Vec<String>> = queues.iter().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

fn row(queue: &Queue) -> Vec<String> {
    vec![
        queue.priority.to_string(),
        text::clean(&queue.name),
        queue
            .amount
            .as_ref()
            .map_or_else(|| "its request".to_owned(), text::amount_in_words),
        queue.waiting.to_string(),
        queue.running.to_string(),
        queue
            .head
            .as_ref()
            .map(|id| format!("#{id}"))
            .unwrap_or_default(),
        text::clean(queue.reason.as_deref().unwrap_or_default()),
    ]
}
