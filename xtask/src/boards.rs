//! The boards for Grafana, which `cargo xtask bless` writes from the tables in `node` and `kubernetes`.
//!
//! A board in Grafana's JSON is a thousand lines, and most of them repeat. The tables have what differs: title, unit,
//! width and expressions. The board of a node serves a single machine, and each node of a cluster.

mod kubernetes;
mod node;
mod panel;

use std::fs;

use anyhow::{Context, Result};

use crate::cargo::root;
use panel::Board;

/// The chart reads its boards from its own folder; `deploy/grafana` has a link to the one of a node.
const FOLDER: &str = "deploy/helm/divvy/dashboards";

fn boards() -> [(&'static str, Board); 2] {
    [
        ("node.json", node::board()),
        ("kubernetes.json", kubernetes::board()),
    ]
}

fn text(board: &Board) -> Result<String> {
    Ok(serde_json::to_string_pretty(&board.to_json())? + "\n")
}

pub fn write() -> Result<()> {
    for (name, board) in boards() {
        let path = root().join(FOLDER).join(name);
        fs::write(&path, text(&board)?).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_boards_are_those_of_the_tables() {
        for (name, board) in boards() {
            let committed = fs::read_to_string(root().join(FOLDER).join(name)).expect("the board");
            assert!(
                committed == text(&board).expect("JSON"),
                "{name} differs from its table: cargo xtask bless"
            );
        }
    }
}
