//! Compares the table of the second tier in docs/testing.md with the tests: a group without a row fails, and so does a row without tests.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cargo::root;
use crate::sources::sources;

/// Packages of the table, and where each has its tests.
const TESTS: [(&str, &str); 8] = [
    ("divvy-agent", "crates/agent/tests/it"),
    ("divvy-core", "crates/core/tests/it"),
    ("divvy-e2e", "tests/e2e/tests/it"),
    ("divvy-k8s", "crates/k8s/tests/it"),
    ("divvy-shim", "crates/shim/tests/it"),
    ("divvy-slurm", "crates/slurm/tests/it"),
    ("divvy-study", "crates/study/src"),
    ("divvy-study", "crates/study/tests/it"),
];

/// `crash::exhaustive` of every file that has a module of that name, with its package.
fn groups() -> BTreeSet<(String, String)> {
    let mut groups = BTreeSet::new();
    for (path, text) in sources(&["crates", "tests"]) {
        let is_group = |line: &str| ["mod exhaustive {", "mod exhaustive;"].contains(&line);
        if !text.lines().any(is_group) {
            continue;
        }
        let owner = TESTS.iter().find_map(|(package, folder)| {
            let rest = Path::new(&path).strip_prefix(folder).ok()?;
            Some((*package, rest.with_extension("")))
        });
        let (package, module) =
            owner.unwrap_or_else(|| panic!("{path} is in no package of the table"));
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
    let page = fs::read_to_string(root().join("docs/testing.md")).expect("the page is there");
    let table = page.split("## The second tier").nth(1).expect("the table");
    let table = table.split("\n## ").next().expect("the table has an end");
    let rows = table.lines().filter(|line| line.starts_with("| `divvy-"));
    let texts = sources(&["crates", "tests"]);
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
    for (package, module) in [("divvy-e2e", "podman"), ("divvy-browser", "page")] {
        let is_named = named.remove(&(package.to_owned(), module.to_owned()));
        assert!(is_named, "{package} {module} has no row");
    }
    assert_eq!(named, groups());
}

/// rustdoc builds the crates of each tested example again, which took 88 s for one: an example is a file of `examples/`
/// that the comment includes and a test runs.
#[test]
fn no_comment_has_an_example_that_nothing_runs() {
    for (path, text) in sources(&["crates", "tests", "xtask"]) {
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
            assert!(!is_run, "{path}: an example that no test runs");
        }
    }
}
