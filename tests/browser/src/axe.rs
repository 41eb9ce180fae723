//! axe-core, which finds barriers to people with disabilities: contrast, names, roles, order of the headings.
//!
//! `cargo xtask test --all` downloads it to `target/axe`, and names the file in `DIVVY_TEST_AXE`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Browser;

/// Names the file with axe-core.
pub const VARIABLE: &str = "DIVVY_TEST_AXE";

/// The rules of WCAG 2.2, levels A and AA, and axe-core's best practices.
const TAGS: [&str; 6] = [
    "wcag2a",
    "wcag2aa",
    "wcag21a",
    "wcag21aa",
    "wcag22aa",
    "best-practice",
];

/// The program; `None`, and a line with the reason, where it was not downloaded.
///
/// # Panics
/// When the file cannot be read.
#[must_use]
pub fn source() -> Option<String> {
    let file = std::env::var_os(VARIABLE).map_or_else(beside_the_test, PathBuf::from);
    if !file.is_file() {
        eprintln!(
            "SKIPPED: {} is missing (cargo xtask test --all downloads it)",
            file.display()
        );
        return None;
    }
    Some(fs::read_to_string(file).expect("axe-core is text"))
}

/// `target/axe/axe.min.js`, for a test that is started alone.
fn beside_the_test() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    // TARGET/PROFILE/deps/TEST
    let target = test.ancestors().nth(3).unwrap_or(Path::new("."));
    target.join("axe/axe.min.js")
}

/// Violations on the page as it is now: rule, words, and the elements.
///
/// # Panics
/// When axe-core does not run.
#[must_use]
#[track_caller]
pub fn violations(browser: &Browser, source: &str) -> Vec<String> {
    let is_there = browser.js("return typeof axe === 'object'", &[]);
    if is_there != Value::Bool(true) {
        browser.cdp("Runtime.evaluate", json!({"expression": source}));
    }
    let script = "const {violations, passes} = await axe.run(document, \
        {runOnly: arguments[0], resultTypes: ['violations']}); \
        return {passes: passes.length, violations: violations.map(one => \
        `${one.id}: ${one.help}: ` + one.nodes.map(node => node.html.slice(0, 200) + ' ' + (node.any[0]?.message ?? '')).join(' | '))};";
    let found = browser.js_async(script, &[json!(TAGS)]);
    assert!(
        found["passes"].as_u64() > Some(5),
        "axe-core looked at nothing: {found}"
    );
    let violations = found["violations"].as_array().cloned().unwrap_or_default();
    violations
        .iter()
        .map(|one| one.as_str().unwrap_or_default().to_owned())
        .collect()
}
