//! Compares ARCHITECTURE.md and docs/decisions with the repository: the files that they name exist, and the index lists every decision.
#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::root;

/// The pages of `docs/decisions` except the index, in order.
fn decisions() -> Vec<PathBuf> {
    let folder = fs::read_dir(root().join("docs/decisions")).expect("the folder is there");
    let mut pages: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
    pages.retain(|page| !page.ends_with("README.md"));
    pages.sort();
    pages
}

/// Paths between backquotes. `rules.rs` without a folder is in the folder of the path before it.
fn named(line: &str) -> Vec<PathBuf> {
    let mut folder = PathBuf::new();
    let mut paths = Vec::new();
    for word in line.split('`').skip(1).step_by(2) {
        let path = Path::new(word);
        let is_whole = ["crates/", "tests/", "xtask/", "data/", "openapi/", "docs/"]
            .iter()
            .any(|start| word.starts_with(start));
        if is_whole && !word.contains('*') {
            folder = path.parent().unwrap_or(path).to_owned();
            paths.push(path.to_owned());
        } else if word.ends_with(".rs") {
            paths.push(folder.join(path));
        }
    }
    paths
}

#[test]
fn every_file_that_the_architecture_and_the_decisions_name_exists() {
    let mut pages = decisions();
    pages.push(root().join("ARCHITECTURE.md"));
    for page in pages {
        let text = fs::read_to_string(&page).expect("text");
        for path in text.lines().flat_map(named) {
            let is_there = root().join(&path).exists();
            assert!(
                is_there,
                "{}: there is no {}",
                page.display(),
                path.display()
            );
        }
    }
}

#[test]
fn every_decision_has_the_same_parts_and_is_in_the_index() {
    let index = fs::read_to_string(root().join("docs/decisions/README.md")).expect("the index");
    let parts = [
        "Context",
        "Decision",
        "Rejected alternatives",
        "Figures",
        "Tests",
    ];
    for (at, page) in decisions().iter().enumerate() {
        let name = page.file_name().expect("a name").to_string_lossy();
        assert!(
            name.starts_with(&format!("{:03}-", at + 1)),
            "{name}: the numbers have a gap"
        );
        assert!(
            index.contains(&format!("({name})")),
            "{name} is not in the index"
        );
        let text = fs::read_to_string(page).expect("text");
        let headings: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .collect();
        assert_eq!(headings, parts, "{name}");
        let lines = text.lines().count();
        assert!((20..=60).contains(&lines), "{name} has {lines} lines");
    }
}
