//! The HOCON tokenizer: quoted strings, numbers, escapes and blanks, by pyhocon's regular expressions.

use serde_json::{Number, Value};

/// Bytes of a text in quotes at the beginning of `text`, with the quotes; a letter of `ends` in it ends it.
pub(super) fn quoted_length(text: &str, ends: &str) -> Option<usize> {
    let inner = text.strip_prefix('"')?;
    let mut letters = inner.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some(at + 2),
            '\\' => {
                letters.next().filter(|(_, next)| *next != '\n')?;
            }
            letter if ends.contains(letter) => return None,
            _ => {}
        }
    }
    None
}

/// Bytes of a number at the beginning of `text`, if what ends it is there too: the end, a comma, a bracket, a
/// comment.
pub(super) fn number_length(text: &str) -> Option<usize> {
    let digits =
        |text: &str| text.len() - text.trim_start_matches(|l: char| l.is_ascii_digit()).len();
    let ends = |length: usize| {
        let rest = text[length..].trim_start_matches(' ');
        // `$` of a regular expression is also before a newline at the end, which is one of the signs.
        text.len() == length
            || rest.starts_with(['$', '}', ']', ',', '#', '\n', '\r'])
            || rest.starts_with("//")
    };
    let sign = usize::from(text.starts_with(['+', '-']));
    let whole = digits(&text[sign..]);
    let mut length = sign + whole;
    if text[length..].starts_with('.') {
        let fraction = digits(&text[length + 1..]);
        if fraction > 0 {
            length += 1 + fraction;
        }
    }
    if length == sign {
        return None;
    }
    let exponent = text[length..].strip_prefix(['e', 'E']).and_then(|rest| {
        let sign = usize::from(rest.starts_with(['+', '-']));
        let digits = digits(&rest[sign..]);
        (digits > 0).then_some(1 + sign + digits)
    });
    let length = length + exponent.unwrap_or(0);
    ends(length).then_some(length)
}

/// A whole number, or one with a fraction; one that JSON cannot hold stays a text.
pub(super) fn number(text: &str) -> Value {
    let whole = text.strip_prefix('+').unwrap_or(text);
    if let Ok(number) = whole.parse::<i64>() {
        return number.into();
    }
    if let Ok(number) = whole.parse::<u64>() {
        return number.into();
    }
    let is_whole = whole
        .trim_start_matches('-')
        .chars()
        .all(|l| l.is_ascii_digit());
    let float = text.parse().ok().filter(|_| !is_whole);
    float
        .and_then(Number::from_f64)
        .map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

/// Escapes that pyhocon knows; all others stay as they are written, `\u00e9` too.
pub(super) fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some(same @ ('\\' | '=' | '#' | '!' | '"')) => out.push(same),
            other => out.extend(std::iter::once('\\').chain(other)),
        }
    }
    out
}

/// Tabs as blanks up to the next eighth column, which pyparsing does before it reads.
pub(super) fn expand_tabs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for letter in text.chars() {
        match letter {
            '\t' => {
                let blanks = 8 - column % 8;
                out.extend(std::iter::repeat_n(' ', blanks));
                column += blanks;
            }
            '\n' | '\r' => {
                out.push(letter);
                column = 0;
            }
            _ => {
                out.push(letter);
                column += 1;
            }
        }
    }
    out
}

/// Whether Python's regular expressions match the letter as `\s`.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}
