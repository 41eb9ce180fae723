//! The table in `docs/reference.md` lists exactly the environment variables of the product.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cargo::root;

const PREFIX: &str = "DIVVY_";
/// Read by tests, by debug builds under test, and by the development commands only.
const OURS: [&str; 11] = [
    "DIVVY_AGENT_RUNS",
    "DIVVY_AGENT_SEED",
    "DIVVY_AGENT_STEPS",
    "DIVVY_CRASH_AT",
    "DIVVY_CUDA_INCLUDE",
    "DIVVY_CUDA_VERSION",
    "DIVVY_RECORD",
    "DIVVY_SOAK_JOBS",
    "DIVVY_TEST_BOOT",
    "DIVVY_TEST_DRIVER_LIBRARIES",
    "DIVVY_TEST_MEASURED",
];

#[test]
fn the_reference_lists_exactly_the_variables_that_the_code_knows() {
    let mut known = BTreeSet::new();
    let crates = fs::read_dir(root().join("crates")).expect("crates/ is there");
    for entry in crates {
        let source = entry.expect("crates/ can be read").path().join("src");
        sources(&source, &mut known);
    }
    known.retain(|name| !OURS.contains(&name.as_str()));
    let page = fs::read_to_string(root().join("docs/reference.md")).expect("the page is there");
    let rows = page.lines().filter(|line| line.starts_with("| `DIVVY_"));
    let listed = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(variables)
        .collect();
    assert_eq!(
        known, listed,
        "left: in the code; right: in docs/reference.md"
    );
}

fn sources(folder: &Path, known: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a source folder") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            sources(&path, known);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&path).expect("source is text");
            known.extend(variables(&text));
        }
    }
}

fn variables(text: &str) -> Vec<String> {
    let found = text.match_indices(PREFIX).map(|(at, _)| {
        let end = text[at..]
            .find(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'))
            .map_or(text.len(), |length| at + length);
        text[at..end].to_owned()
    });
    found.filter(|name| name.len() > PREFIX.len()).collect()
}
