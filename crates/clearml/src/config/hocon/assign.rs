//! HOCON assignments: a key that already has a value, and values that stand side by side (concatenation).

use serde_json::Value;

use super::{Node, Open, Part, Table};

/// Lays a value at a path of keys. `append`: it joins what lies there, where that is an open value, a list or a
/// section.
pub(super) fn put(
    table: &mut Table,
    keys: &[String],
    value: Node,
    append: bool,
) -> Result<(), &'static str> {
    let [key, more @ ..] = keys else {
        return Err("a key is missing");
    };
    if !more.is_empty() {
        let inner = table
            .entry(key.clone())
            .or_insert(Node::Scalar(Value::Null));
        if !matches!(inner, Node::Table(_)) {
            *inner = Node::Table(Table::new());
        }
        let Node::Table(inner) = inner else {
            unreachable!("the node became a section above");
        };
        return put(inner, more, value, append);
    }
    let put = match (table.remove(key), value) {
        (Some(Node::Table(mut under)), Node::Table(over)) => {
            merge(&mut under, over);
            Node::Table(under)
        }
        (Some(Node::Open(mut under)), over) if append => {
            under.parts.push(Part::Node(over));
            Node::Open(under)
        }
        (Some(Node::Table(under)), Node::Open(mut over)) if append => {
            over.parts.insert(0, Part::Node(Node::Table(under.clone())));
            over.under = Some(Node::Table(under));
            Node::Open(over)
        }
        (Some(Node::Scalar(under)), Node::Table(_)) if append && !under.is_null() => {
            return Err("this key already has a value, so it cannot become a section");
        }
        (under, Node::Open(mut over)) => {
            over.under = under;
            Node::Open(over)
        }
        (_, over) => over,
    };
    table.insert(key.clone(), put);
    Ok(())
}

/// Lays a section over another.
fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        let put = match (under.remove(&key), value) {
            (Some(Node::Table(mut under)), Node::Table(over)) => {
                merge(&mut under, over);
                Node::Table(under)
            }
            (under, Node::Open(mut over)) => {
                if under.is_some() {
                    over.under = under;
                }
                Node::Open(over)
            }
            (_, over) => over,
        };
        under.insert(key, put);
    }
}

/// The value of parts that stand side by side.
pub(super) fn joined(mut parts: Vec<Part>) -> Result<Node, String> {
    if let Some(Part::Bare(last)) = parts.last_mut() {
        last.truncate(last.trim_end_matches(' ').len());
    }
    if parts.iter().any(|part| matches!(part, Part::Reference(_))) {
        return Ok(Node::Open(Box::new(Open { parts, under: None })));
    }
    let kind = |part: &Part| match part {
        Part::Node(Node::Table(_)) => "a section",
        Part::Node(Node::List(_)) => "a list",
        _ => "a string",
    };
    let Some(first) = parts.first().map(kind) else {
        return Ok(Node::Scalar(Value::String(String::new())));
    };
    if let Some(other) = parts.iter().map(kind).find(|other| *other != first) {
        return Err(format!(
            "{first} is followed by {other}: separate them with a comma or a new line"
        ));
    }
    if parts.len() == 1 && matches!(parts[0], Part::Node(Node::Scalar(_))) {
        let Some(Part::Node(node)) = parts.pop() else {
            unreachable!("the line above checked the part");
        };
        return Ok(node);
    }
    if parts
        .iter()
        .any(|part| matches!(part, Part::Node(Node::Scalar(Value::Null))))
    {
        // pyhocon writes the address of an object of its own.
        return Err("null inside a string: put the whole string into double quotes".to_owned());
    }
    let (mut table, mut list, mut text) = (Table::new(), Vec::new(), String::new());
    let last = parts.len() - 1;
    for (index, part) in parts.into_iter().enumerate() {
        match part {
            Part::Node(Node::Table(more)) => merge(&mut table, more),
            Part::Node(Node::List(more)) => list.extend(more),
            Part::Node(Node::Scalar(value)) => text += &super::written(&value),
            Part::Quoted(more, _) if index == last => text += &more,
            Part::Quoted(more, blanks) => text.extend([more, blanks]),
            Part::Bare(more) => text += &more,
            Part::Node(Node::Open(_)) | Part::Reference(_) => {
                unreachable!("no part is an open value, and references returned above")
            }
        }
    }
    Ok(match first {
        "a section" => Node::Table(table),
        "a list" => Node::List(list),
        _ => Node::Scalar(Value::String(text)),
    })
}
