//! Compares the table of the second tier in CONTRIBUTING.md with the tests: a group without a row fails, and so does a row without tests.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::root;

/// Packages of the table, and where each has its tests.
const TESTS: [(&str, &str); 3] = [
    ("divvy-agent", "crates/agent/tests/it"),
    ("divvy-e2e", "tests/e2e/tests/it"),
    ("divvy-shim", "crates/shim/tests/it"),
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder)
        .expect("a folder of the repository")
        .flatten()
    {
        let path = entry.path();
        match path.is_dir() {
            true if path.ends_with("target") => {}
            true => files(&path, found),
            false if path.extension().is_some_and(|is| is == "rs") => found.push(path),
            false => {}
        }
    }
}

/// `crash::exhaustive` of every file that has a module of that name, with its package.
fn groups() -> BTreeSet<(String, String)> {
    let mut groups = BTreeSet::new();
    let mut found = Vec::new();
    for folder in ["crates", "tests"] {
        files(&root().join(folder), &mut found);
    }
    for path in found {
        let text = fs::read_to_string(&path).expect("a file of the repository");
        if !text.lines().any(|line| line == "mod exhaustive {") {
            continue;
        }
        let owner = TESTS.iter().find_map(|(package, folder)| {
            let rest = path.strip_prefix(root().join(folder)).ok()?;
            Some((*package, rest.with_extension("")))
        });
        let (package, module) =
            owner.unwrap_or_else(|| panic!("{} is in no package of the table", path.display()));
        let parts: Vec<_> = module.iter().map(|part| part.to_string_lossy()).collect();
        groups.insert((
            package.to_owned(),
            format!("{}::exhaustive", parts.join("::")),
        ));
    }
    groups
}

/// Cells of a row of a table, the text of each between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_group_of_the_second_tier_names_tests_of_the_first_that_are_there() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page is there");
    let table = page.split("### The second tier").nth(1).expect("the table");
    let table = table.split("\n## ").next().expect("the table has an end");
    let rows = table.lines().filter(|line| line.starts_with("| `divvy-"));
    let mut sources = Vec::new();
    for folder in ["crates", "tests"] {
        files(&root().join(folder), &mut sources);
    }
    let texts: Vec<(String, String)> = sources
        .into_iter()
        .map(|path| {
            (
                path.to_string_lossy().into_owned(),
                fs::read_to_string(&path).expect("text"),
            )
        })
        .collect();
    let mut named = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [package, group] = quoted(cells[0])[..] else {
            panic!("no package and group: {row}");
        };
        named.insert((package.to_owned(), group.to_owned()));
        for test in quoted(cells[2]) {
            // `crash::a_daemon_that_dies`, the beginning of a test's path; `docker::scenes::`, all tests of a module.
            let Some((module, name)) = test.rsplit_once("::") else {
                continue;
            };
            let file = format!("{}.rs", module.replace("::", "/"));
            let is_there = texts.iter().any(|(path, text)| {
                path.ends_with(&file) && (name.is_empty() || text.contains(&format!("fn {name}")))
            });
            assert!(is_there, "{test} is no test: {row}");
        }
    }
    // Whole modules, by a filter of `.config/nextest.toml`.
    named.remove(&("divvy-e2e".to_owned(), "podman".to_owned()));
    assert_eq!(named, groups());
}

/// Building all crates for rustdoc takes minutes, so `cargo xtask test` runs the examples of one crate, and no other has any.
#[test]
fn no_comment_has_an_example_that_nothing_runs() {
    let mut sources = Vec::new();
    for folder in ["crates", "tests", "xtask"] {
        files(&root().join(folder), &mut sources);
    }
    for path in sources {
        let text = fs::read_to_string(&path).expect("a file of the repository");
        let comments = text.lines().map(str::trim_start).filter_map(|line| {
            line.strip_prefix("//!")
                .or_else(|| line.strip_prefix("///"))
        });
        let mut is_open = false;
        for line in comments.map(str::trim) {
            let Some(language) = line.strip_prefix("```") else {
                continue;
            };
            is_open = !is_open;
            let is_run = is_open && !["text", "toml"].contains(&language);
            let is_tested = path.starts_with(root().join("crates/ledger"));
            assert!(
                !is_run || is_tested,
                "{}: an example that no test runs",
                path.display()
            );
        }
    }
}
