//! The rules: what each forbids, why, and an example of a better text.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

/// Most words of a sentence. CONTRIBUTING.md asks for 25; five more leave room for paths and figures that count as
/// words.
pub const SENTENCE: usize = 30;
/// Most words of half of the sentences of README and docs.
pub const MEDIAN: usize = 18;
/// Most characters of a line outside tables and code. A diff of two columns fits a screen of 240; editors wrap at 115,
/// so five more allow a word's end.
pub const LINE: usize = 120;

/// A rule that a text can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    Actor,
    Passive,
    Noun,
    Unit,
    Sentence,
    Line,
    Limit,
    Entry,
    Page,
    Name,
}

impl Rule {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Actor => "actor",
            Self::Passive => "passive",
            Self::Noun => "noun",
            Self::Unit => "unit",
            Self::Sentence => "sentence",
            Self::Line => "line",
            Self::Limit => "limit",
            Self::Entry => "entry",
            Self::Page => "page",
            Self::Name => "name",
        }
    }

    /// The rule in a sentence, and an example.
    const fn says(self) -> &'static str {
        match self {
            Self::Actor => {
                "name the actor: not \"nobody knows of #1\", but \"end time unknown for #1: no time limit\""
            }
            Self::Passive => "use an active verb: not \"is told of\", but \"the daemon reports\"",
            Self::Noun => {
                "use the word of docs/glossary.md: not \"waiting job\", but \"pending job\""
            }
            Self::Unit => "put a space before a unit: not \"19.8GiB\", but \"19.8 GiB\"",
            Self::Sentence => {
                "at most 30 words a sentence: split it at \"and\" or \"where\", or make a list"
            }
            Self::Line => "at most 120 characters a line outside tables and code: break the line",
            Self::Limit => {
                "one limit a bullet, at most two lines, which names its test (Test: `name`) or ends \
                 with \"not verified on hardware\""
            }
            Self::Entry => {
                "at most two lines an entry, under Added, Changed, Fixed, Removed or Security: \
                 \"A hung NVIDIA driver no longer blocks the daemon.\""
            }
            Self::Name => {
                "name the actor, with a noun of docs/glossary.md: not \"nobody_goes_over\", but \
                 \"no_process_exceeds_the_limit\""
            }
            Self::Page => {
                "keep the page within its lines: move what is detail to a page of its own"
            }
        }
    }
}

/// A text that breaks a rule.
#[derive(Clone, Debug)]
pub struct Finding {
    pub rule: Rule,
    /// The listed word, or the length.
    pub what: String,
    pub path: String,
    pub line: usize,
    pub text: String,
    pub in_document: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.text.chars().take(160).collect();
        write!(
            f,
            "{}:{}: {} ({}): {text:?}\n      {}",
            self.path,
            self.line,
            self.rule.name(),
            self.what,
            self.rule.says()
        )
    }
}

/// Words that stand for an actor without naming one, at any place; a question may ask "Who".
const ACTORS: [&str; 12] = [
    "who",
    "whoever",
    "whom",
    "whomever",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "someone",
    "everyone",
    "anyone",
    "no one",
];
/// The same at the start of a sentence.
const FIRST: [&str; 6] = [
    "those",
    "what",
    "whatever",
    "whose",
    "that which",
    "one that",
];
/// Passive forms behind which no actor stands.
const PASSIVES: [&str; 34] = [
    "is told",
    "are told",
    "was told",
    "be told",
    "been told",
    "is said",
    "are said",
    "was said",
    "be said",
    "been said",
    "is had",
    "are had",
    "be had",
    "is heard of",
    "is known of",
    "be known of",
    "is looked at",
    "are looked at",
    "was looked at",
    "looked at",
    "is given out",
    "are given out",
    "given out",
    "gives out",
    "is asked for",
    "are asked for",
    "of which",
    "for ever",
    "says nothing",
    "say nothing",
    "is to be had",
    "is not there any more",
    "in vain",
    "all the same",
];
/// Words that docs/glossary.md rules out, with the term that stands for them. A word that is right elsewhere (to *kill* a
/// process, a *partition* of Slurm) is here only beside the noun that makes it wrong.
pub const NOUNS: [(&str, &str); 38] = [
    ("waiting job", "pending job"),
    ("waiting jobs", "pending job"),
    ("queued job", "pending job"),
    ("queued jobs", "pending job"),
    ("blocked job", "held job"),
    ("blocked jobs", "held job"),
    ("job on hold", "held job"),
    ("jobs on hold", "held job"),
    ("paused job", "suspended job"),
    ("paused jobs", "suspended job"),
    ("frozen job", "suspended job"),
    ("frozen jobs", "suspended job"),
    ("finished job", "ended job"),
    ("finished jobs", "ended job"),
    ("completed job", "ended job"),
    ("completed jobs", "ended job"),
    ("dead job", "ended job"),
    ("abort a job", "cancel"),
    ("resubmit a job", "requeue"),
    ("array job", "array, task of an array"),
    ("array jobs", "array, task of an array"),
    ("subjob", "array, task of an array"),
    ("array element", "array, task of an array"),
    ("resource spec", "request"),
    ("GPU partition", "slice"),
    ("memory quota", "memory limit"),
    ("memory cap", "memory limit"),
    ("compute quota", "share"),
    ("is promised", "allocated"),
    ("occupied memory", "used"),
    ("unmanaged process", "outside Divvy"),
    ("unmanaged memory", "outside Divvy"),
    ("ignored GPU", "unmanaged"),
    ("drained GPU", "out of service"),
    ("denied memory", "refused"),
    ("walltime", "time limit"),
    ("interposer", "limiter"),
    ("controller process", "daemon"),
];

