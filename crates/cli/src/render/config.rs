//! Output of `config`, and the file that it writes.

use std::fmt::Write as _;

use divvy_api::daemon::keys;
use divvy_api::v1::{ConfigOrigin, ConfigReload, ConfigValue};

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row a key.
pub fn config(values: &[ConfigValue], view: View) -> String {
    if values.is_empty() {
        return String::new();
    }
    let columns = [
        Column::Fixed("KEY"),
        Column::Text("VALUE"),
        Column::Fixed("ORIGIN"),
    ];
    let rows: Vec<Vec<String>> = values.iter().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

fn row(value: &ConfigValue) -> Vec<String> {
    vec![
        text::clean(&value.key),
        text::clean(&value.value.to_string()),
        text::clean(&origin(value)),
    ]
}

fn origin(value: &ConfigValue) -> String {
    let origin = match value.origin {
        ConfigOrigin::Default => "default".to_owned(),
        ConfigOrigin::Flag => value.flag.clone().unwrap_or_default(),
        ConfigOrigin::File => {
            let file = value.file.as_deref().unwrap_or_default();
            format!("{file}:{}", value.line.unwrap_or_default())
        }
    };
    if value.needs_restart {
        format!("{origin}; another value after a restart")
    } else {
        origin
    }
}

/// One line about a reload.
pub fn config_reload(done: &ConfigReload) -> String {
    let file = match &done.file {
        Some(file) => format!("the daemon has read {}", text::clean(file)),
        None => "the daemon has no configuration file".to_owned(),
    };
    let changed = match done.changed.as_slice() {
        [] => "nothing changed".to_owned(),
        keys => format!("changed: {}", text::clean(&keys.join(", "))),
    };
    match done.needs_restart.as_slice() {
        [] => format!("{file}; {changed}\n"),
        keys => format!(
            "{file}; {changed}; after a restart of the daemon: {}\n",
            text::clean(&keys.join(", "))
        ),
    }
}

/// Widest line of the commented file. So a line fits 120 columns behind a diff's mark and the comment's own.
const WIDTH: usize = 116;

/// A file with every key as a comment: its meaning, and its default or an example.
pub fn commented_config() -> String {
    let mut text = "\
# The configuration of the Divvy daemon: /etc/divvy/config.toml of the system's daemon, ~/.config/divvy/config.toml of a
# user's own. To set a key, remove the `#` before it and before its [table]. Each value is the default, or an example
# for a key that is off. After a change: divvy config check && divvy config reload

"
    .to_owned();
    let mut within = "";
    for (key, default) in keys::defaults() {
        let (above, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        if above != within {
            within = above;
            let _ = write!(text, "\n#[{}]\n", above.replace('*', "vision"));
        }
        for line in table::wrapped(&key.words(), Some(WIDTH), 0).lines() {
            let _ = writeln!(text, "# {line}");
        }
        let value = match key.example {
            "" => default.unwrap_or_default(),
            example => example.to_owned(),
        };
        let _ = writeln!(text, "#{name} = {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use divvy_api::daemon::file;

    use super::*;

    /// With `DIVVY_RECORD=1` the example gets the keys of the table.
    #[test]
    fn the_example_of_the_configuration_file_has_every_key_and_is_correct() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/config.toml");
        let text = commented_config();
        if std::env::var_os("DIVVY_RECORD").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            text,
            "DIVVY_RECORD=1 writes it anew"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 120));
        file::parse(text.as_bytes()).unwrap();
        // Each commented key can be in force.
        let uncommented = |line: &str| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') => format!("{key}\n"),
            _ => format!("{line}\n"),
        };
        let all: String = text.lines().map(uncommented).collect();
        let places = file::parse(all.as_bytes()).unwrap().places;
        for key in keys::KEYS {
            assert!(places.keys().any(|path| key.is(path)), "{}", key.name);
        }
    }
}
