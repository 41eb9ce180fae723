//! HOCON substitutions: each `${path}` becomes the value of that path in the whole file, else the environment variable
//! of that name.

use serde_json::{Map, Value};

use super::{Environment, Fault, Node, Open, Part, Reference, Table};
use crate::config::tree::merge;

/// Values and bytes that all substitutions together may copy. Each of 30 lines `a2: ${a1}${a1}` would double what
/// there is.
const MOST_COPIED: usize = 1 << 20;

/// Sections, lists and substitutions within each other at most. Double, as a substitution stands in a section and may
/// lead to another one.
const DEEPEST: usize = 2 * super::DEEPEST;

/// The section with all its substitutions made.
///
/// # Errors
/// A path that is neither in the file nor a variable, and values that mean each other.
pub(super) fn resolve(root: &Table, environment: Environment<'_>) -> Result<Value, Fault> {
    let mut resolver = Resolver {
        root,
        environment,
        left: MOST_COPIED,
        chain: Vec::new(),
        depth: 0,
    };
    resolver.table(root)
}

struct Resolver<'a> {
    root: &'a Table,
    environment: Environment<'a>,
    left: usize,
    /// The open values that are being resolved, the innermost last.
    chain: Vec<&'a Open>,
    depth: usize,
}

/// The target of a path.
enum Resolved<'a> {
    Node(&'a Node),
    Value(Option<Value>),
}

impl<'a> Resolver<'a> {
    fn table(&mut self, table: &'a Table) -> Result<Value, Fault> {
        let mut fields = Map::new();
        for (key, node) in table {
            // A value whose optional substitutions lead nowhere leaves no key.
            if let Some(value) = self.node(node)? {
                fields.insert(key.trim_matches('"').to_owned(), value);
            }
        }
        Ok(Value::Object(fields))
    }

    fn node(&mut self, node: &'a Node) -> Result<Option<Value>, Fault> {
        self.depth += 1;
        let value = self.node_at_depth(node);
        self.depth -= 1;
        value
    }

