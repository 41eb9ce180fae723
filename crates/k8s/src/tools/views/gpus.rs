//! Output of `gpus`.

use divvy_cli::colour::Tone;
use divvy_cli::render::View;
use divvy_cli::table::{Cells, Column, Spare};
use divvy_cli::text;

use super::cluster::{ClusterGpu, Holder};

/// Most holders of a GPU that a note names. A longer note would not fit a line; `-o json` has all.
const MOST_NAMED: usize = 4;

/// One row a GPU.
pub fn table(gpus: &[ClusterGpu], view: View) -> String {
    if gpus.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Text("NODE"),
        Column::Right("GPU"),
        Column::Spare("MODEL", Spare::Late),
        Column::Spare("MODE", Spare::If("shared")),
        Column::Right("ALLOC"),
        Column::Right("USED/ALLOC/USABLE"),
        Column::Right("UTIL"),
        Column::Fixed("FREE"),
    ];
    if view.wide {
        columns.push(Column::Fixed("UUID"));
    }
    columns.push(Column::Text("NOTE"));
    let mut cells = Cells::coloured(view.palette);
    for gpu in gpus {
        row(gpu, view).iter().for_each(|cell| cells.add(cell));
        cells.add_in(gpu.problem.is_some().then_some(Tone::Bad), &note(gpu, view));
        cells.end_row();
    }
    cells.render(&columns, view.fit())
}

fn row(gpu: &ClusterGpu, view: View) -> Vec<String> {
    let absent = || "–".to_owned();
    let model = text::clean(&gpu.model);
    let model = match model.strip_prefix("NVIDIA ") {
        Some(short) if !view.wide => short.to_owned(),
        _ => model,
    };
    let percent = gpu.utilization_percent;
    let mut cells = vec![
        text::clean(&gpu.node),
        gpu.gpu.map_or_else(absent, |index| index.to_string()),
        model,
        gpu.mode.clone(),
        gpu.allocated.clone().unwrap_or_else(absent),
        figures(&[gpu.used_bytes, gpu.allocated_bytes, gpu.memory_bytes]),
        percent.map_or_else(absent, |percent| format!("{percent}%")),
        gpu.free.clone().unwrap_or_else(absent),
    ];
    if view.wide {
        cells.push(gpu.uuid.clone());
    }
    cells
}

/// `3.9/19.8/79.2 GiB`, with `–` for what is unknown.
pub fn figures(figures: &[Option<u64>]) -> String {
    let known: Vec<u64> = figures.iter().copied().flatten().collect();
    if known.is_empty() {
        return "–".to_owned();
    }
    let text = text::memories(&known);
    let (numbers, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let mut numbers = numbers.split('/');
    let each = figures.iter().map(|figure| match figure {
        Some(_) => numbers.next().unwrap_or_default(),
        None => "–",
    });
    format!("{} {unit}", each.collect::<Vec<_>>().join("/"))
}

/// Problems, then holders.
fn note(gpu: &ClusterGpu, view: View) -> String {
    let problem = gpu.problem.as_deref().map(text::clean);
    let shown = if view.wide {
        gpu.holders.len()
    } else {
        MOST_NAMED
    };
    let holder = |holder: &Holder| {
        let name = match holder.pods.as_slice() {
            [] => &holder.claim,
            [first, ..] => first,
        };
        let more = match holder.pods.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let name = text::clean(&format!("{}/{name}", holder.namespace));
        format!("{name}{more} {}", holder.part)
    };
    let mut holders: Vec<String> = gpu.holders.iter().take(shown).map(holder).collect();
    if let Some(more) = gpu
        .holders
        .len()
        .checked_sub(shown)
        .filter(|more| *more > 0)
    {
        holders.push(format!("{more} more"));
    }
    let holders = (!holders.is_empty()).then(|| holders.join(", "));
    let parts = problem.into_iter().chain(holders);
    parts.collect::<Vec<_>>().join("; ")
}
