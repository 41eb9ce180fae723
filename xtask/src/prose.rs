//! The guard of the project's English: a word list and length bounds over every string and document.
//!
//! `cargo xtask test` runs it as a step. `cargo xtask prose` prints its table, and with `--list` every finding.
//! There is no allow-list for texts that users read. Comments and names of tests have `xtask/prose.txt`, which only shrinks.

mod comments;
mod pages;
mod rules;
mod strings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::root;
use crate::steps::answer;
use rules::{Finding, Rule};

#[derive(clap::Args)]
pub struct Args {
    /// Print every finding, with its rule and an example
    #[arg(long)]
    list: bool,
    /// Also print the findings in comments and names of tests that xtask/prose.txt allows
    #[arg(long)]
    allowed: bool,
    /// Print every text of the programs that is checked, with its place
    #[arg(long)]
    texts: bool,
    /// Only files with a path that starts with one of these
    paths: Vec<String>,
}

/// The files that git tracks or would add, relative to the root of the repository.
fn files() -> Result<Vec<PathBuf>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = answer(list.current_dir(root())).context("list the files with git")?;
    let mut files: Vec<PathBuf> = listed.lines().map(PathBuf::from).collect();
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// Files with comments or names of tests that broke a rule when the guard came: `path findings` a line.
const ALLOWED: &str = "xtask/prose.txt";

/// The numbers of [`ALLOWED`], by file.
fn allowed() -> Result<BTreeMap<String, usize>> {
    let text = std::fs::read_to_string(root().join(ALLOWED))?;
    let row = |line: &str| {
        let (path, count) = line.split_once(' ')?;
        Some((path.to_owned(), count.parse().ok()?))
    };
    let rows = text
        .lines()
        .map(|line| row(line).with_context(|| format!("{ALLOWED}: {line:?}")));
    rows.collect()
}

/// The findings in comments and names of tests, by file.
fn in_comments(files: &[PathBuf]) -> Result<BTreeMap<String, Vec<Finding>>> {
    let mut all = BTreeMap::new();
    for file in files {
        let path = file.display().to_string();
        let is_own = path.starts_with("xtask/src/prose");
        if file.extension().is_none_or(|ending| ending != "rs") || is_own {
            continue;
        }
        let text = std::fs::read_to_string(root().join(file))?;
        let found = comments::check(&path, &text);
        if !found.is_empty() {
            all.insert(path, found);
        }
    }
    Ok(all)
}

/// Everything that the guard found, and the lengths in words of the sentences of README and docs.
struct Report {
    findings: Vec<Finding>,
    lengths: Vec<usize>,
}

fn read(paths: &[String]) -> Result<Report> {
    let files = files()?;
    let names = strings::names_of_functions(&files)?;
    let mut report = Report {
        findings: Vec::new(),
        lengths: Vec::new(),
    };
    for file in &files {
        let path = file.display().to_string();
        let is_wanted = paths.is_empty() || paths.iter().any(|start| path.starts_with(start));
        let Some(kind) = Kind::of(file).filter(|_| is_wanted) else {
            continue;
        };
        let text = std::fs::read_to_string(root().join(file))
            .with_context(|| format!("read {}", file.display()))?;
        match kind {
            Kind::Page => {
                let page = pages::read(&path, &text);
                let mut found = pages::check(&page, &names);
                // Its table names the words that no other text uses.
                found.retain(|one| path != "docs/glossary.md" || one.rule != Rule::Noun);
                report.findings.extend(found);
                if path == "README.md" || path.starts_with("docs/") {
                    report.lengths.extend(page.lengths());
                }
            }
            Kind::Rust => report.findings.extend(strings::check_rust(&path, &text)?),
            Kind::Schema => report.findings.extend(strings::check_schema(&path, &text)?),
            Kind::Text => report.findings.extend(strings::check_lines(&path, &text)),
            Kind::Script => report.findings.extend(strings::check_script(&path, &text)),
        }
    }
    report.lengths.sort_unstable();
    Ok(report)
}

