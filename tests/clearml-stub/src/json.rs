//! Small things done to JSON objects.

use serde_json::{Map, Value};

/// Fields of an object.
pub(crate) type Fields = Map<String, Value>;

/// The value at a dotted path.
pub(crate) fn at<'a>(fields: &'a Fields, path: &str) -> Option<&'a Value> {
    let mut names = path.split('.');
    let first = fields.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))
}

/// Puts a value at a dotted path and makes what lies on the way.
pub(crate) fn put(fields: &mut Fields, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            fields.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = fields
                .entry(first)
                .or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

/// Takes away what lies at a dotted path.
pub(crate) fn take(fields: &mut Fields, path: &str) {
    match path.split_once('.') {
        None => {
            fields.remove(path);
        }
        Some((first, rest)) => {
            if let Some(Value::Object(inner)) = fields.get_mut(first) {
                take(inner, rest);
            }
        }
    }
}

/// An object with these paths of another and its id; all of it where none are named.
pub(crate) fn projected(fields: &Fields, paths: &[&str]) -> Value {
    if paths.is_empty() {
        return Value::Object(fields.clone());
    }
    let mut kept = Map::new();
    for path in paths.iter().chain(&["id"]) {
        if let Some(value) = at(fields, path) {
            put(&mut kept, path, value.clone());
        }
    }
    Value::Object(kept)
}

/// The strings of a list; none where there is no list.
pub(crate) fn strings<'a>(fields: &'a Fields, name: &str) -> Vec<&'a str> {
    let list = fields.get(name).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// A string; empty where there is none.
pub(crate) fn string<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A truth; false where there is none.
pub(crate) fn flag(fields: &Fields, name: &str) -> bool {
    fields
        .get(name)
        .and_then(Value::as_bool)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_reach_into_objects() {
        let Value::Object(mut fields) = json!({ "id": "t", "execution": { "queue": "q" }, "x": 1 })
        else {
            unreachable!("it is one")
        };
        assert_eq!(
            projected(&fields, &["execution.queue"]),
            json!({ "id": "t", "execution": { "queue": "q" } })
        );
        put(&mut fields, "runtime.deep.er", json!(2));
        assert_eq!(at(&fields, "runtime.deep.er"), Some(&json!(2)));
        take(&mut fields, "execution.queue");
        assert_eq!(at(&fields, "execution.queue"), None);
        assert_eq!(at(&fields, "x.y"), None);
    }
}
