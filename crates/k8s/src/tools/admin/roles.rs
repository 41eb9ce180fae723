//! Computes the label changes that give a role to nodes, or remove it.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{Error, ErrorCode};
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;
use serde_json::{Value, json};

use crate::base::error_output::{self, Format};
use crate::base::role::{self, DYNAMIC_MIG, Role};

/// The requested change of the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleRequest {
    Set,
    /// Also removes the labels of other products, or only ours.
    Remove {
        all_labels: bool,
    },
}

/// One node, as it will be after the change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    pub node: String,
    /// `dynamic-mig` or `fractions`.
    pub role: &'static str,
    /// The labels that give the role after the change.
    pub role_labels: Vec<&'static str>,
    pub changed: bool,
    /// A merge patch of the node; `None` if the node needs no change.
    #[serde(skip)]
    pub patch: Option<Value>,
}

/// The changes, in the order of the names and without duplicates. If one of them is impossible, there are none.
///
/// # Errors
/// A node does not exist, or a label that is not ours would keep the role.
pub fn changes(nodes: &[Node], names: &[String], wish: RoleRequest) -> Result<Vec<Change>, Error> {
    let by_name: BTreeMap<&str, &Node> = nodes
        .iter()
        .filter_map(|node| Some((node.metadata.name.as_deref()?, node)))
        .collect();
    let unknown: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !by_name.contains_key(name))
        .collect();
    if !unknown.is_empty() {
        return Err(no_such(&unknown, &by_name));
    }
    let mut seen = BTreeSet::new();
    let wanted = names.iter().filter(|name| seen.insert(name.as_str()));
    let nodes: Vec<(&String, Role)> = wanted
        .map(|name| {
            (
                name,
                role::of(by_name[name.as_str()].metadata.labels.as_ref()),
            )
        })
        .collect();
    if wish == (RoleRequest::Remove { all_labels: false }) {
        foreign(&nodes)?;
    }
    Ok(nodes
        .into_iter()
        .map(|(name, role)| change(name, role, wish))
        .collect())
}

fn change(name: &str, role: Role, wish: RoleRequest) -> Change {
    let mut by = match role {
        Role::DynamicMig { by } => by,
        Role::Fractions => Vec::new(),
    };
    let had = by.clone();
    let patch: BTreeMap<&str, Value> = match wish {
        RoleRequest::Set if by.contains(&DYNAMIC_MIG) => BTreeMap::new(),
        RoleRequest::Set => {
            by.insert(0, DYNAMIC_MIG);
            BTreeMap::from([(DYNAMIC_MIG, json!("true"))])
        }
        RoleRequest::Remove { .. } => by.drain(..).map(|label| (label, Value::Null)).collect(),
    };
    Change {
        node: name.to_owned(),
        role: if by.is_empty() {
            Role::Fractions.as_str()
        } else {
            Role::DynamicMig { by: Vec::new() }.as_str()
        },
        changed: by != had,
        role_labels: by,
        patch: (!patch.is_empty()).then(|| json!({ "metadata": { "labels": patch } })),
    }
}

fn no_such(unknown: &[&str], by_name: &BTreeMap<&str, &Node>) -> Error {
    let there: Vec<&str> = by_name.keys().copied().collect();
    let hint = if there.is_empty() {
        "the cluster has no nodes".to_owned()
    } else {
        format!("the nodes are {}", there.join(", "))
    };
    let message = format!(
        "unknown node {}; nothing was changed",
        quoted(unknown).join(" or ")
    );
    Error::new(ErrorCode::NotFound, message)
        .hint(hint)
        .details(json!({ "nodes": unknown }))
}

/// Refuses the change if another product's label would keep the role.
fn foreign(nodes: &[(&String, Role)]) -> Result<(), Error> {
    let kept = nodes.iter().find_map(|(name, role)| match role {
        Role::DynamicMig { by } => {
            let others: Vec<&str> = by.iter().copied().filter(|by| *by != DYNAMIC_MIG).collect();
            (!others.is_empty()).then_some((*name, others))
        }
        Role::Fractions => None,
    });
    let Some((name, others)) = kept else {
        return Ok(());
    };
    let gone: Vec<String> = others.iter().map(|label| format!("{label}-")).collect();
    let message = format!(
        "node {name} would keep the role, because another product's label gives it: {}; nothing was changed",
        others.join(" and ")
    );
    let hint = format!(
        "add --all-labels, or run `kubectl label node {name} {}` if no other product needs the label",
        gone.join(" ")
    );
    Err(Error::new(ErrorCode::Conflict, message).hint(hint))
}

fn quoted(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("`{name}`")).collect()
}

/// The result, one line for each node.
///
/// # Errors
/// As [`error_output::json`].
pub fn render(changes: &[Change], format: Format) -> Result<String, Error> {
    if format.is_json() {
        return error_output::json("NodeRoleList", changes.to_vec());
    }
    Ok(changes
        .iter()
        .map(|change| {
            let done = if change.changed {
                "changed"
            } else {
                "unchanged"
            };
            format!("node/{} {} ({done})\n", change.node, change.role)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> Node {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap()
    }

    fn nodes() -> [Node; 3] {
        [
            node("plain", &[]),
            node("ours", &[(DYNAMIC_MIG, "true")]),
            node("cdmo", &[("cdmo.clear.ml/gpu-partitioning", "mig")]),
        ]
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn setting_writes_our_label_where_it_is_not_and_nothing_else() {
        let asked = names(&["plain", "ours", "plain"]);
        let changes = changes(&nodes(), &asked, RoleRequest::Set).unwrap();
        assert_eq!(changes.len(), 2, "each once");
        assert_eq!(
            changes[0].patch,
            Some(json!({ "metadata": { "labels": { "divvy.dev/dynamic-mig": "true" } } }))
        );
        assert_eq!(
            (changes[1].patch.clone(), changes[1].changed),
            (None, false)
        );
        assert_eq!(
            render(&changes, Format::Table).unwrap(),
            "node/plain dynamic-mig (changed)\nnode/ours dynamic-mig (unchanged)\n"
        );
    }

    #[test]
    fn a_role_that_another_product_gives_is_not_said_to_be_gone() {
        let remove = |all_labels| {
            changes(
                &nodes(),
                &names(&["ours", "cdmo"]),
                RoleRequest::Remove { all_labels },
            )
        };
        let error = remove(false).unwrap_err();
        assert_eq!(error.code, ErrorCode::Conflict);
        assert!(
            error.message.contains("cdmo.clear.ml/gpu-partitioning"),
            "{}",
            error.message
        );
        let changes = remove(true).unwrap();
        assert_eq!(
            changes[1].patch,
            Some(json!({ "metadata": { "labels": { "cdmo.clear.ml/gpu-partitioning": null } } }))
        );
        assert!(
            changes
                .iter()
                .all(|change| change.role == "fractions" && change.changed)
        );
        let plain = super::changes(
            &nodes(),
            &names(&["plain"]),
            RoleRequest::Remove { all_labels: false },
        );
        assert_eq!(plain.unwrap()[0].patch, None, "twice is once");
    }

    #[test]
    fn one_unknown_name_stops_all_and_the_names_there_are_said() {
        let error = changes(&nodes(), &names(&["plain", "palin"]), RoleRequest::Set).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound);
        assert_eq!(error.message, "unknown node `palin`; nothing was changed");
        assert_eq!(error.hint.unwrap(), "the nodes are cdmo, ours, plain");
    }
}
