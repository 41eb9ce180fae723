//! The lists of the published comparison, from the folder that `DIVVY_TEST_OPENB` names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use divvy_core::{Bytes, Share};
use divvy_packing::{ModelSet, NodeSpec, Shape};
use divvy_study::engine::workload::{Pod, Workload};

/// The lists of the folder, without the beginning that all their names have.
pub const LISTS: [&str; 6] = [
    "default",
    "gpushare40",
    "gpushare60",
    "gpushare80",
    "gpushare100",
    "multigpu40",
];

/// The folder; prints why a test skips without it.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("DIVVY_TEST_OPENB").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: DIVVY_TEST_OPENB names no folder with the openb lists");
    }
    folder
}

fn rows(folder: &std::path::Path, name: &str) -> Vec<Vec<String>> {
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let cells = |line: &str| line.split(',').map(str::to_owned).collect();
    text.lines().skip(1).map(cells).collect()
}

fn number(cell: &str) -> u64 {
    cell.split('.').next().unwrap().parse().unwrap()
}

/// One list of the folder, on its nodes with GPUs.
pub fn workload(folder: &std::path::Path, list: &str) -> Workload {
    let nodes = rows(folder, "openb_node_list_gpu_node.csv");
    let pods = rows(folder, &format!("openb_pod_list_{list}.csv"));
    // In order of name, by which the published program breaks ties. A name that a list repeats is a further model.
    let accepted = |row: &[String]| {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let spec = row.get(5).cloned().unwrap_or_default();
        let names = spec.split('|').filter(|name| !name.is_empty());
        let numbered = names.map(|name| {
            let nth = seen.entry(name.to_owned()).or_default();
            *nth += 1;
            format!("{name}{}", "+".repeat(*nth - 1))
        });
        numbered.collect::<Vec<String>>()
    };
    let of_nodes = nodes.iter().map(|row| row[4].clone());
    let of_pods = pods.iter().flat_map(|row| accepted(row));
    let models: BTreeSet<String> = of_nodes.chain(of_pods).collect();
    let models: Vec<String> = models.into_iter().collect();
    let index = |name: &str| models.iter().position(|model| model == name).unwrap();
    let nodes = nodes.iter().map(|row| NodeSpec {
        name: row[0].clone(),
        cpu_milli: number(&row[1]),
        memory: Bytes::mib(number(&row[2])),
        gpus: u32::try_from(number(&row[3])).unwrap(),
        model: index(&row[4]),
        gpu_memory: None,
    });
    let nodes = nodes.collect();
    let pods = pods.iter().map(|row| {
        let gpus = u32::try_from(number(&row[3])).unwrap();
        let share = u16::try_from(number(&row[4])).unwrap();
        let accepted = accepted(row).into_iter().filter(|_| gpus > 0);
        Pod {
            name: row[0].clone(),
            shape: Shape {
                cpu_milli: number(&row[1]),
                memory: Bytes::mib(number(&row[2])),
                gpus,
                share: Share::from_thousandths(share).filter(|_| gpus > 0),
                gpu_memory: None,
                models: accepted.fold(ModelSet::ANY, |set, name| set.with(index(&name))),
            },
        }
    });
    Workload {
        pods: pods.collect(),
        nodes,
    }
}
