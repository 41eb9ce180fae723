//! The documentation shows only commands that exist, and all of them: every `divvy VERB --flag` and every `cargo xtask VERB` in it is looked
//! up in the program's own help, and every verb and flag of that in the pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use divvy_e2e::Home;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages a user reads.
fn pages() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = [
        "README.md",
        "LIMITS.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
    ]
    .map(|name| root().join(name))
    .to_vec();
    for folder in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder of pages");
        paths.extend(entries.map(|entry| entry.expect("readable").path()));
    }
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    let read = |path: &PathBuf| {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    paths
        .iter()
        .map(|path| (path.display().to_string(), read(path)))
        .collect()
}

/// Pieces of a page that are typed: lines of fenced blocks (continued lines joined) and code spans.
fn typed(page: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut fenced = false;
    for line in page.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced && line.starts_with("error: ") {
            // A sentence about the program, not a command.
        } else if fenced {
            pieces.extend(line.split([';', '|']).map(str::to_owned));
        } else {
            pieces.extend(
                line.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|span| span.replace("\\|", " ")),
            );
        }
    }
    pieces
}

/// `divvy VERB` or `cargo xtask VERB` with its flags, and the words behind it, from each piece that has one.
fn commands(page: &str, program: &[&str]) -> Vec<(String, Vec<String>, Vec<String>)> {
    let verb = |word: &str| {
        word.len() > 1
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    typed(page)
        .iter()
        .filter_map(|piece| {
            // What is quoted is one word, and often somebody else's flags.
            let unquoted: String = piece.split('\'').step_by(2).collect();
            let words: Vec<&str> = unquoted.split_whitespace().collect();
            let at = words
                .windows(program.len())
                .position(|window| window == program)?
                + program.len();
            let rest = words[at..].iter().take_while(|word| **word != "--");
            let name = words
                .get(at)
                .filter(|word| verb(word) && !word.starts_with('-'))?;
            let flags = rest.clone().filter_map(|word| {
                let flag = word.trim_matches(['[', ']', '…', ',', '.', ')']);
                flag.starts_with("--")
                    .then(|| flag.split('=').next().unwrap_or(flag).to_owned())
            });
            let behind = rest.skip(1).map(|word| (*word).to_owned());
            let behind = behind.collect();
            Some(((*name).to_owned(), flags.collect(), behind))
        })
        .collect()
}

/// What `divvy VERB --help` says, asked once.
fn help_of(home: &Home, path: &str, verb: &str, helps: &mut BTreeMap<String, String>) -> String {
    let ask = || {
        let words: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        let said = home.divvy(&words);
        assert_eq!(
            said.code, 0,
            "{path} shows `divvy {verb}`, which there is not: {}",
            said.stderr
        );
        said.stdout
    };
    helps.entry(verb.to_owned()).or_insert_with(ask).clone()
}

#[test]
fn every_divvy_command_in_the_documentation_exists() {
    let home = Home::new("a100-80gb:1");
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let mut verbs = BTreeSet::new();
    for (path, page) in pages() {
        for (mut verb, flags, behind) in commands(&page, &["divvy"]) {
            let mut help = help_of(&home, &path, &verb, &mut helps);
            // `admin mig plan`: a verb that has others below it.
            for word in behind {
                if !help.contains(&format!("\n  {word} ")) || !help.contains("\nCommands:") {
                    break;
                }
                verb = format!("{verb} {word}");
                help = help_of(&home, &path, &verb, &mut helps);
            }
            for flag in flags {
                assert!(
                    help.contains(&flag),
                    "{path} shows `divvy {verb} {flag}`, which there is not"
                );
            }
            verbs.insert(verb);
        }
    }
    for verb in ["run", "submit", "daemon", "ps", "gpus", "why"] {
        assert!(
            verbs.contains(verb),
            "no page shows `divvy {verb}`; was it read at all?"
        );
    }
}

/// Whether the pages have this word as it is typed: not as a part of a longer one.
fn shows(typed: &str, word: &str) -> bool {
    let is_part =
        |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'-');
    typed.match_indices(word).any(|(at, _)| {
        let before = at
            .checked_sub(1)
            .and_then(|at| typed.as_bytes().get(at).copied());
        !is_part(before) && !is_part(typed.as_bytes().get(at + word.len()).copied())
    })
}

/// The verbs and flags of a verb's help that the pages do not have.
fn missing(home: &Home, verb: &str, typed: &str, wrong: &mut Vec<String>) {
    let words: Vec<&str> = verb.split_whitespace().chain(["--help"]).collect();
    let help = home.divvy(&words).ok().stdout;
    if !shows(typed, verb) {
        wrong.push(format!("`divvy {verb}`"));
    }
    for line in help.lines() {
        let flag = line
            .split_whitespace()
            .take(2)
            .find(|word| word.starts_with("--"));
        let flag = flag.map(|flag| flag.trim_end_matches(|end: char| !end.is_ascii_lowercase()));
        if let Some(flag) = flag.filter(|flag| line.starts_with("  ") && *flag != "--help")
            && !shows(typed, flag)
        {
            wrong.push(format!("`divvy {verb} {flag}`"));
        }
    }
    let below = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, below)| below);
    for line in below.lines().take_while(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().unwrap_or_default();
        if line.starts_with("  ") && !line.starts_with("   ") && name != "help" {
            missing(home, &format!("{verb} {name}"), typed, wrong);
        }
    }
}

#[test]
fn every_verb_and_flag_is_in_the_documentation() {
    let home = Home::new("a100-80gb:1");
    let typed: Vec<String> = pages().iter().flat_map(|(_, page)| typed(page)).collect();
    let typed = typed.join("\n");
    let top = home.divvy(&["--help"]).ok().stdout;
    let verbs = top.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        let is_verb = !name.is_empty() && name != "divvy";
        (is_verb && name.bytes().all(|byte| byte.is_ascii_lowercase())).then_some(name)
    });
    let verbs: BTreeSet<&str> = verbs.collect();
    assert!(verbs.len() > 20, "{verbs:?}");
    let mut wrong = Vec::new();
    for verb in verbs {
        missing(&home, verb, &typed, &mut wrong);
    }
    assert!(wrong.is_empty(), "in no page: {}", wrong.join(", "));
}

#[test]
fn every_xtask_in_the_documentation_exists() {
    let source = fs::read_to_string(root().join("xtask/src/main.rs")).expect("xtask has a main");
    let mut seen = BTreeSet::new();
    for (path, page) in pages() {
        for (verb, ..) in commands(&page, &["cargo", "xtask"]) {
            let variant = format!("    {}{}", verb[..1].to_uppercase(), &verb[1..]);
            let there = source
                .lines()
                .any(|line| line.trim_end_matches(',').split('(').next() == Some(&variant));
            assert!(
                there,
                "{path} shows `cargo xtask {verb}`, which there is not"
            );
            seen.insert(verb);
        }
    }
    assert!(
        seen.contains("demo") && seen.contains("test"),
        "no page shows the two commands; was it read at all? {seen:?}"
    );
}
