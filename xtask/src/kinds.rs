//! The tables of event kinds and of reason codes in `docs/reference.md` have exactly the names that the code has.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

use crate::cargo::root;

type Names = BTreeSet<String>;

const AGENT: &str = "crates/agent/src";
/// An event whose kind is a literal.
const EVENT: &str = r#"(?:\.tell\(\s*(?:now\(\),\s*)?[\w.]+(?:\([\w.]+\))?,\s*|Message::Tell \{[^}]*kind: )"(\w+)""#;
/// An event whose kind is a variable or a constant.
const PASSED_ON: &str =
    r"\.tell\(\s*(?:now\(\),\s*)?(?:None|job|Some\([\w.]+\)),\s*[A-Za-z_]\w*\s*,";
/// A kind and its text.
const PAIR: &str = r#""(\w+)",\s*(?:format!|"[^"]*"\.to_owned)"#;

/// Each file that passes on a kind, the file that its kinds come from (all files if empty), and how they are written
/// there.
const RELAYS: [(&str, &str, &str); 9] = [
    ("cycle.rs", "", EVENT),
    (
        "cycle/alarm.rs",
        "store/events.rs",
        r#"UNCOUNTED: &str = "(\w+)""#,
    ),
    ("cycle/back.rs", "", r#"\.waits_again\(\w+, "(\w+)""#),
    (
        "cycle/change.rs",
        "cycle/change.rs",
        r#"\.told\.push\(\("(\w+)""#,
    ),
    ("cycle/claims.rs", "cycle/claims.rs", PAIR),
    ("cycle/mig/found.rs", "cycle/mig/found.rs", PAIR),
    (
        "cycle/mig/report.rs",
        "cycle/mig/report.rs",
        r#"\.handed_over\(\w+, "(\w+)""#,
    ),
    ("cycle/observe.rs", "cycle/observe.rs", PAIR),
    (
        "cycle/projects.rs",
        "cycle/projects.rs",
        r#"(?:if new|else) \{\s*"(\w+)""#,
    ),
];

#[test]
fn the_reference_lists_exactly_the_event_kinds_of_the_code() {
    let mut files = Vec::new();
    sources(&root().join(AGENT), "", &mut files);
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
        rows("| event |"),
        "left: in the code; right: in docs/reference.md"
    );
}

#[test]
fn the_reference_lists_exactly_the_reason_codes_of_the_api() {
    let api = fs::read_to_string(root().join("crates/api/src/v1/job.rs")).expect("the API");
    let (_, after) = api.split_once("impl ReasonCode {").expect("its names");
    let (names_of_codes, _) = after.split_once("\n}\n").expect("the end of its names");
    assert_eq!(
        names(&expression(r#"Self::\w+ => "(\w+)""#), names_of_codes),
        rows("| `reason_code` |"),
        "left: in the code; right: in docs/reference.md"
    );
}

/// The names in the first column of the page's tables whose header starts so.
fn rows(header: &str) -> Names {
    let page = fs::read_to_string(root().join("docs/reference.md")).expect("the page is there");
    let tables = page
        .split("\n\n")
        .filter(|block| block.starts_with(header))
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

/// The sources below a folder, sorted, without their tests.
fn sources(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(folder).expect("a source folder");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().expect("a name").to_string_lossy();
        let path_inside = format!("{prefix}{name}");
        match name.as_ref() {
            "simulation" | "simulation.rs" | "tests" | "tests.rs" | "soak.rs" => {}
            _ if path.is_dir() => sources(&path, &format!("{path_inside}/"), files),
            _ if name.ends_with(".rs") => {
                let text = fs::read_to_string(&path).expect("source is text");
                let (code, _) = text.split_once("#[cfg(test)]\nmod ").unwrap_or((&text, ""));
                files.push((path_inside, code.to_owned()));
            }
            _ => {}
        }
    }
    files.sort();
}