    fn node_at_depth(&mut self, node: &'a Node) -> Result<Option<Value>, Fault> {
        match node {
            Node::Scalar(value) => Ok(Some(value.clone())),
            Node::Table(table) => self.table(table).map(Some),
            Node::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    list.push(self.node(item)?.unwrap_or(Value::Null));
                }
                Ok(Some(Value::Array(list)))
            }
            Node::Open(open) => self.open(open),
        }
    }

    fn open(&mut self, open: &'a Open) -> Result<Option<Value>, Fault> {
        let reference = first_reference(open);
        if self.chain.iter().any(|other| std::ptr::eq(*other, open)) {
            return Err(refused(reference, "refers to itself"));
        }
        if self.depth > DEEPEST {
            return Err(refused(reference, "is nested too deeply"));
        }
        self.chain.push(open);
        let value = self.joined(open);
        self.chain.pop();
        value
    }

    fn joined(&mut self, open: &'a Open) -> Result<Option<Value>, Fault> {
        let last = open.parts.len() - 1;
        // Values with the blanks behind a text in quotes, which count unless it is the last.
        let mut found = Vec::new();
        let mut is_null = false;
        for (index, part) in open.parts.iter().enumerate() {
            let (value, blanks) = match part {
                Part::Quoted(text, blanks) => (Some(Value::String(text.clone())), blanks.as_str()),
                Part::Bare(text) => (Some(Value::String(text.clone())), ""),
                Part::Node(node) => (self.node(node)?, ""),
                Part::Reference(reference) => {
                    let value = self.reference(reference, open)?;
                    is_null |= value == Some(Value::Null);
                    let value = value.filter(|value| !value.is_null());
                    let is_text = !matches!(value, Some(Value::Array(_) | Value::Object(_)));
                    let value = match value {
                        Some(value) if is_text && index < last => {
                            Some(Value::String(super::written(&value) + &reference.blanks))
                        }
                        value => value,
                    };
                    (value, "")
                }
            };
            found.extend(value.map(|value| (value, blanks)));
        }
        let reference = first_reference(open);
        let kind = |value: &Value| match value {
            Value::Object(_) => "a section",
            Value::Array(_) => "a list",
            _ => "a string",
        };
        let Some(first) = found.first().map(|(value, _)| kind(value)) else {
            return match &open.under {
                Some(under) if !is_null => self.node(under),
                _ => Ok(None),
            };
        };
        if let Some((other, _)) = found.iter().find(|(value, _)| kind(value) != first) {
            let why = format!(
                "joins {first} with {}, but all parts of a value must have the same type",
                kind(other)
            );
            return Err(refused(reference, &why));
        }
        match first {
            "a section" => {
                let under = match &open.under {
                    Some(under @ (Node::Table(_) | Node::Open(_))) => self.node(under)?,
                    _ => None,
                };
                let mut table = under
                    .filter(Value::is_object)
                    .unwrap_or_else(|| Value::Object(Map::new()));
                for (value, _) in found {
                    merge(&mut table, value);
                }
                Ok(Some(table))
            }
            "a list" => {
                let items = found.into_iter().filter_map(|(value, _)| match value {
                    Value::Array(items) => Some(items),
                    _ => None,
                });
                Ok(Some(Value::Array(items.flatten().collect())))
            }
            _ if found.len() > 1 && found.iter().any(|(value, _)| value.is_null()) => {
                Err(refused(reference, "inserts null into a string"))
            }
            _ => Ok(match found.len() {
                1 => found.pop().map(|(value, _)| value),
                count => {
                    let texts = found.iter().enumerate().map(|(index, (value, blanks))| {
                        let blanks = if index + 1 < count { blanks } else { "" };
                        super::written(value) + blanks
                    });
                    Some(Value::String(texts.collect()))
                }
            }),
        }
    }

    fn reference(
        &mut self,
        reference: &'a Reference,
        from: &'a Open,
    ) -> Result<Option<Value>, Fault> {
        let value = match self.look_up(reference, from)? {
            Resolved::Node(node) => self.node(node)?,
            Resolved::Value(value) => value,
        };
        let size = 1 + value.as_ref().map_or(0, size);
        self.left = self
            .left
            .checked_sub(size)
            .ok_or_else(|| refused(reference, "makes the configuration larger than 1 MiB"))?;
        Ok(value)
    }

    fn look_up(&mut self, reference: &'a Reference, from: &'a Open) -> Result<Resolved<'a>, Fault> {
        let path = &reference.path;
        let keys = super::keys(path);
        // pyhocon looks for a variable in place of the key's own value at the top only.
        let is_deep = keys.len() > 1;
        let mut keys = keys.into_iter();
        let mut found = match keys.next().and_then(|key| self.root.get(&key)) {
            Some(node) => Resolved::Node(node),
            None => return self.variable(reference),
        };
        for key in keys {
            let inner = match found {
                Resolved::Node(Node::Table(table)) => table.get(&key).map(Resolved::Node),
                Resolved::Node(Node::Open(open)) => match self.open(open)? {
                    Some(Value::Object(mut fields)) => fields
                        .remove(&key)
                        .map(|value| Resolved::Value(Some(value))),
                    _ => {
                        return Err(refused(
                            reference,
                            "looks up a key in a value that is not a section",
                        ));
                    }
                },
                Resolved::Value(Some(Value::Object(mut fields))) => fields
                    .remove(&key)
                    .map(|value| Resolved::Value(Some(value))),
                _ => {
                    return Err(refused(
                        reference,
                        "looks up a key in a value that is not a section",
                    ));
                }
            };
            match inner {
                Some(inner) => found = inner,
                None => return self.variable(reference),
            }
        }
        // The key's own value means the one that it had before.
        if let Resolved::Node(Node::Open(open)) = found
            && overrides(open, from)
        {
            return match &from.under {
                Some(Node::Scalar(Value::Null)) if from.parts.len() > 1 => {
                    Err(refused(reference, "is null"))
                }
                // pyhocon substitutes at the top once, before all others.
                Some(Node::Open(under)) if !is_deep && has_other(under, path) => Err(refused(
                    reference,
                    "refers to an earlier value that has a substitution of its own",
                )),
                Some(under) => Ok(Resolved::Node(under)),
                None if is_deep => Err(refused(reference, "refers to itself")),
                None => self.variable(reference),
            };
        }
        Ok(found)
    }

    fn variable(&self, reference: &Reference) -> Result<Resolved<'a>, Fault> {
        match (self.environment)(&reference.path) {
            Some(text) => Ok(Resolved::Value(Some(Value::String(text)))),
            None if reference.optional => Ok(Resolved::Value(None)),
            None => {
                let why = "is neither a key of this file nor an environment variable";
                Err(refused(reference, why))
            }
        }
    }
}

/// Whether `open` is `other`, or has it among the values that it overrides.
fn overrides(open: &Open, other: &Open) -> bool {
    let mut at = Some(open);
    while let Some(open) = at {
        if std::ptr::eq(open, other) {
            return true;
        }
        at = match &open.under {
            Some(Node::Open(under)) => Some(under),
            _ => None,
        };
    }
    false
}

/// Whether a value has a substitution of another path.
fn has_other(open: &Open, path: &str) -> bool {
    open.parts
        .iter()
        .any(|part| matches!(part, Part::Reference(reference) if reference.path != path))
}

fn first_reference(open: &Open) -> &Reference {
    let reference = open.parts.iter().find_map(|part| match part {
        Part::Reference(reference) => Some(reference),
        _ => None,
    });
    reference.expect("an open value has a substitution")
}

fn refused(reference: &Reference, why: &str) -> Fault {
    let mark = if reference.optional { "?" } else { "" };
    Fault {
        line: reference.line,
        column: reference.column,
        why: format!("${{{mark}{}}} {why}", reference.path),
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len(),
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => {
            1 + fields
                .iter()
                .map(|(key, value)| key.len() + size(value))
                .sum::<usize>()
        }
        _ => 1,
    }
}
