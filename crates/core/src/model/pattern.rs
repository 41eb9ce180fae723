//! File name patterns of output files: `logs/%x-%A_%a.out`.
//!
//! The fields are those of sbatch(1) that have a meaning on one machine.

use std::fmt::Write as _;
use std::str::FromStr;

use crate::units::JobId;

/// Most digits that a field is filled up to with zeros, as in sbatch(1).
const MOST_DIGITS: usize = 10;

/// A file name with fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A field, and to how many digits it is filled up with zeros.
    Field(Field, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Job,
    Array,
    Index,
    Name,
    User,
    Node,
}

/// What the fields of a pattern stand for.
#[derive(Clone, Copy, Debug)]
pub struct FileFacts<'a> {
    pub job: JobId,
    /// The first job of its array, and the job's index in it.
    pub task: Option<(JobId, u32)>,
    /// The job's name, without its index.
    pub name: &'a str,
    pub user: &'a str,
    /// Name of the machine, without its domain.
    pub node: &'a str,
}

/// A text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilePatternError {
    #[error("the file name is empty")]
    Empty,
    #[error("the file name ends with an incomplete field: `%`")]
    Ends,
    #[error("unknown field `%{0}` in the file name")]
    Unknown(char),
}

impl FilePatternError {
    /// What to write instead.
    pub fn hint(&self) -> &'static str {
        "the fields are %j (job), %A (array), %a (index), %x (name), %u (user), %N (node) and %% (a percent sign)"
    }
}

impl FromStr for FilePattern {
    type Err = FilePatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(FilePatternError::Empty);
        }
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                plain.push(letter);
                continue;
            }
            let mut width = 0;
            while let Some(digit) = letters.peek().and_then(|letter| letter.to_digit(10)) {
                width = (width * 10 + digit as usize).min(MOST_DIGITS);
                letters.next();
            }
            let field = match letters.next().ok_or(FilePatternError::Ends)? {
                '%' => {
                    plain.push('%');
                    continue;
                }
                // The batch step of Slurm, which is the job.
                'j' | 'J' => Field::Job,
                'A' => Field::Array,
                'a' => Field::Index,
                'x' => Field::Name,
                'u' => Field::User,
                'N' => Field::Node,
                other => return Err(FilePatternError::Unknown(other)),
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Field(field, width));
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self(parts))
    }
}

impl FilePattern {
    /// The file name of one job. A job outside of arrays is its own array, and has the index 0.
    pub fn expand(&self, facts: &FileFacts<'_>) -> String {
        let mut text = String::new();
        // A name leads into no other folder.
        let plain = |name: &str| name.replace('/', "_");
        for part in &self.0 {
            let (field, width) = match part {
                Part::Text(plain) => {
                    text.push_str(plain);
                    continue;
                }
                Part::Field(field, width) => (field, *width),
            };
            let number = match field {
                Field::Job => facts.job.0,
                Field::Array => facts.task.map_or(facts.job, |(array, _)| array).0,
                Field::Index => facts.task.map_or(0, |(_, index)| index).into(),
                Field::Name => {
                    text.push_str(&plain(facts.name));
                    continue;
                }
                Field::User => {
                    text.push_str(&plain(facts.user));
                    continue;
                }
                Field::Node => {
                    text.push_str(&plain(facts.node));
                    continue;
                }
            };
            // Writing to a text does not fail.
            let _ = write!(text, "{number:0width$}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pattern: &str, task: Option<(JobId, u32)>) -> String {
        let facts = FileFacts {
            job: JobId(42),
            task,
            name: "train/a",
            user: "ana",
            node: "gpu1",
        };
        pattern.parse::<FilePattern>().unwrap().expand(&facts)
    }

    #[test]
    fn every_field_of_a_pattern_is_filled_in() {
        let task = Some((JobId(40), 2));
        for (pattern, name) in [
            ("out.txt", "out.txt"),
            ("/logs/%x-%j.out", "/logs/train_a-42.out"),
            ("%A_%a.%u@%N", "40_2.ana@gpu1"),
            ("%4j-%03a-%99A", "0042-002-0000000040"),
            ("100%%-%%j", "100%-%j"),
            ("%J", "42"),
            ("größe-%j", "größe-42"),
        ] {
            assert_eq!(named(pattern, task), name, "{pattern}");
        }
        assert_eq!(named("%A_%a", None), "42_0");
    }

    #[test]
    fn a_text_that_is_no_pattern_is_refused_with_the_fields() {
        for (pattern, error) in [
            ("", FilePatternError::Empty),
            ("a%", FilePatternError::Ends),
            ("a%12", FilePatternError::Ends),
            ("%q", FilePatternError::Unknown('q')),
            ("%t.out", FilePatternError::Unknown('t')),
        ] {
            assert_eq!(
                pattern.parse::<FilePattern>(),
                Err(error.clone()),
                "{pattern}"
            );
            assert!(error.hint().contains("%j"));
        }
    }
}
