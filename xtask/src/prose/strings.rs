//! Texts in programs: string literals, the documentation from which help is made, descriptions of the API, charts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use regex::Regex;
use serde_json::Value;

use super::rules::{Finding, Rule, check_sentence, sentences};
use crate::cargo::root;

/// Sources with documentation that users see: as help, or in the description of the API.
const SHOWN: [&str; 6] = [
    "crates/cli/src/args",
    "crates/api/src/v1",
    "crates/k8s/src/main.rs",
    "crates/k8s/src/base/role.rs",
    "crates/k8s/src/tools/admin",
    "xtask/src",
];

/// A text of a program, and its line.
pub type Text = (String, usize);

/// The names of all functions of the repository, so that a page can name a test.
pub fn names_of_functions(files: &[PathBuf]) -> Result<BTreeSet<String>> {
    let name =
        Regex::new(r"(?m)^\s*(?:pub |async )*(?:fn|def) (\w+)").expect("a correct expression");
    let mut names = BTreeSet::new();
    for file in files {
        let ending = file.extension().and_then(|ending| ending.to_str());
        if !matches!(ending, Some("rs" | "py")) {
            continue;
        }
        let text = std::fs::read_to_string(root().join(file))
            .with_context(|| format!("read {}", file.display()))?;
        names.extend(name.captures_iter(&text).map(|found| found[1].to_owned()));
    }
    Ok(names)
}

pub fn check_rust(path: &str, text: &str) -> Result<Vec<Finding>> {
    Ok(check_texts(path, texts(path, text)?))
}

/// The texts of a source file that have more than one word.
pub fn texts(path: &str, text: &str) -> Result<Vec<Text>> {
    let tokens: TokenStream = text
        .parse()
        .map_err(|error| anyhow!("read {path}: {error}"))?;
    let with_documentation = SHOWN.iter().any(|start| path.starts_with(start));
    let mut texts = Vec::new();
    walk(tokens, with_documentation, &mut texts);
    // SQL, names and paths have no sentences.
    texts.retain(|(text, _)| {
        let text = text.trim();
        let mut words = text.split_whitespace().rev().skip(1);
        let is_list = words.clone().count() > 8 && words.all(|word| word.ends_with(','));
        text.contains(' ') && !is_list && !SQL.iter().any(|start| text.starts_with(start))
    });
    Ok(texts)
}

/// Collects string literals, but not those of tests. Lines of one comment become one text.
fn walk(tokens: TokenStream, with_documentation: bool, texts: &mut Vec<Text>) {
    let mut tokens = tokens.into_iter().peekable();
    let mut comment: Option<Text> = None;
    let mut is_test = false;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                tokens.next_if(
                    |next| matches!(next, TokenTree::Punct(mark) if mark.as_char() == '!'),
                );
                let Some(TokenTree::Group(attribute)) = tokens.next() else {
                    continue;
                };
                let inner = attribute.stream().to_string();
                if inner.starts_with("doc =") {
                    if with_documentation && let Some((line, at)) = literal_in(attribute.stream()) {
                        let (all, _) = comment.get_or_insert((String::new(), at));
                        all.push_str(if line.trim().is_empty() { ".\n" } else { &line });
                    }
                    continue;
                }
                is_test |= matches!(inner.as_str(), "cfg (test)" | "cfg(test)" | "test");
                if !inner.starts_with("expect") && !inner.starts_with("allow") {
                    walk(attribute.stream(), with_documentation, texts);
                }
                continue;
            }
            TokenTree::Group(group) => {
                texts.extend(comment.take());
                let ends_item = group.delimiter() == Delimiter::Brace;
                if !is_test {
                    walk(group.stream(), with_documentation, texts);
                }
                is_test &= !ends_item;
            }
            TokenTree::Literal(literal) => {
                texts.extend(comment.take());
                let line = literal.span().start().line;
                texts.extend(
                    unquoted(&literal.to_string())
                        .filter(|_| !is_test)
                        .map(|text| (text, line)),
                );
            }
            TokenTree::Punct(mark) => {
                texts.extend(comment.take());
                is_test &= mark.as_char() != ';';
            }
            TokenTree::Ident(_) => texts.extend(comment.take()),
        }
    }
    texts.extend(comment);
}

fn literal_in(tokens: TokenStream) -> Option<Text> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Literal(literal) => {
            Some((unquoted(&literal.to_string())?, literal.span().start().line))
        }
        _ => None,
    })
}

static CONTINUED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\\\n\s*").expect("a correct expression"));

/// What stands between the quotes, `None` for other literals.
fn unquoted(literal: &str) -> Option<String> {
    let start = literal.find('"')?;
    let prefix = &literal[..start];
    if !matches!(prefix.trim_end_matches('#'), "" | "r" | "c" | "b") {
        return None;
    }
    let text = literal[start + 1..]
        .trim_end_matches('#')
        .strip_suffix('"')?;
    if prefix.starts_with('r') {
        return Some(text.to_owned());
    }
    let joined = CONTINUED.replace_all(text, "");
    Some(joined.replace("\\n", "\n").replace("\\\"", "\""))
}

/// How a string with a query or a change of the database begins.
const SQL: [&str; 5] = [
    "SELECT ",
    "INSERT INTO ",
    "UPDATE ",
    "DELETE FROM ",
    "CREATE ",
];

static CODE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`[^`]*`").expect("a correct expression"));
static PLACEHOLDER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\w+\}").expect("a correct expression"));

fn check_texts(path: &str, texts: Vec<Text>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (text, line) in texts {
        let plain = CODE.replace_all(&text, "CODE");
        let plain = PLACEHOLDER.replace_all(&plain, "{}");
        for part in plain.split('\n') {
            for sentence in sentences(part) {
                findings.extend(
                    check_sentence(sentence)
                        .into_iter()
                        .map(|(rule, what)| Finding {
                            rule,
                            what,
                            path: path.to_owned(),
                            line,
                            text: sentence.trim().to_owned(),
                            in_document: false,
                        }),
                );
            }
        }
    }
    findings
}

/// Descriptions and summaries anywhere in a JSON document.
pub fn check_schema(path: &str, text: &str) -> Result<Vec<Finding>> {
    fn collect(value: &Value, texts: &mut Vec<Text>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text)
                            if matches!(name.as_str(), "description" | "summary") =>
                        {
                            texts.push((text.replace('\n', " "), 1));
                        }
                        other => collect(other, texts),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, texts)),
            _ => {}
        }
    }
    let mut texts = Vec::new();
    let schema = serde_json::from_str(text).with_context(|| format!("read {path}"))?;
    collect(&schema, &mut texts);
    Ok(check_texts(path, texts))
}

/// Texts of which every line may be shown: charts, units, the package for the stock agent. Words only, and lines.
pub fn check_lines(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let found = check_sentence(line);
        findings.extend(
            found
                .into_iter()
                .filter(|(rule, _)| *rule != Rule::Unit)
                .map(|(rule, what)| Finding {
                    rule,
                    what,
                    path: path.to_owned(),
                    line: at + 1,
                    text: line.trim().to_owned(),
                    in_document: false,
                }),
        );
    }
    findings
}

/// The page of the browser: only the words of the glossary.
pub fn check_script(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = check_lines(path, text);
    findings.retain(|finding| finding.rule == Rule::Noun);
    findings
}
