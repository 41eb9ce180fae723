//! Generated parts of the reference page docs/enforcement.md, made from the tables of hooks.

use std::fs;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/enforcement.md");

/// Asserts that the page has `table` between the markers of `source`. With `DIVVY_RECORD=1` the page is rewritten instead.
#[track_caller]
pub fn holds(source: &str, table: &str) {
    static ONE_WRITER: Mutex<()> = Mutex::new(());
    let _turn = ONE_WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let (begin, end) = (
        format!("<!-- made from {source}: begin -->\n"),
        format!("<!-- made from {source}: end -->\n"),
    );
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page
        .split_once(&begin)
        .expect("the page has the first marker");
    let (listed, after) = rest.split_once(&end).expect("the page has the last marker");
    if std::env::var_os("DIVVY_RECORD").is_some() {
        fs::write(PAGE, [before, &begin, table, &end, after].concat()).unwrap();
        return;
    }
    let differing = |of: &str, from: &str| {
        let lines = of
            .lines()
            .filter(|line| !from.lines().any(|one| one == *line));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert!(
        listed == table,
        "run this test with DIVVY_RECORD=1 to rewrite docs/enforcement.md; only on the page:\n{}\nonly in {source}:\n{}",
        differing(listed, table),
        differing(table, listed),
    );
}
