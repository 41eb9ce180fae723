//! Redaction of command lines: masks values of secret variables and passwords in URLs.

use std::collections::{BTreeMap, BTreeSet};

use super::setup::shell;
use crate::config::{ConfigError, Tree};

/// In place of a secret, as the stock agent has it.
const MASK: &str = "********";

/// Variables whose values are never shown.
const SECRETS: [&str; 7] = [
    "CLEARML_AGENT_GIT_PASS",
    "TRAINS_AGENT_GIT_PASS",
    "CLEARML_API_SECRET_KEY",
    "TRAINS_API_SECRET_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_KEY",
    "CLEARML_AUTH_TOKEN",
];

/// `agent.hide_docker_command_env_vars`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masks {
    enabled: bool,
    names: BTreeSet<String>,
    urls: bool,
}

impl Masks {
    /// # Errors
    /// Values that are none.
    pub fn read(tree: &Tree, vars: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let key = |name: &str| format!("agent.hide_docker_command_env_vars.{name}");
        let more = vars.get("CLEARML_AGENT_DOCKER_ARGS_HIDE_ENV");
        let more = more.map(|line| shell(line)).unwrap_or_default();
        let configured = tree.strings(&key("extra_keys"))?.unwrap_or_default();
        let names = SECRETS.iter().map(ToString::to_string);
        Ok(Self {
            enabled: tree.flag(&key("enabled"))?.unwrap_or(true) || !more.is_empty(),
            names: names.chain(configured).chain(more).collect(),
            urls: tree.flag(&key("parse_embedded_urls"))?.unwrap_or(true),
        })
    }

    /// The words of a command line as they may be shown.
    pub fn over(&self, words: &[String]) -> Vec<String> {
        if !self.enabled {
            return words.to_vec();
        }
        let mut shown = Vec::with_capacity(words.len());
        let mut is_variable = false;
        for word in words {
            shown.push(if std::mem::take(&mut is_variable) {
                self.variable(word)
            } else {
                match word.strip_prefix("--env=") {
                    Some(variable) => format!("--env={}", self.variable(variable)),
                    None if self.urls && !word.starts_with('-') => without_passwords(word),
                    None => word.clone(),
                }
            });
            is_variable = word == "-e" || word == "--env";
        }
        shown
    }

    fn variable(&self, text: &str) -> String {
        match text.split_once('=') {
            Some((name, _)) if self.names.contains(name) => format!("{name}={MASK}"),
            Some((name, value)) if self.urls => format!("{name}={}", without_passwords(value)),
            _ => text.to_owned(),
        }
    }
}

/// `https://user:********@host/x`; text without such a URL stays as it is.
fn without_passwords(text: &str) -> String {
    if !text.contains('@') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for part in text.split_inclusive(char::is_whitespace) {
        out.push_str(&url(part).unwrap_or_else(|| part.to_owned()));
    }
    out
}

fn url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (place, path) = rest.split_at(end);
    let (login, host) = place.rsplit_once('@')?;
    let (user, _) = login.split_once(':')?;
    Some(format!("{scheme}://{user}:{MASK}@{host}{path}"))
}

/// Words as Python prints a list of them, which is how the stock agent logs a command.
pub fn listed(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| literal(word)).collect();
    format!("[{}]", words.join(", "))
}

fn literal(word: &str) -> String {
    let quote = if word.contains('\'') && !word.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for letter in word.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            letter if letter == quote => out.extend(['\\', letter]),
            letter => out.push(letter),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::setup;
    use super::*;

    fn masked(config: &str, line: &str) -> String {
        setup(&[("CLEARML_AGENT_DOCKER_ARGS_HIDE_ENV", "MINE")], config)
            .masks
            .over(&shell(line))
            .join(" ")
    }

    #[test]
    fn secrets_and_passwords_are_masked_and_the_rest_is_not() {
        let line = "-e AWS_SECRET_ACCESS_KEY=s3cret --env MINE=s3cret --env=CLEARML_AUTH_TOKEN=s3cret -e A=b \
                    -e URL=https://u:s3cret@h/x?y https://git:s3cret@host:8080 -v /a:/b";
        let text = masked("", line);
        assert!(!text.contains("s3cret"), "{text}");
        assert!(
            text.contains("-e A=b") && text.contains("https://u:********@h/x?y"),
            "{text}"
        );
        assert!(
            text.ends_with("https://git:********@host:8080 -v /a:/b"),
            "{text}"
        );
        let more = "agent.hide_docker_command_env_vars.extra_keys: [A]";
        assert!(masked(more, line).contains("-e A=********"));
    }

    #[test]
    fn masking_can_be_turned_off_as_in_the_stock_agent() {
        let off = "agent.hide_docker_command_env_vars.enabled: false";
        let masks = setup(&[], off).masks;
        assert_eq!(
            masks.over(&shell("-e AWS_SECRET_ACCESS_KEY=x")).join(" "),
            "-e AWS_SECRET_ACCESS_KEY=x"
        );
    }

    #[test]
    fn a_command_is_listed_as_python_lists_it() {
        let words = ["docker", "\"device=2\"", "it's", "a'b\"c", "x\\y\n"].map(str::to_owned);
        assert_eq!(
            listed(&words),
            r#"['docker', '"device=2"', "it's", 'a\'b"c', 'x\\y\n']"#
        );
    }
}
