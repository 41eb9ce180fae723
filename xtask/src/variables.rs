//! The table in `docs/reference.md` lists exactly the environment variables of the product.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;

use crate::cargo::root;
use crate::sources::sources;

const PREFIX: &str = "DIVVY_";
/// Read by tests, by debug builds under test, by the compiler, and by the development commands only.
const OURS: [&str; 12] = [
    "DIVVY_AGENT_RUNS",
    "DIVVY_AGENT_SEED",
    "DIVVY_AGENT_STEPS",
    "DIVVY_COMMIT",
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
    let is_product = |path: &str| path.split('/').nth(2) == Some("src");
    let mut known: BTreeSet<String> = sources(&["crates"])
        .iter()
        .filter(|(path, _)| is_product(path))
        .flat_map(|(_, text)| variables(text))
        .collect();
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

fn variables(text: &str) -> Vec<String> {
    let found = text.match_indices(PREFIX).map(|(at, _)| {
        let end = text[at..]
            .find(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'))
            .map_or(text.len(), |length| at + length);
        text[at..end].to_owned()
    });
    found.filter(|name| name.len() > PREFIX.len()).collect()
}
