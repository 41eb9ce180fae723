//! The tables of docs/reference.md that manual pages repeat: exit codes, environment variables and files. The page is the one
//! source of their texts.

use roff::{Inline, bold, roman};

const PAGE: &str = include_str!("../../../../docs/reference.md");

/// Rows of the first table of a section: the cells of each, as written.
fn rows(section: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let heading = format!("\n## {section}\n");
    let text = PAGE.split_once(&heading).map_or("", |(_, text)| text);
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    // The heads of the columns and the line below them.
    let lines = lines.take_while(|line| line.starts_with('|')).skip(2);
    lines.map(|line| {
        let cells = line.trim_matches('|').split(" | ");
        cells.map(str::trim).collect()
    })
}

/// An exit code and its meaning.
pub struct Code {
    pub code: &'static str,
    meaning: &'static str,
}

pub fn codes() -> Vec<Code> {
    let rows = rows("Exit codes");
    rows.map(|cells| Code {
        code: cells[0],
        meaning: cells[1],
    })
    .collect()
}

impl Code {
    pub fn whole(&self) -> &'static str {
        self.meaning
    }

    /// The sentences that apply to a verb. A sentence such as "`run`, `exec`: …" applies to these verbs, and one such as
    /// "`--no-wait`: …" to verbs with that flag. Sentences that follow it apply to the same verbs.
    pub fn of(&self, verb: &str, has_flag: impl Fn(&str) -> bool) -> String {
        let sentences = self.meaning.split_inclusive(". ");
        let mut words = Vec::new();
        let apply = sentences.filter(|sentence| {
            let own = owners(sentence);
            if !own.is_empty() {
                words = own;
            }
            let is_mine = |word: &&str| match word.strip_prefix("--") {
                Some(flag) => has_flag(flag),
                None => *word == verb,
            };
            words.is_empty() || words.iter().any(is_mine)
        });
        // On its own page a verb is not named again.
        let only = format!("`{verb}`: ");
        let own = apply.map(|sentence| match sentence.strip_prefix(&*only) {
            Some(rest) => capital(rest),
            None => sentence.to_owned(),
        });
        own.collect::<String>().trim().to_owned()
    }
}

/// Verbs and flags before the colon of a sentence.
fn owners(sentence: &str) -> Vec<&str> {
    let Some((head, _)) = sentence.split_once(": ") else {
        return Vec::new();
    };
    let words = head.split(", ").map(|word| {
        let word = word.strip_prefix('`')?.strip_suffix('`')?;
        // `events --after` is a flag of a verb.
        Some(word.split_once(" --").map_or(word, |(verb, _)| verb))
    });
    words.collect::<Option<_>>().unwrap_or_default()
}

/// The text with a capital as its first letter.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// A variable of the environment.
pub struct Variable {
    pub names: &'static str,
    readers: &'static str,
    pub meaning: &'static str,
}

pub fn variables() -> Vec<Variable> {
    let rows = rows("Environment variables");
    rows.map(|cells| Variable {
        names: cells[0],
        readers: cells[1],
        meaning: cells[2],
    })
    .collect()
}

impl Variable {
    pub fn is_read_by(&self, reader: &str) -> bool {
        self.readers.split(", ").any(|one| one == reader)
    }
}

/// A folder or file: where it lies, and its content.
pub struct File {
    pub path: &'static str,
    pub content: &'static str,
}

pub fn files() -> Vec<File> {
    let rows = rows("Files");
    rows.map(|cells| File {
        path: cells[1],
        content: cells[2],
    })
    .collect()
}

/// Text of a Markdown cell: code is bold, and a link is its text.
pub fn inline(text: &str) -> Vec<Inline> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let parts = (link.split_once("]("))
            .and_then(|(shown, target)| Some((shown, target.split_once(')')?.1)));
        plain.push_str(before);
        match parts {
            Some((shown, after)) => {
                plain.push_str(shown);
                rest = after;
            }
            None => {
                plain.push('[');
                rest = link;
            }
        }
    }
    plain.push_str(rest);
    let parts = plain.split('`').enumerate();
    let parts = parts.filter(|(_, part)| !part.is_empty());
    parts
        .map(|(at, part)| match at % 2 {
            0 => roman(part),
            _ => bold(part),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_reference_are_there() {
        let codes = codes();
        assert_eq!(codes[0].code, "0");
        assert!(codes.iter().any(|code| code.code == "128+N"));
        assert!(variables().iter().any(|one| one.names == "`DIVVY_HOME`"));
        assert!(
            files()
                .iter()
                .any(|file| file.path.contains("XDG_RUNTIME_DIR"))
        );
        for file in files() {
            assert!(!file.content.is_empty(), "{}", file.path);
        }
    }

    #[test]
    fn a_sentence_about_other_verbs_is_left_out() {
        let codes = codes();
        let of = |number: &str, verb: &str, flags: &[&str]| {
            let code = codes.iter().find(|code| code.code == number).unwrap();
            code.of(verb, |flag| flags.contains(&flag))
        };
        assert!(of("3", "advise", &[]).contains("no earlier run"));
        assert!(!of("3", "ps", &[]).contains("no earlier run"));
        assert!(of("3", "events", &[]).contains("has been deleted"));
        assert_eq!(of("9", "ps", &[]), "");
        assert!(!of("9", "wait", &[]).is_empty());
        assert_eq!(of("125", "ps", &[]), "");
        // The second sentence belongs to the verbs of the first.
        assert_eq!(of("5", "ps", &[]), "");
        assert!(of("5", "resize", &[]).contains("The message names"));
        assert!(!of("125", "run", &[]).is_empty());
    }

    #[test]
    fn links_are_their_text_and_code_is_bold() {
        let parts = inline("See [the `x` table](a.md#b) or `y`. [z");
        let expected = vec![
            roman("See the "),
            bold("x"),
            roman(" table or "),
            bold("y"),
            roman(". [z"),
        ];
        assert_eq!(parts, expected);
        // Brackets that are no link.
        assert_eq!(inline("a[0](b"), vec![roman("a[0](b")]);
    }
}
