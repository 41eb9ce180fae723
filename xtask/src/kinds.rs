//! Event kinds: the tables in `docs/reference.md` list exactly the kinds that the agent emits.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;

use crate::cargo::root;
use crate::sources::sources;

type Names = BTreeSet<String>;

const AGENT: &str = "crates/agent/src";
/// Files and folders of tests.
const NOT_PRODUCT: [&str; 5] = [
    "simulation",
    "simulation.rs",
    "tests",
    "tests.rs",
    "soak.rs",
];
/// An event with a literal as its kind.
const EVENT: &str = r#"(?:\.(?:record|append)_event\(\s*(?:now\(\),\s*|io,\s*)?[\w.]+(?:\([\w.]+\))?,\s*|Message::RecordEvent \{[^}]*kind: )"(\w+)""#;
/// An event with a variable or a constant as its kind.
const PASSED_ON: &str = r"\.(?:record_event|append_event|append)\(\s*(?:now\(\),\s*|io,\s*)?(?:None|job|Some\([\w.]+\)),\s*[A-Za-z_]\w*\s*,";
/// A kind and its text.
const PAIR: &str = r#""(\w+)",\s*(?:format!|"[^"]*"\.to_owned)"#;

/// Each file that passes on a kind, the file that its kinds come from (all files if empty), and how they are written
/// there.
const RELAYS: [(&str, &str, &str); 10] = [
    (
        "controller/admission/projects.rs",
        "controller/admission/projects.rs",
        r#"(?:true|false) => "(\w+)""#,
    ),
    ("controller/claims.rs", "controller/claims.rs", PAIR),
    ("controller/dispatch.rs", "", EVENT),
    ("controller/effects.rs", "", EVENT),
    (
        "controller/lifecycle/change.rs",
        "controller/lifecycle/change.rs",
        r#"\.events\.push\(\("(\w+)""#,
    ),
    (
        "controller/lifecycle/requeue.rs",
        "",
        r#"requeue_after_run\([^"]*"(\w+)""#,
    ),
    (
        "controller/mig/reconcile.rs",
        "controller/mig/reconcile.rs",
        PAIR,
    ),
    (
        "controller/mig/report.rs",
        "controller/mig/report.rs",
        r#"handed_over\([^"]*"(\w+)""#,
    ),
    ("controller/observe.rs", "controller/observe.rs", PAIR),
    (
        "controller/observe/limiter_alarms.rs",
        "journal/events.rs",
        r#"UNCOUNTED: &str = "(\w+)""#,
    ),
];

#[test]
fn the_reference_lists_exactly_the_event_kinds_of_the_code() {
    let files: Vec<(String, String)> = sources(&[AGENT])
        .into_iter()
        .filter(|(path, _)| !path.split('/').any(|part| NOT_PRODUCT.contains(&part)))
        .map(|(path, text)| {
            let (code, _) = text.split_once("#[cfg(test)]\nmod ").unwrap_or((&text, ""));
            (path[AGENT.len() + 1..].to_owned(), code.to_owned())
        })
        .collect();
    let passed_on = expression(PASSED_ON);
    let relays: Vec<&str> = files
        .iter()
        .filter(|(_, text)| passed_on.is_match(text))
        .map(|(path, _)| path.as_str())
        .collect();
    assert_eq!(
        relays,
        RELAYS.map(|(relay, ..)| relay),
        "left: files of {AGENT} that pass on a kind; right: RELAYS of this test"
    );
    let mut known = Names::new();
    for (relay, source, written) in RELAYS {
        let written = expression(written);
        let kinds: Names = files
            .iter()
            .filter(|(path, _)| path.starts_with(source))
            .flat_map(|(_, text)| names(&written, text))
            .collect();
        assert!(!kinds.is_empty(), "no kinds found for {relay}");
        known.extend(kinds);
    }
    assert_eq!(
        known,
        rows(),
        "left: in the code; right: in docs/reference.md"
    );
}

/// The names in the first column of the page's tables of events.
fn rows() -> Names {
    let page = fs::read_to_string(root().join("docs/reference.md")).expect("the page is there");
    let tables = page
        .split("\n\n")
        .filter(|block| block.starts_with("| event |"))
        .flat_map(|table| table.lines().skip(2));
    let in_code = expression(r"`(\w+)`");
    let mut named = Names::new();
    for row in tables {
        let cell = row.split('|').nth(1).expect("a cell");
        for name in names(&in_code, cell) {
            assert!(named.insert(name), "twice in the tables: {row}");
        }
    }
    named
}

fn names(pattern: &Regex, text: &str) -> Names {
    pattern
        .captures_iter(text)
        .map(|found| found[1].to_owned())
        .collect()
}

fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a correct expression")
}
