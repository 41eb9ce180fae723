//! Documents: Markdown pages, read by blocks.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use regex::Regex;

use super::rules::{Finding, LINE, Rule, check_sentence, sentences};

/// A page: its blocks of text, and its lines.
pub struct Page {
    path: String,
    blocks: Vec<Block>,
    /// Lines outside tables and code.
    lines: Vec<(usize, String)>,
    count: usize,
    bullets: Vec<Bullet>,
}

struct Block {
    text: String,
    line: usize,
    is_cell: bool,
    is_heading: bool,
}

/// An item of a list at the first level.
struct Bullet {
    text: String,
    line: usize,
    lines: usize,
    heading: String,
}

impl Page {
    /// Words of each sentence outside of tables.
    pub fn lengths(&self) -> Vec<usize> {
        let prose = self
            .blocks
            .iter()
            .filter(|block| !block.is_cell && !block.is_heading);
        prose
            .flat_map(|block| sentences(&block.text))
            .map(|sentence| {
                sentence
                    .split_whitespace()
                    .filter(|word| word.chars().any(char::is_alphanumeric))
                    .count()
            })
            .filter(|words| *words > 0)
            .collect()
    }
}

pub fn read(path: &str, text: &str) -> Page {
    let starts: Vec<usize> = std::iter::once(0)
        .chain(text.match_indices('\n').map(|(at, _)| at + 1))
        .collect();
    let line_of = |at: usize| starts.partition_point(|start| *start <= at);
    let mut page = Page {
        path: path.to_owned(),
        blocks: Vec::new(),
        lines: Vec::new(),
        count: text.lines().count(),
        bullets: Vec::new(),
    };
    let mut apart: BTreeSet<usize> = BTreeSet::new();
    let mut open: Option<Block> = None;
    let mut in_code = false;
    let mut depth = 0;
    let mut heading = String::new();
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        let line = line_of(range.start);
        match event {
            Event::Start(Tag::Paragraph | Tag::Heading { .. } | Tag::TableCell)
            | Event::Start(Tag::Item) => {
                if matches!(event, Event::Start(Tag::Item)) {
                    depth += 1;
                    if depth == 1 {
                        let source = text[range.clone()].trim_end();
                        page.bullets.push(Bullet {
                            text: source.to_owned(),
                            line,
                            lines: source.lines().count(),
                            heading: heading.clone(),
                        });
                    }
                }
                page.blocks.extend(open.take());
                open = Some(Block {
                    text: String::new(),
                    line,
                    is_cell: matches!(event, Event::Start(Tag::TableCell)),
                    is_heading: matches!(event, Event::Start(Tag::Heading { .. })),
                });
            }
            Event::End(TagEnd::Item) => {
                depth -= 1;
                page.blocks.extend(open.take());
            }
            Event::End(TagEnd::Heading(_)) => {
                if let Some(block) = open.take() {
                    heading.clone_from(&block.text);
                    page.blocks.push(block);
                }
            }
            Event::End(TagEnd::Paragraph | TagEnd::TableCell) => page.blocks.extend(open.take()),
            Event::Start(Tag::CodeBlock(_)) => {
                page.blocks.extend(open.take());
                in_code = true;
                apart.extend(line..=line_of(range.end.saturating_sub(1)));
            }
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Start(Tag::Table(_)) => {
                apart.extend(line..=line_of(range.end.saturating_sub(1)));
            }
            Event::Text(words) if !in_code => {
                if let Some(block) = &mut open {
                    block.text.push_str(&words);
                }
            }
            Event::Code(_) => {
                if let Some(block) = &mut open {
                    block.text.push_str("CODE");
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some(block) = &mut open {
                    block.text.push(' ');
                }
            }
            _ => {}
        }
    }
    page.blocks.extend(open);
    let lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.to_owned()));
    page.lines = lines.filter(|(at, _)| !apart.contains(at)).collect();
    page
}

static TEST: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)Tests?:\s+`").expect("a correct expression"));
static NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`([\w:]+)`").expect("a correct expression"));

/// Headings of a release under which changes stand.
const CHANGES: [&str; 6] = [
    "Added",
    "Changed",
    "Deprecated",
    "Fixed",
    "Removed",
    "Security",
];

pub fn check(page: &Page, functions: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |rule, what: String, line, text: &str| {
        findings.push(Finding {
            rule,
            what,
            path: page.path.clone(),
            line,
            text: text.to_owned(),
            in_document: true,
        });
    };
    for block in &page.blocks {
        for sentence in sentences(&block.text) {
            for (rule, what) in check_sentence(sentence) {
                let is_title = block.is_heading && rule == Rule::Actor && what.ends_with('…');
                // A cell that lists names of functions is no sentence.
                let mut words = sentence.split_whitespace();
                let is_code = words.all(|word| word.trim_end_matches(',') == "CODE");
                if !is_title && !is_code {
                    add(rule, what, block.line, sentence.trim());
                }
            }
        }
    }
    for (at, line) in &page.lines {
        if line.chars().count() > LINE {
            add(Rule::Line, format!("over {LINE} characters"), *at, line);
        }
    }
    for bullet in &page.bullets {
        if is_limit(bullet)
            && let Some(why) = wrong_limit(bullet, functions)
        {
            add(Rule::Limit, why, bullet.line, &bullet.text);
        }
        if page.path == "CHANGELOG.md" {
            if bullet.lines > 2 {
                let what = "over 2 lines".into();
                add(Rule::Entry, what, bullet.line, &bullet.text);
            }
            if !CHANGES.contains(&bullet.heading.as_str()) {
                let what = format!("under \"{}\"", bullet.heading);
                add(Rule::Entry, what, bullet.line, &bullet.text);
            }
        }
    }
    let most = match page.path.as_str() {
        "ARCHITECTURE.md" => Some(200),
        "LIMITS.md" => Some(25),
        "docs/users.md" => Some(80),
        _ => None,
    };
    if let Some(most) = most.filter(|most| page.count > *most) {
        add(Rule::Page, format!("over {most} lines"), most + 1, "");
    }
    findings
}

/// Whether a bullet stands in the section of a page's limits: `Limits`, or a part of it such as `Limits: memory`.
fn is_limit(bullet: &Bullet) -> bool {
    bullet.heading == "Limits" || bullet.heading.starts_with("Limits: ")
}

/// Why a limit is none, if it is none.
fn wrong_limit(bullet: &Bullet, functions: &BTreeSet<String>) -> Option<String> {
    if bullet.lines > 2 {
        return Some("over 2 lines".into());
    }
    let joined = bullet.text.split_whitespace().collect::<Vec<_>>().join(" ");
    if joined.to_lowercase().contains("not verified on hardware") {
        return None;
    }
    let Some(tests) = TEST.find(&joined) else {
        return Some("without a test".into());
    };
    let names = NAME
        .captures_iter(&joined[tests.start()..])
        .map(|name| name[1].to_owned());
    let mut names = names.collect::<Vec<_>>().into_iter();
    let missing = names.find(|name| !functions.contains(name.rsplit("::").next().unwrap_or(name)));
    missing.map(|_| "a test that is not there".into())
}
