//! Label and field selectors.

use serde_json::Value;

/// What is asked for: objects with these labels, and these fields.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: String,
    fields: String,
}

impl Selector {
    pub fn new(labels: Option<&String>, fields: Option<&String>) -> Self {
        Self {
            labels: labels.cloned().unwrap_or_default(),
            fields: fields.cloned().unwrap_or_default(),
        }
    }

    pub fn takes(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        terms(&self.labels).all(|term| label(term, labels))
            && terms(&self.fields).all(|term| field(term, object))
    }
}

/// Splits at the commas outside of parentheses.
fn terms(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|term| !term.is_empty())
}

fn label(term: &str, labels: &Value) -> bool {
    let value = |key: &str| labels[key.trim()].as_str();
    let among = |list: &str, value: &str| {
        let list = list.trim().trim_matches(['(', ')']);
        list.split(',').any(|one| one.trim() == value)
    };
    if let Some((key, list)) = term.split_once(" notin ") {
        return value(key).is_none_or(|value| !among(list, value));
    }
    if let Some((key, list)) = term.split_once(" in ") {
        return value(key).is_some_and(|value| among(list, value));
    }
    if let Some((key, other)) = term.split_once("!=") {
        return value(key) != Some(other.trim());
    }
    if let Some((key, other)) = term.split_once('=') {
        return value(key) == Some(other.trim_start_matches('=').trim());
    }
    match term.strip_prefix('!') {
        Some(key) => value(key).is_none(),
        None => value(term).is_some(),
    }
}

fn field(term: &str, object: &Value) -> bool {
    let value = |path: &str| {
        let found = path.trim().split('.').fold(object, |at, key| &at[key]);
        found.as_str().unwrap_or_default().to_owned()
    };
    if let Some((path, other)) = term.split_once("!=") {
        return value(path) != other.trim();
    }
    term.split_once('=')
        .is_some_and(|(path, other)| value(path) == other.trim_start_matches('=').trim())
}