/// The texts of the Rust sources: path, line, text.
fn texts(paths: &[String]) -> Result<Vec<(String, usize, String)>> {
    let mut all = Vec::new();
    for file in files()? {
        let path = file.display().to_string();
        let is_wanted = paths.is_empty() || paths.iter().any(|start| path.starts_with(start));
        if is_wanted && matches!(Kind::of(&file), Some(Kind::Rust)) {
            let source = std::fs::read_to_string(root().join(&file))?;
            let texts = strings::texts(&path, &source)?;
            all.extend(
                texts
                    .into_iter()
                    .map(|(text, line)| (path.clone(), line, text)),
            );
        }
    }
    Ok(all)
}

/// How a file is read.
#[derive(Clone, Copy)]
enum Kind {
    /// Markdown.
    Page,
    /// String literals, and the documentation from which help texts are made.
    Rust,
    /// The descriptions of the API.
    Schema,
    /// Everything in it: chart, units, the package for the stock agent.
    Text,
    /// The page of `divvy web`: its words alone, as its lines are code.
    Script,
}

impl Kind {
    fn of(file: &Path) -> Option<Self> {
        let path = file.to_str()?;
        let ending = file.extension().and_then(|ending| ending.to_str());
        let is_test =
            path.contains("/tests/") || path.starts_with("tests/") || path.ends_with("tests.rs");
        let is_simulation = path.contains("/simulation/") || path.ends_with("/simulation.rs");
        match ending {
            Some("md") => Some(Self::Page),
            _ if path.contains("/vendor/") => None,
            Some("js" | "html" | "css") if path.starts_with("crates/web/assets") => {
                Some(Self::Script)
            }
            Some("rs") if path.starts_with("xtask/src/prose") => None,
            Some("rs") if !is_test && !is_simulation => Some(Self::Rust),
            Some("json") if path.starts_with("openapi/") => Some(Self::Schema),
            // Generated, and expressions alone.
            Some("json") if path.starts_with("deploy/helm/divvy/files/") => None,
            Some("py") if path.starts_with("python/") && !is_test => Some(Self::Text),
            _ if path.starts_with("deploy/") && !is_test => Some(Self::Text),
            _ => None,
        }
    }
}

/// `cargo xtask prose`: the table, or every finding.
#[expect(clippy::print_stdout, reason = "the table is this command's data")]
pub fn show(args: &Args) -> Result<()> {
    let mut report = read(&args.paths)?;
    if args.allowed {
        let is_wanted = |path: &String| {
            args.paths.is_empty() || args.paths.iter().any(|start| path.starts_with(start))
        };
        let found = in_comments(&files()?)?.into_iter();
        let wanted = found.filter(|(path, _)| is_wanted(path));
        report.findings.extend(wanted.flat_map(|(_, found)| found));
    }
    if args.texts {
        for (path, line, text) in texts(&args.paths)? {
            println!("{path}:{line}: {text:?}");
        }
        return Ok(());
    }
    if args.list {
        for finding in &report.findings {
            println!("{finding}");
        }
    }
    let mut table: BTreeMap<(Rule, &str), [usize; 2]> = BTreeMap::new();
    for finding in &report.findings {
        let counts = table.entry((finding.rule, &finding.what)).or_default();
        counts[usize::from(!finding.in_document)] += 1;
    }
    println!(
        "{:<12} {:<24} {:>9} {:>9}",
        "RULE", "FOUND", "DOCUMENTS", "STRINGS"
    );
    for ((rule, what), [documents, strings]) in &table {
        println!("{:<12} {what:<24} {documents:>9} {strings:>9}", rule.name());
    }
    let [documents, strings] = [true, false].map(|wanted| {
        let of = report.findings.iter();
        of.filter(|finding| finding.in_document == wanted).count()
    });
    println!("{:<12} {:<24} {documents:>9} {strings:>9}", "all", "");
    let median = report.lengths.get(report.lengths.len() / 2).unwrap_or(&0);
    let longest = report.lengths.last().unwrap_or(&0);
    println!(
        "README and docs: {} sentences, median {median} words, longest {longest} words",
        report.lengths.len()
    );
    Ok(())
}

