//! Output of `ps`.

use divvy_cli::colour::Tone;
use divvy_cli::render::View;
use divvy_cli::table::{Cells, Column, Spare};
use divvy_cli::text;

use super::cluster::ClusterPod;
use super::gpus::figures;

/// The place of the column STATE. It must follow the order of the columns below.
const STATE: usize = 5;

/// One row a pod.
pub fn table(pods: &[ClusterPod], view: View) -> String {
    if pods.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Spare("NAMESPACE", Spare::Same),
        Column::Text("POD"),
        Column::Text("NODE"),
        Column::Fixed("GPU"),
        Column::Spare("REQ", Spare::Late),
        Column::Fixed("STATE"),
        Column::Right("FOR"),
        Column::Right("USED/LIMIT"),
    ];
    if view.wide {
        columns.push(Column::Fixed("CLAIM"));
    }
    columns.push(Column::Text("REASON"));
    let mut cells = Cells::coloured(view.palette);
    for pod in pods {
        for (column, cell) in row(pod, view).iter().enumerate() {
            let tone = (column == STATE).then(|| tone(pod.state)).flatten();
            cells.add_in(tone, cell);
        }
        cells.end_row();
    }
    cells.render(&columns, view.fit())
}

fn row(pod: &ClusterPod, view: View) -> Vec<String> {
    let absent = || "–".to_owned();
    let devices = pod.devices.iter().map(|device| {
        let index = device.gpu.map_or_else(absent, |index| index.to_string());
        if device.part.contains('@') {
            format!("{index}.{}", device.part)
        } else {
            index
        }
    });
    let mut devices: Vec<String> = devices.collect();
    devices.dedup();
    let sum = |figure: fn(&super::cluster::PodDevice) -> Option<u64>| {
        let all: Option<Vec<u64>> = pod.devices.iter().map(figure).collect();
        all.filter(|all| !all.is_empty())
            .map(|all| all.iter().sum::<u64>())
    };
    let memory = figures(&[
        sum(|device| device.memory_used_bytes),
        sum(|device| device.memory_limit_bytes),
    ]);
    let since = pod.since;
    let mut cells = vec![
        text::clean(&pod.namespace),
        text::clean(&pod.pod),
        pod.node.as_deref().map_or_else(absent, text::clean),
        if devices.is_empty() {
            absent()
        } else {
            devices.join(",")
        },
        pod.request.clone(),
        pod.state.to_owned(),
        since.map_or_else(absent, |since| text::elapsed(since, view.now)),
        memory,
    ];
    if view.wide {
        cells.push(pod.claim.clone().unwrap_or_else(absent));
    }
    cells.push(pod.reason.as_deref().map(text::clean).unwrap_or_default());
    cells
}

/// The tone of a state, as `divvy ps` has it.
fn tone(state: &str) -> Option<Tone> {
    (state == "running").then_some(Tone::Good)
}
