//! Output of `config`.

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
    match value.needs_restart {
        true => format!("{origin}; another value after a restart"),
        false => origin,
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