/// The step of `cargo xtask test`.
///
/// # Errors
/// Names every finding with its rule and an example.
pub fn check() -> Result<()> {
    let report = read(&[])?;
    for finding in &report.findings {
        eprintln!("   {finding}");
    }
    let (found, allowed) = (in_comments(&files()?)?, allowed()?);
    for path in found.keys().chain(allowed.keys()).collect::<BTreeSet<_>>() {
        let now = found.get(path).map_or(&[][..], |found| found);
        let then = allowed.get(path).copied().unwrap_or(0);
        if now.len() > then {
            now.iter().for_each(|finding| eprintln!("   {finding}"));
        }
        ensure!(
            now.len() <= then,
            "{path}: {} findings in comments and names of tests, and {ALLOWED} allows {then}",
            now.len()
        );
        ensure!(
            now.len() == then,
            "{path}: {ALLOWED} allows {then} findings, and only {} are left: lower the number",
            now.len()
        );
    }
    let median = report.lengths.get(report.lengths.len() / 2).unwrap_or(&0);
    ensure!(
        report.findings.is_empty(),
        "{} texts break a rule of CONTRIBUTING.md, \"Words\"",
        report.findings.len()
    );
    ensure!(
        *median <= rules::MEDIAN,
        "half of the sentences of README and docs have more than {median} words; at most {} is the rule",
        rules::MEDIAN
    );
    eprintln!(
        "   {} sentences, median {median} words",
        report.lengths.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::rules::Rule;
    use super::{Finding, pages, strings};

    fn rules(findings: &[Finding]) -> Vec<(Rule, &str)> {
        let rules = findings
            .iter()
            .map(|finding| (finding.rule, finding.what.as_str()));
        rules.collect()
    }

    /// The findings of a page with one test, `a_limit_holds`.
    fn page(path: &str, text: &str) -> Vec<Finding> {
        let functions = BTreeSet::from(["a_limit_holds".to_owned()]);
        pages::check(&pages::read(path, text), &functions)
    }

    #[test]
    fn a_planted_line_of_each_class_is_found_in_a_document() {
        let long = "word ".repeat(31);
        let wide = "letters ".repeat(16);
        for (path, text, expected) in [
            ("docs/a.md", "Nobody knows of it.", (Rule::Actor, "nobody")),
            (
                "docs/a.md",
                "Whoever waits, waits.",
                (Rule::Actor, "whoever"),
            ),
            ("docs/a.md", "A GPU who waits.", (Rule::Actor, "who")),
            (
                "docs/a.md",
                "It is. What it holds is kept.",
                (Rule::Actor, "what …"),
            ),
            (
                "docs/a.md",
                "| a |\n|---|\n| nobody |\n",
                (Rule::Actor, "nobody"),
            ),
            (
                "docs/a.md",
                "The job is told\nof it.",
                (Rule::Passive, "is told"),
            ),
            ("docs/a.md", "It has 19.8GiB.", (Rule::Unit, "GiB")),
            (
                "docs/a.md",
                &format!("{long}."),
                (Rule::Sentence, "over 30 words"),
            ),
            ("docs/a.md", &wide, (Rule::Line, "over 120 characters")),
            (
                "docs/a.md",
                "## Limits\n\n- A limit.",
                (Rule::Limit, "without a test"),
            ),
            (
                "docs/a.md",
                "### Limits: memory\n\n- A limit. Test: `a_limit`.",
                (Rule::Limit, "a test that is not there"),
            ),
            (
                "docs/a.md",
                "## Limits\n\n- One\n  two\n  three. Test: `a_limit_holds`.",
                (Rule::Limit, "over 2 lines"),
            ),
            ("LIMITS.md", &"\n".repeat(26), (Rule::Page, "over 25 lines")),
            (
                "CHANGELOG.md",
                "### Fixed\n\n- One\n  two\n  three.",
                (Rule::Entry, "over 2 lines"),
            ),
            (
                "CHANGELOG.md",
                "### Other\n\n- One.",
                (Rule::Entry, "under \"Other\""),
            ),
            (
                "docs/users.md",
                &"\n".repeat(81),
                (Rule::Page, "over 80 lines"),
            ),
        ] {
            let findings = page(path, text);
            assert!(
                rules(&findings).contains(&expected),
                "{text:?}: {findings:?}"
            );
        }
    }

    #[test]
    fn a_word_that_the_glossary_rules_out_is_found_on_each_surface() {
        let noun = (Rule::Noun, "waiting jobs");
        let rust = |path: &str, source: &str| strings::check_rust(path, source).expect("tokens");
        for (surface, findings) in [
            ("document", page("docs/a.md", "It lists waiting jobs.\n")),
            (
                "help",
                rust(
                    "crates/cli/src/args/a.rs",
                    "/// Lists waiting jobs\nstruct A;",
                ),
            ),
            (
                "screen",
                rust(
                    "crates/cli/src/top/a.rs",
                    "fn a() { b(\"3 waiting jobs\"); }",
                ),
            ),
            (
                "metrics",
                rust(
                    "crates/agent/src/http/metrics.rs",
                    "const A: &str = \"Number of waiting jobs.\";",
                ),
            ),
            (
                "API",
                strings::check_schema("openapi/v1.json", r#"{"description": "The waiting jobs."}"#)
                    .expect("a document"),
            ),
            (
                "page",
                strings::check_script("crates/web/assets/a.js", "caption=\"All waiting jobs\""),
            ),
            (
                "chart",
                strings::check_lines("deploy/a.yaml", "# The waiting jobs."),
            ),
        ] {
            assert!(rules(&findings).contains(&noun), "{surface}: {findings:?}");
        }
        // The words of the wire are code.
        assert!(page("docs/a.md", "Its enforcement is `interposer`.\n").is_empty());
    }

    #[test]
    fn the_guard_holds_every_row_of_the_glossarys_first_table() {
        let glossary = include_str!("../../docs/glossary.md");
        let rows = glossary
            .lines()
            .skip_while(|line| !line.starts_with("| term | use | not |"));
        let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
        let rows: Vec<Vec<&str>> = rows
            .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), 20);
        for row in &rows {
            let [term, _, not] = row[..] else {
                panic!("{row:?}")
            };
            let mut words = super::rules::NOUNS
                .iter()
                .filter(|(_, known)| *known == term);
            let is_named = |(word, _): &(&str, &str)| {
                let mut parts = word.split(' ').map(|part| part.trim_end_matches('s'));
                parts.all(|part| {
                    ["a", "GPU", "memory", "is", "on"].contains(&part) || not.contains(part)
                })
            };
            assert!(words.clone().count() > 0, "no rule holds {term}");
            assert!(words.all(is_named), "{term} | {not}");
        }
        let is_term = |term: &str| rows.iter().any(|row| row[0] == term);
        assert!(super::rules::NOUNS.iter().all(|(_, term)| is_term(term)));
    }

    #[test]
    fn a_plain_document_has_no_finding() {
        for (path, text) in [
            (
                "docs/a.md",
                "# What Divvy promises\n\nA user who waits asks: who holds the GPU?\n",
            ),
            (
                "docs/a.md",
                "The command `divvy why` names 19.8 GiB. `nobody` is a word of code.\n",
            ),
            (
                "docs/a.md",
                &format!("```text\n{}\n```\n", "nobody ".repeat(40)),
            ),
            (
                "docs/a.md",
                "## Limits\n\n- A limit. Test: `it::a_limit_holds`.\n- Another. Not verified on hardware.\n\n\
                 ## After\n\n- No limit.\n",
            ),
            ("CHANGELOG.md", "### Fixed\n\n- One\n  and two.\n"),
        ] {
            let findings = page(path, text);
            assert!(findings.is_empty(), "{text:?}: {findings:?}");
        }
    }

    #[test]
    fn strings_and_help_texts_are_checked_and_tests_are_not() {
        let check = |path: &str, source: &str| {
            let findings = strings::check_rust(path, source).expect("the source has tokens");
            findings
                .iter()
                .map(|finding| finding.what.clone())
                .collect::<Vec<_>>()
        };
        let string = r#"fn a() { b("nobody is here", format!("{x}MiB are free")); }"#;
        assert_eq!(check("crates/core/src/a.rs", string), ["nobody", "MiB"]);
        let split = "fn a() { b(\"it is \\\n    told of a job\"); }";
        assert_eq!(check("crates/core/src/a.rs", split), ["is told"]);
        let test = r#"#[cfg(test)] mod tests { fn a() { b("nobody is here"); } }"#;
        assert!(check("crates/core/src/a.rs", test).is_empty());
        let help = "/// What it waits for.\nstruct A { a: u8 }";
        assert_eq!(check("crates/cli/src/args/a.rs", help), ["what …"]);
        assert!(check("crates/core/src/a.rs", help).is_empty());
    }
}
