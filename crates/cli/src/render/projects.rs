//! Output of `projects`.

use divvy_api::v1::Project;
use divvy_core::units::gpus;

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row a project.
pub fn projects(projects: &[Project], view: View) -> String {
    if projects.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Text("PROJECT"),
        Column::Right("QUOTA"),
        Column::Right("LIMIT"),
        Column::Right("USED"),
        Column::Right("OVER"),
    ];
    columns.extend([
        Column::Right("FAIR SHARE"),
        Column::Right("WEIGHT"),
        Column::Right("RUNNING"),
        Column::Right("PENDING"),
    ]);
    if view.wide {
        columns.extend([
            Column::Right("PRIORITY"),
            Column::Right("MIN RUNTIME"),
            Column::Fixed("MEMORY USED/QUOTA/LIMIT"),
        ]);
    }
    columns.push(Column::Text("MEMBERS"));
    let rows: Vec<Vec<String>> = projects.iter().map(|project| row(project, view)).collect();
    table::render(&columns, &rows, view.fit())
}

fn row(project: &Project, view: View) -> Vec<String> {
    let amount = |thousandths: u64| gpus(thousandths).to_string();
    let mut cells = vec![
        text::clean(&project.name),
        amount(project.quota),
        project.limit.map_or_else(|| "none".to_owned(), amount),
        amount(project.used),
        amount(project.over_quota),
        amount(project.fair_share),
    ];
    cells.extend([
        project
            .weight
            .map_or_else(|| "quota".to_owned(), |weight| weight.to_string()),
        project.running.to_string(),
        project.waiting.to_string(),
    ]);
    if view.wide {
        let most = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), text::memory);
        cells.extend([
            project.priority.to_string(),
            format!("{} s", project.min_runtime_s),
            format!(
                "{}/{}/{}",
                text::memory(project.used_memory_bytes),
                most(project.quota_memory_bytes),
                most(project.limit_memory_bytes)
            ),
        ]);
    }
    cells.push(match project.members.as_slice() {
        [] => "all".to_owned(),
        members => text::clean(&members.join(",")),
    });
    cells
}

/// `quota 2.5, limit 4`: what the project may have, in a sentence.
pub fn entitled(project: &Project) -> String {
    let mut words = format!("quota {}", gpus(project.quota));
    match project.limit {
        Some(limit) => words += &format!(", limit {}", gpus(limit)),
        None => words += ", no limit",
    }
    if let Some(weight) = project.weight {
        words += &format!(", weight {weight}");
    }
    words
}
