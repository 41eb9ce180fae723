//! Explanations as text, in the form of `divvy why`.

use std::fmt::Write as _;

use super::explain::{Explanation, State};
use crate::base::error_output::clean;

/// One explanation after the other: a sentence, then what it rests on, then what would help.
pub fn text(all: &[Explanation]) -> String {
    let mut text = String::new();
    for why in all {
        let waits = match why.state {
            State::Waiting => "waits",
            State::Starting => "starts",
            State::Running => "runs",
            State::Finished => "has ended",
        };
        let _ = writeln!(
            text,
            "{} {}/{} {waits}: {}",
            why.kind,
            why.namespace,
            why.name,
            clean(&why.summary)
        );
        let suggestions = why.suggestions.iter().map(|one| ("options", one));
        let lines = why.lines.iter().map(|line| (line.topic, &line.text));
        let mut before = "";
        for (topic, line) in lines.chain(suggestions) {
            let lead = if topic == before { "" } else { topic };
            let _ = writeln!(text, "  {lead:<8} {}", clean(line));
            before = topic;
        }
    }
    text
}