fn words(list: &[&str]) -> Regex {
    let list: Vec<String> = list.iter().map(|word| word.replace(' ', r"\s+")).collect();
    Regex::new(&format!(r"(?i)\b({})\b", list.join("|"))).expect("the lists make an expression")
}

static ACTOR: LazyLock<Regex> = LazyLock::new(|| words(&ACTORS));
static FIRST_WORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(&format!(r"(?i)^\W*({})\b", FIRST.join("|"))).expect("the list makes an expression")
});
static PASSIVE: LazyLock<Regex> = LazyLock::new(|| words(&PASSIVES));
static NOUN: LazyLock<Regex> = LazyLock::new(|| words(&NOUNS.map(|(word, _)| word)));
static UNIT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?:\d|\})([KMGT]i?B)\b").expect("a correct expression"));

/// Persons of whom a sentence may say "who".
const PERSONS: [&str; 9] = [
    "administrator",
    "admin",
    "caller",
    "developer",
    "engineer",
    "member",
    "operator",
    "reader",
    "user",
];

/// Whether "who" or "whom" follows the person that it refers to: "a user who submits", "the operator as whom".
fn names_actor(sentence: &str, at: usize, word: &str) -> bool {
    let before = sentence[..at].trim_end().trim_end_matches([',', ':']);
    let is_relative = word.eq_ignore_ascii_case("who") || word.eq_ignore_ascii_case("whom");
    let last = before
        .rsplit(|letter: char| !letter.is_alphanumeric())
        .next();
    let last = last.unwrap_or_default().to_lowercase();
    is_relative && PERSONS.contains(&last.trim_end_matches('s'))
}

/// The words and lengths of one sentence that break a rule. Code has been replaced before.
pub fn check_sentence(sentence: &str) -> Vec<(Rule, String)> {
    let mut found = Vec::new();
    let asks = sentence.trim_end().ends_with('?');
    if !asks {
        for word in ACTOR.find_iter(sentence) {
            if names_actor(sentence, word.start(), word.as_str()) {
                continue;
            }
            found.push((Rule::Actor, word.as_str().to_lowercase()));
        }
        if let Some(word) = FIRST_WORD.captures(sentence) {
            found.push((Rule::Actor, format!("{} …", word[1].to_lowercase())));
        }
    }
    for word in PASSIVE.find_iter(sentence) {
        found.push((Rule::Passive, word.as_str().to_lowercase()));
    }
    for word in NOUN.find_iter(sentence) {
        found.push((Rule::Noun, word.as_str().to_lowercase()));
    }
    for unit in UNIT.captures_iter(sentence) {
        found.push((Rule::Unit, unit[1].to_owned()));
    }
    let count = sentence
        .split_whitespace()
        .filter(|word| word.chars().any(char::is_alphanumeric))
        .count();
    if count > SENTENCE {
        found.push((Rule::Sentence, format!("over {SENTENCE} words")));
    }
    found
}

/// The words of a test's name that stand for an actor.
pub fn check_name(name: &str) -> Vec<String> {
    let first = FIRST
        .iter()
        .map(|word| word.replace(' ', "_") + "_")
        .find(|word| name.starts_with(word));
    let others = name.split('_').filter(|word| ACTORS.contains(word));
    let first = first.map(|word| word + "…").into_iter();
    first.chain(others.map(str::to_owned)).collect()
}

/// The sentences of a text: each ends with a full stop, a question mark or an exclamation mark before a space.
pub fn sentences(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut start = 0;
    let mut previous = None;
    for (at, letter) in text.char_indices() {
        if letter.is_whitespace() && matches!(previous, Some('.' | '?' | '!')) {
            all.push(&text[start..at]);
            start = at;
        }
        if !matches!(letter, ')' | '"' | '”' | '*') {
            previous = Some(letter);
        }
    }
    all.push(&text[start..]);
    all.retain(|sentence| !sentence.trim().is_empty());
    all
}
