//! What `--help` says there is: every verb that is shown, and the flags of each.

use std::collections::BTreeSet;

use crate::Home;

/// Every verb, with those above it: `admin mig plan`.
///
/// # Panics
/// When one has no help.
#[must_use]
pub fn verbs(home: &Home) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    below(home, "", &mut all);
    all
}

fn below(home: &Home, path: &str, all: &mut BTreeSet<String>) {
    let help = help(home, path);
    let listed: Vec<&str> = match (path, help.split_once("\nCommands:")) {
        ("", _) => help.lines().skip(3).collect(),
        (_, Some((_, commands))) => {
            let lines = commands.lines().skip(1);
            lines.take_while(|line| !line.is_empty()).collect()
        }
        _ => {
            all.insert(path.to_owned());
            return;
        }
    };
    for line in listed {
        let name = line.strip_prefix("  ").unwrap_or(" ");
        let verb = name.split(' ').next().unwrap_or_default();
        let is_verb = verb.starts_with(|first: char| first.is_ascii_lowercase())
            && !["help", "divvy"].contains(&verb);
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        if is_verb && verb.bytes().all(is_name) {
            below(home, format!("{path} {verb}").trim(), all);
        }
    }
}

/// The long flags of a verb, each with whether it takes a value.
///
/// # Panics
/// When the verb has no help.
#[must_use]
pub fn flags(home: &Home, verb: &str) -> Vec<(String, bool)> {
    let help = help(home, verb);
    let lines = help.lines().filter(|line| line.starts_with("  "));
    let flags = lines.filter_map(|line| {
        let line = line.trim_start();
        let long = match line.strip_prefix('-') {
            Some(rest) if rest.starts_with('-') => line,
            Some(rest) => rest.get(1..)?.strip_prefix(", ")?,
            None => return None,
        };
        // `--watch[=<SECONDS>]`: the value may be left out.
        let end = long.find([' ', '[']).unwrap_or(long.len());
        let (name, rest) = long.split_at(end);
        let rest = rest.trim_start();
        Some((name.to_owned(), rest.starts_with(['<', '['])))
    });
    flags.filter(|(name, _)| name != "--help").collect()
}

fn help(home: &Home, verb: &str) -> String {
    let mut words: Vec<&str> = verb.split_whitespace().collect();
    words.push("--help");
    home.divvy(&words).ok().stdout
}
