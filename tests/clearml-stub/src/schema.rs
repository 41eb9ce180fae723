//! What a request may say: names and types of its fields.

use serde_json::Value;

use crate::json::Fields;
use crate::refusal::Refusal;

/// The SDK puts its own HTTP method into every body, and the server ignores it.
const ALWAYS: &str = "method";

/// Holds a body to the fields of its endpoint, one word each: `name:kind`, with `!` behind the name where it must be there and
/// `~` before it where only the stock agent or SDK sends it and the server ignores it. A null counts as left out.
///
/// # Errors
/// 400/12, as the server answers a body that does not fit.
pub(crate) fn check(takes: &str, body: &Fields) -> Result<(), Refusal> {
    let known: Vec<(&str, bool, &str)> = takes.split_ascii_whitespace().map(field).collect();
    for (name, required, _) in &known {
        if *required && body.get(*name).is_none_or(Value::is_null) {
            return Err(Refusal::invalid(format!("missing required field {name}")));
        }
    }
    let said = body.iter().filter(|(name, _)| *name != ALWAYS);
    for (name, value) in said.filter(|(_, value)| !value.is_null()) {
        let found = known.iter().find(|(known, ..)| known == name);
        let Some((_, _, kind)) = found else {
            return Err(Refusal::invalid(format!("unknown field {name}")));
        };
        if !is(value, kind) {
            return Err(Refusal::invalid(format!(
                "{name} must be {kind}, not {value}"
            )));
        }
    }
    Ok(())
}

fn field(word: &str) -> (&str, bool, &str) {
    let (name, kind) = word
        .trim_start_matches('~')
        .split_once(':')
        .expect("a field has a kind");
    match name.strip_suffix('!') {
        Some(name) => (name, true, kind),
        None => (name, false, kind),
    }
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "list" => value.is_array(),
        "strings" => value
            .as_array()
            .is_some_and(|list| list.iter().all(Value::is_string)),
        "any" => true,
        other => unreachable!("{other} is no kind"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_has_what_it_must_and_nothing_that_is_not_known() {
        let takes = "task!:string force:boolean queues:strings ~extra:any";
        let said = |body: Value| {
            let body = body.as_object().expect("an object").clone();
            check(takes, &body).map_err(|refusal| (refusal.code, refusal.subcode, refusal.message))
        };
        let refused = |words: &str| Err((400, 12, format!("Validation error ({words})")));
        assert_eq!(
            said(json!({ "task": "t", "force": true, "queues": ["a"], "extra": 1 })),
            Ok(())
        );
        assert_eq!(
            said(json!({ "task": "t", "force": null, "other": null })),
            Ok(())
        );
        assert_eq!(said(json!({})), refused("missing required field task"));
        assert_eq!(
            said(json!({ "task": null })),
            refused("missing required field task")
        );
        assert_eq!(
            said(json!({ "task": "t", "x": 1 })),
            refused("unknown field x")
        );
        assert_eq!(
            said(json!({ "task": "t", "force": "yes" })),
            refused("force must be boolean, not \"yes\"")
        );
        assert_eq!(
            said(json!({ "task": "t", "queues": [1] })),
            refused("queues must be strings, not [1]")
        );
    }
}
