//! Shell word splitting of one line of text, without expansion.

/// A quote that is not closed, or a backslash at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a quote is not closed")]
pub struct Unclosed;

/// The words of a line: blanks separate them, quotes and backslashes keep blanks in.
///
/// # Errors
/// [`Unclosed`].
pub fn split(line: &str) -> Result<Vec<String>, Unclosed> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter.is_ascii_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or(Unclosed)? {
                        '\'' => break,
                        letter => word.push(letter),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or(Unclosed)? {
                        '"' => break,
                        '\\' => match letters.next().ok_or(Unclosed)? {
                            letter @ ('"' | '\\' | '$' | '`') => word.push(letter),
                            letter => word.extend(['\\', letter]),
                        },
                        letter => word.push(letter),
                    }
                }
            }
            '\\' => {
                let letter = letters.next().ok_or(Unclosed)?;
                word.get_or_insert_default().push(letter);
            }
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Ok(words)
}

/// A word as a shell has to be told it.
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=/.,:+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blanks_separate_and_quotes_keep_together() {
        let cases: [(&str, &[&str]); 6] = [
            ("", &[]),
            ("  a  b ", &["a", "b"]),
            (r#"-e "A=1 2" -v /x:/y"#, &["-e", "A=1 2", "-v", "/x:/y"]),
            (r"'a b'c\ d", &["a bc d"]),
            (r#""" '' x"#, &["", "", "x"]),
            (r#""a\"b\n""#, &[r#"a"b\n"#]),
        ];
        for (line, words) in cases {
            assert_eq!(split(line).unwrap(), words, "{line}");
        }
        for line in ["'a", "\"a", "a\\", "\"a\\"] {
            assert_eq!(split(line), Err(Unclosed), "{line}");
        }
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in prop::collection::vec("\\PC*", 0..6)) {
            let line = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(split(&line).unwrap(), words);
        }
    }
}
