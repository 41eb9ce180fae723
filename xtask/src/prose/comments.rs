//! Comments and names of tests, in all Rust sources with their tests and in `fuzz/`: words that stand for an actor.
//!
//! Comments are found by lines, as the reader of tokens drops those that are no documentation. Code between backquotes
//! counts as one word.

use std::sync::LazyLock;

use regex::Regex;

use super::rules::{Finding, Rule, check_name, check_sentence, sentences};

static CODE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`[^`]*`").expect("a correct expression"));
static TEST: LazyLock<Regex> = LazyLock::new(|| {
    let attributes = r"#\[(?:tokio::)?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*|//[^\n]*\n\s*)*";
    Regex::new(&format!(r"{attributes}(?:async )?fn (\w+)")).expect("a correct expression")
});

/// The findings in the comments and the names of tests of a source file.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let finding = |rule, what, line, text: &str| Finding {
        rule,
        what,
        path: path.to_owned(),
        line,
        text: text.trim().to_owned(),
        in_document: false,
    };
    let mut findings = Vec::new();
    for (line, comment) in comments(text) {
        let plain = CODE.replace_all(&comment, "CODE");
        for sentence in sentences(&plain) {
            let found = check_sentence(sentence).into_iter();
            let actors = found.filter(|(rule, what)| *rule == Rule::Actor && is_person(what));
            findings.extend(actors.map(|(rule, what)| finding(rule, what, line, sentence)));
        }
    }
    for name in TEST.captures_iter(text) {
        let (Some(whole), Some(name)) = (name.get(0), name.get(1)) else {
            continue;
        };
        let line = text[..whole.end()].lines().count();
        let words = check_name(name.as_str()).into_iter();
        findings.extend(
            words
                .filter(|what| is_person(what))
                .map(|what| finding(Rule::Name, what, line, name.as_str())),
        );
    }
    findings
}

/// Whether the word stands for a person or a process. "What" and "one that" stand for things, which a comment may leave open.
fn is_person(what: &str) -> bool {
    let first = what.split([' ', '_']).next().unwrap_or(what);
    !["what", "whatever", "one", "that"].contains(&first)
}

/// The comments of a source file with their first lines. Lines that follow each other are one comment.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        let Some((is_whole, comment)) = comment(line) else {
            is_open = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        let is_item = comment.starts_with(['-', '*', '|', '#']);
        match all.last_mut() {
            Some((_, before)) if is_open && is_whole && !is_item => {
                before.push(' ');
                before.push_str(comment);
            }
            _ => all.push((at + 1, comment.to_owned())),
        }
        is_open = is_whole && !comment.is_empty();
    }
    all
}

/// The comment of a line, and whether the line has nothing else.
fn comment(line: &str) -> Option<(bool, &str)> {
    if let Some(comment) = line.trim_start().strip_prefix("//") {
        return Some((true, comment));
    }
    let (code, comment) = line.split_once(" // ")?;
    let is_in_string = code.matches('"').count() % 2 == 1;
    (!is_in_string).then_some((false, comment))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(usize, String)> {
        let found = check("crates/a/src/lib.rs", text).into_iter();
        found.map(|one| (one.line, one.what)).collect()
    }

    #[test]
    fn a_comment_or_the_name_of_a_test_without_an_actor_is_found() {
        let found = |line, what: &str| vec![(line, what.to_owned())];
        for (text, expected) in [
            (
                "fn f() {\n    // Then\n    // nobody waits.\n}",
                found(2, "nobody"),
            ),
            ("/// A job. Whose it is.\nfn f() {}", found(1, "whose …")),
            ("fn f() {} // Someone waits.", found(1, "someone")),
            ("//! - Those that wait.", found(1, "those …")),
            ("#[test]\nfn nobody_waits() {}", found(2, "nobody")),
            (
                "#[test]\n#[expect(unused)]\nfn a_job_of_someone() {}",
                found(3, "someone"),
            ),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
        for text in [
            "// A user who waits. What it holds. Does somebody wait? See `nobody`.",
            "fn f() { g(\"a // nobody\"); }",
            "#[test]\nfn a_job_waits() {}\nfn nobody_waits() {}",
        ] {
            assert_eq!(words(text), Vec::new(), "{text}");
        }
    }
}
