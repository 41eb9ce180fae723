//! Lists as CSV (RFC 4180), safe to open in a spreadsheet.

use serde_json::Value;

use super::Item;

/// The columns of the type, and a line for each item. Missing values are empty.
pub fn csv<T: Item>(items: &[T]) -> serde_json::Result<String> {
    let mut text = T::COLUMNS.join(",") + "\n";
    for item in items {
        let item = serde_json::to_value(item)?;
        let cells = T::COLUMNS.iter().map(|column| field(&item[*column]));
        text += &cells.collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    Ok(text)
}

/// One cell. A text that a spreadsheet would run as a formula gets an apostrophe before it: a user chooses its name.
fn field(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text,
        other => return other.to_string(),
    };
    let blank = |letter: char| letter.is_whitespace() || letter == '\0';
    let formula = ['=', '+', '-', '@', '|', '%', '＝', '＋', '－', '＠'];
    let is_formula = text.trim_start_matches(blank).starts_with(formula);
    let is_blank = text.starts_with(['\t', '\r', '\n']);
    let mark = if is_formula || is_blank { "'" } else { "" };
    let text = format!("{mark}{text}");
    if text.contains(['"', ',', ';', '\r', '\n', '\t', '\'']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cell_of_csv_is_quoted_and_starts_no_formula() {
        for (value, cell) in [
            (json!(null), ""),
            (json!(12), "12"),
            (json!(-1.5), "-1.5"),
            (json!(true), "true"),
            (json!("ana"), "ana"),
            (json!("a,b \"c\""), "\"a,b \"\"c\"\"\""),
            (json!("=1+1"), "\"'=1+1\""),
            (json!(" \u{0}@x"), "\"' \u{0}@x\""),
            (json!("\nx"), "\"'\nx\""),
            (json!("－1"), "\"'－1\""),
        ] {
            assert_eq!(field(&value), cell, "{value}");
        }
    }
}
