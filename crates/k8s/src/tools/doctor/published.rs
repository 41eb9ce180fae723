//! Checks of published objects: DeviceClasses, and ResourceSlices that a live driver maintains.

use std::collections::BTreeSet;

use super::facts::ClusterFacts;
use super::nodes::node_parts;
use super::row::{Row, Status};
use crate::base::claim::{DRIVER, FRACTION_CLASS, MEMORY_CLASS, mig_class};
use crate::base::error_output::few;
use crate::base::slices;
use crate::tools::admin::nodes::{Pool, is_ready};

pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    vec![classes(facts), slices(facts)]
}

fn classes(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "published.classes";
    const READ: &str = "DeviceClasses and ResourceSlices";
    let (classes, slices) = match (&facts.classes, &facts.slices) {
        (Ok(classes), Ok(slices)) => (classes, slices),
        (Err(why), _) | (_, Err(why)) => return Row::unknown(CHECK, READ, why),
    };
    let there: BTreeSet<&str> = classes
        .iter()
        .filter_map(|class| class.metadata.name.as_deref())
        .collect();
    let profiles = slices::inventory_of(slices.iter()).profiles;
    let wanted = profiles.keys().map(|profile| mig_class(*profile));
    let always = [FRACTION_CLASS, MEMORY_CLASS].map(str::to_owned);
    let wanted: Vec<String> = always.into_iter().chain(wanted).collect();
    let missing: Vec<&String> = wanted
        .iter()
        .filter(|name| !there.contains(name.as_str()))
        .collect();
    if missing.is_empty() {
        Row::ok(CHECK, READ, format!("all {} exist", wanted.len()))
    } else {
        Row::ok(CHECK, READ, format!("missing: {}", few(&missing))).but(
            Status::Fail,
            "pods that request such a device stay Pending",
            format!(
                "the controller creates them, see its log: kubectl -n {} logs -l app.kubernetes.io/component=reconciler",
                facts.system
            ),
        )
    }
}

/// A slice stays when its driver dies, and pods are still given what it says.
fn slices(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "published.slices";
    const READ: &str = "Divvy's ResourceSlices, their nodes, pods of Divvy's DaemonSet";
    let (slices, nodes) = match (&facts.slices, &facts.nodes) {
        (Ok(slices), Ok(nodes)) => (slices, nodes),
        (Err(why), _) | (_, Err(why)) => return Row::unknown(CHECK, READ, why),
    };
    let parts = node_parts(facts);
    let mut troubles = Vec::new();
    let named: BTreeSet<&str> = slices
        .iter()
        .filter(|slice| slice.spec.driver == DRIVER)
        .filter_map(|slice| slice.spec.node_name.as_deref())
        .collect();
    for name in &named {
        let node = nodes
            .iter()
            .find(|node| node.metadata.name.as_deref() == Some(*name));
        let kept = parts.iter().any(|(on, ready)| on == name && *ready);
        let trouble = match node {
            None => Some("the node does not exist"),
            Some(node) if !is_ready(node) => Some("the node is not ready"),
            Some(_) if !Pool::of(name, slices).complete => Some("the pool is incomplete"),
            Some(_) if !kept && facts.pods.is_ok() => Some("no node pod of Divvy runs"),
            Some(_) => None,
        };
        troubles.extend(trouble.map(|trouble| format!("{name} ({trouble})")));
    }
    for (name, ready) in &parts {
        if *ready && !named.contains(name) {
            troubles.push(format!("{name} (runs Divvy, but publishes nothing)"));
        }
    }
    if !troubles.is_empty() {
        return Row::ok(
            CHECK,
            READ,
            format!("with problems: {}", few(&troubles)),
        )
        .but(
            Status::Warn,
            "the scheduler allocates no devices of these nodes, or pods with these devices do not start",
            "`divvy-k8s admin nodes`, and the log of the node pods",
        );
    }
    let devices: usize = named
        .iter()
        .map(|name| Pool::of(name, slices).devices().count())
        .sum();
    match devices {
        0 => Row::ok(CHECK, READ, "no node publishes devices").but(
            Status::Fail,
            "no pod can get a GPU fraction",
            "a node publishes the GPUs of its daemon: run `divvy gpus` on the node",
        ),
        count => Row::ok(
            CHECK,
            READ,
            format!("{count} devices on {} nodes", named.len()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::doctor::facts::tests::{facts, node_part, slice};

    #[test]
    fn what_is_published_is_counted_and_a_missing_class_is_named() {
        let mut facts = facts();
        let statuses: Vec<Status> = rows(&facts).iter().map(|row| row.status).collect();
        assert_eq!(statuses, [Status::Ok, Status::Ok]);
        facts.classes = Ok(Vec::new());
        let row = classes(&facts);
        assert_eq!(
            (row.status, row.found.as_str()),
            (
                Status::Fail,
                "missing: fraction.gpu.divvy.dev, memory.gpu.divvy.dev"
            )
        );
    }

    #[test]
    fn orphaned_slices_are_told_from_those_of_a_living_node() {
        let mut facts = facts();
        facts.pods = Ok(Vec::new());
        assert!(
            slices(&facts)
                .found
                .contains("a (no node pod of Divvy runs)")
        );
        let mut facts = crate::tools::doctor::facts::tests::facts();
        facts
            .slices
            .as_mut()
            .unwrap()
            .push(slice("gone", DRIVER, 1, 1));
        assert!(
            slices(&facts)
                .found
                .contains("gone (the node does not exist)")
        );
        let mut facts = crate::tools::doctor::facts::tests::facts();
        facts.slices = Ok(vec![slice("a", DRIVER, 1, 2)]);
        assert!(slices(&facts).found.contains("a (the pool is incomplete)"));
        facts.slices = Ok(Vec::new());
        assert!(slices(&facts).found.contains("publishes nothing"));
        facts.pods = Ok(vec![node_part("a", false)]);
        assert_eq!(slices(&facts).status, Status::Fail);
    }
}
